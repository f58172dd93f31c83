package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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

func (p *setter) refreshes(t *testing.T) {
	t.Helper()
	if err := p.Refresh(t.Context(), "k"); err != nil {
		t.Errorf("Refresh: %v", err)
	}
}

// A fresh value is served during its rebuild, and many calls of Refresh begin one rebuild.
func TestRefresh_Fresh(t *testing.T) {
	for _, as := range []string{"alone", "store", "near off"} {
		inBubble(t, as, func(t *testing.T) {
			var store *memstore.Store
			o := bellwether.Options{}
			switch as {
			case "near off":
				o.Fleet.NearTTL = -1
				fallthrough
			case "store":
				store = memstore.New()
			}
			p := newSetter(t, store, locallock.New(), o)
			p.gets(t, "loaded 1")
			time.Sleep(time.Nanosecond) // a load and a Refresh of one instant have no order
			p.took.Store(int64(10 * time.Second))
			began := time.Now()
			for range 20 {
				p.refreshes(t)
			}
			if took := time.Since(began); took > 0 {
				t.Errorf("Refresh took %v", took)
			}
			for range 9 {
				time.Sleep(time.Second)
				p.gets(t, "loaded 1")
				p.refreshes(t)
			}
			if took := time.Since(began); took != 9*time.Second {
				t.Errorf("callers waited for %v", took-9*time.Second)
			}
			time.Sleep(1500 * time.Millisecond)
			p.gets(t, "loaded 2")
			if n := p.loads.Load(); n != 2 {
				t.Errorf("%d loads, want 2", n)
			}
		})
	}
}

func TestRefresh_ValueOfAnotherProcess(t *testing.T) {
	for _, known := range []bool{false, true} {
		inBubble(t, fmt.Sprint("an older value known ", known), func(t *testing.T) {
			store, locker := memstore.New(), locallock.New()
			p, q := newSetter(t, store, locker, bellwether.Options{}), newSetter(t, store, locker, bellwether.Options{})
			if known {
				q.gets(t, "loaded 1")
			}
			p.sets(t, "set") // q does not know
			time.Sleep(time.Millisecond)
			before := q.loads.Load()
			q.refreshes(t)
			synctest.Wait()
			if n := q.loads.Load() - before; n != 1 {
				t.Errorf("%d loads, want 1", n)
			}
			time.Sleep(time.Second)
			want := fmt.Sprint("loaded ", q.loads.Load())
			p.gets(t, want)
			q.gets(t, want)
		})
	}
}

// Refresh returns at once, whatever its context.
func TestRefresh_OneInTheFleet(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	everyWay(t, func(t *testing.T, by way) {
		for _, warm := range []bool{true, false} {
			f := newFleet(t, 8, by, bellwether.Options{TTL: time.Hour})
			if warm {
				for _, p := range f.processes {
					p.Get(t.Context(), "k")
				}
			}
			time.Sleep(time.Minute)
			loads := func() int { n, _ := f.origin.count(); return n }
			before := loads()
			var all sync.WaitGroup
			for _, p := range f.processes {
				all.Go(func() {
					if err := p.Refresh(over, "k"); err != nil {
						t.Errorf("Refresh: %v", err)
					}
				})
			}
			began := time.Now()
			all.Wait()
			wantTook(t, began, 0)
			time.Sleep(time.Minute)
			if n := loads() - before; n != 1 {
				t.Errorf("warm %t: %d loads, want 1", warm, n)
			}
		}
	})
}

// A refresh that fails leaves the value, and begins a pause.
func TestRefresh_Fails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failure error
		loads, told := 0, 0
		c := bellwether.New(func(context.Context, string) (string, error) { loads++; return "v", failure }, bellwether.Options{
			TTL: time.Minute, StaleWhileRevalidate: time.Minute, ErrorTTL: 10 * time.Second, MaxErrorTTL: 10 * time.Second,
			OnError: func(string, error) { told++ },
			Fleet:   bellwether.Fleet{Store: memstore.New(), Locker: locallock.New(), Namespace: "n"},
		})
		defer c.Close()
		c.Get(t.Context(), "k")
		time.Sleep(time.Nanosecond)
		failure = errors.New("down")
		for range 3 {
			if err := c.Refresh(t.Context(), "k"); err != nil {
				t.Errorf("Refresh: %v", err)
			}
			synctest.Wait()
			peeks(t, c, "v", 1)
			if v, err := c.Get(t.Context(), "k"); v != "v" || err != nil {
				t.Errorf("Get: %q, %v; want the value", v, err)
			}
		}
		if loads != 2 || told != 1 {
			t.Errorf("%d loads, %d failures told; want the one refresh", loads, told)
		}
		failure = nil
		time.Sleep(10 * time.Second)
		c.Refresh(t.Context(), "k")
		synctest.Wait()
		peeks(t, c, "v", 0)
	})
}

