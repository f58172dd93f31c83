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
	"github.com/bellwether-go/bellwether/observe"
	"github.com/go-chi/chi/v5"
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
	if q.target.directives.OnlyIfCached {
		q.notCached()
		return
	}
	q.bypassed()
	q.m.pass(q.w, q.r, q.next, why)
}

// passUncacheable hands the request to the handler after an unshareable response, until a shareable one.
func (q *query) passUncacheable(key string, it *Item) {
	reason := responseOf(it).reason
	why := httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reason}
	if reason == reasonSlow {
		if !q.m.through.TryAcquire(1) {
			q.add(observe.Serve{Way: observe.WayMiss})
			q.m.refuse(q.w, reason)
			return
		}
		defer q.m.through.Release(1)
	}
	q.bypassed()
	if q.r.Method != http.MethodGet || q.target.Credentials {
		q.m.pass(q.w, q.r, q.next, why)
		return
	}
	q.ownHeader()
	cacheable := false
	u := &watchedWriter{ResponseWriter: q.w, m: q.m}
	u.before = func(status int) httpcache.Status {
		header, j, now := u.judge(q.target.Request, status)
		length := contentLength(header)
		fits := reason != reasonTooLarge || length >= 0 && length <= q.m.options.MaxBodyBytes
		cacheable = j.Stored() && !isEventStream(header) && headerBytes(header) <= maxHeader && fits
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

// passChecked asks the handler with the stored validators in place of the request's conditions. If still
// valid, the stored response is the answer. Each request asks: one client's answer is not for another.
func (q *query) passChecked(key string, it *Item) {
	q.bypassed()
	kept := responseOf(it)
	asks := q.m.condition(kept, q.target.Request)
	if asks == nil {
		q.m.pass(q.w, q.r, q.next, httpcache.Status{Fwd: httpcache.FwdBypass, Detail: httpcache.ReasonNotFresh})
		return
	}
	ctx := q.r.Context()
	r := q.r.Clone(ownRoute(ctx, chi.RouteContext(ctx))) // the handler may be asked a second time
	httpcache.SetConditions(r.Header, asks.header)
	w := &heldWriter{watchedWriter: watchedWriter{ResponseWriter: q.w, m: q.m}, client: q.w}
	status := httpcache.Status{Fwd: httpcache.FwdStale}
	w.before = func(code int) httpcache.Status {
		header, j, _ := w.judge(q.target.Request, code)
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
	_, personal, j := asks.freshened(q.target.Request, header, w.sent, now, q.m.options.Rules)
	if j.Shared {
		q.m.replace(key, it, &Response{kind: uncacheable}, items.Windows{})
	}
	status.FwdStatus = http.StatusNotModified
	writeStored(q.w, q.r, stored{q.m, key, kept.status, personal, kept.guessed, kept.body, j.Age, now}, status)
}

// refuse answers in place of the handler, for which too many such requests run: nothing goes forward (RFC 9211 section 2.2).
func (m *Middleware) refuse(w http.ResponseWriter, reason string) {
	m.replyFailure(w, httpcache.Status{Detail: reason}, http.StatusServiceUnavailable, 0)
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
			m.refuse(w, reason)
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
		m.refuse(w, reason)
		return true
	default:
		return false
	}
	defer end()
	u := &watchedWriter{ResponseWriter: w, m: m, taken: end}
	u.before = func(status int) httpcache.Status {
		if status == http.StatusSwitchingProtocols || isEventStream(httpcache.CanonicalHeader(w.Header())) {
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
