package bellwether_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// Clients that mean harm or err, and what they must not do to others.

// A middleware around the cache (CORS) has said Vary: Origin; the handler sets the same.
// The response to a request with Authorization is kept without its Vary.
func TestHostile_CredentialsDraftLosesVaryThatAnOuterMiddlewareHasToo(t *testing.T) {
	for _, fields := range [][]string{nil, {"Authorization", "one"}} {
		inBubble(t, fmt.Sprint(fields), func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Vary", "Origin")
				w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
				w.Header().Set("Cache-Control", "public, max-age=600")
				fmt.Fprint(w, "for ", r.Header.Get("Origin"))
			})
			inner := s.handler
			s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Add("Vary", "Origin") // as rs/cors does
				inner.ServeHTTP(w, r)
			})
			s.get("http://a/p", append([]string{"Origin", "https://evil.example"}, fields...)...)
			synctest.Wait()
			if w := s.get("http://a/p", "Origin", "https://honest.example"); w.Body.String() != "for https://honest.example" {
				t.Errorf("another Origin got %q, Access-Control-Allow-Origin %q, %s", w.Body, w.Header().Get("Access-Control-Allow-Origin"), w.Header().Get("Cache-Status"))
			}
		})
	}
}

// A client leaves while its response is written; the handler, which heeds the request's
// context, returns. What it has written is kept as the whole, for all.
func TestHostile_TruncatedPageIsKeptWhenTheClientLeaves(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=600")
		if r.Method == "POST" {
			w.Header().Set("Content-Location", r.URL.Path)
		}
		for i := range 10 {
			select {
			case <-time.After(time.Second):
				fmt.Fprint(w, i)
			case <-r.Context().Done():
				return
			}
		}
	}
	leave := func(s *site, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 3500*time.Millisecond)
		defer cancel()
		s.do(r.WithContext(ctx))
		synctest.Wait()
		time.Sleep(time.Second)
	}
	check := func(t *testing.T, s *site) {
		for range 2 {
			if w := s.get("http://a/p"); w.Body.String() != "0123456789" {
				t.Errorf("the next client got %d %q, %s", w.Code, w.Body, w.Header().Get("Cache-Status"))
			}
		}
	}
	t.Run("GET with Authorization", func(t *testing.T) {
		inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
			leave(p.first, request("GET", "http://a/p", "Authorization", "one"))
			check(t, p.second)
		})
	})
	t.Run("GET", func(t *testing.T) {
		inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
			leave(p.first, request("GET", "http://a/p"))
			check(t, p.second)
		})
	})
	inBubble(t, "POST", func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, h)
		leave(s, request("POST", "http://a/p"))
		check(t, s)
	})
}

// The same with a real server: the client closes its connection.
func TestHostile_TruncatedPageOverHTTP(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=600")
		for i := range 10 {
			select {
			case <-time.After(100 * time.Millisecond):
				fmt.Fprint(w, i)
			case <-r.Context().Done():
				return
			}
		}
	})
	server := httptest.NewServer(s.handler)
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 350*time.Millisecond)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "GET", server.URL+"/p", nil)
	r.Header.Set("Authorization", "anything")
	if res, err := server.Client().Do(r); err == nil {
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	time.Sleep(300 * time.Millisecond)
	res, err := server.Client().Get(server.URL + "/p")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(res.Body)
	if string(b) != "0123456789" {
		t.Errorf("the next client got %q, %s", b, res.Header.Get("Cache-Status"))
	}
}

// A response to credentials that is kept on its way takes the place of a page that is
// fresh for all others, also if it is an error, or is never fresh.
func TestHostile_CredentialsDropAFreshPage(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"503 public": func(w http.ResponseWriter) { w.Header().Set("Cache-Control", "public, max-age=5"); w.WriteHeader(503) },
		"public, max-age=0": func(w http.ResponseWriter) {
			w.Header().Set("Cache-Control", "public, max-age=0")
			io.WriteString(w, "page")
		},
		"public": func(w http.ResponseWriter) { w.Header().Set("Cache-Control", "public"); io.WriteString(w, "page") },
	} {
		t.Run(name, func(t *testing.T) {
			h := func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "" {
					answer(w)
					return
				}
				w.Header().Set("Cache-Control", "max-age=600, stale-if-error=600")
				io.WriteString(w, "page")
			}
			inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
				p.first.get("http://a/p")
				p.second.get("http://a/p")
				time.Sleep(2 * time.Second)
				bad := 0
				p.calls()
				for range 20 {
					p.first.get("http://a/p", "Authorization", "x")
					synctest.Wait()
					p.calls()
					for _, s := range []*site{p.first, p.second} {
						if w := s.get("http://a/p"); w.Body.String() != "page" {
							bad++
						}
						synctest.Wait()
					}
					if n := p.calls(); n > 0 {
						bad += 1000
					}
					time.Sleep(11 * time.Second)
				}
				if bad > 0 {
					t.Errorf("a fresh page: %d replies to others without it, %d rounds in which it was built again", bad%1000, bad/1000)
				}
			})
		})
	}
}

