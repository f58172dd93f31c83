package page

import (
	"crypto/x509"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strings"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
	"github.com/go-chi/chi/v5"
)

// This file reads a request: the URL, the variant, and whether the cache may answer.

// runs reports whether w is of a handler's run for m: a second pass would wait for its own response.
func (m *Middleware) runs(w http.ResponseWriter) bool {
	for w := range wrapped(w) {
		if run, ok := w.(interface{ belongsTo(*Middleware) bool }); ok && run.belongsTo(m) {
			return true
		}
	}
	return false
}

// wrapped yields w, the writer that w wraps, and so on, as [http.ResponseController] unwraps them.
func wrapped(w http.ResponseWriter) iter.Seq[http.ResponseWriter] {
	return func(yield func(http.ResponseWriter) bool) {
		for w, ok := w, true; ok && yield(w); {
			var outer interface{ Unwrap() http.ResponseWriter }
			if outer, ok = w.(interface{ Unwrap() http.ResponseWriter }); ok {
				w = outer.Unwrap()
			}
		}
	}
}

// A target is a request as the rules see it, and its URL. The Header selects a variant there.
type target struct {
	httpcache.Request
	url          *http.Request // the request, or a request for the URL that HTTPOptions.Key has returned
	key          string        // the URL's key
	directives   httpcache.RequestDirectives
	needsVariant bool // it has a Key.Variant or a retargeting field: the URL's own response is not for it
}

// target returns the request's target, and false if the URL has no key or HTTPOptions.Key refuses.
func (m *Middleware) target(r *http.Request) (t target, ok bool) {
	t = target{Request: httpcache.Request{Asked: r, Header: httpcache.EndToEnd(r.Header), Credentials: m.hasCredentials(r)}, url: r}
	if !m.options.IgnoreRequestDirectives {
		t.directives = httpcache.ParseRequest(r.Header)
	}
	if m.options.Key != nil {
		if !httpcache.Ordinary(r) {
			return t, false // Key might not see the request that the handler sees
		}
		named, variant, ok := m.options.Key(m.seenByKey(r, t.Header))
		if !ok {
			return t, false
		}
		t.Header = httpcache.WithVariant(t.Header, variant)
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
	t.needsVariant = t.Header[httpcache.KeyVariant] != nil || m.options.Rules.Retargeted(t.Header)
	t.key, ok = httpcache.Key(t.url)
	return t, ok
}

// seenByKey returns the request for HTTPOptions.Key, with the fields that the handler sees. For a page they are without
// connection fields and in normal form. From two lines of a field, Key would take the first value, and the handler
// the joined value. A client could so put its own page under the key of other clients. The handler of another request
// gets r itself, also for a GET with a body, and so does Key: the form that Key parses is the handler's, since a body can
// be read once.
func (m *Middleware) seenByKey(r *http.Request, header http.Header) *http.Request {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.ContentLength != 0 {
		return r
	}
	header, changed := httpcache.Normalised(header, m.options.Rules)
	if !changed && len(header) == len(r.Header) {
		return r
	}
	seen := *r
	seen.Header = header
	return &seen
}

// hasCredentials reports whether a request identifies its client.
func (m *Middleware) hasCredentials(r *http.Request) bool {
	for _, name := range m.options.Rules.Credentials {
		if r.Header[name] != nil {
			return true
		}
	}
	return clientCertificate(r) != nil
}

func clientCertificate(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	return r.TLS.PeerCertificates[0]
}

// Reasons for a bypass. The first four are bounded, see bypass, and the first two need the real ResponseWriter.
const (
	reasonUpgrade     = "upgrade"
	reasonEventStream = "event-stream"
	reasonNoStore     = "request no-store"
	reasonBody        = "request body"
	reasonMethod      = "method" // a word of its own in Cache-Status
)

// bypassReason is why a safe request bypasses the cache, or "". outer is the outer middlewares' header.
func (m *Middleware) bypassReason(outer http.Header, r *http.Request, d httpcache.RequestDirectives) string {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return reasonMethod
	case r.Header["Upgrade"] != nil && !strings.EqualFold(strings.Join(r.Header["Upgrade"], ","), "h2c"):
		// net/http accepts no h2c (RFC 9113 section 3.1 has dropped it). Some clients always offer it.
		return reasonUpgrade
	case strings.Contains(strings.ToLower(strings.Join(r.Header["Accept"], ",")), eventStream):
		return reasonEventStream
	case r.ContentLength != 0:
		// The key does not include the body: the response would answer other requests.
		return reasonBody
	case d.NoStore:
		return reasonNoStore
	}
	return m.unkeyedReason(outer, r)
}

// unkeyedReason is why the page under the request's key may not be its response, or "".
func (m *Middleware) unkeyedReason(outer http.Header, r *http.Request) string {
	switch {
	case httpcache.OverridesMethod(r.Method, r.Header):
		return "method override"
	case httpcache.Respelled(r.URL) && routed(r):
		return "path spelling"
	case r.Pattern != "" && httpcache.RespelledHost(r.Host):
		// http.ServeMux routes by the host as sent: "SHOP.example" and "shop.example." may have another
		// handler than "shop.example", and all have the same key.
		return "host spelling"
	case m.forbids(outer):
		return "outer cache-control"
	}
	return ""
}

// routed reports whether chi has routed the request, or a part of its path, before the cache. chi routes
// by the path as sent: "/%61nna" may have another handler than "/anna", and both have the same key.
func routed(r *http.Request) bool {
	rc := chi.RouteContext(r.Context())
	return rc != nil && (rc.RoutePath != "" || len(rc.RoutePatterns) > 0)
}

// forbids reports whether an outer middleware forbids sharing, of which neither handler nor TTL knows.
func (m *Middleware) forbids(outer http.Header) bool {
	if len(outer) == 0 {
		return false
	}
	d := httpcache.ResponseDirectives(httpcache.CanonicalHeader(outer), m.options.Rules.Targets...)
	return d.NoStore || d.Private
}

// maxHops bounds the steps to a response: a signpost, newer ones, and the variant.
const maxHops = 4

// reasonAuthorization is the detail of a bypass because of the request's Authorization.
const reasonAuthorization = "authorization"

// pseudonyms, on each signpost, are for request parts outside URL keys and Vary. No field has such a name.
var pseudonyms = []string{httpcache.KeyVariant, httpcache.RetargetingFields}

// variantKey is the key of the variant for the request header req. base is the URL's key.
func (m *Middleware) variantKey(signpost *variance, base string, req http.Header) string {
	return base + sweeplog.VariantMark + signpost.mark + httpcache.VariantKey(signpost.names, req, m.options.Rules)
}

// follow returns the response for a target and its key, by way of the items that find returns. it is nil if a step
// has no item, or the way ends with no response for the target.
func (m *Middleware) follow(t target, find func(key string) *Item) (it *Item, key string) {
	key = t.key
	for range maxHops {
		if it = find(key); it == nil {
			return nil, key
		}
		switch res := responseOf(it); {
		case res.kind == varying:
			key = m.variantKey(res.vary, t.key, t.Header)
		case res.kind == plain && (key != t.key || !t.needsVariant):
			return it, key
		default:
			return nil, key
		}
	}
	return nil, key
}
