package bellwether_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/observe"
)

// This file tests requests that bypass the cache, and their bounds.

// Requests with a bypassing field run a fresh page's handler, at most eight at a time, also after NearTTL.
func TestBypass_OfAFreshPage(t *testing.T) {
	for name, tt := range map[string]struct {
		field, value string
		calls        int32
	}{
		"no-store":        {"Cache-Control", "no-store", 8},
		"event stream":    {"Accept", "text/event-stream", 8},
		"upgrade":         {"Upgrade", "x", 8},
		"the same method": {"X-Http-Method", "GET", 0},
		"connection":      {"Connection", "User-Agent", 0},
	} {
		t.Run(name, func(t *testing.T) {
			inPairs(t, bellwether.HTTPOptions{}, page(5*time.Second, "page"), func(t *testing.T, p pair) {
				s := p.first
				s.get("http://a/p")
				time.Sleep(2 * time.Second)
				s.calls.Store(0)
				for o, n := range s.burst(1000, func(int) *http.Request {
					return request("GET", "http://a/p", tt.field, tt.value, "User-Agent", "x")
				}) {
					if !strings.HasPrefix(o, "200 page ") {
						t.Errorf("%d times %q", n, o)
					}
				}
				s.wantCalls(t, tt.calls)
				s.wantBody(t, "page", "http://a/p", tt.field, tt.value) // the next client
				s.wantCalls(t, min(tt.calls, 1))
				// Without a stored page the bound does not apply.
				s.burst(20, func(int) *http.Request { return request("GET", "http://a/other", tt.field, tt.value) })
				if n := s.calls.Load(); tt.calls > 0 && n != 20 || n < 1 {
					t.Errorf("%d calls for a page that is not there", n)
				}
				time.Sleep(30 * time.Minute) // past all windows
				s.calls.Store(0)
				s.burst(20, func(int) *http.Request { return request("GET", "http://a/p", tt.field, tt.value) })
				if n := s.calls.Load(); tt.calls > 0 && n != 20 || n < 1 {
					t.Errorf("%d calls for a page that is over", n)
				}
			})
		})
	}
}

func TestBypass_MethodOverride(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, page(time.Second, "page"))
		s.get("http://a/p")
		s.calls.Store(0)
		s.burst(20, func(int) *http.Request { return request("GET", "http://a/p", "X-Http-Method-Override", "DELETE") })
		s.wantCalls(t, 20)
	})
}

// Up to MaxStreams upgrades and event streams run without a limit of time beside a fresh page.
func TestBypass_Streams(t *testing.T) {
	for name, fields := range map[string][2]string{"upgrade": {"Upgrade", "websocket"}, "event stream": {"Accept", "text/event-stream"}} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{MaxStreams: 100}, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Header.Get("Upgrade") != "":
					time.Sleep(10 * time.Millisecond)
					w.WriteHeader(http.StatusSwitchingProtocols)
					<-r.Context().Done()
				case r.Header.Get("Accept") != "":
					w.Header()["content-type"] = []string{"text/event-stream"} // in any spelling
					w.WriteHeader(200)
					<-r.Context().Done()
				default:
					page(0, "page")(w, r)
				}
			})
			s.get("http://a/p")
			s.calls.Store(0)
			ctx, end := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() { s.do(request("GET", "http://a/p", fields[0], fields[1]).WithContext(ctx)) })
			}
			time.Sleep(2 * time.Second)
			s.wantCalls(t, 100)
			if w := s.get("http://a/p", fields[0], fields[1]); w.Code != 503 || w.Header().Get("Retry-After") == "" {
				t.Errorf("one more than MaxStreams got %d %v", w.Code, w.Header())
			}
			end()
			wg.Wait()
		})
	}
}

