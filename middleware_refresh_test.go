package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
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
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
)

// slowRefresh answers each run with its number, after a second from the second run on.
func slowRefresh(s **site) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n := (*s).calls.Load()
		if n > 1 {
			time.Sleep(time.Second)
		}
		w.Header().Set("Cache-Control", "max-age=60, stale-if-error=60")
		fmt.Fprintf(w, "page %d %s", n, r.Header.Get("Accept-Language"))
	}
}

// Many refreshes of one moment are one run. Clients have the stored page until Refresh has returned.
func TestMiddleware_Refresh(t *testing.T) {
	for name, o := range map[string]bellwether.HTTPOptions{
		"alone":              {},
		"directives ignored": {IgnoreRequestDirectives: true},
		"near off":           {Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New(), NearTTL: -1}},
	} {
		inBubble(t, name, func(t *testing.T) {
			var s *site
			s = newSite(t, o, slowRefresh(&s))
			s.wantBody(t, "page 1 ", "http://h.example/p")
			time.Sleep(time.Nanosecond) // a run and a Refresh of one instant have no order
			var group sync.WaitGroup
			for range 20 {
				group.Go(func() {
					r := request(http.MethodGet, "http://h.example/p", "If-None-Match", `"x"`, "Range", "bytes=0-1", "Cache-Control", "only-if-cached")
					if err := s.mw.Refresh(s.handler, r); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			began := time.Now()
			s.wantBody(t, "page 1 ", "http://h.example/p")
			if took := time.Since(began); took != 0 {
				t.Errorf("a client waited for %v", took)
			}
			group.Wait()
			if took := time.Since(began); took != time.Second {
				t.Errorf("Refresh took %v", took)
			}
			s.wantBody(t, "page 2 ", "http://h.example/p")
			if n := s.calls.Load(); n != 2 {
				t.Errorf("%d runs, want 2", n)
			}
		})
	}
}

// Refresh makes a page without earlier requests, by a request of http.NewRequest, behind a router.
func TestMiddleware_Refresh_ThroughARouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *site
		key := func(r *http.Request) (bellwether.Key, bool) {
			return bellwether.Key{URL: "http://" + r.Host + r.URL.Path}, true
		}
		s = newSite(t, bellwether.HTTPOptions{TTL: time.Minute, Key: key}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", "Accept-Language")
			slowRefresh(&s)(w, r)
		})
		router := chi.NewRouter()
		router.Mount("/", s.handler)
		for i, language := range []string{"de", "fr", "de"} {
			time.Sleep(time.Nanosecond)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://h.example/p", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Accept-Language", language)
			if err := s.mw.Refresh(router, r); err != nil {
				t.Error(err)
			}
			s.wantBody(t, fmt.Sprintf("page %d %s", i+1, language), "http://h.example/p", "Accept-Language", language)
		}
		s.wantBody(t, "page 2 fr", "http://h.example/p", "Accept-Language", "fr")
		bare := &http.Request{URL: &url.URL{Path: "/p"}, Host: "h.example"}
		err := s.mw.Refresh(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Accept-Language", "fr")
			router.ServeHTTP(w, r)
		}), bare)
		if err != nil {
			t.Error(err)
		}
		s.wantBody(t, "page 4 fr", "http://h.example/p", "Accept-Language", "fr")
	})
}

// A response that may only be served stale is stored as well as a fresh one.
func TestMiddleware_Refresh_NeverFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, numbered("max-age=0, stale-while-revalidate=60"))
		if err := s.mw.Refresh(s.handler, request(http.MethodGet, "http://a/p")); err != nil {
			t.Error(err)
		}
		s.wantBody(t, "1", "http://a/p")
		synctest.Wait()
	})
}

