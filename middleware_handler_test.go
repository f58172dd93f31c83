package bellwether_test

import (
	"context"
	"errors"
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
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
	"github.com/go-chi/chi/v5"
)

// This file tests the handler's request, context and panics, which are as without the middleware.

// A handler of a body above MaxBodyBytes ends with an error from Write when all clients have left.
func TestHandler_EndsWithItsLastClient(t *testing.T) {
	for name, write := range map[string]func(r *http.Request, w http.ResponseWriter){
		"waiting": func(r *http.Request, w http.ResponseWriter) {
			w.Write(make([]byte, 1200))
			<-r.Context().Done()
		},
		"writing": func(r *http.Request, w http.ResponseWriter) {
			time.Sleep(2 * time.Second)
			for range 5 { // ignores errors
				w.Write(make([]byte, 600))
			}
		},
	} {
		inBubble(t, name, func(t *testing.T) {
			ended := make(chan any, 1)
			s := newSite(t, bellwether.HTTPOptions{MaxBodyBytes: 1024}, func(w http.ResponseWriter, r *http.Request) {
				defer func() { ended <- recover() }()
				w.Header().Set("Cache-Control", "max-age=60")
				write(r, w)
			})
			ctx, leave := context.WithCancel(t.Context())
			go s.do(request("GET", "http://a/p").WithContext(ctx))
			time.Sleep(time.Second)
			leave()
			select {
			case p := <-ended:
				if p != nil {
					t.Errorf("Write panicked: %v", p)
				}
			case <-time.After(time.Minute):
				t.Error("all clients have left, and the handler goes on")
			}
		})
	}
}

// A handler that exceeds RebuildTimeout is a timeout for all waiting clients in all processes.
func TestHandler_TimeoutInEveryProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New()}, RebuildTimeout: time.Second}
		hang := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		a, b := newSite(t, o, hang), newSite(t, o, hang)
		time.Sleep(time.Second) // in which one process begins the log of invalidations
		var wg sync.WaitGroup
		for _, s := range []*site{a, b} {
			wg.Go(func() {
				if w := s.get("http://a/p"); w.Code != http.StatusGatewayTimeout {
					t.Errorf("status %d, body %q", w.Code, w.Body)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		a.wantCalls(t, 1)
		b.wantCalls(t, 0)
	})
}

// A second run gets a request without the changes of the first run's routers and middlewares.
func TestHandler_SecondRun(t *testing.T) {
	unselected := func(r *http.Request, _ int32, _ *bellwether.Middleware) int {
		if r.Header.Get("If-None-Match") != "" {
			return http.StatusNotModified
		}
		return http.StatusOK
	}
	for name, again := range map[string]func(r *http.Request, run int32, mw *bellwether.Middleware) (status int){
		"invalidated": func(r *http.Request, run int32, mw *bellwether.Middleware) int {
			if run == 1 {
				mw.Invalidate(context.Background(), "http://a/api/x/1")
			}
			return http.StatusOK
		},
		"304 about something else":           unselected,
		"no-cache, 304 about something else": unselected,
	} {
		inBubble(t, name, func(t *testing.T) {
			mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
			defer mw.Close()
			var runs atomic.Int32
			router := chi.NewRouter()
			router.Use(mw.Handler)
			router.Route("/api", func(router chi.Router) {
				router.Use(func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						r.URL.Path += "/sub"
						r.Header.Add("X-Seen", "1")
						next.ServeHTTP(w, r)
					})
				})
				router.Get("/x/{id}", func(w http.ResponseWriter, r *http.Request) {
					run := runs.Add(1)
					w.Header().Set("Cache-Control", "max-age=1")
					if strings.HasPrefix(name, "no-cache") {
						w.Header().Set("Cache-Control", "no-cache")
					}
					w.Header().Set("ETag", fmt.Sprintf(`"%d"`, run))
					w.WriteHeader(again(r, run, mw))
					http.NewResponseController(w).Flush()
					fmt.Fprint(w, chi.URLParam(r, "id"), r.URL.Path, r.Header["X-Seen"])
				})
			})
			router.Get("/x/{id}", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "another page") })
			for range 3 {
				w := httptest.NewRecorder()
				router.ServeHTTP(w, request("GET", "http://a/api/x/1"))
				if w.Body.String() != "1/api/x/1/sub[1]" {
					t.Errorf("got %q", w.Body)
				}
				time.Sleep(2 * time.Second)
			}
			if runs.Load() < 4 {
				t.Errorf("%d runs: there was no second one", runs.Load())
			}
		})
	}
}

