package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests more load than a store or the rebuild slots can take.

// oneByOne makes operations wait for each other, also for an operation whose caller has left.
func oneByOne(each time.Duration) fault {
	var mu sync.Mutex
	var free time.Time // end of the operations so far; guarded by mu
	return func(ctx context.Context, op string) error {
		mu.Lock()
		if now := time.Now(); free.Before(now) {
			free = now
		}
		free = free.Add(each)
		done := time.Until(free)
		mu.Unlock()
		return takes(done)(ctx, op)
	}
}

// An asker makes numbered calls at a rate, for callers that wait for patience.
type asker struct {
	call     func(ctx context.Context, i int) error
	patience time.Duration

	callers    sync.WaitGroup
	calls      int // begun
	before     int // goroutines, of other tests
	goroutines int // maximum beside those
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
		a.goroutines = max(a.goroutines, runtime.NumGoroutine()-a.before)
	}
	time.Sleep(time.Second)
	return asked, int(got.Load())
}

// If callers ask for more than the engines can do, the excess times out and the others are answered. In
// an engine that elects, the looks of flights without a slot do not take the turns of the elections.
func TestOverload_Excess(t *testing.T) {
	get := func(ctx context.Context, c *bellwether.Cache[string], i int) error {
		_, err := c.Get(ctx, fmt.Sprint(i))
		return err
	}
	for name, of := range map[string]struct {
		call                func(ctx context.Context, c *bellwether.Cache[string], i int) error
		elects              bool
		settles             bool // a second after the excess calls may still time out
		well, excess, least int  // calls and answers a second; well 0: not asked
	}{
		"a store": {call: get, settles: true, well: 250, excess: 450, least: 1000 / 3 * 8 / 10},
		"a store, two keys a call": {call: func(ctx context.Context, c *bellwether.Cache[string], i int) error {
			_, err := c.GetMany(ctx, []string{fmt.Sprint(i, "a"), fmt.Sprint(i, "b")})
			return err
		}, well: 150, excess: 300, least: 1000 / 5 * 7 / 10},
		"an engine that elects": {call: get, elects: true, excess: 900, least: 1000 / 3 * 8 / 10}, // an election counts as a get too
	} {
		inBubble(t, name, func(t *testing.T) {
			store := wiredTo(memstore.New())
			store.busy = true
			store.set(on(oneByOne(time.Millisecond), "get", "getmany", "claim", "commit"))
			o := bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Store: store.batching(), Locker: locallock.New()}}
			if of.elects {
				store.set(on(oneByOne(time.Millisecond), "get", "getmany", "elect", "commit"))
				o.Fleet = bellwether.Fleet{Engine: &batchingEngine{wiredEngine{store, wiredLocks(store.store.(*memstore.Store))}}}
			}
			c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil }, o)
			a := &asker{
				before: runtime.NumGoroutine(), patience: 500 * time.Millisecond,
				call: func(ctx context.Context, i int) error { return of.call(ctx, c, i) },
			}
			defer a.callers.Wait()
			seconds := 30
			if testing.Short() {
				seconds = 5
			}
			well := func() {
				if of.well == 0 {
					return
				}
				if asked, answered := a.ask(of.well, time.Duration(seconds)*time.Second/3); answered != asked {
					t.Errorf("at %d a second %d of %d were answered", of.well, answered, asked)
				}
			}
			well()
			asked, answered := a.ask(of.excess, time.Duration(seconds)*time.Second)
			t.Logf("at %d a second %d of %d were answered, with %d goroutines", of.excess, answered, asked, a.goroutines)
			if want := seconds * of.least; answered < want {
				t.Errorf("at %d a second %d of %d were answered, want %d", of.excess, answered, asked, want)
			}
			if a.goroutines > 5000 {
				t.Errorf("%d goroutines", a.goroutines)
			}
			if of.settles {
				a.ask(of.well, time.Second)
			}
			well()
		})
	}
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

func TestOverload_CallersThatLeave(t *testing.T) {
	for name, many := range map[string]bool{"Get": false, "GetMany": true} {
		inBubble(t, name, func(t *testing.T) {
			slow := wiredTo(memstore.New())
			o := bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Store: slow, Locker: locallock.New()}}
			keys := 10 // at one time
			if slow.set(takes(400 * time.Millisecond)); many {
				slow.set(on(takes(400*time.Millisecond), "getmany"))
				slow.busy, o.Fleet.Store, keys = true, slow.batching(), 20
			}
			c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil }, o)
			callers := 200 * 60 // of a minute
			if testing.Short() {
				callers /= 3
			}
			most := leavers(c, callers, func(ctx context.Context, i int) {
				if many {
					c.GetMany(ctx, []string{fmt.Sprint(i, "a"), fmt.Sprint(i, "b")})
				} else {
					c.Get(ctx, fmt.Sprint(i))
				}
			})
			if most > 10*keys {
				t.Errorf("%d flights at one time for some %d keys at one time", most, keys)
			}
		})
	}
}

