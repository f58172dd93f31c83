package bellwether_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests loads whose handlers run on after their load or their client has gone.

// A private response that streams frees its slot, even if remembering it ends its goroutine.
func TestExchange_GoexitBesideAPrivateStream(t *testing.T) {
	for _, whose := range []string{"adapter", "OnError"} {
		inBubble(t, whose, func(t *testing.T) {
			store := wiredTo(memstore.New())
			var exit atomic.Bool
			o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}, Limits: bellwether.Limits{MaxRebuilds: 1}, RebuildTimeout: 10 * time.Second, MaxWait: 15 * time.Second}
			if whose == "OnError" {
				o.OnError = func(string, error) {
					if exit.Load() {
						runtime.Goexit()
					}
				}
			}
			s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/stream" {
					w.Header().Set("Cache-Control", "max-age=60")
					return
				}
				exit.Store(true)
				store.set(on(func(context.Context, string) error {
					if whose == "adapter" {
						runtime.Goexit()
					}
					return errors.New("broken")
				}, "claim", "commit"))
				w.Header().Set("Cache-Control", "private")
				w.Header().Set("Vary", "Accept-Language")
				w.WriteHeader(200)
				w.(http.Flusher).Flush()
				time.Sleep(time.Second)
				exit.Store(false)
				store.set(nil)
				for range 60 {
					io.WriteString(w, "tick ")
					w.(http.Flusher).Flush()
					time.Sleep(time.Second)
				}
			})
			streamed := make(chan struct{})
			go func() {
				defer close(streamed)
				s.get("http://a/stream")
			}()
			time.Sleep(2 * time.Second)
			start := time.Now()
			if w := s.get("http://a/other"); w.Code != 200 || time.Since(start) > time.Second {
				t.Errorf("another page: %d after %v", w.Code, time.Since(start))
			}
			<-streamed
		})
	}
}

// A handler that does not heed the end of its load keeps its slot while it runs.
func TestExchange_DeafHandlerWritesOn(t *testing.T) {
	for _, c := range []struct {
		first string // written before the end
		more  int    // bytes written after the end; below or above MaxBodyBytes
	}{{"x", 10}, {"x", 1000}, {"", 10}, {"", 1000}} {
		inBubble(t, fmt.Sprintf("%q, %d", c.first, c.more), func(t *testing.T) {
			var g gauge
			s := newSite(t, bellwether.HTTPOptions{MaxBodyBytes: 100, Limits: bellwether.Limits{MaxRebuilds: 1}, RebuildTimeout: time.Second, MaxWait: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
				defer g.enter()()
				w.Header().Set("Cache-Control", "max-age=60")
				if r.URL.Path == "/deaf" {
					io.WriteString(w, c.first)
					time.Sleep(2 * time.Second)
					w.Write(make([]byte, c.more))
					time.Sleep(20 * time.Second)
				}
			})
			go s.get("http://a/deaf")
			time.Sleep(5 * time.Second)
			if w := s.get("http://a/other"); w.Code != 200 {
				t.Errorf("another page: %d", w.Code)
			}
			if n := g.most.Load(); n > 1 {
				t.Errorf("%d handlers at a time, MaxRebuilds is 1", n)
			}
		})
	}
}

// If a handler writes its header after its load has ended, the client gets the next run's response.
func TestExchange_GivenUpRunIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		locker := wiredLocks(locallock.New())
		locker.losing = losesFirst("a/p")
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Locker: polling(locker), Store: memstore.New()}},
			func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				if runs.Add(1) == 1 {
					time.Sleep(4 * time.Second)
					io.WriteString(w, "of the first run")
					return
				}
				io.WriteString(w, "of the second ")
				time.Sleep(5 * time.Second)
				io.WriteString(w, "run")
			})
		if w := s.get("http://a/p"); w.Code != http.StatusOK || w.Body.String() != "of the second run" {
			t.Errorf("status %d, body %q", w.Code, w.Body)
		}
		s.wantCalls(t, 2)
	})
}

// A response that breaks off after an invalidation has no second run of its own, and fails no later client.
func TestExchange_BreaksOffInvalidated(t *testing.T) {
	for name, o := range map[string]bellwether.Options{
		"with a locker":    {Fleet: bellwether.Fleet{Locker: locallock.New(), Store: memstore.New()}},
		"without a locker": {Fleet: bellwether.Fleet{Store: memstore.New()}},
	} {
		inBubble(t, name, func(t *testing.T) {
			var runs atomic.Int32
			s := newSite(t, pageOptions(o), func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				if runs.Add(1) > 1 {
					fmt.Fprint(w, "page")
					return
				}
				io.WriteString(w, "part of a page")
				time.Sleep(2 * time.Second)
				panic(http.ErrAbortHandler)
			})
			time.AfterFunc(time.Second, func() {
				invalidate(t, s.mw, "http://a/p")
			})
			if w := s.get("http://a/p"); w.Code != -1 {
				t.Errorf("the client of the broken response got status %d", w.Code)
			}
			time.Sleep(time.Second)
			s.wantCalls(t, 1)
			s.wantBody(t, "page", "http://a/p") // the next client
		})
	}
}

