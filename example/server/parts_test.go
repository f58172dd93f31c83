package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
)

// The tests here test one part each, inside the test's process.

// newTestServer serves with flags inside the test, without the listeners.
func newTestServer(t *testing.T, flags ...string) (front, back *httptest.Server) {
	t.Helper()
	c, err := parse(flags)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	s := &server{
		config: c, log: log, started: time.Now(),
		addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080},
	}
	s.cache, s.metrics = newCache(c.cache)
	site := s.site(newRepeats(log))
	front, back = httptest.NewServer(s.router(site)), httptest.NewServer(s.adminRouter())
	t.Cleanup(func() {
		front.Close()
		back.Close()
		s.cache.Close()
		site.close()
	})
	return front, back
}

// textLog is a log that a process keeps.
func textLog(p *process) *slog.Logger { return slog.New(slog.NewTextHandler(logWriter{p}, nil)) }

type logWriter struct{ p *process }

func (w logWriter) Write(line []byte) (int, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.p.log.Write(line)
}

func TestDemo(t *testing.T) {
	front, _ := newTestServer(t)
	for _, test := range []struct {
		path, language string
		status         int
		cacheControl   string
		body           string // in it
		cached         bool   // the second request gets the first response
	}{
		{"/", "", 200, "max-age=60", "Release the herd", true},
		{"/index.txt", "", 200, "max-age=60", "/slow?delay=500ms&ttl=10s", true},
		{"/fast", "", 200, "max-age=10", "build 1 ", true},
		{"/slow?delay=1ms&ttl=10s", "", 200, "max-age=10", "build 1 ", true},
		{"/slow?delay=-5s&ttl=500ms", "", 200, "max-age=1", "build 2 ", true},
		{"/slow?delay=1ms&ttl=9999h", "", 200, "max-age=86400", "build 3 ", true},
		{"/slow?delay=long", "", 400, "no-store", `delay="long"`, false},
		{"/slow?delay=1ms&ttl=7", "", 400, "no-store", `ttl="7"`, false},
		{"/private", "", 200, "private", "build 1 ", false},
		{"/vary", "de-AT", 200, "max-age=10", "Hallo! build 1 ", true},
		{"/vary", "ga", 200, "max-age=10", "Dia dhuit! build 2 ", true},
		{"/error", "", 503, "", "build 1 ", false},
		{"/stream", "", 200, "max-age=10", "line 10 of 10", true},
		{"/none", "", 404, "", "not found", false},
	} {
		t.Run(test.path+test.language, func(t *testing.T) {
			first := do(http.MethodGet, front.URL+test.path, "Accept-Language", test.language)
			if first.status != test.status || first.header.Get("Cache-Control") != test.cacheControl || !strings.Contains(first.body, test.body) {
				t.Errorf("%v, Cache-Control %q; want %d, %q and %q", first, first.header.Get("Cache-Control"), test.status, test.cacheControl, test.body)
			}
			second := do(http.MethodGet, front.URL+test.path, "Accept-Language", test.language)
			// The first client may have its page just before the flight lands: the second collapses.
			status := second.header.Get("Cache-Status")
			if cached := strings.Contains(status, "hit") || strings.Contains(status, "collapsed"); cached != test.cached || cached && second.body != first.body {
				t.Errorf("the second time: %v, Cache-Status %q; want a hit: %v", second, status, test.cached)
			}
			if head := do(http.MethodHead, front.URL+test.path, "Accept-Language", test.language); head.status != test.status || head.body != "" {
				t.Errorf("HEAD: %v", head)
			}
		})
	}
}

