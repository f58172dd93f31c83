package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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

// This file attacks the log of sweeps: what happens between any two of its
// steps, to the log itself, and to those who read and write it.

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

// The holder of the log's lease is gone, or the store does not answer: no
// request waits longer for the log than for an engine that does not answer.
func TestSweep_LogIsNotWaitedFor(t *testing.T) {
	const timeout = 700 * time.Millisecond // EngineTimeout, in which what is known of the log grows old
	for name, prepare := range map[string]func(*wiredStore, *locallock.Locker){
		"its lease is held": func(_ *wiredStore, l *locallock.Locker) { l.TryAcquire(context.Background(), "\x00sweeps", time.Hour) },
		"its store hangs":   func(s *wiredStore, _ *locallock.Locker) { s.set(blackHole) },
		"claims hang":       func(s *wiredStore, _ *locallock.Locker) { s.set(on(blackHole, "claim")) },
	} {
		inBubble(t, name, func(t *testing.T) {
			store := wiredTo(memstore.New())
			locker := locallock.New()
			prepare(store, locker)
			s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, Locker: locker, EngineTimeout: timeout}}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=3600")
			})
			var wg sync.WaitGroup
			for i := range 12 { // fewer than have turns at one time
				wg.Go(func() {
					start := time.Now()
					w := s.get(fmt.Sprint("http://example.com/", i))
					if took := time.Since(start); w.Code != http.StatusOK || took > timeout+timeout/10 {
						t.Errorf("%d after %v", w.Code, took)
					}
				})
				time.Sleep(5 * time.Millisecond) // some find that another reads it
			}
			wg.Wait()
		})
	}
}

// The log is read when the process begins, and again by the first request that
// finds it old: in one call with the key, where the store answers for many. Other
// requests do not ask for it.
func TestSweep_LogIsReadAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New()).batching()
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=3600")
		})
		synctest.Wait()
		if n := store.count("get", "claim", "commit"); n != 3 {
			t.Errorf("%d calls to begin the log, want 3", n)
		}
		for i, want := range []struct {
			after         time.Duration
			get, together int
		}{
			{0, 1, 0},                      // it has just been read
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

// Of a log and a key that are asked for together, the key's answer is not believed
// without the log's: what is kept may have been swept. Nor is a request longer
// than EngineTimeout about it.
func TestSweep_HalfAnAnswer(t *testing.T) {
	for mute, errs := range map[string]int{"\x00sweeps": 2, "example.com/": 1} {
		inBubble(t, fmt.Sprintf("none for %q", mute), func(t *testing.T) {
			kept := memstore.New()
			other := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: kept}}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=3600")
				fmt.Fprint(w, "kept")
			})
			var said []error
			s := newSite(t, bellwether.HTTPOptions{
				Fleet:   bellwether.Fleet{Store: muted(kept, map[string]bool{mute: true})},
				OnError: func(_ string, err error) { said = append(said, err) },
			}, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "its own") })
			other.get("http://example.com/")
			time.Sleep(time.Second)
			start := time.Now()
			s.wantBody(t, "its own", "http://example.com/") // the other may have been swept
			if took := time.Since(start); took > 600*time.Millisecond {
				t.Errorf("it took %v, with an EngineTimeout of 500 ms", took)
			}
			if len(said) != errs || !errors.Is(errors.Join(said...), bellwether.ErrUnavailable) {
				t.Errorf("said: %v", said)
			}
		})
	}
}

// A server that is silent delays the requests for its own keys, and none for
// those of the log's server, although one of them is the first to find the log
// old.
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
		}, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Cache-Control", "max-age=3600") })
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

// A process that has not met the log asks for it before it believes what is kept,
// also if it has just tried in vain.
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

// Processes that begin the log at one time, with nothing to elect one of them, do
// so without errors.
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

// A request that finds too many waiting for MaxRebuilds is told so at once,
// whatever was swept before it came.
func TestSweep_AndTheQueueIsFull(t *testing.T) {
	for name, store := range map[string]driver.Store{"a store": memstore.New(), "no store": nil} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}, Limits: bellwether.Limits{MaxRebuilds: 1, MaxQueued: 1}}, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				w.Header().Set("Cache-Control", "max-age=3600")
			})
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

