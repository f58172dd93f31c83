package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
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

// This file tests faults of the log of sweeps, its readers and its writers.

func sweep(t *testing.T, s *site, m bellwether.Match) {
	t.Helper()
	if err := s.mw.InvalidateMatching(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

func invalidate(t *testing.T, c interface {
	Invalidate(ctx context.Context, keys ...string) error
}, keys ...string) {
	t.Helper()
	if err := c.Invalidate(t.Context(), keys...); err != nil {
		t.Error(err)
	}
}

// If the log's lease is held, or its store is silent, a request waits for the log at most EngineTimeout.
func TestSweep_LogIsNotWaitedFor(t *testing.T) {
	const timeout = 700 * time.Millisecond // EngineTimeout, during which the knowledge of the log expires
	for name, prepare := range map[string]func(*wiredStore, *locallock.Locker){
		"its lease is held": func(_ *wiredStore, l *locallock.Locker) { l.TryAcquire(context.Background(), "\x00sweeps", time.Hour) },
		"its store hangs":   func(s *wiredStore, _ *locallock.Locker) { s.set(blackHole) },
		"claims hang":       func(s *wiredStore, _ *locallock.Locker) { s.set(on(blackHole, "claim")) },
	} {
		inBubble(t, name, func(t *testing.T) {
			store := wiredTo(memstore.New())
			locker := locallock.New()
			prepare(store, locker)
			s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, Locker: locker, EngineTimeout: timeout}}, page(0, ""))
			var wg sync.WaitGroup
			for i := range 12 { // fewer than the concurrent calls
				wg.Go(func() {
					start := time.Now()
					w := s.get(fmt.Sprint("http://example.com/", i))
					if took := time.Since(start); w.Code != http.StatusOK || took > timeout+timeout/10 {
						t.Errorf("%d after %v", w.Code, took)
					}
				})
				time.Sleep(5 * time.Millisecond) // some find another request reading the log
			}
			wg.Wait()
		})
	}
}

// While another process holds the log's lease, InvalidateMatching says to try again, and later does its work.
func TestInvalidateMatching_LeaseHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, locker := memstore.New(), locallock.New()
		o := bellwether.Options{TTL: time.Hour, MaxWait: 200 * time.Millisecond, Sweeps: true, Fleet: bellwether.Fleet{Namespace: "n", Store: store, Locker: locker, LeaseTTL: time.Second}}
		c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil }, o)
		time.Sleep(time.Second)
		if _, err := locker.TryAcquire(t.Context(), "n\x00sweeps", time.Second); err != nil {
			t.Fatal(err)
		}
		err := c.InvalidateMatching(t.Context(), bellwether.Match{All: true})
		if !errors.Is(err, bellwether.ErrUnavailable) || !strings.Contains(err.Error(), "invalidate again") || strings.Contains(err.Error(), "\x00") {
			t.Errorf("InvalidateMatching: %q", err)
		}
		time.Sleep(time.Second)
		if err := c.InvalidateMatching(t.Context(), bellwether.Match{All: true}); err != nil {
			t.Errorf("InvalidateMatching after the lease's end: %v", err)
		}
	})
}

// The log is read at the start, and then in the GetMany of the first request that finds the log old.
func TestSweep_LogIsReadAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New()).batching()
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}}, page(0, ""))
		synctest.Wait()
		if n := store.count("get", "claim", "commit"); n != 3 {
			t.Errorf("%d calls to begin the log, want 3", n)
		}
		for i, want := range []struct {
			after         time.Duration
			get, together int
		}{
			{0, 1, 0},                      // the log was just read
			{501 * time.Millisecond, 0, 1}, // half of NearTTL
			{0, 1, 0},
			{time.Hour, 0, 1},
		} {
			time.Sleep(want.after)
			store.reset()
			s.get(fmt.Sprint("http://example.com/", i))
			if get, together := store.count("get"), store.count("getmany"); get != want.get || together != want.together {
				t.Errorf("request %d: %d reads, %d of two keys; want %d and %d", i, get, together, want.get, want.together)
			}
		}
	})
}

// ofServers returns a store of several servers, whose faults are those of the server with the log.
func ofServers(store driver.Store) *wiredStore {
	s := wiredTo(store)
	s.only = func(key string) bool { return strings.HasSuffix(key, "\x00sweeps") }
	return s
}

// While the log's server hangs, the fleet loads each key of another server once, and no call waits for the log but those
// of the first EngineTimeout. NearTTL after the server is back a call hears of the sweeps meanwhile.
func TestSweep_LogsServerHangs(t *testing.T) {
	for name, fleet := range map[string]bellwether.Fleet{
		"defaults": {}, "long NearTTL": {NearTTL: 5 * time.Second}, "long EngineTimeout": {EngineTimeout: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { logsServerHangs(t, fleet) }) })
	}
}

