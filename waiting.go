package bellwether

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/polls"
	"github.com/bellwether-go/bellwether/internal/records"
)

// This file is the state waiting: another process has the lease, and the flight waits for its value.
// How callers wait for a flight is in wait.go.

// electPause is the pause between elections without a push: the holder may have given up silently.
const electPause = 500 * time.Millisecond

// noticeLag is the wait for the store's notice after the lease is free, and for the release after the commit. They may
// come on two connections, in any order, and a look for a value on its way would cost a command.
const noticeLag = 10 * time.Millisecond

// awaitHolder is the state waiting. The flight gives its slot back first. A flight that has lasted for MaxWait
// waits no more: callers with time left begin a new flight.
func (r *run) awaitHolder(ctx context.Context) rebuildOutcome {
	r.freeSlot()
	r.member.held()
	if r.engine.clock.Now() > r.due {
		r.end(nil)
		return outcomeAnswered
	}
	return ending(r.await(ctx))
}

// await waits for the holder's value: until the locker pushes, until the holder's announced time is
// over, or by polling the store. It reports whether the flight has ended.
func (r *run) await(ctx context.Context) bool {
	e, w := r.engine, &r.waiting
	began := e.clock.Now()

	watching, endWatch := context.WithCancel(ctx)
	defer endWatch()
	wake := r.watch(ctx, watching, endWatch)

	// A locker that says "free" to Watch and "held" to TryAcquire must not make a loop without a pause.
	earliest := r.standing.asked + polls.Interval(began-w.since)
	stands := max(earliest, r.leaseOver(began, wake != nil)) // when the flight stands for election
	deadline := time.NewTimer(stands - began)
	standSoon := func() {
		now := e.clock.Now()
		stands = min(stands, max(earliest, now+noticeLag))
		deadline.Reset(stands - now)
	}
	late, first := w.hedge.late(began), w.first
	defer r.dropLook()
	for {
		look, ended := r.planLook(r.untilNextLook(wake != nil)), false
		select {
		case n := <-r.notices:
			ended = r.answerByNotice(ctx, n)
		case <-wake:
			wake, w.freed = nil, true
			if !e.notified && e.clock.Now() >= earliest {
				return false
			}
			standSoon()
		case <-late:
			var over bool
			if ended, over = r.hedge(ctx); over {
				return ended
			}
		case there := <-look:
			ended = r.lookByReply(ctx, there)
		case <-deadline.C:
			return false
		case <-ctx.Done():
			return false
		}
		if ended || r.storeDown || r.looking.waives() { // the flight could not see the holder's value in the store
			return ended
		}
		if w.first != first {
			// The first commit since the flight waits is the holder's as a rule. Its release may be on its way, or lost.
			standSoon()
		}
	}
}

func (h *hedgeState) late(now instant) <-chan time.Time {
	if h.at == 0 || h.tried {
		return nil
	}
	return time.After(max(0, h.at-now))
}

// leaseOver is when the flight stands for election if it hears nothing, and notes when the lease ends. The wait began
// at began.
func (r *run) leaseOver(began instant, pushed bool) instant {
	e, w := r.engine, &r.waiting
	until := durations.Add(began, e.LeaseTTL)
	if !w.holder.Until.IsZero() {
		until = min(until, e.clock.Instant(w.holder.Until))
	}
	w.leaseEnd, w.freed = until, false
	if !pushed {
		until = min(until, durations.Add(began, electPause))
	}
	// All waiters of a dead holder come here together, and a single waiter wins. The jitter spares
	// the engine the requests of the others.
	return durations.Add(until, time.Duration(rand.Int64N(int64(max(0, until-began))/64+1)))
}

// untilNextLook is the pause before the flight looks into the store unasked.
func (r *run) untilNextLook(pushed bool) time.Duration {
	e, w := r.engine, &r.waiting
	pause := lookPause
	// The locker pushes when the holder is done. Only looks find a value that a hedge commits earlier.
	if !pushed || w.hedge.at > 0 && e.clock.Now() >= w.hedge.at && !e.notified {
		// Not by the median: polls would see a short build late where most are long.
		pause = polls.IntervalOfBuild(e.clock.Now()-w.since, r.buildTime(records.Quicker))
	}
	if r.state.Load().offered != nil {
		pause = min(pause, e.confirmEvery()/5*4) // a look confirms the offer in time, or finds the value
	}
	return pause
}

// watch returns the channel on which the locker pushes, or nil. A failed watch is not this flight's
// outage: the holder is at work, and the store can be polled.
func (r *run) watch(ctx, watching context.Context, endWatch func()) <-chan struct{} {
	e := r.engine
	w, ok := e.Locker.(driver.Watcher)
	if !ok {
		return nil
	}
	wake, err := gate.AskInTurn(ctx, e.watches, r.key, gate.NewBudget(e.EngineTimeout), func(ctx context.Context) (<-chan struct{}, error) {
		// The watch outlives this call, and so gets the longer context. A hanging call ends with the shorter.
		defer context.AfterFunc(ctx, endWatch)()
		wake, err := w.Watch(watching, r.waiting.holder)
		if errors.Is(err, errors.ErrUnsupported) {
			return nil, nil // an answer: there is nothing to repair
		}
		return wake, err
	})
	if err != nil {
		r.noAnswer(ctx, "watching the lease of", err)
		return nil
	}
	return wake
}
