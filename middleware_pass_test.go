package bellwether_test

import (
	"bufio"
	"context"
	"crypto/tls"
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
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// This file tests ResponseWriters and versions of HTTP, for requests that bypass the cache and for others.

// Handlers of uncached methods have all of http.ResponseController.
func TestPass_ResponseController(t *testing.T) {
	for _, method := range []string{"POST", "PURGE", "OPTIONS", "GET"} {
		t.Run(method, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				rc := http.NewResponseController(w)
				if err := rc.EnableFullDuplex(); err != nil {
					t.Errorf("EnableFullDuplex: %v", err)
				}
				if err := rc.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
					t.Errorf("SetReadDeadline: %v", err)
				}
				if err := rc.SetWriteDeadline(time.Now().Add(time.Hour)); err != nil {
					t.Errorf("SetWriteDeadline: %v", err)
				}
				io.WriteString(w, "flushed ")
				if err := rc.Flush(); err != nil {
					t.Errorf("Flush: %v", err)
				}
				// The request's body can be read after the response has begun.
				body, err := io.ReadAll(r.Body)
				if string(body) != "body" || err != nil {
					t.Errorf("the body after writing: %q, %v", body, err)
				}
				w.(io.Writer).Write(body)
				conn, _, err := rc.Hijack()
				if err != nil {
					t.Errorf("Hijack: %v", err)
					return
				}
				conn.Close()
			})
			server := serve(t, s.handler)
			conn := dial(t, server.Listener.Addr().String())
			fmt.Fprintf(conn, "%s /p HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n", method)
			br := bufio.NewReader(conn)
			res, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			part := make([]byte, len("flushed "))
			if _, err := io.ReadFull(res.Body, part); err != nil || string(part) != "flushed " {
				t.Fatalf("%q, %v", part, err)
			}
			io.WriteString(conn, "body") // only now
			if _, err := io.ReadAll(conn); err != nil {
				t.Error(err)
			}
			s.wantCalls(t, 1)
		})
	}
}

func TestPass_FlushIsNotPretended(t *testing.T) {
	plain := struct{ http.ResponseWriter }{httptest.NewRecorder()} // hides the recorder's Flush
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Flush = %v, want ErrNotSupported", err)
		}
	})
	s.handler.ServeHTTP(plain, request("POST", "http://a/p"))
	s.wantCalls(t, 1)
}

// A shared run of a handler has no connection: it may only flush.
func TestPass_ResponseControllerOfDetachedHandlers(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		for name, err := range map[string]error{
			"SetReadDeadline":  rc.SetReadDeadline(time.Now()),
			"SetWriteDeadline": rc.SetWriteDeadline(time.Now()),
			"EnableFullDuplex": rc.EnableFullDuplex(),
		} {
			if !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("%s = %v, want ErrNotSupported", name, err)
			}
		}
		if _, _, err := rc.Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Hijack = %v, want ErrNotSupported", err)
		}
		if err := rc.Flush(); err != nil {
			t.Errorf("Flush = %v", err)
		}
		page(0, "page")(w, r)
	})
	server := serve(t, s.handler)
	if status, body, _ := raw(t, server.Listener.Addr().String(), "GET /p HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); status != 200 || body != "page" {
		t.Errorf("got %d %q", status, body)
	}
}

// gin's Context.Stream needs a CloseNotify of each ResponseWriter, which net/http has deprecated.
func TestPass_CloseNotify(t *testing.T) {
	for _, tt := range []struct {
		name   string
		method string
		fields []string
		runs   int // earlier runs of the same page
	}{
		{name: "a run of its own", method: "GET"},
		{name: "a key known as uncacheable", method: "GET", runs: 1},
		{name: "past the cache", method: "GET", fields: []string{"Cache-Control", "no-store"}},
		{name: "credentials", method: "GET", fields: []string{"Authorization", "Basic eA=="}},
		{name: "POST", method: "POST"},
		{name: "PUT", method: "PUT"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var left sync.WaitGroup
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				defer left.Done()
				gone := w.(interface{ CloseNotify() <-chan bool }).CloseNotify()
				w.Header().Set("Cache-Control", "private")
				http.NewResponseController(w).Flush()
				<-gone
			})
			server := serve(t, s.handler)
			for range tt.runs + 1 {
				left.Add(1)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				r, err := http.NewRequestWithContext(ctx, tt.method, server.URL, nil)
				if err != nil {
					t.Fatal(err)
				}
				for i := 0; i < len(tt.fields); i += 2 {
					r.Header.Set(tt.fields[i], tt.fields[i+1])
				}
				res, err := server.Client().Do(r)
				if err != nil {
					t.Fatal(err)
				}
				leave()
				res.Body.Close()
				left.Wait()
			}
		})
	}
}