func logsServerHangs(t *testing.T, fleet bellwether.Fleet) {
	store, locker := memstore.New(), locallock.New()
	loads := map[string]int{}
	var mu sync.Mutex
	stores := [...]*wiredStore{ofServers(store), ofServers(store)}
	var caches []*bellwether.Cache[string]
	for _, s := range stores {
		caches = append(caches, cacheOf(t, func(_ context.Context, key string) (string, error) {
			mu.Lock()
			loads[key]++
			n := loads[key]
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			return fmt.Sprint(n), nil
		}, bellwether.Options{TTL: time.Hour, Sweeps: true, Fleet: bellwether.Fleet{
			Namespace: "n", Store: s, Locker: locker,
			NearTTL: fleet.NearTTL, EngineTimeout: fleet.EngineTimeout,
		}}))
	}
	get := func(key string, want string) (slowest time.Duration) {
		start := time.Now()
		var wg sync.WaitGroup
		for _, c := range caches {
			wg.Go(func() {
				if v, err := c.Get(t.Context(), key); v != want || err != nil {
					t.Errorf("%s: %q, %v; want %q", key, v, err, want)
				}
			})
		}
		wg.Wait()
		return time.Since(start)
	}
	wait := max(2*time.Second, fleet.NearTTL)
	get("swept", "1")
	time.Sleep(wait)
	stores[0].set(blackHole)
	stores[1].set(blackHole)
	var first sync.WaitGroup
	for _, c := range caches {
		first.Go(func() { c.Get(t.Context(), "first") }) // finds that the server hangs
	}
	first.Wait()
	for i := range 100 {
		if took := get(fmt.Sprint(i), "1"); took > 100*time.Millisecond {
			t.Errorf("call %d took %v, want no wait for the log", i, took)
		}
		time.Sleep(100 * time.Millisecond)
	}
	stores[0].set(nil)
	time.Sleep(wait)
	if err := caches[0].InvalidateMatching(t.Context(), bellwether.Match{All: true}); err != nil {
		t.Fatal(err)
	}
	stores[1].set(nil)
	time.Sleep(wait)
	get("swept", "2")
}

// After a silence a sweep is heard within NearTTL: with the near tier off by the next call.
func TestSweep_AfterASilence(t *testing.T) {
	for _, near := range []time.Duration{-1, 100 * time.Millisecond, time.Second, 5 * time.Second} {
		t.Run(fmt.Sprint(near), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, locker := memstore.New(), locallock.New()
				stores := [...]*wiredStore{ofServers(store), ofServers(store)}
				n := 0
				var caches []*bellwether.Cache[string]
				for _, s := range stores {
					caches = append(caches, cacheOf(t, func(context.Context, string) (string, error) { n++; return fmt.Sprint(n), nil },
						bellwether.Options{TTL: time.Hour, Sweeps: true, Fleet: bellwether.Fleet{
							Namespace: "n", Store: s, Locker: locker, NearTTL: near,
						}}))
				}
				get := func() string { v, _ := caches[1].Get(t.Context(), "k"); return v }
				get()
				time.Sleep(10 * time.Second)
				stores[1].set(blackHole)
				get()
				stores[1].set(nil)
				if err := caches[0].InvalidateMatching(t.Context(), bellwether.Match{All: true}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(max(near, 0) + 2)
				if v := get(); v != "2" {
					t.Errorf("Get = %q, want the value from after the sweep", v)
				}
			})
		})
	}
}

// An overdueContext's deadline is over, and its timer has not fired yet.
type overdueContext struct{ context.Context }

func (overdueContext) Deadline() (time.Time, bool) { return time.Now(), true }

type lateLocks struct{ driver.Locker }

func (lateLocks) TryAcquire(context.Context, string, time.Duration) (driver.Lease, error) {
	return nil, os.ErrDeadlineExceeded
}

// A locker's client that goes by its caller's deadline is not silent: the log is not written without its lease.
func TestSweep_CallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{
			TTL: time.Hour, Sweeps: true, Fleet: bellwether.Fleet{Namespace: "n", Store: memstore.New(), Locker: lateLocks{locallock.New()}},
		})
		synctest.Wait()
		err := c.InvalidateMatching(overdueContext{t.Context()}, bellwether.Match{All: true})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("InvalidateMatching: %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

// An entry that is read together with the log is not used without the log, because it may be swept.
func TestSweep_HalfAnAnswer(t *testing.T) {
	for mute, errs := range map[string]int{"\x00sweeps": 2, "example.com/": 1} {
		inBubble(t, fmt.Sprintf("none for %q", mute), func(t *testing.T) {
			kept := memstore.New()
			other := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: kept}}, page(0, "kept"))
			var said []error
			s := newSite(t, bellwether.HTTPOptions{
				Fleet:   bellwether.Fleet{Store: muted(kept, map[string]bool{mute: true})},
				OnError: func(_ string, err error) { said = append(said, err) },
			}, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "its own") })
			other.get("http://example.com/")
			time.Sleep(time.Second)
			start := time.Now()
			s.wantBody(t, "its own", "http://example.com/") // the stored response may be swept
			if took := time.Since(start); took > 600*time.Millisecond {
				t.Errorf("it took %v, with an EngineTimeout of 500 ms", took)
			}
			if len(said) != errs || !errors.Is(errors.Join(said...), bellwether.ErrUnavailable) {
				t.Errorf("OnError got %v", said)
			}
		})
	}
}

// A silent server delays requests for its own keys only, even if one of them finds the log old first.
func TestSweep_LogOutlivesAnotherServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const silent, sound = 12, 5
		dead := map[string]bool{}
		for i := range silent {
			dead[fmt.Sprint("dead.com/", i)] = true
		}
		store := muted(memstore.New(), dead)
		store.set(func(ctx context.Context, op string) error { time.Sleep(time.Millisecond); return nil })
		s := newSite(t, bellwether.HTTPOptions{
			Fleet: bellwether.Fleet{Store: store}, OnError: func(key string, err error) {
				if !dead[key] {
					t.Errorf("%q: %v", key, err)
				}
			},
		}, page(0, ""))
		time.Sleep(time.Hour)
		var wg sync.WaitGroup
		for i := range silent {
			wg.Go(func() { s.get(fmt.Sprint("http://dead.com/", i)) })
			synctest.Wait()
		}
		for i := range sound {
			wg.Go(func() {
				start := time.Now()
				s.get(fmt.Sprint("http://sound.com/", i))
				if took := time.Since(start); took > 10*time.Millisecond {
					t.Errorf("a key of a sound server took %v", took)
				}
			})
		}
		wg.Wait()
	})
}

