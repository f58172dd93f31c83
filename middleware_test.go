package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
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
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

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

// do sends a request and returns the reply. A broken reply has the status -1.
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

// asked returns the number of requests that have begun or joined a flight.
func (s *site) asked() int { return int(s.mw.Stats().Misses + s.mw.Stats().Collapsed) }

func (s *site) hits(url string) bool {
	return strings.Contains(s.get(url).Header().Get("Cache-Status"), "hit")
}

func (s *site) wantBody(t *testing.T, want, url string, fields ...string) {
	t.Helper()
	if w := s.get(url, fields...); w.Body.String() != want {
		t.Errorf("%s %q: %d %q (%s), want %q", url, fields, w.Code, w.Body, w.Header().Get("Cache-Status"), want)
	}
}

func request(method, url string, fields ...string) *http.Request {
	r := httptest.NewRequest(method, url, nil)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	return r
}

// burst sends n requests at one time, and counts the outcomes with the time that they took.
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

// Callers that run out of MaxWait do not call the handler, and later callers join the running call.
func TestMiddleware_MaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{MaxWait: time.Second}, page(2500*time.Millisecond, "page"))
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "503 Service Unavailable\n 1s")
		if w := s.get("http://a/p"); w.Header().Get("Retry-After") == "" {
			t.Error("503 without Retry-After")
		}
		wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 page 500ms")
		s.wantCalls(t, 1)
	})
}

// A request waits for the run that tells the URL's variants, then for the run of its variant, and for MaxWait in all.
func TestMiddleware_MaxWaitOverVariants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waited atomic.Int64
		watch := observe.Observer{Serve: func(_ context.Context, s observe.Serve) { waited.Store(int64(s.Waited)) }}
		o := bellwether.HTTPOptions{MaxWait: time.Second, Observers: []observe.Observer{watch}}
		s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(800 * time.Millisecond)
			w.Header().Set("Vary", "Accept-Language")
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, r.Header.Get("Accept-Language"))
		})
		go s.get("http://a/p", "Accept-Language", "de")
		synctest.Wait()
		start := time.Now()
		w := s.get("http://a/p", "Accept-Language", "fr")
		if took := time.Since(start); w.Code != http.StatusServiceUnavailable || took != time.Second {
			t.Errorf("the other variant got %d %q after %v, want 503 after 1s", w.Code, w.Body, took)
		}
		if told := time.Duration(waited.Load()); told != time.Second {
			t.Errorf("an observer was told of a wait of %v, want 1s", told)
		}
		time.Sleep(time.Second)
		if w := s.get("http://a/p", "Accept-Language", "fr"); w.Body.String() != "fr" {
			t.Errorf("later the variant's request got %d %q", w.Code, w.Body)
		}
		s.wantCalls(t, 2)
	})
}

func TestMiddleware_TTLForResponsesWithoutFreshness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{TTL: 10 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
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

func TestMiddleware_InvalidateBadURL(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(http.ResponseWriter, *http.Request) {})
	for _, u := range []string{"", "/path", "http://", "::"} {
		if err := s.mw.Invalidate(t.Context(), u); err == nil || errors.Is(err, bellwether.ErrUnavailable) {
			t.Errorf("Invalidate(%q) = %v, want an error with the reason", u, err)
		}
	}
}

// noting returns observers that append the way of each request to ways.
func noting(ways *[]observe.Way) []observe.Observer {
	return []observe.Observer{{Serve: func(_ context.Context, s observe.Serve) { *ways = append(*ways, s.Way) }}}
}

func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // discards the panics of the tests
	server.Start()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	t.Cleanup(server.Close)
	return server
}

// dial connects to a server, for ten seconds at most.
func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	return conn
}

func TestMiddleware_NilHandler(t *testing.T) {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
	defer mw.Close()
	for _, next := range []http.Handler{nil, http.HandlerFunc(nil)} {
		func() {
			defer func() {
				if p := fmt.Sprint(recover()); !strings.HasPrefix(p, "bellwether: Handler needs a handler") {
					t.Errorf("%T: the panic is %q", next, p)
				}
			}()
			mw.Handler(next)
		}()
	}
	if err := mw.Refresh(nil, request("GET", "http://a/p")); err == nil || !strings.Contains(err.Error(), "needs the handler") {
		t.Errorf("Refresh without a handler: %v", err)
	}
}

