package bellwether_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
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

// This file tests the herds that break other caches. Times are exact, in bubbles.

func page(pause time.Duration, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(pause)
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, body)
	}
}

func TestHerd_StoreErrorKeepsCollapsing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		store.set(refuse)
		s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, Locker: locallock.New()}}, page(time.Second, "page"))
		for o, n := range s.burst(100, same("http://a/p")) {
			if n != 100 || !strings.HasPrefix(o, "200 page 1") {
				t.Errorf("%d times %q, want one load for all although the store is down", n, o)
			}
		}
		s.wantCalls(t, 1)
		wantBurst(t, s.burst(100, same("http://a/p")), 100, "200 page 0s")
		s.wantCalls(t, 0)
	})
}

// Clients get the stale page at once, and one refresh reaches the other process through the store.
func TestHerd_StaleWhileRevalidateInAFleet(t *testing.T) {
	for n, o := range map[int]bellwether.Options{1: {}, 2: {Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New()}}} {
		synctest.Test(t, func(t *testing.T) {
			if n > 1 {
				o.Fleet.Store, o.Fleet.Locker = memstore.New(), locallock.New()
			}
			var calls atomic.Int32
			var fleet []*site
			for range n {
				fleet = append(fleet, newSite(t, pageOptions(o), func(w http.ResponseWriter, r *http.Request) {
					v := calls.Add(1)
					time.Sleep(500 * time.Millisecond)
					w.Header().Set("Cache-Control", "max-age=10, stale-while-revalidate=60")
					fmt.Fprint(w, "v", v)
				}))
			}
			for _, s := range fleet {
				s.get("http://a/p")
			}
			wants := func(outcome string) {
				var wg sync.WaitGroup
				for _, s := range fleet {
					wg.Go(func() { wantBurst(t, s.burst(50, same("http://a/p")), 50, outcome) })
				}
				wg.Wait()
			}
			time.Sleep(11 * time.Second)
			wants("200 v1 0s")
			time.Sleep(2 * time.Second)
			wants("200 v2 0s")
			if calls.Load() != 2 {
				t.Errorf("%d handler calls in the fleet, want 2", calls.Load())
			}
		})
	}
}

func TestHerd_LateJoinersOfAStreamedBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			for i := range 10 {
				fmt.Fprint(w, i)
				if i < 9 {
					time.Sleep(200 * time.Millisecond)
				}
			}
		})
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				joined := time.Duration(i) * 36 * time.Millisecond
				time.Sleep(joined)
				w := newClient()
				s.handler.ServeHTTP(w, request("GET", "http://a/p"))
				if w.Body.String() != "0123456789" || w.first != 0 || w.last != 1800*time.Millisecond-joined {
					t.Errorf("client %d: %q, first byte after %v, last after %v, want 0s and %v", i, w.Body, w.first, w.last, 1800*time.Millisecond-joined)
				}
			})
		}
		wg.Wait()
		s.wantCalls(t, 1)
	})
}

// One 503 answers all waiting clients with the origin's response, even if it is not remembered.
func TestHerd_ServerErrorWithoutAStaleCopy(t *testing.T) {
	for _, remembered := range []time.Duration{0, -1} { // 0: for a second
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{ErrorTTL: remembered}, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				w.Header().Set("Retry-After", "7")
				http.Error(w, "down", http.StatusServiceUnavailable)
			})
			var wg sync.WaitGroup
			var own atomic.Int32
			for range 50 {
				wg.Go(func() {
					w := s.get("http://a/p")
					status := w.Header().Get("Cache-Status")
					if !strings.Contains(status, "collapsed") {
						own.Add(1)
					}
					if w.Code != 503 || w.Body.String() != "down\n" || w.Header().Get("Retry-After") != "7" || !strings.Contains(status, "fwd-status=503") {
						t.Errorf("%d %q %v, want the origin's own answer", w.Code, w.Body, w.Header())
					}
				})
			}
			wg.Wait()
			if own.Load() != 1 {
				t.Errorf("%d clients were told that the call was theirs, want 1", own.Load())
			}
			s.wantCalls(t, 1)
			time.Sleep(time.Second + 1)
			s.get("http://a/p")
			s.wantCalls(t, 1)
		})
	}
}

type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func overPipes(t *testing.T, h http.Handler) *pipes {
	o := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	go server.Serve(o)
	t.Cleanup(func() { server.Close() })
	return o
}

func (o *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-o.conns:
		return c, nil
	case <-o.closed:
		return nil, net.ErrClosed
	}
}

func (o *pipes) Close() error { close(o.closed); return nil }

func (o *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

func (o *pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case o.conns <- far:
		return near, nil
	case <-o.closed:
		return nil, net.ErrClosed
	}
}