// A panic with a context's or the cache's error is a failed handler, and no absent page: clients get 502.
func TestHandler_PanicWithTellingErrors(t *testing.T) {
	for _, says := range []error{context.DeadlineExceeded, context.Canceled, bellwether.ErrOverloaded, bellwether.ErrWaitTimeout, bellwether.ErrClosed, bellwether.ErrNotFound} {
		inBubble(t, says.Error(), func(t *testing.T) {
			o := bellwether.HTTPOptions{TTL: time.Minute, ErrorTTL: 5 * time.Second, Fleet: bellwether.Fleet{Store: memstore.New()}}
			s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				panic(fmt.Errorf("db: %w", says))
			})
			got := s.burst(3, same("http://a/p"))
			for outcome, n := range got {
				if !strings.HasPrefix(outcome, "502 ") && (n != 1 || !strings.HasPrefix(outcome, "-1 ")) {
					t.Errorf("%d get %q; want 502, and the first the panic", n, outcome)
				}
			}
			if w := s.get("http://a/p"); w.Code != http.StatusBadGateway {
				t.Errorf("the next gets %d, want 502", w.Code)
			}
			s.wantCalls(t, 1)
		})
	}
}

// Observers get the stack of a handler's panic, also after the header of a private response.
func TestHandler_PanicIsTold(t *testing.T) {
	for _, control := range []string{"max-age=60", "private"} {
		inBubble(t, control, func(t *testing.T) {
			told := make(chan error, 9)
			o := bellwether.HTTPOptions{
				Observers: []observe.Observer{{
					Rebuild: func(ctx context.Context, _ string) (context.Context, func(observe.Rebuild)) {
						return ctx, func(r observe.Rebuild) { told <- r.Err }
					},
					Error: func(_ string, err error) { told <- err },
				}},
			}
			s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", control)
				io.WriteString(w, "part of a page")
				time.Sleep(time.Second)
				panic("boom")
			})
			if w := s.get("http://a/p"); w.Code != -1 {
				t.Errorf("the client got status %d, want a broken response", w.Code)
			}
			synctest.Wait()
			close(told)
			for err := range told {
				if p, ok := errors.AsType[*bellwether.PanicError](err); ok && p.Value == "boom" && len(p.Stack) > 0 {
					return
				}
			}
			t.Error("no observer got the PanicError")
		})
	}
}

func TestHandler_HoleInBody(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-Length", "8")
		io.WriteString(w, "head ")
		if _, err := io.WriteString(w, "too long"); !errors.Is(err, http.ErrContentLength) {
			t.Errorf("a Write beyond Content-Length: %v, want ErrContentLength", err)
		}
		if _, err := io.WriteString(w, "end"); !errors.Is(err, http.ErrContentLength) {
			t.Errorf("a later Write: %v, want ErrContentLength", err)
		}
	})
	for _, want := range []int{-1, http.StatusBadGateway} { // broken off; then the remembered failure
		if w := s.get("http://a/p"); w.Code != want {
			t.Errorf("%d %q, want %d", w.Code, w.Body, want)
		}
	}
}

func TestHandler_PrivateEndsWithItsOnlyClient(t *testing.T) {
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
		time.Sleep(time.Minute) // longer than RebuildTimeout: a private response has no time limit
		select {
		case err := <-ended:
			t.Fatalf("handler ended before its client left: %v", err)
		default:
		}
		leave()
		<-ended
	})
}