func TestProxy_WhatTheUpstreamGets(t *testing.T) {
	var got *http.Request
	var body []byte
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Clone(r.Context())
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
	}))
	defer upstream.Close()
	front, _ := newTestServer(t, "-upstream", upstream.URL+"/base")

	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND", "PURGE"} {
		r, _ := http.NewRequest(method, front.URL+"/a%2Fb/"+method+"?q=1&q=2&x;y=%zz", strings.NewReader("body"))
		r.Host = "site.test"
		r.Header.Set("X-Forwarded-Host", "evil.test")
		r.Header.Set("X-Forwarded-For", "203.0.113.1")
		r.Header.Set("Accept-Encoding", "br")
		got, body = nil, nil
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated || got == nil || got.Method != method || string(body) != "body" {
			t.Fatalf("%s: status %d, upstream got %v with body %q", method, resp.StatusCode, got, body)
		}
		u, _ := url.Parse(upstream.URL)
		for what, pair := range map[string][2]string{
			"target":            {got.RequestURI, "/base/a%2Fb/" + method + "?q=1&q=2&x;y=%zz"}, // also a query that does not parse
			"Host":              {got.Host, u.Host},
			"X-Forwarded-Host":  {got.Header.Get("X-Forwarded-Host"), "site.test"},
			"X-Forwarded-For":   {got.Header.Get("X-Forwarded-For"), "127.0.0.1"},
			"X-Forwarded-Proto": {got.Header.Get("X-Forwarded-Proto"), "http"},
			"Accept-Encoding":   {got.Header.Get("Accept-Encoding"), "br"},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s: the upstream got the %s %q, want %q", method, what, pair[0], pair[1])
			}
		}
	}
}

func TestProxy_UpstreamDown(t *testing.T) {
	upstream := httptest.NewServer(http.NotFoundHandler())
	upstream.Close()
	front, _ := newTestServer(t, "-upstream", upstream.URL)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if a := do(method, front.URL+"/page"); a.status != http.StatusBadGateway || a.err != nil {
			t.Errorf("%s: %v, want 502", method, a)
		}
	}
}

// An upstream's status that no server may send is a 502 and a line of the log, not a panic.
func TestProxy_InvalidStatus(t *testing.T) {
	for _, status := range []string{"000", "099"} {
		upstream := rawUpstream(t, "HTTP/1.1 "+status+" Odd\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
		var log bytes.Buffer
		proxy, transport := newProxy(upstream, newRepeats(slog.New(slog.NewTextHandler(&log, nil))))
		for range 3 {
			w := httptest.NewRecorder()
			proxy.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			if w.Code != http.StatusBadGateway {
				t.Errorf("%s: status %d, want 502", status, w.Code)
			}
		}
		transport.CloseIdleConnections()
		if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "status "+status) {
			t.Errorf("%s: the log is %q, want one line with the status", status, log.String())
		}
		front, _ := newTestServer(t, "-upstream", upstream.String())
		if got := do("GET", front.URL+"/"); got.err != nil || got.status != http.StatusBadGateway {
			t.Errorf("%s: a client got %v, want 502", status, got)
		}
	}
}

// rawUpstream is an upstream that answers each connection's request with the reply.
func rawUpstream(t *testing.T, reply string) *url.URL {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					io.WriteString(c, reply)
				}
			}()
		}
	}()
	return &url.URL{Scheme: "http", Host: listener.Addr().String()}
}

// askRaw sends the bytes of a request to a server, and returns the status of the reply.
func askRaw(t *testing.T, server *httptest.Server, request string) int {
	t.Helper()
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, request)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// A request without a Host has no name for the upstream.
func TestProxy_NoHost(t *testing.T) {
	got := make(chan http.Header, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }))
	defer upstream.Close()
	front, _ := newTestServer(t, "-upstream", upstream.URL)
	for _, request := range []string{"GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.0\r\nX-Forwarded-Host: evil.test\r\n\r\n"} {
		if status := askRaw(t, front, request); status != http.StatusOK {
			t.Errorf("%q: status %d", request, status)
		}
		if names, ok := (<-got)["X-Forwarded-Host"]; ok {
			t.Errorf("%q: the upstream got X-Forwarded-Host %q, want no such field", request, names)
		}
	}
}

// The server opens no tunnels, and does not ask the upstream for one.
func TestProxy_Connect(t *testing.T) {
	var asked atomic.Int32
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, _ *http.Request) { asked.Add(1) }))
	defer upstream.Close()
	front, _ := newTestServer(t, "-upstream", upstream.URL)
	for _, target := range []string{"a:80", "/", "/page"} {
		if status := askRaw(t, front, "CONNECT "+target+" HTTP/1.1\r\nHost: a:80\r\n\r\n"); status != http.StatusNotImplemented {
			t.Errorf("CONNECT %s: status %d, want 501", target, status)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the upstream was asked %d times", n)
	}
}

