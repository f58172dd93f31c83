package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

func TestFleet_InvalidationReachesTheOthers(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 3, by, bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{NearTTL: time.Second}})
		f.origin.build = 10 * time.Millisecond
		f.get(1, "k")
		time.Sleep(time.Minute)
		f.get(1, "k") // trusted again for NearTTL
		invalidate(t, f.processes[0], "k")
		time.Sleep(time.Second)
		if got := f.get(10, "k"); got.values["v2"] != 30 || got.slowest > f.origin.build+pollLag(f.origin.build) {
			t.Errorf("NearTTL after the invalidation %v", got.count)
		}
	})
}

// NearTTL counts from the request to the store. A slow reply delays no invalidation.
func TestFleet_InvalidationWhileAReplyIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{NearTTL: time.Second}})
		a, b := f.processes[0], f.processes[1]
		a.Get(t.Context(), "k")
		b.store.reply.Store(int64(400 * time.Millisecond))
		go b.Get(t.Context(), "k") // the store has answered, and the reply is under way
		time.Sleep(time.Millisecond)
		a.Invalidate(t.Context(), "k")
		time.Sleep(time.Second)
		wantValue(t, b, "k", "v2") // NearTTL after the invalidation
	})
}

// An entry that is invalidated before the store's reply arrives is served neither as fresh nor as stale.
func TestInvalidate_WhileAReplyIsUnderWay(t *testing.T) {
	for name, age := range map[string]time.Duration{"fresh": 5 * time.Second, "stale": 20 * time.Second} {
		inBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 1, push, bellwether.Options{TTL: 10 * time.Second, StaleWhileRevalidate: time.Hour, Fleet: bellwether.Fleet{NearTTL: time.Second}})
			p := f.processes[0]
			p.Get(t.Context(), "k")
			time.Sleep(age)
			p.store.reply.Store(int64(400 * time.Millisecond))
			go p.Get(t.Context(), "k")
			time.Sleep(time.Millisecond)
			invalidate(t, p, "k")
			if v, err := p.Get(t.Context(), "k"); v == "v1" || err != nil {
				t.Errorf("Get = %q, %v after the invalidation", v, err)
			}
		})
	}
}

func TestFleet_InvalidateDuringARebuild(t *testing.T) {
	for name, rebuilder := range map[string]int{"here": 0, "there": 1} {
		for _, deaf := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s deaf=%t", name, deaf), func(t *testing.T) {
				everyWay(t, func(t *testing.T, by way) {
					f := newFleet(t, 3, by, bellwether.Options{Fleet: bellwether.Fleet{NearTTL: time.Second}})
					f.origin.set(func(o *source) { o.build, o.deaf = 4*time.Second, deaf })
					done := make(chan string)
					go func() {
						v, _ := f.processes[rebuilder].Get(t.Context(), "k")
						done <- v
					}()
					time.Sleep(2 * time.Second)
					f.processes[0].Invalidate(t.Context(), "k")
					if v := <-done; v == "v1" {
						t.Errorf("the rebuild's caller got %s, loaded before the invalidation", v)
					}
					f.wantNotServed(t, "k", "v1")
					time.Sleep(10 * time.Second)
					// The notice may come before Invalidate returns, whose end then voids the load
					// that the notice began.
					if got := f.get(1, "k"); len(got.values) != 1 || got.values["v2"] != 3 && !(by == notices && got.values["v3"] == 3) {
						t.Errorf("afterwards %v", got.count)
					}
					if f.origin.mostAll > 1 {
						t.Errorf("%d loads ran at one time, want one after the other", f.origin.mostAll)
					}
				})
			})
		}
	}
}

// No stale value is served after an Invalidate during a failing load, which may have no commit.
func TestFleet_InvalidateDuringALoadThatFails(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		ttl   time.Duration
		build time.Duration
	}{
		"error":          {errOrigin, 0, 5 * time.Second},
		"not remembered": {errOrigin, -1, 5 * time.Second},
		"context error":  {context.DeadlineExceeded, 0, 5 * time.Second},
		"timeout":        {nil, 0, time.Hour},
	} {
		inBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 2, push, bellwether.Options{TTL: 10 * time.Second, StaleIfError: time.Hour, ErrorTTL: test.ttl, RebuildTimeout: 6 * time.Second})
			f.get(1, "k")
			time.Sleep(10 * time.Second)
			f.origin.set(func(o *source) { o.build, o.fail = test.build, func(int) error { return test.err } })
			a, b := f.processes[0], f.processes[1]
			go b.Get(t.Context(), "k")
			time.Sleep(time.Second)
			a.Invalidate(t.Context(), "k")
			time.Sleep(2 * time.Second)
			if v, err := b.Get(t.Context(), "k"); err == nil {
				t.Errorf("Get = %q, invalidated before the call began", v)
			}
		})
	}
}

