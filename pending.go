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

// This file repeats, in rounds, the failed invalidations of unsafe requests, which no client repeats.

const (
	// maxPending is the most keys whose invalidation waits. Any client can send unsafe requests.
	maxPending = 4096
	// maxSilent calls without an answer end a round: a dead server's keys must not cost a call each.
	maxSilent = 16
	// longestRound is the longest pause before a round. A store that drops the key, and answers too
	// late, loses the key's responses once more in each round.
	longestRound = 16 * time.Second
)

// A pendingSet is the keys whose invalidation waits.
type pendingSet struct {
	mu      sync.Mutex // guards the fields below
	keys    map[string]struct{}
	repeats bool // a goroutine makes the rounds
}

// invalidateLater repeats the invalidation of a key until the store answers, or the cache closes.
func (e *engine[V]) invalidateLater(key string) {
	p := &e.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.keys) >= maxPending {
		return
	}
	if p.keys == nil {
		p.keys = make(map[string]struct{})
	}
	p.keys[key] = struct{}{}
	if !p.repeats {
		p.repeats = true
		e.behind(func() { e.repeatInvalidations(gate.Pause) })
	}
}

// repeatInvalidations makes one round after the pause, or when the store's breaker closes.
func (e *engine[V]) repeatInvalidations(pause time.Duration) {
	defer e.nextRound(min(2*pause, longestRound)) // also after a Goexit of the adapter
	select {
	case <-e.writes.Closing():
	case <-time.After(pause):
	case <-e.open.Done():
		return
	}
	silent := 0
	for _, key := range e.pending.all() {
		if silent == maxSilent || e.open.Err() != nil {
			return
		}
		e.pending.drop(key) // before the call: an unsafe request during the call needs a call after it
		// Past the gate: the keys of a dead server must not take the turns and the probes of other keys.
		_, err := gate.AskAnyway(e.open, e.writes, key, e.EngineTimeout, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, e.Store.Invalidate(ctx, e.engineKey(key))
		})
		if errors.Is(err, ErrUnavailable) {
			silent++
			e.invalidateLater(key)
			continue
		}
		e.voidAll(key) // the near tier may have the store's entry again
	}
}

func (e *engine[V]) nextRound(pause time.Duration) {
	p := &e.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.repeats = len(p.keys) > 0 && e.open.Err() == nil; p.repeats {
		e.behind(func() { e.repeatInvalidations(pause) })
	}
}

func (p *pendingSet) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.keys))
}

func (p *pendingSet) drop(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.keys, key)
}
