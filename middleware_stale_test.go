package bellwether_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests when stale pages are served.

// A stored error is not served stale for another error.
func TestStale_ErrorBehindAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=2, must-revalidate")
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, "maintenance")
		})
		s.get("http://a/p")
		time.Sleep(1900 * time.Millisecond)
		s.get("http://a/p", "Cache-Control", "no-cache")
		time.Sleep(200 * time.Millisecond)
		if w := s.get("http://a/p"); w.Code != http.StatusServiceUnavailable || w.Body.String() != "maintenance" {
			t.Errorf("status %d, body %q", w.Code, w.Body)
		}
	})
}

// failing answers with a page, and fails while broken is set.
type failing struct {
	header string // Cache-Control of the page
	etag   bool
	broken atomic.Bool
	fail   func(w http.ResponseWriter)
}

func (f *failing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(10 * time.Millisecond)
	if f.broken.Load() {
		f.fail(w)
		return
	}
	w.Header().Set("Cache-Control", f.header)
	w.Header().Set("Surrogate-Key", "tag")
	if f.etag {
		w.Header().Set("ETag", `"1"`)
	}
	fmt.Fprint(w, "page")
}

func TestStale_HitWhileTheStoreIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		s := sites(t, 1, store, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, "page")
		})[0]
		s.get("http://a/p")
		s.wantCalls(t, 1)
		time.Sleep(2 * time.Second) // longer than NearTTL
		store.set(refuse)
		if got, want := s.get("http://a/p").Header().Get("Cache-Status"), "Bellwether;hit;ttl=58"; got != want {
			t.Errorf("Cache-Status %q, want %q", got, want)
		}
		s.wantCalls(t, 0)
	})
}

// An entry for an absent value is ignored.
func TestStale_EntryOfNoResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		s := sites(t, 1, store, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, "page")
		})[0]
		_, epoch, _ := store.Claim(t.Context(), "a/p")
		store.Commit(t.Context(), "a/p", driver.Entry{Kind: driver.KindNotFound, Epoch: epoch, TTL: time.Hour})
		for range 2 {
			if w := s.get("http://a/p"); w.Code != 200 || w.Body.String() != "page" {
				t.Errorf("status %d, body %q", w.Code, w.Body)
			}
		}
		s.wantCalls(t, 1)
	})
}

// An entry whose bytes say that it is a record, but have a page's header, is a miss: the handler is not asked whether it
// is still valid.
func TestStale_EntryOfARecordWithAHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		s := sites(t, 2, store, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=10")
			w.Header().Set("ETag", `"x"`)
			if r.Header.Get("If-None-Match") != "" {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			fmt.Fprint(w, "page")
		})
		s[0].get("http://a/p")
		synctest.Wait()
		e, err := store.Get(t.Context(), "a/p")
		if err != nil {
			t.Fatal(err)
		}
		version, rest := e.Value[0], e.Value[5:]                              // behind kind, flags, and the two bytes of the status 200
		e.Value = append([]byte{version, 2 /* uncacheable */, 0, 0}, rest...) // with the status 0
		if _, err := driver.Set(t.Context(), store, "a/p", e); err != nil {
			t.Fatal(err)
		}
		time.Sleep(12 * time.Second) // past max-age
		s[1].wantBody(t, "page", "http://a/p")
	})
}

// An error without freshness expires after ErrorTTL, also for max-stale.
func TestStale_ErrorOutlivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{header: "max-age=10", etag: true, fail: func(w http.ResponseWriter) {
			w.Header().Set("ETag", `"1"`)
			http.Error(w, "down", http.StatusServiceUnavailable)
		}}
		f.broken.Store(true)
		s := newSite(t, bellwether.HTTPOptions{}, f.ServeHTTP)
		s.get("http://a/p")
		f.broken.Store(false)
		time.Sleep(50 * time.Minute)
		if w := s.get("http://a/p", "Cache-Control", "max-stale"); w.Code != 200 {
			t.Errorf("50 minutes after: %d %v", w.Code, w.Header())
		}
	})
}

