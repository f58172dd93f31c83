package bellwether_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/go-chi/chi/v5"
)

// This file tests the spellings of a target, which share a page and an invalidation.

// frame encodes a frame of HTTP/2 on stream (RFC 9113 section 4.1).
func frame(kind, flags, stream byte, payload string) string {
	n := len(payload)
	return string([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags, 0, 0, 0, stream}) + payload
}

// literals encodes fields shorter than 127 bytes in HPACK, without compression (RFC 7541 section 6.2.2).
func literals(fields ...string) string {
	var b strings.Builder
	for i, s := range fields {
		if i%2 == 0 {
			b.WriteByte(0)
		}
		b.WriteByte(byte(len(s)))
		b.WriteString(s)
	}
	return b.String()
}

// A "host" field beside HTTP/2's ":authority", which gateways to CGI may obey, does not reach the handler.
func TestSpelling_HostBesideAuthority(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprintf(w, "%s %q", r.Host, r.Header["Host"])
	})
	var seen []string
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Proto+" "+strings.Join(r.Header["Host"], ","))
		s.handler.ServeHTTP(w, r)
	}))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	defer srv.Close()

	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const headers, settings, endStream, endHeaders = 1, 4, 1, 4
	request := literals(":method", "GET", ":scheme", "http", ":path", "/p", ":authority", "good.example", "host", "evil.example")
	io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+frame(settings, 0, 0, "")+frame(headers, endStream|endHeaders, 1, request))
	for head := make([]byte, 9); ; { // until the stream's end
		if _, err := io.ReadFull(conn, head); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, conn, int64(head[0])<<16|int64(head[1])<<8|int64(head[2])); err != nil {
			t.Fatal(err)
		}
		if head[8] == 1 && head[4]&endStream != 0 {
			break
		}
	}
	if want := []string{"HTTP/2.0 evil.example"}; !slices.Equal(seen, want) {
		t.Fatalf("the server saw %q, want %q", seen, want)
	}
	if got, want := s.get("http://good.example/p").Body.String(), "good.example []"; got != want {
		t.Errorf("the next client got %q, want %q", got, want)
	}
	s.wantCalls(t, 1)
}

func TestSpelling_InvalidationMeansAll(t *testing.T) {
	match := func(m bellwether.Match) func(*site) error {
		return func(s *site) error { return s.mw.InvalidateMatching(context.Background(), m) }
	}
	unsafe := func(url, location string) func(*site) error {
		return func(s *site) error {
			s.do(request("POST", url, "X-Location", location))
			return nil
		}
	}
	for name, invalidate := range map[string]func(*site) error{
		"URL":               match(bellwether.Match{Keys: []string{"http://a/people/anna(1)"}}),
		"URL, encoded":      match(bellwether.Match{Keys: []string{"http://a/%70eople/anna%281%29"}}),
		"soft URL":          match(bellwether.Match{Keys: []string{"http://a/people/anna(1)"}, Soft: true}),
		"prefix":            match(bellwether.Match{Prefixes: []string{"http://a/people/an"}}),
		"prefix, encoded":   match(bellwether.Match{Prefixes: []string{"http://a/people/%61nna%28"}}),
		"prefix, cut short": match(bellwether.Match{Prefixes: []string{"http://a/people/anna%2"}}),
		"POST":              unsafe("http://a/people/ann%61(1)", ""),
		"Location":          unsafe("http://a/people", "/people/ann%61(1)"),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{InvalidateLocations: true}, func(w http.ResponseWriter, r *http.Request) {
				if location := r.Header.Get("X-Location"); location != "" {
					w.Header().Set("Location", location)
				}
				w.Header().Set("Cache-Control", "max-age=60")
				fmt.Fprint(w, r.URL.EscapedPath(), " ", r.RequestURI)
			})
			spellings := []string{"/people/%61nna(1)", "/people/anna(1)", "/people/anna%281%29", "/%70eople/ann%61%28%31%29"}
			for _, path := range spellings {
				if got, want := s.get("http://a"+path).Body.String(), "/people/anna(1) /people/anna(1)"; got != want {
					t.Errorf("of %s the handler saw %q, want %q", path, got, want)
				}
			}
			s.wantCalls(t, 1)
			if err := invalidate(s); err != nil {
				t.Fatal(err)
			}
			s.calls.Store(0)
			s.get("http://a" + spellings[0])
			s.wantCalls(t, 1)
		})
	}
}

// Spellings do not share a page behind a router of sent paths, such as chi, which may tell them apart.
func TestSpelling_BehindARouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, chi.RouteContext(r.Context()).RoutePattern(), " ", chi.URLParam(r, "id"))
		})
		router := chi.NewRouter()
		router.Get("/people/anna", s.handler.ServeHTTP)
		router.Get("/people/{id}", s.handler.ServeHTTP)
		router.Mount("/in", func() http.Handler {
			in := chi.NewRouter()
			in.Use(func(next http.Handler) http.Handler { return s.handler })
			in.Get("/*", func(http.ResponseWriter, *http.Request) {})
			return in
		}())
		ask := func(path string) (body, status string) {
			w := httptest.NewRecorder()
			router.ServeHTTP(w, request("GET", "http://a"+path))
			synctest.Wait() // the page is stored just after the answer
			return w.Body.String(), w.Header().Get("Cache-Status")
		}
		for range 2 {
			for path, want := range map[string]string{"/people/%61nna": "/people/{id} %61nna", "/people/anna": "/people/anna ", "/people/x%20(1)": "/people/{id} x%20(1)"} {
				if got, _ := ask(path); got != want {
					t.Errorf("%s got %q, want %q", path, got, want)
				}
			}
		}
		s.wantCalls(t, 4)
		for path, want := range map[string]string{"/people/%61nna": `fwd=bypass;detail="path spelling"`, "/people/anna": ";hit", "/in/%61": "path spelling", "/people/x%20(1)": ";hit"} {
			if _, got := ask(path); !strings.Contains(got, want) {
				t.Errorf("%s: Cache-Status %q, want %q", path, got, want)
			}
		}
	})
}

