package bellwether_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// A closed client of go-redis goes on dialing a lost server once a second.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

const crowd = 100_000

// shortCrowd is the crowd of a herd beside TestGet_AllButOneLeave's: with the race detector a whole one takes 2.5 GB.
func shortCrowd() int {
	if testing.Short() {
		return crowd / 10
	}
	return crowd
}

// named sets the options that a Cache needs. With a store, keys begin with "test:".
func named(o bellwether.Options) bellwether.Options {
	o.TTL = cmp.Or(o.TTL, time.Minute)
	if o.Fleet.Store != nil || o.Fleet.Engine != nil {
		o.Fleet.Namespace = cmp.Or(o.Fleet.Namespace, "test")
	}
	return o
}

// ownKey returns the cache's key of an engine's key (see named).
func ownKey(engineKey string) string {
	return strings.TrimPrefix(strings.TrimPrefix(engineKey, "test"), ":") // the cache's own keys have no colon
}

func cacheOf[V any](t *testing.T, load func(context.Context, string) (V, error), o bellwether.Options) *bellwether.Cache[V] {
	t.Helper()
	c := bellwether.New(load, named(o))
	t.Cleanup(func() { c.Close() })
	return c
}

type answers struct {
	mu    sync.Mutex
	count map[string]int // number of callers by answer and time
}

func (a *answers) add(start time.Time, v string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.count == nil {
		a.count = map[string]int{}
	}
	a.count[fmt.Sprintf("%s %v at %v", v, err, time.Since(start))]++
}

func (a *answers) want(t *testing.T, n int, v string, err error, at time.Duration) {
	t.Helper()
	if key := fmt.Sprintf("%s %v at %v", v, err, at); a.count[key] != n || len(a.count) != 1 {
		t.Errorf("answers %v, want %d times %q", a.count, n, key)
	}
}

func wantValue[V comparable](t *testing.T, c interface {
	Get(ctx context.Context, key string) (V, error)
}, key string, want V) {
	t.Helper()
	if v, err := c.Get(t.Context(), key); v != want || err != nil {
		t.Errorf("Get(%q) = %v, %v, want %v", key, v, err, want)
	}
}

func loaderOf[V any](t *testing.T, load func(context.Context, bellwether.Request[V]) (bellwether.Result[V], error), o bellwether.Options) *bellwether.Cache[V] {
	t.Helper()
	c := bellwether.NewLoader(load, named(o))
	t.Cleanup(func() { c.Close() })
	return c
}

func herd(c *bellwether.Cache[string], n int, key string) *answers {
	a := &answers{}
	start := time.Now()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			v, err := c.Get(context.Background(), key)
			a.add(start, v, err)
		})
	}
	wg.Wait()
	return a
}

func TestGet_AllButOneLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int32
		c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
			loads.Add(1)
			select {
			case <-time.After(2 * time.Second):
				return "v", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}, bellwether.Options{})
		ctx, leave := context.WithCancel(t.Context())
		left, stayed := &answers{}, &answers{}
		start := time.Now()
		var wg sync.WaitGroup
		for range crowd - 1 {
			wg.Go(func() {
				v, err := c.Get(ctx, "k")
				left.add(start, v, err)
			})
		}
		synctest.Wait() // the first caller is one of the leaving callers
		wg.Go(func() {
			v, err := c.Get(t.Context(), "k")
			stayed.add(start, v, err)
		})
		time.Sleep(time.Second)
		leave()
		wg.Wait()
		left.want(t, crowd-1, "", context.Canceled, time.Second)
		stayed.want(t, 1, "v", nil, 2*time.Second)
		if loads.Load() != 1 {
			t.Errorf("%d loads, want 1", loads.Load())
		}
	})
}

// A failed load fails once for all its callers, answers during the back-off, and is tried again once.
func TestGet_FailureUnderHerd(t *testing.T) {
	for name, test := range map[string]struct {
		fail  func() (string, error)
		is    error
		panic bool
	}{
		"error":  {fail: func() (string, error) { return "", errOrigin }, is: errOrigin},
		"panic":  {fail: func() (string, error) { panic(errOrigin) }, is: errOrigin, panic: true},
		"goexit": {fail: func() (string, error) { runtime.Goexit(); return "", nil }, is: bellwether.ErrGoexit},
	} {
		inBubble(t, name, func(t *testing.T) {
			var loads atomic.Int32
			c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
				time.Sleep(2 * time.Second)
				if loads.Add(1) == 1 {
					return test.fail()
				}
				return "v", nil
			}, bellwether.Options{ErrorTTL: 4 * time.Second})

			callers := int32(shortCrowd())
			start := time.Now()
			var wg sync.WaitGroup
			var failed atomic.Int32
			for range callers {
				wg.Go(func() {
					_, err := c.Get(t.Context(), "k")
					if _, ok := errors.AsType[*bellwether.PanicError](err); errors.Is(err, test.is) && ok == test.panic {
						failed.Add(1)
					}
				})
			}
			wg.Wait()
			if failed.Load() != callers || loads.Load() != 1 || time.Since(start) != 2*time.Second {
				t.Fatalf("%d of %d callers failed, %d loads, %v; want all, 1, 2s", failed.Load(), callers, loads.Load(), time.Since(start))
			}
			// The failure is remembered for at least half of ErrorTTL.
			time.Sleep(2*time.Second - 1)
			if _, err := c.Get(t.Context(), "k"); !errors.Is(err, test.is) || loads.Load() != 1 {
				t.Fatalf("err = %v after %d loads, want the remembered failure", err, loads.Load())
			}
			time.Sleep(2*time.Second + 1)
			herd(c, 1000, "k").want(t, 1000, "v", nil, 2*time.Second)
			if loads.Load() != 2 {
				t.Fatalf("%d loads, want one retry", loads.Load())
			}
		})
	}
}

