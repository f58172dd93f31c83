package bellwether

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/gate"
)

// This file is the state waiting: another process has the lease, and the flight waits for its value. How
// callers wait for a flight is in wait.go.

// A waitingState is what a flight knows of the process that it waits for.
type waitingState struct {
	holder   *driver.HeldError // whose lease it waits for, or last did; nil if it never has
	since    instant           // when it first found another holder
	known    uint64            // the epoch of the store's entry then
	first    uint64            // the epoch of the first value that it has seen since, 0: none yet
	missing  instant           // when it was not there yet
	leaseEnd instant           // when the lease was to run out
	freed    bool              // it was released before
	hedge    hedgeState
}

// sees reports whether that epoch is of a change since the flight began to wait.
func (w *waitingState) sees(epoch uint64) bool { return w.holder != nil && epoch > w.known }

// waitFor has the flight wait for a holder, from now on if it has not waited before.
func (r *run[V]) waitFor(held *driver.HeldError) {
	e, w := r.engine, &r.waiting
	if w.holder == nil {
		e.count.waits.Add(1)
		w.since = e.clock.Now()
		if r.present != nil {
			w.known = r.present.Epoch
		}
		if after := r.hedgeAfter(); after > 0 {
			w.hedge.at = durations.Add(w.since, after)
		}
	}
	w.holder = held
}

const (
	// electPause is how often a waiter whose locker cannot push stands for
	// election while the holder's announced time lasts: a holder may have
	// given up without a word.
	electPause = 500 * time.Millisecond
	// lookPause is how often a waiter looks into the store although its locker
	// pushes: a push may be lost with the engine that sends it.
	lookPause = time.Second
	// noticeLag is how long a waiter whose lease is free waits for its store's
	// notice. The two come on connections of their own, and the later word may
	// be the first: a look for what is on its way would cost a command.
	noticeLag = 10 * time.Millisecond
)

// awaitHolder is the state waiting. The flight waits without a place among MaxRebuilds.
func (r *run[V]) awaitHolder(ctx context.Context) rebuildOutcome {
	r.freeSlot()
	r.member.held()
	if r.engine.clock.Now()-r.began > r.engine.MaxWait {
		return outcomeTimeIsUp
	}
	return ending(r.await(ctx))
}

// await waits for the value of the holder: until the locker pushes, until the
// time is over that the holder has announced, or, with a locker that cannot
// push, by polling the store. It reports whether the flight has ended; if not,
// it is time to stand for election again.
func (r *run[V]) await(ctx context.Context) bool {
	e, w := r.engine, &r.waiting
	began := e.clock.Now()

	watching, endWatch := context.WithCancel(ctx)
	defer endWatch()
	e.enter(r.key, phaseWatching)
	wake := r.watch(ctx, watching, endWatch, w.holder)
	e.enter(r.key, phaseWaiting)

	until := r.leaseOver(began, wake != nil)
	// A locker that says "free" and "held" in one breath must not make a loop
	// without a pause.
	earliest := r.standing.asked + pollInterval(began-w.since)
	deadline := time.NewTimer(max(until, earliest) - began)
	late := w.hedge.late(began)
	defer r.dropLook()
	for {
		look := r.planLook(r.untilNextLook(wake != nil))
		select {
		case n := <-r.notices:
			if ended := r.told(ctx, n); ended || r.blind() {
				return ended
			}
		case <-wake:
			if early := r.freed(earliest); early > 0 {
				wake, earliest = nil, 0
				deadline.Reset(early)
				continue
			}
			return false
		case <-late:
			late = nil
			if ended := r.hedge(ctx); ended || w.hedge.lease != nil || r.blind() {
				return ended
			}
		case <-deadline.C:
			return false
		case <-ctx.Done():
			return false
		case <-look.due:
			if ended := r.lookTogether(ctx, look); ended || r.blind() {
				return ended
			}
		case there := <-look.reply:
			if ended := r.lookAt(ctx, there); ended || r.blind() {
				return ended
			}
		}
	}
}

// freed notes that the lease is free, and returns how long it is until the flight may stand for election.
func (r *run[V]) freed(earliest instant) time.Duration {
	e := r.engine
	r.waiting.freed = true
	if e.notified {
		earliest = max(earliest, e.clock.Now()+noticeLag)
	}
	return earliest - e.clock.Now()
}

// late returns the channel that tells when the holder has taken too long, nil if there is to be no hedge.
func (h *hedgeState) late(now instant) <-chan time.Time {
	if h.at == 0 || h.tried {
		return nil
	}
	return time.After(max(0, h.at-now))
}

// leaseOver is when to stand for election again if nothing is heard, for a flight that
// waits since began.
func (r *run[V]) leaseOver(began instant, pushed bool) instant {
	e, w := r.engine, &r.waiting
	until := durations.Add(began, e.LeaseTTL)
	if !w.holder.Until.IsZero() {
		until = min(until, e.clock.Instant(w.holder.Until))
	}
	w.leaseEnd, w.freed = until, false
	if !pushed {
		until = min(until, durations.Add(began, electPause))
	}
	// All waiters of a dead holder get here at one time. One of them wins
	// anyway; the jitter spares the engine the rest.
	return durations.Add(until, time.Duration(rand.Int64N(int64(max(0, until-began))/64+1)))
}

// untilNextLook is how long the flight waits before it looks into the store unasked.
func (r *run[V]) untilNextLook(pushed bool) time.Duration {
	e, w := r.engine, &r.waiting
	pause := lookPause
	// The locker pushes when the holder is done; a hedge may be before it.
	if !pushed || w.hedge.at > 0 && e.clock.Now() >= w.hedge.at && !e.notified {
		pause = pollBuild(e.clock.Now()-w.since, r.soonest())
	}
	if r.state.Load().offered != nil {
		pause = min(pause, e.confirmEvery()) // what is offered has to be confirmed
	}
	return pause
}

// lookEvery is the pause between two looks for what another process commits: poll, or
// lookPause where the store tells of it, since a look is then for a notice that is lost.
func (e *engine[V]) lookEvery(poll time.Duration) time.Duration {
	if e.notified {
		return lookPause
	}
	return poll
}

// blind reports whether the flight could not see the value when it is there.
func (r *run[V]) blind() bool { return r.storeDown || r.looking.unshared != 0 }

// watch returns the channel on which the locker pushes, nil if it does not. A
// push that fails costs no more than the push: the holder is at work, and the
// store can be polled, so it does not count as this flight's outage.
func (r *run[V]) watch(ctx, watching context.Context, endWatch func(), held *driver.HeldError) <-chan struct{} {
	e := r.engine
	w, ok := e.Locker.(driver.Watcher)
	if !ok {
		return nil
	}
	wake, err := gate.AskInTurn(ctx, e.push, r.key, gate.NewBudget(e.EngineTimeout), func(ctx context.Context) (<-chan struct{}, error) {
		// The watch outlives this call, so it gets the longer context; but a
		// call that hangs must end with the shorter one.
		defer context.AfterFunc(ctx, endWatch)()
		return w.Watch(watching, held)
	})
	if err != nil {
		if ctx.Err() == nil {
			r.noAnswer(ctx, "watching the lease of", err)
		}
		return nil
	}
	return wake
}
