package bellwether

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/items"
)

func itemOf(e *engine, v string, epoch uint64, ttl time.Duration) *items.Item {
	it := &items.Item{Lifetime: items.NewLifetime(e.clock.Now(), items.Windows{TTL: ttl}), Kind: driver.KindValue, Value: v, Epoch: epoch, TrustedUntil: forever}
	it.Weigh("k", e.size)
	return it
}

// Outside a flight the near tier takes no older epoch. The result of a flight replaces any epoch.
func TestNear_MovesForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEngine(t, nil)
		for i, step := range []struct {
			put   bool
			epoch uint64
			v     string
			kept  string
		}{
			{true, 5, "a", "a"},
			{false, 4, "b", "a"},  // too late
			{false, 5, "c", "c"},  // the same rebuild, read again
			{false, 6, "d", "d"},  // the next rebuild
			{false, 0, "e", "d"},  // made without the store; the entry before it is missing
			{true, 2, "f", "f"},   // from a store that has lost its data
			{false, 3, "g", "g"},  // the next rebuild there
			{false, 2, "h", "g"},  // too late
			{true, 0, "i", "i"},   // made while the store was silent
			{false, 99, "j", "j"}, // epochs may skip
		} {
			keep := e.near.Advance
			if step.put {
				keep = func(key string, it *items.Item) { e.near.Put(key, it, 1) }
			}
			keep("k", itemOf(e, step.v, step.epoch, time.Hour))
			if got, _ := e.near.Get("k"); got.Value != step.kept {
				t.Fatalf("step %d: after %+v the tier has %s of epoch %d", i, step, got.Value, got.Epoch)
			}
		}
		e.near.Delete("k")
		if it, _ := e.near.Get("k"); it != nil {
			t.Fatal("a deleted item is still there")
		}
		e.near.Put("k", itemOf(e, "old epoch after a delete", 1, time.Hour), 1)
		if it, _ := e.near.Get("k"); it == nil || it.Epoch != 1 {
			t.Fatal("a deleted item holds the place of another")
		}
	})
}

func TestNear_Expiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEngine(t, nil)
		now := e.clock.Now()
		failing := items.Lifetime{Failures: 1, RetryAt: now + time.Second}
		lasting := itemOf(e, "v", 1, endless)
		for key, it := range map[string]*items.Item{
			"value":   {Lifetime: items.NewLifetime(now, items.Windows{TTL: time.Second, StaleIfError: 4 * time.Second}), Kind: driver.KindValue, Epoch: 1},
			"failure": {Lifetime: failing, Epoch: 1},
			"endless": lasting,
		} {
			it.Weigh(key, e.size)
			e.near.Put(key, it, 1)
		}
		for _, step := range []struct {
			at                       time.Duration
			value, failure, forEvery bool
		}{
			{0, true, true, true},
			{5*time.Second - 1, true, true, true},
			{5 * time.Second, false, true, true},
			{time.Second + driver.FailureMemory - 1, false, true, true},
			{time.Second + driver.FailureMemory, false, false, true},
			{time.Hour, false, false, true}, // otter expires once a second, in bubbles too
		} {
			time.Sleep(step.at - (e.clock.Now() - now))
			for key, want := range map[string]bool{"value": step.value, "failure": step.failure, "endless": step.forEvery} {
				if it, _ := e.near.Get(key); (it != nil) != want {
					t.Errorf("%v: %s is there: %t, want %t", step.at, key, it != nil, want)
				}
			}
		}
		synctest.Wait()
		if n := e.near.Bytes(); n != uint64(lasting.Weight()) {
			t.Errorf("%d bytes are counted for an item of %d", n, lasting.Weight())
		}
	})
}

func TestWeigh_NegativeOrHugeSize(t *testing.T) {
	for _, size := range []int{-1, math.MinInt / 2, math.MaxInt/2 + 1, math.MaxInt} {
		synctest.Test(t, func(t *testing.T) {
			e := newTestEngine(t, nil)
			e.size = func(string, any) int { return size }
			e.near.Put("k", itemOf(e, "v", 1, time.Hour), 1)
			synctest.Wait() // the tier evicts in the background
			if got, _ := e.near.Get("k"); (got != nil) != (size <= 0) {
				t.Errorf("size %d: kept in a tier of 1 MiB: %t", size, got != nil)
			}
			if w := e.near.Bytes(); w > 1<<20 {
				t.Errorf("size %d: tier weighs %d", size, w)
			}
		})
	}
}

func TestNear_ForwardUnderConcurrentUse(t *testing.T) {
	e := newTestEngine(t, nil)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(w)))
			var seen uint64
			for i := range 3000 {
				epoch := uint64(i + rng.IntN(50))
				e.near.Advance("k", itemOf(e, "v", epoch, time.Hour))
				it, _ := e.near.Get("k")
				if it == nil || it.Epoch < max(seen, epoch) {
					t.Errorf("got %v after advance(%d), and %d had been seen", it, epoch, seen)
					return
				}
				seen = it.Epoch
			}
		})
	}
	wg.Wait()
}

type hookedStore struct {
	driver.Store
	committed func(key string)
}

func (s *hookedStore) Claim(context.Context, string) (driver.Entry, uint64, error) {
	return driver.Entry{}, 1, nil
}
func (s *hookedStore) Invalidate(context.Context, string) error { return nil }
func (s *hookedStore) Commit(_ context.Context, key string, _ driver.Entry) error {
	s.committed(key)
	return nil
}

func newTestEngine(t *testing.T, store driver.Store) *engine {
	o := Options{Fleet: Fleet{Store: store}, Limits: Limits{NearBytes: 1 << 20}}.settings("Options")
	e := newEngine(o, faceOf[string](nil, Codec{}))
	t.Cleanup(e.close)
	return e
}

func TestEnginePut_CountsBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEngine(t, &hookedStore{committed: func(string) {}})
		for i := range 1000 {
			e.put(t.Context(), fmt.Sprint(i), string(make([]byte, 10_000)), items.Windows{TTL: time.Hour}, 0, nil)
		}
		synctest.Wait() // the tier evicts in the background
		if n := e.near.Bytes(); n > 1<<20 || n < 1<<19 {
			t.Errorf("%d bytes of 1,000 values of 10 kB in a tier of 1 MiB", n)
		}
	})
}

func TestEnginePut_InvalidatedMeanwhile(t *testing.T) {
	s := &hookedStore{}
	e := newTestEngine(t, s)
	s.committed = func(key string) {
		if err := e.invalidate(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
	e.put(t.Context(), "k", "old", items.Windows{TTL: time.Hour}, 0, nil)
	if it, _ := e.near.Get("k"); it != nil {
		t.Errorf("%q is in the near tier after its invalidation", it.Value)
	}
}
