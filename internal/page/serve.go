package page

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/go-chi/chi/v5"
)

// This file routes a request: past the cache, or through the cache to an item.

// serve replies to a request, and returns the last answer on its way: zero if no answer came.
func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler, t target) (s Answer) {
	t.NoStore = t.directives.NoStore
	q := &query{m: m, w: w, r: r, next: next, target: t, budget: gate.NewBudget(m.options.EngineTimeout)}
	if m.cache.Watched() {
		q.told = &observe.Serve{Key: t.key}
		defer func() { m.cache.Tell(r.Context(), *q.told) }()
	}
	at := hop{key: t.key}
	for range maxHops {
		var ok bool
		if s, ok = q.answerAt(at); !ok {
			return s
		}
		switch res := responseOf(s.Item); {
		case res.vary != nil: // a signpost, or a variant in progress that the request does not ask for
			at.key, at.signpost = m.variantKey(res.vary, t.key, t.Header), s.Item
		case res.kind == plain:
			q.reply(at.key, s)
			return s
		case t.directives.OnlyIfCached:
			q.notCached()
			return s
		case res.kind == checked:
			q.passChecked(at.key, s.Item)
			return s
		default:
			q.passUncacheable(at.key, s.Item)
			return s
		}
	}
	q.passVariant()
	return s
}

// passVariant is for a request whose URL has too many variants.
func (q *query) passVariant() {
	q.pass(httpcache.Status{Fwd: httpcache.FwdVaryMiss, Detail: "too many variants"})
}

// answerAt gets the item under the hop's key: the item at hand, or else an item from the handler. The
// result is false if the request has its reply.
func (q *query) answerAt(at hop) (s Answer, ok bool) {
	m, d := q.m, q.target.directives
	it, early, ok := q.atHand(at.key)
	if !ok && d.OnlyIfCached {
		q.notCached()
		return s, false
	}
	// only-if-cached must not cost the handler a run. The response to no-store is for its client alone,
	// and would pause the refresh for all others.
	if early && !d.OnlyIfCached && !d.NoStore {
		q.refresh(at, it)
	}
	if ok {
		return Answer{Item: it}, true
	}
	if q.target.Credentials && q.passCredentials(at.key) {
		return s, false
	}
	// A variant in the near tier, however old, is not new.
	if known, now := m.cache.Near(at.key); known == nil && at.signpost != nil && !responseOf(at.signpost).vary.built.of(q.target.needsVariant).admits(at.key, now) {
		q.passVariant()
		return s, false
	}
	return q.answerByHandler(at, it)
}

// answerByHandler gets the item from the handler, with answerAt's results. stale is the item at hand.
func (q *query) answerByHandler(at hop, stale *Item) (s Answer, ok bool) {
	c := q.call(at)
	defer c.leave()
	s, err := q.wait(c, stale)
	if err != nil {
		q.replyError(c, s, err)
		return s, false
	}
	if responseOf(s.Item).live == nil {
		return s, true
	}
	ok, err = q.replyLive(c, s)
	if err != nil && !q.broken {
		// The client gets a stale copy, or fails with the other callers. It asks again only once: the
		// retries of a herd must not add up.
		q.broken = true
		if _, err = s.Live.Landing(q.r.Context()); err == nil {
			return q.answerAt(at)
		}
	}
	if err != nil {
		q.replyError(c, s, err)
	}
	return s, ok
}

// reply answers with a complete response, from the near tier or from an ended flight, if the request may have it.
func (q *query) reply(key string, s Answer) {
	res, now := responseOf(s.Item), q.m.cache.Now()
	switch {
	case !q.mayHave(res):
		q.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization})
		return
	case q.unanswerable(key):
		q.pass(httpcache.Status{Fwd: httpcache.FwdVaryMiss})
		return
	}
	q.add(observe.Serve{Way: s.Item.Way(now)})
	// The answer or its failure comes from a load in this process.
	here := s.Flown && s.Item.LoadBegan > 0 && !errors.Is(s.Item.Err, fault.ErrOverloaded)
	failed := s.Flown && s.Item.Failures > 0
	status := httpcache.Status{Hit: true}
	switch {
	case here && failed:
		status = failedForward(s.Item, now, s.Item.Err)
		status.Collapsed = s.Collapsed
	case here:
		status = httpcache.Status{Fwd: res.fwd, FwdStatus: res.fwdStatus, Stored: true, Collapsed: s.Collapsed, Key: q.m.statusKey(key)}
	}
	if failed {
		status.Detail = staleIfError
	}
	status.TTL = ttl(s.Item, now)
	writeStored(q.w, q.r, q.m.storedOf(key, s.Item, now), status)
}

