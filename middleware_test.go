package bellwether_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/go-chi/chi/v5"
)

// A site is a handler behind a Middleware, in a synctest bubble or not.
type site struct {
	calls   atomic.Int32 // of the handler
	handler http.Handler
	mw      *bellwether.Middleware
}

func newSite(t *testing.T, o bellwether.HTTPOptions, h http.HandlerFunc) *site {
	t.Helper()
	s := &site{mw: bellwether.NewMiddleware(o)}
	t.Cleanup(func() { s.mw.Close() })
	s.handler = s.mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.calls.Add(1)
		h(w, r)
	}))
	return s
}

// do makes one request and returns what its client saw. A reply that was
// broken off has the status -1.
func (s *site) do(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	func() {
		defer func() {
			if p := recover(); p != nil {
				w.Code = -1
			}
		}()
		s.handler.ServeHTTP(w, r)
	}()
	return w
}

func (s *site) get(url string, fields ...string) *httptest.ResponseRecorder {
	return s.do(request(http.MethodGet, url, fields...))
}

func request(method, url string, fields ...string) *http.Request {
	r := httptest.NewRequest(method, url, nil)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	return r
}

// burst makes n requests at one time, and returns how often each outcome came,
// with the time it took.
func (s *site) burst(n int, build func(i int) *http.Request) map[string]int {
	var mu sync.Mutex
	out := map[string]int{}
	start := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			w := s.do(build(i))
			mu.Lock()
			defer mu.Unlock()
			out[fmt.Sprintf("%d %s %v", w.Code, w.Body.String(), time.Since(start))]++
		})
	}
	wg.Wait()
	return out
}

func same(url string) func(int) *http.Request {
	return func(int) *http.Request { return request(http.MethodGet, url) }
}

func wantBurst(t *testing.T, got map[string]int, n int, outcome string) {
	t.Helper()
	if len(got) != 1 || got[outcome] != n {
		t.Errorf("outcomes %v, want %d times %q", got, n, outcome)
	}
}

func (s *site) wantCalls(t *testing.T, n int32) {
	t.Helper()
	if got := s.calls.Swap(0); got != n {
		t.Errorf("%d handler calls, want %d", got, n)
	}
}

func TestHTTP_ColdHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(500 * time.Millisecond)
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, "page")
		})
		wantBurst(t, s.burst(1000, same("http://a/p")), 1000, "200 page 500ms")
		s.wantCalls(t, 1)
		time.Sleep(10 * time.Second)
		w := s.get("http://a/p")
		if w.Body.String() != "page" || w.Header().Get("Age") != "10" || w.Header().Get("Content-Length") != "4" ||
			!strings.Contains(w.Header().Get("Cache-Status"), "hit") || !strings.Contains(w.Header().Get("Cache-Status"), "ttl=50") {
			t.Errorf("hit: %v", w.Header())
		}
		s.wantCalls(t, 0)
	})
}

func TestHTTP_NotSharedIsReleasedTogetherAndRemembered(t *testing.T) {
	for name, header := range map[string]http.Header{
		"no-store":     {"Cache-Control": {"no-store"}},
		"private":      {"Cache-Control": {"private"}},
		"no freshness": {},
		"set-cookie":   {"Cache-Control": {"max-age=60"}, "Set-Cookie": {"session=1"}},
		"lower case":   {"Cache-Control": {"max-age=60"}, "set-cookie": {"session=1"}},
		"vary *":       {"Cache-Control": {"max-age=60"}, "Vary": {"*"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int32
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					me := n.Add(1)
					time.Sleep(200 * time.Millisecond)
					for name, values := range header {
						w.Header()[name] = values
					}
					fmt.Fprint(w, me)
				})
				got := s.burst(50, same("http://a/p"))
				if len(got) != 50 || got["200 1 200ms"] != 1 {
					t.Errorf("outcomes %v, want 50 different bodies, the first after 200ms", got)
				}
				for o := range got {
					if !strings.HasSuffix(o, " 400ms") && o != "200 1 200ms" {
						t.Errorf("outcome %q, want everybody released together", o)
					}
				}
				s.wantCalls(t, 50)
				got = s.burst(50, same("http://a/p"))
				for o := range got {
					if !strings.HasSuffix(o, " 200ms") {
						t.Errorf("outcome %q of the next burst, want no queue at all", o)
					}
				}
				s.wantCalls(t, 50)
			})
		})
	}
}

