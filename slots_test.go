package bellwether_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// A gauge counts what runs at one time.
type gauge struct{ running, most atomic.Int32 }

// enter counts one more until its result is called.
func (g *gauge) enter() (leave func()) {
	n := g.running.Add(1)
	for was := g.most.Load(); n > was && !g.most.CompareAndSwap(was, n); was = g.most.Load() {
	}
	return func() { g.running.Add(-1) }
}

func (g *gauge) work(d time.Duration) {
	defer g.enter()()
	time.Sleep(d)
}

// A pooledContext panics or exits in Value once the request is over, as a pooled context may.
type pooledContext struct {
	context.Context
	over   atomic.Bool
	breaks func()
}

func (c *pooledContext) Value(key any) any {
	if c.over.Load() {
		c.breaks()
	}
	return c.Context.Value(key)
}

// The context of a caller that breaks when the load begins takes no slot away.
func TestSlots_ContextThatBreaks(t *testing.T) {
	for name, breaks := range map[string]func(){"panics": func() { panic("used after its request") }, "exits": runtime.Goexit} {
		inBubble(t, name, func(t *testing.T) {
			c := cacheOf(t, func(context.Context, string) (string, error) {
				time.Sleep(time.Second)
				return "v", nil
			}, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 1}})
			go c.Get(t.Context(), "first")
			synctest.Wait()
			ctx := &pooledContext{Context: t.Context(), breaks: breaks}
			time.AfterFunc(100*time.Millisecond, func() { ctx.over.Store(true) })
			if _, err := c.Get(ctx, "second"); err == nil {
				t.Error("the load has begun with a broken context")
			}
			for _, key := range []string{"third", "fourth"} {
				if v, err := c.Get(t.Context(), key); v != "v" || err != nil {
					t.Errorf("%s: %q, %v", key, v, err)
				}
			}
		})
	}
}

// A load that outlives its loan takes a free slot, in which no other load then begins.
func TestSlots_LoanThatOutlivesItsOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gauge
		var c *bellwether.Cache[string]
		c = cacheOf(t, func(ctx context.Context, key string) (string, error) {
			switch key {
			case "a": // gives up on b after a second, and goes on
				short, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				c.Get(short, "b")
				g.work(10 * time.Second)
			case "c":
				g.work(500 * time.Millisecond)
			default:
				g.work(10 * time.Second)
			}
			return "v", nil
		}, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 2}})
		var wg sync.WaitGroup
		get := func(key string) { wg.Go(func() { c.Get(t.Context(), key) }) }
		get("c")
		synctest.Wait()
		get("a") // and b, on a loan
		time.Sleep(2 * time.Second)
		get("d")
		wg.Wait()
		if n := g.most.Load(); n > 2 {
			t.Errorf("%d loads worked at one time, want MaxRebuilds, 2", n)
		}
	})
}

// As TestSlots_LoanThatOutlivesItsOffer, with a second loan that is still open.
func TestSlots_LoanThatEndsBesideAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gauge
		var c *bellwether.Cache[string]
		begun := map[string]int32{}
		var both sync.WaitGroup // a and c
		both.Add(2)
		c = cacheOf(t, func(ctx context.Context, key string) (string, error) {
			asks := func(other string, patience time.Duration) {
				both.Done()
				both.Wait() // until both have their slots
				short, cancel := context.WithTimeout(ctx, patience)
				defer cancel()
				c.Get(short, other)
			}
			switch key {
			case "a":
				asks("x", time.Second)
				g.work(20 * time.Second)
			case "c":
				asks("y", 3*time.Second)
				g.work(20 * time.Second)
			case "e":
				g.work(2 * time.Second)
			case "x":
				g.work(4 * time.Second)
			case "d":
				begun["d"] = g.running.Load() + 1
				g.work(time.Second)
			default:
				g.work(20 * time.Second)
			}
			return "v", nil
		}, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 3}})
		var wg sync.WaitGroup
		get := func(key string) { wg.Go(func() { c.Get(t.Context(), key) }) }
		get("e")
		synctest.Wait()
		for _, key := range []string{"a", "c"} {
			get(key)
		}
		time.Sleep(5 * time.Second)
		get("d")
		wg.Wait()
		if n := begun["d"]; n > 3 {
			t.Errorf("a load began as the %dth at one time, want MaxRebuilds, 3", n)
		}
	})
}

// A flight that has lost its callers, and then its offer by an invalidation elsewhere, waits for no slot.
func TestSlots_OfferWithdrawnFromNobody(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, bellwether.Options{
			TTL: time.Minute, StaleWhileRevalidate: time.Hour, Patience: 50 * time.Millisecond, RebuildTimeout: time.Hour,
			Limits: bellwether.Limits{MaxRebuilds: 1},
		})
		other, here := f.processes[0], f.processes[1]
		f.get(1, "k") // v1
		time.Sleep(2 * time.Minute)
		f.origin.set(func(o *source) { o.build = 30 * time.Second })
		go here.Get(context.Background(), "blocks the slot")
		synctest.Wait()
		wantValue(t, here, "k", "v1") // from the offer of a flight in the queue
		invalidate(t, other, "k")
		time.Sleep(5 * time.Second)
		if n := here.Stats().Flights; n != 1 {
			t.Errorf("%d flights, want 1: nobody waits for the other, and it has nothing to offer", n)
		}
		time.Sleep(time.Minute)
		f.wantLoads(t, 2)
	})
}

// A stale page that a notice brings to a flight in the queue is confirmed, and so answers callers before the next look.
func TestSlots_OfferDuringTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, locker := memstore.New(), locallock.New()
		site := func() *site {
			return newSite(t, bellwether.HTTPOptions{
				Fleet:    bellwether.Fleet{Store: wiredTo(store).hearing(), Locker: locker, NearTTL: time.Second},
				Patience: 100 * time.Millisecond, Limits: bellwether.Limits{MaxRebuilds: 1},
			}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=1, stale-while-revalidate=60")
				if r.URL.Path == "/slow" {
					time.Sleep(19 * time.Second)
				}
				time.Sleep(time.Second)
				fmt.Fprint(w, "page")
			})
		}
		a, b := site(), site()
		go a.get("http://a/slow")
		synctest.Wait()
		go b.get("http://a/p")
		time.Sleep(100 * time.Millisecond)
		go a.mw.Refresh(a.handler, request("GET", "http://a/p")) // queues
		time.Sleep(950 * time.Millisecond)
		// The page is as old as its load took, and stale from the beginning.
		w := newClient()
		a.handler.ServeHTTP(w, request("GET", "http://a/p"))
		if w.Body.String() != "page" || w.header > 600*time.Millisecond {
			t.Errorf("%q after %v, want the stale page within the patience and half of NearTTL", w.Body, w.header)
		}
		time.Sleep(time.Minute)
	})
}
