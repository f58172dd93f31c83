package bellwether_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests loads and handlers that ask for other keys.

// Two caches with one slot each do not block each other when their loads ask the other cache.
func TestAsking_TwoCachesThatAskEachOther(t *testing.T) {
	for _, depth := range []int{1, 2, 7} {
		inBubble(t, fmt.Sprint("depth ", depth), func(t *testing.T) {
			var caches [2]*bellwether.Cache[string]
			var gauges [2]gauge
			for i := range caches {
				caches[i] = cacheOf(t, func(ctx context.Context, key string) (string, error) {
					gauges[i].work(10 * time.Millisecond)
					if rest, ok := strings.CutPrefix(key, "+"); ok {
						return caches[1-i].Get(ctx, rest)
					}
					return "v", nil
				}, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 1}})
			}
			var wg sync.WaitGroup
			began := time.Now()
			for n := range 10 {
				for i := range caches {
					wg.Go(func() {
						key := strings.Repeat("+", depth) + fmt.Sprint(i, n)
						wantValue(t, caches[i], key, "v")
					})
				}
			}
			wg.Wait()
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the calls took %v", took)
			}
			for i := range gauges {
				if most := gauges[i].most.Load(); most > 1 {
					t.Errorf("%d loads of cache %d worked at one time, want MaxRebuilds, 1", most, i)
				}
			}
		})
	}
}

// Eight chained loads share one slot. A load that gives up its wait works beside it, and delays new loads.
func TestAsking_ChainOfEight(t *testing.T) {
	for _, patient := range []bool{true, false} {
		inBubble(t, fmt.Sprint("patient ", patient), func(t *testing.T) {
			var g gauge
			var c *bellwether.Cache[string]
			beside := int32(0)
			c = cacheOf(t, func(ctx context.Context, key string) (string, error) {
				if key == "other" {
					beside = g.running.Load()
					return "v", nil
				}
				if rest, ok := strings.CutPrefix(key, "+"); ok {
					asking, cancel := ctx, context.CancelFunc(func() {})
					if !patient {
						asking, cancel = context.WithTimeout(ctx, time.Second)
					}
					c.Get(asking, rest)
					cancel()
				}
				g.work(10 * time.Second)
				return "v", nil
			}, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 1}, MaxWait: time.Hour, RebuildTimeout: time.Hour})
			var wg sync.WaitGroup
			wg.Go(func() { wantValue(t, c, strings.Repeat("+", 7)+"end", "v") })
			time.Sleep(100 * time.Millisecond)
			wg.Go(func() { c.Get(t.Context(), "other") })
			wg.Wait()
			want := int32(1)
			if !patient {
				want = 8
			}
			if most := g.most.Load(); most != want {
				t.Errorf("%d loads worked at one time, want %d", most, want)
			}
			if beside != 0 {
				t.Errorf("another load began beside %d of the chain", beside)
			}
		})
	}
}

func TestAsking_ChainWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c *bellwether.Cache[string]
		var loads atomic.Int32
		c = cacheOf(t, func(ctx context.Context, key string) (string, error) {
			loads.Add(1)
			return c.Get(ctx, "+"+key)
		}, bellwether.Options{})
		began := time.Now()
		_, err := c.Get(t.Context(), "")
		if err == nil || !strings.Contains(err.Error(), "64 loads that wait for each other") || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if n := loads.Load(); n != 64 {
			t.Errorf("%d loads, want 64", n)
		}
	})
}

// A circle of loads through two processes is an error only after RebuildTimeout.
func TestAsking_CircleOfProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10 * time.Second
		engine, next := memstore.New(), map[string]string{"a": "b", "b": "a"}
		var wg sync.WaitGroup
		for _, key := range []string{"a", "b"} {
			var c *bellwether.Cache[string]
			c = cacheOf(t, func(ctx context.Context, key string) (string, error) {
				time.Sleep(time.Second)
				return c.Get(ctx, next[key])
			}, bellwether.Options{TTL: time.Minute, RebuildTimeout: limit, Fleet: bellwether.Fleet{Engine: engine}})
			wg.Go(func() {
				began := time.Now()
				if _, err := c.Get(t.Context(), key); !errors.Is(err, bellwether.ErrRebuildTimeout) {
					t.Errorf("%s: %v, want ErrRebuildTimeout", key, err)
				}
				wantTook(t, began, limit)
			})
		}
		wg.Wait()
	})
}

