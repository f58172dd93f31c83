package bellwether_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests bodies: read while they grow, broken off, too large to store, and held for slow clients.

const megabyte = 1 << 20

func megabytes(n int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		for range n {
			io.WriteString(w, strings.Repeat(r.URL.Path[1:2], megabyte))
		}
	}
}

// Slow clients of bodies in the near tier do not count towards MaxHeldBytes, and are not broken off.
func TestBodies_MaxHeldOfTheNearTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{MaxHeldBytes: 3 * megabyte, MaxBodyBytes: megabyte}, megabytes(1))
		paths := []string{"/a", "/b", "/c", "/d", "/e"}
		for _, p := range paths {
			s.get("http://h" + p)
			synctest.Wait()
		}
		s.calls.Store(0)
		var all sync.WaitGroup
		var slow []*client
		for _, p := range paths[:4] {
			w := heldClient()
			all.Go(func() { w.ask(s.handler, request("GET", "http://h"+p)) })
			<-w.full
			slow = append(slow, w)
		}
		for range 100 {
			if w := s.get("http://h/e"); w.Body.Len() != megabyte || !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
				t.Fatalf("%d bytes, %v", w.Body.Len(), w.Header())
			}
			synctest.Wait() // a client that was broken off would notice here
		}
		s.wantCalls(t, 0)
		for _, w := range slow {
			close(w.free)
		}
		all.Wait()
		for i, w := range slow {
			if w.took != megabyte {
				t.Errorf("slow client %d got %d bytes", i, w.took)
			}
		}
	})
}

// Beyond MaxHeldBytes the oldest stored body's clients are broken off. A body counts once for all clients.
func TestBodies_MaxHeldOfStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{
			MaxHeldBytes: 3 * megabyte, MaxBodyBytes: megabyte,
			Fleet: bellwether.Fleet{Store: memstore.New()}, Limits: bellwether.Limits{NearBytes: megabyte / 2},
		}, megabytes(1))
		paths := []string{"/a", "/b", "/c", "/d"}
		for _, p := range paths {
			s.get("http://h" + p)
			synctest.Wait()
		}
		s.calls.Store(0)
		var all sync.WaitGroup
		slow := func(path string) *client {
			w := heldClient()
			all.Go(func() { w.ask(s.handler, request("GET", "http://h"+path)) })
			<-w.full
			return w
		}
		var holding []*client
		for _, p := range []string{"/a", "/b", "/c", "/b", "/c"} {
			holding = append(holding, slow(p))
		}
		for range 100 {
			if w := s.get("http://h/d"); w.Body.Len() != megabyte || !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
				t.Fatalf("over MaxHeldBytes: %d bytes, %v", w.Body.Len(), w.Header())
			}
			synctest.Wait()
		}
		s.wantCalls(t, 0)
		for i, w := range holding {
			if broken := w.broke.Load(); broken != (i == 0) {
				t.Errorf("client %d broken off: %t", i, broken)
			}
			if i > 0 {
				close(w.free)
			}
		}
		all.Wait()
		for i, w := range holding[1:] {
			if w.took != megabyte {
				t.Errorf("slow client %d got %d bytes", i+1, w.took)
			}
		}
	})
}

// A body that has been sent takes no room of MaxHeldBytes.
func TestBodies_SentTakeNoRoom(t *testing.T) {
	for name, fields := range map[string][]string{"whole": nil, "range": {"Range", "bytes=0-9"}} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{MaxHeldBytes: 3 * megabyte, MaxBodyBytes: megabyte}, megabytes(1))
			for range 5 {
				s.get("http://h/a")
				synctest.Wait()
				if w := s.get("http://h/a", fields...); !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
					t.Errorf("the page is not kept: %v", w.Header())
				}
				if err := s.mw.Invalidate(t.Context(), "http://h/a"); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A growing body beyond MaxHeldBytes is not stored, and its handler writes at its client's pace.
