package bellwether_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// HiddenFields reach no client in any kind of reply, and the cache still obeys them.
func TestHidden_OnEveryWay(t *testing.T) {
	names := []string{"surrogate-control", "Surrogate-Key", "Cache-Tag"}
	for name, store := range map[string]driver.Store{"alone": nil, "store": memstore.New()} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{
				Fleet:        bellwether.Fleet{Store: store, EngineTimeout: time.Minute},
				HiddenFields: names, TargetedFields: []string{"Surrogate-Control"},
				Key: func(r *http.Request) (bellwether.Key, bool) {
					return bellwether.Key{URL: "http://a" + r.URL.Path}, r.URL.Path != "/refused"
				},
			}, func(w http.ResponseWriter, r *http.Request) {
				h := w.Header()
				h["cache-tag"] = []string{"b"} // as a handler may write it
				h.Set("Surrogate-Key", "a")
				h.Set("Surrogate-Control", "max-age=60")
				h.Set("Content-Location", r.URL.Path)
				h.Set("Etag", `"1"`)
				h.Set("Trailer", "X-Sum, Surrogate-Key")
				switch r.URL.Path {
				case "/private":
					h.Set("Surrogate-Control", "private")
				case "/checked":
					h.Set("Surrogate-Control", "no-cache, max-age=0")
				case "/events":
					h.Set("Content-Type", "text/event-stream")
				}
				if r.Method == http.MethodGet {
					h.Set("Link", "</x>")
					w.WriteHeader(http.StatusEarlyHints)
				}
				if h.Get("Surrogate-Key") != "a" {
					t.Error("the handler's own header has lost a field")
				}
				if r.Header.Get("If-None-Match") == `"1"` && r.URL.Path == "/checked" {
					w.WriteHeader(http.StatusNotModified)
					return
				}
				io.WriteString(w, "body")
				http.NewResponseController(w).Flush()
				h.Set("X-Sum", "1")
				h.Set(http.TrailerPrefix+"Surrogate-Key", "a")
				h.Set(http.TrailerPrefix+"Cache-Tag", "a")
			})
			srv := serve(t, s.handler)
			ask := func(method, path string, fields ...string) (int, string, http.Header) {
				t.Helper()
				r, err := http.NewRequest(method, srv.URL+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				for i := 0; i < len(fields); i += 2 {
					r.Header.Set(fields[i], fields[i+1])
				}
				check := func(where string, h http.Header) {
					t.Helper()
					for _, name := range names {
						if h.Values(name) != nil {
							t.Errorf("%s %s %v: %s has %s", method, path, fields, where, name)
						}
					}
				}
				r = r.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
					Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
						check("the interim response", http.Header(h))
						return nil
					},
				}))
				res, err := srv.Client().Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				check("the header", res.Header)
				body, _ := io.ReadAll(res.Body)
				check("the trailers", res.Trailer)
				return res.StatusCode, string(body), res.Header
			}
			want := func(status int, way, method, path string, fields ...string) {
				t.Helper()
				got, body, h := ask(method, path, fields...)
				if got != status || !strings.Contains(h.Get("Cache-Status"), way) {
					t.Errorf("%s %s %v: %d %q %q, want %d by %s", method, path, fields, got, body, h.Get("Cache-Status"), status, way)
				}
			}
			want(200, "fwd=uri-miss", "GET", "/p")
			eventually(t, func() bool { // the page is stored
				_, _, h := ask("GET", "/p")
				return strings.Contains(h.Get("Cache-Status"), "hit")
			})
			want(200, ";hit", "GET", "/p")
			want(200, ";hit", "HEAD", "/p")
			want(304, ";hit", "GET", "/p", "If-None-Match", `"1"`)
			want(206, ";hit", "GET", "/p", "Range", "bytes=1-2")
			want(200, "fwd=bypass", "GET", "/p", "Cache-Control", "no-store")
			want(200, "fwd=bypass", "GET", "/refused")
			want(200, "fwd=bypass", "GET", "/events", "Accept", "text/event-stream")
			want(200, "fwd=bypass", "GET", "/p", "Upgrade", "other")
			want(200, "fwd=method", "POST", "/other")
			for range 2 {
				ask("GET", "/private")
				ask("GET", "/checked")
				ask("GET", "/events")
			}
			want(200, "", "GET", "/checked", "If-None-Match", `"2"`)
			s.calls.Store(0)
			want(200, ";hit", "GET", "/p")
			s.wantCalls(t, 0)
			sweep(t, s, bellwether.Match{Tags: []string{"b"}})
			want(200, "fwd=uri-miss", "GET", "/p")
			s.wantCalls(t, 1)
		})
	}
}