// A key that is invalidated more often than its elections and claims take is still loaded.
func TestFleet_InvalidatedOnTheWayToEachLoad(t *testing.T) {
	for name, by := range map[string]int{"here": 0, "elsewhere": 1} {
		t.Run(name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, w way) {
				f := newFleet(t, 2, w, bellwether.Options{})
				f.origin.set(func(o *source) { o.build = 10 * time.Millisecond })
				slow := takes(3 * time.Millisecond)
				f.processes[0].store.set(slow)
				f.processes[0].locker.set(slow)
				ctx, stop := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				defer wg.Wait()
				defer stop()
				wg.Go(func() {
					for ctx.Err() == nil {
						f.processes[by].Invalidate(context.Background(), "k")
						time.Sleep(2 * time.Millisecond)
					}
				})
				began := time.Now()
				if v, err := f.processes[0].Get(t.Context(), "k"); err != nil || time.Since(began) > 2*time.Second {
					t.Errorf("%q, %v after %v and %d elections", v, err, time.Since(began), f.processes[0].locker.count("acquire"))
				}
			})
		})
	}
}

// A flight that is invalidated while it waits for a slot keeps its place in the queue.
func TestGet_InvalidatedWhileItWaitsForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, func(context.Context, string) (string, error) {
			time.Sleep(100 * time.Millisecond)
			return "v", nil
		}, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 1}, MaxWait: 20 * time.Second})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		for i := range 8 { // others keep the slot busy, so the wait takes 0.8 s
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					c.Get(context.Background(), fmt.Sprint(i, " ", n))
				}
			})
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(150 * time.Millisecond)
				c.Invalidate(context.Background(), "k")
			}
		})
		time.Sleep(time.Second + time.Millisecond)
		began := time.Now()
		// Two of three loads are invalidated, and wait for another 0.9 s. The fifth is the last.
		if v, err := c.Get(t.Context(), "k"); err != nil || time.Since(began) > 5*time.Second {
			t.Errorf("%q, %v after %v", v, err, time.Since(began))
		}
	})
}

// Every load invalidates its own key. Its callers get the fifth load's outcome, also if it is not shared.
func TestInvalidate_ByItsOwnLoad(t *testing.T) {
	for _, cause := range []error{nil, context.Canceled, bellwether.ErrOverloaded, context.DeadlineExceeded, errOrigin} {
		for _, build := range []time.Duration{0, 10 * time.Millisecond} {
			aloneAndInAFleet(t, fmt.Sprint(cause, " after ", build), func(t *testing.T, fleet bellwether.Fleet) {
				var loads atomic.Int64
				var over atomic.Bool
				var c *bellwether.Cache[string]
				c = cacheOf(t, func(ctx context.Context, key string) (string, error) {
					if loads.Add(1); over.Load() {
						return "v", nil
					}
					time.Sleep(build)
					c.Invalidate(context.WithoutCancel(ctx), key)
					return "v", cause
				}, bellwether.Options{MaxWait: 10 * time.Second, RebuildTimeout: 5 * time.Second, Fleet: fleet})
				began := time.Now()
				v, err := c.Get(t.Context(), "k")
				took := time.Since(began)
				if (err == nil) != (cause == nil) || err == nil && v != "v" {
					t.Errorf("Get = %q, %v", v, err)
				}
				time.Sleep(time.Minute)
				over.Store(true)
				time.Sleep(time.Second)
				// An invalidation's notice may follow the next load's claim. The load then does not run.
				if n := loads.Load(); n != 5 && !(n == 4 && fleet.Store != nil) || took > time.Second {
					t.Errorf("%d loads, and Get took %v: %v; want five in a second", n, took, err)
				}
			})
		}
	}
}

// An invalidation of many keys asks for each key, also while the servers of other keys are silent.
func TestInvalidate_ManyKeysWithASilentServer(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		store := wiredTo(memstore.New())
		store.only = func(key string) bool { return strings.HasSuffix(key, "7") }
		c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{Fleet: bellwether.Fleet{Store: store}})
		store.set(on(blackHole, "invalidate"))
		keys := make([]string, 1000)
		for i := range keys {
			keys[i] = fmt.Sprint(i)
		}
		err := c.Invalidate(t.Context(), keys...)
		for _, key := range keys {
			if named := strings.Contains(fmt.Sprint(err), strconv.Quote(key)+":"); named != store.only(key) {
				t.Fatalf("the error names %s: %t", key, named)
			}
		}
	})
}