// atHand returns an item that answers without the handler, with the results of Cache.Hit.
func (q *query) atHand(key string) (it *Item, early, ok bool) {
	cache, want := q.m.cache, q.want(key)
	if it, early, ok = cache.Hit(key, want); ok {
		return it, early, true
	}
	// A request with no-store comes here when too many like it run past the cache.
	if it != nil && responseOf(it).kind == plain && (q.target.directives.NoStore || q.pausesRefresh(key)) {
		cache.CountStale()
		return it, false, true
	}
	if older := q.acceptedHere(key, want); older != nil {
		cache.CountStale()
		return older, false, true
	}
	if q.target.directives.OnlyIfCached {
		it := q.m.find(q.r.Context(), key)
		if now := cache.Now(); it != nil && (it.Fresh(now) || it.Stale(now)) && want.Takes(it, now, forever) {
			return it, false, true
		}
	}
	return it, false, false
}

// acceptedHere returns an older response that this process has and a client with max-stale accepts, or nil.
func (q *query) acceptedHere(key string, want Want) *Item {
	if !q.target.directives.MaxStale.Set {
		return nil
	}
	it, now := q.m.cache.Near(key)
	if it == nil || !it.Held || now >= it.TrustedUntil || responseOf(it).kind != plain {
		return nil
	}
	if want.Fits != nil && !want.Fits(it) || !want.Accept(it, now) {
		return nil
	}
	return it
}

func (q *query) wait(c *call, stale *Item) (Answer, error) {
	m := q.m
	c.aside = make(chan func(), maxHints)
	w := q.want(c.key)
	w.Aside, w.Client, w.Personal = c.aside, c.place.client, c.personal()
	wait := &c.waiting
	*wait = Waiting{Ctx: q.r.Context(), Key: c.key, Stale: stale, Want: w, Began: q.waitedFrom, Budget: q.budget}
	m.cache.Wait(wait, c)
	q.waitedFrom, q.budget, q.counted = wait.Began, wait.Budget, wait.Want.Counted
	if wait.Early {
		q.refresh(c.hop, wait.Answer.Item)
	}
	q.add(wait.Served)
	return wait.Answer, wait.Err
}

// call returns the request's call at a hop.
func (q *query) call(at hop) *call {
	return &call{query: q, hop: at, route: chi.RouteContext(q.r.Context()), place: place{client: q.client()}}
}

// Bind makes the handler's run the load of a flight that the call begins.
func (c *call) Bind() Loader {
	c.ownHeader()
	r := detach(c.r, c.route)
	if t := c.target.url; t != c.r {
		retarget(r, t)
	}
	return func(ctx context.Context, a Attempt) (items.Product, error) {
		return c.fetch(ctx, a, r)
	}
}

// refresh rebuilds in the background, without a reader to keep up and a client for interim responses. An early
// refresh of an error would end the pause that spares a broken handler.
func (q *query) refresh(at hop, it *Item) {
	if responseOf(it).failures > 0 {
		return
	}
	c := q.call(at)
	c.leave()
	q.m.cache.Refresh(q.r.Context(), at.key, it, c.place.client, c)
}

// Handler wraps next.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	cached := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !httpcache.Safe(r.Method) {
			m.passUnsafe(w, r, next)
			return
		}
		t, ok := m.target(r)
		asked := m.refreshOf(r)
		if asked != nil {
			defer close(asked.done)
			t.directives = httpcache.RequestDirectives{NoCache: true}
			asked.target = t
		}
		why := m.bypassReason(w.Header(), r, t.directives)
		switch {
		case (why != "" || !ok) && t.directives.OnlyIfCached:
			m.replyNotCached(w) // RFC 9111 section 5.2.1.7
			return
		case !ok:
			m.passReal(w, r, next, bypassStatus(cmp.Or(why, "key")))
			return
		case why != "":
			if m.bypass(w, r, next, t, why) {
				return
			}
			t.directives = httpcache.RequestDirectives{NoStore: t.directives.NoStore}
		}
		if m.hot(w, r, t) {
			return
		}
		if s := m.serve(w, r, next, t); asked != nil {
			asked.answer = s
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case m.runs(w):
			next.ServeHTTP(w, r)
		case len(m.options.Hidden) == 0:
			cached(w, r)
		default: // also hides fields of an outer middleware
			u := &watchedWriter{ResponseWriter: w, m: m}
			u.run(u, cached, r)
		}
	})
}
