package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

// This file tries a locker by itself. Clients acquire, renew, release and abandon leases through
// faulty links. The leases are long against the faults, so no fault excuses two holders.

const (
	lockClients  = 4 // they stand for processes: each has a Locker and a link
	lockCallers  = 3 // in each client
	lockTTL      = time.Second
	lockPatience = 250 * time.Millisecond // of a call

	// wakeBound is when a watch must have reported a release, wakeTTL the wait without a report.
	wakeBound = 2 * time.Second
	wakeTTL   = 10 * time.Second
)

var lockKeys = []string{"a", "b", "c"}

type lockRun struct {
	tb      testing.TB
	engine  engine
	bug     bug // the zero bug is none
	server  *testserver.Server
	proxies []*testserver.Proxy
	rec     []*recorder
	lockers []driver.Locker
	gaps    *gapMeter

	mu     sync.Mutex // guards events
	events []event
}

// runLocks tries the engine's locker for that long, and returns the violations.
func runLocks(tb testing.TB, e engine, seed int64, length time.Duration, b bug) *findings {
	tb.Helper()
	r := &lockRun{tb: tb, engine: e, bug: b, server: e.start(tb)}
	if e.prepare != nil {
		if err := e.prepare(r.server.Addr); err != nil {
			tb.Fatal(err)
		}
	}
	for i := range lockClients {
		proxy := testserver.NewProxy(tb, r.server.Addr)
		c, err := e.open(proxy.Addr)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { c.close() })
		rec := &recorder{sink: func(ev event, _ bool) {
			ev.Worker = i
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, ev)
		}}
		locker := c.locker
		if b.lock != nil {
			locker = b.lock(c, locker)
		}
		r.proxies, r.rec = append(r.proxies, proxy), append(r.rec, rec)
		r.lockers = append(r.lockers, recordLocker(locker, rec))
	}
	r.gaps = newGapMeter(func(span) {})
	defer r.gaps.stop()

	found := newFindings()
	r.storm(rand.New(rand.NewPCG(uint64(seed), 1)), seed, length)
	if b.check != checkLock {
		r.quiet(found)
	}
	for _, key := range lockKeys {
		ops := lockCalls(only(latest(r.events), key), nil)
		found.judged[checkLock] += len(ops)
		switch text, known := linearizable(lockModel, ops); {
		case !known:
			found.undecided++
		case text != "":
			found.add(checkLock, "the calls for %q are not linearizable:%s", key, text)
		}
	}
	return found
}

// storm runs all clients, and breaks their links.
func (r *lockRun) storm(dice *rand.Rand, seed int64, length time.Duration) {
	ctx, stop := context.WithTimeout(context.Background(), length)
	defer stop()
	var wg sync.WaitGroup
	for i := range lockClients * lockCallers {
		wg.Go(func() {
			dice := rand.New(rand.NewPCG(uint64(seed), uint64(100+i)))
			for ctx.Err() == nil {
				r.compete(ctx, r.lockers[i/lockCallers], dice)
			}
		})
	}
	faults := []testserver.Fault{testserver.BlackHole, testserver.DeadRequests, testserver.DeadReplies,
		testserver.SwallowReplies, testserver.SlowClose, testserver.Reset}
	for ctx.Err() == nil {
		pause := time.Duration(50+dice.IntN(200)) * time.Millisecond
		lasts := time.Duration(20+dice.IntN(280)) * time.Millisecond
		victim, fault := r.proxies[dice.IntN(len(r.proxies))], faults[dice.IntN(len(faults))]
		kind := dice.IntN(10)
		time.Sleep(pause) // real links
		switch {
		case kind == 0 && r.server.Own():
			r.server.Signal(syscall.SIGSTOP)
			time.Sleep(lasts)
			r.server.Signal(syscall.SIGCONT)
		case kind < 3:
			victim.SetLatency(lasts / 4)
			time.Sleep(lasts)
			victim.SetLatency(0)
		default:
			victim.Set(fault)
			time.Sleep(lasts)
			victim.Set(testserver.NoFault)
		}
	}
	wg.Wait()
}

