package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/polls"
)

// This file is the hedge (Options.Hedge): a second rebuild of a key whose holder takes too long. One
// process of the fleet hedges, elected by a lease beside the holder's. The first commit wins; the
// other rebuild finds the value in the store and gives up.
//
// The hedge claims after the holder, so its epoch is greater. Once the hedge has committed, the
// holder's commit is fenced off. If the holder commits first, the hedge finds the holder's value in a
// look before its own commit. A holder's commit between this look and the hedge's commit is replaced:
// the hedge's value was loaded later, so the key only moves forward. A failed hedge commits nothing:
// its commit would fence the holder off.

// hedgeKey is the prefix of the key of the hedge's lease.
const hedgeKey = "\x00hedge\x00"

// hedge makes a second rebuild if the flight may. Then the wait is over: the hedge has ended the flight, or has come to
// nothing.
func (r *run) hedge(ctx context.Context) (ended, over bool) {
	e := r.engine
	if r.callers.Load() == 0 {
		return false, false // a stale item has answered the callers
	}
	r.waiting.hedge.tried = true
	allowed := e.hedges.Take()
	// The holder counts as slow now: its build may never end.
	e.hedges.Note(true)
	if !allowed {
		return false, false
	}
	loads := false
	defer func() {
		if !loads && r.current == nil { // user code may end the goroutine while the load is under way
			e.hedges.Earn(1) // back
		}
	}()
	if !r.takeFreeSlot() {
		return false, false
	}
	defer r.freeSlot()
	// As long as the holder's rebuild may last: without renewals, and for at most one hedge.
	lease, err := gate.AskInTurn(ctx, e.locker, r.key, r.budget, func(ctx context.Context) (driver.Lease, error) {
		return e.Locker.TryAcquire(ctx, e.ownName(hedgeKey+r.key), e.RebuildTimeout)
	})
	if err != nil {
		if !errors.Is(err, driver.ErrHeld) {
			r.noAnswer(ctx, "acquiring the hedge's lease of", err)
		}
		return false, false
	}
	r.waiting.hedge.lease = lease
	ended = r.claim(ctx)
	if ended || r.leading.epoch == 0 || r.looking.unshared != 0 || ctx.Err() != nil {
		return ended, true
	}
	e.count.hedges.Add(1)
	ended = r.build(ctx, r.watchOf(r.waiting.known, r.waiting.since), r.finishHedge)
	if loads = ended || r.current != nil; !loads { // only this goroutine sets current
		// The round of the slot has begun without the flight, or the key was invalidated. The flight looks and queues, and
		// may hedge again.
		r.freeSlot() // first: a round may wait for the flight
		r.release(ctx, lease)
		r.waiting.hedge.lease, r.waiting.hedge.tried = nil, false
		return false, true
	}
	return ended, true
}

func (r *run) finishHedge(ctx context.Context, l loaded) bool {
	if l.err != nil && !fault.NotFound(l.err) {
		if ctx.Err() == nil { // otherwise Close ended the load
			r.noteFailure(l.err)
		}
		return false // the holder goes on
	}
	if r.overtaken(ctx, r.waiting.known) {
		return false // the flight's next look finds the value
	}
	return r.finish(ctx, l)
}

// freeHedge releases the hedge's lease after Close, or a result that ends the holder's rebuild.
// Otherwise the lease stays until its end: that rebuild has had its hedge.
func (r *run) freeHedge(ctx context.Context) {
	if is, lease := r.state.Load(), r.waiting.hedge.lease; lease != nil && (is.result != nil || is.err == ErrClosed) {
		r.engine.start(func() { r.release(ctx, lease) })
	}
}

// watchOf returns a watch for a rival. The watch has an attempt yield after another process's commit of a later epoch, and
// returns then or at the end of its context. A holder always watches, however little it knows of builds: another process
// begins the hedge by its own knowledge. No poll comes before minHedge, when a hedge may begin.
func (r *run) watchOf(epoch uint64, since instant) func(context.Context, *attempt) {
	e := r.engine
	pause := func() time.Duration { return e.lookEvery(polls.Interval(e.clock.Now() - since)) }
	return func(ctx context.Context, a *attempt) {
		poll := time.NewTimer(max(pause(), minHedge))
		defer poll.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case n := <-r.notices:
				if n.Epoch <= epoch {
					continue
				}
			case <-poll.C:
				poll.Reset(pause())
			}
			if r.overtaken(ctx, epoch) {
				a.yield(errRival)
				return
			}
		}
	}
}

// overtaken reports whether the store has a value of a later epoch. Any goroutine may call it.
func (r *run) overtaken(ctx context.Context, epoch uint64) bool {
	there := r.read(ctx, gate.NewBudget(r.engine.EngineTimeout))
	e := there.Entry
	return there.Err == nil && e.Epoch > epoch && e.Failures == 0 && (e.Kind == driver.KindValue || e.Kind == driver.KindNotFound)
}