// A log whose bytes are none takes everything with it, and is begun anew.
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
			_, epoch, _ := store.Claim(t.Context(), "\x00sweeps")
			store.Commit(t.Context(), "\x00sweeps", driver.Entry{Kind: driver.KindValue, Value: []byte(garbage), Epoch: epoch, TTL: time.Hour})
			time.Sleep(1001 * time.Millisecond)
			for _, s := range all {
				s.wantBody(t, "2", "http://example.com/?tag=x") // perhaps response 1 was swept
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
		corrupt := func() bool { return store.count("commit") < 3 } // until it is written anew
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

// A sweep is done only if the log's lease has held until it was written; who
// cannot know that writes once more.
func TestSweep_LeaseIsLostWhileTheLogIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, locker := memstore.New(), locallock.New()
		open := func() (*site, *wiredStore, *wiredLocker) {
			store, wired := wiredTo(inner), wiredLocks(locker)
			return newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, Locker: wired, LeaseTTL: 100 * time.Millisecond}}, func(w http.ResponseWriter, r *http.Request) {
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
		// A's commit takes longer than its lease, and the release is not
		// answered. B has read the log before A's commit and writes after it.
		slow.set(on(func(context.Context, string) error { time.Sleep(150 * time.Millisecond); return nil }, "commit"))
		slower.set(on(func(context.Context, string) error { time.Sleep(80 * time.Millisecond); return nil }, "commit"))
		deaf.set(on(refuse, "release"))
		var wg sync.WaitGroup
		var errA error
		wg.Go(func() { errA = a.mw.InvalidateMatching(t.Context(), bellwether.Match{Tags: []string{"a"}}) })
		time.Sleep(110 * time.Millisecond)
		wg.Go(func() { sweep(t, b, bellwether.Match{Tags: []string{"b"}}) })
		time.Sleep(50 * time.Millisecond)
		slow.set(nil)
		wg.Wait()
		time.Sleep(1001 * time.Millisecond)
		calls := b.calls.Load()
		b.get("http://example.com/?tag=a")
		if b.calls.Load() == calls && errA == nil {
			t.Error("a sweep that returned nil is not in the log")
		}
	})
}

// Without its store a process drops also what it is making.
func TestSweep_WithoutTheStoreDuringALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		store := wiredTo(memstore.New())
		s := sites(t, 1, store, func(w http.ResponseWriter, r *http.Request) {
			n++
			body := fmt.Sprint(n)
			time.Sleep(5 * time.Second)
			w.Header().Set("Cache-Control", "max-age=3600")
			fmt.Fprint(w, body)
		})[0]
		go s.get("http://example.com/")
		time.Sleep(time.Second)
		store.set(refuse)
		err := s.mw.InvalidateMatching(t.Context(), bellwether.Match{Prefixes: []string{"http://example.com/"}})
		if !errors.Is(err, bellwether.ErrUnavailable) {
			t.Fatalf("err = %v, want ErrUnavailable", err)
		}
		s.wantBody(t, "2", "http://example.com/") // response 1 was begun before the sweep
	})
}

// withStalePage returns a site over the store. Its page, http://example.com/ with the tag x, is
// stale, and the handler needs 5 s for the next one.
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

// Without its store a process does not go on offering what was stale either.
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
			t.Error("the stale response is served that was swept")
		}
	})
}

// Without its store a process does not go back to what was at hand before the sweep, while
// it waits for that store.
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
		time.Sleep(100 * time.Millisecond) // it looks
		if err := s.mw.InvalidateMatching(t.Context(), bellwether.Match{Tags: []string{"x"}}); err == nil {
			t.Fatal("no error without a store")
		}
		for range 3 {
			if got := s.get("http://example.com/").Body.String(); got == "1" {
				t.Error("the response is served that was swept")
			}
		}
		time.Sleep(time.Minute) // a refresh ends
	})
}

// lingering is a handler that says which run it is, and whose first run goes on for a
// while behind that.
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

// An invalidation meets a response that is being written also where a soft one
// has met it before, and nobody joins its readers any more.
func TestSweep_SoftThenInvalidated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, lingering(3*time.Second))
		go s.get("http://a/p")
		time.Sleep(time.Second)
		sweep(t, s, bellwether.Match{Keys: []string{"http://a/p"}, Soft: true})
		time.Sleep(time.Second)
		invalidate(t, s.mw, "http://a/p")
		time.Sleep(2 * time.Second)
		s.wantBody(t, "run 2", "http://a/p") // run 1 was made before the invalidation
	})
}

// While the store is down a sweep meets what this process is making all the same, also
// what a soft one has met before.
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
			s.wantBody(t, "run 2", "http://a/p") // run 1 was made before the invalidation
		})
	}
}

// What went stale before this process began is stale after a sweep of something else,
// too: its times are before the clock's.
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
	synctest.Test(t, func(t *testing.T) { // in one process: the upstream's Age is more than its life
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

// A store that loses all it has during a load has lost the log, too: the load after that
// one begins with what there is of it now, and not to be in vain.
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
		time.Sleep(10 * time.Millisecond) // the log has begun
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

// A response is as old as its header, also where the log is waited for behind its body.
func TestSweep_LogIsWaitedForBehindALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const load, ttl = 3 * time.Second, 5 * time.Second // longer than the log is believed
		store := wiredTo(memstore.New())
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}, TTL: ttl}, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			time.Sleep(load)
			store.reset()
			store.set(on(func(context.Context, string) error { time.Sleep(400 * time.Millisecond); return nil }, "get"))
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

// A sweep of everything hits all hosts, both schemes and all variants, and what comes after
// it stays.
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
								time.Sleep(2 * time.Second) // it is kept a moment after it was answered
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
					t.Errorf("%d handler calls for what came after the sweep", n)
				}
			})
		})
	}
}

// The fields with tags are those that the options name.
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
