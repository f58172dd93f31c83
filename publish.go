package bellwether

import (
	"context"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file publishes a value that the load still writes, and confirms it until the flight ends.

// Publish shows a value that the load still writes to the callers of the audience that began before until.
// ctx is the load's. The result is false if the flight has given up on this load.
func (a *attempt) Publish(ctx context.Context, v any, until instant, to audience.Audience) bool {
	f := a.flight
	e := f.engine
	fenced := a.catchUp(ctx)
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.current != a || ctx.Err() != nil || f.streaming() {
		return false
	}
	it := &items.Item{Kind: driver.KindValue, Value: v, LoadBegan: a.loadBegan, Position: a.position}
	// A sweep may name a tag that only the published value has, see sweepFlight.
	if gone, stale := e.against(e.sweeps.Log(), f.key, it); fenced || gone || stale != forever {
		f.witness.generation++
	}
	switch {
	case f.outdated() && !a.last:
		a.abort(fault.ErrInvalidated)
		return false
	case f.outdated():
		until = a.loadBegan - 1 // only callers that asked before the load began
		f.unlist()
	}
	confirmed := forever
	if !a.storeDown {
		confirmed = e.trustedUntil(a.asked)
		if e.fencer != nil && e.open.Err() == nil {
			f.streamCheck.asked.Store(int64(a.asked))
			e.start(func() { f.confirm(&f.streamCheck, a.confirmPublished) })
		}
	}
	f.change(func(s *flightState) {
		s.published, s.audience, s.publishedBefore, s.confirmedBefore = it, to, until, confirmed
	})
	return true
}

// AwaitReaders waits until all callers have their places among the readers of the published value, or for done.
func (a *attempt) AwaitReaders(done <-chan struct{}) {
	f := a.flight
	f.shard.mu.Lock()
	if f.deserted == nil {
		f.deserted = make(chan struct{}) // one for all: an abandoned load may wait beside its successor
	}
	placed, waits := f.deserted, f.callers.Load() > 0
	f.shard.mu.Unlock()
	if !waits {
		return
	}
	select {
	case <-placed:
	case <-done:
	}
}

// catchUp asks for news of the key before a value is published. It reads the log of sweeps, and asks
// a Fencer if the lease is over. It reports whether the load's epoch is fenced.
func (a *attempt) catchUp(ctx context.Context) (fenced bool) {
	f, e := a.flight, a.engine
	if e.Store == nil || a.storeDown {
		return false
	}
	late := int64(e.clock.Now()) >= a.heldUntil.Load()
	budget := gate.NewBudget(e.EngineTimeout)
	// The load may have outlasted the trust in the log, and the latest caller has asked just now.
	e.sweeps.Follow(ctx, budget, e.NearTTL/2)
	// By this process's clock the lease is over: the process was paused, or the locker. Another process
	// may have the lease and a value, and the renewal that would tell may be as late as this load.
	return late && f.askFenced(ctx, budget, a.epoch)
}

// confirmPublished asks a Fencer about the value that the load still writes. Otherwise an invalidation elsewhere would
// show only at the commit, and callers that asked after it would join. It returns false after the Fencer's word
// against the value, and at the flight's end.
func (a *attempt) confirmPublished() bool {
	f, e := a.flight, a.engine
	budget := e.confirmation(f.ctx)
	asked := e.clock.Now()
	fenced := f.askFenced(f.ctx, budget, a.epoch)
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.ctx.Err() != nil {
		return false
	}
	if fenced {
		f.witness.generation++
		f.unlist() // no more callers join
		return false
	}
	f.change(func(s *flightState) { s.confirmedBefore = e.trustedUntil(asked) })
	return true
}
