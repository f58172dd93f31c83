package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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

// If a commit has no answer and its retry is fenced, the store is asked whether the first succeeded.
func TestFleet_CommitLostThenRefused(t *testing.T) {
	for _, invalidated := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 2, push, bellwether.Options{Fleet: bellwether.Fleet{NearTTL: time.Second}, TTL: time.Hour})
			f.origin.build = 5 * time.Second
			a, b := f.processes[0], f.processes[1]
			a.losesCommits(1)
			done := make(chan struct{})
			go func() {
				defer close(done)
				a.Get(context.Background(), "k") // began before, and may get either value
			}()
			time.Sleep(time.Second)
			if invalidated {
				b.Invalidate(t.Context(), "k")
			}
			time.Sleep(4001 * time.Millisecond)
			if v, err := a.Get(t.Context(), "k"); (v == "v1") == invalidated || err != nil {
				t.Errorf("invalidated elsewhere 4 s ago: %v; Get = %q, %v", invalidated, v, err)
			}
			<-done
		})
	}
}

// The reads of a process reach a copy of the store that lags, and never find the mark that its claims find. It loads
// once, and then its load's value is an answer.
func TestUnshared_ReadsOfACopyThatLags(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, bellwether.Options{TTL: time.Hour})
		f.each(takesNoValues)
		f.processes[0].Get(t.Context(), "k")
		synctest.Wait() // for the release
		p := f.processes[1]
		p.store.set(on(answer(driver.ErrNotFound), "get"))
		start := time.Now()
		v, err := p.Get(t.Context(), "k")
		if took := time.Since(start); v != "v2" || err != nil || took > 2*time.Second {
			t.Errorf("Get = %q, %v after %v", v, err, took)
		}
		if n := p.store.count() + p.locker.count(); n > 20 {
			t.Errorf("%d calls of engines for one load", n)
		}
		f.wantLoads(t, 2)
	})
}

// A failure is remembered beside another process's value that the store does not take.
func TestUnshared_FailureIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{TTL: time.Hour, ErrorTTL: 20 * time.Second})
		f.each(takesNoValues)
		f.processes[0].Get(t.Context(), "k")
		f.origin.fail = func(int) error { return errOrigin }
		for range 90 {
			f.processes[1].Get(t.Context(), "k")
			time.Sleep(100 * time.Millisecond)
		}
		f.wantLoads(t, 2)
	})
}

// A slot that is granted during a panic of user code is given back.
func TestFleet_SlotThatComesDuringAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{
			Limits: bellwether.Limits{MaxRebuilds: 1}, MaxWait: 10 * time.Second, Size: func(key string, _ any) int {
				if key == "k" {
					panic("user code")
				}
				return 1
			},
		})
		p := f.processes[0]
		f.origin.build = 1500 * time.Millisecond
		go p.Get(context.Background(), "another")
		synctest.Wait()
		_, epoch, _ := f.store.Claim(t.Context(), "test:k")
		p.store.reply.Store(int64(200 * time.Millisecond))
		time.AfterFunc(time.Second, func() {
			f.store.Commit(t.Context(), "test:k", driver.Entry{Kind: driver.KindValue, Value: []byte("v"), Epoch: epoch, TTL: time.Hour})
		})
		// It waits from 0.2 s on, and looks from 1.2 s to 1.4 s.
		f.origin.set(func(o *source) { o.build = time.Second })
		p.store.reply.Store(int64(400 * time.Millisecond)) // 0.4 s; 1.4 s to 1.8 s
		p.Get(t.Context(), "k")
		p.store.reply.Store(0)
		if v, err := p.Get(t.Context(), "third"); err != nil {
			t.Errorf("Get = %q, %v: the only slot is lost", v, err)
		}
	})
}

