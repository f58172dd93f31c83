package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
)

// This file is the second rebuild of a key whose holder takes too long, for those
// who have switched it on. One process of the fleet begins it, elected by a lease
// of its own beside the holder's. Whichever value is committed first is everybody's;
// who makes the other one finds it in the store and gives up.
//
// The order of epochs is what it is without hedges. The hedge claims after the
// holder, so its epoch is the greater: once it has committed, the holder's commit
// is fenced off. If the holder commits first, the hedge looks before it commits. A
// commit that comes between that look and the hedge's own commit is replaced by it:
// by what was loaded later, and so only moves forward. A hedge that fails commits
// nothing, or it would fence the holder off.

const (
	// hedgeKey begins the key of the lease that elects who hedges.
	hedgeKey = "\x00hedge\x00"
	// minHedge is the least that a holder has before it is hedged, however quick
	// its key's builds are: to bring its value to the others takes time, too.
	minHedge = 50 * time.Millisecond
)

// errRival is the cause that cancels a load when another process's value is
// committed.
var errRival = errors.New("bellwether: another process's value was committed first")

// A hedgeState is what a flight knows of its hedge.
type hedgeState struct {
	at    instant      // when the holder that it waits for has taken too long; 0: never
	tried bool         // the flight has tried to begin a second rebuild
	lease driver.Lease // the lease under which it has begun one
}

// hedgeAfter is how long a build of the key may take before it is hedged, 0 if it
// never is. A key of which nothing is known is taken for one of the slower ones.
func (r *run[V]) hedgeAfter() time.Duration {
	e := r.engine
	if e.Hedge == 0 || e.Locker == nil {
		return 0
	}
	usual := e.builds.Slower()
	if it := r.present; it != nil && it.Build > 0 {
		usual = it.Build
	}
	if usual == 0 {
		return 0
	}
	// Beyond RebuildTimeout there is nothing to hedge.
	return max(minHedge, time.Duration(min(e.Hedge*float64(usual), float64(e.RebuildTimeout))))
}

// built notes how long a build took.
func (r *run[V]) built(took time.Duration) {
	e := r.engine
	if after := r.hedgeAfter(); after > 0 {
		e.hedges.Note(took > after)
	}
	e.builds.Note(took)
}

// hedge begins a second rebuild beside a holder's, if it may. It reports whether
// the flight has ended.
func (r *run[V]) hedge(ctx context.Context) bool {
	e := r.engine
	if r.callers.n.Load() == 0 {
		return false // what is stale has answered them
	}
	r.waiting.hedge.tried = true
	allowed := e.hedges.Take()
	// That the holder is slow is known before its build ends, if it ever does.
	e.hedges.Note(true)
	if !allowed {
		return false
	}
	if r.slot = r.slots().Try(); r.slot == nil {
		e.hedges.Earn(1)
		return false
	}
	defer r.freeSlot()
	e.enter(r.key, phaseHedging)
	// It lasts for as long as the holder's rebuild may. So it need not be renewed,
	// and whatever becomes of this hedge, there is no other.
	lease, err := gate.AskInTurn(ctx, e.locker, r.key, r.budget, func(ctx context.Context) (driver.Lease, error) {
		return e.Locker.TryAcquire(ctx, e.engineKey(hedgeKey+r.key), e.RebuildTimeout)
	})
	if err != nil {
		e.hedges.Earn(1)
		if !errors.Is(err, driver.ErrHeld) {
			r.noAnswer(ctx, "acquiring the hedge's lease of", err)
		}
		return false
	}
	r.waiting.hedge.lease = lease
	epoch, ended := r.claim(ctx)
	if ended || epoch == 0 || r.looking.unshared != 0 || ctx.Err() != nil {
		e.hedges.Earn(1)
		return ended
	}
	e.count.hedges.Add(1)
	watching, end := context.WithCancel(ctx)
	defer end()
	return r.build(ctx, epoch, r.rival(watching, r.waiting.known, r.waiting.since), r.finishHedge)
}

// finishHedge is finish for a hedge.
func (r *run[V]) finishHedge(ctx context.Context, l loaded[V], epoch uint64) bool {
	if l.err != nil && !fault.NotFound(l.err) {
		if ctx.Err() == nil { // else closed
			r.engine.count.loadFailures.Add(1)
			r.hedgeFailed(l.err)
		}
		return false // the holder is still there
	}
	if r.overtaken(ctx, r.waiting.known) {
		return false // and the flight looks, and finds it
	}
	return r.finish(ctx, l, epoch)
}

// freeHedge gives the hedge's lease back when the flight has ended with something
// that ends the holder's rebuild too, or by Close. Else it stays, until it is over: that
// rebuild has had its hedge.
func (r *run[V]) freeHedge(ctx context.Context) {
	if state := r.state.Load(); r.waiting.hedge.lease != nil && state.landed && (state.err == nil || state.err == ErrClosed) {
		lease := r.waiting.hedge.lease
		r.engine.running.Go(func() { r.release(ctx, lease) })
	}
}

// rival returns a channel that is closed when another process has committed a
// value of a later epoch than that. A holder watches however little it knows of
// builds: its hedge is begun by what another process knows. It asks the store when
// it is told of a commit, and polls as those do who wait since then; but only from
// minHedge on, since no holder is hedged before.
func (r *run[V]) rival(ctx context.Context, epoch uint64, since instant) <-chan struct{} {
	e := r.engine
	committed := make(chan struct{})
	pause := func() time.Duration { return e.lookEvery(pollInterval(e.clock.Now() - since)) }
	e.running.Go(func() {
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
				close(committed)
				return
			}
		}
	})
	return committed
}

// overtaken reports whether the store has a value of a later epoch than that. It
// may be called beside the flight's goroutine.
func (r *run[V]) overtaken(ctx context.Context, epoch uint64) bool {
	there := r.read(ctx, gate.NewBudget(r.engine.EngineTimeout))
	e := there.entry
	return there.err == nil && e.Epoch > epoch && e.Failures == 0 && (e.Kind == driver.KindValue || e.Kind == driver.KindNotFound)
}