// A closed middleware stores nothing, and serves nothing from the near tier or the store.
func TestMiddleware_Closed(t *testing.T) {
	for name, test := range map[string]struct {
		store  driver.Store
		before string // a request's method
		after  string
		field  string // Cache-Control of the last request
		want   int
	}{
		"what there was":             {nil, "GET", "GET", "", 503},
		"what was in the store":      {memstore.New(), "GET", "GET", "", 503},
		"what a POST shows":          {nil, "GET", "POST", "", 503},
		"only-if-cached":             {nil, "GET", "GET", "only-if-cached", 504},
		"only-if-cached, in a store": {memstore.New(), "GET", "GET", "only-if-cached", 504},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: test.store}}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Content-Location", "/p")
				io.WriteString(w, "page")
			})
			s.do(request(test.before, "http://a/p"))
			synctest.Wait()
			s.mw.Close()
			s.do(request(test.after, "http://a/p"))
			if w := s.get("http://a/p", "Cache-Control", test.field); w.Code != test.want {
				t.Errorf("status %d, body %q", w.Code, w.Body)
			}
		})
	}
}

func TestMiddleware_Options(t *testing.T) {
	week := 7 * 24 * time.Hour
	for name, test := range map[string]struct {
		options bellwether.HTTPOptions
		header  http.Header
		status  int
		after   time.Duration
		stored  bool
	}{
		"targeted field, by default":         {bellwether.HTTPOptions{}, http.Header{"Cache-Control": {"no-store"}, "Cdn-Cache-Control": {"max-age=60"}}, 200, time.Second, true},
		"none is targeted":                   {bellwether.HTTPOptions{TargetedFields: []string{}}, http.Header{"Cache-Control": {"no-store"}, "Cdn-Cache-Control": {"max-age=60"}}, 200, time.Second, false},
		"own name in front":                  {bellwether.HTTPOptions{TargetedFields: []string{"My-Cache-Control", "CDN-Cache-Control"}}, http.Header{"My-Cache-Control": {"max-age=60"}, "Cdn-Cache-Control": {"no-store"}}, 200, time.Second, true},
		"no heuristic by default":            {bellwether.HTTPOptions{}, http.Header{"Last-Modified": {lastYear}}, 200, time.Second, false},
		"heuristic":                          {bellwether.HTTPOptions{HeuristicFraction: 0.1}, http.Header{"Last-Modified": {lastYear}}, 200, 23 * time.Hour, true},
		"set-cookie":                         {bellwether.HTTPOptions{StoreSetCookie: true}, http.Header{"Cache-Control": {"max-age=60"}, "Set-Cookie": {"a=b"}}, 200, time.Second, true},
		"error remembered":                   {bellwether.HTTPOptions{TTL: time.Second, ErrorTTL: time.Minute}, http.Header{}, 503, 2 * time.Second, true},
		"error remembered from now on":       {bellwether.HTTPOptions{TTL: time.Second, ErrorTTL: time.Minute}, http.Header{"Age": {"300"}}, 503, 2 * time.Second, true},
		"error that is to be asked for anew": {bellwether.HTTPOptions{ErrorTTL: time.Minute}, http.Header{"Cache-Control": {"no-cache"}}, 503, time.Second, false},
		"public error, to be validated":      {bellwether.HTTPOptions{ErrorTTL: time.Minute}, http.Header{"Cache-Control": {"public, must-revalidate"}}, 503, time.Second, true},
		"public error by the heuristic":      {bellwether.HTTPOptions{HeuristicFraction: 0.1, ErrorTTL: time.Second}, http.Header{"Cache-Control": {"public"}, "Last-Modified": {lastYear}}, 503, 2 * time.Second, false},
		"error not remembered":               {bellwether.HTTPOptions{ErrorTTL: -1}, http.Header{}, 503, 0, false},
		"error is nothing to fall back on":   {bellwether.HTTPOptions{ErrorTTL: -1, StaleIfError: week}, http.Header{}, 503, time.Second, false},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, test.options, func(w http.ResponseWriter, r *http.Request) {
				for name, values := range test.header {
					w.Header()[name] = values
				}
				w.WriteHeader(test.status)
				io.WriteString(w, "v")
			})
			first := s.get("http://a/p")
			synctest.Wait()
			time.Sleep(test.after)
			s.calls.Store(0)
			second := s.get("http://a/p")
			if first.Code != test.status || second.Code != test.status || first.Body.String() != second.Body.String() {
				t.Errorf("got %d %q and %d %q", first.Code, first.Body, second.Code, second.Body)
			}
			if stored := s.calls.Load() == 0; stored != test.stored {
				t.Errorf("stored %v, want %v", stored, test.stored)
			}
		})
	}
}
