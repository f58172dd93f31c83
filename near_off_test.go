package bellwether_test

import (
	"context"
	"encoding/json"
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

// This file tests caches without a near tier. Each call reads the store, and all promises hold.

func nearOff(o bellwether.Options) bellwether.Options {
	o.Fleet.NearTTL = -1
	return o
}

// trip is a fault that takes the time of a round trip.
func trip(context.Context, string) error { time.Sleep(time.Millisecond); return nil }

// A cold key is loaded once. Callers that come during a read of a warm key share the next read.
func TestNearOff_Herd(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 3, by, nearOff(bellwether.Options{}))
		f.each(func(p *process) { p.store.set(trip); p.locker.set(trip) })
		trickle := func(callers int, pause time.Duration) {
			var wg sync.WaitGroup
			for range callers {
				f.each(func(p *process) {
					wg.Go(func() {
						began := time.Now()
						wantValue(t, p, "k", "v1")
						if took := time.Since(began); took > 1500*time.Millisecond {
							t.Errorf("a caller waited %v", took)
						}
					})
				})
				time.Sleep(pause)
			}
			wg.Wait()
		}
		trickle(1000, 500*time.Microsecond) // over half of the load
		f.wantLoads(t, 1)
		f.each(func(p *process) { p.store.reset() })
		trickle(1000, 10*time.Microsecond)
		f.wantLoads(t, 1)
		f.each(func(p *process) {
			if n := p.store.count(); n > 15 {
				t.Errorf("%d calls of the store for a herd of 10 ms, want one a millisecond", n)
			}
		})
	})
}

// Callers get the stale value after one round trip, and without callers the store is not read.
func TestNearOff_StaleBeatsSlow(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, nearOff(bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, MaxWait: time.Minute}))
		lost := on(refuse, "notice")
		f.each(func(p *process) {
			p.store.set(func(ctx context.Context, op string) error { return errors.Join(lost(ctx, op), trip(ctx, op)) })
		})
		a, b := f.processes[0], f.processes[1]
		a.Get(t.Context(), "k")
		b.Get(t.Context(), "k")
		time.Sleep(time.Second)
		f.origin.set(func(o *source) { o.build = 20 * time.Second })
		// in the rebuilding process and in the waiting process
		for range 100 {
			f.each(func(p *process) {
				began := time.Now()
				if v, err := p.Get(t.Context(), "k"); v != "v1" || err != nil || time.Since(began) > 5*time.Millisecond {
					t.Errorf("%q, %v after %v", v, err, time.Since(began))
				}
			})
			time.Sleep(10 * time.Millisecond)
		}
		f.wantLoads(t, 2)
		f.each(func(p *process) { p.store.reset() })
		time.Sleep(8 * time.Second)
		f.each(func(p *process) {
			if n := p.store.count(); n > 60 {
				t.Errorf("%d calls of the store in 8 s without callers", n)
			}
		})
		invalidate(t, b, "k")
		if v, err := a.Get(t.Context(), "k"); v == "v1" || err != nil {
			t.Errorf("%q, %v after its invalidation in another process", v, err)
		}
	})
}

// A caller that came while a stale value existed gets it at the end of Patience.
func TestNearOff_Patience(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, nearOff(bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, Patience: 2 * time.Second}))
		f.each(func(p *process) { p.store.set(trip) })
		f.get(1, "k")
		time.Sleep(time.Second)
		f.origin.set(func(o *source) { o.build = 10 * time.Second })
		var wg sync.WaitGroup
		for range 5 {
			f.each(func(p *process) {
				wg.Go(func() {
					began := time.Now()
					if v, err := p.Get(t.Context(), "k"); v != "v1" || err != nil || time.Since(began) > 2*time.Second+5*time.Millisecond {
						t.Errorf("%q, %v after %v", v, err, time.Since(began))
					}
				})
			})
			time.Sleep(300 * time.Millisecond)
		}
		wg.Wait()
	})
}