// The values of the request's context are the handler's, whose own requests are no refreshes.
func TestMiddleware_Refresh_RequestOfTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parts := 0
		var s *site
		s = newSite(t, bellwether.HTTPOptions{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/part" {
				parts++
				return
			}
			s.do(request(http.MethodGet, "http://h.example/part").WithContext(r.Context()))
		})
		for range 2 {
			time.Sleep(time.Nanosecond)
			if err := s.mw.Refresh(s.handler, request(http.MethodGet, "http://h.example/p")); err != nil {
				t.Error(err)
			}
		}
		if n := int(s.calls.Load()); n != 3 || parts != 1 {
			t.Errorf("%d runs, %d of the part; want 3, and 1", n, parts)
		}
	})
}

// Each error says why the stored page stays.
func TestMiddleware_Refresh_Errors(t *testing.T) {
	const url = "http://h.example/p"
	for name, c := range map[string]struct {
		o       bellwether.HTTPOptions
		handler http.HandlerFunc                 // of the second run
		request func(t *testing.T) *http.Request // nil: of the page
		through func(h http.Handler) http.Handler
		close   bool
		want    string
		is      error
		gone    bool // the page does not stay
	}{
		"status":  {handler: func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) }, want: "a stored response stays"},
		"panic":   {handler: func(w http.ResponseWriter, r *http.Request) { panic("no page") }, want: "a stored response stays"},
		"private": {handler: func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Cache-Control", "private") }, want: "is not stored"},
		"too large": {o: bellwether.HTTPOptions{MaxBodyBytes: 10}, handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "20")
			w.Write(make([]byte, 20))
		}, want: "is not stored", gone: true},
		"method": {request: func(t *testing.T) *http.Request { return request(http.MethodPost, url) }, want: `the method is "POST"`},
		"context": {request: func(t *testing.T) *http.Request {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			t.Cleanup(cancel)
			return request(http.MethodGet, url).WithContext(ctx)
		}, want: "deadline", is: context.DeadlineExceeded, gone: true},
		"past the cache": {o: bellwether.HTTPOptions{Key: func(r *http.Request) (bellwether.Key, bool) {
			return bellwether.Key{}, r.Header.Get("Secret") == ""
		}}, request: func(t *testing.T) *http.Request { return request(http.MethodGet, url, "Secret", "1") }, want: "detail=key"},
		"another handler": {through: func(http.Handler) http.Handler { return http.NotFoundHandler() }, want: "status 404 without the cache"},
		"a panic before the cache": {through: func(http.Handler) http.Handler {
			return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(driver.ErrNotFound) })
		}, want: "panic", is: driver.ErrNotFound},
		"closed": {close: true, want: "503", gone: true},
	} {
		inBubble(t, name, func(t *testing.T) {
			var s *site
			s = newSite(t, c.o, func(w http.ResponseWriter, r *http.Request) {
				if c.handler != nil && s.calls.Load() > 1 {
					c.handler(w, r)
					return
				}
				slowRefresh(&s)(w, r)
			})
			s.wantBody(t, "page 1 ", url)
			time.Sleep(time.Nanosecond)
			if c.close {
				s.mw.Close()
			}
			r, h := request(http.MethodGet, url), s.handler
			if c.request != nil {
				r = c.request(t)
			}
			if c.through != nil {
				h = c.through(h)
			}
			err := s.mw.Refresh(h, r)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), url) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v, want an error with %q and the URL", err, c.want)
			}
			if !c.gone {
				s.wantBody(t, "page 1 ", url)
			}
			time.Sleep(time.Second) // a run that nobody waits for goes on
		})
	}
}

