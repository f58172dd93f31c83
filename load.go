package bellwether

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/chain"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gather"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/stack"
)

// This file runs the user's load, with a goroutine and a context of its own. A panic and a Goexit become failures here.
// The flight waits for the load in building.go, for RebuildTimeout at most.

// A loaded is a product whose windows are set, with the load's basis, error and times.
type loaded struct {
	items.Product
	basis
	err   error
	ended instant // when the value has its windows' age
	took  time.Duration
}

func (l *loaded) windows() items.Windows {
	w := *l.Windows
	// A value that is past its windows is not kept, see Result.
	if served := items.NewLifetime(0, w); l.Marks != nil && l.Marks.Validator != "" && served.End() > 0 {
		w.Keep = validatorKeep
	}
	return w
}

// A basis is what is known when a load begins, or is refused (finishOverloaded). It does not change.
type basis struct {
	epoch     uint64      // claimed for the load; 0: none
	present   *items.Item // run.present
	loadBegan instant     // items.Item.LoadBegan
	position  uint64      // items.Item.Position
	storeDown bool        // the flight goes on without the store
	asked     instant     // a time at which the store had nothing later than epoch
}

// An attempt is one load of a flight. Only heldUntil and the fields below shard.mu change once the load has started:
// the flight may give the load up, and change.
type attempt struct {
	*flight
	basis
	abort context.CancelCauseFunc // cancels the load
	last  bool                    // an invalidation does not cancel the load, see maxVoid
	cede  context.CancelCauseFunc // gives the load up for another process's, see yield; nil without a lease and rivals
	seat  *gather.Seat            // the attempt's place in a load of its batch; nil: the attempt loads by itself
	// heldUntil is the instant at which the lease ends by this process's clock; forever without a lease.
	heldUntil atomic.Int64

	running *chain.Load
	free    func() // called when the load has returned or told
	told    sync.Once
	result  chan loaded // has room for the result, or an abandoned load would leak its goroutine

	// shard.mu guards the fields below.
	lost    bool // the lease has ended, or another process has it
	repeats bool // the failed load commits the present value once more: Sets count whatever their epoch
}

// start runs the flight's load, and sends its result once.
func (a *attempt) start(ctx context.Context, free func()) {
	a.running, a.free, a.result = chain.NewLoad(ctx, a.engine.slots, &a.askers), free, make(chan loaded, 1)
	go a.run()
}

// yield gives the load up because another process has the lease, or has committed. A response with readers goes on to
// its commit, which may be fenced. After a flight's second loss of a lease every load goes on: a locker that loses all
// leases must not stop all loads. The lock keeps the load from publishing in between.
func (a *attempt) yield(to error) {
	a.shard.mu.Lock()
	defer a.shard.mu.Unlock()
	again := false
	if to == driver.ErrLeaseLost {
		again = a.lostLease
		a.lost, a.lostLease = true, true
	}
	if !again && !a.streaming() {
		a.cede(to)
	}
}

// Tell ends the load with a result. If it goes on for its own client, its return value is ignored.
func (a *attempt) Tell(p items.Product, err error) {
	a.told.Do(func() {
		now := a.engine.clock.Now()
		result := loaded{Product: p, basis: a.basis, err: err, ended: now, took: now - (a.loadBegan - 1)}
		if p.Windows == nil {
			result.Windows = &a.engine.windows
		}
		a.running.Slot.End()
		a.free()
		a.result <- result
	})
}

func (a *attempt) run() {
	stack.Grow()
	var p items.Product
	fault.Run(func() (err error) {
		p, err = a.load(a.running, a)
		if p.Windows == nil && fault.NotFound(err) {
			p.Windows = &items.Windows{TTL: a.engine.NotFoundTTL}
		}
		return err
	}, func(err error) { a.Tell(p, err) })
}