// The response to a POST with another spelling of the path is not stored.
func TestSpelling_OfAPost(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Content-Location", "/p")
		fmt.Fprint(w, r.Method, " ", r.RequestURI)
	})
	for path, want := range map[string]string{"/%70": "GET /p", "/p": "POST http://a/p"} {
		s.do(request("POST", "http://a"+path))
		s.wantBody(t, want, "http://a/p") // after the POST
	}
}

// A field with "_" in its name, which gateways to CGI take for "-", does not reach a shared page's handler.
func TestSpelling_AliasesBeforeAGateway(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		for _, name := range []string{"X_Forwarded_Host", "X-Forwarded_Host", "X_HTTP_Method_Override", "If_None_Match", "Host"} {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Content-Location", "/p")
				for name, values := range r.Header {
					fmt.Fprint(w, strings.ToUpper(strings.ReplaceAll(name, "-", "_")), values)
				}
			})
			s.do(request(method, "http://a/p", name, "evil", "Api_Key", "k"))
			if w := s.get("http://a/p"); w.Code != 200 || strings.Contains(w.Body.String(), "evil") {
				t.Errorf("%s with %s: the next client got %d %q", method, name, w.Code, w.Body)
			}
			s.wantBody(t, "API_KEY[k]", "http://a/q", "Api_Key", "k") // other fields with "_" reach the handler
		}
	}
}

func raw(t *testing.T, addr, message string) (status int, body string, header http.Header) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	io.WriteString(conn, message)
	method, _, _ := strings.Cut(message, " ")
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%q: %v", message, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%q: %v", message, err)
	}
	return res.StatusCode, string(b), res.Header
}

// Spellings of one target share a response, without traces of the first spelling.
func TestSpelling_OfOneTarget(t *testing.T) {
	spellings := []string{
		"GET /p?q HTTP/1.1\r\nHost: EVIL.example\r\n\r\n",
		"GET /p?q HTTP/1.1\r\nHost: evil.example.\r\n\r\n",
		"GET /p?q HTTP/1.1\r\nHost: evil.example:80\r\n\r\n",
		"GET /p?q HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
		"GET /p?q HTTP/1.1\r\nHost: evil.example:0080\r\n\r\n",
		"GET http://evil.example/p?q HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET http://Evil.Example.:80/p?q HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET https://evil.example/p?q HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET HTTP://evil.example/p?q HTTP/1.1\r\nHost: other\r\n\r\n", // RFC 9112 section 3.2.2: Host does not count
		"HEAD /p?q HTTP/1.1\r\nHost: evil.example:80\r\n\r\n",
		"GET /%70?q HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET http://evil.example/%70?q HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET /p?q HTTP/1.0\r\nHost: evil.example\r\n\r\n",
	}
	want := ""
	for first := range spellings {
		s := newSite(t, bellwether.HTTPOptions{}, quote)
		addr := serve(t, s.handler).Listener.Addr().String()
		for i := range spellings {
			spelling := spellings[(first+i)%len(spellings)]
			status, body, _ := raw(t, addr, spelling)
			if strings.HasPrefix(spelling, "HEAD") {
				continue
			}
			if want == "" {
				want = body
			}
			if status != 200 || body != want {
				t.Fatalf("first %q: %q got %d %q, want %q", spellings[first], spelling, status, body, want)
			}
		}
		s.wantCalls(t, 1)
	}
	if !strings.HasPrefix(want, "GET evil.example /p?q /p?q|") {
		t.Errorf("the handler saw %q", want)
	}
}

func TestSpelling_OfDifferentTargets(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{}, quote)
	addr := serve(t, s.handler).Listener.Addr().String()
	bodies := map[string]string{}
	targets := []string{
		"/p", "/P", "/p/", "//p", "/./p", "/x/../p", "/p%2F", "/p/q", "/p%2Fq", "/p;q", "/p%3Bq", "/p%3Fq", "/p%00", "/p%23",
		"/p?", "/p?a=1&b=2", "/p?b=2&a=1", "/p?a=1&b=2&a=1", "/p?a=1;b=2", "/p?a=%31", "/p?a=+1", "/p?a=%201", "/p??", "/p?utm_source=x",
	}
	for range 2 {
		for _, target := range targets {
			_, body, _ := raw(t, addr, "GET "+target+" HTTP/1.1\r\nHost: a\r\n\r\n")
			if !strings.Contains(body, " "+target+"|") {
				t.Errorf("%s got %q", target, body)
			}
			bodies[body] = target
		}
	}
	if len(bodies) != len(targets) {
		t.Errorf("%d bodies for %d targets", len(bodies), len(targets))
	}
	s.wantCalls(t, int32(len(targets)))
	for _, host := range []string{"a:8080", "b", "a.b", "[::1]"} {
		if _, body, _ := raw(t, addr, "GET /p HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); !strings.HasPrefix(body, "GET "+host+" ") {
			t.Errorf("%s got %q", host, body)
		}
	}
	s.wantCalls(t, 4)
}
