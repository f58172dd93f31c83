package bellwether

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/gate"
)

// This file repeats invalidations by unsafe requests while the store is silent. Such a request has its
// response: no client repeats it.

// maxPending is the most keys whose invalidation waits to be repeated. Any client can send unsafe requests.
const maxPending = 4096

// A pendingKeys is the keys of the next repetition.
type pendingKeys struct {
	mu   sync.Mutex          // guards keys
	keys map[string]struct{} // nil: no repetition is to come
}

func (p *pendingKeys) take() map[string]struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := p.keys
	p.keys = nil
	return keys
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

func (e *engine[V]) repeatInvalidations() {
	select {
	case <-e.writes.Closing():
	case <-time.After(gate.Pause):
	case <-e.open.Done():
		return
	}
	for key := range e.pending.take() {
		// Unlike a user's own write, this call is not made while the store's breaker is open.
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
