package bellwether

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
)

// This file is the invalidation of keys, in the fleet and in this process, and what it means for a value
// that is made at the same time. Invalidation by tag or prefix is in sweep.go.

// invalidate drops the key from the store and then from this process. The
// order matters: with the store first, whatever the present flight has read or
// claimed before the store's floor rose is void here, and what any flight
// reads after that is new.
func (e *engine[V]) invalidate(ctx context.Context, key string) error {
	defer e.recallAll(key) // also if the store's adapter does not return
	if e.Store == nil {
		return nil
	}
	err := e.writeAnyway(ctx, key, func(ctx context.Context) error { return e.Store.Invalidate(ctx, e.engineKey(key)) })
	if err != nil {
		return &keyError{"invalidating", key, err}
	}
	return nil
}

// writeAnyway asks the store for a write of the user's own, also while the store is taken for down:
// others go on without the store, and the caller of this has nothing else.
func (e *engine[V]) writeAnyway(ctx context.Context, key string, write func(context.Context) error) error {
	err := gate.AskErr(ctx, e.writes, key, gate.NewBudget(e.EngineTimeout), write)
	if errors.Is(err, gate.ErrNotAsked) {
		_, err = gate.AskAnyway(ctx, e.writes, key, e.EngineTimeout, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, write(ctx)
		})
	}
	if errors.Is(err, ErrUnavailable) {
		e.count.engineErrors.Add(1)
	}
	return err
}

// maxInvalidations is how many keys are invalidated at one time for one caller.
const maxInvalidations = 16

// invalidateAll is invalidate for several keys; it returns an error, or nil, for
// each.
func (e *engine[V]) invalidateAll(ctx context.Context, keys []string) []error {
	errs := make([]error, len(keys))
	var g errgroup.Group
	g.SetLimit(maxInvalidations)
	for i, key := range keys {
		errs[i] = ErrGoexit // unless the store returns
		g.Go(func() error {
			errs[i] = e.invalidate(ctx, key)
			return nil
		})
	}
	g.Wait()
	return errs
}

// recallAll is recall of whatever this process has of the key.
func (e *engine[V]) recallAll(key string) {
	s := e.shards.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e.recall(s, key, 1<<64-1)
}

// recall drops what this process has of a key that was invalidated, and what
// is read or made for it, if that is of an epoch below the invalidation's. s, the key's shard, is locked.
func (e *engine[V]) recall(s *shard[V], key string, epoch uint64) {
	if it, _ := e.near.Get(key); it != nil && it.Epoch <= epoch {
		e.near.Delete(key)
	}
	for w := s.witnesses[key]; w != nil; w = w.next {
		if w.epoch <= epoch {
			w.generation++
		}
	}
	f := s.flights[key]
	if f == nil {
		return
	}
	f.since = e.clock.Now()
	if f.witness.epoch <= epoch {
		f.withdraw()
		f.interrupt()
	}
}

// A witness stands by while a value for a key is made, by a flight or without one. Its generation is the
// answer to one question: has anything made the work void? That is an invalidation of the key in this
// process, a sweep, or a later epoch in the store. Whoever begins to work takes the generation, and what
// the work comes to counts while the generation is the same. shard.mu guards all fields.
type witness[V any] struct {
	flight     *flight[V]  // makes the value; nil if none does. It never changes
	next       *witness[V] // another one of the same key
	generation uint64
	epoch      uint64 // the work's; an invalidation of an earlier epoch is of before the work. 0: each one counts
	position   uint64 // the log's when the work began, see items.Item
}

// attend has a witness stand by for a key. s is locked.
func (s *shard[V]) attend(key string, w *witness[V]) {
	w.next = s.witnesses[key]
	s.witnesses[key] = w
}

// dismiss sends a witness away, and reports whether it stood by. s is locked.
func (s *shard[V]) dismiss(key string, w *witness[V]) bool {
	before, at := (*witness[V])(nil), s.witnesses[key]
	for at != nil && at != w {
		before, at = at, at.next
	}
	switch {
	case at == nil:
		return false
	case before != nil:
		before.next = w.next
	case w.next != nil:
		s.witnesses[key] = w.next
	default:
		delete(s.witnesses, key)
	}
	return true
}

// attendApart returns a witness for a value that no flight makes. It is to be dismissed by dismissApart.
func (e *engine[V]) attendApart(key string) *witness[V] {
	w, s := &witness[V]{position: e.sweeps.Log().Position()}, e.shards.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attend(key, w)
	return w
}

func (e *engine[V]) dismissApart(key string, w *witness[V]) {
	s := e.shards.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dismiss(key, w)
}

// outdated reports whether what the flight has read or made since its last look is void. shard.mu is held.
func (f *flight[V]) outdated() bool { return f.witness.generation != f.looked }

// lookAgain begins the flight's next look at the store: an invalidation before
// it is nothing that this look could miss. It reports whether there was one.
func (f *flight[V]) lookAgain() (outdated bool) {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	return f.renew()
}

// renew is lookAgain for a caller that holds shard.mu.
func (f *flight[V]) renew() (outdated bool) {
	outdated = f.outdated()
	f.looked, f.witness.epoch, f.current = f.witness.generation, 0, nil
	return outdated
}

// withdraw takes back what callers are offered. shard.mu is held.
func (f *flight[V]) withdraw() {
	f.change(func(s *flightState[V]) { s.offered, s.recalled = nil, true })
}

// interrupt ends what the flight has under way, and what has become void. shard.mu is held.
func (f *flight[V]) interrupt() {
	switch {
	case f.streaming():
		// A response that clients are already reading is theirs, but from now
		// on nobody joins them.
		f.unlist()
	case f.current != nil && !f.current.last:
		f.current.abort(fault.ErrInvalidated)
	}
}