// A process reads the log before it serves stored responses, even after a failed try.
func TestSweep_ProcessBeforeItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := memstore.New()
		made := 0
		page := func(w http.ResponseWriter, r *http.Request) {
			made++
			w.Header().Set("Cache-Control", "max-age=36000")
			w.Header().Set("Surrogate-Key", "x")
			fmt.Fprint(w, made)
		}
		old := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: kept}}, page)
		old.get("http://example.com/")
		sweep(t, old, bellwether.Match{Tags: []string{"x"}})
		time.Sleep(time.Hour)
		store := wiredTo(kept)
		store.set(refuse)
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}}, page)
		time.Sleep(100 * time.Millisecond)
		store.set(nil)
		s.wantBody(t, "2", "http://example.com/") // response 1 was swept an hour ago
	})
}

// Processes that begin the log at one time, without a locker, do so without errors.
func TestSweep_BegunByAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := memstore.New()
		for i := range 4 {
			store := wiredTo(kept)
			store.set(func(_ context.Context, op string) error {
				if op == "commit" {
					time.Sleep(time.Duration(4-i) * time.Millisecond)
				}
				return nil
			})
			newSite(t, bellwether.HTTPOptions{
				Fleet: bellwether.Fleet{Store: store}, OnError: func(key string, err error) {
					t.Errorf("process %d: %q: %v", i, key, err)
				},
			}, func(http.ResponseWriter, *http.Request) {})
		}
		time.Sleep(time.Second)
	})
}

// A request beyond MaxQueued is refused at once, also after a sweep.
func TestSweep_AndTheQueueIsFull(t *testing.T) {
	for name, store := range map[string]driver.Store{"a store": memstore.New(), "no store": nil} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}, Limits: bellwether.Limits{MaxRebuilds: 1, MaxQueued: 1}}, page(time.Second, ""))
			sweep(t, s, bellwether.Match{Prefixes: []string{"http://a/"}})
			time.Sleep(time.Second)
			start := time.Now()
			var wg sync.WaitGroup
			for i := range 2 {
				wg.Go(func() { s.get(fmt.Sprint("http://a/", i)) })
				synctest.Wait()
			}
			if w := s.get("http://a/one-more"); w.Code != http.StatusServiceUnavailable || time.Since(start) > 0 {
				t.Errorf("%d after %v, want 503 at once", w.Code, time.Since(start))
			}
			wg.Wait()
		})
	}
}

// A log that does not parse sweeps everything, and is begun anew.
func TestSweep_LogIsCorrupt(t *testing.T) {
	for name, garbage := range map[string]string{"no JSON": "{", "null": "null", "an empty one": "{}", "another's": `{"since":"x"}`} {
		inBubble(t, name, func(t *testing.T) {
			var calls atomic.Int64
			store := memstore.New()
			all := sites(t, 2, quiet{store}, tagged(&calls))
			for _, s := range all {
				s.get("http://example.com/?tag=x")
			}
			synctest.Wait()
			driver.Set(t.Context(), store, "\x00sweeps", driver.Entry{Kind: driver.KindValue, Value: []byte(garbage), TTL: time.Hour})
			time.Sleep(1001 * time.Millisecond)
			for _, s := range all {
				s.wantBody(t, "2", "http://example.com/?tag=x") // response 1 may be swept
			}
			sweep(t, all[1], bellwether.Match{Tags: []string{"x"}})
			time.Sleep(1001 * time.Millisecond)
			all[0].wantBody(t, "3", "http://example.com/?tag=x") // after a sweep
		})
	}
	inBubble(t, "no entry", func(t *testing.T) {
		var calls atomic.Int64
		store := wiredTo(memstore.New())
		s := sites(t, 1, store, tagged(&calls))[0]
		s.get("http://example.com/?tag=x")
		synctest.Wait()
		s.get("http://example.com/?tag=x")
		corrupt := func() bool { return store.count("commit") < 3 } // until the log is written anew
		store.set(on(func(context.Context, string) error {
			if corrupt() {
				return driver.ErrCorrupt
			}
			return nil
		}, "get"))
		tamper := func(e *driver.Entry) {
			if corrupt() {
				*e = driver.Entry{}
			}
		}
		store.tamper.Store(&tamper)
		time.Sleep(2 * time.Second)
		for range 3 {
			s.get("http://example.com/?tag=x")
		}
		if n := calls.Load(); n != 2 {
			t.Errorf("%d calls after the log turned out to be no entry, want 2", n)
		}
	})
}