// A slot is given back if its load does not begin because of an invalidation of an unshared key.
func TestFleet_SlotOfAnInvalidatedUnsharedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 1}, MaxWait: 10 * time.Second})
		p := f.processes[0]
		driver.Set(t.Context(), f.store, "test:k", driver.Entry{Kind: driver.KindUnshared, TTL: time.Hour})
		f.origin.build = 500 * time.Millisecond // shorter than a waiting flight's pause between two looks
		go p.Get(context.Background(), "another")
		synctest.Wait()
		time.AfterFunc(200*time.Millisecond, func() { p.Invalidate(context.Background(), "k") })
		if v, err := p.Get(t.Context(), "k"); err != nil {
			t.Errorf("Get = %q, %v: the only slot is lost", v, err)
		}
	})
}

func TestFleet_StaleWhileWaitingForASlot(t *testing.T) {
	for _, down := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 1, push, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 1}, TTL: time.Second, StaleWhileRevalidate: time.Hour, Fleet: bellwether.Fleet{NearTTL: 200 * time.Millisecond}})
			p := f.processes[0]
			p.Get(t.Context(), "k")
			f.origin.build = 20 * time.Second
			go p.Get(context.Background(), "another")
			synctest.Wait()
			if down {
				p.store.set(refuse)
			}
			time.Sleep(2 * time.Second)
			p.Get(t.Context(), "k")
			for range 50 {
				start := time.Now()
				v, err := p.Get(t.Context(), "k")
				if took := time.Since(start); v != "v1" || err != nil || took > 0 {
					t.Fatalf("store down: %v; Get = %q, %v after %v", down, v, err, took)
				}
				time.Sleep(99 * time.Millisecond)
			}
		})
	}
}

// The end of a hit-for-miss record is not stored as an unshared value.
func TestUnshared_EndOfARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		private := true
		var mu sync.Mutex
		all := sites(t, 3, quiet{store}, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			w.Header().Set("Cache-Control", "max-age=3600")
			if private {
				w.Header().Set("Cache-Control", "no-store")
			}
			fmt.Fprint(w, "v")
		})
		const url = "http://example.com/"
		all[0].get(url)
		synctest.Wait()
		mu.Lock()
		private = false
		mu.Unlock()
		all[0].get(url) // ends the record
		synctest.Wait()
		if e, err := store.Get(t.Context(), "example.com/"); !errors.Is(err, bellwether.ErrNotFound) {
			t.Errorf("the store has %+v, %v", e, err)
		}
		before := all[0].calls.Load() + all[1].calls.Load() + all[2].calls.Load()
		var wg sync.WaitGroup
		for _, s := range all {
			wg.Go(func() { s.get(url) })
		}
		wg.Wait()
		if n := all[0].calls.Load() + all[1].calls.Load() + all[2].calls.Load() - before; n != 1 {
			t.Errorf("%d calls for one response", n)
		}
	})
}

// A key that is invalidated during each load is answered with a load that began after the call.
func TestFleet_InvalidatedFasterThanLoaded(t *testing.T) {
	for name, by := range map[string]way{"here": push, "heard": notices} {
		for _, failing := range []bool{false, true} {
			inBubble(t, fmt.Sprintf("%s failing=%t", name, failing), func(t *testing.T) {
				f := newFleet(t, 2, by, bellwether.Options{MaxWait: 10 * time.Minute})
				f.origin.build = 5 * time.Second
				if failing {
					f.origin.fail = func(int) error { return errOrigin }
				}
				p, invalidator := f.processes[0], f.processes[0]
				if by == notices {
					invalidator = f.processes[1]
				}
				defer every(2*time.Second, func() { invalidator.Invalidate(context.Background(), "k") })()
				for range 3 {
					before, _ := f.origin.count()
					start := time.Now()
					v, err := p.Get(t.Context(), "k")
					if took := time.Since(start); took > time.Minute || errors.Is(err, bellwether.ErrWaitTimeout) || (err != nil) != failing {
						t.Errorf("Get = %q, %v after %v", v, err, took)
					}
					if err == nil && version(v) <= before {
						t.Errorf("Get = %q, whose load began before the call", v)
					}
					time.Sleep(10 * time.Second)
				}
			})
		}
	}
}