// A page whose body was over MaxBody once, and is small from then on. It has no
// Content-Length, as most Go handlers' pages have none.
func TestHostile_OnceTooLargeIsNeverCachedAgain(t *testing.T) {
	var large atomic.Bool
	h := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=600")
		if large.Load() {
			for range 20 {
				w.Write(make([]byte, 100<<10))
			}
			return
		}
		io.WriteString(w, "page")
		w.(http.Flusher).Flush()
	}
	o := bellwether.HTTPOptions{MaxBody: 1 << 20}
	inPairs(t, o, h, func(t *testing.T, p pair) {
		large.Store(true)
		p.first.get("http://a/p")
		large.Store(false)
		time.Sleep(time.Second)
		p.calls()
		for range 600 { // ten minutes
			p.first.get("http://a/p")
			p.second.get("http://a/p")
			time.Sleep(time.Second)
		}
		if n := p.calls(); n > 50 {
			t.Errorf("%d runs for 1,200 requests in ten minutes for a small page with max-age=600", n)
		}
	})
}

// A key was uncacheable once; from then on its page is for all, and is asked for by clients
// that revalidate, or by players that ask for ranges.
func TestHostile_NotModifiedProlongsUncacheable(t *testing.T) {
	for name, fields := range map[string][]string{"304": {"If-None-Match", `"v"`}, "206": {"Range", "bytes=0-1"}} {
		t.Run(name, func(t *testing.T) {
			var private atomic.Bool
			h := func(w http.ResponseWriter, r *http.Request) {
				if private.Load() {
					w.Header().Set("Cache-Control", "private")
					return
				}
				w.Header().Set("Cache-Control", "public, max-age=600")
				w.Header().Set("ETag", `"v"`)
				http.ServeContent(w, r, "x.txt", time.Time{}, strings.NewReader("page"))
			}
			inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
				private.Store(true)
				p.first.get("http://a/p")
				private.Store(false)
				time.Sleep(time.Second)
				p.calls()
				for range 600 {
					p.first.get("http://a/p", fields...)
					p.second.get("http://a/p", fields...)
					time.Sleep(time.Second)
				}
				if n := p.calls(); n > 50 {
					t.Errorf("%d runs for 1,200 requests in ten minutes for a page with max-age=600", n)
				}
			})
		})
	}
}

// A private page that takes longer than UncacheableTTL, and less than RebuildTimeout: its
// clients take turns all the same.
func TestHostile_SlowPrivatePageTakesTurns(t *testing.T) {
	const build = 12 * time.Second
	h := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(build)
		w.Header().Set("Cache-Control", "private")
		io.WriteString(w, r.Header.Get("Cookie"))
	}
	inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
		p.first.get("http://a/p", "Cookie", "u=0")
		time.Sleep(time.Second)
		var wg sync.WaitGroup
		var mu sync.Mutex
		late, longest := 0, time.Duration(0)
		for i := range 120 {
			for _, s := range []*site{p.first, p.second} {
				wg.Go(func() {
					began := time.Now()
					s.get("http://a/p", "Cookie", fmt.Sprint("u=", i))
					mu.Lock()
					defer mu.Unlock()
					if took := time.Since(began); took > build {
						late++
						longest = max(longest, took)
					}
				})
			}
			time.Sleep(time.Second)
		}
		wg.Wait()
		if late > 0 {
			t.Errorf("%d of 240 clients waited for another, up to %v for a page of %v", late, longest, build)
		}
	})
}

