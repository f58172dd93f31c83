package bellwether_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
	"github.com/go-chi/chi/v5"
)

// This file tests the spellings of a target, which share a page and an invalidation.

// An invalidation covers all spellings of a path, and both schemes. A plain unsafe request leaves pages
// over TLS, because anyone on its way can forge it.
func TestSpelling_InvalidationMeansAll(t *testing.T) {
	match := func(m bellwether.Match) func(*testing.T, *site) {
		return func(t *testing.T, s *site) { sweep(t, s, m) }
	}
	unsafe := func(url, location string) func(*testing.T, *site) {
		return func(t *testing.T, s *site) { s.do(request("POST", url, "X-Location", location)) }
	}
	const both, plain = "[http https]", "[http]"
	for name, tt := range map[string]struct {
		invalidate func(*testing.T, *site)
		gone       string
	}{
		"URL":               {match(bellwether.Match{Keys: []string{"http://a/people/anna(1)"}}), both},
		"URL, encoded":      {match(bellwether.Match{Keys: []string{"https://a/%70eople/anna%281%29"}}), both},
		"soft URL":          {match(bellwether.Match{Keys: []string{"http://a/people/anna(1)"}, Soft: true}), both},
		"prefix":            {match(bellwether.Match{Prefixes: []string{"http://a/people/an"}}), both},
		"prefix, encoded":   {match(bellwether.Match{Prefixes: []string{"https://a:443/people/%61nna%28"}}), both},
		"prefix, cut short": {match(bellwether.Match{Prefixes: []string{"http://a/people/anna%2"}}), both},
		"soft prefix":       {match(bellwether.Match{Prefixes: []string{"https://a/people"}, Soft: true}), both},
		"tag":               {match(bellwether.Match{Tags: []string{"anna"}}), both},
		"POST":              {unsafe("http://a/people/ann%61(1)", ""), plain},
		"POST over TLS":     {unsafe("https://a/people/ann%61(1)", ""), both},
		"Location":          {unsafe("http://a/people", "https://a/people/ann%61(1)"), plain},
		"Location over TLS": {unsafe("https://a/people", "/people/ann%61(1)"), both},
	} {
		for kind, o := range map[string]bellwether.HTTPOptions{
			"alone": {}, "store": {}, "soft POST": {UnsafeInvalidation: bellwether.SoftInvalidation},
		} {
			inBubble(t, name+", "+kind, func(t *testing.T) {
				o.InvalidateLocations = true
				if kind == "store" {
					o.Fleet.Store = memstore.New()
				}
				s := newSite(t, o, func(w http.ResponseWriter, r *http.Request) {
					if r.Method == "POST" {
						w.Header().Set("Location", r.Header.Get("X-Location"))
						return
					}
					w.Header().Set("Cache-Control", "max-age=60, stale-while-revalidate=60")
					if r.Host == "a" {
						w.Header().Set("Surrogate-Key", "anna")
					}
					fmt.Fprint(w, r.TLS != nil, " ", r.URL.EscapedPath(), " ", r.RequestURI)
				})
				spellings := []string{"/people/%61nna(1)", "/people/anna(1)", "/people/anna%281%29", "/%70eople/ann%61%28%31%29"}
				for _, scheme := range []string{"http", "https"} {
					for _, path := range spellings {
						s.wantBody(t, fmt.Sprint(scheme == "https", " /people/anna(1) /people/anna(1)"), scheme+"://a"+path)
						synctest.Wait()
					}
				}
				s.get("https://a.b/people/anna(1)")
				synctest.Wait()
				s.wantCalls(t, 3)
				tt.invalidate(t, s)
				synctest.Wait()
				var gone []string
				for _, scheme := range []string{"http", "https"} {
					s.calls.Store(0)
					s.get(scheme + "://a" + spellings[0])
					synctest.Wait() // a soft invalidation rebuilds in the background
					if s.calls.Load() > 0 {
						gone = append(gone, scheme)
					}
				}
				if got := fmt.Sprint(gone); got != tt.gone {
					t.Errorf("made anew: %s, want %s", got, tt.gone)
				}
				s.calls.Store(0)
				s.get("https://a.b/people/anna(1)")
				s.wantCalls(t, 0)
			})
		}
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

// http.ServeMux routes by the host as sent: a host in another spelling may have another handler.
func TestSpelling_HostBehindServeMux(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
		defer mw.Close()
		mux := http.NewServeMux()
		for _, pattern := range []string{"shop.example/", "[::1]/", "/"} {
			mux.Handle(pattern, mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				io.WriteString(w, pattern)
			})))
		}
		ask := func(host, path string) (body, status string) {
			r := httptest.NewRequest("GET", path, nil)
			r.Host = host
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, r)
			return w.Body.String(), w.Header().Get("Cache-Status")
		}
		// An address loses its brackets together with its port.
		for i, host := range []string{"SHOP.example", "shop.example.", "SHOP.example:80", "[::1]:80", "[0::1]"} {
			path := fmt.Sprint("/", i)
			if body, status := ask(host, path); body != "/" || !strings.Contains(status, `fwd=bypass;detail="host spelling"`) {
				t.Errorf("%q got %q (%s), want the other handler's page, past the cache", host, body, status)
			}
			for _, host := range []string{"shop.example", "shop.example:80", "[::1]", "[::1]:8080"} {
				want := "shop.example/"
				switch host {
				case "[::1]":
					want = "[::1]/"
				case "[::1]:8080":
					want = "/"
				}
				if body, status := ask(host, path); body != want || strings.Contains(status, "bypass") {
					t.Errorf("%q got %q (%s), want %q through the cache", host, body, status, want)
				}
			}
		}
		synctest.Wait() // the page is kept
		if body, status := ask("shop.example:443", "/0"); body != "shop.example/" || !strings.Contains(status, ";hit") {
			t.Errorf("another port got %q (%s), want a hit", body, status)
		}
	})
}