// A writer of another package has no CloseNotify: the handler never learns that its client has left, and does not fail.
func TestPass_CloseNotifyOfAnotherWriter(t *testing.T) {
	plain := struct{ http.ResponseWriter }{httptest.NewRecorder()}
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-w.(interface{ CloseNotify() <-chan bool }).CloseNotify():
			t.Error("the client has left")
		default:
		}
	})
	s.handler.ServeHTTP(plain, request("POST", "http://a/p"))
	s.wantCalls(t, 1)
}

func TestPass_FlushedHeaderComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.WriteHeader(http.StatusOK)
			http.NewResponseController(w).Flush()
			time.Sleep(time.Minute / 4)
			io.WriteString(w, "body")
		})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				w := newClient()
				s.handler.ServeHTTP(w, request("GET", "http://a/p"))
				if w.Body.String() != "body" || !w.Flushed || w.flushed != 0 {
					t.Errorf("%q, header after %v, want it at once", w.Body, w.flushed)
				}
			})
		}
		wg.Wait()
		s.wantCalls(t, 1)
	})
}

// Server-sent events arrive one by one, for each client its own, with any Accept.
func TestPass_ServerSentEvents(t *testing.T) {
	for _, accept := range []string{"text/event-stream", "Text/Event-Stream;q=1, */*", "*/*", ""} {
		t.Run(accept, func(t *testing.T) {
			var clients atomic.Int32
			acks := [2]chan int{make(chan int), make(chan int)}
			s := newSite(t, bellwether.HTTPOptions{TTL: time.Hour}, func(w http.ResponseWriter, r *http.Request) {
				me := clients.Add(1) - 1
				if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Hour)); err != nil && strings.HasPrefix(accept, "text/event-stream") {
					t.Errorf("no write deadline through the middleware: %v", err)
				}
				w.Header().Set("Content-Type", "text/event-stream")
				for i := range 5 {
					fmt.Fprintf(w, "data: %d.%d\n\n", me, i)
					http.NewResponseController(w).Flush()
					select {
					case <-acks[me]:
					case <-r.Context().Done():
						return
					}
				}
			})
			server := serve(t, s.handler)
			for me := range acks {
				req, _ := http.NewRequest("GET", server.URL+"/p", nil)
				if accept != "" {
					req.Header.Set("Accept", accept)
				}
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				br := bufio.NewReader(res.Body)
				for i := range 5 {
					line, err := br.ReadString('\n')
					if want := fmt.Sprintf("data: %d.%d\n", me, i); line != want || err != nil {
						t.Fatalf("client %d read %q, %v, want %q", me, line, err, want)
					}
					br.ReadString('\n')
					acks[me] <- i
				}
				if rest, err := io.ReadAll(br); len(rest) > 0 || err != nil {
					t.Errorf("after the last event: %q, %v", rest, err)
				}
			}
		})
	}
}

