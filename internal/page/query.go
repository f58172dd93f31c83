package page

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is a request on its way through the cache, and what it may be answered with.

// A query is one request on its way through the cache.
type query struct {
	m          *Middleware
	w          http.ResponseWriter
	r          *http.Request
	next       http.Handler
	target     target
	began      instant
	directives httpcache.RequestDirectives
	request    httpcache.Request
	// needsVariant is Middleware.needsVariant of the request.
	needsVariant bool
	asked        *refresh       // whose request it is, nil if it is a client's
	told         *observe.Serve // what those who watch are told, nil if nobody does
	latest       *place         // of those of its calls that wait for the handler, nil before the first
	// budget is for all its way: the flight of a page's names may have waited for a
	// store that the variant's is not to wait for again. It is nil before the first wait.
	budget *gate.Budget
}

// want is what the request asks of an answer under key; nothing is the usual case.
func (q *query) want(key string) Want {
	d := q.directives
	if !q.request.Credentials && !q.needsVariant && !d.NoCache && !d.MaxAge.Set && !d.MinFresh.Set && !d.MaxStale.Set {
		return Want{}
	}
	var w Want
	if q.excludedFrom(key) {
		w.Fits = func(it *Item) bool {
			return it.Kind != driver.KindValue || it.Value.kind != plain && it.Value.kind != checked
		}
	}
	w.Accept = func(it *Item, now instant) bool {
		if it.Kind != driver.KindValue {
			return true
		}
		res := it.Value
		if v := res.content(); v != res && q.selects(res.vary) {
			res = v // still being written, and found with what it varies by
		}
		if res.kind != plain {
			return true // it says where to go, and no more
		}
		if !q.mayHave(res) {
			return false
		}
		return reuse(it, res, now, d)
	}
	return w
}

// mayHave reports whether a stored response may answer the request: with credentials only
// one that is for all (RFC 9111 section 3.5), also in the place of an error.
func (q *query) mayHave(res *Response) bool { return !q.request.Credentials || res.forAll }

// excludedFrom reports whether no response that is kept under the key is for the request,
// see needsVariant.
func (q *query) excludedFrom(key string) bool { return q.needsVariant && key == q.target.key }

// selects reports whether the request asks for the variant whose response has made the
// signpost, and is still being written.
func (q *query) selects(signpost *variance) bool {
	return q.m.variantKey(signpost, q.target.key, q.target.header) == signpost.id
}

// client is equal for requests with the same Cookie and credentials: the response to one of
// them could be the response to another.
func (q *query) client() string {
	if !q.request.Credentials {
		return strings.Join(q.r.Header["Cookie"], "; ")
	}
	var b strings.Builder
	b.WriteByte(0) // which no Cookie has
	fmt.Fprintf(&b, "%q", q.r.Header["Cookie"])
	for _, name := range q.m.options.Credentials {
		fmt.Fprintf(&b, "%q", q.r.Header[name])
	}
	if c := clientCertificate(q.r); c != nil {
		b.Write(c.Raw)
	}
	return b.String()
}

// reuse reports whether RFC 9111 lets res, the response of it, answer a request.
func reuse(it *Item, res *Response, now instant, d httpcache.RequestDirectives) bool {
	f := res.freshness
	if s := res.live; s != nil { // it is still being written, and the item's life has not begun
		return f.Reuse(s.age+time.Since(s.decidedAt), d)
	}
	// The item's: the response knows nothing of a jitter or a sweep, nor, from a store, of windows.
	f.Lifetime, f.StaleWhileRevalidate = it.FreshUntil-it.Born, it.StaleUntil-it.FreshUntil
	return f.Reuse(now-it.Born, d)
}

// spared returns what the request takes in the place of an error by its own
// stale-if-error (RFC 5861 section 4); nil if it takes none, or there is nothing
// in this process that may be served so.
func (q *query) spared(key string) *Item {
	if !q.directives.StaleIfError.Set || q.excludedFrom(key) {
		return nil
	}
	cache := q.m.cache
	it, now := cache.Near(key)
	if it == nil || q.began >= it.Trusted {
		return nil
	}
	it = q.m.fallback(key, it)
	if it == nil || !it.Held || it.Value.kind != plain || httpcache.IsServerError(it.Value.status) || !q.mayHave(it.Value) {
		return nil
	}
	f := it.Value.freshness
	f.Lifetime, f.StaleIfError = it.FreshUntil-it.Born, it.ErrorUntil-it.FreshUntil // as in reuse
	if !f.ReuseOnError(now-it.Born, q.directives) {
		return nil
	}
	return it
}

// fallback is the response under a key beside errors: it, or what it, an error, has
// taken the place of; nil if there is none. What an error stands in front of was not
// held against the log meanwhile.
func (m *Middleware) fallback(key string, it *Item) *Item {
	switch {
	case it == nil || it.Kind != driver.KindValue:
		return nil
	case it.Value.instead == nil:
		return it
	}
	return m.cache.Spare(key, it.Value.instead)
}

// add adds one of its calls to the request's. A request may go through several calls: for what
// it varies by, and for the variant. It is told of once. Of the ways, the one that took most is
// the request's.
func (q *query) add(s observe.Serve) {
	if q.told != nil {
		q.told.Way, q.told.Err = max(q.told.Way, s.Way), s.Err
		q.told.Waited += s.Waited
	}
}

// bypassed is add for a request that is answered by the handler, for itself.
func (q *query) bypassed() { q.add(observe.Serve{Way: observe.WayBypass}) }

// tell tells of the request's end.
func (q *query) tell() { q.m.cache.Tell(q.r.Context(), *q.told) }