// While one client with Authorization takes its time, nothing prolongs the marker of the
// key, and the others take turns.
func TestHostile_SlowCredentialsKeepTheMarkerFromBeingProlonged(t *testing.T) {
	for _, attack := range []bool{false, true} {
		t.Run(fmt.Sprint("attack ", attack), func(t *testing.T) { markerUnderSlowCredentials(t, attack) })
	}
}

func markerUnderSlowCredentials(t *testing.T, attack bool) {
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			time.Sleep(time.Hour) // or it writes to a client that reads nothing
		}
		if r.Header.Get("Cookie") == "slow" {
			time.Sleep(8 * time.Second)
		}
		w.Header().Set("Cache-Control", "private")
		io.WriteString(w, r.Header.Get("Cookie"))
	}
	inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
		if attack {
			go p.first.get("http://a/p", "Authorization", "x")
			if p.second != p.first {
				go p.second.get("http://a/p", "Authorization", "x")
			}
		}
		time.Sleep(time.Second)
		p.first.get("http://a/p", "Cookie", "u=0")
		time.Sleep(time.Second)
		var wg sync.WaitGroup
		var late atomic.Int32
		for i := range 600 { // a minute
			cookie := fmt.Sprint("u=", i)
			if i%5 == 0 {
				cookie = "slow"
			}
			for _, s := range []*site{p.first, p.second} {
				wg.Go(func() {
					began := time.Now()
					s.get("http://a/p", "Cookie", cookie)
					if cookie != "slow" && time.Since(began) > 0 {
						late.Add(1)
					}
				})
			}
			time.Sleep(100 * time.Millisecond)
		}
		wg.Wait()
		if n := late.Load(); n > 0 {
			t.Errorf("%d clients of a page of 0 s waited for others", n)
		}
		time.Sleep(time.Hour)
	})
}

// The bound on passes to a page that is slower than RebuildTimeout ends with the first
// response that comes in the second half of UncacheableTTL.
func TestHostile_SlowPassesLoseTheirBound(t *testing.T) {
	var running, most atomic.Int32
	h := func(w http.ResponseWriter, r *http.Request) {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		select {
		case <-time.After(3 * time.Second):
		case <-r.Context().Done():
			return
		}
		io.WriteString(w, "page") // says nothing
	}
	o := bellwether.HTTPOptions{PassThrough: 2, Options: bellwether.Options{RebuildTimeout: time.Second}}
	inPairs(t, o, h, func(t *testing.T, p pair) {
		most.Store(0)
		p.first.get("http://a/p")
		var wg sync.WaitGroup
		for range 60 {
			for range 20 {
				wg.Go(func() { p.first.get("http://a/p") })
			}
			time.Sleep(500 * time.Millisecond)
		}
		wg.Wait()
		if n := most.Load(); n > 4 {
			t.Errorf("%d runs of a slow page at one time, with PassThrough 2", n)
		}
	})
}

// The bound on bypasses of a fresh page ends NearTTL after this process was last asked for
// it, where there is a Store: the page is fresh there.
func TestHostile_BypassBoundEndsWithNearTTL(t *testing.T) {
	for name, field := range map[string][]string{"no-store": {"Cache-Control", "no-store"}, "event stream": {"Accept", "text/event-stream"}, "upgrade": {"Upgrade", "x"}} {
		t.Run(name, func(t *testing.T) {
			h := page(5*time.Second, "page")
			inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
				p.first.get("http://a/p")
				time.Sleep(2 * time.Second)
				p.calls()
				p.first.burst(1000, func(int) *http.Request { return request("GET", "http://a/p", field...) })
				if n := p.calls(); n > 8 {
					t.Errorf("%d runs of the handler for a page that is fresh for another minute, want 8", n)
				}
			})
		})
	}
}

