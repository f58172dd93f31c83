package page

import (
	"context"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file is the requests that are not to be answered from the cache, because of what
// their fields say. Anybody can write such a field: so for a page that may be served few of
// them run at a time, and the others get the page.

const (
	// maxBypasses is how many requests for one page go past the cache at a time.
	maxBypasses = 8
	// bypassPatience is how long a request for an upgrade or an event stream waits for
	// one of these places. One that is granted gives its place back then.
	bypassPatience = time.Second
)

// bypasses are the requests that go past the cache for a page that may be served. It is safe for
// concurrent use.
type bypasses struct {
	mu sync.Mutex // guards what follows
	of map[string]*keyBypasses
}

// keyBypasses are those for one key.
type keyBypasses struct {
	places *semaphore.Weighted
	users  int // that have a place or wait for one; guarded by bypasses.mu
}

// begin takes a place for the key until end is called, or returns false when ctx ends. end
// may be called again.
func (b *bypasses) begin(ctx context.Context, key string) (end func(), ok bool) {
	b.mu.Lock()
	if b.of == nil {
		b.of = make(map[string]*keyBypasses)
	}
	k := b.of[key]
	if k == nil {
		k = &keyBypasses{places: semaphore.NewWeighted(maxBypasses)}
		b.of[key] = k
	}
	k.users++
	b.mu.Unlock()
	leave := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(b.of, key)
		}
	}
	if !k.places.TryAcquire(1) && k.places.Acquire(ctx, 1) != nil {
		leave()
		return nil, false
	}
	return sync.OnceFunc(func() {
		k.places.Release(1)
		leave()
	}), true
}

// bypass hands a request to the handler that is not to be answered from the cache, for that
// reason. It returns false if the request is to get what the cache has all the same.
//
// For a page that may be served, few such requests run at a time. The others get the
// page; a request with a body, which that may not be the answer to, is to come again.
func (m *Middleware) bypass(w http.ResponseWriter, r *http.Request, next http.Handler, t target, reason string) bool {
	why := httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reason}
	stream := reason == reasonUpgrade || reason == reasonEventStream
	past, patience := m.pass, time.Duration(0)
	if stream {
		if !m.streams.TryAcquire(1) {
			replyFailure(w, why, http.StatusServiceUnavailable)
			return true
		}
		defer m.streams.Release(1)
		past, patience = m.passReal, bypassPatience
	}
	if !stream && reason != reasonNoStore && reason != reasonBody || !m.servable(r.Context(), t) {
		past(w, r, next, why)
		return true
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	end, ok := m.bypasses.begin(ctx, t.key)
	cancel()
	switch {
	case ok:
	case reason == reasonBody:
		replyFailure(w, why, http.StatusServiceUnavailable)
		return true
	default:
		return false
	}
	defer end()
	u := &watchedWriter{ResponseWriter: w, m: m, taken: end}
	u.before = func(status int) {
		why.AppendTo(w.Header())
		if status == http.StatusSwitchingProtocols || isEventStream(w.Header()) {
			end() // granted, and it may take as long as it likes
		}
	}
	u.run(func() { next.ServeHTTP(u, r) })
	return true
}

// servable reports whether there is a response for what is asked for that may be served,
// as far as the near tier knows, and else the store. Whether it still holds is no matter:
// whoever is not let past it asks again.
func (m *Middleware) servable(ctx context.Context, t target) bool {
	key := t.key
	for range maxHops {
		it, now := m.cache.Near(key)
		if it == nil {
			it = m.cache.Apart(key, gate.NewBudget(m.options.EngineTimeout)).Find(ctx)
		}
		if it == nil || it.Kind != driver.KindValue || !it.Fresh(now) && !it.Stale(now) && !it.BackingOff(now) {
			return false
		}
		switch it.Value.kind {
		case plain:
			return key != t.key || !m.needsVariant(t.header)
		case varying:
			key = m.variantKey(it.Value, t.key, t.header)
		default:
			return false
		}
	}
	return false
}