func TestHTTP_AuthorizationIsNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, r.Header.Get("Authorization"))
		})
		got := s.burst(50, func(i int) *http.Request {
			return request("GET", "http://a/p", "Authorization", fmt.Sprint("user", i))
		})
		for i := range 50 {
			if got[fmt.Sprintf("200 user%d 1s", i)] != 1 {
				t.Fatalf("user %d did not get its own: %v", i, got)
			}
		}
	})
}

func TestHTTP_VariantsNeverMixNorWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", "X-Lang")
			w.Header().Set("Cache-Control", "max-age=60")
			time.Sleep(500 * time.Millisecond)
			fmt.Fprint(w, r.Header.Get("X-Lang"))
		})
		variant := func(i int) *http.Request {
			return request("GET", "http://a/p", "X-Lang", fmt.Sprint("l", i%5))
		}
		got := s.burst(50, variant)
		for i := range 5 {
			if n := got[fmt.Sprintf("200 l%d 500ms", i)] + got[fmt.Sprintf("200 l%d 1s", i)]; n != 10 {
				t.Errorf("variant %d: %v, want 10 right answers after one or two builds", i, got)
			}
		}
		s.wantCalls(t, 5)
		for o, n := range s.burst(50, variant) {
			if n != 10 || !strings.HasSuffix(o, " 0s") {
				t.Errorf("hit %q x %d", o, n)
			}
		}
		s.wantCalls(t, 0)
		// Once the names are known a new variant waits for nobody else's.
		time.Sleep(61 * time.Second)
		for o := range s.burst(50, variant) {
			if !strings.HasSuffix(o, " 500ms") {
				t.Errorf("expired: %q, want one build in parallel per variant", o)
			}
		}
		s.wantCalls(t, 5)
		s.do(request("POST", "http://a/p"))
		s.calls.Store(0)
		s.burst(50, variant)
		s.wantCalls(t, 5) // all variants were invalidated
	})
}

func TestHTTP_VaryGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Vary", "A")
			if r.Header.Get("A") == "1" {
				w.Header().Set("Vary", "A, B")
			}
			fmt.Fprint(w, r.Header.Get("A"), r.Header.Get("B"))
		})
		for range 2 {
			for _, ab := range []string{"00", "10", "11", "10", "01"} {
				if w := s.get("http://a/p", "A", ab[:1], "B", ab[1:]); w.Body.String() != ab {
					t.Errorf("A=%c B=%c got %q", ab[0], ab[1], w.Body)
				}
				synctest.Wait()
			}
		}
		// A=0 twice: before B is named for A=1, and after.
		s.wantCalls(t, 5)
	})
}

func TestHTTP_ServerErrorAnswersTheHerdOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			http.Error(w, "down", 500)
		})
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "500 down\n 1s")
		s.wantCalls(t, 1)
		time.Sleep(time.Second + 1)
		s.get("http://a/p")
		s.wantCalls(t, 1) // not remembered beyond ErrorTTL
	})
}

func TestHTTP_StaleIfError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			if broken.Load() {
				http.Error(w, "down", http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Cache-Control", "max-age=10, stale-if-error=60")
			fmt.Fprint(w, "good")
		})
		s.get("http://a/p")
		broken.Store(true)
		time.Sleep(11 * time.Second)
		s.calls.Store(0)
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 good 0s")
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 good 0s")
		s.wantCalls(t, 1)
		time.Sleep(70 * time.Second)
		if w := s.get("http://a/p"); w.Code != 503 {
			t.Errorf("after the window: %d %s, want the 503", w.Code, w.Body)
		}
	})
}