// Each load that ends in a server error counts as one LoadFailure, with or without a stale page.
func TestStale_ServerErrorsCountAsLoadFailures(t *testing.T) {
	for name, fail := range map[string]func(w http.ResponseWriter){
		"503":            func(w http.ResponseWriter) { http.Error(w, "sorry", http.StatusServiceUnavailable) },
		"no-store 500":   func(w http.ResponseWriter) { w.Header().Set("Cache-Control", "no-store"); w.WriteHeader(500) },
		"fresh 504":      func(w http.ResponseWriter) { w.Header().Set("Cache-Control", "max-age=5"); w.WriteHeader(504) },
		"varying 500":    func(w http.ResponseWriter) { w.Header().Set("Vary", "Cookie"); w.WriteHeader(500) },
		"cut short 500":  func(w http.ResponseWriter) { w.WriteHeader(500); panic(http.ErrAbortHandler) },
		"late 500":       func(w http.ResponseWriter) { time.Sleep(2 * time.Second); w.WriteHeader(500) },
		"500 that hangs": func(w http.ResponseWriter) { w.WriteHeader(500); time.Sleep(2 * time.Second) },
		"abort":          func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		for window, header := range map[string]string{"stale": "max-age=10, stale-if-error=60", "nothing stale": "max-age=10"} {
			for who, fields := range map[string][]string{"anybody": nil, "a user": {"Authorization", "me"}} {
				inBubble(t, name+"/"+window+"/"+who, func(t *testing.T) {
					f := &failing{header: header, fail: fail}
					told := &record{}
					s := newSite(t, bellwether.HTTPOptions{RebuildTimeout: time.Second, Observers: []observe.Observer{told.observer()}}, f.ServeHTTP)
					s.get("http://a/p")
					time.Sleep(20 * time.Second)
					f.broken.Store(true)
					for range 5 {
						before, known := s.mw.Stats(), told.failed()
						s.get("http://a/p", fields...)
						time.Sleep(30 * time.Second)
						now := s.mw.Stats()
						if loads, failures := now.Loads-before.Loads, now.LoadFailures-before.LoadFailures; failures != loads {
							t.Fatalf("of %d loads %d are counted as failures", loads, failures)
						} else if reported := uint64(told.failed() - known); reported != loads {
							t.Fatalf("of %d loads observers hear of %d failures", loads, reported)
						}
					}
				})
			}
		}
	}
	for _, status := range []int{404, 501, 505, 507} { // answers, and no failures (RFC 5861 section 4)
		inBubble(t, strconv.Itoa(status), func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
			s.get("http://a/p")
			synctest.Wait()
			if got := s.mw.Stats(); got.Loads != 1 || got.LoadFailures != 0 {
				t.Errorf("of %d loads %d are counted as failures", got.Loads, got.LoadFailures)
			}
		})
	}
}

// A page without stale windows that was fresh when the handler began, and is not when it fails, is no answer in place
// of the error (RFC 9111 section 5.2.2.2), whoever asked for the run.
func TestStale_ExpiredDuringTheRun(t *testing.T) {
	for _, field := range []string{"max-age=0", "no-cache"} {
		for _, client := range []string{"", "id=1"} {
			for _, panics := range []bool{false, true} {
				inBubble(t, fmt.Sprintf("%s, Cookie %q, panics: %t", field, client, panics), func(t *testing.T) {
					down := false
					s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, _ *http.Request) {
						if !down {
							w.Header().Set("Cache-Control", "max-age=10, must-revalidate")
							io.WriteString(w, "page")
							return
						}
						time.Sleep(3 * time.Second)
						if panics {
							panic("down")
						}
						http.Error(w, "down", http.StatusServiceUnavailable)
					})
					s.get("http://a/p")
					time.Sleep(9 * time.Second)
					down = true
					fields := []string{"Cache-Control", field}
					if client != "" {
						fields = append(fields, "Cookie", client)
					}
					w := s.get("http://a/p", fields...)
					if w.Code == http.StatusOK || !panics && w.Body.String() != "down\n" {
						t.Errorf("%d %q, Age %s (%s), want the handler's error", w.Code, w.Body, w.Header().Get("Age"), w.Header().Get("Cache-Status"))
					}
				})
			}
		}
	}
}