// Loads that ask for each other's keys in a circle fail at once, in any order.
func TestAsking_Circle(t *testing.T) {
	const said = "would wait for itself"
	for _, batch := range []bool{false, true} {
		for _, two := range []bool{false, true} {
			for _, first := range []string{"a", "b", "a and b"} {
				inBubble(t, fmt.Sprintf("batch %t, two caches %t, %s first", batch, two, first), func(t *testing.T) {
					var caches map[string]*bellwether.Cache[string]
					next := map[string]string{"a": "b", "b": "c", "c": "a"}
					load := func(ctx context.Context, key string) (string, error) {
						time.Sleep(time.Second)
						return caches[next[key]].Get(ctx, next[key])
					}
					make := func() *bellwether.Cache[string] {
						if !batch {
							return cacheOf(t, load, bellwether.Options{})
						}
						c := bellwether.NewBatch(func(ctx context.Context, keys []string) (map[string]string, error) {
							v, err := load(ctx, keys[0])
							if err != nil {
								return nil, err
							}
							return map[string]string{keys[0]: v}, nil
						}, bellwether.Options{TTL: time.Minute})
						t.Cleanup(func() { c.Close() })
						return c
					}
					one := make()
					caches = map[string]*bellwether.Cache[string]{"a": one, "b": one, "c": one}
					if two {
						caches["b"] = make()
					}
					var wg sync.WaitGroup
					began := time.Now()
					for _, key := range strings.Split(first, " and ") {
						wg.Go(func() {
							_, err := caches[key].Get(t.Context(), key)
							if err == nil || !strings.Contains(err.Error(), said) {
								t.Errorf("%s: %v, want %q", key, err, said)
							}
						})
					}
					wg.Wait()
					if took := time.Since(began); took > 4*time.Second {
						t.Errorf("it took %v, want 3 s: each load's second", took)
					}
				})
			}
		}
	}
}

// A goroutine that outlives its load may wait for the flight that waited for the load.
func TestAsking_GoroutineLeftBehind(t *testing.T) {
	for _, by := range []string{"its own cache", "another cache's load"} {
		inBubble(t, by, func(t *testing.T) {
			var first, second *bellwether.Cache[string]
			var behind sync.WaitGroup
			loads := 0
			leave := func(ctx context.Context) {
				behind.Go(func() {
					time.Sleep(500 * time.Millisecond)
					if v, err := first.Get(context.WithoutCancel(ctx), "k"); v != "v" || err != nil {
						t.Errorf("Get = %q, %v; want v", v, err)
					}
				})
			}
			first = cacheOf(t, func(ctx context.Context, key string) (string, error) {
				if loads++; loads > 1 {
					time.Sleep(time.Second)
					return "v", nil
				}
				if by == "its own cache" {
					leave(ctx)
					first.Invalidate(ctx, "k") // the flight loads again
					return "v", nil
				}
				second.Get(ctx, "k")
				time.Sleep(time.Second)
				return "v", nil
			}, bellwether.Options{})
			second = cacheOf(t, func(ctx context.Context, key string) (string, error) {
				leave(ctx)
				return "v", nil
			}, bellwether.Options{})
			wantValue(t, first, "k", "v")
			behind.Wait()
		})
	}
}

func TestAsking_SlowOrigin(t *testing.T) {
	for _, set := range []int{0, 128, 7} {
		inBubbleBeside(t, fmt.Sprint(set), func(t *testing.T) {
			var g gauge
			c := cacheOf(t, func(context.Context, string) (string, error) {
				g.work(time.Second/2 + rand.N(time.Second))
				return "v", nil
			}, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: set}, MaxWait: time.Hour})
			var wg sync.WaitGroup
			for i := range 500 {
				wg.Go(func() { wantValue(t, c, fmt.Sprint(i), "v") })
			}
			wg.Wait()
			if most, want := g.most.Load(), int32(cmp.Or(set, 128)); most != want {
				t.Errorf("MaxRebuilds %d: %d loads at one time, want %d", set, most, want)
			}
		})
	}
}

// A load asks for its own key, whose stale value is invalidated while the load's call waits.
func TestAsking_OwnKeyWhoseStaleValueEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c *bellwether.Cache[string]
		n := 0
		c = bellwether.New(func(ctx context.Context, key string) (string, error) {
			if n++; n == 1 {
				return "v", nil
			}
			return c.Get(context.WithoutCancel(ctx), key) // the invalidation ends ctx
		}, bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, Patience: 500 * time.Millisecond})
		defer c.Close()
		c.Get(t.Context(), "k")
		time.Sleep(1900 * time.Millisecond)
		began := time.Now()
		time.AfterFunc(100*time.Millisecond, func() { c.Invalidate(t.Context(), "k") })
		if v, err := c.Get(t.Context(), "k"); err == nil || !strings.Contains(err.Error(), "own key") || time.Since(began) > 500*time.Millisecond {
			t.Errorf("%q, %v after %v, want an error within Patience", v, err, time.Since(began))
		}
	})
}

// A batch's common load and the loads of its flights are one step of a chain.
func TestAsking_ChainOfBatches(t *testing.T) {
	for n, want := range map[int]bool{63: true, 64: false} {
		synctest.Test(t, func(t *testing.T) {
			var c *bellwether.Cache[string]
			c = bellwether.NewBatch(func(ctx context.Context, keys []string) (map[string]string, error) {
				n, _ := strconv.Atoi(keys[0])
				if n == 0 {
					return map[string]string{"0": "v"}, nil
				}
				m, err := c.GetMany(ctx, []string{strconv.Itoa(n - 1)})
				if err != nil {
					return nil, errors.New(err.Error())
				}
				return map[string]string{keys[0]: m[strconv.Itoa(n-1)]}, nil
			}, bellwether.Options{TTL: time.Minute})
			defer c.Close()
			if _, err := c.GetMany(t.Context(), []string{strconv.Itoa(n)}); (err == nil) != want {
				t.Errorf("a chain of %d loads: %.300v", n+1, err)
			}
		})
	}
}