// A page that may be served stale is not protected by the bound at all.
func TestHostile_BypassOfAStalePage(t *testing.T) {
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

// Fresh page, default options and IgnoreRequestDirectives: requests that go past the cache
// without a bound.
func TestHostile_UnboundedBypassesOfAFreshPage(t *testing.T) {
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

// A page at / that is cached, and a WebSocket at / whose handler hijacks the connection, as
// all WebSocket libraries and httputil.ReverseProxy do, instead of WriteHeader(101).
func TestHostile_HijackedUpgradesKeepTheirPlaces(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			page(0, "page")(w, r)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		rw.Flush()
		io.Copy(io.Discard, rw) // until the client leaves
	})
	server := httptest.NewServer(s.handler)
	defer server.Close()
	if res, err := server.Client().Get(server.URL + "/"); err == nil {
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for i := range 10 {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+server.Listener.Addr().String()+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		began := time.Now()
		line, err := bufio.NewReader(c).ReadString('\n')
		if !strings.Contains(line, "101") {
			t.Errorf("WebSocket %d got %q, %v after %v", i+1, line, err, time.Since(began).Round(time.Millisecond))
		}
	}
}

// A client whose Authorization is refused (or whose request is for a part, or for a 304) has
// all clients with Authorization go past the cache, for 10 s each time, although the page is
// known to be for all.
func TestHostile_OneBadTokenLetsTheHerdGo(t *testing.T) {
	for name, bad := range map[string][]string{
		"bad token": {"Authorization", "bad"},
		"range":     {"Authorization", "good", "Range", "bytes=0-1"},
		"304":       {"Authorization", "good", "If-None-Match", `"v"`},
	} {
		for _, learnt := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", known to be for all ", learnt), func(t *testing.T) {
				h := func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(100 * time.Millisecond)
					if r.Header.Get("Authorization") != "good" {
						w.WriteHeader(401)
						return
					}
					w.Header().Set("Cache-Control", "public, max-age=60")
					w.Header().Set("ETag", `"v"`)
					http.ServeContent(w, r, "x.txt", time.Time{}, strings.NewReader("page"))
				}
				inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
					if learnt {
						for range 2 {
							p.first.get("http://a/p", "Authorization", "good")
							synctest.Wait()
						}
						time.Sleep(2 * time.Hour)
					}
					p.first.get("http://a/p", bad...)
					synctest.Wait()
					p.calls()
					for range 10 {
						p.first.burst(100, func(int) *http.Request { return request("GET", "http://a/p", "Authorization", "good") })
						time.Sleep(500 * time.Millisecond)
					}
					if n := p.calls(); n > 110 {
						t.Errorf("%d runs of the handler for 10 herds of 100 with good tokens, of a page that is public, max-age=60", n)
					}
				})
			})
		}
	}
}

// An origin that fails: one client's load finds out, all others with Authorization ask it.
func TestHostile_FailingOriginGetsTheAuthorizedHerd(t *testing.T) {
	for _, fields := range [][]string{nil, {"Authorization", "good"}} {
		t.Run(fmt.Sprint(fields), func(t *testing.T) {
			var down atomic.Bool
			h := func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(100 * time.Millisecond)
				if down.Load() {
					w.WriteHeader(503)
					return
				}
				w.Header().Set("Cache-Control", "public, max-age=60")
				io.WriteString(w, "page")
			}
			inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
				down.Store(false)
				p.first.get("http://a/p", fields...)
				synctest.Wait()
				p.first.get("http://a/p", fields...)
				time.Sleep(65 * time.Second)
				down.Store(true)
				p.calls()
				for range 10 {
					p.first.burst(100, func(int) *http.Request { return request("GET", "http://a/p", fields...) })
					time.Sleep(500 * time.Millisecond)
				}
				if n := p.calls(); n > 20 {
					t.Errorf("%d runs of a failing handler for 1,000 requests in 6 s", n)
				}
			})
		})
	}
}

// The header of a HEAD, and a 304, of a private page come with the end of the page's body,
// although the handler has flushed them; and the 304 has all of the body made.
func TestHostile_HeaderOfAPrivatePageComesAtTheEnd(t *testing.T) {
	for name, build := range map[string]func(url string) *http.Request{
		"HEAD": func(url string) *http.Request { r, _ := http.NewRequest("HEAD", url, nil); return r },
		"304": func(url string) *http.Request {
			r, _ := http.NewRequest("GET", url, nil)
			r.Header.Set("If-None-Match", `"v"`)
			return r
		},
		"GET": func(url string) *http.Request { r, _ := http.NewRequest("GET", url, nil); return r },
	} {
		for _, cached := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " behind the cache ", cached), func(t *testing.T) {
				var written atomic.Int64
				h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "private")
					w.Header().Set("ETag", `"v"`)
					if r.Header.Get("If-None-Match") != "" {
						w.WriteHeader(304)
						return
					}
					w.WriteHeader(200)
					w.(http.Flusher).Flush()
					for range 20 {
						select {
						case <-time.After(100 * time.Millisecond):
						case <-r.Context().Done():
							return
						}
						n, err := w.Write(make([]byte, 1<<10))
						written.Add(int64(n))
						if err != nil {
							return
						}
					}
				})
				handler := http.Handler(h)
				if cached {
					handler = newSite(t, bellwether.HTTPOptions{}, h).handler
				}
				server := httptest.NewServer(handler)
				defer server.Close()
				began := time.Now()
				res, err := server.Client().Do(build(server.URL + "/p"))
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				if took := time.Since(began); took > time.Second {
					t.Errorf("%d after %v, when the handler had written %d bytes", res.StatusCode, took.Round(10*time.Millisecond), written.Load())
				}
			})
		}
	}
}

