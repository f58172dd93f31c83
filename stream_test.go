package bellwether_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// slowly answers with the number of its call: the header after a pause, and the body after 5 s.
func slowly(calls *atomic.Int32, pause time.Duration) http.HandlerFunc {
	return slowlyFor("max-age=3600", calls, pause)
}

// slowlyFor is slowly with a Cache-Control.
func slowlyFor(control string, calls *atomic.Int32, pause time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n := calls.Add(1)
		w.Header().Set("Cache-Control", control)
		time.Sleep(pause)
		w.(http.Flusher).Flush()
		time.Sleep(5*time.Second - pause)
		fmt.Fprint(w, n)
	}
}

// A request that does not accept the running response gets the next, even if the store fences the first.
func TestStream_RefusedWhileOthersRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		store := memstore.New()
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: quiet{store}}}, slowly(&calls, 0))
		go s.get("http://example.com/")
		time.Sleep(time.Second)
		time.AfterFunc(time.Second, func() { store.Invalidate(t.Context(), "example.com/") })
		s.wantBody(t, "2", "http://example.com/", "Cache-Control", "no-cache")
	})
}

// A page that is swept faster than it is made is answered with a response from after the request.
func TestStream_SweptFasterThanMade(t *testing.T) {
	for name, match := range map[string]bellwether.Match{
		"prefix": {Prefixes: []string{"http://example.com/"}}, "tag": {Tags: []string{"x"}}, "soft": {Tags: []string{"x"}, Soft: true},
		"URL": {Keys: []string{"http://example.com/"}},
	} {
		for fleet, store := range map[string]func() driver.Store{"alone": func() driver.Store { return nil }, "store": func() driver.Store { return memstore.New() }} {
			inBubble(t, name+"/"+fleet, func(t *testing.T) {
				var calls atomic.Int32
				s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store()}, MaxWait: 10 * time.Minute}, func(w http.ResponseWriter, r *http.Request) {
					n := calls.Add(1)
					time.Sleep(5 * time.Second)
					w.Header().Set("Cache-Control", "max-age=3600")
					w.Header().Set("Surrogate-Key", "x")
					fmt.Fprint(w, n)
				})
				defer every(2*time.Second, func() { s.mw.InvalidateMatching(t.Context(), match) })()
				for range 3 {
					before, start := calls.Load(), time.Now()
					var n int32
					w := s.get("http://example.com/")
					if fmt.Sscan(w.Body.String(), &n); n <= before || time.Since(start) > time.Minute {
						t.Errorf("%d %q after %v, with call %d under way before it", w.Code, w.Body, time.Since(start), before)
					}
					time.Sleep(7 * time.Second)
				}
			})
		}
	}
}

// A client that joins a response gets the next one from NearTTL after another process's
// invalidation on. It reads at once with a Notifier or a Fencer, and at the commit otherwise.
func TestFleet_LateJoinerOfAnInvalidatedStream(t *testing.T) {
	for name, open := range map[string]func() driver.Store{
		"tells":        func() driver.Store { return memstore.New() },
		"can be asked": func() driver.Store { return askable(memstore.New()) },
		"neither":      func() driver.Store { return quiet{memstore.New()} },
	} {
		for _, invalidated := range []bool{false, true} {
			for slow, before := range map[string]time.Duration{"header at once": 0, "slow header": 2500 * time.Millisecond} {
				inBubble(t, fmt.Sprintf("%s/%s/invalidated %v", name, slow, invalidated), func(t *testing.T) {
					var calls atomic.Int32
					all := sites(t, 2, open(), slowly(&calls, before))
					go all[0].get("http://a/p")
					time.Sleep(2 * time.Second)
					if invalidated {
						invalidate(t, all[1].mw, "http://a/p")
					}
					want, ttfb := "1", max(0, before-2*time.Second)
					switch {
					case invalidated:
						time.Sleep(1001 * time.Millisecond)
						want = "2"
					case name == "neither":
						ttfb = 3 * time.Second
					}
					w := newClient()
					all[0].handler.ServeHTTP(w, request("GET", "http://a/p"))
					if w.Body.String() != want {
						t.Errorf("a late joiner gets response %q, want %q", w.Body, want)
					}
					if got := w.header; !invalidated && got != ttfb {
						t.Errorf("its header after %v, want %v", got, ttfb)
					}
					if got := w.Header().Get("Cache-Status"); !invalidated && !(strings.HasPrefix(got, "Bellwether;fwd=uri-miss;") && strings.Contains(got, ";stored;collapsed;")) {
						t.Errorf("its Cache-Status %s", got)
					}
					if n := calls.Load(); fmt.Sprint(n) != want {
						t.Errorf("%d handler calls, want %s", n, want)
					}
				})
			}
		}
	}
}