func TestBodies_MaxHeldOfGrowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{MaxHeldBytes: 5 * megabyte}, megabytes(4))
		var all sync.WaitGroup
		var clients []*client
		for _, path := range []string{"/a", "/b", "/c"} {
			w := heldClient()
			clients = append(clients, w)
			all.Go(func() { s.handler.ServeHTTP(w, request("GET", "http://h"+path)) })
			<-w.full
			synctest.Wait()
		}
		for _, w := range clients {
			close(w.free)
		}
		all.Wait()
		synctest.Wait()
		for i, w := range clients {
			if w.took != 4*megabyte {
				t.Errorf("client %d got %d bytes", i, w.took)
			}
		}
		s.calls.Store(0)
		time.Sleep(time.Second)
		if w := s.get("http://h/a"); !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
			t.Errorf("the first body was not kept: %v", w.Header())
		}
		for _, p := range []string{"/b", "/c"} {
			// There is room again, so the next response is kept.
			s.get("http://h" + p)
			synctest.Wait()
			if w := s.get("http://h" + p); !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
				t.Errorf("%s afterwards: %v", p, w.Header())
			}
		}
	})
}

// A herd for a body without room in MaxHeldBytes is one run of the handler.
func TestBodies_HerdWithoutMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := make(chan struct{})
		s := newSite(t, bellwether.HTTPOptions{MaxHeldBytes: megabyte * 5 / 4, MaxBodyBytes: megabyte}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(10 * time.Millisecond) // the herd arrives
			megabytes(1)(w, r)
			if r.URL.Path == "/held" {
				<-written // before, the body is not in the near tier
			}
		})
		holder := heldClient()
		var all sync.WaitGroup
		all.Go(func() { s.handler.ServeHTTP(holder, request("GET", "http://h/held")) })
		<-holder.full
		for herd := range 3 {
			s.calls.Store(0)
			var clients sync.WaitGroup
			for range 10 {
				clients.Go(func() {
					if w := s.get("http://h/page"); w.Body.Len() != megabyte {
						t.Errorf("herd %d: %d bytes, %v", herd, w.Body.Len(), w.Header())
					}
				})
			}
			clients.Wait()
			synctest.Wait()
			s.wantCalls(t, 1)
		}
		close(written)
		close(holder.free)
		all.Wait()
	})
}

func TestBodies_StalledClients(t *testing.T) {
	for name, c := range map[string]struct {
		fields string
		piece  int // bytes that the handler writes at a time
	}{
		"whole":     {"", 4 << 20},
		"ranges":    {"Range: bytes=0-\r\n", 4 << 20},
		"in pieces": {"", 1000}, // readers catch up, and flush
	} {
		inBubbleBeside(t, name, func(t *testing.T) {
			var finished atomic.Bool
			s := newSite(t, bellwether.HTTPOptions{MaxBodyBytes: 4 << 20}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=3600000")
				for n := 0; n < 4<<20; n += c.piece {
					w.Write(bytes.Repeat([]byte("b"), c.piece))
					if c.piece < 4<<20 {
						time.Sleep(time.Millisecond)
					}
				}
				finished.Store(true)
			})
			server := overPipes(t, s.handler)
			if c.piece == 4<<20 {
				s.get("http://a/p")
			}
			conn, err := server.dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			go io.WriteString(conn, "GET /p HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"+c.fields+"\r\n")
			br := bufio.NewReader(conn)
			if res, err := http.ReadResponse(br, nil); err != nil || res.StatusCode >= 300 {
				t.Fatalf("%v, %v", res, err)
			}
			time.Sleep(5 * time.Minute)
			if n, _ := io.Copy(io.Discard, br); n > 1<<20 || !finished.Load() {
				t.Errorf("a client that had read nothing for five minutes got %d bytes more; the handler has finished: %t", n, finished.Load())
			}
		})
	}
}

func TestBodies_EarlyRebuildAndASlowClient(t *testing.T) {
	for _, way := range []string{"the store's answer", "a hit"} {
		inBubble(t, way, func(t *testing.T) {
			size, ended := 6<<10, make(chan time.Duration, 10)
			o := bellwether.HTTPOptions{MaxBodyBytes: 100 << 10, Fleet: bellwether.Fleet{Store: quiet{memstore.New()}}, EarlyRefresh: 1e9}
			handler := func(w http.ResponseWriter, r *http.Request) {
				began := time.Now()
				w.Header().Set("Cache-Control", "max-age=3600")
				time.Sleep(time.Second)
				for range 10 {
					w.Write(make([]byte, size))
				}
				ended <- time.Since(began)
			}
			a, b := newSite(t, o, handler), newSite(t, o, handler)
			a.get("http://a/p")
			<-ended
			synctest.Wait()
			size = 50 << 10 // ten pieces exceed MaxBodyBytes
			front := a
			if way != "a hit" {
				front = b
			}
			w := slowClient(2000)
			front.handler.ServeHTTP(w, request("GET", "http://a/p"))
			if took := <-ended; took != time.Second {
				t.Errorf("the early rebuild's handler took %v, want 1s", took)
			}
		})
	}
}

