package httpcache

import (
	"maps"
	"net/http"
)

// A Request is the part of a request that the rules go by.
type Request struct {
	// Header is the header that the client has sent, with the entry of [WithVariant].
	Header http.Header
	// Credentials tells that the request says who its client is, by Authorization or
	// by other fields that count as that. A response to it is for all only if the
	// response says so (RFC 9111 section 3.5).
	Credentials bool
	// Asked is the request as the handler gets it, for Options.Freshness.
	Asked *http.Request
	// NoStore tells that the response must not be stored (RFC 9111 section 5.2.1.5).
	NoStore bool
}

// KeyVariant stands, among the names that a response varies by, for the part of a request's
// key beside its URL. It is no field's name, so no Vary has it.
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
