package page

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/go-chi/chi/v5"
)

// This file is the way of a request through the cache, to an item.

// serve answers from the cache, by way of the handler if need be.
func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler, t target, d httpcache.RequestDirectives) {
	q := &query{m: m, w: w, r: r, next: next, target: t, directives: d, request: m.request(r, t, d), needsVariant: m.needsVariant(t.header), began: m.cache.Now()}
	if m.cache.Watched() {
		q.told = &observe.Serve{Key: t.key}
		defer q.tell()
	}
	defer q.leave()
	at := hop{key: t.key}
	for range maxHops {
		s, is := q.answerAt(&at)
		if is == hopDone {
			return
		}
		if is == hopAgain {
			continue
		}
		if is == hopRefused {
			break
		}
		if k := s.Item.Value.kind; d.OnlyIfCached && k != plain && k != varying {
			q.notCached()
			return
		}
		switch res := s.Item.Value; res.kind {
		case plain:
			q.replyPlain(at.key, s)
			return
		case checked:
			q.passChecked(at.key, s.Item)
			return
		case varying:
			at.key, at.signpost = m.variantKey(res, t.key, t.header), s.Item
		default:
			q.passUncacheable(at.key, s.Item)
			return
		}
	}
	q.pass(httpcache.Status{Fwd: httpcache.FwdVaryMiss, Detail: "too many variants"})
}

// A hop is where a query is on its way from its URL's key to that of its response.
type hop struct {
	key      string
	signpost *Item // that has led to the key; nil at the URL's own
	broken   bool  // a response has broken off before the client had any of it
}

// An arrival is what has come of a hop.
type arrival uint8

const (
	hopFound   arrival = iota // there is an item under the key
	hopDone                   // the request has its reply
	hopAgain                  // what was being made is no more: ask again
	hopRefused                // the URL has too many variants
)

// answerAt gets the item under the hop's key: what is at hand, or else what the handler makes.
func (q *query) answerAt(at *hop) (s Answer, is arrival) {
	m, d := q.m, q.directives
	it, early, ok := q.atHand(at.key)
	if !ok && d.OnlyIfCached {
		q.notCached()
		return s, hopDone
	}
	if early && !d.OnlyIfCached { // that is to cost the handler nothing
		q.refresh(at.key, it, at.signpost)
	}
	if ok {
		if at.signpost != nil {
			at.signpost.Value.built.of(q.needsVariant).touch(at.key, m.cache.Now())
		}
		return Answer{Item: it}, hopFound
	}
	if q.request.Credentials && q.passCredentials(at.key) {
		return s, hopDone
	}
	if at.signpost != nil && !at.signpost.Value.built.of(q.needsVariant).admit(at.key, m.cache.Now()) {
		return s, hopRefused
	}
	return q.answerByHandler(at, it)
}

// answerByHandler is answerAt by way of the handler. stale is what is at hand.
func (q *query) answerByHandler(at *hop, stale *Item) (s Answer, is arrival) {
	c := q.call(at.signpost)
	c.earlier, q.latest = q.latest, c
	s, err := q.wait(c, at.key, stale)
	if err != nil {
		q.replyError(c, at.key, s, err)
		return s, hopDone
	}
	if res := s.Item.Value; res.of == nil && res.variant == nil {
		return s, hopFound
	}
	switch q.replyLive(c, s, at.key) {
	case liveDone:
		return s, hopDone
	case liveBroken:
		// Before this client had any of it: it is served what is there in its place,
		// such as a stale copy, or fails with all the others. Once; the retries of a
		// herd must not add up.
		if err = errBroken; !at.broken {
			at.broken = true
			err = q.m.cache.Landing(q.r.Context(), at.key, s.Item)
		}
		if err != nil {
			q.replyError(c, at.key, s, err)
			return s, hopDone
		}
		return s, hopAgain
	}
	return s, hopFound
}

// leave ends the query's calls.
func (q *query) leave() {
	for c := q.latest; c != nil; c = c.earlier {
		c.leave()
	}
}