// A sweep writes the log again if its lease may have been lost before the commit.
func TestSweep_LeaseIsLostWhileTheLogIsWritten(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		longest, acquire, claim, commit time.Duration // Fleet.LeaseTTL, and the durations of A's calls
		begins                          time.Duration // from A's beginning to B's
	}{
		"the longest lease":         {100 * ms, 0, 0, 150 * ms, 110 * ms},
		"the usual lease of 875 ms": {0, 300 * ms, 450 * ms, 450 * ms, 1180 * ms},
	} {
		inBubble(t, name, func(t *testing.T) {
			inner, locker := memstore.New(), locallock.New()
			open := func() (*site, *wiredStore, *wiredLocker) {
				store, wired := wiredTo(inner), wiredLocks(locker)
				return newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, Locker: wired, LeaseTTL: c.longest}}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=3600")
					w.Header().Set("Surrogate-Key", r.URL.Query().Get("tag"))
				}), store, wired
			}
			a, slow, deaf := open()
			b, slower, _ := open()
			for _, tag := range []string{"a", "b"} {
				a.get("http://example.com/?tag=" + tag)
			}
			synctest.Wait()
			// A's commit outlasts its lease, and the release fails. B reads the log before A's commit,
			// and writes after it.
			slow.set(func(ctx context.Context, op string) error {
				return takes(map[string]time.Duration{"claim": c.claim, "commit": c.commit}[op])(ctx, op)
			})
			slower.set(on(takes(80*ms), "commit"))
			deaf.set(func(ctx context.Context, op string) error {
				if op == "release" {
					return errRefused
				}
				return takes(c.acquire)(ctx, op)
			})
			began := time.Now()
			var wg sync.WaitGroup
			var errA error
			wg.Go(func() { errA = a.mw.InvalidateMatching(t.Context(), bellwether.Match{Tags: []string{"a"}}) })
			time.Sleep(c.begins)
			wg.Go(func() { sweep(t, b, bellwether.Match{Tags: []string{"b"}}) })
			time.Sleep(time.Until(began.Add(c.acquire + c.claim + c.commit - 10*ms)))
			if slower.count("claim") == 0 {
				t.Error("B has not read the log before A's commit")
			}
			slow.set(nil)
			wg.Wait()
			time.Sleep(1001 * ms)
			for tag, err := range map[string]error{"a": errA, "b": nil} {
				calls := b.calls.Load()
				b.get("http://example.com/?tag=" + tag)
				if b.calls.Load() == calls && err == nil {
					t.Errorf("a sweep of %q that returned nil is not in the log", tag)
				}
			}
		})
	}
}

// A process that dies while it begins or writes the log delays the sweeps of other processes for less than a second.
func TestSweep_WriterDies(t *testing.T) {
	matches := map[string]bellwether.Match{
		"a tag":       {Tags: []string{"x"}},
		"a prefix":    {Prefixes: []string{"http://example.com/"}},
		"a URL, soft": {Keys: []string{"http://example.com/?tag=x"}, Soft: true},
	}
	each := func(t *testing.T, last string, begun bool, match bellwether.Match) {
		inner, locker := memstore.New(), locallock.New()
		site := func(store driver.Store, locker driver.Locker, calls *atomic.Int64) *site {
			return newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, Locker: locker}}, tagged(calls))
		}
		var calls atomic.Int64
		store, wired := wiredTo(inner), wiredLocks(locker)
		die := func() {
			for _, w := range []*wire{store.wire, wired.wire} {
				w.set(func(_ context.Context, op string) error {
					if op == last { // it is carried out, and no later call
						store.set(blackHole)
						wired.set(blackHole)
					}
					return nil
				})
			}
		}
		if !begun {
			die()
		}
		dying := site(store, wired, &calls)
		synctest.Wait()
		if begun {
			die()
			go dying.mw.InvalidateMatching(t.Context(), bellwether.Match{Tags: []string{"y"}})
			synctest.Wait()
		}
		began := time.Now()
		other := site(inner, locker, &calls)
		other.wantBody(t, "1", "http://example.com/?tag=x")
		sweep(t, other, match)
		if took := time.Since(began); took < 800*time.Millisecond || took > time.Second {
			t.Errorf("the sweep of the other process returned after %v, want a lease of 875 ms", took)
		}
		other.get("http://example.com/?tag=x") // may be stale, if the sweep is soft
		time.Sleep(time.Second)
		other.wantBody(t, "2", "http://example.com/?tag=x")
	}
	for name, match := range matches {
		for _, last := range []string{"acquire", "claim", "commit"} {
			for _, begun := range []bool{true, false} {
				inBubble(t, fmt.Sprintf("%s, after %s, begun: %t", name, last, begun), func(t *testing.T) { each(t, last, begun, match) })
			}
		}
	}
}

// Engines so slow that a write outlasts its lease get a longer lease at the next try.
func TestSweep_SlowEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip = 400 * time.Millisecond
		store, locker := wiredTo(memstore.New()), wiredLocks(locallock.New())
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, Locker: locker}}, page(0, ""))
		synctest.Wait()
		store.set(takes(trip))
		locker.set(takes(trip))
		store.reset()
		began := time.Now()
		sweep(t, s, bellwether.Match{Tags: []string{"x"}})
		if took, commits := time.Since(began), store.count("commit"); took > 8*trip || commits > 2 {
			t.Errorf("%d commits in %v, want two tries of four calls at most", commits, took)
		}
	})
}

// While the store is down, a sweep also voids this process's running loads.
func TestSweep_WithoutTheStoreDuringALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		store := wiredTo(memstore.New())
		s := sites(t, 1, store, slowly(&calls, 5*time.Second))[0]
		go s.get("http://example.com/")
		time.Sleep(time.Second)
		store.set(refuse)
		err := s.mw.InvalidateMatching(t.Context(), bellwether.Match{Prefixes: []string{"http://example.com/"}})
		if !errors.Is(err, bellwether.ErrUnavailable) {
			t.Fatalf("err = %v, want ErrUnavailable", err)
		}
		s.wantBody(t, "2", "http://example.com/") // response 1 began before the sweep
	})
}

