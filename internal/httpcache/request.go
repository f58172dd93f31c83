package httpcache

import (
	"maps"
	"net/http"
)

// A Request is the part of a request that the rules need.
type Request struct {
	// Header is the client's header, with the entry of [WithVariant].
	Header http.Header
	// Credentials: the request identifies its client, by Authorization or fields with the same
	// role. Its response is for everyone only if the response states so (RFC 9111 section 3.5).
	Credentials bool
	// Asked is the handler's request, for Options.Freshness.
	Asked *http.Request
	// NoStore: the response must not be stored (RFC 9111 section 5.2.1.5).
	NoStore bool
}

// KeyVariant is the name, among Vary names, of the part of a key beside its URL. No field has the name.
const KeyVariant = "(key)"

// WithVariant returns h with the variant under KeyVariant, h itself if variant is empty.
func WithVariant(h http.Header, variant string) http.Header {
	if variant == "" {
		return h
	}
	h = maps.Clone(h)
	h[KeyVariant] = []string{variant}
	return h
}
