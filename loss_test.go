package bellwether_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

func TestLossNotifier_CancelsTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type end struct {
			cause error
			after time.Duration
		}
		lose, ended := make(chan struct{}), make(chan end, 1)
		start := time.Now()
		var loads atomic.Int64
		locker := wiredLocks(locallock.New())
		locker.losing = func(string) loses { return func() <-chan struct{} { return lose } }
		c := cacheOf(t, func(ctx context.Context, _ string) (string, error) {
			if loads.Add(1) > 1 {
				return "second", nil
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Second):
			}
			ended <- end{context.Cause(ctx), time.Since(start)}
			return "first", nil
		}, bellwether.Options{
			Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locker, LeaseTTL: time.Minute},
		})
		time.AfterFunc(time.Second, func() { close(lose) })
		v, err := c.Get(t.Context(), "k")
		if v != "second" || err != nil {
			t.Errorf("Get = %q, %v; want the value of the load after the loss", v, err)
		}
		if first := <-ended; !errors.Is(first.cause, driver.ErrLeaseLost) || first.after != time.Second {
			t.Errorf("the load ended after %v with %v, want ErrLeaseLost at once, after 1s", first.after, first.cause)
		}
		if n := c.Stats().LeasesLost; n == 0 {
			t.Error("the loss was not counted")
		}
	})
}

// A locker that loses each lease cancels one load of a flight, and not all.
func TestLoss_OfEachLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := wiredLocks(locallock.New())
		locker.losing = func(string) loses {
			lost := make(chan struct{})
			time.AfterFunc(time.Second, func() { close(lost) })
			return func() <-chan struct{} { return lost }
		}
		var loads atomic.Int64
		c := cacheOf(t, func(ctx context.Context, _ string) (string, error) {
			loads.Add(1)
			select {
			case <-ctx.Done():
				return "", context.Cause(ctx)
			case <-time.After(5 * time.Second):
				return "v", nil
			}
		}, bellwether.Options{Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locker, LeaseTTL: time.Minute}})
		start := time.Now()
		v, err := c.Get(t.Context(), "k")
		if took := time.Since(start); v != "v" || err != nil || loads.Load() != 2 || took > 7*time.Second {
			t.Errorf("Get = %q, %v after %v and %d loads, want the value of the second load", v, err, took, loads.Load())
		}
	})
}

// An OnError that ends the goroutine of the lease's keeper does not keep the load going.
func TestLoss_OnErrorExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lose := make(chan struct{})
		locker := wiredLocks(locallock.New())
		locker.losing = func(string) loses { return func() <-chan struct{} { return lose } }
		var loads atomic.Int64
		c := cacheOf(t, func(ctx context.Context, _ string) (string, error) {
			if loads.Add(1) > 1 {
				return "second", nil
			}
			<-ctx.Done()
			return "", context.Cause(ctx)
		}, bellwether.Options{
			Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locker, LeaseTTL: time.Minute},
			OnError: func(_ string, err error) {
				if errors.Is(err, driver.ErrLeaseLost) {
					runtime.Goexit()
				}
			},
		})
		time.AfterFunc(time.Second, func() { close(lose) })
		start := time.Now()
		if v, err := c.Get(t.Context(), "k"); v != "second" || err != nil || time.Since(start) > 2*time.Second {
			t.Errorf("Get = %q, %v after %v; want the value of the load after the loss, soon after 1s", v, err, time.Since(start))
		}
	})
}

// A rebuild that loses its lease, and its slot, may wait for a slot again beyond MaxQueued.
func TestLoss_AndTheQueueIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := wiredLocks(locallock.New())
		locker.losing = losesFirst("lost")
		store := wiredTo(memstore.New())
		store.only = func(key string) bool { return key == "lost" }
		reads := 0
		store.set(on(func(context.Context, string) error { // the second read takes two seconds
			if reads++; reads == 2 {
				time.Sleep(2 * time.Second)
			}
			return nil
		}, "get"))
		var wg sync.WaitGroup
		c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
			select {
			case <-ctx.Done():
				return "", context.Cause(ctx)
			case <-time.After(10 * time.Second):
				return key, nil
			}
		}, bellwether.Options{
			Fleet:  bellwether.Fleet{Store: store.full(), Locker: locker, EngineTimeout: 5 * time.Second},
			Limits: bellwether.Limits{MaxRebuilds: 1, MaxQueued: 1},
		})
		get := func(key string) {
			wg.Go(func() { wantValue(t, c, key, key) })
			synctest.Wait()
		}
		get("lost")
		get("next") // gets the slot when the lease is lost
		time.Sleep(2 * time.Second)
		get("waits") // takes the queue's only place before "lost" has its reply from the store
		if _, err := c.Get(t.Context(), "refused"); !errors.Is(err, bellwether.ErrOverloaded) {
			t.Errorf("the queue is not full: %v", err)
		}
		wg.Wait()
		if n := c.Stats().LeasesLost; n != 1 {
			t.Errorf("%d leases were lost, want 1", n)
		}
	})
}

// If Lost panics, the load goes on and its lease is renewed.
func TestLossNotifier_Panics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := wiredLocks(locallock.New())
		locker.losing = func(string) loses { return func() <-chan struct{} { panic("adapter") } }
		c := cacheOf(t, func(context.Context, string) (string, error) {
			time.Sleep(time.Second)
			return "v", nil
		}, bellwether.Options{Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locker}})
		wantValue(t, c, "k", "v")
		if n := c.Stats().EngineErrors; n != 1 {
			t.Errorf("%d engine errors, want the panic's", n)
		}
	})
}

// A commit that takes longer than the rest of the lease keeps it. The load ends just before a renewal is due.
func TestLease_KeptDuringTheCommit(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 3, by, bellwether.Options{TTL: time.Minute})
		f.origin.build = 160 * time.Millisecond
		f.get(1, "k") // from now on the build's duration is known
		invalidate(t, f.processes[0], "k")
		time.Sleep(2 * time.Second) // the other near tiers follow
		f.each(func(p *process) { p.store.set(on(takes(450*time.Millisecond), "commit")) })
		if out := f.get(2, "k"); len(out.failed) > 0 || out.values["v2"] != 6 {
			t.Errorf("answers %v, %v; want v2 for all", out.values, out.failed)
		}
		f.wantLoads(t, 2)
		f.each(func(p *process) {
			if n := p.Stats().LeasesLost; n != 0 {
				t.Errorf("%d leases lost", n)
			}
		})
	})
}

// An invalidated load's lease is not renewed: a load that ignores its context may never return.
func TestLease_OfAnInvalidatedLoad(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 1, by, bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{LeaseTTL: time.Second}})
		f.origin.set(func(o *source) { o.build, o.deaf = 10*time.Second, true })
		p := f.processes[0]
		go p.Get(t.Context(), "k")
		time.Sleep(2 * time.Second)
		if _, renewed := p.locker.lengths(); len(renewed) == 0 {
			t.Error("no renewal during the load")
		}
		invalidate(t, p, "k")
		time.Sleep(7 * time.Second)
		if _, renewed := p.locker.lengths(); len(renewed) > 0 {
			t.Errorf("%d renewals after the invalidation", len(renewed))
		}
		f.origin.set(func(o *source) { o.build = 0 })
		time.Sleep(2 * time.Second) // until the loads have returned
	})
}