func TestPass_Connect(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 200 OK\r\n\r\n%s:", r.Host)
		rw.Flush()
		io.Copy(conn, rw)
	})
	server := serve(t, s.handler)
	conn := dial(t, server.Listener.Addr().String())
	io.WriteString(conn, "CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\nthrough")
	conn.(*net.TCPConn).CloseWrite()
	got, err := io.ReadAll(conn)
	if want := "HTTP/1.1 200 OK\r\n\r\nb:443:through"; string(got) != want || err != nil {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// Other methods reach the handler each time. Only unsafe methods invalidate the stored page.
func TestPass_OtherMethods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var version atomic.Int32
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, r.Method, version.Add(1))
		})
		for method, drops := range map[string]bool{
			"TRACE": false, "OPTIONS": false, "PROPFIND": false, "SEARCH": false, "QUERY": false,
			"POST": true, "PUT": true, "PATCH": true, "DELETE": true, "MKCOL": true, "PURGE": true, "get": true,
		} {
			first := s.get("http://a/p").Body.String()
			s.calls.Store(0)
			for range 2 {
				if w := s.do(request(method, "http://a/p")); !strings.HasPrefix(w.Body.String(), method) {
					t.Errorf("%s got %q", method, w.Body)
				}
			}
			s.wantCalls(t, 2)
			if again := s.get("http://a/p").Body.String(); (again != first) != drops {
				t.Errorf("%s: GET before it %q and after it %q", method, first, again)
			}
			synctest.Wait()
		}
		r := request("OPTIONS", "http://a/")
		r.RequestURI, r.URL.Path = "*", "*"
		if w := s.do(r); !strings.HasPrefix(w.Body.String(), "OPTIONS") {
			t.Errorf("OPTIONS * got %q", w.Body)
		}
	})
}

func TestPass_DetachedHandlersReadTheirRequest(t *testing.T) {
	type key struct{}
	left := make(chan struct{})
	seen := make(chan string)
	var own *http.Server
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-left:
		case <-time.After(10 * time.Second):
			t.Error("the client does not leave")
		}
		server, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
		addr, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		body, err := io.ReadAll(r.Body)
		seen <- fmt.Sprintln(r.Context().Err(), r.TLS != nil && r.TLS.HandshakeComplete, r.TLS.ServerName, r.Context().Value(key{}),
			server == own, addr != nil, r.RemoteAddr != "", r.Header.Get("X-Mine"), len(body), err)
	})
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		go func() {
			<-r.Context().Done()
			close(left)
		}()
		r.Body = io.NopCloser(iotest.ErrReader(http.ErrBodyReadAfterClose)) // as over HTTP/2 when the client has left
		s.handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), key{}, "value")))
	})
	server := httptest.NewUnstartedServer(outer)
	own = server.Config
	server.StartTLS()
	defer server.Close()
	conn, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, ServerName: "example.com"})
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn, "GET /p HTTP/1.1\r\nHost: example.com\r\nX-Mine: field\r\n\r\n")
	eventually(t, func() bool { return s.calls.Load() == 1 })
	conn.Close()
	if got, want := <-seen, "<nil> true example.com value true true true field 0 <nil>\n"; got != want {
		t.Errorf("the handler saw %q, want %q", got, want)
	}
}

func serveHTTP2(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// For a client of HTTP/1.0, a broken body of unknown length does not end like a whole body, over TLS either.
func TestPass_HTTP10(t *testing.T) {
	const clients = 20
	for name, serve := range map[string]func(*testing.T, http.Handler) *httptest.Server{"plain": serve, "TLS": serveHTTP2} {
		t.Run(name, func(t *testing.T) {
			release := map[string]chan struct{}{"/p": make(chan struct{}), "/broken": make(chan struct{})}
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusEarlyHints) // HTTP/1.0 has no interim responses
				w.Header().Set("Cache-Control", "max-age=60")
				io.WriteString(w, "begun ")
				http.NewResponseController(w).Flush()
				<-release[r.URL.Path]
				if r.URL.Path == "/broken" {
					panic(http.ErrAbortHandler)
				}
				io.WriteString(w, "done")
			})
			server := serve(t, s.handler)
			ask := func(path string) (string, error) {
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				if server.TLS != nil {
					conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
				}
				defer conn.Close()
				fmt.Fprintf(conn, "GET %s HTTP/1.0\r\nHost: a\r\n\r\n", path)
				b, err := io.ReadAll(conn)
				head, body, _ := strings.Cut(string(b), "\r\n\r\n")
				if strings.Contains(head, "chunked") || strings.HasPrefix(head, "HTTP/1.0 502") {
					return "", fmt.Errorf("%s", head)
				}
				return body, err
			}
			for i, path := range []string{"/p", "/broken"} {
				var wg sync.WaitGroup
				for range clients {
					wg.Go(func() {
						switch body, err := ask(path); {
						case path == "/broken" && err == nil:
							t.Errorf("a broken body looks complete: %q", body)
						case path == "/p" && (body != "begun done" || err != nil):
							t.Errorf("got %q, %v", body, err)
						}
					})
				}
				eventually(t, func() bool { return s.asked() >= clients*(i+1) })
				close(release[path])
				wg.Wait()
			}
			if body, err := ask("/p"); body != "begun done" || err != nil {
				t.Errorf("hit: %q, %v", body, err)
			}
		})
	}
}

