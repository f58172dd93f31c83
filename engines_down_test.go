package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
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

// This file tests caches with engines that fail, hang or return wrong answers.

var engineFaults = map[string]func(p *process){
	"store is a black hole":          func(p *process) { p.store.set(blackHole) },
	"store refuses":                  func(p *process) { p.store.set(refuse) },
	"store panics":                   func(p *process) { p.store.set(func(context.Context, string) error { panic("adapter") }) },
	"store's Get is a black hole":    func(p *process) { p.store.set(on(blackHole, "get")) },
	"store's Claim is a black hole":  func(p *process) { p.store.set(on(blackHole, "claim")) },
	"store's Claim refuses":          func(p *process) { p.store.set(on(refuse, "claim")) },
	"store's Claim panics":           func(p *process) { p.store.set(on(func(context.Context, string) error { panic("adapter") }, "claim")) },
	"store says corrupt":             func(p *process) { p.store.set(on(answer(driver.ErrCorrupt), "get")) },
	"store's answers mean nothing":   func(p *process) { p.store.set(on(answer(driver.ErrLeaseLost), "get", "claim")) },
	"locker is a black hole":         func(p *process) { p.locker.set(blackHole) },
	"locker refuses":                 func(p *process) { p.locker.set(refuse) },
	"locker panics":                  func(p *process) { p.locker.set(func(context.Context, string) error { panic("adapter") }) },
	"locker's answers mean nothing":  func(p *process) { p.locker.set(on(answer(bellwether.ErrNotFound), "acquire")) },
	"both are black holes":           func(p *process) { p.store.set(blackHole); p.locker.set(blackHole) },
	"both refuse":                    func(p *process) { p.store.set(refuse); p.locker.set(refuse) },
	"locker hangs, then store hangs": func(p *process) { p.locker.set(blackHole); p.store.set(on(blackHole, "claim", "commit")) },
}

// While engines fail, every caller gets a value in time. Then one load per key is enough for the fleet.
func TestFleet_EngineFaults(t *testing.T) {
	const n, m, build, timeout = 3, 20, time.Second, 500 * time.Millisecond
	for name, inject := range engineFaults {
		t.Run(name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, by way) {
				f := newFleet(t, n, by, bellwether.Options{TTL: 30 * time.Second, Fleet: bellwether.Fleet{EngineTimeout: timeout}})
				f.each(inject)
				for round := range 3 {
					before, _ := f.origin.count()
					got := f.get(m, fmt.Sprint("k", round))
					if len(got.failed) > 0 {
						t.Fatalf("answers %v", got.count)
					}
					most := build + timeout + pollLag(build)
					if by == poll {
						most += n * time.Second / 2 // until each waiter sees that a lease was released without a value
					}
					if strings.Contains(name, "Claim is") || strings.Contains(name, "then store") {
						most += (n - 1) * timeout // each holder in turn waits out its claim
					}
					if got.slowest > most {
						t.Errorf("the slowest caller waited %v, want at most %v: %v", got.slowest, most, got.count)
					}
					if loads, _ := f.origin.count(); loads-before > n {
						t.Errorf("%d loads in %d processes", loads-before, n)
					}
				}
				f.wantRecovery(t)
			})
		})
	}
}

// A single failed call does not begin a second load.
func TestFleet_OneLostPacketWhileWaiting(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 3, by, bellwether.Options{})
		f.origin.build = 4 * time.Second
		go f.get(1, "k")
		time.Sleep(time.Second / 2)
		f.each(func(p *process) {
			var once atomic.Bool
			p.store.set(on(func(context.Context, string) error {
				if once.Swap(true) {
					return nil
				}
				return errRefused
			}, "get"))
		})
		time.Sleep(4 * time.Second)
		f.wantLoads(t, 1)
	})
}

// If the store fences every commit, callers still get the values, and a flight without callers ends.
func TestFleet_StoreForgetsClaims(t *testing.T) {
	for _, build := range []time.Duration{0, time.Second} {
		t.Run(build.String(), func(t *testing.T) {
			everyWay(t, func(t *testing.T, by way) {
				const n, m = 3, 20
				f := newFleet(t, n, by, bellwether.Options{MaxWait: 30 * time.Second})
				f.origin.build = build
				f.each(func(p *process) { p.store.set(on(answer(driver.ErrFenced), "commit")) })
				if got := f.get(m, "k"); len(got.failed) > 0 {
					t.Errorf("answers %v", got.count)
				}
				time.Sleep(time.Minute) // without callers
				most := 5 * n
				if build == 0 {
					most *= m // the callers hardly overlap
				}
				if loads, _ := f.origin.count(); loads > most {
					t.Errorf("%d loads for one herd in %d processes", loads, n)
				}
			})
		})
	}
}