// In a failure's pause a Refresh answers no call, so Stats do not change.
func TestRefresh_InAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("down")
		c := bellwether.New(func(_ context.Context, key string) (string, error) {
			if key == "stale" {
				defer func() { failure = errors.New("down") }()
			}
			return "v", failure
		}, bellwether.Options{TTL: time.Minute, StaleIfError: time.Hour, ErrorTTL: 10 * time.Second, MaxErrorTTL: 10 * time.Second})
		defer c.Close()
		failure = nil
		c.Get(t.Context(), "stale")
		time.Sleep(2 * time.Minute)
		for _, key := range []string{"stale", "without a value"} {
			c.Get(t.Context(), key)
		}
		before := c.Stats()
		for key, want := range map[string]error{"stale": nil, "without a value": failure} {
			if err := c.Refresh(t.Context(), key); err != want {
				t.Errorf("Refresh of %s: %v, want %v", key, err, want)
			}
		}
		synctest.Wait()
		if after := c.Stats(); after.Stale != before.Stale || after.Hits != before.Hits || after.Misses != before.Misses {
			t.Errorf("Stats changed from %+v to %+v", before, after)
		}
	})
}

func TestRefresh_Refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		p := newSetter(t, store, locallock.New(), bellwether.Options{Limits: bellwether.Limits{MaxQueued: 1}})
		p.store.set(blackHole)
		refused := 0
		for i := range 40 {
			if err := p.Refresh(t.Context(), fmt.Sprint(i)); errors.Is(err, bellwether.ErrOverloaded) {
				refused++
			} else if err != nil {
				t.Errorf("Refresh: %v", err)
			}
		}
		if refused == 0 {
			t.Error("no Refresh was refused while the store is silent")
		}
		p.Close()
		if err := p.Refresh(t.Context(), "k"); err != bellwether.ErrClosed {
			t.Errorf("Refresh: %v, want ErrClosed", err)
		}
	})
}

// A Refresh rebuilds also a key whose flight ends without a load: its look finds a fresh value in the store.
func TestRefresh_WhileAFlightLooks(t *testing.T) {
	for _, near := range []time.Duration{0, -1} {
		inBubble(t, fmt.Sprint("NearTTL ", near), func(t *testing.T) {
			p := newSetter(t, memstore.New(), locallock.New(), bellwether.Options{Fleet: bellwether.Fleet{NearTTL: near}})
			p.gets(t, "loaded 1")
			time.Sleep(2 * time.Second) // beyond NearTTL
			p.store.set(takes(100 * time.Millisecond))
			go p.Get(t.Context(), "k")
			synctest.Wait()
			for range 3 { // share one load
				p.refreshes(t)
			}
			time.Sleep(time.Minute)
			if n := p.loads.Load(); n != 2 {
				t.Errorf("%d loads, want 2", n)
			}
			p.gets(t, "loaded 2")
		})
	}
}

// A Refresh survives an early refresh that meets the same flight, whose look finds a fresh value.
func TestRefresh_BesideAnEarlyRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, locker := memstore.New(), locallock.New()
		p, q := newSetter(t, store, locker, bellwether.Options{EarlyRefresh: 1e9}), newSetter(t, store, locker, bellwether.Options{})
		p.took.Store(int64(time.Millisecond))
		p.gets(t, "loaded 1")
		q.sets(t, "set") // p does not know
		p.store.set(takes(100 * time.Millisecond))
		p.gets(t, "loaded 1") // begins a flight
		synctest.Wait()
		p.refreshes(t)
		time.Sleep(time.Millisecond)
		p.gets(t, "loaded 1") // meets the flight too
		time.Sleep(time.Minute)
		if n := p.loads.Load(); n != 2 {
			t.Errorf("%d loads, want 2", n)
		}
	})
}

// A Refresh survives the flight that it meets, whose only caller leaves before the election.
func TestRefresh_OfADesertedFlight(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 1, by, bellwether.Options{TTL: time.Hour, Limits: bellwether.Limits{MaxRebuilds: 1}})
		f.origin.set(func(o *source) { o.build = 5 * time.Second })
		p := f.processes[0]
		go p.Get(t.Context(), "other")
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go p.Get(ctx, "k")
		synctest.Wait()
		if err := p.Refresh(t.Context(), "k"); err != nil {
			t.Errorf("Refresh: %v", err)
		}
		time.Sleep(time.Minute)
		if _, _, ok := p.Peek("k"); !ok {
			t.Error("the key has no value a minute after its Refresh")
		}
	})
}

// A Refresh that waits for a flight ends with the cache, and reports a failure that no caller gets.
func TestRefresh_BehindAFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loads, told := 0, 0
		store := wiredTo(memstore.New())
		c := bellwether.New(func(context.Context, string) (string, error) {
			if loads++; loads > 1 {
				return "", errors.New("down")
			}
			return "v", nil
		}, bellwether.Options{
			TTL: time.Hour, OnError: func(string, error) { told++ },
			Fleet: bellwether.Fleet{Store: store, Locker: locallock.New(), Namespace: "n"},
		})
		c.Get(t.Context(), "k")
		time.Sleep(2 * time.Second)
		store.set(takes(100 * time.Millisecond))
		go c.Get(t.Context(), "k")
		synctest.Wait()
		c.Refresh(t.Context(), "k")
		time.Sleep(time.Second)
		synctest.Wait()
		if loads != 2 || told != 1 {
			t.Errorf("%d loads, %d failures told; want 2 and 1", loads, told)
		}
		time.Sleep(time.Hour)
		go c.Get(t.Context(), "k")
		synctest.Wait()
		c.Refresh(t.Context(), "k")
		c.Close() // waits for the Refresh
	})
}