// A handler that returns silently when its rebuild is cancelled makes no empty 200.
func TestHandler_CancelledIsNoEmptyResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		s := newSite(t, bellwether.HTTPOptions{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
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

// The handler reads its own parameters after its client, and chi's pooled routing context, have gone.
func TestHandler_ChiParametersWhenDetached(t *testing.T) {
	type key struct{} // of the context value with which a handler has its client leave
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{Limits: bellwether.Limits{MaxRebuilds: 10_000}})
	t.Cleanup(func() { mw.Close() })
	r := chi.NewRouter()
	r.Use(mw.Handler)
	r.Route("/users/{user}", func(r chi.Router) {
		r.Get("/posts/{post}", func(w http.ResponseWriter, r *http.Request) {
			if leave, impatient := r.Context().Value(key{}).(func()); impatient {
				leave()
			}
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
			for i := range 250 {
				ctx, cancel := context.WithCancel(t.Context())
				left := make(chan struct{})
				if i%2 == 0 {
					ctx = context.WithValue(ctx, key{}, func() { cancel(); <-left })
				}
				path := fmt.Sprintf("/users/u%d/posts/p%d", g, i)
				w := httptest.NewRecorder()
				func() {
					defer close(left)
					defer func() {
						if p := recover(); p != nil && i%2 == 1 {
							t.Errorf("%s: %v", path, p) // the others have left
						}
					}()
					r.ServeHTTP(w, httptest.NewRequest("GET", "http://a"+path, nil).WithContext(ctx))
				}()
				if i%2 == 1 && w.Body.String() != path || i%2 == 0 && ctx.Err() == nil {
					t.Errorf("%s got %q; the client's context: %v", path, w.Body, ctx.Err())
				}
				cancel()
			}
		})
	}
	wg.Wait()
}

// The handler's response is for all clients, so it does not see by which directives one client accepts an old response
// or an error. The handler may ask a cache.
func TestHandler_Directives(t *testing.T) {
	for _, tt := range []struct {
		sent, seen string
		ignore     bool
	}{
		{sent: "max-stale", seen: ""},
		{sent: "max-stale=3600, no-cache", seen: "no-cache"},
		{sent: "stale-if-error=60,max-age=5, no-transform", seen: "max-age=5, no-transform"},
		{sent: "min-fresh=1;max-stale=9, x", seen: ""},
		{sent: "no-cache, max-age=5", ignore: true},
		{sent: "only-if-cached", ignore: true},
	} {
		inBubble(t, tt.sent, func(t *testing.T) {
			var seen []string
			s := newSite(t, bellwether.HTTPOptions{IgnoreRequestDirectives: tt.ignore}, func(w http.ResponseWriter, r *http.Request) {
				seen = append(seen, r.Header.Get("Cache-Control")+r.Header.Get("Pragma"))
				page(0, "page")(w, r)
			})
			s.get("http://a/p", "Cache-Control", tt.sent)
			if tt.ignore {
				s.get("http://a/q", "Pragma", "no-cache")
			}
			for _, got := range seen {
				if got != tt.seen {
					t.Errorf("the handler saw %q, want %q", got, tt.seen)
				}
			}
			if len(seen) == 0 {
				t.Error("the handler did not run")
			}
		})
	}
}

// One client's max-stale gives no other client an old page of a cache behind this one.
func TestHandler_NestedCaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newSite(t, bellwether.HTTPOptions{}, page(0, "page"))
		outer := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			inner.handler.ServeHTTP(w, r)
		})
		inner.get("http://a/p")
		time.Sleep(20 * time.Minute)
		go outer.get("http://a/p", "Cache-Control", "max-stale=3600")
		synctest.Wait()
		if w := outer.get("http://a/p"); len(w.Header().Get("Age")) > 1 {
			t.Errorf("a plain client got a page of Age %s", w.Header().Get("Age"))
		}
		inner.wantCalls(t, 2)
	})
}

// A client leaves before the header of its own page, and the handler ends when it writes the header.
func TestHandler_ClientLeavesBeforeItsOwnPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := time.Time{}
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "private")
			w.WriteHeader(http.StatusOK)
			select {
			case <-time.After(time.Hour):
			case <-r.Context().Done():
			}
			ended = time.Now()
		})
		began := time.Now()
		ctx, leave := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer leave()
		s.do(request("GET", "http://a/p").WithContext(ctx))
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if took := ended.Sub(began); took != time.Second {
			t.Errorf("the handler ended after %v", took)
		}
	})
}

