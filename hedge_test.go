package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/observe"
)

// hedgers starts n processes with a saved hedge each, which hedge rebuilds of three times the usual 1 s.
func hedgers(t *testing.T, n int, by way) *fleet {
	t.Helper()
	return hedgersOf(t, n, by, bellwether.Options{})
}

func hedgersOf(t *testing.T, n int, by way, o bellwether.Options) *fleet {
	t.Helper()
	o.Hedge, o.HedgeShare, o.RebuildTimeout = 3, 1, time.Minute
	f := newFleet(t, n, by, o)
	var wg sync.WaitGroup
	for i, p := range f.processes {
		wg.Go(func() { p.Get(t.Context(), fmt.Sprint("own", i)) })
	}
	wg.Wait()
	return f
}

func (f *fleet) hedges() (n uint64) {
	f.each(func(p *process) { n += p.Stats().Hedges })
	return n
}

// hang has the first process rebuild the key for the time build. Later loads take a second.
func (f *fleet) hang(t *testing.T, build time.Duration, fail func(n int) error) <-chan *outcome {
	t.Helper()
	first := make(chan *outcome, 1)
	f.origin.set(func(o *source) { o.build = build })
	go func() { first <- callAll(f.processes[:1], 10, "k") }()
	synctest.Wait()
	f.origin.set(func(o *source) { o.build, o.fail = time.Second, fail })
	return first
}

// lag is how late a waiter may see a value that came after it had waited so long.
func lag(by way, waited time.Duration) time.Duration {
	if by == notices {
		return 0
	}
	return pollLag(waited) // the locker does not push the end of a hedge
}

// When a holder hangs, one other process rebuilds, and the value also reaches the holder's callers.
func TestHedge_StuckHolder(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		const n = 10
		f := hedgers(t, n, by)
		first := f.hang(t, 50*time.Second, nil)
		start := time.Now()
		got := callAll(f.processes[1:], 100, "k")
		if len(got.failed) > 0 || got.values["v12"] != 900 || got.slowest > 4*time.Second+lag(by, 4*time.Second) {
			t.Errorf("answers %v", got.count)
		}
		if holders := <-first; holders.values["v12"] != 10 || time.Since(start) > 4*time.Second+lag(by, 4*time.Second) {
			t.Errorf("the holder's callers got %v after %v, want the hedge's value at once", holders.count, time.Since(start))
		}
		if running := f.running(); running != 0 {
			t.Error("the holder's load still runs")
		}
		f.wantLoads(t, n+2)
		if hedges := f.hedges(); hedges != 1 {
			t.Errorf("%d hedges, want 1", hedges)
		}
		if _, err := f.locker.TryAcquire(t.Context(), "test\x00hedge\x00k", time.Second); err != nil {
			t.Errorf("the lease of the hedge that is over: %v", err)
		}
		time.Sleep(50*time.Second - 5*time.Second) // when the holder would have been done
		if got := f.get(10, "k"); got.values["v12"] != 100 {
			t.Errorf("afterwards %v, want the hedge's value still", got.count)
		}
	})
}

func (f *fleet) running() (n int) {
	synctest.Wait()
	f.origin.set(func(o *source) { n = o.all })
	return n
}

// The late commit of a holder that sees no other commits does not replace the hedge's value.
func TestHedge_HolderCommitsLate(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := hedgers(t, 4, by)
		f.processes[0].store.set(func(ctx context.Context, op string) error {
			switch op {
			case "get":
				return bellwether.ErrNotFound
			case "notice":
				return errRefused
			}
			return nil
		})
		first := f.hang(t, 10*time.Second, nil)
		if got := callAll(f.processes[1:], 10, "k"); got.values["v6"] != 30 {
			t.Errorf("answers %v, want the hedge's value", got.count)
		}
		time.Sleep(5500 * time.Millisecond)
		f.processes[0].store.set(nil) // the holder's commit arrives
		if got := <-first; got.values["v6"] != 10 {
			t.Errorf("the holder's callers got %v, want the newer value", got.count)
		}
		time.Sleep(2 * time.Second)
		if got := f.get(10, "k"); got.values["v6"] != 40 {
			t.Errorf("afterwards %v", got.count)
		}
		f.wantLoads(t, 4+2)
	})
}