// While the store is down, a process serves its own values, and does not load for each call.
func TestNearOff_StoreDown(t *testing.T) {
	for name, of := range map[string]struct {
		fault
		most int // loads of a key in 10 s
	}{"silent": {blackHole, 2}, "refuses": {refuse, 2}, "takes no writes": {on(refuse, "claim", "commit"), 12}} {
		t.Run(name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, by way) {
				f := newFleet(t, 1, by, nearOff(bellwether.Options{TTL: time.Minute}))
				p := f.processes[0]
				p.Get(t.Context(), "k")
				p.store.set(of.fault)
				var wg sync.WaitGroup
				for range 20 { // callers that come before the outage is known wait once
					wg.Go(func() {
						began := time.Now()
						if v, err := p.Get(t.Context(), "k"); v != "v1" || err != nil || time.Since(began) > 600*time.Millisecond {
							t.Errorf("%q, %v after %v", v, err, time.Since(began))
						}
					})
					time.Sleep(20 * time.Millisecond)
				}
				wg.Wait()
				for range 200 {
					wantValue(t, p, "k", "v1")
					time.Sleep(50 * time.Millisecond)
				}
				f.wantLoads(t, 1)
				f.origin.set(func(o *source) { o.build = 10 * time.Millisecond })
				for range 200 {
					p.Get(t.Context(), "another")
					time.Sleep(50 * time.Millisecond)
				}
				if loads, _ := f.origin.count(); loads-1 > of.most {
					t.Errorf("%d loads for a key in an outage of 10 s, want %d at most", loads-1, of.most)
				}
			})
		})
	}
}

// If the store fails during a rebuild, callers get the stale value without waiting.
func TestNearOff_StoreDownDuringARebuild(t *testing.T) {
	for name, fault := range map[string]fault{"silent": blackHole, "refuses": refuse} {
		t.Run(name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, by way) {
				f := newFleet(t, 1, by, nearOff(bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, MaxWait: time.Minute}))
				p := f.processes[0]
				p.Get(t.Context(), "k")
				time.Sleep(time.Second)
				f.origin.set(func(o *source) { o.build = 20 * time.Second })
				p.Get(t.Context(), "k")
				synctest.Wait()
				p.store.set(fault)
				var wg sync.WaitGroup
				for range 50 {
					wg.Go(func() {
						began := time.Now()
						if v, err := p.Get(t.Context(), "k"); v != "v1" || err != nil || time.Since(began) > 600*time.Millisecond {
							t.Errorf("%q, %v after %v", v, err, time.Since(began))
						}
					})
					time.Sleep(20 * time.Millisecond)
				}
				wg.Wait()
				f.wantLoads(t, 2)
			})
		})
	}
}

// A value that is too large for the store stays in each process, as the store's record says.
func TestNearOff_Unshared(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, nearOff(bellwether.Options{TTL: time.Hour}))
		f.each(takesNoValues)
		for range 20 {
			f.get(3, "k")
			time.Sleep(time.Second)
		}
		f.wantLoads(t, 2)
		f.each(func(p *process) { p.store.set(on(refuse, "notice")) })
		f.processes[0].Invalidate(t.Context(), "k")
		if v, err := f.processes[1].Get(t.Context(), "k"); err != nil || version(v) < 3 {
			t.Errorf("%q, %v after its invalidation in another process", v, err)
		}
	})
}

// A failure answers for ErrorTTL in every process, or without the store in its own process.
func TestNearOff_Failures(t *testing.T) {
	for name, fault := range map[string]fault{"with the store": nil, "without": refuse} {
		t.Run(name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, by way) {
				f := newFleet(t, 2, by, nearOff(bellwether.Options{ErrorTTL: 20 * time.Second}))
				f.origin.set(func(o *source) { o.build, o.fail = 10*time.Millisecond, func(int) error { return errOrigin } })
				f.each(func(p *process) { p.store.set(fault) })
				for range 90 { // the pause is at least 10 s
					f.each(func(p *process) {
						if _, err := p.Get(t.Context(), "k"); err == nil || !strings.Contains(err.Error(), errOrigin.Error()) {
							t.Errorf("Get: %v, want the origin's failure", err)
						}
					})
					time.Sleep(100 * time.Millisecond)
				}
				want := 1
				if fault != nil {
					want = 2
				}
				if loads, _ := f.origin.count(); loads > want {
					t.Errorf("%d loads within ErrorTTL, want %d", loads, want)
				}
			})
		})
	}
}