// compete is an attempt at a lease, with the holder's or waiter's part after it.
func (r *lockRun) compete(ctx context.Context, l driver.Locker, dice *rand.Rand) {
	key := lockKeys[dice.IntN(len(lockKeys))]
	ttl := lockTTL
	if dice.IntN(2) == 0 {
		ttl = 300 * time.Millisecond // these leases end before their holders release them
	}
	sleep := func(most time.Duration) { time.Sleep(time.Duration(dice.Int64N(int64(most)))) }
	call := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
		defer cancel()
		return f(ctx)
	}
	var lease driver.Lease
	err := call(func(ctx context.Context) (err error) {
		lease, err = l.TryAcquire(ctx, key, ttl)
		return err
	})
	if err != nil {
		if heldBy, ok := errors.AsType[*driver.HeldError](err); ok {
			r.wait(ctx, l, heldBy, dice)
		} else {
			sleep(20 * time.Millisecond)
		}
		return
	}
	switch dice.IntN(6) {
	case 0: // it abandons the lease, and comes back too late
		sleep(2 * ttl)
		if call(func(ctx context.Context) error { return lease.Renew(ctx, ttl) }) == nil {
			sleep(ttl / 2)
		}
	case 1: // it keeps the lease for longer than the TTL
		for range 4 + dice.IntN(4) {
			time.Sleep(ttl / 3)
			if err := call(func(ctx context.Context) error { return lease.Renew(ctx, ttl) }); errors.Is(err, driver.ErrLeaseLost) {
				return
			}
		}
	default:
		sleep(60 * time.Millisecond)
	}
	call(lease.Release)
	if dice.IntN(4) == 0 {
		call(lease.Release) // it must free no other lease
	}
}

// wait waits for a lease like a flight.
func (r *lockRun) wait(ctx context.Context, l driver.Locker, held *driver.HeldError, dice *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond+time.Duration(dice.Int64N(int64(200*time.Millisecond))))
	defer cancel()
	var wake <-chan struct{}
	if w, ok := l.(driver.Watcher); ok {
		wake, _ = w.Watch(ctx, held)
	}
	select {
	case <-wake:
	case <-time.After(max(time.Until(held.Until), 5*time.Millisecond)):
	case <-ctx.Done():
	}
}

// quiet checks that the clients' watches report each other's releases, without faults.
func (r *lockRun) quiet(found *findings) {
	if _, ok := r.lockers[0].(driver.Watcher); !ok {
		return
	}
	ctx := context.Background()
	const rounds = 12
	deadline := time.Now().Add(15 * time.Second)
	for n := 0; n < rounds; {
		if time.Now().After(deadline) {
			found.add(checkWake, "15 s after the faults %d of %d watches have stood", n, rounds)
			return
		}
		key := fmt.Sprint("wake", n)
		lease, err := r.lockers[n%2].TryAcquire(ctx, key, wakeTTL)
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		other := r.lockers[2+n%2]
		_, err = other.TryAcquire(ctx, key, wakeTTL)
		heldBy, ok := errors.AsType[*driver.HeldError](err)
		if !ok {
			if err == nil {
				found.add(checkLock, "two clients have the lease on %s", key)
				return
			}
			lease.Release(ctx)
			continue
		}
		watching, cancel := context.WithCancel(ctx)
		var release sync.WaitGroup
		released := false
		release.Go(func() {
			time.Sleep(time.Duration(n) * time.Millisecond) // before, during and after the subscription
			released = lease.Release(ctx) == nil
		})
		wake, err := other.(driver.Watcher).Watch(watching, heldBy)
		if err != nil {
			cancel()
			release.Wait()
			time.Sleep(50 * time.Millisecond) // no push for now
			continue
		}
		start := now()
		select {
		case <-wake:
			found.judged[checkWake]++
		case <-time.After(wakeBound + time.Duration(n)*time.Millisecond):
			release.Wait()
			if !released || r.gaps.within(start, now()) > 0 {
				found.excused[checkWake]++
				break
			}
			found.judged[checkWake]++
			found.add(checkWake, "a watch of %s has not heard within %v that the lease was released", key, wakeBound)
			cancel()
			return
		}
		cancel()
		release.Wait()
		n++
	}
}