func TestHedge_HolderIsFirst(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := hedgers(t, 10, by)
		first := f.hang(t, 3500*time.Millisecond, nil)
		got := callAll(f.processes[1:], 100, "k")
		if len(got.failed) > 0 || got.values["v11"] != 900 || got.slowest > 3500*time.Millisecond+pollLag(3500*time.Millisecond) {
			t.Errorf("answers %v, want the holder's", got.count)
		}
		if got := <-first; got.values["v11"] != 10 {
			t.Errorf("the holder's callers got %v", got.count)
		}
		if running := f.running(); running != 0 {
			t.Error("the hedge's load still runs")
		}
		time.Sleep(10 * time.Second)
		if got := f.get(10, "k"); got.values["v11"] != 100 {
			t.Errorf("afterwards %v, want the holder's value", got.count)
		}
		if hedges := f.hedges(); hedges != 1 {
			t.Errorf("%d hedges, want 1", hedges)
		}
		f.wantLoads(t, 12)
	})
}

// An overtaken holder gives its lease back at once, also beside an observer that takes long.
func TestHedge_OvertakenHolderGivesItsLeaseBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := hedgersOf(t, 2, push, bellwether.Options{Observers: []observe.Observer{{
			Rebuild: func(ctx context.Context, _ string) (context.Context, func(observe.Rebuild)) {
				return ctx, func(told observe.Rebuild) {
					if told.Outcome == observe.OutcomeAbandoned {
						time.Sleep(20 * time.Second)
					}
				}
			},
		}}})
		first := f.hang(t, 50*time.Second, nil)
		f.processes[1].Get(t.Context(), "k") // hedges
		time.Sleep(2 * time.Second)          // the holder has seen the hedge's value
		invalidate(t, f.processes[1], "k")
		start := time.Now()
		f.processes[1].Get(t.Context(), "k")
		wantTook(t, start, time.Second)
		<-first
	})
}

// A hedge that fails reaches no caller and is not repeated. The holder's commit is taken.
func TestHedge_Fails(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := hedgers(t, 6, by)
		first := f.hang(t, 20*time.Second, func(n int) error {
			if n > 7 {
				return errOrigin
			}
			return nil
		})
		got := callAll(f.processes[1:], 10, "k")
		if len(got.failed) > 0 || got.values["v7"] != 50 {
			t.Errorf("answers %v, want the holder's", got.count)
		}
		if got := <-first; got.values["v7"] != 10 {
			t.Errorf("the holder's callers got %v", got.count)
		}
		if hedges := f.hedges(); hedges != 1 {
			t.Errorf("%d hedges, want 1", hedges)
		}
		f.wantLoads(t, 6+2)
	})
}

// Processes with hedges left stop hedging when the origin is slow for every key.
func TestHedge_OriginIsSlow(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		const n = 4
		f := hedgers(t, n, by)
		for i := range 100 { // saves up more hedges than are used
			f.processes[i%n].Get(t.Context(), fmt.Sprint("more", i))
		}
		before := f.hedges()
		f.origin.set(func(o *source) { o.build = 10 * time.Second })
		for i := range 100 {
			if got := f.get(1, fmt.Sprint("slow", i)); len(got.failed) > 0 {
				t.Fatalf("answers %v", got.count)
			}
		}
		if hedges := f.hedges() - before; hedges == 0 || hedges > n*8 {
			t.Errorf("%d hedges for 100 slow keys, want some, and at most 8 of each process", hedges)
		}
	})
}

// There is no hedge without the option, for callers with a stale value, or beyond MaxRebuilds.
func TestHedge_None(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		for name, o := range map[string]bellwether.Options{
			"off":         {},
			"stale":       {Hedge: 3, HedgeShare: 1, TTL: time.Second, StaleWhileRevalidate: time.Hour},
			"endless":     {Hedge: 1e300, HedgeShare: 1, RebuildTimeout: math.MaxInt64, MaxWait: time.Hour},
			"MaxRebuilds": {Hedge: 3, HedgeShare: 1, Limits: bellwether.Limits{MaxRebuilds: 1}},
		} {
			f := newFleet(t, 3, by, o)
			f.get(1, "kx")
			for i, p := range f.processes {
				p.Get(t.Context(), fmt.Sprint("own", i))
			}
			if name == "stale" {
				f.get(1, "k")
				time.Sleep(2 * time.Second)
			}
			loads, _ := f.origin.count()
			first := f.hang(t, 10*time.Second, nil)
			if name == "MaxRebuilds" {
				f.origin.set(func(o *source) { o.build = 12 * time.Second })
				for i, p := range f.processes[1:] {
					go p.Get(context.Background(), fmt.Sprint("other", i))
				}
				synctest.Wait()
				loads += 2
			}
			callAll(f.processes[1:], 10, "k")
			<-first
			time.Sleep(15 * time.Second)
			if hedges := f.hedges(); hedges != 0 {
				t.Errorf("%s: %d hedges", name, hedges)
			}
			f.wantLoads(t, loads+1)
		}
	})
}