// A response that the Fencer has called void while it was written is not kept, although the store is silent at its end.
func TestStream_FencedThenTheStoreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		inner := memstore.New()
		store := wiredTo(inner)
		s := sites(t, 1, store.full(), slowly(&calls, 0))[0]
		store.set(on(refuse, "notice"))
		go s.get("http://a/p")
		time.Sleep(time.Second)
		elsewhere := sites(t, 1, inner, slowly(&calls, 0))[0]
		invalidate(t, elsewhere.mw, "http://a/p")
		time.Sleep(2 * time.Second)
		store.set(refuse)
		time.Sleep(3 * time.Second)
		s.wantBody(t, "2", "http://a/p")
	})
}

// A response that breaks off after an invalidation in another process has answered its readers. No run follows it.
func TestStream_BreaksOffAfterAnInvalidationElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		all := sites(t, 2, quiet{memstore.New()}, func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			w.Header().Set("Cache-Control", "max-age=60")
			w.(http.Flusher).Flush()
			time.Sleep(2 * time.Second)
			panic(http.ErrAbortHandler)
		})
		go all[0].get("http://a/p")
		time.Sleep(time.Second)
		invalidate(t, all[1].mw, "http://a/p")
		time.Sleep(10 * time.Second)
		if n := calls.Load(); n != 1 {
			t.Errorf("%d runs of the handler for one request", n)
		}
	})
}

// A response whose time is over before its end is for the clients that came in time. Later ones share the next.
func TestStream_OverBeforeItsEnd(t *testing.T) {
	aloneAndInAFleet(t, "stream", func(t *testing.T, fleet bellwether.Fleet) {
		var calls atomic.Int32
		s := newSite(t, bellwether.HTTPOptions{Fleet: fleet}, slowlyFor("max-age=1", &calls, 0))
		go s.wantBody(t, "1", "http://a/p")
		time.Sleep(3 * time.Second)
		for range 3 {
			go s.wantBody(t, "2", "http://a/p")
		}
		time.Sleep(20 * time.Second)
		if n := calls.Load(); n != 2 {
			t.Errorf("%d runs of the handler, want 2", n)
		}
	})
}

func TestFleet_LateJoinerWhileTheStoreIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		store := wiredTo(memstore.New())
		s := sites(t, 1, store.full(), slowly(&calls, 0))[0]
		go s.get("http://a/p")
		time.Sleep(500 * time.Millisecond)
		store.set(on(refuse, "fenced"))
		time.Sleep(2 * time.Second)
		w := newClient()
		s.handler.ServeHTTP(w, request("GET", "http://a/p"))
		if got := w.header; w.Body.String() != "1" || got > 100*time.Millisecond {
			t.Errorf("a late joiner gets %q, its header after %v", w.Body, got)
		}
	})
}

// A holder that was paused past its lease serves its callers the newer response of another process.
func TestFleet_PausedHolderPublishesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		store := memstore.New()
		locker := locallock.New()
		site := func(l driver.Locker) *site {
			o := bellwether.Options{Fleet: bellwether.Fleet{Store: askable(store), Locker: l, LeaseTTL: 2 * time.Second}}
			return newSite(t, pageOptions(o), func(w http.ResponseWriter, r *http.Request) {
				n := calls.Add(1)
				w.Header().Set("Cache-Control", "max-age=3600")
				if n == 1 {
					time.Sleep(8 * time.Second)
				}
				fmt.Fprint(w, n)
			})
		}
		unrenewable := wiredLocks(locker)
		unrenewable.set(on(refuse, "renew"))
		a, b := site(polling(unrenewable)), site(locker)
		got := make(chan string)
		go func() { got <- a.get("http://a/p").Body.String() }()
		time.Sleep(time.Second)
		b.wantBody(t, "2", "http://a/p") // by the takeover
		if body := <-got; body != "2" {
			t.Errorf("the paused holder answers %q, want 2", body)
		}
		a.wantBody(t, "2", "http://a/p") // and then in every process
	})
}

// A stream that begins while a stale offer is confirmed is confirmed at once, as without an offer.
func TestStream_BeginsDuringAnOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		s := newSite(t, bellwether.HTTPOptions{
			Patience: time.Minute,
			Fleet:    bellwether.Fleet{Store: askable(memstore.New()), NearTTL: 4 * time.Second},
		}, slowlyFor("max-age=1, stale-while-revalidate=3600", &calls, 4500*time.Millisecond))
		s.get("http://a/p")
		time.Sleep(10 * time.Second)
		go s.get("http://a/p")
		time.Sleep(4200 * time.Millisecond)
		w := newClient()
		s.handler.ServeHTTP(w, request("GET", "http://a/p"))
		if w.Body.String() != "2" || w.header > 310*time.Millisecond {
			t.Errorf("a joiner gets %q, its header after %v, want at once when it is published, after 300ms", w.Body, w.header)
		}
	})
}