// Slow clients of four cold URLs hold MaxHeld. Another page, of 100 KiB and fresh for ten
// minutes, is asked for 100 times. With Authorization they hold it for as long as they like.
func TestHostile_SlowReadersOfColdPagesEndCaching(t *testing.T) {
	for name, tt := range map[string]struct {
		fields []string
		pause  time.Duration
		after  time.Duration
	}{
		"slow, at once":                      {nil, 55 * time.Second, time.Second},
		"stalled with Authorization, a week": {[]string{"Authorization", "x"}, 1000 * time.Hour, 7 * 24 * time.Hour},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{MaxHeld: 8 << 20}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "public, max-age=600")
				if strings.HasPrefix(r.URL.Path, "/large") {
					w.Write(make([]byte, 2<<20))
					return
				}
				w.Write(make([]byte, 100<<10))
			})
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					defer func() { recover() }()
					w := newClient() // takes a body as slowly as it may, or nothing of it
					w.forgets, w.deadline = true, func(*client, time.Time) error { return nil }
					w.before = func([]byte) error {
						select {
						case <-time.After(tt.pause):
							return nil
						case <-ctx.Done():
							return ctx.Err()
						}
					}
					s.handler.ServeHTTP(w, request("GET", fmt.Sprint("http://a/large", i), tt.fields...).WithContext(ctx))
				})
			}
			time.Sleep(tt.after)
			s.calls.Store(0)
			for range 100 {
				s.get("http://a/p")
				time.Sleep(time.Second)
			}
			if n := s.calls.Load(); n > 2 {
				t.Errorf("%d runs for 100 requests in 100 s for a page of 100 KiB with max-age=600, while four clients read slowly", n)
			}
			cancel()
			wg.Wait()
		})
	}
}

// Clients that leave while an epoch is claimed for them count as errors of the store, which
// OnError hears of.
func TestHostile_LeavingClientsAreNoEngineErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told string
		store := wiredTo(memstore.New())
		store.set(on(takes(time.Millisecond), "claim"))
		o := bellwether.HTTPOptions{Options: bellwether.Options{Store: store, Locker: locallock.New(), OnError: func(_ string, err error) { told = err.Error() }}}
		s := newSite(t, o, page(0, "page"))
		time.Sleep(time.Second)
		for i := range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Microsecond)
			s.do(request("GET", fmt.Sprint("http://a/", i), "Authorization", "x").WithContext(ctx))
			cancel()
		}
		if n := s.mw.Stats().EngineErrors; n > 0 {
			t.Errorf("%d engine errors by 100 clients that left; the last: %s", n, told)
		}
	})
}

// RFC 9110 section 14.1.2: a suffix of no bytes is not satisfiable.
func TestHostile_SuffixOfNoBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, page(0, "page"))
		s.get("http://a/p")
		synctest.Wait()
		if w := s.get("http://a/p", "Range", "bytes=-0"); w.Code == 206 {
			t.Errorf("%d, Content-Range %q", w.Code, w.Header().Get("Content-Range"))
		}
	})
}

// What a rebuild for all takes out of a request reaches the handler whose response to
// credentials is kept for all.
func TestHostile_ContentTypeOfACredentialsRequest(t *testing.T) {
	for _, fields := range [][]string{nil, {"Authorization", "x"}} {
		inBubble(t, fmt.Sprint(fields), func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "public, max-age=60")
				io.WriteString(w, "answer in "+r.Header.Get("Content-Type"))
			})
			s.get("http://a/p", append([]string{"Content-Type", "application/evil"}, fields...)...)
			synctest.Wait()
			if w := s.get("http://a/p"); w.Body.String() != "answer in " {
				t.Errorf("another client got %q", w.Body)
			}
		})
	}
}