func TestGet_BackOffDoubles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads []time.Duration
		start := time.Now()
		c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
			loads = append(loads, time.Since(start))
			return "", errOrigin
		}, bellwether.Options{ErrorTTL: time.Second, MaxErrorTTL: 32 * time.Second})
		for time.Since(start) < 10*time.Minute {
			c.Get(t.Context(), "k")
			time.Sleep(10 * time.Millisecond)
		}
		for i := 1; i < len(loads); i++ {
			full := time.Second << min(i-1, 5)
			if gap := loads[i] - loads[i-1]; gap < full/2 || gap > full+20*time.Millisecond {
				t.Errorf("pause %d is %v, want between %v and %v", i, gap, full/2, full)
			}
		}
		if len(loads) < 20 || len(loads) > 50 {
			t.Errorf("%d loads in 10 minutes", len(loads))
		}
	})
}

func TestGet_WhatIsNotRememberedDoublesNoPause(t *testing.T) {
	for name, forgotten := range map[string]error{"a context's end": context.Canceled, "one that may be tried at once": advice(0)} {
		aloneAndInAFleet(t, name, func(t *testing.T, fleet bellwether.Fleet) {
			var loads atomic.Int32
			c := cacheOf(t, func(context.Context, string) (string, error) {
				if loads.Add(1) <= 5 {
					return "", forgotten
				}
				return "", errOrigin
			}, bellwether.Options{ErrorTTL: time.Second, Fleet: fleet})
			for range 6 {
				c.Get(t.Context(), "k")
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Second)
			c.Get(t.Context(), "k")
			if n := loads.Load(); n != 7 {
				t.Errorf("%d loads, want six and, after ErrorTTL, one", n)
			}
		})
	}
}

func TestGet_WhatIsNotRememberedTakesNoRoom(t *testing.T) {
	const keys = 100
	for name, test := range map[string]struct {
		bellwether.Options
		err  error
		most uint64 // bytes in the near tier
	}{
		"a context's end":             {err: context.Canceled},
		"a time-out":                  {err: context.DeadlineExceeded},
		"one that may be tried again": {err: advice(0)},
		"no ErrorTTL":                 {Options: bellwether.Options{ErrorTTL: -1}, err: errOrigin},
		"too many":                    {Options: bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 1, MaxQueued: 1}}, most: 1000}, // the values of the admitted loads
	} {
		aloneAndInAFleet(t, name, func(t *testing.T, fleet bellwether.Fleet) {
			o := test.Options
			o.Fleet = fleet
			load := func(context.Context, string) (string, error) {
				time.Sleep(time.Second)
				return "v", test.err
			}
			caches := []*bellwether.Cache[string]{cacheOf(t, load, o)}
			if fleet.Store != nil {
				caches = append(caches, cacheOf(t, load, o))
			}
			failed := atomic.Int32{}
			var wg sync.WaitGroup
			for i := range keys {
				for _, c := range caches {
					wg.Go(func() {
						if _, err := c.Get(t.Context(), fmt.Sprint(i)); err != nil {
							failed.Add(1)
						}
					})
				}
			}
			wg.Wait()
			if failed.Load() < keys/2 {
				t.Fatalf("%d calls failed", failed.Load())
			}
			synctest.Wait()
			for _, c := range caches {
				if n := c.Stats().NearBytes; n > test.most {
					t.Errorf("%d bytes in the near tier", n)
				}
			}
		})
	}
	aloneAndInAFleet(t, "beside a value", func(t *testing.T, fleet bellwether.Fleet) {
		var failure error
		c := cacheOf(t, func(context.Context, string) (string, error) { return "v", failure },
			bellwether.Options{TTL: time.Second, StaleIfError: time.Hour, ErrorTTL: -1, Fleet: fleet})
		for _, failure = range []error{nil, errors.New(strings.Repeat("x", 10_000)), errors.New("another")} {
			wantValue(t, c, "k", "v")
			synctest.Wait()
			if n := c.Stats().NearBytes; n > 500 {
				t.Errorf("%d bytes in the near tier", n)
			}
			time.Sleep(2 * time.Second)
		}
	})
}

func TestGet_NotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int32
		c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
			loads.Add(1)
			return "", fmt.Errorf("user %s: %w", key, bellwether.ErrNotFound)
		}, bellwether.Options{NotFoundTTL: 10 * time.Second})
		for range 3 {
			if _, err := c.Get(t.Context(), "k"); !errors.Is(err, bellwether.ErrNotFound) {
				t.Fatalf("err = %v, want ErrNotFound", err)
			}
		}
		time.Sleep(10*time.Second - 1)
		c.Get(t.Context(), "k")
		if loads.Load() != 1 {
			t.Fatalf("%d loads, want 1 within NotFoundTTL", loads.Load())
		}
		time.Sleep(time.Nanosecond)
		c.Get(t.Context(), "k")
		if s := c.Stats(); loads.Load() != 2 || s.LoadFailures != 0 {
			t.Fatalf("%d loads, %d failures; want 2 and none", loads.Load(), s.LoadFailures)
		}
	})
}

