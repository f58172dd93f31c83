package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
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
)

// This file tests GetMany over engines that are slow, down or at fault.

func TestGetMany_HeldKeyDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, origin := &batchSource{build: 20 * time.Second}, &batchSource{build: time.Second}
		store, locker := memstore.New(), locallock.New()
		o := bellwether.Options{Fleet: bellwether.Fleet{Store: store, Locker: locker}}
		other, c, third := batchCache(t, slow.load, o), batchCache(t, origin.load, o), batchCache(t, origin.load, o)
		go other.Get(t.Context(), "held")
		synctest.Wait()

		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			getAll(t, c, []string{"a", "held", "b"})
			wantTook(t, start, 20*time.Second)
		})
		synctest.Wait()
		for _, p := range []*bellwether.Cache[string]{c, third} {
			wg.Go(func() {
				wantValue(t, p, "b", "b v1")
				wantTook(t, start, time.Second)
			})
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			values, err := third.GetMany(ctx, []string{"held", "a", "b"})
			if failed := failures(t, err); len(values) != 2 || len(failed) != 1 || !errors.Is(failed["held"], context.DeadlineExceeded) {
				t.Errorf("GetMany = %q, %v", values, err)
			}
			wantTook(t, start, 2*time.Second)
		})
		wg.Wait()
		origin.wantLoads(t, "a b")
		slow.wantLoads(t, "held")
	})
}

// An engine that does not answer for one key delays the other keys briefly. The key has its own load.
func TestGetMany_SilentAboutOneKey(t *testing.T) {
	locker := wiredLocks(locallock.New())
	locker.only = func(key string) bool { return key == "silent" }
	locker.set(on(blackHole, "acquire"))
	for name, engines := range map[string]bellwether.Fleet{
		"locker": {Store: memstore.New(), Locker: polling(locker)},
		"store":  {Store: muted(memstore.New(), map[string]bool{"silent": true})},
	} {
		inBubble(t, name, func(t *testing.T) {
			const build, timeout = 2 * time.Second, 500 * time.Millisecond
			origin := &batchSource{build: build}
			c := batchCache(t, origin.load, bellwether.Options{Fleet: engines})
			start := time.Now()
			var wg sync.WaitGroup
			wg.Go(func() {
				getAll(t, c, []string{"a", "silent", "b"})
				wantTook(t, start, build+timeout)
			})
			synctest.Wait()
			wantValue(t, c, "b", "b v1")
			wantTook(t, start, build+20*time.Millisecond)
			wg.Wait()
			origin.wantLoads(t, "a b", "silent")
		})
	}
}

// A key that is ready waits at most EngineTimeout for slow elections of other keys.
func TestGetMany_ManySlowElections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		var n atomic.Int32
		locker := wiredLocks(locallock.New())
		locker.set(on(func(context.Context, string) error {
			time.Sleep(time.Duration(n.Add(1)) * 15 * time.Millisecond % (190 * time.Millisecond))
			return nil
		}, "acquire"))
		c := batchCache(t, origin.load, bellwether.Options{Fleet: bellwether.Fleet{EngineTimeout: time.Second, Store: memstore.New(), Locker: polling(locker)}})
		keys := manyKeys(400)
		start := time.Now()
		getAll(t, c, keys)
		loads := origin.loads()
		if len(loads) < 2 || len(loads) > 8 || time.Since(start) > 4*time.Second {
			t.Errorf("%d loads, %v in all", len(loads), time.Since(start))
		}
	})
}

func TestGetMany_StoreIsDown(t *testing.T) {
	for name, f := range map[string]fault{"refuses": refuse, "hangs": blackHole} {
		inBubble(t, name, func(t *testing.T) {
			origin := &batchSource{build: time.Second}
			ps := newBatchFleet(t, 1, origin, bellwether.Options{})
			ps[0].store.set(f)
			keys := manyKeys(50)
			start := time.Now()
			getAll(t, ps[0], keys)
			if took := time.Since(start); took > 1500*time.Millisecond {
				t.Errorf("took %v", took)
			}
			if n := ps[0].store.count(); n > 3 {
				t.Errorf("%d calls of a store that is down", n)
			}
			origin.wantLoads(t, strings.Join(keys, " "))
		})
	}
	inBubble(t, "one lost packet", func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		ps := newBatchFleet(t, 2, origin, bellwether.Options{})
		keys := manyKeys(50)
		ps[1].GetMany(t.Context(), keys)
		ps[0].store.set(func(context.Context, string) error {
			ps[0].store.set(nil)
			return errRefused
		})
		getAll(t, ps[0], keys)
		if n := len(origin.loads()); n != 1 || ps[0].store.count() != 2 {
			t.Errorf("%d loads, %d calls of the store", n, ps[0].store.count())
		}
	})
}