func TestPass_WriterThatCannotFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := strings.Repeat("x", 1<<20)
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			for i := 0; i < len(body); i += 1 << 16 {
				io.WriteString(w, body[i:i+1<<16])
				time.Sleep(time.Millisecond) // readers catch up, and flush
			}
		})
		for range 3 {
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					got := httptest.NewRecorder()
					s.handler.ServeHTTP(struct{ http.ResponseWriter }{got}, request(http.MethodGet, "http://a/p"))
					if got.Body.String() != body {
						t.Errorf("%d of %d bytes", got.Body.Len(), len(body))
					}
				})
			}
			wg.Wait()
		}
	})
}

// A private response without a date is not answered with a 304 from the time of its receipt.
func TestPass_PrivateHasNoDateOfReceipt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "private")
			fmt.Fprint(w, "page")
		})
		for range 2 { // the second request bypasses the cache
			if w := s.get("http://a/p", "If-Modified-Since", "Fri, 31 Dec 2099 00:00:00 GMT"); w.Code != 200 || w.Body.String() != "page" {
				t.Errorf("%d %q, want the page", w.Code, w.Body)
			}
		}
	})
}

func TestPass_WriterThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, "page")
		})
		w := newClient()
		w.before = func([]byte) error { panic("a writer's") }
		deadlines := 0
		w.deadline = func(*client, time.Time) error { deadlines++; return nil }
		func() {
			defer func() { recover() }()
			s.handler.ServeHTTP(w, request("GET", "http://a/p"))
		}()
		time.Sleep(time.Hour)
		if deadlines != 0 {
			t.Errorf("%d write deadlines were set after the end of the request", deadlines)
		}
	})
}

// A response is not kept if its client's writer takes a part and tells no error: the handler may stop, as io.Copy does,
// or write the rest once more.
func TestPass_WriterThatTakesAPart(t *testing.T) {
	const body = "a whole page"
	for name, write := range map[string]func(w io.Writer){
		"stops": func(w io.Writer) {
			io.Copy(w, io.MultiReader(strings.NewReader("a whole "), strings.NewReader("page")))
		},
		"writes the rest": func(w io.Writer) {
			for rest := body; rest != ""; {
				n, _ := io.WriteString(w, rest)
				rest = rest[n:]
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "public, max-age=60")
				write(w)
			})
			s.handler.ServeHTTP(partTaker{httptest.NewRecorder()}, request("GET", "http://a/p", "Authorization", "a"))
			s.wantBody(t, body, "http://a/p")
		})
	}
}

type partTaker struct{ http.ResponseWriter }

func (w partTaker) Write(p []byte) (int, error) { return w.ResponseWriter.Write(p[:(len(p)+1)/2]) }

// Hijacked upgrades, as of WebSocket libraries and ReverseProxy, run beside a cached page of the URL.
func TestPass_Upgrade(t *testing.T) {
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
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
		rw.Flush()
		for { // until the client leaves
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			rw.WriteString("echo " + line)
			rw.Flush()
		}
	})
	s.get("http://a/p")
	server := serve(t, s.handler)
	for range 10 { // more than the bypasses of a page at a time
		conn := dial(t, server.Listener.Addr().String())
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
}