func TestBypass_IgnoredDirectives(t *testing.T) {
	for _, directive := range []string{"no-store", "no-cache", "max-age=0", "min-fresh=1000", "only-if-cached", "max-stale"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{IgnoreRequestDirectives: true}, page(0, "page"))
			for range 10 {
				if w := s.get("http://a/p", "Cache-Control", directive); w.Code != 200 || w.Body.String() != "page" {
					t.Errorf("%s: %d %q", directive, w.Code, w.Body)
				}
				time.Sleep(time.Second)
			}
			s.wantCalls(t, 1)
		})
	}
}

// A private page's clients never queue: each response, however slow, prolongs the hit-for-miss record.
func TestBypass_PrivatePageNeverQueuesAgain(t *testing.T) {
	for _, build := range []time.Duration{0, 12 * time.Second} {
		t.Run(build.String(), func(t *testing.T) {
			h := func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(build)
				if r.Header.Get("Cookie") == "slow" {
					time.Sleep(24 * time.Second)
				}
				w.Header().Set("Cache-Control", "private")
				io.WriteString(w, r.Header.Get("Cookie"))
			}
			inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
				p.first.get("http://a/p", "Cookie", "u=0")
				time.Sleep(time.Second)
				var wg sync.WaitGroup
				for i := range 600 { // a minute
					for _, s := range []*site{p.first, p.second} {
						cookie := fmt.Sprint("u=", i)
						if i%100 > 85 && i%100 < 95 { // when the first record expires
							cookie = "slow"
						}
						wg.Go(func() {
							began := time.Now()
							w := s.get("http://a/p", "Cookie", cookie)
							if took := time.Since(began); cookie != "slow" && took > build || w.Body.String() != cookie {
								t.Errorf("%s at %d got %q after %v", cookie, i, w.Body, took)
							}
						})
					}
					time.Sleep(100 * time.Millisecond)
				}
				wg.Wait()
			})
		})
	}
}

// A page slower than RebuildTimeout is passed through, MaxPassThrough at a time, unless it was shared before.
func TestBypass_SlowerThanRebuildTimeout(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprint("shared before ", shared), func(t *testing.T) {
			var slow atomic.Bool
			h := func(w http.ResponseWriter, r *http.Request) {
				if slow.Load() {
					select {
					case <-time.After(40 * time.Second):
					case <-r.Context().Done():
						return
					}
				}
				if shared {
					w.Header().Set("Cache-Control", "max-age=1")
				}
				io.WriteString(w, "page")
			}
			o := bellwether.HTTPOptions{MaxPassThrough: 3, HitForMissTTL: time.Minute}
			inPairs(t, o, h, func(t *testing.T, p pair) {
				slow.Store(false)
				if shared {
					p.first.get("http://a/p")
					time.Sleep(2 * time.Second)
				}
				slow.Store(true)
				p.calls()
				if w := p.first.get("http://a/p"); w.Code != 504 {
					t.Errorf("the first got %d", w.Code)
				}
				time.Sleep(time.Second)
				p.calls()
				codes := map[int]int{}
				var mu sync.Mutex
				var wg sync.WaitGroup
				for range 50 {
					wg.Go(func() {
						w := p.first.get("http://a/p")
						mu.Lock()
						defer mu.Unlock()
						codes[w.Code]++
					})
				}
				wg.Wait()
				n := p.calls()
				if !shared && (codes[200] != 3 || codes[503] != 47 || n != 3) {
					t.Errorf("%v by %d calls, want 3 let through and 47 to come again", codes, n)
				}
				if shared && n > 2 {
					t.Errorf("%v by %d calls of a slow origin", codes, n)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

func TestBypass_IsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gauge
		o := bellwether.HTTPOptions{MaxPassThrough: 3, MaxWait: time.Second}
		s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
			g.work(5 * time.Second)
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, "v")
		})
		for _, url := range []string{"http://a/p", "http://a/q"} { // the second finds all places free again
			got := s.burst(50, same(url))
			if got["503 Service Unavailable\n 1s"] != 47 || got["200 v 6s"] != 3 {
				t.Errorf("outcomes %v, want 3 let through and 47 times 503", got)
			}
			if n := g.most.Load(); n != 4 {
				t.Errorf("%d handlers at one time, want the rebuild and 3", n)
			}
			s.wantCalls(t, 4)
		}
	})
}

