package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
)

// This file tests processes that wait for another holder or for a slot.

func TestFleet_StaleWhileAnotherRebuilds(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 4, by, bellwether.Options{TTL: 10 * time.Second, StaleWhileRevalidate: time.Hour})
		f.get(1, "k")
		time.Sleep(10 * time.Second)
		f.each(func(p *process) { p.store.reset(); p.locker.reset() })
		f.origin.set(func(o *source) { o.build = 20 * time.Second })
		for range 200 { // for 10 s
			f.get(5, "k").want(t, 20, "v1", nil, 0)
			time.Sleep(50 * time.Millisecond)
		}
		f.wantLoads(t, 2)
		f.each(func(p *process) {
			most := 30 // a flight, a look a second, renewals
			if by == poll {
				most = 260
			}
			if n := p.store.count() + p.locker.count(); n > most {
				t.Errorf("%d calls of engines for 1000 stale hits in 10 s, want at most %d", n, most)
			}
			if s := p.Stats(); s.Misses > 12 {
				t.Errorf("%d flights", s.Misses)
			}
		})
		time.Sleep(12 * time.Second)
		f.get(5, "k").want(t, 20, "v2", nil, 0)
		f.wantLoads(t, 2)
	})
}

// If the locker's push fails or comes early, waiters poll the store and do not take over from a working holder.
func TestFleet_WatchFaults(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	for name, inject := range map[string]func(p *process){
		"hangs":   func(p *process) { p.locker.set(on(blackHole, "watch")) },
		"refuses": func(p *process) { p.locker.set(on(refuse, "watch")) },
		"panics":  func(p *process) { p.locker.set(on(func(context.Context, string) error { panic("adapter") }, "watch")) },
		"closes at once": func(p *process) {
			p.locker.watch.Store(new(func() (<-chan struct{}, error) { return closed, nil }))
		},
		"closes early, as at each renewal": func(p *process) {
			p.locker.watch.Store(new(func() (<-chan struct{}, error) {
				c := make(chan struct{})
				time.AfterFunc(time.Second/3, func() { close(c) })
				return c, nil
			}))
		},
		"never closes": func(p *process) {
			p.locker.watch.Store(new(func() (<-chan struct{}, error) { return make(chan struct{}), nil }))
		},
		"gives nothing": func(p *process) {
			p.locker.watch.Store(new(func() (<-chan struct{}, error) { return nil, nil }))
		},
	} {
		inBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 4, push, bellwether.Options{})
			f.each(inject)
			f.wantPatience(t)
		})
	}
}

// A locker that never pushes is no failure: its waiters poll, and nobody is told.
func TestFleet_WatchUnsupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4, push, bellwether.Options{OnError: func(key string, err error) { t.Errorf("%s: %v", key, err) }})
		f.each(func(p *process) {
			p.locker.watch.Store(new(func() (<-chan struct{}, error) {
				return nil, fmt.Errorf("a ring: %w", errors.ErrUnsupported)
			}))
		})
		f.wantPatience(t)
		f.each(func(p *process) {
			if n := p.Stats().EngineErrors; n != 0 {
				t.Errorf("%d engine errors", n)
			}
		})
	})
}

// A process that hears no push waits no longer for a holder whose commit it has seen, though the value was stale by then.
func TestWaiting_CommitWithoutAPush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := deafFleet(t, 100*time.Millisecond)
		start := time.Now()
		v, err := f.processes[1].Get(t.Context(), "k")
		if took := time.Since(start); v != "v2" || err != nil || took > 1200*time.Millisecond {
			t.Errorf("%q, %v after %v, want v2 within 1.2 s", v, err, took)
		}
	})
}

// A commit beside a holder at work costs a waiting process one election.
func TestWaiting_CommitBesideTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := deafFleet(t, 4*time.Second)
		set := driver.Entry{Kind: driver.KindValue, Value: []byte(`"set"`), TTL: 300 * time.Millisecond, StaleIfError: time.Hour}
		time.AfterFunc(500*time.Millisecond, func() { driver.Set(t.Context(), f.store, "test:k", set) })
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		if v, err := f.processes[1].Get(ctx, "k"); err == nil {
			t.Errorf("%q beside a holder at work", v)
		}
		f.wantLoads(t, 1)
		if n := f.processes[1].locker.count("acquire"); n != 2 {
			t.Errorf("%d elections, want 2", n)
		}
	})
}