// A page that was invalidated while the handler ran is no answer in place of the handler's error.
func TestStale_InvalidatedDuringTheRun(t *testing.T) {
	for name, match := range map[string]bellwether.Match{"by key": {Keys: []string{"http://a/p"}}, "by prefix": {Prefixes: []string{"http://a/"}}, "by tag": {Tags: []string{"tag"}}} {
		for _, client := range []string{"", "id=1"} {
			inBubble(t, fmt.Sprintf("%s, Cookie %q", name, client), func(t *testing.T) {
				f := &failing{header: "max-age=60, stale-if-error=600", fail: func(http.ResponseWriter) {
					time.Sleep(time.Second)
					panic("down")
				}}
				s := newSite(t, bellwether.HTTPOptions{}, f.ServeHTTP)
				s.get("http://a/p")
				time.Sleep(time.Second)
				f.broken.Store(true)
				time.AfterFunc(500*time.Millisecond, func() { s.mw.InvalidateMatching(t.Context(), match) })
				fields := []string{"Cache-Control", "no-cache"}
				if client != "" {
					fields = append(fields, "Cookie", client)
				}
				if w := s.get("http://a/p", fields...); w.Body.String() == "page" {
					t.Errorf("%d and the page (%s)", w.Code, w.Header().Get("Cache-Status"))
				}
			})
		}
	}
}

// The pause after a failure may outlast the stale page's window. Then clients of each process get the handler's status.
func TestStale_FailureOutlastsTheWindow(t *testing.T) {
	f := &failing{header: "public, max-age=1, stale-if-error=5", fail: func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }}
	inPairs(t, bellwether.HTTPOptions{ErrorTTL: 20 * time.Second, MaxErrorTTL: time.Minute}, f.ServeHTTP, func(t *testing.T, p pair) {
		f.broken.Store(false)
		p.first.get("http://a/p")
		f.broken.Store(true)
		time.Sleep(3 * time.Second)
		if w := p.first.get("http://a/p"); w.Body.String() != "page" {
			t.Fatalf("within the window: %d %s, want the page", w.Code, w.Body)
		}
		p.calls()
		time.Sleep(4 * time.Second)
		for range 2 {
			for _, s := range []*site{p.first, p.second} {
				if w := s.get("http://a/p"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
					t.Errorf("after the window: %d %v, want the handler's 503 and the rest of the pause", w.Code, w.Header())
				}
			}
		}
		if n := p.calls(); n != 0 {
			t.Errorf("%d runs of the handler within the pause", n)
		}
	})
}

// Within stale-if-error clients get the page, also for a no-store error. Cache-Status shows their waits.
func TestStale_IfError(t *testing.T) {
	for _, control := range []string{"", "no-store"} {
		for _, etag := range []bool{false, true} { // true: the rebuild is a validation
			inBubble(t, fmt.Sprint(control, etag), func(t *testing.T) {
				f := &failing{header: "max-age=10, stale-if-error=60", etag: etag, fail: func(w http.ResponseWriter) {
					w.Header().Set("Cache-Control", control)
					http.Error(w, "down", http.StatusServiceUnavailable)
				}}
				s := newSite(t, bellwether.HTTPOptions{}, f.ServeHTTP)
				s.get("http://a/p")
				f.broken.Store(true)
				time.Sleep(11 * time.Second)
				s.calls.Store(0)
				const failed = "page, Bellwether;fwd=stale;fwd-status=503;ttl=-2"
				for _, want := range []map[string]int{
					{failed + ";detail=stale-if-error": 1, failed + ";collapsed;detail=stale-if-error": 49},
					{"page, Bellwether;hit;ttl=-2": 50},
				} {
					var replies [50]string
					var wg sync.WaitGroup
					for i := range replies {
						wg.Go(func() {
							w := s.get("http://a/p")
							replies[i] = w.Body.String() + ", " + w.Header().Get("Cache-Status")
						})
					}
					wg.Wait()
					got := make(map[string]int)
					for _, reply := range replies {
						got[reply]++
					}
					if !maps.Equal(got, want) {
						t.Errorf("replies %v, want %v", got, want)
					}
				}
				s.wantCalls(t, 1)
				time.Sleep(70 * time.Second)
				if w := s.get("http://a/p"); w.Code != 503 {
					t.Errorf("after the window: %d %s, want the 503", w.Code, w.Body)
				}
				f.broken.Store(false)
				time.Sleep(11 * time.Second)
				s.wantBody(t, "page", "http://a/p") // healed
			})
		}
	}
}