// The keys of a dead process with many leases are taken over in few loads.
func TestGetMany_TakeoverTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		store, locker := memstore.New(), locallock.New()
		keys := manyKeys(50)
		for _, key := range keys[:40] { // expires: the holder does not renew
			if _, err := locker.TryAcquire(t.Context(), "test:"+key, 5*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		c := batchCache(t, origin.load, bellwether.Options{Fleet: bellwether.Fleet{Store: store, Locker: locker}})
		start := time.Now()
		getAll(t, c, keys)
		loads := origin.loads()
		if len(loads) > 4 || len(loads[0]) != 10 {
			t.Errorf("%d loads: %q", len(loads), loads)
		}
		if took := time.Since(start); took > 7*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A store's adapter that breaks the contract of GetMany does not cost a caller its value.
func TestGetMany_AdapterFaults(t *testing.T) {
	for name, getMany := range map[string]func(keys []string, each func(int, driver.Entry, error)){
		"panics": func(keys []string, each func(int, driver.Entry, error)) {
			each(0, driver.Entry{}, bellwether.ErrNotFound)
			panic("adapter")
		},
		"exits":     func(keys []string, each func(int, driver.Entry, error)) { runtime.Goexit() },
		"says none": func(keys []string, each func(int, driver.Entry, error)) {},
		"says twice": func(keys []string, each func(int, driver.Entry, error)) {
			for range 2 {
				for i := range keys {
					each(i, driver.Entry{}, bellwether.ErrNotFound)
				}
			}
		},
		"of others": func(keys []string, each func(int, driver.Entry, error)) {
			each(len(keys), driver.Entry{}, bellwether.ErrNotFound)
		},
		"of others, on its own goroutine": func(keys []string, each func(int, driver.Entry, error)) {
			var client sync.WaitGroup
			client.Go(func() { each(len(keys), driver.Entry{}, bellwether.ErrNotFound) })
			client.Wait()
		},
		"with an error that panics when it is asked again, on its own goroutine": func(keys []string, each func(int, driver.Entry, error)) {
			var client sync.WaitGroup
			client.Go(func() { each(0, driver.Entry{}, &tiring{asks: 4}) }) // the first time it is asked three times
			client.Wait()
		},
		"late": func(keys []string, each func(int, driver.Entry, error)) {
			time.AfterFunc(time.Second/2, func() { each(0, driver.Entry{}, bellwether.ErrNotFound) })
		},
	} {
		inBubble(t, name, func(t *testing.T) {
			origin := &batchSource{build: time.Second}
			c := batchCache(t, origin.load, bellwether.Options{Fleet: bellwether.Fleet{Store: batchesBy(memstore.New(), func(_ context.Context, keys []string, each func(int, driver.Entry, error)) { getMany(keys, each) })}})
			getAll(t, c, []string{"a", "b"})
		})
	}
}

// A batch whose callers leave asks the store once, or not at all within its window. No member asks by itself.
func TestGetMany_CallersLeaveBeforeTheReply(t *testing.T) {
	for window, want := range map[time.Duration]int{0: 1, 20 * time.Millisecond: 0} {
		inBubble(t, fmt.Sprint(window), func(t *testing.T) {
			store := wiredTo(memstore.New())
			store.set(takes(100 * time.Millisecond))
			c := batchCache(t, (&batchSource{build: time.Millisecond}).load, bellwether.Options{BatchWindow: window, Fleet: bellwether.Fleet{Store: store.batching()}})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			c.GetMany(ctx, manyKeys(500))
			time.Sleep(time.Second)
			if n := store.count(); n != want || c.Stats().Flights != 0 {
				t.Errorf("%d calls of the store, %d flights; want %d and none", n, c.Stats().Flights, want)
			}
		})
	}
}

// A batch without callers is no probe: it does not close the breaker of a dead store.
func TestGetMany_EmptyReadIsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		store.set(blackHole)
		c := batchCache(t, (&batchSource{build: time.Millisecond}).load, bellwether.Options{BatchWindow: 50 * time.Millisecond, Fleet: bellwether.Fleet{Store: store.batching()}})
		for _, key := range manyKeys(3) {
			c.Get(t.Context(), key)
		}
		time.Sleep(1100 * time.Millisecond) // the next call is the breaker's probe
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		c.Get(ctx, "left")
		time.Sleep(100 * time.Millisecond)
		if c.Stats().StoreUp {
			t.Error("the store counts as up")
		}
	})
}