func TestExchange_HandlerExceedsRebuildTimeout(t *testing.T) {
	for _, who := range []string{"client stays", "client leaves", "refresh"} {
		for _, how := range []string{"before the header", "after the header"} {
			inBubble(t, who+", "+how, func(t *testing.T) {
				causes := make(chan error, 1)
				var runs atomic.Int32
				s := newSite(t, bellwether.HTTPOptions{RebuildTimeout: 3 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=1, stale-while-revalidate=600")
					if who == "refresh" && runs.Add(1) == 1 {
						return
					}
					if how == "after the header" {
						io.WriteString(w, "start")
					}
					<-r.Context().Done()
					causes <- context.Cause(r.Context())
				})
				if who == "refresh" {
					s.get("http://a/")
					time.Sleep(2 * time.Second)
				}
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				go s.do(request("GET", "http://a/").WithContext(ctx))
				time.Sleep(time.Second)
				if who == "client leaves" {
					leave()
				}
				time.Sleep(time.Minute)
				if cause := <-causes; !errors.Is(cause, bellwether.ErrRebuildTimeout) {
					t.Errorf("cause %v, want ErrRebuildTimeout", cause)
				}
			})
		}
	}
}

// A handler that heeds no end holds no reader of its body beyond RebuildTimeout.
func TestExchange_DeafHandlersReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{RebuildTimeout: 3 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, "start")
			time.Sleep(time.Hour)
		})
		wantBurst(t, s.burst(10, same("http://a/p")), 10, "-1 start 3s")
		time.Sleep(time.Hour)
	})
}

// An abandoned run writes a body above MaxBodyBytes while its successor waits for the herd's last caller.
func TestExchange_DeafHandlerBesideItsSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type hold struct{}
		let := make(chan struct{})
		big := bytes.Repeat([]byte("x"), 200<<10)
		var run atomic.Int32
		deaf := make(chan struct{})
		s := newSite(t, bellwether.HTTPOptions{
			MaxBodyBytes: 100 << 10,
			Observers: []observe.Observer{{
				Rebuild: func(ctx context.Context, _ string) (context.Context, func(observe.Rebuild)) { return ctx, nil },
				Caller: func(ctx context.Context) any {
					if ctx.Value(hold{}) != nil {
						<-let
					}
					return nil
				},
			}},
		}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Type", "text/plain")
			if run.Add(1) == 1 {
				time.Sleep(2 * time.Second) // does not heed its end
				w.WriteHeader(http.StatusOK)
				<-deaf
			}
			w.Write(big)
		})
		began := time.Now()
		var wg sync.WaitGroup
		get := func(ctx context.Context) {
			wg.Go(func() {
				w := s.do(request(http.MethodGet, "http://a/p").WithContext(ctx))
				if w.Code != http.StatusOK || w.Body.Len() != len(big) || time.Since(began) > 10*time.Second {
					t.Errorf("%d with %d bytes after %v, want 200 with %d", w.Code, w.Body.Len(), time.Since(began), len(big))
				}
			})
		}
		get(t.Context())
		synctest.Wait()
		get(context.WithValue(t.Context(), hold{}, true)) // hangs in the observer's Caller
		time.Sleep(time.Second)
		s.mw.Invalidate(t.Context(), "http://a/p")
		time.Sleep(2 * time.Second) // the second run waits for the caller
		close(deaf)                 // the first run goes on
		synctest.Wait()
		close(let)
		wg.Wait()
	})
}

// A page that requests a part from its own cache lends its slot to the part.
func TestExchange_HandlerThatAsksForAnotherPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *site
		s = newSite(t, bellwether.HTTPOptions{Limits: bellwether.Limits{MaxRebuilds: 1}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			if r.URL.Path == "/outer" {
				part := httptest.NewRecorder()
				s.handler.ServeHTTP(part, httptest.NewRequest("GET", "http://a/part", nil).WithContext(r.Context()))
				fmt.Fprintf(w, "%d ", part.Code)
			}
			fmt.Fprint(w, strings.TrimPrefix(r.URL.Path, "/"))
		})
		began := time.Now()
		w := s.get("http://a/outer")
		if took := time.Since(began); w.Body.String() != "200 outer" || took > time.Second {
			t.Errorf("%d %q after %v", w.Code, w.Body, took)
		}
	})
}

type askingContext struct {
	context.Context
	ask func()
}

func (c askingContext) Value(key any) any { c.ask(); return c.Context.Value(key) }

// The cache calls a context's methods without holding a lock.
func TestExchange_ContextThatAsksTheCache(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprint(w, "page")
	})
	locked := time.AfterFunc(10*time.Second, func() { panic("the cache waits for itself") })
	defer locked.Stop()
	r := request("GET", "http://a/p")
	s.do(r.WithContext(askingContext{r.Context(), func() { s.mw.Stats() }}))
	s.wantCalls(t, 1)
}