// While the store is down, a sweep also voids a response that the cache would keep without a flight.
func TestSweep_WithoutTheStoreDuringADraft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		store := wiredTo(memstore.New())
		s := sites(t, 1, store, slowlyFor("public, max-age=3600", &calls, 5*time.Second))[0]
		for _, c := range []struct {
			swept bool
			want  string
		}{{false, "1"}, {true, "3"}} { // the draft's response, or one from after the sweep
			url := fmt.Sprint("http://example.com/", c.swept)
			go s.get(url, "Authorization", "Basic eDp5")
			time.Sleep(time.Second)
			store.set(refuse)
			if c.swept {
				s.mw.InvalidateMatching(t.Context(), bellwether.Match{Prefixes: []string{"http://example.com/"}})
			}
			time.Sleep(5 * time.Second)
			s.wantBody(t, c.want, url)
			store.set(nil)
			time.Sleep(time.Minute)
		}
	})
}

// withStalePage returns a site with a stale page with the tag x, and a handler that takes 5 s.
func withStalePage(t *testing.T, store driver.Store) *site {
	n := 0
	s := sites(t, 1, store, func(w http.ResponseWriter, r *http.Request) {
		n++
		body := fmt.Sprint(n)
		time.Sleep(5 * time.Second)
		w.Header().Set("Cache-Control", "max-age=2, stale-while-revalidate=600")
		w.Header().Set("Surrogate-Key", "x")
		fmt.Fprint(w, body)
	})[0]
	s.get("http://example.com/")
	time.Sleep(3 * time.Second)
	return s
}

func TestSweep_WithoutTheStoreWhileStaleIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		s := withStalePage(t, store)
		s.wantBody(t, "1", "http://example.com/")
		time.Sleep(time.Second)
		store.set(refuse)
		if err := s.mw.InvalidateMatching(t.Context(), bellwether.Match{Tags: []string{"x"}}); err == nil {
			t.Fatal("no error without a store")
		}
		if got := s.get("http://example.com/").Body.String(); got == "1" {
			t.Error("a swept stale response is served")
		}
	})
}

// While the store is silent, a look does not bring back a page from before the sweep.
func TestSweep_WithoutTheStoreDuringALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		s := withStalePage(t, store)
		store.set(func(ctx context.Context, op string) error {
			if op == "get" {
				return blackHole(ctx, op)
			}
			return errRefused
		})
		go s.get("http://example.com/")
		time.Sleep(100 * time.Millisecond) // during the look
		if err := s.mw.InvalidateMatching(t.Context(), bellwether.Match{Tags: []string{"x"}}); err == nil {
			t.Fatal("no error without a store")
		}
		for range 3 {
			if got := s.get("http://example.com/").Body.String(); got == "1" {
				t.Error("a swept response is served")
			}
		}
		time.Sleep(time.Minute) // a refresh ends
	})
}

// lingering is a handler that writes the number of its run. Its first run goes on for a while.
func lingering(d time.Duration) http.HandlerFunc {
	var runs atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60, stale-while-revalidate=600")
		run := runs.Add(1)
		fmt.Fprint(w, "run ", run)
		if run == 1 {
			time.Sleep(d)
		}
	}
}

// An invalidation voids a running response also after a soft one, and new clients do not join it.
func TestSweep_SoftThenInvalidated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, lingering(3*time.Second))
		go s.get("http://a/p")
		time.Sleep(time.Second)
		sweep(t, s, bellwether.Match{Keys: []string{"http://a/p"}, Soft: true})
		time.Sleep(time.Second)
		invalidate(t, s.mw, "http://a/p")
		time.Sleep(2 * time.Second)
		s.wantBody(t, "run 2", "http://a/p") // run 1 began before the invalidation
	})
}

// While the store is down, a sweep voids this process's running responses, also after a soft one.
func TestSweep_StreamsWithoutTheStore(t *testing.T) {
	hard := bellwether.Match{Prefixes: []string{"http://a/"}}
	soft := bellwether.Match{Prefixes: []string{"http://a/"}, Soft: true}
	for name, sweeps := range map[string][]bellwether.Match{"hard": {hard}, "soft": {soft}, "soft, then hard": {soft, hard}} {
		inBubble(t, name, func(t *testing.T) {
			wired := wiredTo(memstore.New())
			wired.set(refuse)
			s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: wired}}, lingering(20*time.Second))
			go s.get("http://a/p")
			for _, sweep := range sweeps {
				time.Sleep(5 * time.Second)
				if err := s.mw.InvalidateMatching(t.Context(), sweep); !errors.Is(err, bellwether.ErrUnavailable) {
					t.Errorf("err = %v, want ErrUnavailable", err)
				}
			}
			time.Sleep(20 * time.Second)
			s.get("http://a/p") // may be stale, if the sweeps are soft
			synctest.Wait()
			s.wantBody(t, "run 2", "http://a/p") // run 1 began before the invalidation
		})
	}
}

// A page that expired before this process began stays expired after a sweep of others.
func TestSweep_OfSomethingElseFreshensNothing(t *testing.T) {
	for _, match := range []bellwether.Match{{Tags: []string{"x"}}, {Tags: []string{"x"}, Soft: true}, {Prefixes: []string{"http://another.example/"}}} {
		for _, window := range []string{"stale-while-revalidate", "stale-if-error"} {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int32
				store := memstore.New()
				page := func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=10, "+window+"=3600")
					fmt.Fprint(w, runs.Add(1))
				}
				before := sites(t, 1, store, page)[0]
				before.get("http://a/p")
				time.Sleep(time.Minute)
				sweep(t, before, match)
				time.Sleep(time.Minute)
				after := sites(t, 1, store, page)[0]
				for range 3 {
					after.get("http://a/p")
					time.Sleep(time.Minute)
				}
				if runs.Load() < 3 {
					t.Errorf("%v: a page with %s that was stale to begin with is served for minutes", match, window)
				}
			})
		}
	}
	synctest.Test(t, func(t *testing.T) { // in one process: the upstream's Age exceeds the lifetime
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("ETag", `"1"`)
			w.Header().Set("Age", "100")
		})
		time.Sleep(10 * time.Second)
		s.get("http://a/p")
		synctest.Wait()
		sweep(t, s, bellwether.Match{Tags: []string{"x"}})
		s.get("http://a/p")
		s.wantCalls(t, 2)
	})
}