// A first client that reads nothing delays neither other clients nor the handler within MaxBodyBytes.
func TestHerd_FirstClientReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := bytes.Repeat([]byte("0123456789abcdef"), 2<<20/16)
		s := newSite(t, bellwether.HTTPOptions{}, page(300*time.Millisecond, string(body)))
		stuck := heldClient()
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			s.handler.ServeHTTP(stuck, request("GET", "http://a/p"))
		}()
		synctest.Wait()
		start := time.Now()
		var wg sync.WaitGroup
		for range 15 {
			wg.Go(func() {
				if w := s.get("http://a/p"); !bytes.Equal(w.Body.Bytes(), body) || time.Since(start) != 300*time.Millisecond {
					t.Errorf("%d bytes after %v, want all after 300ms", w.Body.Len(), time.Since(start))
				}
			})
		}
		wg.Wait()
		s.wantCalls(t, 1)
		close(stuck.free)
		<-gone
		if !bytes.Equal(stuck.Body.Bytes(), body) {
			t.Errorf("the slow client has %d bytes", stuck.Body.Len())
		}
	})
}

func TestHerd_FirstClientOfAPrivatePageLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "private, max-age=60")
			io.WriteString(w, r.Header.Get("Cookie"))
		})
		ctx, leave := context.WithCancel(t.Context())
		go s.do(request("GET", "http://a/p", "Cookie", "first").WithContext(ctx))
		synctest.Wait()
		time.AfterFunc(100*time.Millisecond, leave)
		got := s.burst(20, func(i int) *http.Request { return request("GET", "http://a/p", "Cookie", fmt.Sprint("user", i)) })
		for i := range 20 {
			if got[fmt.Sprintf("200 user%d 2s", i)] != 1 {
				t.Errorf("user %d did not get its own page: %v", i, got)
			}
		}
		s.wantCalls(t, 21)
	})
}

// A client that reads nothing holds a body for a minute. Above MaxBodyBytes it holds other clients for 5 s.
func TestHerd_StalledClient(t *testing.T) {
	for _, c := range []struct {
		name                string
		limit               int64
		patience, othersMay time.Duration
	}{
		{"within the limit", 8 << 20, time.Minute, 0},
		{"over the limit", 64 << 10, 5 * time.Second, 5 * time.Second},
	} {
		for _, deadlines := range []bool{true, false} {
			inBubble(t, fmt.Sprint(c.name, ", deadlines ", deadlines), func(t *testing.T) {
				body := bytes.Repeat([]byte("0123456789abcdef"), 1<<20/16)
				s := newSite(t, bellwether.HTTPOptions{MaxBodyBytes: c.limit}, page(time.Second, string(body)))
				stuck := heldClient()
				if !deadlines {
					stuck.deadline = nil
				}
				start := time.Now()
				gone := make(chan any)
				go func() {
					defer func() { gone <- recover() }()
					s.handler.ServeHTTP(stuck, request("GET", "http://a/p"))
				}()
				if !deadlines {
					// Without write deadlines, only this client is stuck.
					time.AfterFunc(time.Hour, func() { close(stuck.free) })
				}
				synctest.Wait()
				var wg sync.WaitGroup
				for range 10 {
					wg.Go(func() {
						w := s.get("http://a/p")
						if d := time.Since(start); !bytes.Equal(w.Body.Bytes(), body) || d != time.Second+c.othersMay {
							t.Errorf("%d bytes after %v, want all after %v", w.Body.Len(), d, time.Second+c.othersMay)
						}
					})
				}
				wg.Wait()
				if p := <-gone; p != http.ErrAbortHandler {
					t.Errorf("the stalled client's reply ended with %v, want http.ErrAbortHandler", p)
				}
				if d := time.Since(start); deadlines && d != time.Second+c.patience {
					t.Errorf("the stalled client was given up on after %v", d)
				}
				s.wantCalls(t, 1)
			})
		}
	}
}

func TestHerd_SlowClientIsNotStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := bytes.Repeat([]byte("0123456789abcdef"), 1<<20/16)
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=3600")
			w.Write(body)
		})
		for range 2 { // the miss, then the hit
			w := slowClient(2000)
			s.handler.ServeHTTP(w, request("GET", "http://a/p"))
			if !bytes.Equal(w.Body.Bytes(), body) {
				t.Errorf("the slow client has %d bytes", w.Body.Len())
			}
			synctest.Wait()
		}
		s.wantCalls(t, 1)
	})
}