// The flights that wait for their first look are bounded, also without callers.
func TestOverload_Refreshes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 300
		f := newFleet(t, 2, poll, bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, Fleet: bellwether.Fleet{NearTTL: time.Hour}, Limits: bellwether.Limits{MaxQueued: 10}})
		f.origin.build = 10 * time.Second
		p := f.processes[0]
		f.get(1, "slow") // one of the two flights looks again with each election
		f.origin.build = 0
		for i := range keys {
			p.Get(t.Context(), fmt.Sprint(i))
		}
		time.Sleep(2 * time.Second)
		p.store.set(on(takes(400*time.Millisecond), "get"))
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

// A GetMany counts as one call that waits for the store. Too many get ErrOverloaded.
func TestOverload_BatchesAreBounded(t *testing.T) {
	for name, batching := range map[string]bool{"one request": true, "a request per key": false} {
		inBubble(t, name, func(t *testing.T) {
			slow := wiredTo(memstore.New())
			slow.only = func(key string) bool { return key != "one" }
			slow.set(on(takes(400*time.Millisecond), "get", "getmany"))
			o := bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Store: slow}, Limits: bellwether.Limits{MaxQueued: 1, MaxRebuilds: 1 << 14}}
			if batching {
				o.Fleet.Store = slow.batching()
			}
			c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil }, o)
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
			for i := range 16 {
				wg.Go(func() { many(fmt.Sprint("next", i, " ")) })
			}
			synctest.Wait()
			if err := many("one more"); !errors.Is(err, bellwether.ErrOverloaded) {
				t.Errorf("one more GetMany: %v, want ErrOverloaded", err)
			}
		})
	}
}

func TestOverload_MaxQueuedFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &source{build: 10 * time.Second}
		c := cacheOf(t, o.load, bellwether.Options{TTL: time.Minute, StaleIfError: time.Hour, Limits: bellwether.Limits{MaxRebuilds: 2, MaxQueued: 3}})
		c.Get(t.Context(), "known")
		time.Sleep(2 * time.Minute) // expired, within StaleIfError
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				if _, err := c.Get(context.Background(), fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		start := time.Now()
		if _, err := c.Get(t.Context(), "one more"); !errors.Is(err, bellwether.ErrOverloaded) || time.Since(start) > 0 {
			t.Errorf("err = %v after %v, want ErrOverloaded at once", err, time.Since(start))
		}
		if v, err := c.Get(t.Context(), "known"); v != "v1" || err != nil || time.Since(start) > 0 {
			t.Errorf("%q, %v after %v, want the stale v1 at once", v, err, time.Since(start))
		}
		wg.Wait()
		// ErrOverloaded is not remembered, and all slots are free again.
		if v, err := c.Get(t.Context(), "one more"); err != nil {
			t.Errorf("%q, %v afterwards", v, err)
		}
		for i := range 3 {
			wg.Go(func() { c.Get(context.Background(), fmt.Sprint("again", i)) })
		}
		wg.Wait()
	})
}

// A MaxQueued without a bound turns no call away.
func TestOverload_MaxQueuedWithoutBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bellwether.New(func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{
			TTL: time.Minute, Fleet: bellwether.Fleet{Engine: memstore.New(), Namespace: "n"},
			Limits: bellwether.Limits{MaxQueued: math.MaxInt},
		})
		defer c.Close()
		wantValue(t, c, "k", "v")
	})
}

// A call by a load waits for its rebuild although the queue is full: the load has a slot to lend.
func TestOverload_CallByALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c *bellwether.Cache[string]
		c = cacheOf(t, func(ctx context.Context, key string) (string, error) {
			time.Sleep(time.Second)
			if key == "whole" {
				return c.Get(ctx, "part")
			}
			return key, nil
		}, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 1, MaxQueued: 1}})
		var wg sync.WaitGroup
		wg.Go(func() { wantValue(t, c, "whole", "part") })
		synctest.Wait()
		wg.Go(func() { wantValue(t, c, "other", "other") }) // fills the queue
		wg.Wait()
	})
}

// Refreshes by a load count in MaxQueued: the load does not wait for them.
func TestOverload_RefreshesByALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var c *bellwether.Cache[string]
		c = bellwether.New(func(ctx context.Context, key string) (string, error) {
			if key == "other" {
				for i := range 1000 {
					c.Refresh(ctx, fmt.Sprint(i))
				}
				<-release
			}
			return "v", nil
		}, bellwether.Options{TTL: time.Hour, Limits: bellwether.Limits{MaxRebuilds: 1, MaxQueued: 1}})
		defer c.Close()
		go c.Get(t.Context(), "other")
		time.Sleep(time.Second)
		if n := c.Stats().Flights; n > 2 {
			t.Errorf("%d flights with MaxRebuilds 1 and MaxQueued 1", n)
		}
		close(release)
	})
}