// Behind a stale page each client has a pause after a response that replaces nothing. A response for
// everyone replaces the page as soon as any client's pause is over.
func TestStale_UnshareableResponseBehindIt(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"404 without a lifetime": func(w http.ResponseWriter, _ *http.Request) bool {
			http.NotFound(w, nil)
			return true
		},
		"private to one client": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("Cookie") != "c=0" {
				return false
			}
			w.Header().Set("Cache-Control", "private")
			fmt.Fprint(w, "private")
			return true
		},
	} {
		inBubble(t, name, func(t *testing.T) {
			var other atomic.Bool
			var loads atomic.Int64
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(50 * time.Millisecond)
				loads.Add(1)
				if other.Load() && answer(w, r) {
					return
				}
				w.Header().Set("Cache-Control", "max-age=1, stale-while-revalidate=3600")
				fmt.Fprint(w, "page ", loads.Load())
			})
			get := func(cookie string) string {
				w := s.get("http://a/p", "Cookie", cookie)
				if w.Code != http.StatusOK {
					t.Fatalf("status %d", w.Code)
				}
				return w.Body.String()
			}
			get("c=0")
			time.Sleep(2 * time.Second)
			other.Store(true)
			loads.Store(0)
			for range 250 { // 5 s
				if got := get("c=0"); got != "page 1" {
					t.Fatalf("the client got %q", got)
				}
				time.Sleep(20 * time.Millisecond)
			}
			if n := loads.Load(); n < 4 || n > 6 {
				t.Errorf("%d runs in 5 s for one client, want one a second", n)
			}
			if name == "private to one client" {
				get("c=1")
				time.Sleep(100 * time.Millisecond)
				if got := get("c=0"); got == "page 1" {
					t.Error("another client's response did not replace the page")
				}
				return
			}
			other.Store(false)
			time.Sleep(time.Second)
			get("c=0")
			time.Sleep(100 * time.Millisecond)
			if got := get("c=0"); got == "page 1" {
				t.Error("after the pause the page was not replaced")
			}
		})
	}
}

// With Patience a client has no such pause: each of its requests waits for its own response.
func TestStale_UnshareableResponseWithPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{Patience: time.Second}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(50 * time.Millisecond)
			w.Header().Set("Cache-Control", "max-age=1, stale-while-revalidate=3600")
			if r.Header.Get("Cookie") != "" {
				w.Header().Set("Cache-Control", "private")
			}
			fmt.Fprint(w, r.Header.Get("Cookie"))
		})
		s.get("http://a/p")
		time.Sleep(2 * time.Second)
		for range 5 {
			s.wantBody(t, "u=1", "http://a/p", "Cookie", "u=1")
		}
	})
}

// A handler that answers again, although not for everyone, ends the stale-if-error window of a page that had failed.
func TestStale_UnshareableResponseAfterAFailure(t *testing.T) {
	private := func(w http.ResponseWriter) {
		w.Header().Set("Cache-Control", "private")
		w.WriteHeader(http.StatusAccepted)
	}
	for name, tt := range map[string]struct {
		answer func(w http.ResponseWriter)
		status int      // for clients after the first
		fields []string // of the first client after the outage
	}{
		"404 without a lifetime": {func(w http.ResponseWriter) { http.NotFound(w, nil) }, http.StatusNotFound, nil},
		"410 without a lifetime": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusGone) }, http.StatusGone, nil},
		"404 to a cookie":        {func(w http.ResponseWriter) { http.NotFound(w, nil) }, http.StatusOK, []string{"Cookie", "a=1"}},
		"private":                {private, http.StatusAccepted, nil},
		"private, to a cookie":   {private, http.StatusOK, []string{"Cookie", "a=1"}},
		"400, about the request": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadRequest) }, http.StatusOK, nil},
	} {
		aloneAndInAFleet(t, name, func(t *testing.T, fleet bellwether.Fleet) {
			f := &failing{header: "max-age=1, stale-if-error=3600", fail: func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) }}
			s := newSite(t, bellwether.HTTPOptions{Fleet: fleet}, f.ServeHTTP)
			other := s
			if fleet.Store != nil {
				other = newSite(t, bellwether.HTTPOptions{Fleet: fleet}, f.ServeHTTP)
			}
			s.get("http://a/p")
			time.Sleep(2 * time.Second)
			f.broken.Store(true)
			for _, s := range []*site{s, other} {
				if w := s.get("http://a/p"); w.Code != http.StatusOK {
					t.Fatalf("in the outage: %d, want the stale page", w.Code)
				}
			}
			time.Sleep(2 * time.Second)
			f.fail = tt.answer
			s.get("http://a/p", tt.fields...) // stale, with a run behind it
			time.Sleep(2 * time.Second)
			for _, s := range []*site{s, other} {
				if w := s.get("http://a/p"); w.Code != tt.status {
					t.Errorf("after the outage: %d %v, want %d", w.Code, w.Header(), tt.status)
				}
			}
			time.Sleep(time.Second) // the last run ends
			synctest.Wait()
			f.fail = func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) }
			for _, s := range []*site{s, other} {
				if w := s.get("http://a/p"); w.Code != http.StatusOK {
					t.Errorf("in the next outage: %d %v, want the stale page", w.Code, w.Header())
				}
			}
			time.Sleep(time.Second) // the last run behind the page
		})
	}
}