// Close releases a hedge's lease, so another process may hedge the holder.
func TestHedge_CloseGivesItsLeaseBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := hedgers(t, 3, push)
		first := f.hang(t, 50*time.Second, nil)
		f.origin.set(func(o *source) { o.build = 30 * time.Second })
		go f.processes[1].Get(context.Background(), "k")
		time.Sleep(5 * time.Second) // hedged at 3 s
		if f.hedges() != 1 {
			t.Fatal("no hedge")
		}
		f.processes[1].Close()
		if _, err := f.locker.TryAcquire(t.Context(), "test\x00hedge\x00k", time.Second); err != nil {
			t.Errorf("after Close: %v", err)
		}
		<-first
	})
}

func TestHedge_FailureIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := watched(bellwether.Options{})
		f := hedgersOf(t, 2, push, o)
		r.reset()
		first := f.hang(t, 20*time.Second, func(n int) error {
			if n > 3 {
				return errOrigin
			}
			return nil
		})
		f.processes[1].Get(t.Context(), "k")
		<-first
		synctest.Wait() // observers are called after the answers
		var failed uint64
		for _, b := range r.rebuilds {
			if b.Outcome == observe.OutcomeFailed && errors.Is(b.Err, errOrigin) {
				failed++
			}
		}
		if counted := f.processes[1].Stats().LoadFailures; failed != 1 || counted != 1 {
			t.Errorf("%d failures told, %d counted, want the hedge's: %+v", failed, counted, r.rebuilds)
		}
	})
}

// The hedge's value reaches the callers of a holder that knows no build time, or only longer ones.
func TestHedge_HolderKnowsNoUsualBuild(t *testing.T) {
	for name, known := range map[string]time.Duration{"nothing built": 0, "only slow builds": 20 * time.Second} {
		t.Run(name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, by way) {
				f := newFleet(t, 3, by, bellwether.Options{Hedge: 3, HedgeShare: 1, RebuildTimeout: time.Minute})
				for i, p := range f.processes[1:] {
					p.Get(t.Context(), fmt.Sprint("own", i))
				}
				if known > 0 {
					f.origin.set(func(o *source) { o.build = known })
					f.processes[0].Get(t.Context(), "own")
				}
				start := time.Now()
				first := f.hang(t, 30*time.Second, nil)
				if got := callAll(f.processes[1:], 10, "k"); len(got.failed) > 0 || len(got.values) != 1 {
					t.Errorf("answers %v", got.count)
				}
				took := time.Since(start)
				if took > 5*time.Second || f.hedges() != 1 {
					t.Fatalf("the hedge's value after %v, with %d hedges", took, f.hedges())
				}
				if got := <-first; len(got.values) != 1 || got.slowest > took+lag(by, took) {
					t.Errorf("the holder's callers got %v after %v, want the hedge's value, which was there after %v", got.count, got.slowest, took)
				}
			})
		})
	}
}

// A hedge whose load has begun uses up the budget, also if the user's code ends the flight after it.
func TestHedge_OnErrorExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := hedgersOf(t, 2, push, bellwether.Options{OnError: func(_ string, err error) {
			if errors.Is(err, driver.ErrTooLarge) {
				runtime.Goexit()
			}
		}})
		p := f.processes[1]
		takesNoValues(p)
		for i, key := range []string{"k", "k2"} {
			f.origin.set(func(o *source) { o.build = 50 * time.Second })
			go f.processes[0].Get(context.Background(), key)
			synctest.Wait()
			f.origin.set(func(o *source) { o.build = time.Second })
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if _, err := p.Get(ctx, key); i == 0 && !errors.Is(err, bellwether.ErrGoexit) {
				t.Errorf("Get: %v, want ErrGoexit", err)
			}
			cancel()
		}
		if hedges := f.hedges(); hedges != 1 {
			t.Errorf("%d hedges, want 1: there is a hedge for each load of the process, and it has made one", hedges)
		}
	})
}
