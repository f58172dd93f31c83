package bellwether

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/gate"
)

// This file repeats invalidations by unsafe requests while the store is silent. Such a request has its
// response: no client repeats it.

// maxPending is the most keys whose invalidation a process repeats. Any client can send unsafe requests.
const maxPending = 4096

// A pendingKeys is the keys whose invalidation a goroutine repeats.
type pendingKeys struct {
	mu   sync.Mutex          // guards keys
	keys map[string]struct{} // nil without the goroutine
}

// invalidateLater repeats the invalidation of a key until the store answers, or the cache closes.
func (e *engine[V]) invalidateLater(key string) {
	p := &e.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.keys == nil:
		p.keys = map[string]struct{}{key: {}}
		e.behind(e.repeatInvalidations)
	case len(p.keys) < maxPending:
		p.keys[key] = struct{}{}
	}
}

// take empties the set. Without a key the goroutine has to end.
func (p *pendingKeys) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.keys) == 0 {
		p.keys = nil
		return nil
	}
	keys := slices.Collect(maps.Keys(p.keys))
	clear(p.keys)
	return keys
}

func (e *engine[V]) repeatInvalidations() {
	for {
		select {
		case <-e.writes.Closing():
		case <-time.After(gate.Pause):
		case <-e.open.Done():
			return
		}
		keys := e.pending.take()
		if keys == nil {
			return
		}
		for _, key := range keys {
			// Unlike a user's own write, this call waits while the store's breaker is open.
			err := gate.AskErr(e.open, e.writes, key, gate.NewBudget(e.EngineTimeout), func(ctx context.Context) error {
				return e.Store.Invalidate(ctx, e.engineKey(key))
			})
			if errors.Is(err, ErrUnavailable) {
				e.invalidateLater(key)
				continue
			}
			e.voidAll(key) // the near tier may have the store's entry again
		}
	}
}
