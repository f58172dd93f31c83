package bellwether_test

import (
	"context"
	"errors"
	"fmt"
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

// This file tests more load than a store can take.

// busyStore returns a store that runs one operation at a time, even without its caller. GetMany is one.
func busyStore(each time.Duration) driver.Store {
	s := wiredTo(memstore.New())
	s.busy = true
	s.set(oneByOne(each, "get", "getmany", "claim", "commit"))
	return s.batching()
}

// oneByOne makes operations wait for each other, also for an operation whose caller has left.
func oneByOne(each time.Duration, ops ...string) fault {
	var mu sync.Mutex
	var free time.Time // end of the operations so far; guarded by mu
	return on(func(ctx context.Context, op string) error {
		mu.Lock()
		if now := time.Now(); free.Before(now) {
			free = now
		}
		free = free.Add(each)
		done := time.Until(free)
		mu.Unlock()
		return takes(done)(ctx, op)
	}, ops...)
}

func slowBatches() driver.Store {
	s := wiredTo(memstore.New())
	s.busy = true
	s.set(on(takes(400*time.Millisecond), "getmany"))
	return s.batching()
}

// An asker makes numbered calls at a rate, for callers that wait for patience.
type asker struct {
	call     func(ctx context.Context, i int) error
	patience time.Duration

	callers    sync.WaitGroup
	calls      int // begun
	goroutines int // maximum
}

// ask makes rate calls a second, and returns their number and the number of answers.
func (a *asker) ask(rate int, during time.Duration) (asked, answered int) {
	var got atomic.Int64
	for start := time.Now(); time.Since(start) < during; time.Sleep(time.Second / time.Duration(rate)) {
		a.calls++
		asked++
		i := a.calls
		a.callers.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), a.patience)
			defer cancel()
			if a.call(ctx, i) == nil {
				got.Add(1)
			}
		})
		a.goroutines = max(a.goroutines, runtime.NumGoroutine())
	}
	time.Sleep(time.Second)
	return asked, int(got.Load())
}

// If callers ask for more than the store can do, the excess times out and the others are answered.
func TestOverload_OfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := busyStore(time.Millisecond)
		c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil },
			bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Store: store, Locker: locallock.New()}})
		a := &asker{patience: 500 * time.Millisecond, call: func(ctx context.Context, i int) error {
			_, err := c.Get(ctx, fmt.Sprint(i))
			return err
		}}
		defer a.callers.Wait()
		const capacity = 1000 / 3
		seconds := 30
		if testing.Short() {
			seconds = 10
		}
		well := time.Duration(seconds) * time.Second / 3
		if asked, answered := a.ask(250, well); answered != asked {
			t.Errorf("at 250 a second %d of %d were answered", answered, asked)
		}
		asked, answered := a.ask(450, time.Duration(seconds)*time.Second)
		t.Logf("at 450 a second %d of %d were answered, with %d goroutines", answered, asked, a.goroutines)
		if answered < seconds*capacity*8/10 {
			t.Errorf("at 450 a second %d of %d were answered, want four fifths of %d", answered, asked, seconds*capacity)
		}
		if a.goroutines > 5000 {
			t.Errorf("%d goroutines", a.goroutines)
		}
		a.ask(250, time.Second)
		if asked, answered := a.ask(250, well); answered != asked {
			t.Errorf("two seconds after, at 250 a second, %d of %d were answered", answered, asked)
		}
	})
}

// An engine that elects serves as many callers under overload: the looks of flights without a slot do
// not take the turns of the elections.
func TestOverload_OfAnEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		store.busy = true
		store.set(oneByOne(time.Millisecond, "get", "getmany", "elect", "commit"))
		engine := &batchingEngine{wiredEngine{store, wiredLocks(store.store.(*memstore.Store))}}
		c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil },
			bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Engine: engine}})
		a := &asker{patience: 500 * time.Millisecond, call: func(ctx context.Context, i int) error {
			_, err := c.Get(ctx, fmt.Sprint(i))
			return err
		}}
		defer a.callers.Wait()
		const capacity, seconds = 1000 / 3, 10 // an election counts as a get too
		asked, answered := a.ask(900, seconds*time.Second)
		t.Logf("at 900 a second %d of %d were answered", answered, asked)
		if answered < seconds*capacity*8/10 {
			t.Errorf("at 900 a second %d of %d were answered, want four fifths of %d", answered, asked, seconds*capacity)
		}
	})
}