// A broken response is not stored, also if ReverseProxy does not panic, without a server in its context.
func TestBodies_TruncatedUpstreamWithoutAServer(t *testing.T) {
	for _, announced := range []bool{true, false} {
		for _, method := range []string{"GET", "POST"} {
			t.Run(fmt.Sprint(method, " announced ", announced), func(t *testing.T) {
				cut := true
				upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					w.Header().Set("Content-Location", "/p")
					if announced {
						w.Header().Set("Content-Length", "100")
					}
					io.WriteString(w, strings.Repeat("x", 25))
					if cut {
						http.NewResponseController(w).Flush()
						panic(http.ErrAbortHandler)
					}
					io.WriteString(w, strings.Repeat("x", 75))
				}))
				defer upstream.Close()
				target, err := url.Parse(upstream.URL)
				if err != nil {
					t.Fatal(err)
				}
				proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
				s := newSite(t, bellwether.HTTPOptions{ErrorTTL: -1}, proxy.ServeHTTP)
				for range 2 {
					if w := s.do(request(method, "http://a/p")); w.Code != -1 {
						t.Errorf("a client got a page that looks complete: %d, %d bytes", w.Code, w.Body.Len())
					}
				}
				s.wantCalls(t, 2)
				cut = false
				if w := s.get("http://a/p"); w.Code != 200 || w.Body.Len() != 100 {
					t.Errorf("then: %d, %d bytes, want the whole", w.Code, w.Body.Len())
				}
				s.wantCalls(t, 1)
			})
		}
	}
}

func TestBodies_Broken(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"abort": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, "half")
			panic(http.ErrAbortHandler)
		},
		"panic": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, "half")
			time.Sleep(time.Millisecond) // until all clients read
			panic("boom")
		},
		"short": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "half")
		},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				handler(w, r)
			})
			var own atomic.Int32 // panics that are the handler's own
			h := s.handler
			s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() {
					p := recover()
					if p != nil && p != http.ErrAbortHandler {
						own.Add(1)
					}
					panic(p)
				}()
				h.ServeHTTP(w, r)
			})
			for o, n := range s.burst(50, same("http://a/p")) {
				if !strings.HasPrefix(o, "-1 ") && o != "502 Bad Gateway\n 1s" {
					t.Errorf("%d clients saw %q, want the body broken off", n, o)
				}
			}
			want := int32(0)
			if name == "panic" {
				want = 1 // its own client's
			}
			if n := own.Load(); n != want {
				t.Errorf("the handler's panic reached %d servers, want %d", n, want)
			}
			s.wantCalls(t, 1)
			time.Sleep(2 * time.Second)
			if w := s.get("http://a/p"); w.Code != -1 && w.Code != 502 {
				t.Errorf("the broken body was stored: %d %q", w.Code, w.Body)
			}
		})
	}
}

var protocols = map[string]func(*testing.T, http.Handler) *httptest.Server{"HTTP/1.1": serve, "HTTP/2": serveHTTP2}

func TestBodies_CollapsedClientsReadWhileTheyGrow(t *testing.T) {
	for protocol, serve := range protocols {
		t.Run(protocol, func(t *testing.T) {
			release := make(chan struct{})
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Content-Type", "text/html") // without it the first bytes would wait for the guess
				w.WriteHeader(200)
				io.WriteString(w, "<first")
				<-release
				io.WriteString(w, "second")
			})
			server := serve(t, s.handler)
			var begun, done sync.WaitGroup
			begun.Add(20)
			for range 20 {
				done.Go(func() {
					res, err := server.Client().Get(server.URL + "/p")
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
					if string(part)+string(rest) != "<firstsecond" || err != nil || err2 != nil {
						t.Errorf("body %q%q, %v, %v", part, rest, err, err2)
					}
				})
			}
			begun.Wait() // all have the first part before the handler writes the second
			close(release)
			done.Wait()
			s.wantCalls(t, 1)
		})
	}
}