// If the store loses the log during a load, the next load begins with the new log, and is not void.
func TestSweep_LogIsLostWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		room, locker := newEngineRoom(t.Errorf), wiredLocks(locallock.New())
		store := &linkStore{&link{}, room}
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, Locker: locker, LeaseTTL: 600 * time.Millisecond}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			select {
			case <-time.After(time.Second):
			case <-r.Context().Done():
			}
		})
		synctest.Wait() // the log has begun
		go func() {
			time.Sleep(300 * time.Millisecond)
			room.store.restart()
			locker.set(func(context.Context, string) error {
				locker.set(nil)
				return driver.ErrLeaseLost
			})
		}()
		if w := s.get("http://a/p"); w.Code != http.StatusOK {
			t.Error(w.Code)
		}
		s.wantCalls(t, 2)
	})
}

// A response's age counts from its header, also if its commit waits for the log.
func TestSweep_LogIsWaitedForBehindALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const load, ttl = 3 * time.Second, 5 * time.Second // longer than the log is trusted
		store := wiredTo(memstore.New())
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}, TTL: ttl}, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			time.Sleep(load)
			store.reset()
			store.set(on(takes(400*time.Millisecond), "get"))
		})
		start := time.Now()
		s.get("http://example.com/")
		time.Sleep(time.Until(start.Add(load + time.Second)))
		if store.count("get") != 1 || store.count("commit") != 1 {
			t.Fatalf("%d reads of the log and %d commits behind the load, want one each", store.count("get"), store.count("commit"))
		}
		store.set(nil)
		time.Sleep(time.Until(start.Add(ttl + 1)))
		s.get("http://example.com/")
		s.wantCalls(t, 2)
	})
}

// A sweep of everything covers all hosts, both schemes and all variants. Later pages are kept.
func TestSweep_All(t *testing.T) {
	for name, soft := range map[string]bool{"hard": false, "soft": true} {
		t.Run(name, func(t *testing.T) {
			h := func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=3600, stale-while-revalidate=3600")
				w.Header().Set("Vary", "X-Lang")
			}
			inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
				all := func() int {
					for _, url := range []string{"http://a/", "https://a/p?q", "http://b:8080/"} {
						for _, lang := range []string{"", "de"} {
							for _, s := range []*site{p.first, p.second} {
								s.get(url, "X-Lang", lang)
								time.Sleep(2 * time.Second) // the page is stored just after the answer
							}
						}
					}
					return int(p.calls())
				}
				all()
				sweep(t, p.first, bellwether.Match{All: true, Soft: soft})
				time.Sleep(2 * time.Second) // NearTTL
				if n := all(); n != 6 {
					t.Errorf("%d handler calls after the sweep, want 6", n)
				}
				if n := all(); n != 0 {
					t.Errorf("%d handler calls for pages from after the sweep", n)
				}
			})
		})
	}
}

// A soft sweep that comes before a page's tags makes the page stale before its first client has it.
func TestSweep_SoftBeforeTheHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *site
		s = newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			n := s.calls.Load()
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=3600")
			w.Header().Set("Surrogate-Key", "x")
			fmt.Fprint(w, n)
		})
		go s.get("http://a/")
		time.Sleep(500 * time.Millisecond)
		sweep(t, s, bellwether.Match{Tags: []string{"x"}, Soft: true})
		if body := s.get("http://a/").Body.String(); body != "2" {
			t.Errorf("response %s, want the response to a run after the sweep", body)
		}
	})
}

func TestSweep_TagFields(t *testing.T) {
	for name, test := range map[string]struct {
		fields      []string
		field, tags string
		hit         bool
	}{
		"words":                  {nil, "Surrogate-Key", "w x", true},
		"a list":                 {nil, "Cache-Tag", "w, x", true},
		"words in a list":        {nil, "Cache-Tag", "w x", false},
		"another field":          {nil, "Xkey", "x", false},
		"xkey":                   {[]string{"xkey"}, "Xkey", "w x", true},
		"xkey, a list":           {[]string{"My-Tags", "xkey"}, "Xkey", "w,x,y", true},
		"no longer the defaults": {[]string{"xkey"}, "Cache-Tag", "x", false},
		"none":                   {[]string{}, "Cache-Tag", "x", false},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{TagFields: test.fields}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=3600")
				w.Header().Set(test.field, test.tags)
			})
			s.get("http://a/")
			synctest.Wait()
			sweep(t, s, bellwether.Match{Tags: []string{"x"}})
			s.calls.Store(0)
			s.get("http://a/")
			if hit := s.calls.Load() == 1; hit != test.hit {
				t.Errorf("swept: %t, want %t", hit, test.hit)
			}
		})
	}
}