// Cache-Status tells who has gone to the handler in vain from who was answered
// without it.
func TestHTTP_StaleIfErrorStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{header: "max-age=10, stale-if-error=60", fail: func(w http.ResponseWriter) { http.Error(w, "down", http.StatusServiceUnavailable) }}
		s := newSite(t, bellwether.HTTPOptions{}, f.ServeHTTP)
		s.get("http://a/p")
		f.broken.Store(true)
		time.Sleep(11 * time.Second)
		const failed = "Bellwether;fwd=stale;fwd-status=503;ttl=-2"
		for _, want := range []map[string]int{
			{failed + ";detail=stale-if-error": 1, failed + ";collapsed;detail=stale-if-error": 49},
			{"Bellwether;hit;ttl=-2": 50},
		} {
			var statuses [50]string
			var wg sync.WaitGroup
			for i := range statuses {
				wg.Go(func() { statuses[i] = s.get("http://a/p").Header().Get("Cache-Status") })
			}
			wg.Wait()
			got := make(map[string]int)
			for _, status := range statuses {
				got[status]++
			}
			if !maps.Equal(got, want) {
				t.Errorf("Cache-Status %v, want %v", got, want)
			}
		}
	})
}

func TestHTTP_StaleWhileRevalidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			v := n.Add(1)
			time.Sleep(500 * time.Millisecond)
			w.Header().Set("Cache-Control", "max-age=10, stale-while-revalidate=60")
			fmt.Fprint(w, "v", v)
		})
		s.get("http://a/p")
		time.Sleep(11 * time.Second)
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 v1 0s")
		time.Sleep(time.Second)
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 v2 0s")
		s.wantCalls(t, 2)
	})
}

func TestHTTP_ExpiredWithoutLeaveToServeStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(500 * time.Millisecond)
			w.Header().Set("Cache-Control", "max-age=10")
			fmt.Fprint(w, "v")
		})
		s.get("http://a/p")
		time.Sleep(11 * time.Second)
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 v 500ms")
		s.wantCalls(t, 2)
	})
}

func TestHTTP_PrivateHandlerEndsWithItsOnlyClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "private")
			w.WriteHeader(200)
			<-r.Context().Done()
			ended <- context.Cause(r.Context())
		})
		ctx, leave := context.WithCancel(t.Context())
		go s.do(request("GET", "http://a/p").WithContext(ctx))
		time.Sleep(time.Minute) // longer than RebuildTimeout: the response is its client's
		select {
		case err := <-ended:
			t.Fatalf("handler ended before its client left: %v", err)
		default:
		}
		leave()
		<-ended
	})
}

func TestHTTP_BrokenBodies(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"abort": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, "half")
			panic(http.ErrAbortHandler)
		},
		"panic": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, "half")
			panic("boom")
		},
		"short": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "half")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(time.Second)
					handler(w, r)
				})
				for o, n := range s.burst(50, same("http://a/p")) {
					if !strings.HasPrefix(o, "-1 ") && o != "502 Bad Gateway\n 1s" {
						t.Errorf("%d clients saw %q, want the body broken off", n, o)
					}
				}
				s.wantCalls(t, 1)
				time.Sleep(2 * time.Second)
				if w := s.get("http://a/p"); w.Code != -1 && w.Code != 502 {
					t.Errorf("the broken body was stored: %d %q", w.Code, w.Body)
				}
			})
		})
	}
}

func TestHTTP_UnsafeMethodInvalidates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v atomic.Int32
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "POST" {
				v.Add(1)
				w.WriteHeader(204)
				return
			}
			now := v.Load()
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, now)
		})
		s.get("http://a/p")
		s.do(request("POST", "http://a/p"))
		if w := s.get("http://a/p"); w.Body.String() != "1" {
			t.Errorf("after POST: %q, want the new state", w.Body)
		}
		// And while a rebuild runs: what it has read is not kept.
		time.Sleep(61 * time.Second)
		go func() {
			time.Sleep(500 * time.Millisecond)
			s.do(request("POST", "http://a/p"))
		}()
		if w := s.get("http://a/p"); w.Body.String() != "2" {
			t.Errorf("POST during a miss: %q, want the new state", w.Body)
		}
		if w := s.get("http://a/p"); w.Body.String() != "2" {
			t.Errorf("after that: %q", w.Body)
		}
	})
}