// The first client of an error that several clients read leaves, and the others get the whole body. Only the handler
// of a response for one client ends with its client.
func TestHandler_FirstClientLeavesASharedError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.WriteHeader(http.StatusInternalServerError)
			io.WriteString(w, "a")
			http.NewResponseController(w).Flush()
			select {
			case <-time.After(time.Second):
				io.WriteString(w, "b")
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			}
		})
		ctx, leave := context.WithCancel(t.Context())
		go s.do(request("GET", "http://a/p").WithContext(ctx))
		synctest.Wait()
		time.AfterFunc(1500*time.Millisecond, leave)
		if w := s.get("http://a/p"); w.Code != http.StatusInternalServerError || w.Body.String() != "ab" {
			t.Errorf("the other client: %d %q, want the whole error", w.Code, w.Body)
		}
		s.wantCalls(t, 1)
	})
}

// The first request of a page behind a chi router may be a HEAD: the handler's GET is a GET for its routers, too.
func TestHandler_ChiRoutesAHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mw := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Minute})
		defer mw.Close()
		router := chi.NewRouter()
		router.Route("/api", func(router chi.Router) {
			router.Use(mw.Handler)
			router.Get("/p", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "page") })
		})
		for _, method := range []string{"HEAD", "GET"} {
			w := httptest.NewRecorder()
			router.ServeHTTP(w, request(method, "http://a/api/p"))
			synctest.Wait()
			if w.Code != 200 || w.Header().Get("Content-Length") == "0" {
				t.Errorf("%s: %d %q %v", method, w.Code, w.Body, w.Header())
			}
		}
	})
}

// A middleware within the cache may give a GET another method, by which chi's router is to choose the route.
func TestHandler_ChiRoutesByAnInnerMethod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
		defer mw.Close()
		router := chi.NewRouter()
		router.Use(mw.Handler, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if method := r.URL.Query().Get("_method"); method != "" {
					r.Method = method
				}
				next.ServeHTTP(w, r)
			})
		})
		for _, method := range []string{"GET", "DELETE"} {
			router.MethodFunc(method, "/p", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, method) })
		}
		for url, want := range map[string]string{"http://a/p": "GET", "http://a/p?_method=DELETE": "DELETE"} {
			w := httptest.NewRecorder()
			if router.ServeHTTP(w, request("GET", url)); w.Body.String() != want {
				t.Errorf("%s: %d %q, want the page of %s", url, w.Code, w.Body, want)
			}
		}
	})
}

// A handler's 101 goes to its client as it is: a condition applies to a success alone (RFC 9110 section 13.2.1).
func TestHandler_SwitchesUnasked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusSwitchingProtocols) })
		if w := s.get("http://a/p", "If-None-Match", "*"); w.Code != 101 {
			t.Errorf("%d %q, want the handler's 101", w.Code, w.Body)
		}
	})
}

// A handler may answer 304 to a request without conditions.
func TestHandler_NotModifiedUnasked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNotModified) })
		for range 2 {
			if w := s.get("http://a/p"); w.Code != 304 {
				t.Errorf("%d %q, want the handler's 304", w.Code, w.Body)
			}
			synctest.Wait()
		}
		s.wantCalls(t, 2)
	})
}

// A client's own deadline in a field ends no run that other clients wait for.
func TestHandler_DeadlineOfAClient(t *testing.T) {
	for _, field := range []string{"Connect-Timeout-Ms", "Grpc-Timeout", "Grpc_timeout", "X-Envoy-Upstream-Rq-Timeout-Ms"} {
		inBubble(t, field, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{TTL: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
				ctx := r.Context()
				if r.Header[field] != nil { // as Connect's handlers do
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, time.Second)
					defer cancel()
				}
				select {
				case <-ctx.Done():
					http.Error(w, "too late", http.StatusGatewayTimeout)
				case <-time.After(2 * time.Second):
					fmt.Fprint(w, "page")
				}
			})
			go s.get("http://a/p", field, "1000")
			synctest.Wait()
			s.wantBody(t, "page", "http://a/p")
			if w := s.do(request("POST", "http://a/p", field, "1000")); w.Code != http.StatusGatewayTimeout {
				t.Errorf("a POST: %d, want the client's own deadline", w.Code)
			}
		})
	}
}
