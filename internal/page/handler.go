package page

import (
	"cmp"
	"net/http"

	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file sends each request on its way: from the near tier, through the cache, or past it.

// Handler wraps next.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m.runs(w) {
			next.ServeHTTP(w, r)
			return
		}
		if !httpcache.Safe(r.Method) {
			m.passUnsafe(w, r, next)
			return
		}
		t, ok := m.target(r)
		var d httpcache.RequestDirectives
		if !m.options.IgnoreRequestDirectives {
			d = httpcache.ParseRequest(r.Header)
		}
		why := m.bypassReason(w.Header(), r, d)
		switch {
		case (why != "" || !ok) && d.OnlyIfCached:
			replyNotCached(w) // RFC 9111 section 5.2.1.7
			return
		case !ok:
			m.passReal(w, r, next, httpcache.Status{Fwd: httpcache.FwdBypass, Detail: cmp.Or(why, "key")})
			return
		case why != "":
			if m.bypass(w, r, next, t, why) {
				return
			}
			d = httpcache.RequestDirectives{NoStore: d.NoStore}
		}
		if !m.hot(w, r, t, d) {
			m.serve(w, r, next, t, d)
		}
	})
}
