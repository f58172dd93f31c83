package page

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
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
