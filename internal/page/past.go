package page

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file has the requests that bypass the cache: the handler gets the client's own
// ResponseWriter or a watchedWriter, and the cache learns from the response.

// passReal hands the request to the handler with the real ResponseWriter, so Cache-Status has our
// member before the handler's. With HiddenFields it is pass.
func (m *Middleware) passReal(w http.ResponseWriter, r *http.Request, next http.Handler, why httpcache.Status) {
	if len(m.options.Hidden) > 0 {
		m.pass(w, r, next, why)
		return
	}
	why.AppendTo(w.Header())
	next.ServeHTTP(w, r)
}

func (m *Middleware) pass(w http.ResponseWriter, r *http.Request, next http.Handler, why httpcache.Status) {
	u := &watchedWriter{ResponseWriter: w, m: m}
	u.before = func(int) httpcache.Status { return why }
	u.run(u, next, r)
}

// pass hands the request to the handler as the last resort, unless the request has only-if-cached.
func (q *query) pass(why httpcache.Status) {
	if q.directives.OnlyIfCached {
		q.notCached()
		return
	}
	q.bypassed()
	q.m.pass(q.w, q.r, q.next, why)
}

// passUncacheable hands the request to the handler after an unshareable response, until a shareable one.
func (q *query) passUncacheable(key string, it *Item) {
	q.bypassed()
	reason := responseOf(it).reason
	why := httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reason}
	if reason == reasonSlow {
		if !q.m.through.TryAcquire(1) {
			q.m.replyFailure(q.w, why, http.StatusServiceUnavailable)
			return
		}
		defer q.m.through.Release(1)
	}
	if q.r.Method != http.MethodGet || q.request.Credentials {
		q.m.pass(q.w, q.r, q.next, why)
		return
	}
	q.ownHeader()
	cacheable := false
	u := &watchedWriter{ResponseWriter: q.w, m: q.m}
	u.before = func(status int) httpcache.Status {
		header, j, now := u.judge(q.request, status)
		cacheable = j.Stored() && !isEventStream(header) && headerBytes(header) <= maxHeader && (reason != reasonTooLarge || q.m.fits(header))
		if !cacheable && reason != reasonTooLarge && tellsAudience(status) {
			q.m.prolong(key, it, cmp.Or(j.Reason, reason), now.Sub(u.sent))
		}
		return why
	}
	u.run(u, q.next, q.r)
	if cacheable {
		q.m.replace(key, it, &Response{kind: uncacheable}, items.Windows{})
	}
}

// fits reports whether a response announces a length that can be stored.
func (m *Middleware) fits(h http.Header) bool {
	n := contentLength(h)
	return n >= 0 && n <= m.options.MaxBodyBytes
}

// passChecked asks the handler with the stored validators in place of the request's conditions. If still
// valid, the stored response is the answer. Each request asks: one client's answer is not for another.
func (q *query) passChecked(key string, it *Item) {
	q.bypassed()
	kept := responseOf(it)
	asks := q.m.condition(kept, q.request)
	if asks == nil {
		q.m.pass(q.w, q.r, q.next, httpcache.Status{Fwd: httpcache.FwdBypass, Detail: httpcache.ReasonNotFresh})
		return
	}
	r := q.r.Clone(ownRoute(q.r.Context())) // the handler may be asked a second time
	httpcache.SetConditions(r.Header, asks.header)
	w := &heldWriter{watchedWriter: watchedWriter{ResponseWriter: q.w, m: q.m}, client: q.w}
	status := httpcache.Status{Fwd: httpcache.FwdStale}
	w.before = func(code int) httpcache.Status {
		header, j, _ := w.judge(q.request, code)
		switch {
		case j.Shared:
			q.m.replace(key, it, &Response{kind: uncacheable}, items.Windows{})
		case code == http.StatusOK && !(q.r.Method == http.MethodHead && httpcache.HeadAgrees(asks.header, header)):
			// A response that changes with each request is not worth keeping. The next flight will see.
			q.m.replace(key, it, &Response{kind: uncacheable, reason: j.Reason}, q.m.uncacheableFor(time.Since(w.sent)))
		}
		status.FwdStatus = code
		return status
	}
	w.run(w, q.next, r)
	if w.held == nil {
		return
	}
	w.reset()
	now := time.Now()
	header := handlerFields(w.held.sent, w.outer)
	if !httpcache.Selects(asks.header, header) {
		q.m.pass(q.w, q.r, q.next, httpcache.Status{Fwd: httpcache.FwdStale})
		return
	}
	_, personal, j := asks.freshened(q.request, header, w.sent, now, q.m.options.Rules)
	if j.Shared {
		q.m.replace(key, it, &Response{kind: uncacheable}, items.Windows{})
	}
	status.FwdStatus = http.StatusNotModified
	writeStored(q.w, q.r, stored{q.m, key, kept.status, personal, kept.guessed, kept.body, j.Age, now}, status)
}