// A handler that heeds its context returns without a word when its rebuild is
// given up on. That silence is no empty 200.
func TestHTTP_CancelledHandlerIsNoEmptyResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		s := newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{TTL: time.Minute}}, func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1) == 1 {
				<-r.Context().Done()
				return
			}
			fmt.Fprint(w, "full")
		})
		go func() {
			time.Sleep(time.Second)
			s.mw.Invalidate(t.Context(), "http://a/p")
		}()
		wantBurst(t, s.burst(20, same("http://a/p")), 20, "200 full 1s")

		n.Store(0)
		for o := range s.burst(20, same("http://a/timeout")) {
			if o != "504 Gateway Timeout\n 30s" {
				t.Errorf("after RebuildTimeout: %q", o)
			}
		}
	})
}

func TestHTTP_OverLimitBody(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 4<<10) // 64 KiB
	s := newSite(t, bellwether.HTTPOptions{MaxBody: 16 << 10}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		for part := body; len(part) > 0; part = part[1<<10:] {
			w.Write(part[:1<<10])
		}
	})
	for range 3 {
		if w := s.get("http://a/p"); !bytes.Equal(w.Body.Bytes(), body) {
			t.Errorf("got %d of %d bytes", w.Body.Len(), len(body))
		}
	}
	s.wantCalls(t, 3)
}

func TestHTTP_HeadRangeAndConditions(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "GET" || r.Header.Get("Range") != "" || r.Header.Get("If-None-Match") != "" {
			t.Errorf("the handler was asked for one client's view: %s %v", r.Method, r.Header)
		}
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("ETag", `"e"`)
		io.WriteString(w, "0123456789")
	})
	for i := range 2 { // the miss, then the hit
		if w := s.do(request("HEAD", "http://a/h")); w.Code != 200 || w.Body.Len() != 0 || w.Header().Get("ETag") != `"e"` {
			t.Errorf("HEAD %d: %d %q %v", i, w.Code, w.Body, w.Header())
		}
		if w := s.get("http://a/n", "If-None-Match", `"e"`); w.Code != 304 || w.Body.Len() != 0 {
			t.Errorf("If-None-Match %d: %d %q", i, w.Code, w.Body)
		}
	}
	s.wantCalls(t, 2)
	for !strings.Contains(s.get("http://a/h").Header().Get("Cache-Status"), "hit") {
		runtime.Gosched() // until the flight has landed
	}
	if w := s.get("http://a/h", "Range", "bytes=2-4"); w.Code != 206 || w.Body.String() != "234" {
		t.Errorf("Range: %d %q", w.Code, w.Body)
	}
	s.wantCalls(t, 0)
}

func TestHTTP_KeysAreTheWholeTarget(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprint(w, r.Host, r.URL.RequestURI())
	})
	for _, url := range []string{"a/p", "b/p", "a/P", "a/p?x", "a/p?y", "a/p%2Fq", "a/p/q"} {
		for range 2 {
			if got := s.get("http://" + url).Body.String(); !strings.HasSuffix(got, url) {
				t.Errorf("%s got %q", url, got)
			}
		}
	}
	s.wantCalls(t, 7)
}

func TestHTTP_MaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{MaxWait: time.Second}}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(3 * time.Second)
		})
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "503 Service Unavailable\n 1s")
		if w := s.get("http://a/p"); w.Header().Get("Retry-After") == "" {
			t.Error("503 without Retry-After")
		}
		s.wantCalls(t, 1)
		time.Sleep(3 * time.Second)
	})
}

func TestHTTP_TTLForResponsesWithoutFreshness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{TTL: 10 * time.Second}}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/own" {
				w.Header().Set("Cache-Control", "max-age=1")
			}
			fmt.Fprint(w, "v")
		})
		s.get("http://a/p")
		s.get("http://a/own")
		time.Sleep(5 * time.Second)
		s.calls.Store(0)
		s.get("http://a/p")
		s.wantCalls(t, 0)
		s.get("http://a/own")
		s.wantCalls(t, 1)
	})
}

func TestHTTP_InvalidateBadURL(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(http.ResponseWriter, *http.Request) {})
	for _, u := range []string{"", "/path", "http://", "::"} {
		if err := s.mw.Invalidate(t.Context(), u); err == nil || errors.Is(err, bellwether.ErrUnavailable) {
			t.Errorf("Invalidate(%q) = %v, want an error that says what is wrong", u, err)
		}
	}
}