// An upstream that drops connections gets a request from one kept and one new connection, not from all kept.
func TestProxy_UpstreamDropsConnections(t *testing.T) {
	const kept = 50
	var asked atomic.Int32
	var drops atomic.Bool
	all := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		if drops.Load() {
			panic(http.ErrAbortHandler)
		}
		if n == kept {
			close(all)
		}
		<-all
		fmt.Fprint(w, "page")
	}))
	defer upstream.Close()
	front, _ := newTestServer(t, "-upstream", upstream.URL)
	var pages sync.WaitGroup
	for i := range kept {
		pages.Go(func() {
			if a := do(http.MethodGet, fmt.Sprint(front.URL, "/", i)); a.status != http.StatusOK {
				t.Error(a)
			}
		})
	}
	pages.Wait()
	drops.Store(true)
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPost} {
		asked.Store(0)
		began := time.Now()
		if a := do(method, front.URL+"/dropped"+method); a.status != http.StatusBadGateway {
			t.Errorf("%s: %v, want 502", method, a)
		}
		if n := asked.Load(); n < 1 || n > 2 {
			t.Errorf("%s: the upstream was asked %d times, want 2 at most", method, n)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s took %v", method, took)
		}
	}
	drops.Store(false)
	if a := do(http.MethodGet, front.URL+"/well"); a.status != http.StatusOK {
		t.Errorf("%v, want 200", a)
	}
}

// A kept connection that the upstream closes after it has got a request fails no request.
func TestProxy_UpstreamCloses(t *testing.T) {
	var conns atomic.Int32
	upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served := r.Context().Value(connKey{}).(*atomic.Int32)
		if served.Add(1) > 1 {
			panic(http.ErrAbortHandler) // no connection serves two requests
		}
		if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
			t.Errorf("%s came with a body of %d bytes, %v", r.Method, r.ContentLength, r.TransferEncoding)
		}
		fmt.Fprint(w, "page")
	}))
	upstream.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		conns.Add(1)
		return context.WithValue(ctx, connKey{}, new(atomic.Int32))
	}
	upstream.Start()
	defer upstream.Close()
	front, _ := newTestServer(t, "-upstream", upstream.URL)
	for i := range 10 {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
			if a := do(method, fmt.Sprint(front.URL, "/", i, method)); a.status != http.StatusOK {
				t.Errorf("%s: %v, want 200", method, a)
			}
		}
	}
	if n := conns.Load(); n < 30 {
		t.Errorf("%d connections for 30 requests: none was closed", n)
	}
}

type connKey struct{}

// A client's offer of HTTP/2 does not reach the upstream, which would bypass the cache.
func TestProxy_UpgradeToHTTP2(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"Upgrade", "Connection", "Http2-Settings"} {
			if v := r.Header.Values(name); len(v) > 0 {
				t.Errorf("%s: the upstream got %s: %q", r.Method, name, v)
			}
		}
		fmt.Fprint(w, "page")
	}))
	defer upstream.Close()
	front, _ := newTestServer(t, "-upstream", upstream.URL)
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "OPTIONS", "DELETE"} {
		for _, protocol := range []string{"h2c", "H2C", "websocket, h2c"} {
			a := do(method, front.URL+"/", "Connection", "Upgrade, HTTP2-Settings", "Upgrade", protocol, "HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA")
			if a.status != http.StatusOK {
				t.Errorf("%s with Upgrade: %s got %v, want 200", method, protocol, a)
			}
		}
	}
}

// TestProxy_BodyBreaksOff holds that a client sees the break, and that no other gets the body.
func TestProxy_BodyBreaksOff(t *testing.T) {
	calls := 0
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls++; calls > 1 {
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, "the whole")
			return
		}
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer upstream.Close()
	front, _ := newTestServer(t, "-upstream", upstream.URL)
	if a := do(http.MethodGet, front.URL+"/page"); a.err == nil {
		t.Errorf("%v, want a body that breaks off", a)
	}
	eventually(t, 10*time.Second, "the whole page, once the back-off is over", func() bool {
		a := do(http.MethodGet, front.URL+"/page")
		return a.status == http.StatusOK && a.body == "the whole" && a.err == nil
	})
}

