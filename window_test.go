package bellwether_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// Calls for a thousand keys within the window are one load, with parallel calls of GetMany.
func TestBatchWindow(t *testing.T) {
	for name, o := range map[string]bellwether.Options{
		"alone":      {},
		"in a fleet": {Fleet: bellwether.Fleet{Engine: memstore.New(), Namespace: "n"}},
	} {
		inBubble(t, name, func(t *testing.T) {
			o.BatchWindow = 5 * time.Millisecond
			origin := &batchSource{}
			c := batchCache(t, origin.load, o)
			began := time.Now()
			var calls sync.WaitGroup
			for i := range 1000 {
				calls.Go(func() {
					time.Sleep(time.Duration(i) * time.Microsecond)
					key := fmt.Sprint(i)
					if i%100 == 0 {
						if values, err := c.GetMany(t.Context(), []string{key, "1", "2"}); len(values) != 3 || err != nil {
							t.Errorf("GetMany: %d values, %v", len(values), err)
						}
						return
					}
					if v, err := c.Get(t.Context(), key); v == "" || err != nil {
						t.Errorf("Get(%s) = %q, %v", key, v, err)
					}
				})
			}
			calls.Wait()
			took, loads := time.Since(began), origin.loads()
			if len(loads) > 2 {
				t.Errorf("%d loads, want 2 at most", len(loads))
			}
			if took > 8*time.Millisecond {
				t.Errorf("the calls took %v, with a window of 5 ms", took)
			}
			if c.Get(t.Context(), "7"); len(origin.loads()) != len(loads) {
				t.Error("a hit loads")
			}
		})
	}
}

func TestBatchWindow_Full(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{}
		c := batchCache(t, origin.load, bellwether.Options{BatchWindow: time.Hour, MaxWait: 2 * time.Hour, Limits: bellwether.Limits{MaxRebuilds: 3}})
		var calls sync.WaitGroup
		for i := range 2500 {
			calls.Go(func() { c.Get(t.Context(), fmt.Sprint(i)) })
		}
		synctest.Wait()
		if n := len(origin.loads()); n != 2 {
			t.Errorf("%d loads before the window's end, want 2", n)
		}
		calls.Wait()
		if n := len(origin.loads()); n != 3 {
			t.Errorf("%d loads, want 3", n)
		}
	})
}

func TestBatchWindow_Close(t *testing.T) {
	aloneAndInAFleet(t, "within the window", func(t *testing.T, fleet bellwether.Fleet) {
		c := bellwether.NewBatch((&batchSource{}).load, bellwether.Options{TTL: time.Minute, BatchWindow: time.Minute, Fleet: fleet})
		began := time.Now()
		failed := make(chan error)
		go func() {
			_, err := c.Get(context.Background(), "k")
			failed <- err
		}()
		synctest.Wait()
		go c.Close()
		if err := <-failed; err != bellwether.ErrClosed || time.Since(began) > 0 {
			t.Errorf("%v after %v, want ErrClosed at once", err, time.Since(began))
		}
		if _, err := c.Get(context.Background(), "k"); err != bellwether.ErrClosed {
			t.Errorf("after Close: %v", err)
		}
		if c.Close(); time.Since(began) > 0 {
			t.Errorf("Close took %v", time.Since(began))
		}
	})
}

// The store answers a batch key by key, and callers leave: one before its key is answered, and one
// after that. The read goes on for the third.
func TestBatchWindow_CallersLeaveDuringTheRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const gap = 100 * time.Millisecond
		store := memstore.New()
		slowly := batchesBy(store, func(ctx context.Context, keys []string, each func(int, driver.Entry, error)) {
			for i, key := range keys {
				select {
				case <-time.After(gap):
					e, err := store.Get(ctx, key)
					each(i, e, err)
				case <-ctx.Done():
					each(i, driver.Entry{}, ctx.Err())
				}
			}
		})
		origin := &batchSource{}
		o := bellwether.Options{TTL: time.Hour, BatchWindow: time.Millisecond}
		o.Fleet = bellwether.Fleet{Store: slowly, Locker: locallock.New(), Namespace: "n"}
		c := batchCache(t, origin.load, o)
		for i, leaves := range []time.Duration{gap / 2, gap + gap/2} {
			ctx, cancel := context.WithTimeout(t.Context(), leaves)
			defer cancel()
			go c.Get(ctx, strconv.Itoa(i))
			synctest.Wait() // the batch has its keys in this order
		}
		if v, err := c.Get(t.Context(), "last"); v == "" || err != nil {
			t.Errorf("Get = %q, %v", v, err)
		}
		if s := c.Stats(); s.Degraded != 0 || s.EngineErrors != 0 {
			t.Errorf("%d loads without a lease, %d engine errors, want 0", s.Degraded, s.EngineErrors)
		}
	})
}

// A context's methods are user code. The window calls them without its lock.
func TestBatchWindow_ContextThatAsksTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bellwether.NewBatch(func(context.Context, []string) (map[string]string, error) {
			return map[string]string{"k": "v", "o": "v"}, nil
		}, bellwether.Options{TTL: time.Minute, BatchWindow: time.Millisecond})
		defer c.Close()
		c.Get(askingContext{t.Context(), func() { c.Get(t.Context(), "o") }}, "k") // a deadlock hangs the test
	})
}

// A key's deserted flight and its next flight may be in one batch. The batch reads the key once.
func TestBatchWindow_KeysOfTheReadAreDistinct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var got []string
		by := batchesBy(store, func(ctx context.Context, keys []string, each func(int, driver.Entry, error)) {
			got = slices.Clone(keys)
			for i, key := range keys {
				e, err := store.Get(ctx, key)
				each(i, e, err)
			}
		})
		c := bellwether.NewBatch(func(context.Context, []string) (map[string]string, error) {
			return map[string]string{"k": "v"}, nil
		}, bellwether.Options{TTL: time.Minute, BatchWindow: 100 * time.Millisecond, Fleet: bellwether.Fleet{Store: by, Namespace: "n"}})
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		c.Get(ctx, "k")
		wantValue(t, c, "k", "v")
		if want := []string{"n:k"}; !slices.Equal(got, want) {
			t.Errorf("GetMany of %q, want %q", got, want)
		}
	})
}
