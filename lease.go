package bellwether

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
)

// This file is how long a lease lasts, and how it is kept until it is given back.
// It lasts for about one rebuild, so that a holder that dies costs its key no more
// than that.

// minLease is the shortest lease, however short the rebuild is. It is renewed
// every 167 ms, so it outlives a pause of the process of a third of a second (a
// container that has used its share of the processor up stands still for a tenth),
// and of its renewals one may be lost, or be sent once more by TCP, which takes
// 200 ms to notice. All the lockers below lockers/ announce leases in
// milliseconds, whatever their engines' own expiry is; a Locker whose engine
// cannot makes them longer, and is slower to replace a holder that died.
const minLease = 500 * time.Millisecond

// leaseLength is how long a lease is asked for under which something is built
// that usually takes build; 0 if nobody knows. It is 1.75 times as long: a usual
// build has one renewal, is over well before the second one would be due, and
// those who wait stand for election when the lease they saw is over, and find the
// value by then, not a lease that was renewed. A holder that dies is replaced after
// two thirds of this to the whole: 7/6 to 7/4 of a build.
//
// It is no bound on the build: the lease is renewed, at a third of its length, for
// as long as its holder lives. If the holder pauses for longer than two thirds,
// or its engine does, another takes over, and there is a load too many; the
// store refuses the earlier one's commit. So a length that is too short costs
// work, and nothing else.
func leaseLength(build, engineTimeout, longest time.Duration) time.Duration {
	if build <= 0 {
		return longest
	}
	return min(max(durations.Add(build, 3*(build/4)), minLease, engineTimeout), longest)
}

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
		usual = durations.Add(usual, 2*e.trips.slower().Truncate(time.Millisecond))
	}
	return leaseLength(usual, e.EngineTimeout, e.LeaseTTL)
}

// usual is how long the key's rebuild may be expected to take: as the last one
// did, else as rebuilds do here; 0 if nothing is known.
func (r *run[V]) usual() time.Duration {
	if it := r.present; it != nil && it.Build > 0 {
		return it.Build
	}
	return r.engine.builds.usual()
}

// A leaseTerm is what a holder goes by while it keeps a lease.
type leaseTerm struct {
	began  instant       // when it was asked for, which is before the build
	asked  instant       // when it was, or its last renewal
	length time.Duration // from then
}

// renewal is when the lease is to be renewed.
func (l leaseTerm) renewal() instant {
	return durations.Add(l.asked, max(l.length/3, time.Millisecond))
}

// end is when the lease is over unless it is renewed.
func (l leaseTerm) end() instant { return durations.Add(l.asked, l.length) }

// patience is how long a renewal may take: of two in one length, both have time.
func (l leaseTerm) patience(engineTimeout time.Duration) time.Duration {
	return min(engineTimeout, max(l.length/2, time.Millisecond))
}

// renewed is the lease after a renewal at the time now. It gets longer when its
// build outlasts what was expected, at the second renewal and then each time: the
// next one comes when the build has taken twice as long. So a long build of which
// nothing was known does not renew every 167 ms to its end, and a crash costs in
// proportion to what has been built when it comes.
func (l leaseTerm) renewed(now instant, longest time.Duration) leaseTerm {
	if taken := now - l.began; taken >= 2*(l.length/3) {
		l.length = max(l.length, min(3*taken, longest))
	}
	l.asked = now
	return l
}

// manyTimes is how many recentTimes remember.
const manyTimes = 16

// recentTimes are how long the latest took of something that is done again and
// again: they stand in for what is not known of the next one.
type recentTimes struct {
	mu   sync.Mutex // guards all
	last [manyTimes]time.Duration
	n    int // how many there were
}

func (b *recentTimes) note(took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last[b.n%manyTimes] = max(took, 1)
	b.n++
}

// usual is the median, 0 if there was none.
func (b *recentTimes) usual() time.Duration { return b.rank(func(n int) int { return n / 2 }) }

// slower is what a quarter of them exceed, 0 if there was none. One
// that hangs now and then makes it no longer.
func (b *recentTimes) slower() time.Duration { return b.rank(func(n int) int { return (n*3 - 1) / 4 }) }

func (b *recentTimes) rank(of func(n int) int) time.Duration {
	b.mu.Lock()
	last, n := b.last, min(b.n, manyTimes)
	b.mu.Unlock()
	if n == 0 {
		return 0
	}
	slices.Sort(last[:n])
	return last[of(n)]
}

// keep renews the lease at a third of its length until ctx ends. It closes lost
// when the engine says that the lease is another's, asked or by itself. An
// engine that says nothing ends nothing: if the lease runs out meanwhile and
// another rebuilds too, the store lets only the later of the two write.
func (r *run[V]) keep(ctx context.Context, lease Lease, term leaseTerm, lost chan<- struct{}) {
	e := r.engine
	var told <-chan struct{}
	if n, ok := lease.(LossNotifier); ok {
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
			err = ErrLeaseLost
		case <-time.After(term.renewal() - e.clock.Now()):
			now := e.clock.Now()
			renewed := term.renewed(now, e.LeaseTTL)
			if err = r.renew(ctx, lease, renewed.length, term.patience(e.EngineTimeout)); err == nil {
				term = renewed
				r.prolong(ctx, term.end())
			}
			term.asked = now
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrLeaseLost):
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
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	if l := r.current; l != nil && ctx.Err() == nil { // else the next load may have begun
		l.heldUntil = until
	}
}

func (r *run[V]) renew(ctx context.Context, lease Lease, length, patience time.Duration) error {
	r.engine.enter(r.key, phaseRenewing)
	return gate.AskErr(ctx, r.engine.locker, r.key, &gate.Budget{Left: patience}, func(ctx context.Context) error { return lease.Renew(ctx, length) })
}

// releaseBehind gives the lease back, if there is one, and does not wait for it.
func (r *run[V]) releaseBehind(ctx context.Context) {
	if lease := r.leading.lease; lease != nil {
		r.leading.lease = nil
		r.engine.running.Go(func() { r.release(ctx, lease) })
	}
}

// release gives a lease of the flight's back, and reports it if the locker is silent.
func (r *run[V]) release(ctx context.Context, lease Lease) {
	r.engine.enter(r.key, phaseReleasing)
	err := r.engine.giveBack(ctx, r.key, &gate.Budget{Left: r.engine.EngineTimeout}, lease)
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		r.noAnswer(context.WithoutCancel(ctx), "releasing the lease of", err)
	}
}

// giveBack releases a lease, also when ctx, the holder's own, has ended. If the locker is
// silent, the lease is released again later.
func (e *engine[V]) giveBack(ctx context.Context, key string, budget *gate.Budget, lease Lease) error {
	err := e.tryRelease(ctx, key, budget, lease)
	if errors.Is(err, ErrUnavailable) {
		e.behind(func() { e.releaseLater(key, lease) })
	}
	return err
}

// releaseLater releases a lease when the locker's breaker closes, and else after each
// gate.Pause, until the locker answers. Until then the key's next holder waits for the
// lease, also in this process; after LeaseTTL it has run out.
func (e *engine[V]) releaseLater(key string, lease Lease) {
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
		if err := e.tryRelease(e.open, key, &gate.Budget{Left: e.EngineTimeout}, lease); !errors.Is(err, ErrUnavailable) {
			return
		}
	}
}

func (e *engine[V]) tryRelease(ctx context.Context, key string, budget *gate.Budget, lease Lease) error {
	return gate.AskErr(context.WithoutCancel(ctx), e.locker, key, budget, func(ctx context.Context) error { return lease.Release(ctx) })
}