// A request that Key refuses gets the client's own ResponseWriter.
func TestBypass_KeyRefused(t *testing.T) {
	for name, key := range map[string]func(*http.Request) (bellwether.Key, bool){
		"refused":  func(*http.Request) (bellwether.Key, bool) { return bellwether.Key{URL: "http://a/p"}, false },
		"nonsense": func(*http.Request) (bellwether.Key, bool) { return bellwether.Key{URL: "nonsense"}, true },
	} {
		client := httptest.NewRecorder()
		s := newSite(t, bellwether.HTTPOptions{Key: key}, func(w http.ResponseWriter, r *http.Request) {
			if w != http.ResponseWriter(client) {
				t.Errorf("%s: the handler writes to a %T", name, w)
			}
			page(0, "page")(w, r)
		})
		for range 2 {
			s.handler.ServeHTTP(client, request("GET", "http://a/p"))
		}
		s.wantCalls(t, 2)
	}
}

// The bound on bypasses holds for a page in its stale window.
func TestBypass_OfAStalePage(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(5 * time.Second)
		w.Header().Set("Cache-Control", "max-age=1, stale-while-revalidate=600")
		io.WriteString(w, "page")
	}
	inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
		p.first.get("http://a/p")
		time.Sleep(2 * time.Second)
		p.first.get("http://a/p") // begins the refresh
		p.calls()
		p.first.burst(1000, func(int) *http.Request { return request("GET", "http://a/p", "Cache-Control", "no-store") })
		if n := p.calls(); n > 9 {
			t.Errorf("%d runs of the handler", n)
		}
	})
}

// The bound on bypasses holds for a request with a body and for an empty method override.
// Beyond the bound, requests with no-store get the stale page, and do not keep it stale for the others.
func TestBypass_ManyOfAStalePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var version atomic.Int32
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Millisecond) // or a stale answer could come after the rebuild behind it
			if r.Header.Get("X-Slow") != "" {
				time.Sleep(20 * time.Second) // as for a client that reads slowly
			}
			w.Header().Set("Cache-Control", "max-age=1, stale-while-revalidate=60")
			fmt.Fprint(w, version.Add(1))
		})
		s.wantBody(t, "1", "http://a/p")
		time.Sleep(2 * time.Second)
		for range 8 {
			go s.get("http://a/p", "Cache-Control", "no-store", "X-Slow", "1")
		}
		synctest.Wait()
		for range 4 {
			if w := s.get("http://a/p", "Cache-Control", "no-store"); w.Body.String() != "1" {
				t.Errorf("no-store got %q, want the stale page", w.Body)
			}
			synctest.Wait()
		}
		s.wantBody(t, "1", "http://a/p")
		time.Sleep(2 * time.Millisecond)
		s.wantBody(t, "2", "http://a/p")
		time.Sleep(20 * time.Second)
	})
}

func TestBypass_ManyOfAFreshPage(t *testing.T) {
	for name, build := range map[string]func() *http.Request{
		"a body of a byte":      func() *http.Request { return httptest.NewRequest("GET", "http://a/p", strings.NewReader("x")) },
		"X-Http-Method: (none)": func() *http.Request { return request("GET", "http://a/p", "X-Http-Method", "") },
	} {
		for _, ignore := range []bool{false, true} {
			inBubble(t, fmt.Sprint(name, " ignore ", ignore), func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{IgnoreRequestDirectives: ignore}, page(5*time.Second, "page"))
				s.get("http://a/p")
				synctest.Wait()
				s.calls.Store(0)
				s.burst(1000, func(int) *http.Request { return build() })
				if n := s.calls.Load(); n > 8 {
					t.Errorf("%d runs of the handler for a fresh page", n)
				}
			})
		}
	}
}

