package bellwether_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// secured sends plain requests on to https, and answers those that are.
func secured(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "max-age=3600, stale-while-revalidate=3600")
	w.Header().Set("Surrogate-Key", "all")
	if r.TLS == nil {
		http.Redirect(w, r, "https://"+r.Host+r.URL.RequestURI(), http.StatusMovedPermanently)
		return
	}
	fmt.Fprint(w, "page")
}

// A redirect to https that was made for a plain request is never the answer to
// one over TLS, however it got into the cache: it would send its client in
// circles. Nor does a page that was made over TLS go out in plain.
func TestKey_RedirectToTLSIsNoLoop(t *testing.T) {
	for name, plainFirst := range map[string]bool{"plain first": true, "TLS first": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := sites(t, 2, memstore.New(), secured)
				ask := func(s *site, url string, want int) {
					t.Helper()
					if w := s.get(url); w.Code != want {
						t.Errorf("%s: %d %s, want %d", url, w.Code, w.Header().Get("Location"), want)
					}
				}
				for range 2 {
					for _, s := range all {
						if plainFirst {
							ask(s, "http://a/p", 301)
						}
						ask(s, "https://a/p", 200)
						ask(s, "http://a/p", 301)
					}
				}
				if calls := all[0].calls.Load() + all[1].calls.Load(); calls != 2 {
					t.Errorf("%d handler calls for two representations, want 2", calls)
				}
			})
		})
	}
}

// The same with a real client that follows redirects, over one handler behind
// two listeners.
func TestKey_RedirectToTLSOnTheWire(t *testing.T) {
	var target string
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
	defer mw.Close()
	handler := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		if r.TLS == nil {
			http.Redirect(w, r, target+r.URL.RequestURI(), http.StatusMovedPermanently)
			return
		}
		fmt.Fprint(w, "page")
	}))
	// Both see one Host, as with the ports 80 and 443.
	sameHost := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Host = "example.com"
		handler.ServeHTTP(w, r)
	})
	plain, secure := httptest.NewServer(sameHost), httptest.NewTLSServer(sameHost)
	defer plain.Close()
	defer secure.Close()
	target = secure.URL
	client := secure.Client()
	defer client.CloseIdleConnections()
	for range 3 {
		resp, err := client.Get(plain.URL + "/p")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("status %d, want 200", resp.StatusCode)
		}
	}
}

// Whoever invalidates a URL means what is there, by whichever scheme it was
// asked for; and so does an unsafe request.
func TestKey_InvalidationMeansBothSchemes(t *testing.T) {
	match := func(m bellwether.Match) func(*testing.T, *site) {
		return func(t *testing.T, s *site) {
			if err := s.mw.InvalidateMatching(t.Context(), m); err != nil {
				t.Error(err)
			}
		}
	}
	unsafe := func(url, location string) func(*testing.T, *site) {
		return func(_ *testing.T, s *site) { s.do(request("POST", url, "X-Location", location)) }
	}
	for name, invalidate := range map[string]func(*testing.T, *site){
		"http URL":                  match(bellwether.Match{URLs: []string{"http://a/p"}}),
		"https URL":                 match(bellwether.Match{URLs: []string{"https://a/p"}}),
		"soft URL":                  match(bellwether.Match{URLs: []string{"http://a/p"}, Soft: true}),
		"http prefix":               match(bellwether.Match{Prefixes: []string{"http://a/"}}),
		"https prefix":              match(bellwether.Match{Prefixes: []string{"https://a:443"}}),
		"soft prefix":               match(bellwether.Match{Prefixes: []string{"https://a/p"}, Soft: true}),
		"tag":                       match(bellwether.Match{Tags: []string{"all"}}),
		"plain POST":                unsafe("http://a/p", ""),
		"POST over TLS":             unsafe("https://a/p", ""),
		"Location, plain":           unsafe("http://a/other", "https://a/p"),
		"Location, over TLS":        unsafe("https://a/other", "http://a/p"),
		"Location without a scheme": unsafe("https://a/other", "/p"),
	} {
		for fleet, store := range map[string]bool{"alone": false, "fleet": true} {
			t.Run(name+"/"+fleet, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var st bellwether.Store
					if store {
						st = memstore.New()
					}
					s := sites(t, 1, st, func(w http.ResponseWriter, r *http.Request) {
						if r.Method == "POST" {
							if location := r.Header.Get("X-Location"); location != "" {
								w.Header().Set("Location", location)
							}
							return
						}
						secured(w, r)
					})[0]
					for _, u := range []string{"http://a/p", "https://a/p", "https://a.b/p"} {
						s.get(u)
					}
					s.calls.Store(0)
					invalidate(t, s)
					synctest.Wait()
					s.calls.Store(0)
					for _, u := range []string{"http://a/p", "https://a/p"} {
						s.get(u)
						synctest.Wait() // what is softly invalidated is rebuilt behind its client
					}
					s.wantCalls(t, 2)
					if name != "tag" {
						s.get("https://a.b/p")
						s.wantCalls(t, 0)
					}
				})
			})
		}
	}
}