// Commits one after another, as of a writer beside a dead holder, do not keep a waiting flight from its election.
func TestWaiting_BesideManyCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, notices, bellwether.Options{TTL: 5 * time.Millisecond, StaleIfError: time.Hour, MaxWait: time.Hour})
		if _, err := f.locker.TryAcquire(t.Context(), "test:k", 3*time.Second); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var writer sync.WaitGroup
		defer writer.Wait()
		defer cancel()
		writer.Go(func() {
			for ctx.Err() == nil {
				driver.Set(ctx, f.store, "test:k", driver.Entry{Kind: driver.KindValue, Value: []byte(`"set"`), StaleIfError: time.Hour})
				time.Sleep(8 * time.Millisecond) // less than noticeLag
			}
		})
		time.Sleep(time.Millisecond)
		start := time.Now()
		_, err := f.processes[0].Get(ctx, "k")
		if took := time.Since(start); err != nil || took > 15*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		if n := f.processes[0].locker.count("acquire"); n > 10 {
			t.Errorf("%d elections", n)
		}
	})
}

// deafFleet returns two processes that hear no push, the first with the lease of "k" for a load of that time. Their values
// are soon stale, and then no answer.
func deafFleet(t *testing.T, build time.Duration) *fleet {
	f := newFleet(t, 2, push, bellwether.Options{TTL: 300 * time.Millisecond, StaleIfError: time.Hour})
	f.each(func(p *process) {
		p.locker.watch.Store(new(func() (<-chan struct{}, error) { return make(chan struct{}), nil }))
	})
	f.origin.set(func(o *source) { o.build = build })
	go f.processes[0].Get(t.Context(), "k")
	time.Sleep(50 * time.Millisecond)
	return f
}

// wantPatience has all processes wait for one load, without calls of the engines in a loop.
func (f *fleet) wantPatience(t *testing.T) {
	t.Helper()
	const build = 4 * time.Second
	f.origin.set(func(o *source) { o.build = build })
	got := f.get(20, "k")
	f.wantLoads(t, 1)
	if len(got.failed) > 0 || got.slowest > build+time.Second {
		t.Errorf("slowest %v: %v", got.slowest, got.count)
	}
	f.each(func(p *process) {
		if n := p.store.count() + p.locker.count(); n > 1000 {
			t.Errorf("%d calls of engines in %v: a loop without a pause", n, build)
		}
	})
}

// Incomplete or wrong HeldErrors do not begin a second load, nor calls in a loop.
func TestFleet_HeldFaults(t *testing.T) {
	for name, held := range map[string]func(*driver.HeldError) error{
		"without Until":      func(h *driver.HeldError) error { h.Until = time.Time{}; return h },
		"wrapped":            func(h *driver.HeldError) error { return fmt.Errorf("engine: %w", h) },
		"bare ErrHeld":       func(*driver.HeldError) error { return driver.ErrHeld },
		"Until long ago":     func(h *driver.HeldError) error { h.Until = time.Now().Add(-time.Hour); return h },
		"Until now":          func(h *driver.HeldError) error { h.Until = time.Now(); return h },
		"Until never":        func(h *driver.HeldError) error { h.Until = time.Unix(1<<40, 0); return h },
		"nothing to be seen": func(h *driver.HeldError) error { h.Seen = nil; return h },
	} {
		t.Run(name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, by way) {
				f := newFleet(t, 4, by, bellwether.Options{})
				f.each(func(p *process) { p.locker.held.Store(&held) })
				f.wantPatience(t)
			})
		})
	}
}

// A waiter goes on waiting for the known holder if the locker misses an answer, and loads if it gives none.
func TestFleet_LockerMissesAnAnswer(t *testing.T) {
	for asked, want := range map[int]int{1: 1, 2: 1, 100: 5} {
		inBubble(t, fmt.Sprint(asked), func(t *testing.T) {
			f := newFleet(t, 5, poll, bellwether.Options{}) // the waiters of poll do not use the locker during a load
			f.origin.build = 3 * time.Second
			var refused atomic.Int32
			time.AfterFunc(1200*time.Millisecond, func() {
				f.each(func(p *process) {
					var n atomic.Int32
					p.locker.set(func(_ context.Context, op string) error {
						if op == "acquire" && n.Add(1) <= int32(asked) {
							refused.Add(1)
							return errRefused
						}
						return nil
					})
				})
			})
			got := f.get(20, "k")
			if loads, _ := f.origin.count(); loads != want || len(got.failed) > 0 || refused.Load() == 0 || got.slowest > 6*time.Second {
				t.Errorf("%d loads, want %d; %d calls refused; %v", loads, want, refused.Load(), got.count)
			}
		})
	}
}