// A value that the store does not take has its own load's lifetime, not that of the stored record.
func TestUnshared_LifetimeIsItsOwn(t *testing.T) {
	for name, o := range map[string]bellwether.Options{"turns": {Fleet: bellwether.Fleet{Locker: locallock.New()}}, "alone": {}} {
		inBubble(t, name, func(t *testing.T) {
			store := wiredTo(memstore.New())
			store.limit = func(e driver.Entry) error {
				if len(e.Value) > 1000 {
					return driver.ErrTooLarge
				}
				return nil
			}
			if o.Fleet.Store = store; o.Fleet.Locker != nil {
				o.Fleet.Locker = locallock.New()
			}
			control := "max-age=3600"
			page := func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", control)
				fmt.Fprint(w, strings.Repeat("x", 2000))
			}
			a := newSite(t, pageOptions(o), page)
			a.get("http://a/p")
			b := newSite(t, pageOptions(o), page) // not together with A: two logs of sweeps begun at once void A's value
			time.Sleep(10 * time.Second)
			control = "max-age=5, must-revalidate"
			b.get("http://a/p")
			b.wantCalls(t, 1)
			time.Sleep(2 * time.Second) // longer than NearTTL
			if w := b.get("http://a/p"); w.Header().Get("Age") != "2" {
				t.Errorf("2 s after it was made: %v", w.Header())
			}
			b.wantCalls(t, 0)
			time.Sleep(10 * time.Second)
			b.get("http://a/p")
			b.wantCalls(t, 1)
			// B's next response does not make A build its own again.
			control = "max-age=5, stale-while-revalidate=60"
			time.Sleep(10 * time.Second)
			b.get("http://a/p")
			a.calls.Store(0)
			for range 3 {
				time.Sleep(10 * time.Second)
				b.get("http://a/p")
				time.Sleep(2 * time.Second)
				a.get("http://a/p")
			}
			b.wantCalls(t, 4)
			a.wantCalls(t, 0)
		})
	}
}

// A value that the store does not take is loaded by all processes at one time.
func TestFleet_ValuesTheStoreDoesNotTake(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		const n, m, build = 5, 20, time.Second
		f := newFleet(t, n, by, bellwether.Options{})
		f.each(takesNoValues)
		for round := range 3 {
			f.origin.set(func(o *source) { o.loads = 0 })
			got := f.get(m, "k")
			if len(got.failed) > 0 || got.slowest > 2*build+time.Second {
				t.Errorf("round %d: the slowest caller waited %v for a load of %v: %v", round, got.slowest, build, got.count)
			}
			if loads, _ := f.origin.count(); loads != n {
				t.Errorf("round %d: %d loads in %d processes", round, loads, n)
			}
			// The values hold in their processes for their TTL, also after looks at the store.
			for range 5 {
				time.Sleep(2 * time.Second)
				f.get(m, "k")
			}
			if loads, _ := f.origin.count(); loads != n {
				t.Errorf("round %d: %d loads in %d processes within one TTL", round, loads, n)
			}
			invalidate(t, f.processes[0], "k")
			time.Sleep(2 * time.Second) // until all processes have seen it
		}
	})
}

// Once a value without a place in the store has expired, and the store takes its successor, one load is for all.
func TestFleet_ValueTheStoreTakesAgain(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		for _, known := range []bool{true, false} {
			f := newFleet(t, 3, by, bellwether.Options{TTL: 2 * time.Second, StaleWhileRevalidate: time.Hour})
			var taken atomic.Bool
			f.each(func(p *process) {
				p.store.limit = func(e driver.Entry) error {
					if len(e.Value) > 0 && !taken.Load() {
						return driver.ErrTooLarge
					}
					return nil
				}
			})
			before := f.processes[:1]
			if known {
				before = f.processes
			}
			callAll(before, 1, "k")
			taken.Store(true)
			time.Sleep(10 * time.Second)
			for _, p := range f.processes[1:] {
				p.Get(t.Context(), "k")
			}
			time.Sleep(1500 * time.Millisecond)
			f.get(1, "k")
			time.Sleep(1500 * time.Millisecond)
			if loads, _ := f.origin.count(); loads != len(before)+1 {
				t.Errorf("an older value known %t: %d loads, want %d and one for all", known, loads, len(before))
			}
		}
	})
}

