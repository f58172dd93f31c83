package page

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// This file limits the bypasses that any client can ask for: only a few run at a time for a servable page.

const (
	// maxBypasses is the number of requests for a page that bypass the cache at a time.
	maxBypasses = 8
	// bypassPatience is how long an upgrade or an event stream waits for a place.
	bypassPatience = time.Second
)

// bypasses are the bypasses of pages that may be served. All methods are safe for concurrent use.
type bypasses struct {
	mu sync.Mutex // guards of
	of map[string]*keyBypasses
}

type keyBypasses struct {
	places *semaphore.Weighted
	users  int // requests with a place or waiting for one; guarded by bypasses.mu
}

// begin takes a place for the key until the first call of end. The result is false when ctx ends.
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