func TestBodies_AbortedLooksAbortedOnTheWire(t *testing.T) {
	for protocol, serve := range protocols {
		for _, end := range []string{"abort", "short"} {
			t.Run(protocol+" "+end, func(t *testing.T) {
				read := make(chan struct{}) // closed when a client has the half
				tell := sync.OnceFunc(func() { close(read) })
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					if end == "short" {
						w.Header().Set("Content-Length", "100")
					}
					io.WriteString(w, "half")
					w.(http.Flusher).Flush()
					<-read
					if end == "abort" {
						panic(http.ErrAbortHandler)
					}
				})
				server := serve(t, s.handler)
				var wg sync.WaitGroup
				for range 20 {
					wg.Go(func() {
						res, err := server.Client().Get(server.URL + "/p")
						if err != nil {
							return
						}
						defer res.Body.Close()
						half := make([]byte, 4)
						io.ReadFull(res.Body, half)
						tell()
						if b, err := io.ReadAll(res.Body); err == nil && res.StatusCode == 200 {
							t.Errorf("a broken body looks complete: %q", append(half, b...))
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

// A client gets what the handler has flushed, also if the handler fails right after.
func TestBodies_FlushedBeforeTheBreak(t *testing.T) {
	for protocol, serve := range protocols {
		for _, part := range []string{"part", ""} {
			t.Run(protocol+" "+part, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					io.WriteString(w, part)
					w.(http.Flusher).Flush()
					panic(http.ErrAbortHandler)
				})
				server := serve(t, s.handler)
				for i := range 20 { // the client's goroutine may be quick
					res, err := server.Client().Get(fmt.Sprintf("%s/%d", server.URL, i))
					if err != nil {
						t.Fatal(err)
					}
					b, err := io.ReadAll(res.Body)
					res.Body.Close()
					if res.StatusCode != 200 || string(b) != part || err == nil {
						t.Fatalf("%d %q, %v, want a 200 that breaks off after %q", res.StatusCode, b, err, part)
					}
				}
			})
		}
	}
}

// A handler returns early when its client leaves, and the truncated body is not stored.
func TestBodies_TruncatedPageWhoseClientLeaves(t *testing.T) {
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
			s.wantBody(t, "0123456789", "http://a/p") // the next client
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

// net/http resets a stream of HTTP/2 only when the connection takes bytes again, so a write deadline does not end a client
// that reads nothing from its connection. WriteByteTimeout ends the connection.
func TestBodies_HTTP2ConnectionThatTakesNothing(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, megabytes(8))
	ended := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		s.handler.ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.HTTP2 = &http.HTTP2Config{WriteByteTimeout: 200 * time.Millisecond}
	server.StartTLS()
	t.Cleanup(server.Close)
	s.get(server.URL + "/p") // not by the server, whose timeout may end a client that has no processor
	stalls, left := make(chan struct{}), make(chan struct{})
	slow := server.Client().Transport.(*http.Transport).Clone()
	slow.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			err = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		}
		return stallingConn{conn, stalls, left}, err
	}
	slow.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 20, MaxReceiveBufferPerConnection: 64 << 20}
	t.Cleanup(slow.CloseIdleConnections)
	defer close(left)
	res, err := (&http.Client{Transport: slow}).Get(server.URL + "/p")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	close(stalls)
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the client still holds the body")
	}
	if res.ProtoMajor != 2 {
		t.Errorf("the client spoke %s", res.Proto)
	}
	s.wantCalls(t, 1)
}

// A stallingConn reads nothing once stalls is closed, until left is closed.
type stallingConn struct {
	net.Conn
	stalls, left <-chan struct{}
}

func (c stallingConn) Read(b []byte) (int, error) {
	select {
	case <-c.stalls:
		<-c.left
		return 0, net.ErrClosed
	default:
		return c.Conn.Read(b)
	}
}

// Slow clients of large pages do not keep a smaller page out of the cache.
func TestBodies_SlowReadersDoNotEndCaching(t *testing.T) {
	for name, tt := range map[string]struct {
		fields []string
		pause  time.Duration
		after  time.Duration
	}{
		"slow, at once":                     {nil, 55 * time.Second, time.Second},
		"stalled with Authorization, a day": {[]string{"Authorization", "x"}, 1000 * time.Hour, 24 * time.Hour},
	} {
		inBubbleBeside(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{MaxHeldBytes: 8 << 20}, func(w http.ResponseWriter, r *http.Request) {
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
					w := newClient() // reads slowly, or nothing
					w.forgets, w.deadline = true, func(*client, time.Time) error { return nil }
					w.before = func([]byte) error {
						select {
						case <-time.After(tt.pause):
							return nil
						case <-ctx.Done():
							return ctx.Err()
						}
					}
					w.ask(s.handler, request("GET", fmt.Sprint("http://a/large", i), tt.fields...).WithContext(ctx))
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