// passUnsafe hands an unsafe request to the handler, and invalidates the outdated responses (RFC 9111 section
// 4.4) before the client can see the success. It always invalidates at the end too: a transaction around the
// handler may commit only then, and other clients may have read old data in between.
func (m *Middleware) passUnsafe(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.Method == http.MethodConnect {
		m.passReal(w, r, next, httpcache.Status{Fwd: httpcache.FwdMethod})
		return
	}
	t, ok := m.target(r)
	if !ok {
		m.passReal(w, r, next, httpcache.Status{Fwd: httpcache.FwdMethod}) // no key: it has changed no kept response
		return
	}
	// The handler may change r, which is the client's own: a proxy's host and path, or the credentials that a
	// login check removes. The cache decides by the request as sent.
	sent := r.Clone(r.Context())
	if t.header = t.header.Clone(); t.url == r {
		t.url = sent
	}
	if r.Method == http.MethodPost && !m.options.Shared && !m.forbids(w.Header()) {
		m.passPost(w, r, next, sent, t)
		return
	}
	u := &watchedWriter{ResponseWriter: w, m: m}
	var changed httpcache.Changed
	u.before = func(status int) httpcache.Status {
		m.noteChanged(&changed, sent, t, status, u.Header())
		return httpcache.Status{Fwd: httpcache.FwdMethod}
	}
	u.invalidate = func() { m.invalidateChanged(r.Context(), changed) }
	u.run(u, next, r)
}

// passPost is passUnsafe for a POST whose response may be the response to the next GET (RFC 9110
// section 9.3.3). The cache keeps it only if no other unsafe request for the key came in between. Other processes'
// requests are invisible, so a cache with a shared store keeps no such response. sent is r before the handler.
func (m *Middleware) passPost(w http.ResponseWriter, r *http.Request, next http.Handler, sent *http.Request, t target) {
	draft := m.cache.Access(t.key, gate.NewBudget(m.options.EngineTimeout)).Draft(r.Context())
	defer draft.End()
	u := m.newKeptWriter(w, r)
	req := m.request(r, t, m.directives(r))
	var changed httpcache.Changed
	u.invalidate = func() {
		if m.invalidateChanged(r.Context(), changed) {
			draft.Forgive()
		}
	}
	u.before = func(status int) httpcache.Status {
		m.noteChanged(&changed, sent, t, status, u.Header())
		header := httpcache.CanonicalHeader(u.Header())
		own, j, now := u.judge(req, status)
		// As in facts.withheld. Also, a GET of the cache would have sent the same fields. The whole header
		// counts: a Vary or a cookie may be the handler's too, if it has set the same value.
		if httpcache.PostStorable(sent, t.url, status, header, j) && m.plainRequest(sent, t) && headerBytes(header) <= maxHeader && !isEventStream(header) {
			u.keepAs(status, own, j, now)
		}
		return httpcache.Status{Fwd: httpcache.FwdMethod}
	}
	u.runBelowServer(next, r)
	u.keep = draft.Keep // only now: the invalidation at the end would drop the response
	u.finish()
}

// passCredentials hands a request with credentials to the handler, unless the key's responses are known to be
// for everyone, and reports whether it has. Until then such requests neither wait for others nor make others
// wait: one user's answer may be slow, and for that user alone. The first response for everyone is kept if a
// request without credentials would have got the same, if it displaces nothing, and if it is small. It stays
// in memory as long as its client reads.
func (q *query) passCredentials(key string) bool {
	m := q.m
	switch shared, known := m.learntAuthorized(key); {
	case shared:
		return false
	case known:
		q.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization})
		return true
	}
	access := m.cache.Access(key, q.budget)
	it := access.Find(q.r.Context())
	switch {
	case it == nil:
	case !it.Held && it.BackingOff(m.cache.Now()):
		return false // the key has failed, and no retry is due yet
	case it.Held && (responseOf(it).kind != plain || q.mayHave(responseOf(it))):
		return false // the value leads to the response, or is for everyone
	}
	if q.directives.OnlyIfCached || q.r.Method != http.MethodGet {
		q.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization})
	} else {
		q.passDrafting(key, access, it == nil)
	}
	return true
}