// TestProxy_StreamsAtOnce holds that a client gets the flushed bytes before the upstream continues.
func TestProxy_StreamsAtOnce(t *testing.T) {
	read := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		for i := range 3 {
			fmt.Fprintf(w, "line %d\n", i)
			http.NewResponseController(w).Flush()
			<-read
		}
	}))
	defer upstream.Close()
	front, _ := newTestServer(t, "-upstream", upstream.URL)
	for _, accept := range []string{"text/plain", "text/event-stream"} {
		r, _ := http.NewRequest(http.MethodGet, front.URL+"/"+accept, nil)
		r.Header.Set("Accept", accept)
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(resp.Body)
		for i := range 3 {
			if want := fmt.Sprint("line ", i); !lines.Scan() || lines.Text() != want {
				t.Fatalf("%s: got %q, %v; want %q", accept, lines.Text(), lines.Err(), want)
			}
			read <- struct{}{}
		}
		resp.Body.Close()
	}
}

func TestAdmin(t *testing.T) {
	_, back := newTestServer(t)
	for _, test := range []struct {
		method, target string
		status         int
		body           string // in it
	}{
		{"GET", "/healthz", 200, "ok\n"},
		{"GET", "/stats", 200, `"loads": 0`},
		{"GET", "/stats", 200, `"store": "memory"`},
		{"GET", "/none", 404, ""},
		{"POST", "/stats", 405, "use GET"},
		{"GET", "/invalidate?url=/x", 405, "use POST"},
		{"POST", "/invalidate", 400, "no url"},
		{"POST", "/invalidate?url=", 400, "want http://host/path"},
		{"POST", "/invalidate?url=x", 400, "want http://host/path"},
		{"POST", "/invalidate?url=//host/x", 400, "want http://host/path"},
		{"POST", "/invalidate?url=ftp://host/x", 400, "want http://host/path"},
		{"POST", "/invalidate?url=http://u:p@host/x", 400, "without a user"},
		{"POST", "/invalidate?url=http://host/x%23top", 400, "fragment"},
		{"POST", "/invalidate?url=http://ho%20st/", 400, "url"},
		{"POST", "/invalidate?url=%zz", 400, "query cannot be read"},
		{"POST", "/invalidate?url=/x?a=1&b=2", 400, `unknown parameter \"b\"`},
		{"POST", "/invalidate?url=/x&host=a/b", 400, "host"},
		{"POST", "/invalidate?url=/x", 200, `"http://localhost/x"`},
		{"POST", "/invalidate?prefix=/x/&soft=1", 200, `"http://localhost/x/"`},
		{"POST", "/invalidate?prefix=/x/", 200, `"invalidated": []`},
		{"POST", "/invalidate?prefix=/", 200, `"http://localhost/"`},
		{"POST", "/invalidate?prefix=/&host=shop.example", 200, `"http://shop.example/"`},
		{"POST", "/invalidate?prefix=x", 400, "prefix"},
		{"POST", "/invalidate?tag=a&tag=b", 200, `"b"`},
		{"POST", "/invalidate?tag=a%20b", 400, "a b"},
		{"POST", "/invalidate?tag=a&soft=perhaps", 400, "want 1 or 0"},
		{"POST", "/invalidate?url=http://127.0.0.1:8080/x", 200, `"http://localhost/x"`},
		{"POST", "/invalidate?url=/x?a=1%26b=2&host=site.test", 200, `"http://site.test/x?a=1&b=2"`},
		{"POST", "/invalidate?url=http://a.test/x&url=https://b.test/y", 200, `"https://b.test/y"`},
	} {
		if a := do(test.method, back.URL+test.target); a.status != test.status || !strings.Contains(a.body, test.body) {
			t.Errorf("%s %s: %v, want %d and %q", test.method, test.target, a, test.status, test.body)
		}
	}
}

