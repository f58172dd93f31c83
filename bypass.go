package bellwether

import (
	"context"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file is the requests that are not to be answered from the cache, because of what
// their fields say. Anybody can write such a field: so for a page that is fresh few of them
// run at a time, and the others get the page.

const (
	// maxBypasses is how many requests for one fresh page go past the cache at a time.
	maxBypasses = 8
	// bypassPatience is how long a request for an upgrade or an event stream waits for
	// one of these places. One that is granted gives its place back with its header.
	bypassPatience = time.Second
)

// bypasses are the requests that go past the cache for a page that is fresh. It is safe for
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
func (m *Middleware) bypass(w http.ResponseWriter, r *http.Request, next http.Handler, t target, reason string) bool {
	why := httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reason}
	stream := reason == reasonUpgrade || reason == reasonEventStream
	if stream {
		if !m.streams.TryAcquire(1) {
			replyFailure(w, why, http.StatusServiceUnavailable)
			return true
		}
		defer m.streams.Release(1)
	}
	past := m.pass
	if stream {
		past = m.passReal
	}
	if !stream && reason != reasonNoStore || !m.fresh(t) {
		past(w, r, next, why)
		return true
	}
	patience := time.Duration(0)
	if stream {
		patience = bypassPatience
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	end, ok := m.bypasses.begin(ctx, t.key)
	cancel()
	if !ok {
		return false
	}
	defer end()
	u := &watchedWriter{ResponseWriter: w, m: m}
	u.before = func(status int) {
		why.AppendTo(w.Header())
		if status == http.StatusSwitchingProtocols || isEventStream(w.Header()) {
			end() // granted, and it may take as long as it likes
		}
	}
	u.run(func() { next.ServeHTTP(u, r) })
	return true
}