// A failure that is not stored answers no caller from after another process's invalidation.
func TestNearOff_FailureOfBeforeAnInvalidation(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, nearOff(bellwether.Options{}))
		f.each(func(p *process) { p.store.set(on(refuse, "notice")) })
		f.origin.set(func(o *source) {
			o.build = 2 * time.Second
			o.fail = func(n int) error {
				if n == 1 {
					return context.Canceled
				}
				return nil
			}
		})
		var early sync.WaitGroup
		early.Go(func() {
			if v, err := f.processes[0].Get(t.Context(), "k"); !errors.Is(err, context.Canceled) {
				t.Errorf("before: %q, %v", v, err)
			}
		})
		time.Sleep(time.Second)
		invalidate(t, f.processes[1], "k")
		time.Sleep(time.Millisecond)
		wantValue(t, f.processes[0], "k", "v2")
		early.Wait()
	})
}

func TestNearOff_DecodesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var decoded atomic.Int32
		o := nearOff(bellwether.Options{
			Fleet: bellwether.Fleet{Store: quiet{memstore.New()}}, Codec: bellwether.Codec{
				Marshal:   json.Marshal,
				Unmarshal: func(b []byte, v any) error { decoded.Add(1); return json.Unmarshal(b, v) },
			},
		})
		load := func(context.Context, string) (string, error) { return "v", nil }
		a, b := cacheOf(t, load, o), cacheOf(t, load, o)
		a.Get(t.Context(), "k")
		for range 100 {
			wantValue(t, b, "k", "v")
			time.Sleep(time.Millisecond)
		}
		if n := decoded.Load(); n != 1 {
			t.Errorf("decoded %d times, want once", n)
		}
	})
}

func TestNearOff_GetMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		ps := newBatchFleet(t, 2, origin, nearOff(bellwether.Options{TTL: time.Hour}))
		keys := manyKeys(100)
		for range 3 {
			for _, p := range ps {
				getAll(t, p, keys)
				time.Sleep(time.Millisecond)
			}
		}
		ps[0].store.reset()
		ps[0].GetMany(t.Context(), keys)
		if n := ps[0].store.count(); n != 1 {
			t.Errorf("%d calls of the store for 100 keys, want one", n)
		}
		invalidate(t, ps[1], keys[0])
		time.Sleep(time.Nanosecond)
		values, err := ps[0].GetMany(t.Context(), keys)
		if v := values[keys[0]]; err != nil || v != keys[0]+" v2" {
			t.Errorf("%q, %v after its invalidation in another process", v, err)
		}
	})
}

// Popular keys are rebuilt before they expire, by calls that the store answers.
func TestNearOff_EarlyRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, nearOff(bellwether.Options{TTL: 10 * time.Second, EarlyRefresh: 1}))
		slow := 0
		for range 1000 {
			f.each(func(p *process) {
				began := time.Now()
				if _, err := p.Get(t.Context(), "k"); err != nil {
					t.Error(err)
				}
				if time.Since(began) > 100*time.Millisecond {
					slow++
				}
			})
			time.Sleep(50 * time.Millisecond)
		}
		if loads, most := f.origin.count(); slow > 3 || loads > 12 || most > 1 {
			t.Errorf("%d callers waited for a load; %d loads, %d at a time", slow, loads, most)
		}
	})
}

func nearOffSites(t *testing.T, n int, store driver.Store, h http.HandlerFunc) []*site {
	t.Helper()
	return sitesOf(t, n, bellwether.Fleet{Store: store, NearTTL: -1}, h)
}

// An invalidation takes effect in other processes at once.
func TestNearOff_HTTPInvalidatedElsewhere(t *testing.T) {
	for name, match := range map[string]bellwether.Match{
		"URL":    {Keys: []string{"http://a/p"}},
		"prefix": {Prefixes: []string{"http://a/"}},
		"tag":    {Tags: []string{"x"}},
		"soft":   {Tags: []string{"x"}, Soft: true},
	} {
		for _, vary := range []string{"", "Accept-Language"} {
			inBubble(t, name+vary, func(t *testing.T) {
				var calls atomic.Int32
				store := memstore.New()
				all := nearOffSites(t, 2, askable(store), func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=3600")
					w.Header().Set("Surrogate-Key", "x")
					if vary != "" {
						w.Header().Set("Vary", vary)
					}
					fmt.Fprint(w, calls.Add(1))
				})
				want := 1
				for range 3 {
					for range 3 {
						for _, s := range all {
							s.wantBody(t, fmt.Sprint(want), "http://a/p")
							time.Sleep(time.Millisecond) // a look at the store answers all requests of its instant
						}
					}
					sweep(t, all[1], match)
					want++
				}
			})
		}
	}
}