func TestGet_StaleWhileRevalidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int32
		c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
			n := loads.Add(1)
			time.Sleep(2 * time.Second)
			return fmt.Sprint("v", n), nil
		}, bellwether.Options{TTL: 10 * time.Second, StaleWhileRevalidate: 10 * time.Second})
		c.Get(t.Context(), "k")
		time.Sleep(10 * time.Second)
		callers := shortCrowd()
		herd(c, callers, "k").want(t, callers, "v1", nil, 0) // callers do not wait
		time.Sleep(2*time.Second + 1)
		herd(c, 10, "k").want(t, 10, "v2", nil, 0)
		time.Sleep(20 * time.Second) // past both windows
		herd(c, 10, "k").want(t, 10, "v3", nil, 2*time.Second)
		if loads.Load() != 3 {
			t.Errorf("%d loads, want 3", loads.Load())
		}
	})
}

// A caller with a stale value leaves its flight at once, and the rebuild goes on without callers.
func TestGet_StaleWhileRevalidateOfOneCaller(t *testing.T) {
	aloneAndInAFleet(t, "one caller", func(t *testing.T, fleet bellwether.Fleet) {
		if fleet.Store != nil {
			fleet.NearTTL = time.Hour // otherwise the flight offers the store's entry, and goes on for the offer
		}
		var loads atomic.Int32
		c := cacheOf(t, func(context.Context, string) (string, error) {
			n := loads.Add(1)
			time.Sleep(2 * time.Second)
			return fmt.Sprint("v", n), nil
		}, bellwether.Options{TTL: 10 * time.Second, StaleWhileRevalidate: 10 * time.Second, Fleet: fleet})
		c.Get(t.Context(), "k")
		for n := range 20 { // a quick flight may be elected before its caller leaves
			for pause, want := range []string{fmt.Sprint("v", n+1), fmt.Sprint("v", n+2)} {
				time.Sleep([]time.Duration{10 * time.Second, 2*time.Second + 1}[pause])
				began := time.Now()
				if v, err := c.Get(t.Context(), "k"); v != want || err != nil || time.Since(began) > 0 {
					t.Fatalf("%q, %v after %v; want %q at once", v, err, time.Since(began), want)
				}
			}
		}
	})
}

func TestGet_Patience(t *testing.T) {
	for build, want := range map[time.Duration]string{50 * time.Millisecond: "v2 <nil> at 50ms", time.Second: "v1 <nil> at 100ms"} {
		synctest.Test(t, func(t *testing.T) {
			var loads atomic.Int32
			c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
				n := loads.Add(1)
				time.Sleep(build)
				return fmt.Sprint("v", n), nil
			}, bellwether.Options{TTL: 10 * time.Second, StaleWhileRevalidate: 10 * time.Second, Patience: 100 * time.Millisecond})
			c.Get(t.Context(), "k")
			time.Sleep(10 * time.Second)
			if a := herd(c, 100, "k"); a.count[want] != 100 {
				t.Errorf("build %v: %v, want 100 times %q", build, a.count, want)
			}
			time.Sleep(build) // the load does not heed the end of its cache
		})
	}
}

func TestGet_StaleIfError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int32
		var broken atomic.Bool
		c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
			loads.Add(1)
			time.Sleep(time.Second)
			if broken.Load() {
				return "", errOrigin
			}
			return "v", nil
		}, bellwether.Options{TTL: 10 * time.Second, StaleIfError: time.Minute, ErrorTTL: 10 * time.Second})
		c.Get(t.Context(), "k")
		broken.Store(true)
		time.Sleep(10 * time.Second)
		// The first callers after the expiry wait for the failure, and get the stale value.
		herd(c, 100, "k").want(t, 100, "v", nil, time.Second)
		herd(c, 100, "k").want(t, 100, "v", nil, 0)
		if loads.Load() != 2 {
			t.Errorf("%d loads, want 2", loads.Load())
		}
		time.Sleep(10 * time.Second) // the back-off is over: the next load runs in the background
		herd(c, 100, "k").want(t, 100, "v", nil, 0)
		time.Sleep(2 * time.Second)
		if loads.Load() != 3 {
			t.Errorf("%d loads, want 3", loads.Load())
		}
		time.Sleep(time.Minute) // the window is closed
		if _, err := c.Get(t.Context(), "k"); !errors.Is(err, errOrigin) {
			t.Errorf("err = %v, want the origin's", err)
		}
	})
}

func TestGet_MaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
			time.Sleep(10 * time.Second)
			return "v", nil
		}, bellwether.Options{MaxWait: 3 * time.Second})
		herd(c, 100, "k").want(t, 100, "", bellwether.ErrWaitTimeout, 3*time.Second)
		time.Sleep(7 * time.Second) // the rebuild went on
		herd(c, 100, "k").want(t, 100, "v", nil, 0)
	})
}

