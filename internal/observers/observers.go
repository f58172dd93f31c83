// Package observers calls the observers of a cache outside all locks. A panic of an observer is reported, and
// fails no call.
package observers

import (
	"context"
	"fmt"
	"slices"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/observe"
)

// A Set is the observers of a cache, sorted by the functions that they have. The zero Set has none. Add and Attach
// come before the cache's first use. The other methods are safe for concurrent use.
type Set struct {
	// OnError is called with each panic of an observer.
	OnError func(key string, err error)

	all     []observe.Observer
	hit     []func(context.Context, string)
	serve   []func(context.Context, observe.Serve)
	herd    []func(observe.Herd)
	breaker []func(observe.Engine, observe.BreakerState, observe.BreakerState)
	evict   []func(string, int)
	rebuild bool // an observer has Rebuild
	callers bool // an observer has Rebuild and Caller
	detach  []func()
	queue   queue
}

// Add adds observers.
func (s *Set) Add(all []observe.Observer) {
	s.all = slices.Concat(s.all, all)
	for _, by := range all {
		if by.Hit != nil {
			s.hit = append(s.hit, by.Hit)
		}
		if by.Serve != nil {
			s.serve = append(s.serve, by.Serve)
		}
		if by.Herd != nil {
			s.herd = append(s.herd, by.Herd)
		}
		if by.Breaker != nil {
			s.breaker = append(s.breaker, by.Breaker)
		}
		if by.Evict != nil {
			s.evict = append(s.evict, by.Evict)
		}
		s.rebuild = s.rebuild || by.Rebuild != nil
		s.callers = s.callers || by.Rebuild != nil && by.Caller != nil
	}
}

// Attach calls the observers' Attach up to the first failure, whose error it returns.
func (s *Set) Attach(stats func() observe.Stats) error {
	for i, by := range s.all {
		if by.Attach == nil {
			continue
		}
		err := fault.Guard(func() error {
			detach, err := by.Attach(stats)
			if err == nil && detach != nil {
				s.detach = append(s.detach, detach)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("bellwether: Observers[%d] cannot be attached: %w", i, err)
		}
	}
	return nil
}

// Close makes the queued calls.
func (s *Set) Close() { s.queue.close() }

// Detach calls the results of Attach, the last first.
func (s *Set) Detach() {
	for _, detach := range s.detach {
		defer func() { // a Goexit in one must not keep the others from running
			if err := fault.Guard(func() error { detach(); return nil }); err != nil {
				s.OnError("", fmt.Errorf("detaching an observer: %w", err))
			}
		}()
	}
}

func (s *Set) tell(key string, f func()) {
	if err := fault.Guard(func() error { f(); return nil }); err != nil {
		s.OnError(key, fmt.Errorf("telling an observer of %q: %w", key, err))
	}
}

// Hits reports whether an observer has Hit. Without one a hit costs only this comparison.
func (s *Set) Hits() bool { return s.hit != nil }

// Serves reports whether an observer has Serve.
func (s *Set) Serves() bool { return s.serve != nil }

// Hit is Serve for an answer without a wait.
//
//go:noinline
func (s *Set) Hit(ctx context.Context, key string, way observe.Way) {
	s.Serve(ctx, observe.Serve{Key: key, Way: way})
}

// Serve calls the observers' Hit after a hit without a wait, and otherwise their Serve.
func (s *Set) Serve(ctx context.Context, told observe.Serve) {
	if told.Way == observe.WayHit && told.Waited == 0 {
		for _, f := range s.hit {
			s.tell(told.Key, func() { f(ctx, told.Key) })
		}
		return
	}
	for _, f := range s.serve {
		s.tell(told.Key, func() { f(ctx, told) })
	}
}

// Breaker queues the calls of Breaker. It may be called under any lock.
func (s *Set) Breaker(kind observe.Engine, from, to observe.BreakerState) {
	if len(s.breaker) == 0 {
		return
	}
	s.queue.add(func() {
		for _, f := range s.breaker {
			s.tell("", func() { f(kind, from, to) })
		}
	})
}

// Evictions reports whether an observer has Evict.
func (s *Set) Evictions() bool { return s.evict != nil }

// Evict queues the calls of Evict. It may be called under any lock.
func (s *Set) Evict(key string, bytes int) {
	s.queue.add(func() {
		for _, f := range s.evict {
			s.tell(key, func() { f(key, bytes) })
		}
	})
}