// leavers has n callers come, 200 a second, that each wait for 50 ms, and returns the most flights.
func leavers(c *bellwether.Cache[string], n int, call func(ctx context.Context, i int)) (most int) {
	var callers sync.WaitGroup
	defer callers.Wait()
	for i := range n {
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			call(ctx, i)
		})
		time.Sleep(5 * time.Millisecond)
		most = max(most, c.Stats().Flights)
	}
	return most
}

// manyLeavers returns the number of callers in a minute, or in a third of it with -short.
func manyLeavers() int {
	if testing.Short() {
		return 200 * 20
	}
	return 200 * 60
}

func TestOverload_CallersThatLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := wiredTo(memstore.New())
		slow.set(takes(400 * time.Millisecond))
		c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil },
			bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Store: slow, Locker: locallock.New()}})
		if most := leavers(c, manyLeavers(), func(ctx context.Context, i int) { c.Get(ctx, fmt.Sprint(i)) }); most > 100 {
			t.Errorf("%d flights at one time for some 10 callers at one time", most)
		}
	})
}

// The flights that wait for their first look are bounded, also without callers.
func TestOverload_Refreshes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 300
		f := newFleet(t, 1, push, bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, Fleet: bellwether.Fleet{NearTTL: time.Hour}, Limits: bellwether.Limits{MaxQueued: 10}})
		f.origin.build = 0
		p := f.processes[0]
		for i := range keys {
			p.Get(t.Context(), fmt.Sprint(i))
		}
		time.Sleep(2 * time.Second)
		p.store.set(on(func(ctx context.Context, _ string) error { time.Sleep(400 * time.Millisecond); return nil }, "get"))
		for i := range keys {
			if v, err := p.Get(t.Context(), fmt.Sprint(i)); err != nil || v == "" {
				t.Errorf("a stale key: %q, %v", v, err)
			}
		}
		if n := p.Stats().Flights; n != 160 {
			t.Errorf("%d flights wait for the store, want 16 times MaxQueued", n)
		}
		if _, err := p.Get(t.Context(), "new"); !errors.Is(err, bellwether.ErrOverloaded) {
			t.Errorf("one more key, of which there is nothing: %v, want ErrOverloaded", err)
		}
	})
}

// As TestOverload_OfTheStore for GetMany.
func TestOverload_Batches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := busyStore(time.Millisecond)
		c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil },
			bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Store: store, Locker: locallock.New()}})
		a := &asker{patience: 500 * time.Millisecond, call: func(ctx context.Context, i int) error {
			_, err := c.GetMany(ctx, []string{fmt.Sprint(i, "a"), fmt.Sprint(i, "b")})
			return err
		}}
		defer a.callers.Wait()
		const capacity, seconds = 1000 / 5, 10
		asked, answered := a.ask(300, seconds*time.Second)
		t.Logf("at 300 a second %d of %d were answered", answered, asked)
		if answered < seconds*capacity*7/10 {
			t.Errorf("at 300 a second %d of %d were answered, want seven tenths of %d", answered, asked, seconds*capacity)
		}
		if asked, answered := a.ask(150, 2*time.Second); answered != asked {
			t.Errorf("after that, at 150 a second, %d of %d were answered", answered, asked)
		}
	})
}

// As TestOverload_CallersThatLeave for GetMany.
func TestOverload_BatchesThatLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil },
			bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Store: slowBatches(), Locker: locallock.New()}})
		most := leavers(c, manyLeavers(), func(ctx context.Context, i int) {
			c.GetMany(ctx, []string{fmt.Sprint(i, "a"), fmt.Sprint(i, "b")})
		})
		if most > 200 {
			t.Errorf("%d flights at one time for some 20 keys at one time", most)
		}
	})
}

// A GetMany counts as one call that waits for the store. Too many get ErrOverloaded.
func TestOverload_BatchesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil },
			bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Store: slowBatches()}, Limits: bellwether.Limits{MaxQueued: 1, MaxRebuilds: 1 << 14}})
		var wg sync.WaitGroup
		defer wg.Wait()
		many := func(call string) error {
			var keys []string
			for i := range 100 {
				keys = append(keys, fmt.Sprint(call, i))
			}
			_, err := c.GetMany(t.Context(), keys)
			return err
		}
		wg.Go(func() {
			if err := many("first"); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if _, err := c.Get(t.Context(), "one"); err != nil {
			t.Errorf("Get beside one GetMany: %v", err)
		}
		for i := range 15 {
			wg.Go(func() { many(fmt.Sprint("next", i, " ")) })
		}
		synctest.Wait()
		if err := many("one more"); !errors.Is(err, bellwether.ErrOverloaded) {
			t.Errorf("the 17th GetMany: %v, want ErrOverloaded", err)
		}
	})
}