func TestGet_RebuildTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int32
		release := make(chan struct{})
		c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
			if loads.Add(1) > 1 {
				return "v", nil
			}
			<-release // does not heed its context
			return "late", nil
		}, bellwether.Options{RebuildTimeout: 3 * time.Second, Limits: bellwether.Limits{MaxRebuilds: 1}, MaxWait: 10 * time.Second})
		herd(c, 100, "k").want(t, 100, "", bellwether.ErrRebuildTimeout, 3*time.Second)
		// The load that does not return keeps its slot, so rebuilds stay bounded.
		herd(c, 100, "other").want(t, 100, "", bellwether.ErrWaitTimeout, 10*time.Second)
		close(release)
		synctest.Wait()
		herd(c, 100, "k").want(t, 100, "v", nil, 0)
	})
}

// A load that asks for its own key fails at once. It would wait for itself until RebuildTimeout.
func TestGet_OwnKey(t *testing.T) {
	const said = "a load asks its cache for its own key"
	synctest.Test(t, func(t *testing.T) {
		asks := map[string]string{"self": "self", "other": "plain"}
		var c *bellwether.Cache[string]
		c = cacheOf(t, func(ctx context.Context, key string) (string, error) {
			time.Sleep(time.Second)
			if asks[key] == "" {
				return "v", nil
			}
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			return c.Get(ctx, asks[key])
		}, bellwether.Options{TTL: time.Minute, StaleWhileRevalidate: time.Minute})
		start := time.Now()
		if _, err := c.Get(t.Context(), "self"); err == nil || !strings.Contains(err.Error(), said) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		var both sync.WaitGroup // a load may wait for a key that others ask for
		for range 2 {
			both.Go(func() { wantValue(t, c, "other", "v") })
		}
		both.Wait()

		asks["self"] = ""
		time.Sleep(time.Minute)
		c.Get(t.Context(), "self")
		asks["self"] = "self" // a stale value answers a load that asks for its own key
		time.Sleep(90 * time.Second)
		c.Get(t.Context(), "self")
		time.Sleep(2 * time.Second)
		wantValue(t, c, "self", "v") // the stale value
	})
	synctest.Test(t, func(t *testing.T) {
		var c *bellwether.Cache[string]
		c = bellwether.NewBatch(func(ctx context.Context, keys []string) (map[string]string, error) {
			_, err := c.Get(ctx, "2")
			return nil, err
		}, bellwether.Options{TTL: time.Minute})
		defer c.Close()
		start := time.Now()
		if _, err := c.GetMany(t.Context(), []string{"1", "2", "3"}); err == nil || !strings.Contains(err.Error(), said) || time.Since(start) > time.Second {
			t.Errorf("a batch: %v after %v", err, time.Since(start))
		}
	})
}

// A caller from after an invalidation does not get the failure of an earlier load.
func TestInvalidate_DuringEachLoadThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int32
		c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
			n := loads.Add(1)
			time.Sleep(5 * time.Second) // does not heed its context
			return "", fmt.Errorf("failure %d", n)
		}, bellwether.Options{})
		get := func() <-chan string {
			failure := make(chan string, 1)
			go func() {
				_, err := c.Get(t.Context(), "k")
				failure <- fmt.Sprint(err)
			}()
			return failure
		}
		first := get()
		time.Sleep(time.Second)
		for range 4 {
			c.Invalidate(t.Context(), "k")
			time.Sleep(5 * time.Second)
		}
		c.Invalidate(t.Context(), "k")
		late := get()
		if got := <-first; got != "failure 5" {
			t.Errorf("the first caller got %q, want the failure of the fifth load", got)
		}
		if got := <-late; got != "failure 6" {
			t.Errorf("a caller from after the last invalidation got %q, want the failure of a load from after it", got)
		}
	})
}

// Invalidate calls the store although the store's breaker is open.
func TestInvalidate_WhileTheBreakerIsOpen(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, bellwether.Options{TTL: time.Hour})
		a, b := f.processes[0], f.processes[1]
		f.get(1, "k")
		b.store.set(on(refuse, "claim", "commit", "invalidate"))
		for i := 0; b.Stats().StoreUp; i++ {
			b.Get(t.Context(), fmt.Sprint(i))
		}
		b.store.set(nil) // the store is up again, and the process does not know yet
		invalidate(t, b, "k")
		time.Sleep(time.Second + 1)
		if v, err := a.Get(t.Context(), "k"); v == "v1" || err != nil {
			t.Errorf("another process got %q, %v after NearTTL", v, err)
		}
	})
}

func TestNewLoader_Freshness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int32
		c := loaderOf(t, func(_ context.Context, r bellwether.Request[string]) (bellwether.Result[string], error) {
			loads.Add(1)
			result := bellwether.Result[string]{Value: "v"}
			switch r.Key {
			case "short":
				result.Freshness = &bellwether.Freshness{TTL: time.Second}
			case "never":
				result.Freshness = &bellwether.Freshness{}
			case "absent":
				result.Freshness = &bellwether.Freshness{TTL: time.Second}
				return result, bellwether.ErrNotFound
			}
			return result, nil
		}, bellwether.Options{TTL: time.Hour})
		for key, want := range map[string]int32{"short": 2, "never": 3, "absent": 2, "plain": 1} {
			loads.Store(0)
			c.Get(t.Context(), key)
			c.Get(t.Context(), key)
			time.Sleep(time.Second)
			c.Get(t.Context(), key)
			if loads.Load() != want {
				t.Errorf("%s: %d loads, want %d", key, loads.Load(), want)
			}
		}
	})
}