// In the pause after a failure, max-stale permits no more than at other times.
func TestStale_MaxStaleInThePauseOfAFailure(t *testing.T) {
	for name, tt := range map[string]struct{ page, client string }{
		"must-revalidate":  {"max-age=1, must-revalidate", "max-stale=3600"},
		"beyond the limit": {"max-age=1", "max-stale=2"},
		"no-cache":         {"max-age=1", "no-cache, max-stale=3600"},
		"max-age":          {"max-age=1", "max-age=5, max-stale=2"},
	} {
		inBubble(t, name, func(t *testing.T) {
			var broken atomic.Bool
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				if broken.Load() {
					panic("origin")
				}
				w.Header().Set("Cache-Control", tt.page)
				w.Header().Set("ETag", `"1"`)
				fmt.Fprint(w, "page")
			})
			s.get("http://a/p")
			broken.Store(true)
			time.Sleep(10 * time.Second)
			s.get("http://a/p") // fails, and the pause begins
			if w := s.get("http://a/p", "Cache-Control", tt.client); w.Code == http.StatusOK {
				t.Errorf("the client got the page, 9 s stale: %s", w.Header().Get("Cache-Status"))
			}
		})
	}
}

// The pause after a failure without a response holds for requests of each kind, and then each gets the new page.
func TestStale_FailureWithoutAResponse(t *testing.T) {
	for _, fields := range [][]string{
		{"Cache-Control", "no-cache"}, {"Cache-Control", "max-stale"}, {"Cache-Control", "min-fresh=1"}, {"Authorization", "me"},
		{"X-Forwarded-Host", "b"}, {"X-Forwarded-Host", "b", "Authorization", "me"}, {"Cache-Control", "no-store"}, {"Upgrade", "websocket"},
	} {
		inBubble(t, strings.Join(fields, " "), func(t *testing.T) {
			var up atomic.Bool
			s := newSite(t, bellwether.HTTPOptions{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
				if !up.Load() {
					panic("down")
				}
				io.WriteString(w, "page")
			})
			s.get("http://a/p")
			synctest.Wait()
			s.calls.Store(0)
			want := int32(0)
			if fields[1] == "no-store" || fields[0] == "Upgrade" {
				want = 1
			}
			s.get("http://a/p", fields...)
			s.wantCalls(t, want)
			up.Store(true)
			time.Sleep(time.Minute)
			s.wantBody(t, "page", "http://a/p", fields...)
		})
	}
}

// A client that declines a fresh page, and whose own request fails, gets the page in place of the error.
func TestStale_OwnFailureBesideAFreshPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{header: "max-age=60, stale-if-error=60", fail: func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }}
		s := newSite(t, bellwether.HTTPOptions{}, f.ServeHTTP)
		s.get("http://a/p")
		f.broken.Store(true)
		w := s.get("http://a/p", "Cookie", "me", "Cache-Control", "no-cache")
		if got, want := w.Header().Get("Cache-Status"), "Bellwether;fwd=request;fwd-status=503;ttl=59;detail=stale-if-error"; got != want || w.Body.String() != "page" {
			t.Errorf("%q, Cache-Status %q, want the page and %q", w.Body, got, want)
		}
		if n := s.mw.Stats().Stale; n != 1 {
			t.Errorf("%d stale answers are counted, want 1", n)
		}
	})
}