// piecewise returns a GetMany that answers one key after the other, each after pause.
func piecewise(store driver.Store, pause func(key string) time.Duration, running *atomic.Int32) driver.Store {
	return batchesBy(store, func(ctx context.Context, keys []string, each func(int, driver.Entry, error)) {
		running.Add(1)
		defer running.Add(-1)
		for i, key := range keys {
			select {
			case <-time.After(pause(ownKey(key))):
				e, err := store.Get(ctx, key)
				each(i, e, err)
			case <-ctx.Done():
				each(i, driver.Entry{}, ctx.Err())
			}
		}
	})
}

// A read whose callers have all left ends with its next answer, and gives its turn back.
func TestGetMany_AbandonedReadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int32
		store := piecewise(memstore.New(), func(string) time.Duration { return 100 * time.Millisecond }, &running)
		c := batchCache(t, (&batchSource{build: time.Millisecond}).load, bellwether.Options{Fleet: bellwether.Fleet{Store: store}})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		var herd sync.WaitGroup
		for i := range 30 {
			herd.Go(func() {
				var keys []string
				for _, key := range manyKeys(200) {
					keys = append(keys, fmt.Sprint(i, key))
				}
				c.GetMany(ctx, keys)
			})
		}
		herd.Wait()
		time.Sleep(100 * time.Millisecond)
		if n := running.Load(); n > 0 {
			t.Errorf("%d reads for no caller", n)
		}
		began := time.Now()
		c.Get(t.Context(), "patient")
		if took := time.Since(began); took > 150*time.Millisecond {
			t.Errorf("then a call took %v", took)
		}
	})
}

// A store that answers a batch piece by piece is not silent, although other keys have no answer.
func TestGetMany_PiecesAreAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept, origin := memstore.New(), &batchSource{build: time.Millisecond}
		other := batchCache(t, origin.load, bellwether.Options{Fleet: bellwether.Fleet{Store: kept}})
		if _, err := other.GetMany(t.Context(), manyKeys(10)); err != nil {
			t.Fatal(err)
		}
		loaded := len(origin.loads())
		var running atomic.Int32
		silent := wiredTo(kept)
		silent.only, silent.f = func(key string) bool { return strings.HasPrefix(key, "dead") }, blackHole
		store := piecewise(silent, func(string) time.Duration { return 300 * time.Millisecond }, &running)
		c := batchCache(t, origin.load, bellwether.Options{Fleet: bellwether.Fleet{Store: store, EngineTimeout: 500 * time.Millisecond}})
		c.Get(t.Context(), "warm")
		var calls sync.WaitGroup
		for i := range 4 {
			calls.Go(func() {
				time.Sleep(100 * time.Millisecond)
				c.Get(t.Context(), fmt.Sprint("dead", i))
			})
		}
		c.GetMany(t.Context(), manyKeys(10))
		calls.Wait()
		if loads := origin.loads()[loaded:]; len(loads) != 5 { // of warm and of the dead keys
			t.Errorf("loads of %q", loads)
		}
	})
}