// One call answers a herd for a body above MaxBodyBytes while clients leave. Later clients bypass the cache.
func TestHerd_OverLimitBody(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 256<<10/16)
	for _, piece := range []int{8 << 10, len(body)} { // in one piece the handler is faster than the herd wakes up
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{MaxBodyBytes: 16 << 10}, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				w.Header().Set("Cache-Control", "max-age=60")
				for part := range slices.Chunk(body, piece) {
					w.Write(part)
					if piece < len(body) {
						time.Sleep(time.Millisecond)
					}
				}
			})
			start := time.Now()
			var wg sync.WaitGroup
			for i := range 100 {
				wg.Go(func() {
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					if i%10 == 0 {
						time.AfterFunc(time.Second, leave) // just when the response comes
					}
					if w := s.do(request("GET", "http://a/p").WithContext(ctx)); i%10 != 0 && (w.Code != 200 || !bytes.Equal(w.Body.Bytes(), body)) {
						t.Errorf("%d, %d bytes, want the whole body", w.Code, w.Body.Len())
					}
				})
			}
			wg.Wait()
			if took := time.Since(start); took > 1100*time.Millisecond {
				t.Errorf("the herd took %v: the handler waited on when all clients had their places", took)
			}
			s.wantCalls(t, 1)
			w := s.get("http://a/p")
			if status := w.Header().Get("Cache-Status"); w.Body.Len() != len(body) || !strings.Contains(status, "too large") {
				t.Errorf("later: %d bytes, %s", w.Body.Len(), status)
			}
			s.wantCalls(t, 1)
		})
	}
}

func TestHerd_BrokenRebuildKeepsTheStaleCopy(t *testing.T) {
	for name, breaking := range map[string]http.HandlerFunc{
		"abort": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=10, stale-if-error=600")
			io.WriteString(w, "half")
			panic(http.ErrAbortHandler)
		},
		"short": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=10, stale-if-error=600")
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "half")
		},
		"panic": func(w http.ResponseWriter, r *http.Request) { panic("boom") },
	} {
		inBubble(t, name, func(t *testing.T) {
			var broken atomic.Bool
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				if broken.Load() {
					time.Sleep(time.Second)
					breaking(w, r)
					return
				}
				w.Header().Set("Cache-Control", "max-age=10, stale-if-error=600")
				io.WriteString(w, "whole")
			})
			s.get("http://a/p")
			broken.Store(true)
			time.Sleep(11 * time.Second)
			for o, n := range s.burst(50, same("http://a/p")) {
				if o != "200 whole 1s" && !strings.HasPrefix(o, "-1 ") {
					t.Errorf("%d times %q, want the stale copy or a body that is seen to break", n, o)
				}
			}
			s.wantCalls(t, 2)
			wantBurst(t, s.burst(50, same("http://a/p")), 50, "200 whole 0s")
			s.wantCalls(t, 0)
		})
	}
}

// A client with Authorization or directives joins a response if it satisfies the request.
func TestHerd_JoinersWithDirectives(t *testing.T) {
	for _, tt := range []struct {
		fields []string
		joins  bool
	}{
		{nil, true},
		{[]string{"Authorization", "Bearer x"}, true},
		{[]string{"Cache-Control", "max-age=3000"}, true},
		{[]string{"Cache-Control", "no-cache"}, false},
		{[]string{"Cache-Control", "min-fresh=3600"}, false},
	} {
		for _, vary := range []string{"", "Accept"} {
			for _, maxBody := range []int64{0, 1000} {
				inBubbleBeside(t, fmt.Sprint(tt.fields, vary, maxBody), func(t *testing.T) {
					s := newSite(t, bellwether.HTTPOptions{MaxBodyBytes: maxBody}, func(w http.ResponseWriter, r *http.Request) {
						w.Header().Set("Cache-Control", "public, max-age=3600")
						w.Header().Set("Vary", vary)
						io.WriteString(w, "first part of the page")
						for range 10 {
							time.Sleep(time.Second)
							io.WriteString(w, strings.Repeat("x", 150))
						}
					})
					s.get("http://a/p", tt.fields...) // with Authorization: the page is known to be for all
					time.Sleep(61 * time.Minute)      // the process is older than the response will ever be
					s.calls.Store(0)
					go s.get("http://a/p", tt.fields...)
					time.Sleep(time.Second)
					w := newClient()
					s.handler.ServeHTTP(w, request("GET", "http://a/p", tt.fields...))
					if !tt.joins {
						s.wantCalls(t, 2)
						return
					}
					s.wantCalls(t, 1)
					if waited := w.header; waited > time.Second {
						t.Errorf("first byte after %v; %v", waited, w.Header()["Cache-Status"])
					}
				})
			}
		}
	}
}