func TestFleet_CorruptEntries(t *testing.T) {
	undecodable := map[string]bool{"another codec's bytes": true, "no bytes": true, "unknown kind": true}
	for name, tamper := range map[string]func(*driver.Entry){
		"another codec's bytes": func(e *driver.Entry) { e.Value = []byte("\x00\x01not JSON") },
		"no bytes":              func(e *driver.Entry) { e.Value = nil },
		"unknown kind":          func(e *driver.Entry) { e.Kind = 77 },
		"nothing, but an epoch": func(e *driver.Entry) { *e = driver.Entry{Epoch: e.Epoch} },
		"older than time":       func(e *driver.Entry) { e.Age = 1<<63 - 1 },
	} {
		inBubble(t, name, func(t *testing.T) {
			type pair struct{ A, B int }
			store := memstore.New()
			var loads atomic.Int32
			load := func(ctx context.Context, key string) (pair, error) {
				loads.Add(1)
				return pair{1, 2}, nil
			}
			good := cacheOf(t, load, bellwether.Options{Fleet: bellwether.Fleet{Store: store, Locker: locallock.New()}})
			good.Get(t.Context(), "k")
			wired := wiredTo(store)
			wired.tamper.Store(&tamper)
			var told []error
			c := cacheOf(t, load, bellwether.Options{
				Fleet: bellwether.Fleet{Store: wired, Locker: locallock.New()}, OnError: func(_ string, err error) {
					told = append(told, err)
				},
			})
			wantValue(t, c, "k", (pair{1, 2}))
			for _, err := range told {
				if !errors.Is(err, driver.ErrCorrupt) {
					t.Errorf("OnError is told %v, want an ErrCorrupt", err)
				}
				if name == "another codec's bytes" && !strings.Contains(err.Error(), "another type in this Namespace") {
					t.Errorf("OnError is told %v, want the likely cause", err)
				}
			}
			if (len(told) > 0) != undecodable[name] {
				t.Errorf("OnError is told %v", told)
			}
			if loads.Load() != 2 {
				t.Errorf("%d loads, want another one", loads.Load())
			}
			wired.tamper.Store(nil)
			time.Sleep(2 * time.Second)
			for _, c := range []*bellwether.Cache[pair]{good, c} {
				if v, err := c.Get(t.Context(), "k"); v != (pair{1, 2}) || err != nil || loads.Load() != 2 {
					t.Errorf("with the right bytes: Get = %v, %v after %d loads", v, err, loads.Load())
				}
			}
		})
	}
}

func TestFleet_BreakersInAnOutage(t *testing.T) {
	for name, f := range map[string]fault{"black hole": blackHole, "refuse": refuse} {
		for _, keys := range []int{1, 50} {
			inBubble(t, fmt.Sprintf("%s, %d keys", name, keys), func(t *testing.T) {
				fl := newFleet(t, 1, push, bellwether.Options{TTL: 2 * time.Second})
				p := fl.processes[0]
				fl.origin.build = 10 * time.Millisecond
				fl.get(1, "0")
				p.store.set(f)
				p.locker.set(f)
				p.store.reset()
				p.locker.reset()
				var late, calls atomic.Int32
				var wg sync.WaitGroup
				for i := range 6000 { // 100 a second for a minute
					wg.Go(func() {
						start := time.Now()
						if _, err := p.Get(t.Context(), fmt.Sprint(i%keys)); err != nil {
							t.Error(err)
						}
						calls.Add(1)
						if time.Since(start) > 100*time.Millisecond {
							late.Add(1)
						}
					})
					time.Sleep(10 * time.Millisecond)
				}
				wg.Wait()
				// All callers wait for half a second. Then one key's callers wait for a probe, every 1.5 s.
				if n := p.store.count() + p.locker.count(); n > 150 {
					t.Errorf("%d calls of dead engines for %d requests", n, calls.Load())
				}
				if keys > 1 && late.Load() > 300 || keys == 1 && late.Load() > 2500 {
					t.Errorf("%d of %d callers waited for dead engines", late.Load(), calls.Load())
				}
				// Callers do not wait for a probe that is under way.
				eventually(t, func() bool { return p.Stats().Flights == 0 })
				if s := p.Stats(); s.StoreUp {
					t.Error("the store's breaker is closed in an outage")
				}
				fl.wantRecovery(t)
			})
		}
	}
}

// After an outage and an hour without calls, the first herd of many keys makes one load per key.
func TestFleet_QuietAfterAnOutage(t *testing.T) {
	for _, by := range []way{push, poll, notices, atOnce} {
		for _, keys := range []int{1, 50} {
			inBubble(t, fmt.Sprintf("%d, %d keys", by, keys), func(t *testing.T) {
				fl := newFleet(t, 4, by, bellwether.Options{TTL: time.Minute})
				fl.origin.build = 100 * time.Millisecond
				for _, p := range fl.processes {
					p.store.set(refuse)
				}
				for i := range 30 {
					fl.get(1, fmt.Sprint("during ", i))
				}
				for _, p := range fl.processes {
					p.store.set(nil)
				}
				time.Sleep(time.Hour)
				before, _ := fl.origin.count()
				var herd sync.WaitGroup
				for _, p := range fl.processes {
					for i := range keys {
						herd.Go(func() { p.Get(t.Context(), fmt.Sprint("after ", i)) })
					}
				}
				herd.Wait()
				fl.wantLoads(t, before+keys)
			})
		}
	}
}