// In the pause after a failure Refresh does not ask the handler. An error page that clients share is a page to it.
func TestMiddleware_Refresh_InAPause(t *testing.T) {
	for name, c := range map[string]struct {
		fail  http.HandlerFunc
		stale time.Duration
		want  int32 // runs of the handler after the page's
		err   string
	}{
		"panic":               {func(http.ResponseWriter, *http.Request) { panic("no page") }, 0, 1, "no page"},
		"panic, stale page":   {func(http.ResponseWriter, *http.Request) { panic("no page") }, time.Hour, 1, "no page"},
		"500, stale page":     {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, time.Hour, 1, "500"},
		"500 for all clients": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, 0, 2, ""},
	} {
		inBubble(t, name, func(t *testing.T) {
			var s *site
			o := bellwether.HTTPOptions{TTL: time.Second, StaleIfError: c.stale, ErrorTTL: time.Minute}
			s = newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
				if s.calls.Load() > 1 {
					c.fail(w, r)
				}
			})
			s.get("http://a/p")
			time.Sleep(2 * time.Second)
			s.get("http://a/p")
			time.Sleep(time.Second)
			err := s.mw.Refresh(s.handler, request(http.MethodGet, "http://a/p"))
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("Refresh: %v, want %q", err, c.err)
			}
			s.wantCalls(t, 1+c.want)
		})
	}
}

// Refresh returns nil exactly if the run that it has begun is what the next client gets.
func TestMiddleware_Refresh_Outcome(t *testing.T) {
	const url = "http://h.example/p"
	page := func(s *site, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprint(w, "page ", s.calls.Load())
	}
	streamed := func(s *site, w http.ResponseWriter, r *http.Request) { // clients read the page for a second while it is made
		page(s, w, r)
		http.NewResponseController(w).Flush()
		time.Sleep(time.Second)
	}
	for name, c := range map[string]struct {
		o        bellwether.HTTPOptions
		before   func(s *site)
		during   func(s *site) // half a second after the call
		handler  func(s *site, w http.ResponseWriter, r *http.Request)
		through  func(h http.Handler) http.Handler
		fields   []string
		reply    time.Duration // of the store; with a store alone
		replaced bool
	}{
		"streamed": {handler: streamed, replaced: true},
		"varying": {handler: func(s *site, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Vary", "Accept-Language")
			streamed(s, w, r)
		}, replaced: true},
		"the pause after a failure": {
			before: func(s *site) { s.get(url, "Fail", "1", "Cache-Control", "no-cache") },
			handler: func(s *site, w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Fail") != "" {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				page(s, w, r)
			},
		},
		"too large after the header": {
			o: bellwether.HTTPOptions{MaxBodyBytes: 50_000},
			handler: func(s *site, w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				io.WriteString(w, strings.Repeat("x", 100_000))
			},
		},
		"soft invalidation": {handler: streamed, during: func(s *site) {
			s.mw.InvalidateMatching(context.Background(), bellwether.Match{Prefixes: []string{"http://h.example/"}, Soft: true})
		}},
		"invalidation": {handler: streamed, during: func(s *site) { s.mw.Invalidate(context.Background(), url) }},
		"no use without validation": {handler: func(s *site, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "public, max-age=0")
			w.Header().Set("ETag", `"x"`)
		}},
		"chi's Timeout ends during the commit": {
			handler: streamed, reply: 200 * time.Millisecond, replaced: true,
			through: middleware.Timeout(1500 * time.Millisecond),
		},
		"a TimeoutHandler ends during the run": {
			handler: streamed,
			through: func(h http.Handler) http.Handler { return http.TimeoutHandler(h, time.Second/2, "too late") },
		},
		"another cache's member of Cache-Status": {
			o: bellwether.HTTPOptions{Key: func(r *http.Request) (bellwether.Key, bool) {
				return bellwether.Key{}, r.Header.Get("Secret") == ""
			}}, fields: []string{"Secret", "1"},
			handler: func(s *site, w http.ResponseWriter, r *http.Request) {
				w.Header().Add("Cache-Status", "Bellwether;hit;ttl=5")
				page(s, w, r)
			},
		},
		"Cache-Status hidden": {handler: page, replaced: true, through: func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(withoutStatus{w}, r) })
		}},
	} {
		for _, shared := range []bool{false, true} {
			if c.reply > 0 && !shared {
				continue
			}
			inBubble(t, fmt.Sprint(name, ", shared ", shared), func(t *testing.T) {
				o, store := c.o, wiredTo(memstore.New())
				if shared {
					o.Fleet = bellwether.Fleet{Store: store, Locker: locallock.New()}
				}
				var s *site
				s = newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
					if s.calls.Load() > 1 {
						c.handler(s, w, r)
						return
					}
					w.Header().Set("Cache-Control", "max-age=60, stale-while-revalidate=60, stale-if-error=60")
					fmt.Fprint(w, "page 1")
				})
				s.wantBody(t, "page 1", url)
				time.Sleep(time.Nanosecond)
				if c.before != nil {
					c.before(s)
					time.Sleep(time.Nanosecond)
				}
				store.reply.Store(int64(c.reply))
				if c.during != nil {
					time.AfterFunc(time.Second/2, func() { c.during(s) })
				}
				h := s.handler
				if c.through != nil {
					h = c.through(h)
				}
				before := s.calls.Load()
				err := s.mw.Refresh(h, request(http.MethodGet, url, c.fields...))
				runs := s.calls.Load()
				w := s.get(url)
				replaced := runs > before && s.calls.Load() == runs && w.Body.String() == fmt.Sprint("page ", runs)
				if replaced != c.replaced || replaced != (err == nil) {
					t.Errorf("Refresh made %d runs and returned %v; a client gets %.10q (%s)", runs-before, err, w.Body, w.Header().Get("Cache-Status"))
				}
				time.Sleep(time.Minute)
			})
		}
	}
}