// Callers' keys that look like the cache's own keys are ordinary keys.
func TestFleet_KeysOfTheCacheItself(t *testing.T) {
	for _, elects := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			engine := memstore.New()
			o := bellwether.Options{TTL: time.Hour, Sweeps: true, Fleet: bellwether.Fleet{Store: engine, Locker: locallock.New()}}
			if elects {
				o.Fleet = bellwether.Fleet{Engine: engine}
			}
			version, loads := "old", 0
			load := func(_ context.Context, key string) (string, error) {
				loads++
				if key == "k" {
					return version, nil
				}
				return `{"since":1,"at":1}`, nil // a log without a sweep
			}
			a, b := cacheOf(t, load, o), cacheOf(t, load, o)
			a.Get(t.Context(), "k")
			version = "new"
			if err := a.InvalidateMatching(t.Context(), bellwether.Match{Prefixes: []string{"k"}}); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				for _, c := range []*bellwether.Cache[string]{a, b} {
					for _, key := range []string{"\x00sweeps", "\x00probe", "\x00hedge\x00k"} {
						c.Get(t.Context(), key)
					}
					if err := c.Ping(t.Context()); err != nil {
						t.Error(err)
					}
					if v, err := c.Get(t.Context(), "k"); v != "new" || err != nil {
						t.Errorf("%q, %v after the invalidation", v, err)
					}
					time.Sleep(2 * time.Second)
				}
			}
			if loads != 5 {
				t.Errorf("%d loads, want 5", loads)
			}
		})
	}
}

// The result of loads that were all invalidated answers only the calls from before the last load. Later calls load.
func TestInvalidated_LastTryIsForItsCallersAlone(t *testing.T) {
	for _, failing := range []bool{false, true} {
		aloneAndInAFleet(t, fmt.Sprint("failing=", failing), func(t *testing.T, fleet bellwether.Fleet) {
			var c *bellwether.Cache[string]
			var late sync.WaitGroup
			wants := func(want string) {
				v, err := c.Get(context.Background(), "k")
				if failing && err != nil {
					v = err.Error()
				}
				if v != want || (err != nil) != failing {
					t.Errorf("Get = %q, %v, want %s", v, err, want)
				}
			}
			loads := 0
			c = cacheOf(t, func(_ context.Context, key string) (string, error) {
				loads++
				v := fmt.Sprint("v", loads)
				if loads <= 5 {
					c.Invalidate(context.Background(), key)
				}
				if loads == 5 {
					late.Go(func() { wants("v6") }) // at the instant at which the load began, after the invalidation
				}
				time.Sleep(time.Second)
				if failing {
					return "", errors.New(v)
				}
				return v, nil
			}, bellwether.Options{TTL: time.Hour, MaxWait: time.Minute, Fleet: fleet})
			wants("v5")
			wants("v6")
			late.Wait()
		})
	}
}

// A stale value that another process replaces by a Set during a slow rebuild is served for NearTTL at most.
func TestOffer_SetElsewhere(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour})
		p := f.processes[0]
		p.Get(t.Context(), "k")
		time.Sleep(2 * time.Second)
		f.origin.set(func(o *source) { o.build = 20 * time.Second })
		wantValue(t, p, "k", "v1") // with a rebuild behind it
		synctest.Wait()
		if err := f.processes[1].Set(t.Context(), "k", "set"); err != nil {
			t.Error(err)
		}
		time.Sleep(1100 * time.Millisecond)
		f.wantNotServed(t, "k", "v1")
		time.Sleep(time.Minute)
	})
}

// A stale value that another process invalidates during a slow rebuild is served for NearTTL at most.
func TestOffer_InvalidatedElsewhere(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 3, by, bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, MaxWait: time.Minute})
		rebuilds, waits, invalidates := f.processes[0], f.processes[1], f.processes[2]
		f.get(1, "k")
		time.Sleep(2 * time.Second)
		f.origin.set(func(o *source) { o.build = 8 * time.Second })
		wantValue(t, rebuilds, "k", "v1") // with a rebuild behind it
		wantValue(t, waits, "k", "v1")
		time.Sleep(500 * time.Millisecond)
		invalidate(t, invalidates, "k")
		time.Sleep(1100 * time.Millisecond)
		f.wantNotServed(t, "k", "v1")
		time.Sleep(time.Minute)
	})
}