type traceKey struct{}

func TestGet_LoadKeepsTheValuesOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
			time.Sleep(time.Second)
			_, limited := ctx.Deadline()
			return fmt.Sprint(ctx.Value(traceKey{}), ctx.Err(), limited), nil
		}, bellwether.Options{})
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), traceKey{}, "trace"))
		go func() {
			time.Sleep(time.Millisecond)
			cancel()
		}()
		c.Get(ctx, "k")
		wantValue(t, c, "k", "trace<nil> true")
	})
}

func TestGetFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, func(ctx context.Context, key string) (string, error) { return "bound", nil }, bellwether.Options{})
		own := func(ctx context.Context, key string) (string, error) { return "own " + key, nil }
		if v, err := c.GetFunc(t.Context(), "k", own); v != "own k" || err != nil {
			t.Errorf("GetFunc = %q, %v", v, err)
		}
		if v, _ := c.Get(t.Context(), "k"); v != "own k" {
			t.Errorf("Get = %q, want the value that is there", v)
		}
	})
}

// The panic names the invalid field, its value and the valid range.
func TestNew_BadOptions(t *testing.T) {
	load := func(context.Context, string) (string, error) { return "", nil }
	of := func(o bellwether.Options) func() {
		return func() {
			o.TTL = time.Second
			bellwether.New(load, o)
		}
	}
	ofHTTP := func(o bellwether.HTTPOptions) func() { return func() { bellwether.NewMiddleware(o) } }
	for want, construct := range map[string]func(){
		"New needs a load":                                      func() { bellwether.New[string](nil, bellwether.Options{TTL: time.Second}) },
		"Options.TTL is 0s; it must be positive":                func() { bellwether.New(load, bellwether.Options{}) },
		"Options.TTL is -1ns; it must be positive":              func() { bellwether.New(load, bellwether.Options{TTL: -1}) },
		"Options.MaxErrorTTL is -1ns; it must not be":           of(bellwether.Options{MaxErrorTTL: -1}),
		"Options.MaxErrorTTL is -2ns; it must not be":           of(bellwether.Options{ErrorTTL: -1, MaxErrorTTL: -2}),
		"Options.RebuildTimeout is -1ns; it must not":           of(bellwether.Options{RebuildTimeout: -1}),
		"Options.Fleet.LeaseTTL is -1ns; it must not":           of(bellwether.Options{Fleet: bellwether.Fleet{LeaseTTL: -1}}),
		"Options.TTL is 60ns; it must have a unit":              func() { bellwether.New(load, bellwether.Options{TTL: 60}) },
		"Options.Fleet.LeaseTTL is 5ns; it must have a u":       of(bellwether.Options{Fleet: bellwether.Fleet{LeaseTTL: 5}}),
		"Options.Fleet.NearTTL is 999ns; it must have a ":       of(bellwether.Options{Fleet: bellwether.Fleet{NearTTL: 999}}),
		"HTTPOptions.HitForMissTTL is 10ns; it must have":       ofHTTP(bellwether.HTTPOptions{HitForMissTTL: 10}),
		"HTTPOptions.Fleet.LeaseTTL is 9ms; it must be at":      ofHTTP(bellwether.HTTPOptions{Fleet: bellwether.Fleet{LeaseTTL: 9 * time.Millisecond}}),
		"Options.Fleet.EngineTimeout is -1ns; it must not":      of(bellwether.Options{Fleet: bellwether.Fleet{EngineTimeout: -1}}),
		"Options.EarlyRefresh is NaN; it must be":               of(bellwether.Options{EarlyRefresh: math.NaN()}),
		"Options.HedgeShare is -1; it must be":                  of(bellwether.Options{HedgeShare: -1}),
		"HTTPOptions.MaxHeldBytes is -1; it must not be":        ofHTTP(bellwether.HTTPOptions{MaxHeldBytes: -1}),
		"HTTPOptions.MaxStreams is -1; it must not":             ofHTTP(bellwether.HTTPOptions{MaxStreams: -1}),
		"Options.MaxWait is -1ns; it must not be":               of(bellwether.Options{MaxWait: -1}),
		"Options.Limits.MaxRebuilds is -1; it must not be":      of(bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: -1}}),
		"Options.Limits.MaxQueued is -2; it must not be":        of(bellwether.Options{Limits: bellwether.Limits{MaxQueued: -2}}),
		"Options.Limits.NearBytes is -3; it must not be":        of(bellwether.Options{Limits: bellwether.Limits{NearBytes: -3}}),
		"Options.EarlyRefresh is +Inf; it must be":              of(bellwether.Options{EarlyRefresh: math.Inf(1)}),
		"Options.Hedge is 1; it must be a number":               of(bellwether.Options{Hedge: 1}),
		"Options.Hedge is NaN; it must be a number":             of(bellwether.Options{Hedge: math.NaN()}),
		"Options.Hedge is +Inf; it must be a number":            of(bellwether.Options{Hedge: math.Inf(1)}),
		"Options.HedgeShare is 2; it must be":                   of(bellwether.Options{HedgeShare: 2}),
		"Options.HedgeShare is NaN; it must be":                 of(bellwether.Options{HedgeShare: math.NaN()}),
		"Options.Hedge is 3; it must be zero without":           of(bellwether.Options{Hedge: 3, Fleet: bellwether.Fleet{Store: memstore.New()}}),
		"Options.TTLJitter is 1; it must be":                    of(bellwether.Options{TTLJitter: 1}),
		"Options.TTLJitter is NaN; it must be":                  of(bellwether.Options{TTLJitter: math.NaN()}),
		`Options.Fleet.Namespace is "a:b"; it must have`:        of(bellwether.Options{Fleet: bellwether.Fleet{Namespace: "a:b"}}),
		"Options.Fleet.Store is a nil *memstore.Store; it must": of(bellwether.Options{Fleet: bellwether.Fleet{Store: (*memstore.Store)(nil)}}),
		"Options.Fleet.Locker is a nil *locallock.Locker; it m": of(bellwether.Options{Fleet: bellwether.Fleet{Store: memstore.New(), Locker: (*locallock.Locker)(nil)}}),
		"Options.Fleet.Locker is set without a Store":           of(bellwether.Options{Fleet: bellwether.Fleet{Locker: struct{ driver.Locker }{}}}),
		"Options.Fleet.Engine is a nil *memstore.Store; it mus": of(bellwether.Options{Fleet: bellwether.Fleet{Engine: (*memstore.Store)(nil)}}),
		"Options.Fleet.Engine is set beside Store or Lock":      of(bellwether.Options{Fleet: bellwether.Fleet{Engine: memstore.New(), Locker: locallock.New()}}),
		"HTTPOptions.Fleet.Engine is set beside Store or ":      ofHTTP(bellwether.HTTPOptions{Fleet: bellwether.Fleet{Engine: memstore.New(), Store: memstore.New()}}),
		"HTTPOptions.Limits.MaxQueued is -1; it must not":       ofHTTP(bellwether.HTTPOptions{Limits: bellwether.Limits{MaxQueued: -1}}),
		`Options.Fleet.Namespace is ""; it must be set`:         of(bellwether.Options{Fleet: bellwether.Fleet{Store: memstore.New()}}),
		`Options.Fleet.Namespace is ""; it must be set wh`: func() {
			bellwether.NewBatch(func(context.Context, []string) (map[string]string, error) { return nil, nil }, bellwether.Options{TTL: time.Second, Fleet: bellwether.Fleet{Store: memstore.New()}})
		},
		"Options.Codec is half set; it must have both":    of(bellwether.Options{Codec: bellwether.Codec{Marshal: func(any) ([]byte, error) { return nil, nil }}}),
		"HTTPOptions.MaxBodyBytes is -1; it must not be":  ofHTTP(bellwether.HTTPOptions{MaxBodyBytes: -1}),
		"HTTPOptions.HitForMissTTL is -1ns; it must":      ofHTTP(bellwether.HTTPOptions{HitForMissTTL: -1}),
		`HTTPOptions.TargetedFields[1] is "CDN-Cache-Con`: ofHTTP(bellwether.HTTPOptions{TargetedFields: []string{"A", "CDN-Cache-Control:"}}),
		`HTTPOptions.TargetedFields[0] is "A, B"; it mus`: ofHTTP(bellwether.HTTPOptions{TargetedFields: []string{"A, B"}}),
		`HTTPOptions.RetargetingFields[0] is "A:"; it mu`: ofHTTP(bellwether.HTTPOptions{RetargetingFields: []string{"A:"}}),
		`HTTPOptions.HiddenFields[1] is " A"; it must be`: ofHTTP(bellwether.HTTPOptions{HiddenFields: []string{"A", " A"}}),
		`HTTPOptions.TargetedFields[0] is ""; it must be`: ofHTTP(bellwether.HTTPOptions{TargetedFields: []string{""}}),
		"HTTPOptions.HeuristicFraction is 2; it must":     ofHTTP(bellwether.HTTPOptions{HeuristicFraction: 2}),
		"HTTPOptions.HeuristicFraction is NaN; it mus":    ofHTTP(bellwether.HTTPOptions{HeuristicFraction: math.NaN()}),

		"Options.MaxErrorTTL is 500ms; it must not be below ErrorTTL, 1s;": of(bellwether.Options{MaxErrorTTL: 500 * time.Millisecond}),
	} {
		func() {
			defer func() {
				if p := fmt.Sprint(recover()); !strings.HasPrefix(p, "bellwether: "+want) {
					t.Errorf("the panic is %q, want %q", p, want)
				}
			}()
			construct()
		}()
	}
	bellwether.New(load, bellwether.Options{TTL: time.Second, Fleet: bellwether.Fleet{LeaseTTL: 10 * time.Millisecond}}).Close() // the shortest lease
}