// After a soft sweep no call gets an ErrNotFound from before it: not from another process either, for which its
// flight has waited.
func TestInvalidateMatching_NotFound(t *testing.T) {
	for _, ttl := range []time.Duration{-1, time.Minute} {
		for _, soft := range []bool{true, false} {
			inBubble(t, fmt.Sprintf("%v, soft: %t", ttl, soft), func(t *testing.T) {
				f := newFleet(t, 2, poll, bellwether.Options{TTL: time.Minute, NotFoundTTL: ttl, Sweeps: true})
				var exists atomic.Bool
				f.origin.fail = func(int) error {
					if exists.Load() {
						return nil
					}
					return bellwether.ErrNotFound
				}
				time.Sleep(3 * time.Second)
				var early sync.WaitGroup
				for _, p := range f.processes {
					early.Go(func() { p.Get(t.Context(), "k") })
					time.Sleep(10 * time.Millisecond)
				}
				p := f.processes[1]
				time.Sleep(f.origin.build - 40*time.Millisecond)
				p.store.set(on(takes(200*time.Millisecond), "get")) // a read of the commit is on its way
				time.Sleep(80 * time.Millisecond)
				exists.Store(true)
				if err := p.InvalidateMatching(t.Context(), bellwether.Match{Prefixes: []string{"k"}, Soft: soft}); err != nil {
					t.Fatal(err)
				}
				if _, err := p.Get(t.Context(), "k"); err != nil {
					t.Errorf("Get after the sweep: %v", err)
				}
				early.Wait()
			})
		}
	}
}

// An ErrNotFound that a sweep does not name stays.
func TestInvalidateMatching_OtherNotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loads := 0
		c := cacheOf(t, func(context.Context, string) (string, error) { loads++; return "", bellwether.ErrNotFound },
			bellwether.Options{Sweeps: true})
		c.Get(t.Context(), "k")
		if err := c.InvalidateMatching(t.Context(), bellwether.Match{Prefixes: []string{"other"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Get(t.Context(), "k"); err != bellwether.ErrNotFound || loads != 1 {
			t.Errorf("%v after %d loads, want ErrNotFound after one", err, loads)
		}
	})
}

// A store that has lost its data may count from below, as memcached does with a client whose clock is behind. Sweeps
// count as before, whoever makes them.
func TestSweep_StoreCountsFromBelow(t *testing.T) {
	for name, by := range map[string]int{"a process that knew the log": 0, "another such process": 1, "a process from after the loss": 2} {
		inBubble(t, name, func(t *testing.T) {
			var calls atomic.Int64
			store := &quiet{memstore.New()}
			for range 1000 {
				store.Claim(t.Context(), "another key")
			}
			fleet := bellwether.Fleet{Store: store, Locker: locallock.New()}
			all := sitesOf(t, 2, fleet, tagged(&calls))
			for _, s := range all {
				s.wantBody(t, "1", "http://example.com/?tag=x")
			}
			synctest.Wait()
			store.Store = memstore.New()
			all = append(all, newSite(t, bellwether.HTTPOptions{Fleet: fleet}, tagged(&calls)))
			time.Sleep(1001 * time.Millisecond)
			for _, s := range all {
				s.wantBody(t, "2", "http://example.com/?tag=x") // response 1 may be swept
			}
			for want := int64(3); want < 6; want++ {
				sweep(t, all[(by+1)%3], bellwether.Match{Tags: []string{"y"}})
				sweep(t, all[by], bellwether.Match{Tags: []string{"x"}}) // without knowledge of the log with y
				time.Sleep(1001 * time.Millisecond)
				for _, s := range all {
					s.wantBody(t, fmt.Sprint(want), "http://example.com/?tag=x")
				}
			}
			if n := calls.Load(); n != 5 {
				t.Errorf("%d runs of the handler, want 5", n)
			}
		})
	}
}

// A lagging copy of the store, which has an earlier log, is no loss: a process that reads it waits for no lease of the log.
func TestSweep_LaggingCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		locker, store := locallock.New(), wiredTo(memstore.New())
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: quiet{store}, Locker: locker}}, tagged(&calls))
		synctest.Wait()
		s.wantBody(t, "1", "http://example.com/?tag=x")
		earlier, err := store.store.Get(t.Context(), "\x00sweeps")
		if err != nil {
			t.Fatal(err)
		}
		sweep(t, s, bellwether.Match{Tags: []string{"y"}})
		copied := &laggingLog{Store: store, log: earlier}
		lagging := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: copied, Locker: locker}}, tagged(&calls))
		synctest.Wait()
		sweep(t, lagging, bellwether.Match{Tags: []string{"z"}}) // it knows the log now
		if _, err := locker.TryAcquire(t.Context(), "\x00sweeps", time.Hour); err != nil {
			t.Fatal(err) // a writer of the log dies
		}
		for range 5 {
			time.Sleep(2 * time.Second)
			began := time.Now()
			lagging.wantBody(t, "1", "http://example.com/?tag=x") // nothing counts as swept
			if took := time.Since(began); took > 0 {
				t.Errorf("a hit took %v", took)
			}
		}
	})
}

// A laggingLog reads an earlier log of sweeps.
type laggingLog struct {
	driver.Store
	log driver.Entry
}

func (s *laggingLog) Get(ctx context.Context, key string) (driver.Entry, error) {
	if key == "\x00sweeps" {
		return s.log, nil
	}
	return s.Store.Get(ctx, key)
}

// Two processes without a Locker sweep at one moment, over a store that has counted from below since a loss. The log
// of the later commit counts for both.
func TestSweep_TwoWritersFromBelow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		store := wiredTo(memstore.New())
		for range 1000 {
			store.Claim(t.Context(), "another key")
		}
		fleet := bellwether.Fleet{Store: quiet{store}, NearTTL: 200 * time.Millisecond}
		var all []*site
		for range 2 {
			all = append(all, newSite(t, bellwether.HTTPOptions{Fleet: fleet}, tagged(&calls)))
			synctest.Wait()
		}
		all[0].wantBody(t, "1", "http://example.com/?tag=x")
		synctest.Wait()
		store.store = memstore.New()
		time.Sleep(time.Second)
		for _, s := range all {
			s.get("http://example.com/?tag=x") // both may begin the log
		}
		swept := fmt.Sprint(calls.Load())
		var commits atomic.Int64
		store.set(on(func(context.Context, string) error {
			time.Sleep(time.Duration(1+commits.Add(1)) * 50 * time.Millisecond)
			return nil
		}, "commit"))
		go all[0].mw.InvalidateMatching(t.Context(), bellwether.Match{Tags: []string{"y"}}) // claims first, and commits first
		time.Sleep(10 * time.Millisecond)
		sweep(t, all[1], bellwether.Match{Tags: []string{"x"}})
		store.set(nil)
		time.Sleep(10 * time.Second)
		for _, s := range all {
			if w := s.get("http://example.com/?tag=x"); w.Body.String() == swept {
				t.Error("a page is served 10 s after a sweep of its tag has returned nil")
			}
		}
	})
}