// A request takes one call of the store, and pages do not wait for each other.
func TestNearOff_HTTPCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New()).batching()
		s := nearOffSites(t, 1, store, page(0, "page"))[0]
		store.set(trip)
		const pages = 100
		url := func(i int) string { return fmt.Sprint("http://a/", i) }
		for i := range pages {
			s.get(url(i))
		}
		eventually(t, func() bool { return s.mw.Stats().Flights == 0 }) // the last commit follows its client's reply
		store.reset()
		for i := range pages {
			s.get(url(i))
		}
		if n := store.count(); n != pages {
			t.Errorf("%d calls of the store for %d requests: %v", n, pages, store.calls)
		}
		store.reset()
		began := time.Now()
		var wg sync.WaitGroup
		for i := range pages {
			wg.Go(func() { s.get(url(i)) })
			time.Sleep(10 * time.Microsecond)
		}
		wg.Wait()
		if took := time.Since(began); took > 30*time.Millisecond {
			t.Errorf("%d requests at one time took %v with a store of 1 ms", pages, took)
		}
		if n := store.count("get", "getmany"); n > pages+10 {
			t.Errorf("%d calls of the store for %d requests at one time", n, pages)
		}
		s.wantCalls(t, pages)
	})
}

// A client that joins a response reads it at once, or without a Fencer at its commit, unless
// another process has invalidated it. The handler is called once for each version.
func TestNearOff_LateJoinerOfAStream(t *testing.T) {
	for name, open := range map[string]func(store driver.Store) driver.Store{
		"can be asked": askable,
		"cannot":       func(s driver.Store) driver.Store { return quiet{s} },
	} {
		for _, invalidated := range []bool{false, true} {
			inBubble(t, fmt.Sprintf("%s/invalidated %v", name, invalidated), func(t *testing.T) {
				var calls atomic.Int32
				all := nearOffSites(t, 2, open(memstore.New()), slowly(&calls, 0))
				go all[0].get("http://a/p")
				time.Sleep(2 * time.Second)
				want, ttfb := "1", time.Duration(0)
				if invalidated {
					invalidate(t, all[1].mw, "http://a/p")
					want = "2"
				} else if name == "cannot" {
					ttfb = 3 * time.Second
				}
				time.Sleep(time.Millisecond)
				w := newClient()
				all[0].handler.ServeHTTP(w, request("GET", "http://a/p"))
				if w.Body.String() != want {
					t.Errorf("a late joiner gets response %q, want %q", w.Body, want)
				}
				if got := w.header; !invalidated && (got < ttfb-10*time.Millisecond || got > ttfb+10*time.Millisecond) {
					t.Errorf("its header after %v, want %v", got, ttfb)
				}
				if n := calls.Load(); fmt.Sprint(n) != want {
					t.Errorf("%d handler calls, want %s", n, want)
				}
			})
		}
	}
}

// A client that comes while a slow commit of a complete response runs gets the response at once.
func TestNearOff_JoinerDuringTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		store.only = func(key string) bool { return key == "a/p" }
		store.set(on(takes(800*time.Millisecond), "commit"))
		fenced := struct {
			quiet
			fences
		}{quiet{store}, store.fenced}
		o := bellwether.Options{Fleet: bellwether.Fleet{Store: fenced, Locker: locallock.New(), EngineTimeout: time.Second}}
		s := newSite(t, pageOptions(nearOff(o)), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=3600")
			w.(http.Flusher).Flush()
			time.Sleep(100 * time.Millisecond)
			fmt.Fprint(w, "page")
		})
		go s.get("http://a/p")
		time.Sleep(200 * time.Millisecond)
		began := time.Now()
		if w := s.get("http://a/p"); w.Body.String() != "page" || time.Since(began) > 10*time.Millisecond {
			t.Errorf("%q after %v", w.Body, time.Since(began))
		}
		s.wantCalls(t, 1)
	})
}

