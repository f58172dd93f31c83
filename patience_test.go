package bellwether_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// inPieces returns a GetMany that answers piece keys after each pause, and is silent after answers pieces.
func inPieces(store driver.Store, piece, answers int, pause time.Duration) getsMany {
	return func(ctx context.Context, keys []string, each func(i int, e driver.Entry, err error)) {
		for i, key := range keys {
			if i%piece == 0 && i/piece < answers {
				takes(pause)(ctx, "")
			}
			if i/piece >= answers {
				<-ctx.Done()
			}
			if err := ctx.Err(); err != nil {
				each(i, driver.Entry{}, err)
				continue
			}
			e, err := store.Get(ctx, key)
			each(i, e, err)
		}
	}
}

// A store that keeps answering a GetMany is not silent until EngineTimeout after its last answer.
func TestGetMany_StoreAnswersInPieces(t *testing.T) {
	for name, c := range map[string]struct {
		answers, loads int
		took           time.Duration
	}{
		"to the end":        {10, 0, 3 * time.Second},
		"and goes silent":   {4, 60, 4*300*time.Millisecond + 500*time.Millisecond},
		"silent from start": {0, 100, 500 * time.Millisecond},
	} {
		inBubble(t, name, func(t *testing.T) {
			store := memstore.New()
			var keys []string
			for i := range 100 {
				key := fmt.Sprint(i)
				keys = append(keys, key)
				if _, err := driver.Set(t.Context(), store, "test:"+key, driver.Entry{Kind: driver.KindValue, Value: []byte("stored"), TTL: time.Hour}); err != nil {
					t.Fatal(err)
				}
			}
			var loads atomic.Int64
			c2 := bellwether.NewBatch(func(_ context.Context, keys []string) (map[string]string, error) {
				loads.Add(int64(len(keys)))
				values := map[string]string{}
				for _, key := range keys {
					values[key] = "loaded"
				}
				return values, nil
			}, bellwether.Options{
				TTL: time.Hour, Fleet: bellwether.Fleet{EngineTimeout: 500 * time.Millisecond, Namespace: "test", Store: batchesBy(store, inPieces(store, 10, c.answers, 300*time.Millisecond))},
			})
			defer c2.Close()
			start := time.Now()
			values, err := c2.GetMany(t.Context(), keys)
			if took := time.Since(start); len(values) != 100 || err != nil || took > c.took+100*time.Millisecond {
				t.Errorf("%d values after %v, %v; want 100 after %v", len(values), took, err, c.took)
			}
			if n := int(loads.Load()); n != c.loads {
				t.Errorf("%d keys were loaded, want %d", n, c.loads)
			}
		})
	}
}

// A store whose replies take longer than NearTTL does not take the stale value from the callers.
func TestPatience_RepliesSlowerThanNearTTL(t *testing.T) {
	for _, near := range []time.Duration{-1, 1, 5 * time.Millisecond, 100 * time.Millisecond} {
		inBubble(t, fmt.Sprint("NearTTL ", near), func(t *testing.T) {
			store := wiredTo(memstore.New())
			var took atomic.Int64
			c := bellwether.New(func(context.Context, string) (string, error) {
				time.Sleep(time.Duration(took.Load()))
				return "v", nil
			}, bellwether.Options{
				TTL: time.Minute, StaleWhileRevalidate: time.Hour,
				Fleet: bellwether.Fleet{Store: store, Locker: locallock.New(), Namespace: "n", NearTTL: near},
			})
			defer c.Close()
			c.Get(t.Context(), "k")
			store.set(takes(150 * time.Millisecond))
			took.Store(int64(10 * time.Second))
			time.Sleep(2 * time.Minute)
			for range 3 {
				began := time.Now()
				c.Get(t.Context(), "k")
				if waited := time.Since(began); waited > time.Second {
					t.Errorf("a caller with a stale value waited for %v", waited)
				}
				time.Sleep(time.Second)
			}
			time.Sleep(10 * time.Second) // the load ends
		})
	}
}

// A caller with a stale value waits for MaxWait at most, also with a longer Patience: its flights would follow each other
// without a pause while another process holds the key.
func TestPatience_UpToMaxWait(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 1, by, bellwether.Options{
			TTL: time.Second, StaleWhileRevalidate: time.Hour, Patience: 5 * time.Second, MaxWait: time.Second,
		})
		p := f.processes[0]
		p.Get(t.Context(), "k")
		time.Sleep(2 * time.Second)
		if _, err := p.locker.locker.TryAcquire(t.Context(), "test:k", time.Hour); err != nil {
			t.Fatal(err)
		}
		p.store.reset()
		start := time.Now()
		if v, err := p.Get(t.Context(), "k"); v != "v1" || err != nil {
			t.Errorf("Get = %q, %v; want the stale v1", v, err)
		}
		wantTook(t, start, time.Second)
		if n := p.store.count(); n > 100 {
			t.Errorf("%d requests to the store in a second", n)
		}
	})
}

// A caller whose stale value leaves its window before the end of Patience gets the value at once.
func TestPatience_BeyondTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		c := cacheOf(t, func(ctx context.Context, _ string) (string, error) {
			if slow.Load() {
				<-ctx.Done() // Close waits for no load
			}
			return "v", nil
		}, bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Second, Patience: 100 * time.Millisecond})
		if _, err := c.Get(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		slow.Store(true)
		time.Sleep(1950 * time.Millisecond)
		start := time.Now()
		v, err := c.Get(t.Context(), "k")
		if took := time.Since(start); err != nil || took > 100*time.Millisecond {
			t.Errorf("got %q, %v after %v, want the stale value within 100ms", v, err, took)
		}
	})
}

// A request that takes a stale page for so long only gets the page at once if it would not take the page at the end of
// Patience.
func TestPatience_BeyondMaxStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		s := newSite(t, bellwether.HTTPOptions{
			TTL: time.Second, StaleWhileRevalidate: time.Hour, Patience: 500 * time.Millisecond,
			Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New()},
		}, func(w http.ResponseWriter, r *http.Request) {
			if slow.Load() {
				<-r.Context().Done()
			}
		})
		s.get("http://a/p")
		slow.Store(true)
		time.Sleep(2800 * time.Millisecond) // longer than NearTTL: the page comes from the store
		start := time.Now()
		w := s.get("http://a/p", "Cache-Control", "max-stale=2")
		if took := time.Since(start); w.Code != http.StatusOK || took > 500*time.Millisecond {
			t.Errorf("got %d after %v, want the stale page within 500ms", w.Code, took)
		}
	})
}