func TestHidden_OfAMiddlewareAround(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{HiddenFields: []string{"Cache-Tag"}}, page(0, "page"))
	odd := "cache-tag"
	h := outer(odd, "outer")(s.handler)
	for range 3 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request("GET", "http://a/p"))
		if w.Header()[odd] != nil || w.Body.String() != "page" {
			t.Errorf("%v %q", w.Header(), w.Body)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, request("GET", "http://a/q", "Cache-Control", "only-if-cached"))
	if w.Header()[odd] != nil || w.Code != http.StatusGatewayTimeout {
		t.Errorf("not cached: %d %v", w.Code, w.Header())
	}
}

// With HiddenFields no handler has the real ResponseWriter: our member of Cache-Status comes after the handler's,
// which cannot replace it, and in no interim response.
func TestHidden_StatusOfARequestWithoutAKey(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{
		HiddenFields: []string{"Surrogate-Key"}, Key: func(r *http.Request) (bellwether.Key, bool) { return bellwether.Key{}, false },
	}, func(w http.ResponseWriter, r *http.Request) {
		if h := w.Header(); h["Cache-Status"] != nil {
			t.Errorf("the handler's header has %q", h["Cache-Status"])
		}
		w.Header().Set("Cache-Status", "inner;hit")
	})
	got := strings.Join(s.get("http://a/p").Header()["Cache-Status"], ", ")
	if want := "inner;hit, Bellwether;fwd=bypass;detail=key"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHidden_StatusKey(t *testing.T) {
	for _, hide := range []bool{false, true} {
		s := newSite(t, bellwether.HTTPOptions{HideStatusKey: hide}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			fmt.Fprint(w, "page")
		})
		status := s.get("http://a/p").Header().Get("Cache-Status")
		if !strings.Contains(status, "stored") || strings.Contains(status, "key=") == hide {
			t.Errorf("HideStatusKey %v: %s", hide, status)
		}
	}
}

// HiddenFields of a handler that panics are removed before an outer middleware answers.
func TestHidden_BehindAPanic(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{HiddenFields: []string{"Surrogate-Key"}}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Surrogate-Key", "secret")
		panic("bug")
	})
	recoverer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // as chi's
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		s.handler.ServeHTTP(w, r)
	})
	for _, r := range []*http.Request{
		request("GET", "http://a/p"), request("POST", "http://a/p"), request("GET", "http://a/p", "Cache-Control", "no-store"),
	} {
		w := httptest.NewRecorder()
		recoverer.ServeHTTP(w, r)
		if res := w.Result(); res.StatusCode != http.StatusInternalServerError || res.Header.Values("Surrogate-Key") != nil {
			t.Errorf("%s %v: %d %v", r.Method, r.Header, res.StatusCode, res.Header)
		}
	}
}

// The handler panics after a response that the cache does not share, or must validate each time.
func TestHidden_BehindAPanicOfAnUnsharedPage(t *testing.T) {
	for _, cc := range []string{"private", "no-cache, public"} {
		fails := false
		s := newSite(t, bellwether.HTTPOptions{HiddenFields: []string{"Surrogate-Key"}}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Surrogate-Key", "secret")
			if fails {
				panic("bug")
			}
			w.Header().Set("Cache-Control", cc)
			w.Header().Set("ETag", `"1"`)
		})
		s.get("http://a/p")
		fails = true
		w := httptest.NewRecorder()
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", cc)
				}
				w.WriteHeader(http.StatusInternalServerError)
			}()
			s.handler.ServeHTTP(w, request("GET", "http://a/p"))
		}()
		if res := w.Result(); res.Header.Values("Surrogate-Key") != nil {
			t.Errorf("%s: %v", cc, res.Header)
		}
	}
}
