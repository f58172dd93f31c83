package bellwether_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
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

// This file tests an engine that is store and locker at once.

// An uncontended miss takes two requests, and a hit of the store one.
func TestElect_UncontendedMiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, atOnce, bellwether.Options{TTL: time.Minute})
		f.origin.build = 10 * time.Millisecond
		for round := range 3 {
			for i, p := range f.processes {
				f.each(func(p *process) { p.store.reset(); p.locker.reset() })
				p.Get(t.Context(), "k")
				synctest.Wait()
				want := map[string]int{"elect": 1, "commit and release": 1 - i}
				for op, n := range want {
					if got := p.store.count(op); got != n {
						t.Errorf("round %d, process %d: %d calls of %s, want %d", round, i, got, op, n)
					}
				}
				if all := p.store.count() + p.locker.count(); all != 2-i {
					t.Errorf("round %d, process %d: %d calls, want %d", round, i, all, 2-i)
				}
			}
			time.Sleep(time.Minute)
		}
		f.wantLoads(t, 3)
	})
}

func TestElect_WaiterGivesItsSlotBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, atOnce, bellwether.Options{TTL: time.Minute, Limits: bellwether.Limits{MaxRebuilds: 1}})
		f.origin.build = 5 * time.Second
		a, b := f.processes[0], f.processes[1]
		go a.Get(t.Context(), "k")
		synctest.Wait()
		go b.Get(t.Context(), "k")
		synctest.Wait()
		start := time.Now()
		if _, err := b.Get(t.Context(), "other"); err != nil || time.Since(start) != 5*time.Second {
			t.Errorf("another key: %v after %v, want its load alone", err, time.Since(start))
		}
		f.wantLoads(t, 2)
	})
}

// A fresh entry that a process cannot decode is replaced by one load of the fleet.
func TestElect_PastWhatDoesNotDecode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, atOnce, bellwether.Options{
			TTL: time.Hour, Fleet: bellwether.Fleet{NearTTL: time.Second}, Codec: bellwether.Codec{
				Marshal: json.Marshal,
				Unmarshal: func(b []byte, v any) error {
					if string(b) == `"v1"` {
						return errors.New("an old version")
					}
					return json.Unmarshal(b, v)
				},
			},
		})
		f.processes[0].Get(t.Context(), "k")
		f.each(func(p *process) { p.store.reset() })
		if got := callAll(f.processes[1:], 10, "k"); got.values["v2"] != 20 {
			t.Errorf("answers %v, want the second load's", got.count)
		}
		f.wantLoads(t, 2)
		for i, p := range f.processes[1:] {
			if n := p.store.count("elect"); n > 3 {
				t.Errorf("process %d stood for election %d times", i+1, n)
			}
		}
	})
}

// If elections fail, the store is read with Get, and the load goes on without a lease.
func TestElect_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, atOnce, bellwether.Options{TTL: time.Minute})
		p := f.processes[0]
		p.store.set(on(refuse, "elect"))
		wantValue(t, p, "k", "v1")
		if n, s := p.store.count("commit"), p.Stats(); n != 1 || s.Degraded != 1 {
			t.Errorf("%d commits, want one, under the epoch of a claim; Degraded = %d, want 1", n, s.Degraded)
		}
		time.Sleep(2 * time.Second)
		p.store.reset()
		if v, err := p.Get(t.Context(), "k"); v != "v1" || err != nil || p.store.count("get") != 1 {
			t.Errorf("Get = %q, %v with %d looks, want the value by a look alone", v, err, p.store.count("get"))
		}
	})
}

// A failure beside a stale value is stored by Touch. The value is sent only if the store has lost it.
func TestTouch_FailureBesideAStaleValue(t *testing.T) {
	for name, touch := range map[string]fault{"the store has the value": nil, "the store has lost it": on(answer(bellwether.ErrNotFound), "touch")} {
		inBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 2, push, bellwether.Options{})
			sent := 0
			for _, p := range f.processes {
				p.store.limit = func(e driver.Entry) error { sent += len(e.Value); return nil }
				p.Cache = cacheOf(t, f.origin.load, bellwether.Options{
					TTL: time.Second, StaleIfError: time.Hour, ErrorTTL: time.Minute, MaxErrorTTL: time.Hour,
					Fleet: bellwether.Fleet{Store: p.store.touching(), Locker: p.locker},
				})
			}
			f.get(1, "k")
			time.Sleep(2 * time.Second)
			sent = 0
			f.origin.set(func(o *source) { o.fail = func(int) error { return errOrigin } })
			f.each(func(p *process) { p.store.set(touch) })
			if got := f.get(3, "k"); got.values["v1"] != 6 {
				t.Errorf("answers %v, want the stale value", got.count)
			}
			touches := f.processes[0].store.count("touch") + f.processes[1].store.count("touch")
			want := 0
			if touch != nil {
				want = len("v1")
			}
			if touches != 1 || sent != want {
				t.Errorf("%d touches, and %d bytes of values were sent with the failure, want 1 and %d", touches, sent, want)
			}
			f.wantLoads(t, 2)
			e, err := f.store.Get(t.Context(), "test:k")
			if err != nil || e.Failures != 1 || string(e.Value) != "v1" {
				t.Errorf("the store has %+v, %v", e, err)
			}
		})
	}
}

