package page

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
	"github.com/go-chi/chi/v5"
)

// This file is what a request asks for: its URL and variant, and whether the cache may answer it.

// runs reports whether w belongs to a run of the handler for m. The response that
// is being made there is what a second pass would wait for, or what a request that
// went past the cache was not to wait for.
func (m *Middleware) runs(w http.ResponseWriter) bool {
	for {
		if run, ok := w.(interface{ belongsTo(*Middleware) bool }); ok && run.belongsTo(m) {
			return true
		}
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = outer.Unwrap()
	}
}

// A target is the URL that a request asks for, and the part of the request that selects a
// variant there.
type target struct {
	url    *http.Request // the request, or one for the URL that HTTPOptions.Key has returned
	key    string        // of the URL
	header http.Header   // the request's, with Key.Variant
}

// target returns the request's target. It returns false if the URL has no key, or if
// HTTPOptions.Key has refused the request.
func (m *Middleware) target(r *http.Request) (t target, ok bool) {
	t = target{url: r, header: httpcache.EndToEnd(r.Header)}
	if m.options.Key != nil {
		if !httpcache.Ordinary(r) {
			return t, false // Key may not see what the handler would
		}
		named, variant, ok := m.options.Key(seenByKey(r, t.header))
		if !ok {
			return t, false
		}
		t.header = httpcache.WithVariant(t.header, variant)
		if named != "" {
			u, err := url.Parse(named)
			if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
				own, _ := httpcache.Key(r)
				m.cache.OnError(own, fmt.Errorf("bellwether: HTTPOptions.Key has returned %.200q; it must return a URL with a host, such as \"http://shop.example/users/42\", an empty one for the request's own, or false", named))
				return t, false
			}
			t.url = &http.Request{Method: r.Method, URL: u, Host: u.Host, Header: r.Header}
		}
	}
	t.key, ok = httpcache.Key(t.url)
	return t, ok
}

// seenByKey returns the request as HTTPOptions.Key gets it. header is the request's without
// the fields of one connection: a variant by a field that the handler does not see would be
// made without it.
func seenByKey(r *http.Request, header http.Header) *http.Request {
	if len(header) == len(r.Header) {
		return r
	}
	seen := *r
	seen.Header = header
	return &seen
}

// hasCredentials reports whether a request says who its client is.
func (m *Middleware) hasCredentials(r *http.Request) bool {
	for _, name := range m.options.Credentials {
		if r.Header[name] != nil {
			return true
		}
	}
	return clientCertificate(r) != nil
}

// clientCertificate returns the certificate that a request's client has shown, nil if it
// has shown none.
func clientCertificate(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	return r.TLS.PeerCertificates[0]
}

// directives are a request's, unless they are ignored.
func (m *Middleware) directives(r *http.Request) (d httpcache.RequestDirectives) {
	if !m.options.IgnoreRequestDirectives {
		d = httpcache.ParseRequest(r.Header)
	}
	return d
}

// request returns what the rules ask of a request, whose target is t.
func (m *Middleware) request(r *http.Request, t target, d httpcache.RequestDirectives) httpcache.Request {
	return httpcache.Request{Asked: r, Header: t.header, Credentials: m.hasCredentials(r), NoStore: d.NoStore}
}

// The reasons to go past the cache that are bounded, see bypass: the first two want the
// real ResponseWriter.
const (
	reasonUpgrade     = "upgrade"
	reasonEventStream = "event-stream"
	reasonNoStore     = "request no-store"
	reasonBody        = "request body"
)

// bypassReason says why a safe request goes past the cache, "" if it does not. outer is
// the response's header as the middlewares around this one have left it.
func (m *Middleware) bypassReason(outer http.Header, r *http.Request, d httpcache.RequestDirectives) string {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return "method"
	case r.Header["Upgrade"] != nil && !strings.EqualFold(strings.Join(r.Header["Upgrade"], ","), "h2c"):
		// An offer of h2c is one that net/http never takes (RFC 9113 section 3.1 has
		// dropped it), and that some clients make with each request.
		return reasonUpgrade
	case strings.Contains(strings.ToLower(strings.Join(r.Header["Accept"], ",")), eventStream):
		return reasonEventStream
	case r.ContentLength != 0:
		// A body that the key does not tell apart would answer others.
		return reasonBody
	case d.NoStore:
		return reasonNoStore
	case httpcache.OverridesMethod(r.Method, r.Header):
		return "method override"
	case httpcache.Respelled(r.URL) && routed(r):
		return "path spelling"
	case m.forbids(outer):
		return "outer cache-control"
	}
	return ""
}

// routed reports whether chi has routed the request, or a part of its path, before the
// cache. chi routes by the path as it was sent: "/%61nna" may have another handler than
// "/anna", which has the same key.
func routed(r *http.Request) bool {
	rc := chi.RouteContext(r.Context())
	return rc != nil && (rc.RoutePath != "" || len(rc.RoutePatterns) > 0)
}

// forbids reports whether a middleware around this one forbids shared caches to keep the
// response. Neither the handler nor TTL knows of that.
func (m *Middleware) forbids(outer http.Header) bool {
	if len(outer) == 0 {
		return false
	}
	d := httpcache.ResponseDirectives(httpcache.CanonicalHeader(outer), m.options.Rules.Targets...)
	return d.NoStore || d.Private
}

// maxHops bounds the steps from a URL's key to a response: a signpost, the newer one behind
// it, the variant, and one step more for a response that breaks off.
const maxHops = 4

// reasonAuthorization is why a request with Authorization goes past the cache.
const reasonAuthorization = "authorization"

// pseudonyms are on each signpost. Each stands for a part of a request that no URL's key
// and no Vary has, and is no field's name.
var pseudonyms = []string{httpcache.KeyVariant, httpcache.RetargetingFields}

// needsVariant reports whether a request with the header req has any part that a pseudonym
// stands for. A response that is kept under the URL's own key is not for such a request.
func (m *Middleware) needsVariant(req http.Header) bool {
	return req[httpcache.KeyVariant] != nil || m.options.Rules.Retargeted(req)
}

// variantKey is the key of the variant that a request with the header req asks for. base
// is the key of its URL.
func (m *Middleware) variantKey(signpost *variance, base string, req http.Header) string {
	return base + sweeplog.VariantMark + signpost.mark + httpcache.VariantKey(signpost.names, req, m.options.Rules)
}