// Without a Fencer, clients that join a response get the stale page after Patience.
func TestNearOff_JoinersOfAStreamAskLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		store.set(trip)
		o := bellwether.Options{Fleet: bellwether.Fleet{Store: quiet{store}, Locker: locallock.New()}, Patience: 500 * time.Millisecond}
		s := newSite(t, pageOptions(nearOff(o)), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=1, stale-while-revalidate=3600")
			w.(http.Flusher).Flush()
			time.Sleep(time.Second)
			fmt.Fprint(w, "page")
		})
		s.get("http://a/p")
		time.Sleep(2 * time.Second)
		go s.get("http://a/p")
		eventually(t, func() bool { return s.calls.Load() == 2 })
		store.reset()
		began := time.Now()
		var joiners sync.WaitGroup
		for range 10 {
			joiners.Go(func() { s.get("http://a/p") })
		}
		joiners.Wait()
		if took, n := time.Since(began), store.count(); took < 500*time.Millisecond || took > 510*time.Millisecond || n > 10 {
			t.Errorf("stale after %v, with %d calls of the store: %v", took, n, store.calls)
		}
		time.Sleep(2 * time.Second) // the handler ends
	})
}

// A process still knows whether a key's responses are for all, are private, or are fresh.
func TestNearOff_EarlierResponseIsKnown(t *testing.T) {
	inBubble(t, "credentials", func(t *testing.T) {
		s := nearOffSites(t, 1, memstore.New(), func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "public, max-age=1")
		})[0]
		s.get("http://a/p", "Authorization", "a")
		time.Sleep(5 * time.Second)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() { s.get("http://a/p", "Authorization", fmt.Sprint(i)) })
		}
		wg.Wait()
		s.wantCalls(t, 2)
	})
	inBubble(t, "not for sharing, and for sharing again", func(t *testing.T) {
		var private atomic.Bool
		s := nearOffSites(t, 1, memstore.New(), func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=60")
			if private.Load() {
				w.Header().Set("Cache-Control", "private")
			}
		})[0]
		private.Store(true)
		s.get("http://a/p")
		began := time.Now()
		s.burst(20, func(int) *http.Request { return request("GET", "http://a/p") })
		if took := time.Since(began); took > time.Second+10*time.Millisecond {
			t.Errorf("clients of a private page waited %v for each other", took)
		}
		s.wantCalls(t, 21)
		private.Store(false)
		s.get("http://a/p") // ends hit-for-miss
		time.Sleep(time.Second)
		s.burst(20, func(int) *http.Request { return request("GET", "http://a/p") })
		s.wantCalls(t, 2)
	})
	inBubble(t, "few go past a fresh page", func(t *testing.T) {
		s := nearOffSites(t, 1, memstore.New(), page(time.Second, "page"))[0]
		s.get("http://a/p")
		time.Sleep(time.Second)
		s.burst(100, func(int) *http.Request {
			r := request("GET", "http://a/p")
			r.Header.Set("Cache-Control", "no-store")
			return r
		})
		s.wantCalls(t, 1+8)
	})
}

// The last caller of a flight for which the queue is full leaves while the store is asked about the stale value: the
// store has confirmed nothing, so the value answers no call after an invalidation in another process.
func TestNearOff_LeftWhileOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, nearOff(bellwether.Options{
			TTL: time.Second, StaleIfError: time.Hour, Limits: bellwether.Limits{MaxRebuilds: 1, MaxQueued: 1},
		}))
		a, b := f.processes[0], f.processes[1]
		wantValue(t, a, "k", "v1")
		time.Sleep(2 * time.Second)
		f.origin.set(func(o *source) { o.build = 10 * time.Second })
		for _, key := range []string{"has the slot", "fills the queue"} {
			go a.Get(t.Context(), key)
			synctest.Wait()
		}
		reads := 0
		a.store.set(on(func(ctx context.Context, op string) error {
			if reads++; reads == 2 { // the look comes before
				return blackHole(ctx, op)
			}
			return nil
		}, "get"))
		ctx, leave := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer leave()
		a.Get(ctx, "k")
		synctest.Wait()
		invalidate(t, b, "k")
		if v, err := a.Get(t.Context(), "k"); !errors.Is(err, bellwether.ErrOverloaded) {
			t.Errorf("%q, %v after the invalidation; want %v", v, err, bellwether.ErrOverloaded)
		}
		if reads < 2 {
			t.Errorf("%d reads, want one that the caller has left", reads)
		}
	})
}