// A negative value switches an option off, where zero means another default.
func TestNew_NegativeIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int32
		c := cacheOf(t, func(_ context.Context, key string) (string, error) {
			time.Sleep(time.Second)
			switch n := loads.Add(1); {
			case key == "absent":
				return "", bellwether.ErrNotFound
			case key == "failing" && n > 1:
				return "", errOrigin
			}
			return "v", nil
		}, bellwether.Options{
			TTL: time.Minute, StaleWhileRevalidate: -1, StaleIfError: -1, NotFoundTTL: -1, ErrorTTL: -1,
			Patience: -1, EarlyRefresh: -1, TTLJitter: -1, Hedge: -1, Fleet: bellwether.Fleet{NearTTL: -1}, // NearTTL is for a Store
		})
		get := func(key string, wantLoads int32, want error) {
			t.Helper()
			loads.Store(0)
			if key == "failing" && want != nil {
				loads.Store(1)
			}
			before := loads.Load()
			if _, err := c.Get(t.Context(), key); !errors.Is(err, want) {
				t.Errorf("Get(%q): %v, want %v", key, err, want)
			}
			if n := loads.Load() - before; n != wantLoads {
				t.Errorf("Get(%q) was %d loads, want %d", key, n, wantLoads)
			}
		}
		for range 2 {
			get("absent", 1, bellwether.ErrNotFound) // NotFoundTTL
		}
		get("present", 1, nil)
		time.Sleep(time.Minute - time.Millisecond)
		get("present", 0, nil) // TTLJitter, EarlyRefresh
		time.Sleep(time.Millisecond)
		get("present", 1, nil) // StaleWhileRevalidate
		get("failing", 1, nil)
		time.Sleep(time.Minute)
		for range 2 {
			get("failing", 1, errOrigin) // StaleIfError, ErrorTTL
		}
	})
	// In a fleet, concurrent callers share one load without NotFoundTTL too. Callers after the thing was created
	// share one load.
	for _, by := range []way{push, poll, notices, atOnce} {
		inBubble(t, fmt.Sprint("way ", by), func(t *testing.T) {
			f := newFleet(t, 3, by, bellwether.Options{TTL: time.Minute, NotFoundTTL: -1})
			var exists atomic.Bool
			f.origin.fail = func(int) error {
				if exists.Load() {
					return nil
				}
				return bellwether.ErrNotFound
			}
			for i := range 3 {
				exists.Store(i == 2)
				before, _ := f.origin.count()
				got := f.get(10, "k")
				loads, _ := f.origin.count()
				if failed := len(got.failed); loads-before != 1 || failed != 30 && !exists.Load() || failed > 0 && exists.Load() {
					t.Errorf("herd %d: %d loads, and %d of 30 were told that there is nothing", i, loads-before, failed)
				}
				time.Sleep(500 * time.Millisecond)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{
			TTL: -1, MaxPassThrough: -1, HeuristicFraction: -1,
		}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Last-Modified", time.Now().Add(-24*time.Hour).UTC().Format(http.TimeFormat))
		})
		for range 2 {
			s.get("http://example.com/")
		}
		if n := s.calls.Load(); n != 2 {
			t.Errorf("%d calls of the handler, want 2: neither TTL nor HeuristicFraction makes the page fresh", n)
		}
	})
}