// Each process's first rebuild after an outage stands for election, although no write has succeeded yet.
func TestFleet_FirstRebuildAfterAnOutage(t *testing.T) {
	for name, f := range map[string]fault{"black hole": blackHole, "refuse": refuse} {
		for _, by := range []way{push, poll, notices, atOnce} {
			inBubbleBeside(t, fmt.Sprintf("%s, %d", name, by), func(t *testing.T) {
				fl := newFleet(t, 4, by, bellwether.Options{TTL: time.Minute})
				fl.each(func(p *process) { p.store.set(f) })
				for i := range 10 {
					fl.get(1, fmt.Sprint("during ", i))
				}
				fl.each(func(p *process) { p.store.set(nil) })
				time.Sleep(2 * time.Second)
				before, _ := fl.origin.count()
				fl.get(10, "after")
				fl.wantLoads(t, before+1)
			})
		}
	}
}

// Stats reports a dead engine as down, also during a probe, and between the calls of a quiet process.
func TestStats_ThroughAnOutage(t *testing.T) {
	for name, f := range map[string]fault{"black hole": blackHole, "refuse": refuse} {
		for _, engine := range []string{"store", "locker"} {
			for _, pause := range []time.Duration{10 * time.Millisecond, 10 * time.Second} {
				inBubble(t, fmt.Sprintf("%s, %s, a call in %v", name, engine, pause), func(t *testing.T) {
					// about 25 probes, or 12 calls
					outage := max(40*time.Second, 12*pause)
					fl := newFleet(t, 1, push, bellwether.Options{TTL: time.Second})
					p := fl.processes[0]
					w := p.store.wire
					up := func() bool { return p.Stats().StoreUp }
					if engine == "locker" {
						w, up = p.locker.wire, func() bool { return p.Stats().LockerUp }
					}
					fl.get(1, "k")
					w.set(f)
					began := time.Now()
					var wg sync.WaitGroup
					wg.Go(func() {
						for time.Since(began) < outage {
							p.Get(t.Context(), "k")
							time.Sleep(pause)
						}
					})
					for up() && time.Since(began) < time.Minute {
						time.Sleep(time.Millisecond)
					}
					for time.Since(began) < outage {
						if up() {
							t.Fatalf("%v after the outage began, Stats reports the %s as up", time.Since(began), engine)
						}
						time.Sleep(10 * time.Millisecond)
					}
					wg.Wait()
					time.Sleep(time.Minute) // without calls
					if !up() {
						t.Errorf("Stats reports the %s as down after a minute without calls", engine)
					}
					fl.wantRecovery(t)
				})
			}
		}
	}
}

func TestFleet_MaxRebuildsInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 20}, MaxWait: time.Hour})
		p := f.processes[0]
		p.store.set(blackHole)
		p.locker.set(blackHole)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				if _, err := p.Get(t.Context(), fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			})
		}
		start := time.Now()
		wg.Wait()
		if f.origin.mostAll != 20 || time.Since(start) > 52*time.Second {
			t.Errorf("%d loads at a time for %v, want 20 for about 50s", f.origin.mostAll, time.Since(start))
		}
	})
}

func TestInvalidate_GoexitIsNoSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{})
		p := f.processes[0]
		p.Get(t.Context(), "k")
		p.store.set(on(func(context.Context, string) error { runtime.Goexit(); return nil }, "invalidate"))
		if err := p.Invalidate(t.Context(), "k"); err == nil {
			t.Error("Invalidate returned nil, and the store still has the value")
		}
		p.store.reset()
		if p.Get(t.Context(), "k"); p.store.count("get") != 1 {
			t.Error("the near tier still has the value")
		}
	})
}

// One key's errors do not make an engine count as down, however long the EngineTimeout.
func TestFleet_OneFailingKeyWithoutATimeLimit(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		store := wiredTo(memstore.New())
		store.only = func(key string) bool { return key == "bad" }
		c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{
			Fleet: bellwether.Fleet{Store: store, EngineTimeout: math.MaxInt64},
		})
		store.set(on(refuse, "get", "claim"))
		for _, key := range []string{"good", "bad"} {
			if v, err := c.Get(t.Context(), key); v != "v" || err != nil {
				t.Errorf("%s: %q, %v", key, v, err)
			}
		}
		if !c.Stats().StoreUp {
			t.Error("the store counts as down")
		}
	})
}