// Reads that their callers have abandoned hold no turn at the store. One dead server of the store would otherwise
// delay the keys of the others.
func TestGetMany_AbandonedReadsFreeTheirTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dead := map[string]bool{}
		for i := range 40 {
			dead[fmt.Sprint("dead ", i)] = true
		}
		c := batchCache(t, (&batchSource{}).load, bellwether.Options{Fleet: bellwether.Fleet{Store: muted(memstore.New(), dead), EngineTimeout: time.Second}})
		for key := range dead {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), 8*time.Millisecond)
				defer cancel()
				c.GetMany(ctx, []string{key})
			}()
		}
		time.Sleep(20 * time.Millisecond)
		began := time.Now()
		if _, err := c.Get(t.Context(), "live"); err != nil || time.Since(began) > 10*time.Millisecond {
			t.Errorf("a key of a live server took %v, %v", time.Since(began), err)
		}
	})
}

// A batch counts against MaxQueued until the store has answered, although the first caller has left.
func TestOverload_BatchWithoutItsFirstCaller(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		inBubble(t, fmt.Sprint(leaves), func(t *testing.T) {
			store := wiredTo(memstore.New())
			store.set(takes(300 * time.Millisecond))
			c := batchCache(t, (&batchSource{}).load, bellwether.Options{
				BatchWindow: 5 * time.Millisecond, Limits: bellwether.Limits{MaxQueued: 1},
				Fleet: bellwether.Fleet{Store: store.batching(), EngineTimeout: time.Second},
			})
			var calls sync.WaitGroup
			var rejected atomic.Int32
			for i := range 64 {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				calls.Go(func() { c.Get(ctx, fmt.Sprint("first ", i)) })
				synctest.Wait()
				calls.Go(func() {
					if _, err := c.Get(t.Context(), fmt.Sprint("second ", i)); errors.Is(err, bellwether.ErrOverloaded) {
						rejected.Add(1)
					}
				})
				synctest.Wait()
				if leaves {
					leave()
				}
				time.Sleep(6 * time.Millisecond)
			}
			calls.Wait()
			if n := rejected.Load(); n < 20 {
				t.Errorf("%d of 64 windows found the store's queue full", n)
			}
		})
	}
}

// The time of a common look without an answer counts for each key: the locker's silence has only the rest.
func TestGetMany_TimeOfALookWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		ps := newBatchFleet(t, 1, origin, bellwether.Options{Fleet: bellwether.Fleet{EngineTimeout: time.Second}})
		ps[0].store.set(func(ctx context.Context, _ string) error {
			ps[0].store.set(nil)
			takes(300*time.Millisecond)(ctx, "")
			return errRefused
		})
		ps[0].locker.set(on(blackHole, "acquire"))
		start := time.Now()
		getAll(t, ps[0], []string{"a", "b"})
		wantTook(t, start, 2*time.Second) // EngineTimeout and the load
	})
}

// The end of a common look by Close is no silence of the store.
func TestGetMany_ClosedDuringTheLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		store.set(blackHole)
		c := batchCache(t, (&batchSource{}).load, bellwether.Options{
			Fleet:   bellwether.Fleet{Store: store.batching()},
			OnError: func(key string, err error) { t.Errorf("OnError(%q): %v", key, err) },
		})
		go c.GetMany(context.Background(), []string{"a", "b"})
		synctest.Wait()
		c.Close()
		if n := c.Stats().EngineErrors; n != 0 || store.count() != 1 {
			t.Errorf("%d errors of engines in %d calls, want none in one call", n, store.count())
		}
	})
}

// OnError names a key without an answer, and not a key that the same request has answered.
func TestGetMany_NamesTheSilentKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string // guarded by mu
		var mu sync.Mutex
		c := batchCache(t, (&batchSource{}).load, bellwether.Options{
			Fleet: bellwether.Fleet{Store: batchesBy(memstore.New(), func(_ context.Context, keys []string, each func(int, driver.Entry, error)) {
				for i, key := range keys {
					if ownKey(key) == "silent" {
						each(i, driver.Entry{}, errRefused)
					} else {
						each(i, driver.Entry{}, bellwether.ErrNotFound)
					}
				}
			})},
			OnError: func(key string, err error) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, key)
			},
		})
		getAll(t, c, []string{"a", "silent"})
		mu.Lock()
		defer mu.Unlock()
		if len(told) == 0 || slices.ContainsFunc(told, func(key string) bool { return key != "silent" }) {
			t.Errorf("OnError of %q, want of the silent key alone", told)
		}
	})
}