func TestGet_NearTierIsBounded(t *testing.T) {
	c := cacheOf(t, func(ctx context.Context, key string) ([]byte, error) {
		return make([]byte, 10_000), nil
	}, bellwether.Options{Limits: bellwether.Limits{NearBytes: 1 << 20}})
	for i := range 1000 {
		if _, err := c.Get(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.Stats().NearBytes; got > 1<<20+100_000 || got < 1<<19 {
		t.Errorf("near tier holds %d bytes, want at most 1 MiB and a good part of it", got)
	}
}

func TestGet_HitsDoNotAllocate(t *testing.T) {
	c := cacheOf(t, func(ctx context.Context, key string) (string, error) { return "v", nil }, bellwether.Options{})
	c.Get(t.Context(), "k")
	if n := testing.AllocsPerRun(1000, func() { c.Get(t.Context(), "k") }); n != 0 {
		t.Errorf("%v allocations a hit, want 0", n)
	}
}

// Any number of loads may ask their cache for other keys, because they lend their slots.
func TestGet_LoadsThatAskForOtherKeys(t *testing.T) {
	const slots = 4
	type caches struct{ first, second *bellwether.Cache[string] }
	for name, test := range map[string]struct {
		load   func(ctx context.Context, c caches, key string) (string, error)
		before bool  // children are also asked for directly, and wait for slots
		over   int32 // number of loads that may go on before their slots are back
	}{
		"one each": {load: func(ctx context.Context, c caches, key string) (string, error) {
			return c.first.Get(ctx, "child of "+key)
		}},
		"all the same": {load: func(ctx context.Context, c caches, _ string) (string, error) {
			return c.first.Get(ctx, "child")
		}},
		"one that others have asked for": {before: true, load: func(ctx context.Context, c caches, key string) (string, error) {
			return c.first.Get(ctx, "child of "+key)
		}},
		"many": {over: slots, load: func(ctx context.Context, c caches, key string) (string, error) {
			found, err := c.first.GetMany(ctx, []string{"child a of " + key, "child b of " + key, "child"})
			return found["child"], err
		}},
		"many calls": {over: slots, load: func(ctx context.Context, c caches, key string) (string, error) {
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() { c.first.Get(ctx, fmt.Sprint("child ", i, " of ", key)) })
			}
			wg.Wait()
			return "v", nil
		}},
		"by way of another cache": {load: func(ctx context.Context, c caches, key string) (string, error) {
			return c.second.Get(ctx, key)
		}},
		"down to a depth": {load: func(ctx context.Context, c caches, key string) (string, error) {
			return c.first.Get(ctx, "parent of "+key[:len(key)-1])
		}},
	} {
		for _, batch := range []bool{false, true} {
			inBubble(t, fmt.Sprint(name, ", a load of many ", batch), func(t *testing.T) {
				var g gauge
				works := func() { g.work(10 * time.Millisecond) }
				var c caches
				one := func(ctx context.Context, key string) (string, error) {
					works()
					if strings.HasPrefix(key, "parent") && !strings.HasSuffix(key, " of parent") {
						return test.load(ctx, c, key)
					}
					return "v", nil
				}
				o := bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: slots, MaxQueued: 100}}
				c.first = cacheOf(t, one, o)
				if batch {
					o.TTL = time.Hour
					c.first = bellwether.NewBatch(func(ctx context.Context, keys []string) (map[string]string, error) {
						found := map[string]string{}
						for _, key := range keys {
							v, err := one(ctx, key)
							if err != nil {
								return nil, err
							}
							found[key] = v
						}
						return found, nil
					}, o)
					t.Cleanup(func() { c.first.Close() })
				}
				c.second = cacheOf(t, func(ctx context.Context, key string) (string, error) {
					return c.first.Get(ctx, "child of "+key)
				}, bellwether.Options{})

				var wg sync.WaitGroup
				began := time.Now()
				get := func(key string) {
					wg.Go(func() { wantValue(t, c.first, key, "v") })
				}
				for i := range 3 * slots {
					get(fmt.Sprint("parent", i))
				}
				if test.before {
					synctest.Wait() // the first parents run, the others wait
					for i := range 3 * slots {
						get(fmt.Sprint("child of parent", i))
					}
				}
				wg.Wait()
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("the calls took %v", took)
				}
				if n := g.most.Load(); n > slots+test.over {
					t.Errorf("%d loads worked at one time, want %d at most", n, slots+test.over)
				}
			})
		}
	}
}