// Behind a proxy that ends TLS the scheme is what the proxy says.
func TestKey_SchemeFromAProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Forwarded-Proto") == "https" {
				r.TLS = new(tls.ConnectionState)
			}
			secured(w, r)
		})
		for range 2 {
			if w := s.get("http://a/p", "X-Forwarded-Proto", "http"); w.Code != 301 {
				t.Errorf("plain: %d", w.Code)
			}
			if w := s.get("http://a/p", "X-Forwarded-Proto", "https"); w.Code != 200 {
				t.Errorf("over TLS: %d", w.Code)
			}
		}
		s.wantCalls(t, 2)
	})
}

// A proxy that sends its field for what came over TLS only, as nginx does with a
// proxy_set_header in the TLS server alone: what was made for a request without is
// not for one with it.
func TestKey_FieldOfTLSAlone(t *testing.T) {
	for name, value := range map[string]string{"X-Forwarded-Proto": "https", "X-Arr-Ssl": "2048|256|CN=x", "Front-End-Https": "on"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					if r.Header.Get(name) != "" {
						r.TLS = new(tls.ConnectionState)
					}
					secured(w, r)
				})
				for range 2 {
					if w := s.get("http://a/p"); w.Code != 301 {
						t.Errorf("plain: %d", w.Code)
					}
					if w := s.get("http://a/p", name, value); w.Code != 200 {
						t.Errorf("over TLS: %d %s %s", w.Code, w.Header().Get("Location"), w.Header().Get("Cache-Status"))
					}
				}
				s.wantCalls(t, 3) // with what tells the two apart from then on
			})
		})
	}
}

func TestKey_Option(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{Key: func(r *http.Request) (string, bool) {
			q := r.URL.Query()
			q.Del("utm_source")
			scheme := "http"
			if r.Header.Get("X-Tls") == "on" {
				scheme = "https"
			}
			u := scheme + "://" + r.Host + r.URL.EscapedPath()
			if len(q) > 0 {
				u += "?" + q.Encode()
			}
			switch r.URL.Path {
			case "/refused":
				return u, false
			case "/nonsense":
				return "nonsense", true
			case "/fragment":
				return u + "#f", true
			}
			return u, r.Method != http.MethodDelete
		}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=3600")
			fmt.Fprint(w, r.Header.Get("X-Tls"))
		})
		s.get("http://a/p?utm_source=x&b=2&a=1")
		synctest.Wait() // it is kept a moment after it was answered
		w := s.get("http://A/p?a=1&b=2&utm_source=y")
		if !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
			t.Errorf("one URL by Key: %v", w.Header())
		}
		s.wantCalls(t, 1)
		if w := s.get("http://a/p?a=1&b=2", "X-Tls", "on"); w.Body.String() != "on" {
			t.Errorf("another scheme by Key: %q", w.Body)
		}
		s.wantCalls(t, 1)
		for _, path := range []string{"/refused", "/nonsense", "/fragment"} {
			for range 2 {
				if w := s.get("http://a" + path); w.Code != 200 || !strings.Contains(w.Header().Get("Cache-Status"), "fwd=bypass") {
					t.Errorf("%s: %d %v", path, w.Code, w.Header())
				}
			}
			s.wantCalls(t, 2)
		}
		for name, invalidate := range map[string]func(){
			"by URL":                  func() { s.mw.Invalidate(t.Context(), "http://a/p?a=1&b=2") },
			"by an unsafe request":    func() { s.do(request("POST", "http://a/p?b=2&a=1&utm_source=z")) },
			"by one that Key refuses": func() { s.do(request("DELETE", "http://a/p?a=1&b=2")) },
		} {
			s.get("http://a/p?a=1&b=2")
			s.calls.Store(0)
			invalidate()
			synctest.Wait()
			time.Sleep(time.Millisecond)
			s.calls.Store(0)
			s.get("http://a/p?a=1&b=2")
			if s.calls.Swap(0) != 1 {
				t.Errorf("%s: still there", name)
			}
		}
	})
}
