package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
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

// A handler that fails is asked once for those who wait, whatever was swept
// before.
// What was stale when it was swept is offered to nobody while the rebuild
// behind it runs, neither here nor elsewhere.
// Two sweeps at one moment are both heeded, also by the process that has no
// store to write them to, and also by what was being made.
// However much is swept, the log stays a value that stores take.
// Tags and prefixes are bytes, not text: other processes read what was meant.
// A POST's response that is kept for the next GET is none if it was swept while
// it was made; what was swept before the request does not concern it.
// A request that takes only what is kept does not get what was swept elsewhere.
// What is swept softly while it is made, and has no stale windows, is gone.
// The holder of the log's lease is gone, or the store does not answer: no
// request waits longer for the log than for an engine that does not answer.
func TestSweep_LogIsNotWaitedFor(t *testing.T) {
	const timeout = 500 * time.Millisecond // EngineTimeout
	for name, prepare := range map[string]func(*wiredStore, *locallock.Locker){
		"its lease is held": func(_ *wiredStore, l *locallock.Locker) { l.TryAcquire(context.Background(), "\x00sweeps", time.Hour) },
		"its store hangs":   func(s *wiredStore, _ *locallock.Locker) { s.set(blackHole) },
		"claims hang":       func(s *wiredStore, _ *locallock.Locker) { s.set(on(blackHole, "claim")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &wiredStore{wire: &wire{}, store: memstore.New()}
				locker := locallock.New()
				s := newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{Store: store, Locker: locker}}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=3600")
				})
				prepare(store, locker)
				var wg sync.WaitGroup
				for i := range 50 {
					wg.Go(func() {
						start := time.Now()
						w := s.get(fmt.Sprint("http://example.com/", i))
						if took := time.Since(start); w.Code != http.StatusOK || took > timeout+timeout/10 {
							t.Errorf("%d after %v", w.Code, took)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

// A log whose bytes are none takes everything with it, and is begun anew.
func TestSweep_LogIsCorrupt(t *testing.T) {
	for name, garbage := range map[string]string{"no JSON": "{", "null": "null", "an empty one": "{}", "another's": `{"since":"x"}`} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var (
					mu    sync.Mutex
					calls int
				)
				store := memstore.New()
				all := sites(t, 2, quiet{store}, tagged(&calls, &mu))
				for _, s := range all {
					s.get("http://example.com/?tag=x")
				}
				synctest.Wait()
				_, epoch, _ := store.Claim(t.Context(), "\x00sweeps")
				store.Commit(t.Context(), "\x00sweeps", bellwether.Entry{Kind: bellwether.KindValue, Value: []byte(garbage), Epoch: epoch, TTL: time.Hour})
				time.Sleep(1001 * time.Millisecond)
				for i, s := range all {
					if got := s.get("http://example.com/?tag=x").Body.String(); got != "2" {
						t.Errorf("process %d serves %s: perhaps it was swept", i, got)
					}
				}
				sweep(t, all[1], bellwether.Match{Tags: []string{"x"}})
				time.Sleep(1001 * time.Millisecond)
				if got := all[0].get("http://example.com/?tag=x").Body.String(); got != "3" {
					t.Errorf("after a sweep: %s, want 3", got)
				}
			})
		})
	}
	t.Run("no entry", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var (
				mu    sync.Mutex
				calls int
			)
			store := &wiredStore{wire: &wire{}, store: memstore.New()}
			s := sites(t, 1, store, tagged(&calls, &mu))[0]
			s.get("http://example.com/?tag=x")
			synctest.Wait()
			s.get("http://example.com/?tag=x")
			corrupt := func() bool { return store.count("commit") < 3 } // until it is written anew
			store.set(on(func(context.Context, string) error {
				if corrupt() {
					return bellwether.ErrCorrupt
				}
				return nil
			}, "get"))
			tamper := func(e *bellwether.Entry) {
				if corrupt() {
					*e = bellwether.Entry{}
				}
			}
			store.tamper.Store(&tamper)
			time.Sleep(2 * time.Second)
			for range 3 {
				s.get("http://example.com/?tag=x")
			}
			if calls != 2 {
				t.Errorf("%d calls after the log turned out to be no entry, want 2", calls)
			}
		})
	})
}

// A sweep is done only if the log's lease has held until it was written; who
// cannot know that writes once more.
func TestSweep_LeaseIsLostWhileTheLogIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, locker := memstore.New(), locallock.New()
		open := func() (*site, *wiredStore, *wiredLocker) {
			store, wired := &wiredStore{wire: &wire{}, store: inner}, &wiredLocker{wire: &wire{}, locker: locker}
			return newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{Store: store, Locker: wired, LeaseTTL: 100 * time.Millisecond}}, func(w http.ResponseWriter, r *http.Request) {
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
		wg.Go(func() {
			errA = a.mw.InvalidateMatching(t.Context(), bellwether.Match{Tags: []string{"a"}})
		})
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
		store := &wiredStore{wire: &wire{}, store: memstore.New()}
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
		if got := s.get("http://example.com/").Body.String(); got != "2" {
			t.Errorf("a request after the sweep got response %s, which was begun before it", got)
		}
	})
}

// Without its store a process does not go on offering what was stale either.
func TestSweep_WithoutTheStoreWhileStaleIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		store := &wiredStore{wire: &wire{}, store: memstore.New()}
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
		if got := s.get("http://example.com/").Body.String(); got != "1" {
			t.Fatalf("stale: %s, want 1", got)
		}
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
