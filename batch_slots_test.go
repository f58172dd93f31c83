package bellwether_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// A batch load takes one slot, and one place in the queue, however many keys it has.
func TestGetMany_MaxRebuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		ps := newBatchFleet(t, 1, origin, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 2, MaxQueued: 3}})
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 5 { // 2 run, 3 wait
			wg.Go(func() {
				var keys []string
				for j := range 50 {
					keys = append(keys, fmt.Sprint(i, " ", j))
				}
				getAll(t, ps[0], keys)
			})
		}
		synctest.Wait()
		if _, err := ps[0].GetMany(t.Context(), []string{"x", "y"}); !errors.Is(err, bellwether.ErrOverloaded) {
			t.Errorf("a call beyond MaxQueued: %v, want ErrOverloaded", err)
		}
		wg.Wait()
		wantTook(t, start, 3*time.Second)
		origin.set(func(o *batchSource) {
			if len(o.batches) != 5 || o.mostAll != 2 {
				t.Errorf("%d loads, %d at one time", len(o.batches), o.mostAll)
			}
		})
	})
}

func TestGetMany_LoadThatIgnoresItsContextKeepsItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: 10 * time.Second, deaf: true}
		c := batchCache(t, origin.load, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 1}, RebuildTimeout: time.Second, ErrorTTL: -1, MaxWait: time.Minute})
		if _, err := c.GetMany(t.Context(), []string{"a", "b"}); !errors.Is(err, bellwether.ErrRebuildTimeout) {
			t.Error(err)
		}
		origin.set(func(o *batchSource) { o.build = 0 })
		start := time.Now()
		getAll(t, c, []string{"a", "b"})
		wantTook(t, start, 9*time.Second)
	})
}

// A held key of a GetMany is hedged with the call's slot, and the slot is given back once.
func TestGetMany_Hedge(t *testing.T) {
	if !inOwnProcess(t) {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		ps := newBatchFleet(t, 2, origin, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 2}, Hedge: 3, HedgeShare: 1})
		for i := range 3 {
			ps[1].Get(t.Context(), fmt.Sprint("own", i))
		}
		origin.set(func(o *batchSource) { o.build = 20 * time.Second })
		for _, key := range []string{"a", "b"} {
			go ps[0].Get(t.Context(), key)
		}
		synctest.Wait()
		origin.set(func(o *batchSource) { o.build = time.Second })
		start := time.Now()
		getAll(t, ps[1], []string{"a", "b"})
		if took := time.Since(start); took > 5*time.Second || ps[1].Stats().Hedges != 2 {
			t.Errorf("took %v, %d hedges", took, ps[1].Stats().Hedges)
		}
		time.Sleep(time.Minute)
		start = time.Now()
		var wg sync.WaitGroup
		for _, key := range []string{"x", "y"} { // both slots are free again, and no third
			wg.Go(func() { ps[1].Get(t.Context(), key) })
		}
		wg.Wait()
		wantTook(t, start, time.Second)
	})
}

// A key that is too late for the load of its slot waits for another slot, without its share of the first.
func TestGetMany_LateForItsSlot(t *testing.T) {
	for _, slots := range []int{1, 2, 4} {
		inBubble(t, fmt.Sprint(slots), func(t *testing.T) {
			origin := &batchSource{build: 10 * time.Millisecond}
			locker := wiredLocks(locallock.New())
			locker.only = func(key string) bool { return strings.HasPrefix(key, "late") }
			locker.set(on(takes(100*time.Millisecond), "acquire"))
			c := batchCache(t, origin.load, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: slots}, Fleet: bellwether.Fleet{Store: memstore.New(), Locker: polling(locker)}})
			start := time.Now()
			var wg sync.WaitGroup
			for i := range slots {
				wg.Go(func() {
					keys := []string{fmt.Sprint("early", i), fmt.Sprint("late", i)}
					getAll(t, c, keys)
					wantTook(t, start, 110*time.Millisecond)
				})
			}
			wg.Wait()
			origin.set(func(o *batchSource) {
				o.build = time.Second
				if o.mostAll > slots {
					t.Errorf("%d loads at one time", o.mostAll)
				}
			})
			start = time.Now()
			for i := range slots + 1 { // all slots are free again, and no more
				wg.Go(func() { c.Get(t.Context(), fmt.Sprint(i)) })
			}
			wg.Wait()
			wantTook(t, start, 2*time.Second)
		})
	}
}