// A flight stands for election also if each of its looks reads the log of sweeps.
func TestElect_BesideTheLog(t *testing.T) {
	for name, o := range map[string]bellwether.HTTPOptions{
		"invalidated":   {},
		"near tier off": {Fleet: bellwether.Fleet{NearTTL: -1}},
		"short NearTTL": {Fleet: bellwether.Fleet{NearTTL: 2 * time.Millisecond}},
	} {
		inBubble(t, name, func(t *testing.T) {
			store := farStore(memstore.New())
			engine := &batchingEngine{wiredEngine{store, wiredLocks(store.store.(*memstore.Store))}}
			o.Fleet.Engine, o.MaxWait = engine, time.Second
			loads := 0
			var s *site
			s = newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
				if loads++; loads == 1 && name == "invalidated" {
					invalidate(t, s.mw, "http://example.com/")
				}
				page(0, "page")(w, r)
			})
			time.Sleep(time.Second) // until the log has begun
			store.reset()
			want := 1
			if name == "invalidated" {
				want = 2
			}
			if w := s.get("http://example.com/"); w.Code != http.StatusOK || loads != want {
				t.Errorf("status %d with %d loads, want the page of load %d", w.Code, loads, want)
			}
			if n := store.count("elect"); n == 0 || store.count() > 12 {
				t.Errorf("%d elections in %d calls", n, store.count())
			}
		})
	}
}

type emptyElector struct {
	driver.Elector
	elections atomic.Int32
}

func (e *emptyElector) Elect(context.Context, string, uint64, time.Duration) (driver.Election, error) {
	time.Sleep(time.Millisecond)
	if e.elections.Add(1) > 100 {
		time.Sleep(time.Hour)
	}
	return driver.Election{}, nil
}

func TestElect_EmptyAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &emptyElector{Elector: memstore.New()}
		c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{Engine: e}})
		if v, err := c.Get(t.Context(), "k"); v != "v" || err != nil || e.elections.Load() > 1 {
			t.Errorf("Get = %q, %v after %d elections, want a load after one", v, err, e.elections.Load())
		}
	})
}

func TestElect_SilentWritesLeaveTheHits(t *testing.T) {
	for name, by := range map[string]way{"one engine": atOnce, "two": push} {
		inBubble(t, name, func(t *testing.T) {
			const keys = 100
			f := newFleet(t, 2, by, bellwether.Options{TTL: time.Hour})
			f.origin.build = 0
			a, b := f.processes[0], f.processes[1]
			for i := range keys {
				a.Get(t.Context(), strconv.Itoa(i))
			}
			b.store.set(on(blackHole, "elect", "claim", "commit", "commit and release"))
			b.locker.set(blackHole)
			began := time.Now()
			var callers sync.WaitGroup
			for i := range keys {
				callers.Go(func() {
					if _, err := b.Get(t.Context(), strconv.Itoa(i)); err != nil {
						t.Error(err)
					}
				})
			}
			callers.Wait()
			f.wantLoads(t, keys)
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("the hits took %v, want one EngineTimeout at most", took)
			}
		})
	}
}

// The first renewal shortens a lease that was requested without a known build time.
func TestElect_LeaseLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, atOnce, bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{LeaseTTL: time.Minute}})
		driver.Set(t.Context(), f.store, "test:k", driver.Entry{Kind: driver.KindValue, Value: []byte(`"old"`), TTL: time.Second, Keep: time.Hour, BuildTime: 8 * time.Second})
		time.Sleep(2 * time.Second)
		f.origin.build = 8 * time.Second
		f.get(1, "k")
		if _, renewed := f.processes[0].locker.lengths(); len(renewed) == 0 || renewed[0] != 14*time.Second {
			t.Errorf("renewed for %v, want 1.75 times the last build of 8 s", renewed)
		}
	})
}

// A Touch or a Commit whose reply was lost is found in the store, and not counted as fenced.
func TestTouch_LostReply(t *testing.T) {
	for name, touches := range map[string]bool{"touch": true, "commit": false} {
		inBubble(t, name, func(t *testing.T) {
			s, fails := wiredTo(memstore.New()), false
			o := bellwether.Options{TTL: time.Second, StaleIfError: time.Hour, ErrorTTL: time.Minute, MaxErrorTTL: time.Hour, Fleet: bellwether.Fleet{Store: s.full(), Locker: locallock.New()}}
			if !touches {
				o.Fleet.Store = s
			}
			c := cacheOf(t, func(context.Context, string) (string, error) {
				if fails {
					return "", errOrigin
				}
				return "v", nil
			}, o)
			c.Get(t.Context(), "k")
			time.Sleep(2 * time.Second)
			fails = true
			s.lose.Store(true)
			v, err := c.Get(t.Context(), "k")
			if stats := c.Stats(); v != "v" || err != nil || stats.Fenced != 0 || stats.Loads != 2 || s.lose.Load() {
				t.Errorf("Get = %q, %v: %d commits are fenced, %d loads", v, err, stats.Fenced, stats.Loads)
			}
		})
	}
}

// A load without an election, because of another process's mark, is no load without an engine's answer.
func TestElect_WaivedIsNotDegraded(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 1, by, bellwether.Options{})
		driver.Set(t.Context(), f.store, "test:k", driver.Entry{Kind: driver.KindUnelected, TTL: time.Minute})
		wantValue(t, f.processes[0], "k", "v1")
		if n := f.processes[0].Stats().Degraded; n != 0 {
			t.Errorf("Degraded = %d, want 0", n)
		}
	})
}