// replyPlain answers with a response that is kept, if the request may have it.
func (q *query) replyPlain(key string, s Answer) {
	res := s.Item.Value
	switch {
	case !q.mayHave(res):
		q.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization})
		return
	case q.excludedFrom(key):
		q.pass(httpcache.Status{Fwd: httpcache.FwdVaryMiss})
		return
	case httpcache.IsServerError(res.status):
		spare := q.spared(key)
		if spare == nil {
			break
		}
		status := httpcache.Status{Hit: true}
		if loadedHere(s) {
			status = httpcache.Status{Fwd: res.fwd, FwdStatus: res.status, Collapsed: s.Collapsed}
		}
		q.replySpare(key, spare, status)
		return
	}
	q.reply(key, s)
}

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
	told         *observe.Serve // what those who watch are told, nil if nobody does
	latest       *call          // of those that wait for the handler, nil before the first
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
		if res.variant != nil && q.selects(res) {
			res = res.variant // still being written, and found with what it varies by
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
func (q *query) selects(signpost *Response) bool {
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
	if x := res.of; x != nil { // it is still being written, and the item's life has not begun
		return f.Reuse(res.age+time.Since(x.decidedAt), d)
	}
	// The item's: the response knows nothing of a jitter or a sweep, nor, from a store, of windows.
	f.Lifetime, f.StaleWhileRevalidate = it.FreshUntil-it.Born, it.StaleUntil-it.FreshUntil
	return f.Reuse(now-it.Born, d)
}

// atHand answers without the handler if it can. If it cannot, the item is what
// may be served when patience ends, or nil.
func (q *query) atHand(key string) (it *Item, early, ok bool) {
	cache, want := q.m.cache, q.want(key)
	if it, early, ok = cache.Hit(key, want); ok {
		return it, early, true
	}
	if q.directives.MaxStale.Set {
		// A client that takes what is staler than we would serve gets it if this
		// process has it.
		it, now := cache.Near(key)
		if it != nil && it.Held && now < it.Trusted && it.Value.kind == plain && (want.Fits == nil || want.Fits(it)) && want.Accept(it, now) {
			cache.CountStale()
			return it, false, true
		}
	}
	if q.directives.OnlyIfCached {
		it := cache.Apart(key, gate.NewBudget(q.m.options.EngineTimeout)).Find(q.r.Context())
		if now := cache.Now(); it != nil && (it.Fresh(now) || it.Stale(now)) && want.Takes(it, now, forever) {
			return it, false, true
		}
	}
	return it, false, false
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

// wait answers by way of the handler.
func (q *query) wait(c *call, key string, stale *Item) (Answer, error) {
	m := q.m
	c.aside = make(chan func(), maxHints)
	w := q.want(key)
	w.Aside, w.Client, w.Personal = c.aside, c.client, c.personal()
	wait := &c.waiting
	*wait = Waiting{Ctx: q.r.Context(), Key: key, Stale: stale, Want: w, Budget: q.budget}
	m.cache.Wait(wait, c)
	q.budget = wait.Budget
	if wait.Early {
		q.refresh(key, wait.Answer.Item, c.signpost)
	}
	if q.told != nil {
		q.add(wait.Served)
	}
	return wait.Answer, wait.Err
}

// call is the request's wait for the key that the signpost has led to.
func (q *query) call(signpost *Item) *call {
	return &call{
		query: q, route: chi.RouteContext(q.r.Context()), request: q.request, client: q.client(), base: q.target.key,
		signpost: signpost, excluded: q.needsVariant && signpost == nil,
	}
}

// Bind makes the handler's run the load of a flight that the call begins.
func (c *call) Bind() Loader {
	q := c.query
	r := detach(q.r, c.route)
	if t := q.target.url; t != q.r {
		retarget(r, t)
	}
	return func(ctx context.Context, a Attempt) (*Response, error) {
		return q.m.fetch(ctx, a, c, q.next, r)
	}
}

// retarget gives r the host and the query of t: a part of the URL that the key leaves out
// must not get into the response.
func retarget(r, t *http.Request) {
	r.Host, r.URL.RawQuery, r.URL.ForceQuery = t.Host, t.URL.RawQuery, t.URL.ForceQuery
	path, _, _ := strings.Cut(r.RequestURI, "?")
	if path == "" {
		return
	}
	r.RequestURI = path
	if t.URL.RawQuery != "" || t.URL.ForceQuery {
		r.RequestURI += "?" + t.URL.RawQuery
	}
}

// refresh has a fresh response rebuilt behind the client's back: it has no reader
// that would have to keep up with it, nor one for interim responses.
func (q *query) refresh(key string, it, signpost *Item) {
	c := q.call(signpost)
	c.aside = make(chan func())
	c.leave()
	q.m.cache.Refresh(q.r.Context(), key, it, c.client, c)
}

// reasonAuthorization is why a request with Authorization goes past the cache.
const reasonAuthorization = "authorization"

// authorizedKey is where it is written, in this process alone, what is known of
// a key's responses to requests with Authorization.
func authorizedKey(key string) string { return key + "\x00\x00authorization" }

// tellsAudience reports whether a response of that status tells for whom a key's responses
// are. An error is about the client, and a part or a 304 about what the client has asked.
func tellsAudience(status int) bool {
	return status < 400 && status != http.StatusPartialContent && status != http.StatusNotModified
}

// uncacheableFor is how long it is remembered that a key's response was not for sharing,
// which took so long: at least until the next response can say so.
func (m *Middleware) uncacheableFor(took time.Duration) items.Windows {
	return items.Windows{TTL: max(m.options.UncacheableTTL, durations.Add(took, took))}
}

// learnAuthorized remembers whether a response to a request with Authorization
// was for all.
func (m *Middleware) learnAuthorized(key string, shared bool) {
	if shared {
		m.cache.Remember(authorizedKey(key), &Response{kind: open}, items.Windows{TTL: varyingTTL})
		return
	}
	m.cache.Remember(authorizedKey(key), &Response{kind: uncacheable}, items.Windows{TTL: m.options.UncacheableTTL})
}

// learntAuthorized returns what learnAuthorized remembers: open, uncacheable,
// or plain if it is not known.
func (m *Middleware) learntAuthorized(key string) responseKind {
	if it, now := m.cache.Near(authorizedKey(key)); it != nil && now < it.FreshUntil {
		return it.Value.kind
	}
	return plain
}