// A field with "_" in its name, which gateways to CGI take for "-", does not reach a shared page's handler.
func TestSpelling_AliasesBeforeAGateway(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		for _, name := range []string{"X_Forwarded_Host", "X-Forwarded_Host", "X_HTTP_Method_Override", "If_None_Match", "X_Session_Key", "Host"} {
			s := newSite(t, bellwether.HTTPOptions{CredentialFields: []string{"X-Session-Key"}}, func(w http.ResponseWriter, r *http.Request) {
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

// An alias of a field in Vary makes a variant of its own.
func TestSpelling_AliasOfAVaryField(t *testing.T) {
	for _, name := range []string{"Accept_Language", "accept_language"} {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Vary", "Accept-Language")
			fmt.Fprintf(w, "%v%v", r.Header["Accept-Language"], r.Header["Accept_language"])
		})
		for _, fields := range [][]string{{name, "evil"}, {"Accept-Language", "de", name, "evil"}} {
			s.get("http://a/p", fields...)
			s.wantBody(t, "[][]", "http://a/p")
			s.wantBody(t, "[de][]", "http://a/p", "Accept-Language", "de")
		}
		s.wantCalls(t, 4)
	}
}

func raw(t *testing.T, addr, message string) (status int, body string, header http.Header) {
	t.Helper()
	conn := dial(t, addr)
	defer conn.Close()
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

// In front of a router's routes no spelling has chosen a handler yet, and all have one page.
func TestSpelling_InFrontOfARouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
		defer mw.Close()
		router := chi.NewRouter()
		router.Use(mw.Handler)
		router.Get("/{id}", page(0, "page"))
		for i, path := range []string{"/anna", "/%61nna"} {
			w := httptest.NewRecorder()
			router.ServeHTTP(w, request("GET", "http://a"+path))
			synctest.Wait()
			if hit := strings.Contains(w.Header().Get("Cache-Status"), ";hit"); hit != (i > 0) {
				t.Errorf("%s: %d, Cache-Status %q", path, w.Code, w.Header().Get("Cache-Status"))
			}
		}
	})
}