// Real sockets from here on.

func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // panics are part of the tests
	server.Start()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	t.Cleanup(server.Close)
	return server
}

func TestHTTP_CollapsedClientsReadTheBodyWhileItGrows(t *testing.T) {
	release := make(chan struct{})
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "first ")
		<-release
		io.WriteString(w, "second")
	})
	server := serve(t, s.handler)
	var begun, done sync.WaitGroup
	begun.Add(20)
	for range 20 {
		done.Go(func() {
			res, err := http.Get(server.URL + "/p")
			if err != nil {
				t.Error(err)
				begun.Done()
				return
			}
			defer res.Body.Close()
			part := make([]byte, 6)
			_, err = io.ReadFull(res.Body, part)
			begun.Done()
			rest, err2 := io.ReadAll(res.Body)
			if string(part)+string(rest) != "first second" || err != nil || err2 != nil {
				t.Errorf("body %q%q, %v, %v", part, rest, err, err2)
			}
		})
	}
	begun.Wait() // all have the first part while the handler has not written the second
	close(release)
	done.Wait()
	s.wantCalls(t, 1)
}

func TestHTTP_AbortedBodyLooksAbortedOnTheWire(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	server := serve(t, s.handler)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			res, err := http.Get(server.URL + "/p")
			if err != nil {
				return
			}
			defer res.Body.Close()
			if b, err := io.ReadAll(res.Body); err == nil && res.StatusCode == 200 {
				t.Errorf("a broken body looks complete: %q", b)
			}
		})
	}
	wg.Wait()
}

// The handler reads its own parameters although its client, and with it chi's
// pooled routing context, is long gone.
func TestHTTP_ChiParametersOfDetachedHandlers(t *testing.T) {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{Options: bellwether.Options{MaxRebuilds: 10_000}})
	t.Cleanup(func() { mw.Close() })
	r := chi.NewRouter()
	r.Use(mw.Handler)
	r.Route("/users/{user}", func(r chi.Router) {
		r.Get("/posts/{post}", func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Millisecond) // outlive impatient clients
			if got, want := "/users/"+chi.URLParam(r, "user")+"/posts/"+chi.URLParam(r, "post"), r.URL.Path; got != want {
				t.Errorf("parameters %s in a request for %s", got, want)
			}
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, r.URL.Path)
		})
	})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				ctx, cancel := context.WithCancel(t.Context())
				if i%2 == 0 {
					time.AfterFunc(500*time.Microsecond, cancel) // leaves before the handler ends
				}
				path := fmt.Sprintf("/users/u%d/posts/p%d", g, i)
				w := httptest.NewRecorder()
				func() {
					defer func() {
						if p := recover(); p != nil && i%2 == 1 {
							t.Errorf("%s: %v", path, p) // the others have left
						}
					}()
					r.ServeHTTP(w, httptest.NewRequest("GET", "http://a"+path, nil).WithContext(ctx))
				}()
				if i%2 == 1 && w.Body.String() != path {
					t.Errorf("%s got %q", path, w.Body)
				}
				cancel()
			}
		})
	}
	wg.Wait()
}

func TestHTTP_UpgradePassesThrough(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
		rw.Flush()
		line, _ := rw.ReadString('\n')
		rw.WriteString("echo " + line)
		rw.Flush()
	})
	server := serve(t, s.handler)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /p HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n")
	br := bufio.NewReader(conn)
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("upgrade: %v, %v", res, err)
	}
	if line, err := br.ReadString('\n'); line != "echo hello\n" {
		t.Fatalf("echoed %q, %v", line, err)
	}
}

func TestHTTP_EventStreamPassesThrough(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Hour)); err != nil {
			t.Errorf("no write deadline through the middleware: %v", err)
		}
		io.WriteString(w, "data: 1\n\n")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	server := serve(t, s.handler)
	req, _ := http.NewRequest("GET", server.URL, nil)
	req.Header.Set("Accept", "text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(res.Body).ReadString('\n')
	if line != "data: 1\n" || err != nil {
		t.Errorf("event %q, %v", line, err)
	}
	res.Body.Close()
}