// Beyond the bound, a request does not get a page that it would not get without its no-store, upgrade or event stream.
func TestBypass_ManyBesideAnotherReason(t *testing.T) {
	for reason, set := range map[string]func(outer http.Header, r *http.Request){
		"method override":     func(_ http.Header, r *http.Request) { r.Header.Set("X-Http-Method-Override", "DELETE") },
		"host spelling":       func(_ http.Header, r *http.Request) { r.Pattern, r.Host = "/", "A" },
		"outer cache-control": func(outer http.Header, _ *http.Request) { outer.Set("Cache-Control", "private") },
	} {
		for field, value := range map[string]string{"Cache-Control": "no-store", "Upgrade": "websocket", "Accept": "text/event-stream"} {
			inBubble(t, reason+" "+field, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, page(5*time.Second, "page"))
				s.get("http://a/p")
				synctest.Wait()
				s.calls.Store(0)
				cached := s.handler
				s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					set(w.Header(), r)
					cached.ServeHTTP(w, r)
				})
				s.burst(100, func(int) *http.Request { return request("GET", "http://a/p", field, value) })
				s.wantCalls(t, 100)
			})
		}
	}
}

// RFC 9211 section 2.2: "fwd" is for a request that went forward. A refused one has the detail alone.
func TestBypass_RefusedHasNoForward(t *testing.T) {
	for name, tt := range map[string]struct {
		o      bellwether.HTTPOptions
		build  func() *http.Request
		status string
	}{
		"upgrade": {bellwether.HTTPOptions{MaxStreams: 1}, func() *http.Request { return request("GET", "http://a/p", "Upgrade", "websocket") }, "Bellwether;detail=upgrade"},
		"body":    {bellwether.HTTPOptions{}, func() *http.Request { return httptest.NewRequest("GET", "http://a/p", strings.NewReader("x")) }, `Bellwether;detail="request body"`},
		"slow":    {bellwether.HTTPOptions{MaxPassThrough: 1, RebuildTimeout: time.Second}, func() *http.Request { return request("GET", "http://a/slow") }, "Bellwether;detail=slow"},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, tt.o, page(5*time.Second, "page"))
			s.get("http://a/p")
			s.get("http://a/slow")
			synctest.Wait()
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() { s.do(tt.build()) })
			}
			synctest.Wait()
			if w := s.do(tt.build()); w.Code != 503 || w.Header().Get("Cache-Status") != tt.status {
				t.Errorf("%d with Cache-Status %q, want 503 with %q", w.Code, w.Header()["Cache-Status"], tt.status)
			}
			wg.Wait()
			if w := s.do(tt.build()); w.Code == 503 {
				t.Error("refused when the others have ended")
			}
			time.Sleep(5 * time.Second) // the slow page may have begun a rebuild, which has timed out
		})
	}
}

// A refused reload gets the stored page, though it also has no-cache.
func TestBypass_RefusedReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, page(5*time.Second, "page"))
		s.get("http://a/p")
		synctest.Wait()
		s.calls.Store(0)
		s.burst(20, func(int) *http.Request { return request("GET", "http://a/p", "Cache-Control", "no-store, no-cache") })
		s.wantCalls(t, 8)
	})
}

// Observers hear of a request beyond MaxPassThrough as of no answer, and not of a bypass: no handler has run for it.
func TestBypass_RefusedIsObservedAsAMiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ways := make(chan observe.Way, 3)
		s := newSite(t, bellwether.HTTPOptions{
			MaxPassThrough: 1, RebuildTimeout: time.Second,
			Observers: []observe.Observer{{Serve: func(_ context.Context, s observe.Serve) { ways <- s.Way }}},
		}, page(5*time.Second, "page"))
		s.get("http://a/p") // it times out
		<-ways
		synctest.Wait()
		go s.get("http://a/p")
		synctest.Wait()
		if w := s.get("http://a/p"); w.Code != 503 {
			t.Errorf("%d, want 503", w.Code)
		}
		if way := <-ways; way != observe.WayMiss {
			t.Errorf("the refused one is a %v, want a miss", way)
		}
		if way := <-ways; way != observe.WayBypass {
			t.Errorf("the other one is a %v, want a bypass", way)
		}
	})
}