// A client that declines the URL's first variant does not join it.
func TestHerd_JoinerDeclinesTheFirstVariant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=3600")
			w.Header().Set("Vary", "Accept")
			w.(http.Flusher).Flush()
			time.Sleep(10 * time.Second)
		})
		go s.get("http://a/p")
		time.Sleep(time.Second)
		s.get("http://a/p", "Cache-Control", "no-cache")
		s.wantCalls(t, 2)
	})
}

// A response is not joined once it may not be served any more, fresh or stale (RFC 9111 section 4.2.4).
func TestHerd_NobodyJoinsWhatIsOver(t *testing.T) {
	for _, control := range []string{"max-age=2, must-revalidate", "s-maxage=2", "max-age=2", "max-age=2, stale-while-revalidate=3"} {
		for _, store := range []driver.Store{nil, memstore.New()} {
			synctest.Test(t, func(t *testing.T) {
				if store != nil {
					store = memstore.New()
				}
				var runs atomic.Int32
				s := sites(t, 1, store, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", control)
					fmt.Fprint(w, "run ", runs.Add(1), ", beginning and ")
					time.Sleep(20 * time.Second)
					fmt.Fprint(w, "end")
				})[0]
				var wg sync.WaitGroup
				for at, want := range map[time.Duration]string{0: "run 1", time.Second: "run 1", 10 * time.Second: "run 2", 15 * time.Second: "run 2"} {
					wg.Go(func() {
						time.Sleep(at)
						s.wantBody(t, want+", beginning and end", "http://a/p")
					})
				}
				wg.Wait()
				s.wantCalls(t, 2)
			})
		}
	}
}

// A herd collapses for a cold page, and at an expiry without a stale window, with one store write per load.
func TestHerd_Cold(t *testing.T) {
	for _, build := range []time.Duration{500 * time.Millisecond, 8 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			store := wiredTo(memstore.New())
			s := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store}}, page(build, "page"))
			synctest.Wait()
			store.reset() // the log of invalidations is written
			wantBurst(t, s.burst(1000, same("http://a/p")), 1000, fmt.Sprint("200 page ", build))
			s.wantCalls(t, 1)
			time.Sleep(10 * time.Second)
			w := s.get("http://a/p")
			if w.Body.String() != "page" || w.Header().Get("Age") != "10" || w.Header().Get("Content-Length") != "4" ||
				!strings.Contains(w.Header().Get("Cache-Status"), "hit") || !strings.Contains(w.Header().Get("Cache-Status"), "ttl=50") {
				t.Errorf("hit: %v", w.Header())
			}
			s.wantCalls(t, 0)
			time.Sleep(time.Minute)
			wantBurst(t, s.burst(50, same("http://a/p")), 50, fmt.Sprint("200 page ", build))
			s.wantCalls(t, 1)
			synctest.Wait()
			if n := store.count("commit"); n != 2 {
				t.Errorf("%d writes to the store, want 2", n)
			}
		})
	}
}

// In a fleet, too, one call per process answers a herd for a body above MaxBodyBytes: the processes wait for
// the first call, which finds that no store will have the body, and then each makes its own.
func TestHerd_OverLimitBodyInAFleet(t *testing.T) {
	body := strings.Repeat("0123456789abcdef", 256<<10/16)
	for _, vary := range []string{"", "Accept-Language"} {
		inBubble(t, "vary "+vary, func(t *testing.T) {
			o := bellwether.HTTPOptions{MaxBodyBytes: 16 << 10}
			o.Fleet.Store, o.Fleet.Locker = memstore.New(), locallock.New()
			o.OnError = func(key string, err error) { t.Errorf("OnError(%q, %v)", key, err) }
			h := func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				w.Header().Set("Cache-Control", "max-age=60")
				if vary != "" {
					w.Header().Set("Vary", vary)
				}
				for part := range slices.Chunk([]byte(body), 8<<10) {
					w.Write(part)
					time.Sleep(time.Millisecond)
				}
			}
			fleet := []*site{newSite(t, o, h), newSite(t, o, h), newSite(t, o, h)}
			time.Sleep(time.Second) // the log is read
			herd := func(all ...*site) {
				var wg sync.WaitGroup
				for _, s := range all {
					for range 10 {
						wg.Go(func() {
							began := time.Now()
							if w := s.get("http://a/p"); w.Code != 200 || w.Body.String() != body || time.Since(began) > 2500*time.Millisecond {
								t.Errorf("%d, %d bytes after %v, want the whole body", w.Code, w.Body.Len(), time.Since(began))
							}
						})
					}
				}
				wg.Wait()
			}
			herd(fleet...)
			for _, s := range fleet {
				s.wantCalls(t, 1)
			}
			late := newSite(t, o, h)
			synctest.Wait()
			herd(late)
			late.wantCalls(t, 1)
		})
	}
}