// passDrafting hands a request with credentials to the handler, and learns from the response
// whether the key's responses are for everyone. The first response for everyone is kept.
func (q *query) passDrafting(key string, access Access, first bool) {
	m := q.m
	q.bypassed()
	u := m.newKeptWriter(q.w, q.r)
	if _, others := m.drafting.LoadOrStore(key, nil); !others {
		defer m.drafting.Delete(key)
		if first && q.draftable() {
			draft := access.Draft(q.r.Context())
			defer draft.End()
			u.keep = draft.Keep
		}
	}
	shared := false
	u.before = func(status int) httpcache.Status {
		header := httpcache.CanonicalHeader(u.Header())
		own, j, now := u.judge(q.request, status)
		shared = j.Shared && !isEventStream(own) && tellsAudience(status)
		switch {
		case !shared && tellsAudience(status):
			m.learnAuthorized(key, false)
		case shared && u.keep != nil && j.Freshness.Lifetime > j.Age && len(header["Vary"]) == 0 && headerBytes(header) <= maxHeader && contentLength(header) <= m.maxKept():
			u.keepAs(status, own, j, now)
			return httpcache.Status{
				Fwd: httpcache.FwdURIMiss, FwdStatus: status, Stored: true, Key: m.statusKey(key),
				TTL: httpcache.Delta{Set: true, Duration: j.Freshness.Lifetime - j.Age},
			}
		}
		return httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization}
	}
	u.runBelowServer(q.next, q.r)
	u.finish()
	if shared {
		m.learnAuthorized(key, true) // after the response is kept: an earlier mark would let other requests make it again
	}
}

// draftable reports whether the response may be kept: the handler must get what the cache's own request would have.
// Otherwise Key may have taken another value from the fields than the handler, which sees them as sent.
func (q *query) draftable() bool {
	if q.m.options.Key != nil {
		if _, changed := httpcache.Normalised(q.target.header, q.m.options.Rules); changed {
			return false
		}
	}
	return q.m.plainRequest(q.r, q.target) && !hasAny(q.r.Header, contentFields)
}

// plainRequest reports whether a bypassing request is the same as the cache's own request to the
// handler, as far as the response can depend on it, see detach, retarget and forEverybody.
func (m *Middleware) plainRequest(r *http.Request, t target) bool {
	host, ok := httpcache.CanonicalHost(t.url.Host)
	return ok && host == r.Host && t.url.URL.RawQuery == r.URL.RawQuery && t.url.URL.ForceQuery == r.URL.ForceQuery && httpcache.Canonical(r) && r.Header["Host"] == nil && !m.needsVariant(t.header) &&
		!httpcache.OverridesMethod(r.Method, r.Header) && !m.options.Rules.Aliased(r.Header) && len(t.header) == len(r.Header)
}

// bypassStatus is the status of a safe request that bypasses the cache because of reason.
func bypassStatus(reason string) httpcache.Status {
	if reason == reasonMethod {
		return httpcache.Status{Fwd: httpcache.FwdMethod}
	}
	return httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reason}
}

// bypass hands a request to the handler that must not be answered from the cache, because of reason. For a
// servable page that may be its response, only a few run at a time. The others get the page (the result is
// false), or with a body a 503: the page may not be their answer.
func (m *Middleware) bypass(w http.ResponseWriter, r *http.Request, next http.Handler, t target, reason string) bool {
	why := bypassStatus(reason)
	endless := reason == reasonUpgrade || reason == reasonEventStream
	past, patience := m.pass, time.Duration(0)
	if endless {
		if !m.streams.TryAcquire(1) {
			m.replyFailure(w, why, http.StatusServiceUnavailable)
			return true
		}
		defer m.streams.Release(1)
		past, patience = m.passReal, bypassPatience
	}
	bounded := endless || reason == reasonNoStore || reason == reasonBody
	if !bounded || m.unkeyedReason(w.Header(), r) != "" || !m.servable(r.Context(), t) {
		past(w, r, next, why)
		return true
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	end, ok := m.bypasses.begin(ctx, t.key)
	cancel()
	switch {
	case ok:
	case r.ContentLength != 0:
		m.replyFailure(w, why, http.StatusServiceUnavailable)
		return true
	default:
		return false
	}
	defer end()
	u := &watchedWriter{ResponseWriter: w, m: m, taken: end}
	u.before = func(status int) httpcache.Status {
		if status == http.StatusSwitchingProtocols || isEventStream(w.Header()) {
			end() // granted: from now on it may last
		}
		return why
	}
	u.run(u, next, r)
	return true
}

// servable reports whether the near tier, or else the store, has a servable response for the target,
// without regard to the log of sweeps: a refused request asks again.
func (m *Middleware) servable(ctx context.Context, t target) bool {
	return m.servableBy(t, func(key string) *Item {
		if it, _ := m.cache.Near(key); it != nil {
			return it
		}
		return m.find(ctx, key)
	})
}

// find returns the item of the near tier or the store that is valid for a request of now, or nil.
func (m *Middleware) find(ctx context.Context, key string) *Item {
	return m.cache.Access(key, gate.NewBudget(m.options.EngineTimeout)).Find(ctx)
}

// servableBy reports whether the items that find returns lead to a servable response for the target.
func (m *Middleware) servableBy(t target, find func(key string) *Item) bool {
	it, _ := m.follow(t, func(key string) *Item {
		it, now := find(key), m.cache.Now()
		if it == nil || it.Kind != driver.KindValue || !it.Fresh(now) && !it.Stale(now) && !it.BackingOff(now) {
			return nil
		}
		return it
	})
	return it != nil
}