// A page of another site in an operator's browser changes nothing.
func TestAdmin_CrossSite(t *testing.T) {
	_, back := newTestServer(t)
	for _, test := range []struct {
		fields []string
		status int
	}{
		{[]string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		{[]string{"Sec-Fetch-Site", "same-site"}, http.StatusForbidden},
		{[]string{"Origin", "http://evil.test"}, http.StatusForbidden},
		{[]string{"Origin", "null"}, http.StatusForbidden},
		// DNS rebinding: the name of an open page now has the admin listener's address.
		{[]string{"Host", "evil.test:8081", "Origin", "http://evil.test:8081", "Sec-Fetch-Site", "same-origin"}, http.StatusForbidden},
		{[]string{"Sec-Fetch-Site", "same-origin"}, http.StatusOK},
		{[]string{"Origin", back.URL}, http.StatusOK},
		{[]string{"Accept", "*/*"}, http.StatusOK}, // no browser
	} {
		a := do(http.MethodPost, back.URL+"/invalidate?prefix=http://a/", test.fields...)
		if a.status != test.status || a.err != nil {
			t.Errorf("%q: %v, want %d", test.fields, a, test.status)
		}
		if a.status == http.StatusForbidden && !strings.Contains(a.body, "origin") {
			t.Errorf("%q: %s does not say why", test.fields, a.body)
		}
	}
}

func TestSiteHost(t *testing.T) {
	for host, want := range map[string]string{
		"127.0.0.1:8080": noName, "127.0.0.1": noName, "[::1]:80": noName, "[::1]": noName, "10.1.2.3:1": noName,
		"localhost": noName, "LOCALHOST:8080": noName,
		"site.test": "site.test", "site.test:8080": "site.test:8080", "127.0.0.1.site.test": "127.0.0.1.site.test", "": "",
	} {
		if got := siteHost(host); got != want {
			t.Errorf("siteHost(%q) = %q, want %q", host, got, want)
		}
	}
}

// The log reports a silent upstream, but not for a request that its client has left.
func TestProxy_SaysWhoDoesNotAnswer(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer silent.Close()
	upstream, err := url.Parse(silent.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		cause error
		said  bool
	}{
		{context.Canceled, false},
		{driver.ErrLeaseLost, false},
		{errors.New("key invalidated during its rebuild"), false},
		{bellwether.ErrRebuildTimeout, true},
	} {
		var log bytes.Buffer
		proxy, transport := newProxy(upstream, newRepeats(slog.New(slog.NewTextHandler(&log, nil))))
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(20*time.Millisecond, func() { cancel(test.cause) })
		proxy.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
		transport.CloseIdleConnections()
		if said := strings.Contains(log.String(), "does not answer"); said != test.said {
			t.Errorf("%v: said %q, want anything said: %v", test.cause, log.String(), test.said)
		}
	}
}

// TestLookout_ClientPanics has an engine's client panic, as go-redis does on a bulk string of 2^63-1 bytes.
func TestLookout_ClientPanics(t *testing.T) {
	p := &process{}
	hostile := engine{"redis", []string{"127.0.0.1:6379"}, func(context.Context) error { panic("makeslice: len out of range") }}
	since := newLookout(textLog(p), []engine{hostile}).look(t.Context(), hostile, time.Time{})
	if got := p.logged(); since.IsZero() || !strings.Contains(got, "engine unreachable") || !strings.Contains(got, "makeslice") {
		t.Errorf("down since %v, log %q; want an engine that is down, and the panic", since, got)
	}
}

func TestRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := newRepeats(slog.New(slog.NewTextHandler(&log, nil)))
		for range 1000 {
			r.warn("a", "first")
		}
		r.warn("b", "second")
		time.Sleep(repeatPause)
		r.warn("a", "third")
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 3 || !strings.Contains(lines[0], "msg=first") || !strings.Contains(lines[1], "msg=second") || !strings.HasSuffix(lines[2], "msg=third omitted=999") {
			t.Errorf("got %q", lines)
		}
	})
}

func TestKindOf(t *testing.T) {
	other := kindOf(errors.New("x"))
	for _, err := range []error{bellwether.ErrUnavailable, driver.ErrFenced, driver.ErrLeaseLost} {
		if got := kindOf(fmt.Errorf("doing: %w", err)); got == other {
			t.Errorf("%v is of the kind %q", err, got)
		}
	}
}

