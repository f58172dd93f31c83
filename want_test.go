package bellwether

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests the conditions of a call on its answer, and values kept for the next load.

// A counted engine's loads take a second and return "v" with their number.
type counted struct {
	*engine
	loads     atomic.Int32
	freshness items.Windows
	fail      atomic.Bool
	saw       func(present *items.Item) // called by each load
}

func newCounted(t *testing.T, o Options, f items.Windows) *counted {
	c := &counted{engine: newEngine(o.settings("Options"), faceOf[string](nil, Codec{})), freshness: f}
	t.Cleanup(c.close)
	return c
}

func (c *counted) get(w items.Want) (string, error) {
	it, _, ok := c.hit("k", &w)
	if !ok {
		waiter := c.waiter(context.Background(), "k", it)
		waiter.want = w
		waiter.wait(bound(
			func(_ context.Context, f *attempt) (items.Product, error) {
				n := c.loads.Add(1)
				if c.saw != nil {
					c.saw(f.present)
				}
				time.Sleep(time.Second)
				if c.fail.Load() {
					return items.Product{}, errors.New("down")
				}
				return items.Product{Value: fmt.Sprint("v", n), Windows: &c.freshness}, nil
			}))
		if waiter.err != nil {
			return "", waiter.err
		}
		it = waiter.answer.item
	}
	return typed[string](it.Answer())
}

type bound loader

func (b bound) bind() loader { return loader(b) }

func (c *counted) wantGet(t *testing.T, w items.Want, value string) {
	t.Helper()
	if got, err := c.get(w); got != value || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, value)
	}
}

// fromNow accepts only a value loaded after the call.
var fromNow = items.Want{Accept: func(*items.Item, instant) bool { return false }}

func TestWant_OneMoreLoadForAllWhoCameDuringOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounted(t, Options{}, items.Windows{TTL: time.Minute})
		go c.get(items.Want{})
		time.Sleep(500 * time.Millisecond)
		start := time.Now()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				c.wantGet(t, fromNow, "v2")
				if took := time.Since(start); took != 1500*time.Millisecond {
					t.Errorf("took %v, want the rest of one load and another", took)
				}
			})
		}
		for range 50 {
			wg.Go(func() { c.wantGet(t, items.Want{}, "v1") })
		}
		wg.Wait()
		if n := c.loads.Load(); n != 2 {
			t.Errorf("%d loads, want 2", n)
		}
	})
}

// A call may refuse the store's entry, and gets another process's later commit if it accepts it.
func TestWant_StoreEntriesAreRefusedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		first := newCounted(t, Options{Fleet: Fleet{Store: store}}, items.Windows{TTL: time.Minute})
		second := newCounted(t, Options{Fleet: Fleet{Store: store}}, items.Windows{TTL: time.Minute})
		second.loads.Store(100)
		first.wantGet(t, items.Want{}, "v1")
		time.Sleep(10 * time.Second)
		second.wantGet(t, items.Want{}, "v1")
		second.wantGet(t, fromNow, "v101")
		third := newCounted(t, Options{Fleet: Fleet{Store: store}}, items.Windows{TTL: time.Minute})
		third.loads.Store(200)
		third.wantGet(t, fromNow, "v201")
		young := items.Want{Accept: func(it *items.Item, now instant) bool { return now-it.Born < 5*time.Second }}
		first.wantGet(t, young, "v201") // its own value is 12 s old, the store's is new
	})
}

// The item that a call accepted is the item that answers it: another may take its place at any moment.
func TestWant_HitIsTheAcceptedItem(t *testing.T) {
	c := newCounted(t, Options{}, items.Windows{})
	accepted, other := itemOf(c.engine, "accepted", 1, time.Hour), itemOf(c.engine, "other", 2, time.Hour)
	c.near.Put("k", accepted, 1)
	it, _, ok := c.hit("k", &items.Want{Accept: func(it *items.Item, _ instant) bool {
		c.near.Put("k", other, 1)
		return it == accepted
	}})
	if !ok || it != accepted {
		t.Errorf("got %+v, %v, want the accepted item", it, ok)
	}
}

// A failure answers during its pause, whatever the call accepts.
func TestWant_FailureAnswersWhileItBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounted(t, Options{ErrorTTL: 10 * time.Second}, items.Windows{TTL: time.Second})
		c.fail.Store(true)
		for range 5 {
			if got, err := c.get(fromNow); err == nil || err.Error() != "down" {
				t.Errorf("got %q, %v, want the failure", got, err)
			}
		}
		if n := c.loads.Load(); n != 1 {
			t.Errorf("%d loads, want 1", n)
		}
	})
}

// A call that refuses a stale value does not get it by Patience, nor from the flight.
func TestWant_StaleIsRefused(t *testing.T) {
	for name, store := range map[string]driver.Store{"near tier": nil, "store": memstore.New()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCounted(t, Options{Fleet: Fleet{Store: store}}, items.Windows{TTL: time.Second, StaleWhileRevalidate: time.Minute})
				c.wantGet(t, items.Want{}, "v1")
				time.Sleep(2 * time.Second)
				c.wantGet(t, items.Want{}, "v1") // begins a rebuild
				time.Sleep(time.Millisecond)
				c.wantGet(t, fromNow, "v3") // the rebuild's load began before the call
				if n := c.loads.Load(); n != 3 {
					t.Errorf("%d loads, want 3", n)
				}
			})
		})
	}
}

func TestWant_AsideRunsOnTheCallersGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounted(t, Options{}, items.Windows{TTL: time.Minute})
		aside := make(chan func())
		var ran atomic.Int32
		go func() {
			for range 3 {
				aside <- func() { ran.Add(1) }
			}
		}()
		c.wantGet(t, items.Want{Aside: aside}, "v1")
		if n := ran.Load(); n != 3 {
			t.Errorf("%d of 3 done", n)
		}
	})
}

func TestKeep_ForTheNextLoadAndNeverServed(t *testing.T) {
	for name, store := range map[string]driver.Store{"near tier": nil, "store": memstore.New()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCounted(t, Options{Fleet: Fleet{Store: store}, ErrorTTL: -1}, items.Windows{TTL: 10 * time.Second, StaleIfError: 20 * time.Second, Keep: time.Hour})
				var present []string
				c.saw = func(it *items.Item) {
					if it == nil {
						present = append(present, "")
					} else {
						present = append(present, it.Value.(string))
					}
				}
				c.wantGet(t, items.Want{}, "v1")
				time.Sleep(30 * time.Minute)
				c.fail.Store(true)
				for range 2 { // a failure leaves the kept value
					if got, err := c.get(items.Want{}); err == nil {
						t.Errorf("got %q, want the failure: past its windows nothing is served", got)
					}
				}
				c.fail.Store(false)
				c.wantGet(t, items.Want{}, "v4")
				time.Sleep(2 * time.Hour)
				c.wantGet(t, items.Want{}, "v5")
				if got, want := fmt.Sprint(present), "[ v1 v1 v1 ]"; got != want {
					t.Errorf("loads started from %s, want %s", got, want)
				}
			})
		})
	}
}

// A delayed store is a store whose reads are under way for a time before they arrive.
type delayedStore struct {
	driver.Store
	delay atomic.Int64 // in nanoseconds
}

func (s *delayedStore) Get(ctx context.Context, key string) (driver.Entry, error) {
	time.Sleep(time.Duration(s.delay.Load()))
	return s.Store.Get(ctx, key)
}

// A slow reply leaves open whether another process's load is new enough. The next reply says so, without a load.
func TestWant_NewEnoughByTheNextReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, locker := memstore.New(), locallock.New()
		delayed := &delayedStore{Store: store}
		polls := struct{ driver.Locker }{locker}
		var engines []*counted
		for _, fleet := range []Fleet{{Store: store, Locker: locker}, {Store: store, Locker: locker}, {Store: delayed, Locker: polls}} {
			fleet.Namespace = "test"
			engines = append(engines, newCounted(t, Options{Fleet: fleet}, items.Windows{TTL: time.Minute}))
		}
		var calls sync.WaitGroup
		calls.Go(func() { engines[0].wantGet(t, fromNow, "v1") }) // until 1 s
		time.Sleep(900 * time.Millisecond)
		calls.Go(func() { engines[1].wantGet(t, fromNow, "v1") }) // from 1 s until about 2 s
		time.Sleep(85 * time.Millisecond)
		calls.Go(func() { engines[2].wantGet(t, fromNow, "v1") })
		time.Sleep(815 * time.Millisecond)
		delayed.delay.Store(int64(150 * time.Millisecond))
		time.Sleep(220 * time.Millisecond)
		delayed.delay.Store(0)
		calls.Wait()
		if n := engines[2].loads.Load(); n > 0 {
			t.Errorf("%d loads in the process that has waited for another's, want none", n)
		}
	})
}

// A value without a load, such as a Set's, does not answer calls that want a load from after them, although it is
// younger than they are.
func TestWant_ValueWithoutALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, locker := memstore.New(), locallock.New()
		var engines []*counted
		for range 3 {
			o := Options{Fleet: Fleet{Store: store, Locker: locker, Namespace: "test"}}
			engines = append(engines, newCounted(t, o, items.Windows{TTL: time.Minute}))
		}
		var calls sync.WaitGroup
		calls.Go(func() { engines[0].wantGet(t, fromNow, "v1") })
		time.Sleep(500 * time.Millisecond)
		// Both wait for the load above. Then one loads, and the other waits.
		for _, e := range engines[1:] {
			calls.Go(func() {
				if v, err := e.get(fromNow); v == "set" || err != nil {
					t.Errorf("%q, %v, want a load's value", v, err)
				}
			})
		}
		time.Sleep(time.Second)
		if _, err := driver.Set(t.Context(), store, "test:k", driver.Entry{Kind: driver.KindValue, Value: []byte("set"), TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		calls.Wait()
	})
}

func TestWant_FreshBacksOffInEachProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		o := Options{Fleet: Fleet{Store: store}, ErrorTTL: 10 * time.Second}
		first := newCounted(t, o, items.Windows{TTL: time.Minute})
		first.wantGet(t, items.Want{}, "v1")
		first.fail.Store(true)
		first.wantGet(t, fromNow, "v1")
		if n := first.loads.Load(); n != 2 {
			t.Fatalf("%d loads, want the value's and one that fails", n)
		}
		second := newCounted(t, o, items.Windows{TTL: time.Minute})
		second.fail.Store(true)
		second.wantGet(t, fromNow, "v1")
		time.Sleep(4 * time.Second) // not due yet
		if n := second.loads.Load(); n != 0 {
			t.Errorf("%d loads in the second process before the next try is due", n)
		}
	})
}