// A refused request with a body gets no page, also if it asks for an upgrade: the page may not be its answer.
func TestBypass_RefusedUpgradeWithABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, page(5*time.Second, "page"))
		s.get("http://a/p")
		synctest.Wait()
		s.calls.Store(0)
		answered, refused := 0, 0
		for outcome, n := range s.burst(100, func(int) *http.Request {
			r := httptest.NewRequest("GET", "http://a/p", strings.NewReader("x"))
			r.Header.Set("Upgrade", "websocket")
			return r
		}) {
			if strings.HasPrefix(outcome, "503") {
				refused += n
			} else {
				answered += n
			}
		}
		if n := int(s.calls.Load()); answered != n || refused == 0 {
			t.Errorf("%d requests were answered by %d runs of the handler, %d refused", answered, n, refused)
		}
	})
}

// Requests with another safe method are not bounded, and none of them gets the stored page.
func TestBypass_MethodsAreUnbounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			page(0, r.Method)(w, r)
		})
		s.get("http://a/p")
		s.calls.Store(0)
		wantBurst(t, s.burst(20, func(int) *http.Request { return request("OPTIONS", "http://a/p") }), 20, "200 OPTIONS 1s")
		s.wantCalls(t, 20)
	})
}

// A bypass for a slow page gives its place back.
func TestBypass_SlowPagesOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := bellwether.HTTPOptions{MaxPassThrough: 1, RebuildTimeout: time.Second, HitForMissTTL: time.Hour}
		s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(2 * time.Second)
			io.WriteString(w, "page")
		})
		s.get("http://a/p") // it times out
		time.Sleep(time.Minute)
		for range 3 {
			s.wantBody(t, "page", "http://a/p")
		}
	})
}

// A client with credentials does not keep a key uncacheable for others, and neither does an error.
func TestBypass_ResponsesThatProveNothing(t *testing.T) {
	for name, fields := range map[string][]string{"credentials": {"Authorization", "me"}, "not found": {"X-Want", "404"}} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "private")
				if r.Header.Get("X-Want") != "" {
					w.WriteHeader(http.StatusNotFound)
				}
			})
			s.get("http://a/p")
			for range 3 {
				time.Sleep(3 * time.Second)
				s.get("http://a/p", fields...)
			}
			time.Sleep(2 * time.Second) // HitForMissTTL after the first response
			if got := s.get("http://a/p").Header().Get("Cache-Status"); !strings.Contains(got, "fwd=uri-miss") {
				t.Errorf("Cache-Status %q, want a try for all", got)
			}
		})
	}
}

// A time-out makes no key slow without MaxPassThrough, or if it may be about its client.
func TestBypass_TimeoutsThatMakeNoKeySlow(t *testing.T) {
	for name, tt := range map[string]struct {
		most   int
		fields []string
	}{"off": {}, "one client's": {1, []string{"Cookie", "me"}}} {
		inBubble(t, name, func(t *testing.T) {
			var slow atomic.Bool
			s := newSite(t, bellwether.HTTPOptions{MaxPassThrough: tt.most, RebuildTimeout: time.Second}, func(w http.ResponseWriter, r *http.Request) {
				if slow.Load() {
					<-r.Context().Done()
				}
				io.WriteString(w, "page")
			})
			slow.Store(true)
			if w := s.get("http://a/p", tt.fields...); w.Code != 504 {
				t.Errorf("%d, want 504", w.Code)
			}
			slow.Store(false)
			time.Sleep(5 * time.Second)
			if w := s.get("http://a/p"); w.Body.String() != "page" || !strings.Contains(w.Header().Get("Cache-Status"), "uri-miss") {
				t.Errorf("the next client: %d %q (%s)", w.Code, w.Body, w.Header().Get("Cache-Status"))
			}
		})
	}
}