// The load under way counts for a Refresh of its last instant, also for the load's own. In a bubble of synctest all
// loads without a wait are of one instant.
func TestRefresh_InTheInstantOfALoad(t *testing.T) {
	for name, store := range map[string]driver.Elector{"alone": nil, "fleet": memstore.New()} {
		inBubble(t, name, func(t *testing.T) {
			var c *bellwether.Cache[string]
			loads := 0
			c = bellwether.New(func(ctx context.Context, key string) (string, error) {
				if loads++; loads < 10 {
					return "v", c.Refresh(ctx, key)
				}
				return "v", nil
			}, bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Engine: store, Namespace: "n"}})
			defer c.Close()
			for i := range 2 {
				time.Sleep(2 * time.Hour)
				wantValue(t, c, "k", "v")
				synctest.Wait()
				if loads != i+1 {
					t.Errorf("%d loads, want %d: each of them refreshes its own key", loads, i+1)
				}
			}
		})
	}
}

// A Refresh in the instant in which a load has returned begins another load.
func TestRefresh_InTheInstantAfterALoad(t *testing.T) {
	for name, store := range map[string]driver.Elector{"alone": nil, "fleet": memstore.New()} {
		inBubble(t, name, func(t *testing.T) {
			loads := 0
			c := bellwether.New(func(context.Context, string) (string, error) { loads++; return "v", nil },
				bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Engine: store, Namespace: "n"}})
			defer c.Close()
			wantValue(t, c, "k", "v")
			if err := c.Refresh(t.Context(), "k"); err != nil {
				t.Error(err)
			}
			if synctest.Wait(); loads != 2 {
				t.Errorf("%d loads, want 2", loads)
			}
		})
	}
}

// Many Refreshes of a key whose flight has no load yet share its load, also if the load fails without a pause.
func TestRefresh_ManyBehindAFlight(t *testing.T) {
	for name, o := range map[string]bellwether.Options{
		"time-out":     {RebuildTimeout: time.Second},
		"ErrorTTL off": {ErrorTTL: -1},
	} {
		inBubble(t, name, func(t *testing.T) {
			var loads atomic.Int32
			o.TTL = time.Hour
			o.Fleet = bellwether.Fleet{Store: farStore(memstore.New()), Locker: farLocker(), Namespace: "n"}
			c := bellwether.New(func(ctx context.Context, key string) (string, error) {
				loads.Add(1)
				if o.ErrorTTL < 0 {
					return "", errors.New("down")
				}
				<-ctx.Done()
				return "", ctx.Err()
			}, o)
			defer c.Close()
			before := runtime.NumGoroutine()
			for range 100 {
				c.Refresh(t.Context(), "k")
			}
			synctest.Wait()
			if n := runtime.NumGoroutine() - before; n > 10 {
				t.Errorf("%d goroutines after 100 Refreshes of one key", n)
			}
			time.Sleep(10 * time.Minute)
			if n := loads.Load(); n != 1 {
				t.Errorf("%d loads, one after another; want 1", n)
			}
		})
	}
}

// A Refresh during the commit of a load that has returned begins another load.
func TestRefresh_DuringACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, poll, bellwether.Options{TTL: time.Hour})
		p := f.processes[0] // loads take a second
		p.store.set(on(takes(300*time.Millisecond), "commit"))
		go p.Get(t.Context(), "k")
		time.Sleep(1100 * time.Millisecond)
		if loads, _ := f.origin.count(); loads != 1 || f.origin.all != 0 {
			t.Fatal("the load has not returned")
		}
		if err := p.Refresh(t.Context(), "k"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		f.wantLoads(t, 2)
	})
}

// A store's slow reply does not make a value from before the Refresh look younger than the Refresh.
func TestRefresh_SlowReply(t *testing.T) {
	for _, reply := range []time.Duration{0, 300 * time.Millisecond} {
		inBubble(t, reply.String(), func(t *testing.T) {
			f := newFleet(t, 2, poll, bellwether.Options{TTL: time.Hour})
			f.origin.set(func(o *source) { o.build = time.Millisecond })
			a, b := f.processes[0], f.processes[1]
			b.Get(t.Context(), "k")
			time.Sleep(100 * time.Millisecond)
			a.store.reply.Store(int64(reply))
			a.Refresh(t.Context(), "k")
			time.Sleep(time.Minute)
			f.wantLoads(t, 2)
		})
	}
}