// A Codec encodes values of all types. Without a Codec, strings and bytes are stored unchanged.
func TestCodec_OfStringsAndBytes(t *testing.T) {
	for _, codec := range []bellwether.Codec{{}, {Marshal: json.Marshal, Unmarshal: json.Unmarshal}} {
		store := memstore.New()
		o := bellwether.Options{Fleet: bellwether.Fleet{Store: store}, Codec: codec}
		wants := map[string]string{"text": "v", "bytes": "v"}
		if codec.Marshal != nil {
			wants = map[string]string{"text": `"v"`, "bytes": `"dg=="`}
		}
		for range 2 { // two processes
			texts := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil }, o)
			bytes := cacheOf(t, func(context.Context, string) ([]byte, error) { return []byte("v"), nil }, o)
			wantValue(t, texts, "text", "v")
			if v, err := bytes.Get(t.Context(), "bytes"); string(v) != "v" || err != nil {
				t.Errorf("bytes came back as %q, %v", v, err)
			}
		}
		for key, want := range wants {
			if entry, err := store.Get(t.Context(), "test:"+key); string(entry.Value) != want || err != nil {
				t.Errorf("%s: the store has %q, %v, want %q", key, entry.Value, err, want)
			}
		}
	}
}

// A lateContext calls do between a call's look into the near tier and its look for a flight.
type lateContext struct {
	context.Context
	do func()
}

func (c lateContext) Err() error {
	c.do()
	return c.Context.Err()
}

// A halfDone is a context with Done and without an error.
type halfDone struct {
	context.Context
	done chan struct{}
}

func (c halfDone) Done() <-chan struct{} { return c.done }

func TestGet_ContextThatIsDoneWithoutAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{})
		f.origin.set(func(o *source) { o.build = time.Minute })
		ctx := halfDone{t.Context(), make(chan struct{})}
		time.AfterFunc(time.Second, func() { close(ctx.done) })
		_, err := f.processes[0].Get(ctx, "k")
		_, errs := f.processes[0].GetMany(ctx, []string{"k", "l"})
		if !errors.Is(err, context.Canceled) || !errors.Is(errs, context.Canceled) {
			t.Errorf("%v, %v", err, errs)
		}
	})
}

// A call that misses just before a flight lands, and begins a flight just after, is a hit.
func TestStats_HitInTheLastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{})
		p := f.processes[0]
		for name, get := range map[string]func(ctx context.Context, key string) error{
			"Get":     func(ctx context.Context, key string) error { _, err := p.Get(ctx, key); return err },
			"GetMany": func(ctx context.Context, key string) error { _, err := p.GetMany(ctx, []string{key}); return err },
		} {
			before := p.Stats()
			ctx := lateContext{t.Context(), sync.OnceFunc(func() { p.Get(t.Context(), name) })}
			if err := get(ctx, name); err != nil {
				t.Error(err)
			}
			s := p.Stats()
			if hits, misses, loads := s.Hits-before.Hits, s.Misses-before.Misses, s.Loads-before.Loads; hits != 1 || misses != 1 || loads != 1 {
				t.Errorf("%s: %d hits, %d misses, %d loads; want 1 of each", name, hits, misses, loads)
			}
		}
	})
}
