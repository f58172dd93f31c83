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
)

// This file is how long a lease lasts, and how it is kept until it is given back.
// It lasts for about one rebuild, so that a holder that dies costs its key no more
// than that.

// leaseLength is the length of the lease that the flight stands for now. While
// there is something stale to serve for longer than a takeover takes, nobody
// waits, and the longest lease is the one that asks least of the engines.
func (r *run[V]) leaseLength() time.Duration {
	e, it, usual := r.engine, r.present, r.usual()
	if it != nil && it.Held && r.want.Accept == nil && it.StaleUntil-e.clock.Now() > durations.Add(e.LeaseTTL, usual) {
		return e.LeaseTTL
	}
	if usual > 0 {
		// What a holder asks of its engines is done under the lease too, and takes
		// long while they are busy: the claim before the load, the commit after it.
		usual = durations.Add(usual, 2*e.trips.Slower().Truncate(time.Millisecond))
	}
	return leases.Length(usual, e.EngineTimeout, e.LeaseTTL)
}

// usual is how long the key's rebuild may be expected to take: as the last one
// did, else as rebuilds do here; 0 if nothing is known.
func (r *run[V]) usual() time.Duration {
	if last := r.lastBuild(); last > 0 {
		return last
	}
	return r.engine.builds.Usual()
}

// soonest is how long the key's rebuild may be expected to take at the least: as long as the last one
// did, else as all but a quarter of the rebuilds do here; 0 if nothing is known. Keys differ: one
// with a short build is not seen late because most builds are long.
func (r *run[V]) soonest() time.Duration {
	if last := r.lastBuild(); last > 0 {
		return last
	}
	return r.engine.builds.Quicker()
}

// lastBuild is how long the key's last rebuild took, 0 if that is not known.
func (r *run[V]) lastBuild() time.Duration {
	if r.present == nil {
		return 0
	}
	return r.present.Build
}

// keep renews the lease at a third of its length until ctx ends. It closes lost
// when the engine says that the lease is another's, asked or by itself. An
// engine that says nothing ends nothing: if the lease runs out meanwhile and
// another rebuilds too, the store lets only the later of the two write.
func (r *run[V]) keep(ctx context.Context, lease driver.Lease, term leases.Term, lost chan<- struct{}) {
	e := r.engine
	var told <-chan struct{}
	if n, ok := lease.(driver.LossNotifier); ok {
		if err := fault.Guard(func() error { told = n.Lost(); return nil }); err != nil {
			r.noAnswer(ctx, "keeping the lease of", err)
		}
	}
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-told:
			err = driver.ErrLeaseLost
		case <-time.After(term.Renewal() - e.clock.Now()):
			now := e.clock.Now()
			renewed := term.Renewed(now, e.LeaseTTL)
			if err = r.renew(ctx, lease, renewed.Length, term.Patience(e.EngineTimeout)); err == nil {
				term = renewed
				r.prolong(ctx, term.End())
			}
			term.Asked = now
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, driver.ErrLeaseLost):
			e.count.leasesLost.Add(1)
			e.OnError(r.key, &keyError{"keeping the lease of", r.key, err})
			close(lost)
			return
		case err != nil:
			r.noAnswer(ctx, "renewing the lease of", err)
		}
	}
}

// prolong notes that the lease of the load whose context is ctx lasts until then.
func (r *run[V]) prolong(ctx context.Context, until instant) {
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	if l := r.current; l != nil && ctx.Err() == nil { // else the next load may have begun
		l.heldUntil = until
	}
}

func (r *run[V]) renew(ctx context.Context, lease driver.Lease, length, patience time.Duration) error {
	r.engine.enter(r.key, phaseRenewing)
	return gate.AskErr(ctx, r.engine.locker, r.key, gate.NewBudget(patience), func(ctx context.Context) error { return lease.Renew(ctx, length) })
}

// releaseBehind gives the lease back, if there is one, and does not wait for it.
func (r *run[V]) releaseBehind(ctx context.Context) {
	if lease := r.leading.lease; lease != nil {
		r.leading.lease = nil
		r.engine.running.Go(func() { r.release(ctx, lease) })
	}
}

// release gives a lease of the flight's back, and reports it if the locker is silent.
func (r *run[V]) release(ctx context.Context, lease driver.Lease) {
	r.engine.enter(r.key, phaseReleasing)
	err := r.engine.giveBack(ctx, r.key, gate.NewBudget(r.engine.EngineTimeout), lease)
	if err != nil && !errors.Is(err, driver.ErrLeaseLost) {
		r.noAnswer(context.WithoutCancel(ctx), "releasing the lease of", err)
	}
}

// giveBack releases a lease, also when ctx, the holder's own, has ended. If the locker is
// silent, the lease is released again later.
func (e *engine[V]) giveBack(ctx context.Context, key string, budget *gate.Budget, lease driver.Lease) error {
	err := e.tryRelease(ctx, key, budget, lease)
	if errors.Is(err, ErrUnavailable) {
		e.behind(func() { e.releaseLater(key, lease) })
	}
	return err
}

// releaseLater releases a lease when the locker's breaker closes, and else after each
// gate.Pause, until the locker answers. Until then the key's next holder waits for the
// lease, also in this process; after LeaseTTL it has run out.
func (e *engine[V]) releaseLater(key string, lease driver.Lease) {
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

func (e *engine[V]) tryRelease(ctx context.Context, key string, budget *gate.Budget, lease driver.Lease) error {
	return gate.AskErr(context.WithoutCancel(ctx), e.locker, key, budget, func(ctx context.Context) error { return lease.Release(ctx) })
}