// withoutStatus takes Cache-Status from the reply.
type withoutStatus struct{ http.ResponseWriter }

func (w withoutStatus) WriteHeader(status int) {
	w.Header().Del("Cache-Status")
	w.ResponseWriter.WriteHeader(status)
}

// An invalidation elsewhere comes while the page is being stored. Refresh finds out if the invalidation
// precedes its last look at the store, a reply of 200 ms before.
func TestMiddleware_Refresh_InvalidatedElsewhereMeanwhile(t *testing.T) {
	const url = "http://h.example/p"
	for _, near := range []time.Duration{-1, 50 * time.Millisecond} {
		for after := 25 * time.Millisecond; after < 900*time.Millisecond; after += 50 * time.Millisecond {
			inBubble(t, fmt.Sprint("NearTTL ", near, ", after ", after), func(t *testing.T) {
				mem, locks := memstore.New(), locallock.New()
				store := wiredTo(mem)
				var s *site
				s = newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, Locker: locks, NearTTL: near}}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					fmt.Fprint(w, "page ", s.calls.Load())
				})
				other := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: mem, Locker: locks, NearTTL: near}}, func(http.ResponseWriter, *http.Request) {})
				s.wantBody(t, "page 1", url)
				time.Sleep(time.Second)
				store.reply.Store(int64(200 * time.Millisecond))
				var gone atomic.Pointer[time.Time]
				go func() {
					for s.calls.Load() < 2 {
						time.Sleep(3 * time.Millisecond)
					}
					time.Sleep(after)
					if err := other.mw.Invalidate(context.Background(), url); err != nil {
						t.Error(err)
					}
					now := time.Now()
					gone.Store(&now)
				}()
				err := s.mw.Refresh(s.handler, request(http.MethodGet, url))
				if at := gone.Load(); at == nil || !at.Before(time.Now().Add(-200*time.Millisecond)) {
					time.Sleep(3 * time.Second)
					return // not invalidated before Refresh returned
				}
				runs := s.calls.Load()
				w := s.get(url)
				served := s.calls.Load() == runs && w.Body.String() == fmt.Sprint("page ", runs)
				if (err == nil) != served {
					t.Errorf("Refresh returned %v after %d runs; the next client gets %q (%s)", err, runs, w.Body, w.Header().Get("Cache-Status"))
				}
			})
		}
	}
}
