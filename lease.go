package bellwether

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/leases"
	"github.com/bellwether-go/bellwether/internal/records"
)

// This file is the length of a lease (see internal/leases), its renewal and its release.

// leaseLength is the length of the lease that the flight asks for. While a stale item can be served
// for longer than a takeover takes, no caller waits, and the longest lease needs the fewest requests.
func (r *run) leaseLength() time.Duration {
	e, it := r.engine, r.present
	usual := r.buildTime(records.Usual)
	if it != nil && it.Held && r.want.Accept == nil && it.StaleUntil-e.clock.Now() > durations.Add(e.LeaseTTL, usual) {
		return e.LeaseTTL
	}
	if usual > 0 {
		// The claim and the commit are under the lease too, and take long while the engines are busy.
		usual = durations.Add(usual, 2*e.trips.At(records.Slower).Truncate(time.Millisecond))
	}
	return leases.Length(usual, e.EngineTimeout, e.LeaseTTL)
}

// keepLease begins to keep the flight's lease, if any, for an attempt. stop ends that. noteEnd comes when the load has
// ended: the lease is kept through the commit. Most loads end before the first renewal, without a goroutine for the
// keeper. A lease whose loss the locker tells of is kept at once.
func (r *run) keepLease(ctx context.Context, a *attempt) (noteEnd, stop func()) {
	e, lease := r.engine, r.leading.lease
	if lease == nil {
		return func() {}, func() {}
	}
	now := e.clock.Now()
	e.trips.Note(now - r.standing.asked)
	// An Elector's request, and an election before the claim, asked for a length without the present
	// entry's build time. The first renewal shortens the lease if the engine can.
	term := leases.Term{Began: r.standing.asked, Asked: r.standing.asked, Length: min(r.standing.length, r.leaseLength())}
	a.heldUntil.Store(int64(term.End()))
	first := term.Renewal() - now
	if _, tells := lease.(driver.LossNotifier); tells {
		first = 0
	}
	keeping, stopKeeping := context.WithCancel(ctx)
	loading, noteEnd := context.WithCancel(keeping)
	keeper := time.AfterFunc(first, func() { e.behind(func() { a.keep(keeping, loading, lease, term) }) })
	return noteEnd, func() {
		stopKeeping()
		keeper.Stop()
	}
}

// keep renews the lease at each third of its length until ctx ends, also during the commit, which may take long
// on a crowded machine. It yields when the engine says, asked or unasked, that another process has the
// lease, before the end of loading. Silence ends nothing: if the lease runs out and another process rebuilds too,
// the store takes only the later epoch.
func (a *attempt) keep(ctx, loading context.Context, lease driver.Lease, term leases.Term) {
	e := a.engine
	ended, told := loading.Done(), a.lossOf(ctx, lease)
	for ctx.Err() == nil {
		var err error
		if pause := term.Renewal() - e.clock.Now(); pause > 0 {
			select {
			case <-ctx.Done():
				return
			case <-ended:
				ended, told = nil, nil
				continue
			case <-told:
				err = driver.ErrLeaseLost
			case <-time.After(pause):
				continue
			}
		} else {
			now := e.clock.Now()
			renewed := term.Renewed(now, e.LeaseTTL)
			if err = a.renew(ctx, lease, renewed.Length, term.Patience(e.EngineTimeout)); err == nil {
				term = renewed
				a.heldUntil.Store(int64(term.End()))
			}
			term.Asked = now
		}
		switch {
		case ctx.Err() != nil, errors.Is(err, driver.ErrLeaseLost) && loading.Err() != nil:
			return // the commit may have released the lease
		case errors.Is(err, driver.ErrLeaseLost):
			e.count.leasesLost.Add(1)
			a.yield(driver.ErrLeaseLost)
			e.OnError(a.key, &keyError{"keeping the lease of", a.key, err}) // may call Goexit
			return
		case err != nil:
			a.noAnswer(ctx, "renewing the lease of", err)
		}
	}
}

// lossOf returns the channel on which the locker tells of a lease's loss, nil if it does not.
func (a *attempt) lossOf(ctx context.Context, lease driver.Lease) (told <-chan struct{}) {
	if n, ok := lease.(driver.LossNotifier); ok {
		if err := fault.Guard(func() error { told = n.Lost(); return nil }); err != nil {
			a.noAnswer(ctx, "keeping the lease of", err)
		}
	}
	return told
}

// renew renews the lease within patience by the clock, as leases end: a gate gives a starved process more.
func (k *storeKey) renew(ctx context.Context, lease driver.Lease, length, patience time.Duration) error {
	return gate.AskErr(ctx, k.engine.locker, k.key, gate.NewBudget(2*patience), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return lease.Renew(ctx, length)
	})
}

// releaseFirst releases the flight's lease, if any, before the flight goes on.
func (r *run) releaseFirst(ctx context.Context) {
	if lease := r.leading.lease; lease != nil {
		r.leading.lease = nil
		r.release(ctx, lease)
	}
}

func (r *run) releaseBehind(ctx context.Context) {
	if lease := r.leading.lease; lease != nil {
		r.leading.lease = nil
		r.engine.start(func() { r.release(ctx, lease) })
	}
}

func (r *run) release(ctx context.Context, lease driver.Lease) {
	err := r.engine.giveBack(ctx, r.key, gate.NewBudget(r.engine.EngineTimeout), lease)
	if err != nil && !errors.Is(err, driver.ErrLeaseLost) {
		r.noAnswer(context.WithoutCancel(ctx), "releasing the lease of", err)
	}
}

// giveBack releases a lease, also after the end of ctx. If the locker is silent, releaseLater follows.
func (e *engine) giveBack(ctx context.Context, key string, budget *gate.Budget, lease driver.Lease) error {
	err := e.tryRelease(ctx, key, budget, lease)
	if errors.Is(err, ErrUnavailable) {
		e.behind(func() { e.releaseLater(key, lease) })
	}
	return err
}

// releaseLater releases a lease of a silent locker, or tries until the lease has run out. The key's next
// holder, also in this process, waits until then.
func (e *engine) releaseLater(key string, lease driver.Lease) {
	over := time.NewTimer(e.LeaseTTL)
	defer over.Stop()
	for {
		select {
		case <-e.locker.Closing():
		case <-time.After(gate.Pause):
		case <-over.C:
			return
		case <-e.open.Done():
			return
		}
		if err := e.tryRelease(e.open, key, gate.NewBudget(e.EngineTimeout), lease); !errors.Is(err, ErrUnavailable) {
			return
		}
	}
}

func (e *engine) tryRelease(ctx context.Context, key string, budget *gate.Budget, lease driver.Lease) error {
	return gate.AskErr(context.WithoutCancel(ctx), e.locker, key, budget, func(ctx context.Context) error { return lease.Release(ctx) })
}
