package bellwether

import (
	"context"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/later"
	"github.com/bellwether-go/bellwether/internal/lookout"
	"github.com/bellwether-go/bellwether/internal/near"
	"github.com/bellwether-go/bellwether/internal/slots"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is the making of a cache below both faces, and its end.

func newEngine(s settings, f face) *engine {
	c := items.Clock{Base: time.Now()}
	e := &engine{settings: s, face: f, life: life{clock: c}, slots: slots.New(s.MaxRebuilds, s.MaxQueued), shards: newShards()}
	e.observers.OnError = s.OnError
	e.observers.Add(s.Observers)
	e.open, e.shut = context.WithCancel(context.Background())
	e.store, e.locker, e.watches = e.newGate(observe.EngineStore), e.newGate(observe.EngineLocker), e.newGate(observe.EngineWatch)
	e.writes = e.store.Beside(e.tellBreaker(observe.EngineWrites))
	e.fencer, _ = s.Store.(driver.Fencer)
	e.lookout, e.unanswered = e.newLookout(), later.New(e.repeated())
	if s.Engine != nil {
		e.locker = e.writes // one engine, whose elections are writes
	}
	var evicted func(string, *items.Item)
	if e.observers.Evictions() {
		evicted = func(key string, it *items.Item) { e.observers.Evict(key, int(it.Weight())) }
	}
	e.near = near.New(c, s.NearBytes, evicted)
	e.attach()
	if e.traits != nil {
		e.keepLog()
	}
	e.listen()
	e.meetLog()
	return e
}

func (e *engine) newGate(kind observe.Engine) *gate.Gate {
	return gate.New(e.EngineTimeout, e.tellBreaker(kind))
}

// newLookout returns the flights' looks, many in one request if the store can.
func (e *engine) newLookout() *lookout.Lookout {
	many, _ := e.Store.(driver.BatchGetter)
	return lookout.New(lookout.Config{
		Store: many, Reads: e.store, Name: e.engineKey, Timeout: e.EngineTimeout,
		Now: e.clock.Now, Open: e.open, Behind: e.behind,
		Silent: func(key string, err error) { e.countNoAnswer(key, &keyError{"reading, with others,", key, err}) },
	})
}

func (e *engine) tellBreaker(kind observe.Engine) func(from, to observe.BreakerState) {
	return func(from, to observe.BreakerState) { e.observers.Breaker(kind, from, to) }
}

// attach calls the observers' Attach, and then makes the first report. After a failure it closes the engine, not yet
// in use, and panics.
func (e *engine) attach() {
	attached := false
	defer func() {
		if !attached { // an error, or a Goexit
			e.close()
		}
	}()
	if err := e.observers.Attach(e.snapshot); err != nil {
		panic(err)
	}
	if e.lossy != nil {
		e.OnError("", e.lossy)
	}
	attached = true
}

func (e *engine) close() {
	// The flights end first, so that no engine's silence is reported for them, see storeKey.noAnswer.
	e.shards.lockAll(e.shut, func(s *shard) {
		for _, w := range s.witnesses {
			for ; w != nil; w = w.next {
				if w.flight != nil {
					w.flight.cancel(ErrClosed)
				}
			}
		}
	})
	e.mu.Lock()
	ended := e.ended
	first := ended == nil
	if first {
		ended = make(chan struct{})
		e.ended = ended
	}
	e.mu.Unlock()
	e.running.Wait()
	if !first {
		<-ended // then the observers are free for another cache
		return
	}
	defer close(ended)
	e.near.Close()
	e.observers.Close()
	e.observers.Detach()
}