// Processes do not load in turn a value that expires at once.
func TestFleet_ValuesWithoutALife(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		const n, m, build = 5, 20, time.Second
		f := newFleet(t, n, by, bellwether.Options{})
		f.origin.freshness = &bellwether.Freshness{}
		got := f.get(m, "k")
		if len(got.failed) > 0 || got.slowest > 2*build+time.Second {
			t.Errorf("the slowest caller waited %v for a load of %v: %v", got.slowest, build, got.count)
		}
		if loads, _ := f.origin.count(); loads > n {
			t.Errorf("%d loads in %d processes", loads, n)
		}
	})
}

// A load for an unshared key fails after the key was invalidated, and marked again, elsewhere. The
// failure does not answer a call that came after the invalidation.
func TestUnshared_FailureFromBeforeAnInvalidation(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, nearOff(bellwether.Options{TTL: time.Hour}))
		f.each(takesNoValues)
		f.each(func(p *process) { p.store.set(on(refuse, "notice")) })
		builds := func(d time.Duration) { f.origin.set(func(o *source) { o.build = d }) }
		builds(500 * time.Millisecond)
		f.origin.set(func(o *source) {
			o.fail = func(n int) error {
				if n == 2 {
					return errOrigin
				}
				return nil
			}
		})
		p, q := f.processes[0], f.processes[1]
		p.Get(t.Context(), "k")
		builds(2 * time.Second)
		var early sync.WaitGroup
		early.Go(func() { q.Get(t.Context(), "k") })
		time.Sleep(time.Second)
		if err := p.Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		builds(300 * time.Millisecond)
		p.Get(t.Context(), "k")
		time.Sleep(time.Millisecond)
		if v, err := q.Get(t.Context(), "k"); err != nil {
			t.Errorf("Get after the invalidation: %q, %v", v, err)
		}
		early.Wait()
	})
}

// A key that is invalidated elsewhere while its flight waits for a slot has one load, whose value the store takes.
func TestUnshared_InvalidatedWhileQueueing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 1}, MaxWait: 10 * time.Second})
		driver.Set(t.Context(), f.store, "test:k", driver.Entry{Kind: driver.KindUnshared, TTL: time.Hour})
		f.origin.build = 2 * time.Second
		go f.processes[0].Get(context.Background(), "another")
		synctest.Wait()
		time.AfterFunc(time.Second, func() { f.store.Invalidate(context.Background(), "test:k") })
		wantValue(t, f.processes[0], "k", "v2")
		f.wantLoads(t, 2)
		if e, err := f.store.Get(t.Context(), "test:k"); e.Kind != driver.KindValue || err != nil {
			t.Errorf("the store has %+v, %v", e, err)
		}
	})
}

// A store that takes no values, and does not say that they are too large, may still take the mark for the waiting
// processes. They load together and do not take turns.
func TestUnshared_ValuesWithoutAnAnswer(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 8, by, bellwether.Options{TTL: time.Hour})
		f.each(func(p *process) {
			p.store.limit = func(e driver.Entry) error {
				if len(e.Value) > 0 {
					return errors.New("SERVER_ERROR out of memory storing object")
				}
				return nil
			}
		})
		if out := f.get(1, "k"); len(out.failed) > 0 || out.slowest > 3*time.Second {
			t.Errorf("the slowest of 8 processes took %v, want two loads of 1 s; failures: %v", out.slowest, out.failed)
		}
	})
}
