//go:build !race

package bellwether_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

func TestGetMany_TenThousandKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		store := wiredTo(memstore.New())
		store.busy = true
		o := bellwether.Options{StaleWhileRevalidate: time.Hour, Fleet: bellwether.Fleet{Store: store.full(), Locker: locallock.New()}}
		here, there := batchCache(t, origin.load, o), batchCache(t, origin.load, o)
		keys := manyKeys(10_000)
		before := runtime.NumGoroutine()
		var most int
		origin.set(func(o *batchSource) {
			o.do = func(context.Context, []string, map[string]string) error {
				o.set(func(*batchSource) { most = max(most, runtime.NumGoroutine()-before) })
				return nil
			}
		})
		start := time.Now()
		getAll(t, here, keys)
		if most > 4*4000+100 || most < 1000 {
			t.Errorf("%d goroutines at one time", most)
		}
		if n := len(origin.loads()); n != 10 || store.count("getmany") != 10 || store.count("get") != 0 {
			t.Errorf("%d loads, %d and %d reads, want 10 and 10 and none", n, store.count("getmany"), store.count("get"))
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("took %v, want three times the load of four", took)
		}
		getAll(t, there, keys)
		if n := store.count("getmany") - 10; n != 10 || store.count("get") != 0 {
			t.Errorf("%d GetManys and %d Gets of stored keys, want 10 and none", n, store.count("get"))
		}

		time.Sleep(2 * time.Minute) // stale: callers do not wait, and at most 4,000 keys are rebuilt in the background
		getAll(t, here, keys)
		start = time.Now()
		getAll(t, here, keys)
		wantTook(t, start, 0)
		if f := here.Stats().Flights; f > 8000 {
			t.Errorf("%d flights", f)
		}
	})
}