// Calls of one process without a Locker write the log in turn: none writes over the line of another. While the store is
// silent, they do not wait for each other's time-outs.
func TestSweep_ManyWritersInAProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 500 * time.Millisecond
		store := wiredTo(memstore.New())
		var loads atomic.Int64
		o := named(bellwether.Options{TTL: time.Hour, Sweeps: true, Fleet: bellwether.Fleet{Store: store, EngineTimeout: timeout}})
		c := cacheOf(t, func(context.Context, string) (string, error) { return fmt.Sprint(loads.Add(1)), nil }, o)
		keys := manyKeys(5)
		sweepEach := func(sound bool) {
			var wg sync.WaitGroup
			start := time.Now()
			for _, key := range keys {
				wg.Go(func() {
					if err := c.InvalidateMatching(t.Context(), bellwether.Match{Prefixes: []string{key}}); (err == nil) != sound {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if took := time.Since(start); took > 2*timeout {
				t.Errorf("the calls took %v", took)
			}
		}
		c.GetMany(t.Context(), keys)
		store.set(on(func(context.Context, string) error { time.Sleep(10 * time.Millisecond); return nil }, "claim", "commit"))
		sweepEach(true)
		c.GetMany(t.Context(), keys)
		if n := loads.Load(); n != int64(2*len(keys)) {
			t.Errorf("%d loads, want %d", n, 2*len(keys))
		}
		store.set(on(func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }, "claim", "commit"))
		sweepEach(false)
	})
}

// A lateLocker's leases come late.
type lateLocker struct {
	driver.Locker
	late atomic.Int64 // in nanoseconds
}

func (l *lateLocker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, key, ttl)
	time.Sleep(time.Duration(l.late.Load()))
	return lease, err
}

// A sweep whose claim comes after its lease's end does not write over the sweep of the next holder.
func TestSweep_ClaimAfterItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		inner, locker := memstore.New(), locallock.New()
		open := func() (*site, *wiredStore, *lateLocker) {
			store, late := wiredTo(inner), &lateLocker{Locker: locker}
			return newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, Locker: late}}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=3600")
				w.Header().Set("Surrogate-Key", r.URL.Query().Get("tag"))
			}), store, late
		}
		a, slow, late := open()
		b, quick, _ := open()
		for _, tag := range []string{"a", "b"} {
			a.get("http://example.com/?tag=" + tag)
		}
		synctest.Wait()
		// A's lease of 875 ms is over at 875 ms, its claim comes at 920 ms and its commit at 1,370 ms. B's claim
		// comes at 880 ms and its commit at 960 ms.
		late.late.Store(int64(450 * ms))
		slow.set(func(ctx context.Context, op string) error {
			return takes(map[string]time.Duration{"claim": 470 * ms, "commit": 450 * ms}[op])(ctx, op)
		})
		quick.set(on(takes(80*ms), "commit"))
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := a.mw.InvalidateMatching(t.Context(), bellwether.Match{Tags: []string{"a"}}); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(880 * ms)
		sweep(t, b, bellwether.Match{Tags: []string{"b"}})
		wg.Wait()
		late.late.Store(0)
		slow.set(nil)
		time.Sleep(1001 * ms)
		for _, tag := range []string{"a", "b"} {
			calls := a.calls.Load()
			a.get("http://example.com/?tag=" + tag)
			if a.calls.Load() == calls {
				t.Errorf("a sweep of %q that returned nil is not in the log", tag)
			}
		}
	})
}

// A log after the last position of an entry is no log. The sweeps after it would have no position above it, and no effect.
func TestSweep_LogAfterTheLastPosition(t *testing.T) {
	for _, at := range []uint64{math.MaxInt64 + 1, math.MaxUint64} {
		synctest.Test(t, func(t *testing.T) {
			store, loads := memstore.New(), 0
			log := driver.Entry{Kind: driver.KindValue, TTL: time.Hour, Value: fmt.Appendf(nil, `{"since":1,"sweeps":[],"at":%d}`, at)}
			if _, err := driver.Set(t.Context(), store, "n\x00sweeps", log); err != nil {
				t.Fatal(err)
			}
			c := bellwether.New(func(context.Context, string) (int, error) {
				loads++
				return loads, nil
			}, bellwether.Options{TTL: time.Hour, Sweeps: true, Fleet: bellwether.Fleet{Store: store, Namespace: "n"}})
			defer c.Close()
			c.Get(t.Context(), "k")
			for want := 2; want < 5; want++ {
				if err := c.InvalidateMatching(t.Context(), bellwether.Match{Prefixes: []string{"k"}}); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if v, err := c.Get(t.Context(), "k"); v != want || err != nil {
						t.Errorf("at %d: Get after %d sweeps: %d, %v", at, want-1, v, err)
					}
					time.Sleep(2 * time.Second) // beyond NearTTL
				}
			}
		})
	}
}