// While a request with Authorization takes long, clients of a private page do not wait for each other.
func TestPass_SlowCredentialsAndTheMarker(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			time.Sleep(time.Hour) // as when the client reads nothing
		}
		if r.Header.Get("Cookie") == "slow" {
			time.Sleep(8 * time.Second)
		}
		w.Header().Set("Cache-Control", "private")
		io.WriteString(w, r.Header.Get("Cookie"))
	}
	inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
		go p.first.get("http://a/p", "Authorization", "x")
		if p.second != p.first {
			go p.second.get("http://a/p", "Authorization", "x")
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

// The bound on passes of a slow page outlasts responses in the second half of HitForMissTTL.
func TestPass_SlowPassesKeepTheirBound(t *testing.T) {
	var g gauge
	h := func(w http.ResponseWriter, r *http.Request) {
		defer g.enter()()
		select {
		case <-time.After(3 * time.Second):
		case <-r.Context().Done():
			return
		}
		io.WriteString(w, "page") // no caching headers
	}
	o := bellwether.HTTPOptions{MaxPassThrough: 2, RebuildTimeout: time.Second}
	inPairs(t, o, h, func(t *testing.T, p pair) {
		g.most.Store(0)
		p.first.get("http://a/p")
		var wg sync.WaitGroup
		for range 60 {
			for range 20 {
				wg.Go(func() { p.first.get("http://a/p") })
			}
			time.Sleep(500 * time.Millisecond)
		}
		wg.Wait()
		if n := g.most.Load(); n > 4 {
			t.Errorf("%d runs of a slow page at one time, with MaxPassThrough 2", n)
		}
	})
}

// A private page's header arrives when it is flushed, also of a HEAD or a 304, whose body is not written.
func TestPass_HeaderOfAPrivatePageComesAtOnce(t *testing.T) {
	for _, c := range [][2]string{{"HEAD", ""}, {"GET", `"v"`}, {"GET", ""}} {
		t.Run(c[0]+c[1], func(t *testing.T) {
			var written atomic.Int64
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "private")
				w.Header().Set("ETag", `"v"`)
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
			server := serve(t, s.handler)
			r, _ := http.NewRequest(c[0], server.URL+"/p", nil)
			r.Header.Set("If-None-Match", c[1])
			began := time.Now()
			res, err := server.Client().Do(r)
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

// A response past the cache that takes longer than RebuildTimeout stops no other client's requests without MaxPassThrough.
func TestPass_OneSlowPrivateResponseStopsNoOtherClient(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Cookie") == "slow" {
			time.Sleep(31 * time.Second)
		}
		w.Header().Set("Cache-Control", "private")
		io.WriteString(w, r.Header.Get("Cookie"))
	}
	inPairs(t, bellwether.HTTPOptions{}, h, func(t *testing.T, p pair) {
		p.first.wantBody(t, "a", "http://a/p", "Cookie", "a")
		time.Sleep(time.Second)
		p.first.wantBody(t, "slow", "http://a/p", "Cookie", "slow")
		time.Sleep(time.Second)
		p.first.wantBody(t, "a", "http://a/p", "Cookie", "a")
		p.second.wantBody(t, "a", "http://a/p", "Cookie", "a")
	})
}

// The cache keeps little of a private response before a client that does not read: 64 KiB, however long a kept body may be.
func TestPass_PrivateResponseWaitsForItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const piece, pieces = 16 << 10, 64
		var written atomic.Int64
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "private")
			for range pieces {
				io.WriteString(w, strings.Repeat("x", piece))
				written.Add(piece)
			}
		})
		client := heldClient()
		go client.ask(s.handler, request("GET", "http://a/p"))
		synctest.Wait()
		if n := written.Load(); n < 64<<10-piece || n > 2*64<<10 {
			t.Errorf("the handler has written %d bytes to a client that reads nothing, want about 64 KiB", n)
		}
		close(client.free)
		synctest.Wait()
		if n := client.Body.Len(); n != pieces*piece {
			t.Errorf("the client has %d bytes, want %d", n, pieces*piece)
		}
	})
}