// Two processes with a Store and no Locker, and unsafe requests for two URLs at one moment: one
// of the two is not in the log, and its page stays fresh in the other process.
func TestHostile_SoftIsLostWithoutLocker(t *testing.T) {
	for name, tt := range map[string]struct {
		kind   bellwether.Invalidation
		locker bellwether.Locker
		one    bool
	}{
		"hard": {}, "soft": {kind: bellwether.SoftInvalidation}, "soft, one process": {kind: bellwether.SoftInvalidation, one: true},
		"soft, with a Locker": {kind: bellwether.SoftInvalidation, locker: farLocker()},
	} {
		inBubble(t, name, func(t *testing.T) {
			var version sync.Map
			h := func(w http.ResponseWriter, r *http.Request) {
				n, _ := version.LoadOrStore(r.URL.Path, 0)
				if r.Method == "PUT" {
					version.Store(r.URL.Path, n.(int)+1)
					return
				}
				w.Header().Set("Cache-Control", "max-age=600")
				fmt.Fprint(w, n)
			}
			o := bellwether.HTTPOptions{UnsafeInvalidation: tt.kind, Options: bellwether.Options{Store: farStore(memstore.New()), Locker: tt.locker}}
			p := pair{newSite(t, o, h), newSite(t, o, h)}
			if tt.one {
				p.second = p.first
			}
			time.Sleep(2 * time.Second)
			lost := 0
			for i := range 20 {
				urls := []string{fmt.Sprintf("http://a/a%d", i), fmt.Sprintf("http://a/b%d", i)}
				for _, u := range urls {
					p.first.get(u)
					p.second.get(u)
				}
				time.Sleep(2 * time.Second)
				var wg sync.WaitGroup
				wg.Go(func() { p.first.do(request("PUT", urls[0])) })
				wg.Go(func() {
					time.Sleep(time.Duration(i%5) * 500 * time.Microsecond)
					p.second.do(request("PUT", urls[1]))
				})
				wg.Wait()
				time.Sleep(5 * time.Second)
				for j, u := range urls {
					for k, s := range []*site{p.first, p.second} {
						if w := s.get(u); w.Body.String() != "1" {
							lost++
							if lost == 1 {
								t.Logf("URL %d in process %d, 5 s later: %q %s", j, k, w.Body, w.Header().Get("Cache-Status"))
							}
						}
					}
				}
				time.Sleep(5 * time.Second)
			}
			if lost > 0 {
				t.Errorf("%d of 80 replies are of before the PUT, and fresh", lost)
			}
		})
	}
}

// Soft invalidations by many unsafe requests at one time, all of which look whether the log
// has room before any of them has written into it.
func TestHostile_SoftFloodAtOneTime(t *testing.T) {
	for _, n := range []int{100, 1000} {
		inBubble(t, fmt.Sprint(n), func(t *testing.T) {
			o := bellwether.HTTPOptions{UnsafeInvalidation: bellwether.SoftInvalidation}
			o.Store, o.Locker = farStore(memstore.New()), farLocker()
			s := newSite(t, o, page(0, "page"))
			time.Sleep(time.Second)
			s.get("http://a/popular")
			time.Sleep(time.Second)
			var longest atomic.Int64
			var failed atomic.Int32
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					began := time.Now()
					if w := s.do(request("POST", fmt.Sprint("http://a/", i))); w.Code != 200 {
						failed.Add(1)
					}
					for d := int64(time.Since(began)); ; {
						if l := longest.Load(); d <= l || longest.CompareAndSwap(l, d) {
							break
						}
					}
				})
			}
			wg.Wait()
			s.calls.Store(0)
			if w := s.get("http://a/popular"); !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
				t.Errorf("another page after %d unsafe requests at one time: %v", n, w.Header())
			}
			if d := time.Duration(longest.Load()); d > 2*time.Second {
				t.Errorf("one of %d unsafe requests took %v for a handler of 0 s (%d failed)", n, d, failed.Load())
			}
		})
	}
}
