package page

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
)

// This file has the unsafe requests: the handler gets them, and they invalidate the responses that they have changed.

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
	if t.Header = t.Header.Clone(); t.url == r {
		t.url = sent
	}
	if r.Method == http.MethodPost && !m.options.Shared && !m.forbids(w.Header()) {
		m.passPost(w, r, next, sent, t)
		return
	}
	u := &watchedWriter{ResponseWriter: w, m: m}
	var changed httpcache.Changed
	u.before = func(status int) httpcache.Status {
		m.noteChanged(&changed, sent, t, status, httpcache.CanonicalHeader(u.Header()))
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
	t.NoStore = t.directives.NoStore
	var changed httpcache.Changed
	u.invalidate = func() {
		if m.invalidateChanged(r.Context(), changed) {
			draft.Forgive()
		}
	}
	u.before = func(status int) httpcache.Status {
		header := httpcache.CanonicalHeader(u.Header())
		m.noteChanged(&changed, sent, t, status, header)
		own, j, now := u.judge(t.Request, status)
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

// noteChanged sets changed to the URLs that an unsafe request with this answer has changed. The names in h are canonical.
func (m *Middleware) noteChanged(changed *httpcache.Changed, r *http.Request, t target, status int, h http.Header) {
	*changed = httpcache.ChangedBy(r, t.url, status, h, nil) // at first, since Key may call Goexit for a location
	if !m.options.InvalidateLocations {
		return
	}
	*changed = httpcache.ChangedBy(r, t.url, status, h, func(get *http.Request) (page *http.Request, ok bool) {
		// The handler has done its work, and its own URL is still to be invalidated: a panic of Key for a
		// location must not prevent this.
		err := fault.Guard(func() error {
			var located target
			located, ok = m.target(get)
			page = located.url
			return nil
		})
		if err != nil {
			m.cache.OnError(t.key, fmt.Errorf("bellwether: HTTPOptions.Key for a location of the response: %w", err))
		}
		return page, ok
	})
}

// invalidateChanged invalidates an unsafe request's URLs, even for a client that has left. It reports whether it has
// dropped their responses, and not made them stale.
func (m *Middleware) invalidateChanged(ctx context.Context, c httpcache.Changed) (dropped bool) {
	if len(c.URLs) == 0 || m.options.Unsafe == UnsafeNothing {
		return false
	}
	ctx = context.WithoutCancel(ctx)
	if m.options.Unsafe == UnsafeStales && m.makeStale(ctx, c) {
		return false
	}
	keys := c.Keys()
	for i, err := range m.cache.InvalidateAll(ctx, keys) {
		if err != nil {
			m.cache.OnError(keys[i], err) // user code, which may call Goexit
		}
	}
	return true
}

// makeStale makes the responses stale. It returns false if the log has no room for it, or does not take it. The
// responses are dropped then: the cache repeats that until the store answers, and no client repeats its request.
func (m *Middleware) makeStale(ctx context.Context, c httpcache.Changed) bool {
	if !m.softly() {
		return false
	}
	defer m.soft.Release(1)
	sweeps := make([]sweeplog.Sweep, len(c.URLs))
	for i, key := range c.URLs {
		sweeps[i] = sweeplog.Sweep{Kind: sweeplog.ByKey, What: sweeplog.Exact(key), Soft: true, Plain: !c.OverTLS}
	}
	return m.cache.Sweep(ctx, sweeps) == nil
}

// maxSoftUnsafe is the invalidations a minute up to which unsafe requests write to the log: a tenth of
// its sweeps. Any client can send them, and must not make the log forget, which invalidates everything.
const maxSoftUnsafe = sweeplog.MaxSweeps / 10

// softly takes a place for an unsafe request's invalidation in the log. The result is false if the log has no
// room or may lose the line: without a Locker's answer, two processes may overwrite each other's.
func (m *Middleware) softly() bool {
	if !m.cache.LogKeepsLines() || !m.soft.TryAcquire(1) {
		return false
	}
	if m.cache.SweptSince(m.cache.Now()-time.Minute) >= maxSoftUnsafe {
		m.soft.Release(1)
		return false
	}
	return true
}
