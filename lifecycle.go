package bellwether

import (
	"context"
	"fmt"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/near"
	"github.com/bellwether-go/bellwether/internal/slots"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is the making of a cache below both faces, and its end.

func newEngine[V any](s settings, size func(string, V) int, marshal func(V) ([]byte, error), unmarshal func([]byte) (V, error)) *engine[V] {
	c := items.Clock{Base: time.Now()}
	e := &engine[V]{settings: s, clock: c, slots: slots.New(s.MaxRebuilds, s.MaxQueued), shards: newShards[V]()}
	e.observers.sort(s.Observers)
	e.open, e.shut = context.WithCancel(context.Background())
	e.store, e.locker, e.push = e.newGate(observe.EngineStore), e.newGate(observe.EngineLocker), e.newGate(observe.EngineWatch)
	e.writes = e.store.Beside(e.tellBreaker(observe.EngineWrites))
	e.fencer, _ = s.Store.(driver.Fencer)
	e.lookout.store, _ = s.Store.(driver.BatchGetter)
	if s.Engine != nil {
		e.locker = e.writes // one engine, whose elections are writes
	}
	e.near = near.New(c.Base, s.NearBytes, e.evicted())
	e.face = face[V]{
		size: size, marshal: marshal, unmarshal: unmarshal,
		answers: func(V) bool { return true },
		fails:   func(V) bool { return false },
	}
	e.attach()
	return e
}

func (e *engine[V]) newGate(kind observe.Engine) *gate.Gate {
	return gate.New(e.EngineTimeout, e.tellBreaker(kind))
}

var breakerStates = [...]observe.BreakerState{gate.Closed: observe.BreakerClosed, gate.HalfOpen: observe.BreakerHalfOpen, gate.Open: observe.BreakerOpen}

func (e *engine[V]) tellBreaker(kind observe.Engine) func(from, to gate.State) {
	return func(from, to gate.State) {
		if len(e.observers.breaker) == 0 {
			return
		}
		e.observers.tellings.Add(func() {
			for _, f := range e.observers.breaker {
				e.tell("", func() { f(kind, breakerStates[from], breakerStates[to]) })
			}
		})
	}
}

func (e *engine[V]) evicted() func(string, *items.Item[V]) {
	if len(e.observers.evict) == 0 {
		return nil
	}
	return func(key string, it *items.Item[V]) {
		bytes := int(it.Weight())
		e.observers.tellings.Add(func() {
			for _, f := range e.observers.evict {
				e.tell(key, func() { f(key, bytes) })
			}
		})
	}
}

// attach calls the observers' Attach. After a failure it closes the engine, not yet in use, and panics.
func (e *engine[V]) attach() {
	attached := false
	defer func() {
		if !attached { // an error, or a Goexit
			e.close()
		}
	}()
	for i, by := range e.observers.all {
		if by.Attach == nil {
			continue
		}
		err := fault.Guard(func() error {
			detach, err := by.Attach(e.snapshot)
			if err == nil && detach != nil {
				e.observers.detach = append(e.observers.detach, detach)
			}
			return err
		})
		if err != nil {
			panic(fmt.Errorf("bellwether: Observers[%d] cannot be attached: %w", i, err))
		}
	}
	attached = true
}

// detach calls the results of Attach, the last first.
func (e *engine[V]) detach() {
	for _, detach := range e.observers.detach {
		defer func() { // a Goexit in one must not keep the others from running
			if err := fault.Guard(func() error { detach(); return nil }); err != nil {
				e.OnError("", fmt.Errorf("detaching an observer: %w", err))
			}
		}()
	}
}

func (e *engine[V]) close() {
	// The flights end first, so that no engine's silence is reported for them, see run.noAnswer. And while
	// a key can get a flight, behind runs the flight's batch.
	e.shards.whole(e.shut, func(s *shard[V]) {
		s.closed = true
		for _, w := range s.witnesses {
			for ; w != nil; w = w.next {
				if w.flight != nil {
					w.flight.cancel(ErrClosed)
				}
			}
		}
	})
	e.mu.Lock()
	first := !e.closed
	e.closed = true
	e.mu.Unlock()
	e.running.Wait()
	if first {
		e.near.Close()
	}
	e.observers.tellings.Close()
	if first {
		e.detach()
	}
}
