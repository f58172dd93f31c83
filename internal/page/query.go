package page

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is a request on the way through the cache, with the conditions on the answer.

type query struct {
	m      *Middleware
	w      http.ResponseWriter
	r      *http.Request
	next   http.Handler
	target target
	told   *observe.Serve // the report to observers, nil without observers
	// budget is for the whole query: if the flight of the signpost has waited for a store, the
	// variant's flight must not wait again.
	budget *gate.Budget
	// waitedFrom is when the query began to wait: MaxWait and Patience are for the whole query too.
	waitedFrom instant
	owns       bool // see ownHeader
	broken     bool // a response has broken off before the client had any of it
	// counted: the counters of calls have the request, which may have waited for a signpost.
	counted bool
}

// ownHeader gives the query a header of its own, once. A run, and the Want of a flight, outlive the client's
// request, whose header an outer handler may change from then on. And a handler that gets the client's own
// request may change the header before the cache judges the response.
func (q *query) ownHeader() {
	if q.owns {
		return
	}
	q.owns = true
	q.target.Header = q.target.Header.Clone()
}

// want returns the request's conditions on an answer under key. The usual request has none.
func (q *query) want(key string) Want {
	d, w := q.target.directives, Want{Counted: q.counted}
	if !q.target.Credentials && !q.target.needsVariant && !d.NoCache && !d.MaxAge.Set && !d.MinFresh.Set && !d.MaxStale.Set {
		return w
	}
	if q.unanswerable(key) {
		w.Fits = func(it *Item) bool {
			res := responseOf(it)
			return it.Kind != driver.KindValue || res.vary != nil || res.kind != plain && res.kind != checked
		}
	}
	w.Accept = q.accepts
	return w
}

// accepts reports whether an item answers the request, or leads to its answer.
func (q *query) accepts(it *Item, now instant) bool {
	if it.Kind != driver.KindValue {
		return true
	}
	res := responseOf(it)
	if res.kind != plain || res.vary != nil && !q.selects(res.vary) {
		return true // it only leads to the response
	}
	return q.mayHave(res) && reuse(it, res, now, q.target.directives)
}

// mayHave reports whether a stored response may answer the request. A request with credentials gets
// only a response for everyone (RFC 9111 section 3.5), also in place of an error.
func (q *query) mayHave(res *Response) bool { return !q.target.Credentials || res.openToAll }

// unanswerable reports whether no response under the key is for the request, see target.
func (q *query) unanswerable(key string) bool { return q.target.needsVariant && key == q.target.key }

// selects reports whether the request asks for the variant in progress with the signpost.
func (q *query) selects(signpost *variance) bool {
	return q.m.variantKey(signpost, q.target.key, q.target.Header) == signpost.id
}

// client is equal for requests that could share a response or a failure: with the same Cookie, credentials, and
// parts that need a variant. Before a response of the URL, requests of all variants wait for one run.
func (q *query) client() string {
	if q.target.needsVariant {
		return "\x00" + httpcache.VariantKey(pseudonyms, q.target.Header, q.m.options.Rules) + q.identity()
	}
	return q.identity()
}

func (q *query) identity() string {
	if !q.target.Credentials {
		return strings.Join(q.r.Header["Cookie"], "; ")
	}
	var b strings.Builder
	b.WriteByte(0) // no Cookie contains a zero byte
	fmt.Fprintf(&b, "%q", q.r.Header["Cookie"])
	for _, name := range q.m.options.Rules.Credentials {
		fmt.Fprintf(&b, "%q", q.r.Header[name])
	}
	if c := clientCertificate(q.r); c != nil {
		b.Write(c.Raw)
	}
	return b.String()
}

// reuse reports whether RFC 9111 lets res, the item's response, answer a request.
func reuse(it *Item, res *Response, now instant, d httpcache.RequestDirectives) bool {
	f := res.freshness
	if s := res.live; s != nil { // still written: the item's life has not begun
		return f.Reuse(s.ageNow(), d)
	}
	// The item's windows: the response does not know a jitter or a sweep, nor windows from a store.
	f.Lifetime, f.StaleWhileRevalidate = it.FreshUntil-it.Born, it.StaleUntil-it.FreshUntil
	return f.Reuse(now-it.Born, d)
}

// add adds a call (for a signpost, a variant) to the request's report. The most expensive way counts.
func (q *query) add(s observe.Serve) {
	if q.told != nil {
		q.told.Way, q.told.Err = max(q.told.Way, s.Way), s.Err
		q.told.Waited = max(q.told.Waited, s.Waited) // of all waits together
	}
}

// bypassed is add for a request that the handler answers for itself.
func (q *query) bypassed() { q.add(observe.Serve{Way: observe.WayBypass}) }