// Once a lease is free without a value, a process whose election gets no answer loads, whatever the locker's silence
// looks like.
func TestFleet_LockerSilentAndTheLeaseFree(t *testing.T) {
	const lease = 5 * time.Second
	cancels := on(answer(context.Canceled), "acquire", "watch")
	for name, c := range map[string]struct {
		by       way
		released bool // at 1 s, otherwise the lease ends
		silence  fault
	}{
		"released":          {push, true, blackHole},
		"released, cancels": {push, true, cancels}, // no gate counts a call's end as a failure
		"ended":             {poll, false, blackHole},
		"ended, cancels":    {poll, false, cancels},
		"ended, push":       {push, false, cancels},
	} {
		inBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 1, c.by, bellwether.Options{Fleet: bellwether.Fleet{EngineTimeout: time.Second}})
			f.origin.build = 100 * time.Millisecond
			dead, err := f.locker.TryAcquire(t.Context(), "test:k", lease)
			if err != nil {
				t.Fatal(err)
			}
			free := lease
			if c.released {
				free = time.Second
				time.AfterFunc(free, func() { dead.Release(context.Background()) })
			}
			time.AfterFunc(free-time.Millisecond, func() { f.processes[0].locker.set(c.silence) })
			start := time.Now()
			wantValue(t, f.processes[0], "k", "v1")
			if took := time.Since(start); took > free+1200*time.Millisecond {
				t.Errorf("an answer after %v, want one soon after %v, when the lease was free", took, free)
			}
		})
	}
}

// A tiny NearTTL reads the store at each call, and not in a loop in between. Neither does the longest.
func TestFleet_ExtremeNearTTL(t *testing.T) {
	for _, nearTTL := range []time.Duration{1, math.MaxInt64} {
		everyWay(t, func(t *testing.T, by way) {
			f := newFleet(t, 2, by, bellwether.Options{TTL: time.Minute, StaleWhileRevalidate: time.Hour, Fleet: bellwether.Fleet{NearTTL: nearTTL}})
			f.get(1, "k")
			time.Sleep(2 * time.Minute)
			f.each(func(p *process) { p.store.reset() })
			f.get(1, "k") // stale, and one process rebuilds
			time.Sleep(time.Second)
			f.each(func(p *process) {
				if n := p.store.count(); n > 1000 {
					t.Errorf("%d calls of the store during a load of a second", n)
				}
			})
		})
	}
}

func TestFleet_WaitingForASlot(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 1}})
		f.origin.build = 20 * time.Second
		var wg sync.WaitGroup
		wg.Go(func() { f.processes[0].Get(context.Background(), "blocks the slot") })
		synctest.Wait()
		f.origin.set(func(o *source) { o.build = time.Second })
		wg.Go(func() {
			start := time.Now()
			got := callAll(f.processes[:1], 1, "k")
			if took := time.Since(start); len(got.failed) > 0 || took > 3*time.Second {
				t.Errorf("answered after %v, want soon after the other process's load: %v", took, got.failed)
			}
		})
		synctest.Wait()
		wg.Go(func() { callAll(f.processes[1:], 1, "k") })
		wg.Wait()
		f.wantLoads(t, 2)
	})
}

// If watches fail while the locker's other calls succeed, the locker is not down.
func TestFleet_ManyWatchesRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 20
		f := newFleet(t, 3, push, bellwether.Options{})
		f.origin.build = 2 * time.Second
		late := func(context.Context, string) error {
			time.Sleep(100 * time.Millisecond) // no other answer comes in between
			return errRefused
		}
		f.each(func(p *process) { p.locker.set(on(late, "watch")) })
		for range 3 {
			var wg sync.WaitGroup
			for i := range keys {
				wg.Go(func() { f.get(2, fmt.Sprint(i)) })
			}
			wg.Wait()
			time.Sleep(time.Minute)
		}
		f.wantLoads(t, 3*keys)
	})
}