// A request without a body that net/http would repeat reaches the upstream with the length 0. Sent with
// a body of an unknown type, POST and PUT would lose "Content-Length: 0", and a TRACE would get content.
func TestProxy_RepeatableRequestsKeepTheirLength(t *testing.T) {
	for _, method := range []string{"POST", "PUT", "PATCH", "TRACE"} {
		var length int64
		var coding []string
		up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			length, coding = r.ContentLength, r.TransferEncoding
		}))
		u, _ := url.Parse(up.URL)
		proxy, transport := newProxy(u, newRepeats(slog.New(slog.NewTextHandler(io.Discard, nil))))
		front := httptest.NewServer(proxy)
		do(method, front.URL+"/x", "Idempotency-Key", "k")
		if length != 0 || len(coding) > 0 {
			t.Errorf("%s without a body reached the upstream with Content-Length %d, Transfer-Encoding %v", method, length, coding)
		}
		front.Close()
		up.Close()
		transport.CloseIdleConnections()
	}
}

// A request without a body has none over HTTP/2 either. A cache at the upstream would not answer it.
func TestProxy_NoContentOverHTTP2(t *testing.T) {
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || r.ContentLength != 0 {
			t.Errorf("%s came over %s with a body of %d bytes", r.Method, r.Proto, r.ContentLength)
		}
	}))
	up.EnableHTTP2 = true
	up.StartTLS()
	defer up.Close()
	u, _ := url.Parse(up.URL)
	proxy, transport := newProxy(u, newRepeats(slog.New(slog.NewTextHandler(io.Discard, nil))))
	defer transport.CloseIdleConnections()
	transport.TLSClientConfig.RootCAs = up.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	front := httptest.NewServer(proxy)
	defer front.Close()
	for range 3 {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
			if a := do(method, front.URL+"/x"); a.status != http.StatusOK {
				t.Errorf("%s: %v, want 200", method, a)
			}
		}
	}
}

// TestProxy_SilentConnections has a router that forgets all connections to the upstream: new connections work.
func TestProxy_SilentConnections(t *testing.T) {
	for name, limit := range map[string]int{"HTTP/1": 1, "HTTP/2": 0} { // of the requests that may fail
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				plain := new(http.Protocols) // without TLS, for pipes
				plain.SetHTTP1(name == "HTTP/1")
				plain.SetUnencryptedHTTP2(name == "HTTP/2")
				up := &http.Server{Protocols: plain, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					time.Sleep(time.Second) // for a connection each over HTTP/1
				})}
				listener := pipes{make(chan net.Conn), make(chan struct{})}
				go up.Serve(listener)
				defer up.Close()
				u, _ := url.Parse("http://upstream.test")
				proxy, transport := newProxy(u, newRepeats(slog.New(slog.DiscardHandler)))
				old := new(atomic.Bool)
				for _, tr := range []*http.Transport{transport, proxy.Transport.(*twice).fresh} {
					tr.Protocols, tr.DialContext = plain, func(context.Context, string, string) (net.Conn, error) {
						near, far := net.Pipe()
						listener.conns <- far
						return &deafConn{near, old}, nil
					}
					defer tr.CloseIdleConnections()
				}
				ask := func() int {
					ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Second, bellwether.ErrRebuildTimeout)
					defer cancel()
					w := httptest.NewRecorder()
					proxy.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/x", nil))
					return w.Code
				}
				var clients sync.WaitGroup
				for range 10 {
					clients.Go(func() {
						if got := ask(); got != http.StatusOK {
							t.Errorf("status %d, want 200", got)
						}
					})
				}
				clients.Wait()
				old.Store(true)
				old = new(atomic.Bool)
				failed := 0
				for start := time.Now(); ask() != http.StatusOK; failed++ {
					if failed == 5 {
						t.Fatalf("the upstream has no connection after %v", time.Since(start))
					}
				}
				if failed > limit {
					t.Errorf("%d requests failed, want at most %d", failed, limit)
				}
			})
		})
	}
}

// pipes are a listener.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error {
	close(p.ended)
	return nil
}

func (pipes) Addr() net.Addr { return &net.UnixAddr{} }

// A deafConn loses its data while forgotten.
type deafConn struct {
	net.Conn
	forgotten *atomic.Bool
}

func (c *deafConn) Write(b []byte) (int, error) {
	if c.forgotten.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}
