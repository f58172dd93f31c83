package bellwether_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/go-chi/chi/v5/middleware"
)

// This file tests the middleware inside and around others, whose fields belong to their own client.

// A middleware around itself caches once, without waiting for its own run of the handler.
func TestChain_Twice(t *testing.T) {
	for name, between := range map[string]func(http.Handler) http.Handler{
		"at once":                  func(h http.Handler) http.Handler { return h },
		"with a writer of its own": middleware.Compress(5),
	} {
		inBubble(t, name, func(t *testing.T) {
			mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
			defer mw.Close()
			runs := 0
			h := mw.Handler(between(mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Millisecond) // or the client that begins the rebuild may find its response
				runs++
				w.Header().Set("Cache-Control", "max-age=60, stale-while-revalidate=60")
				fmt.Fprint(w, "page ", runs)
			}))))
			for i, want := range []string{"page 1", "page 1", "page 1", "page 2"} {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, request("GET", "http://a/p"))
				synctest.Wait()
				if w.Code != 200 || w.Body.String() != want || len(w.Header()["Cache-Status"]) != 1 {
					t.Errorf("%d: %d %q %v", i, w.Code, w.Body, w.Header())
				}
				time.Sleep(31 * time.Second)
			}
		})
	}
}

// A middleware around another caches its handler's pages, and so does the other. Refresh is of its own middleware.
func TestChain_TwoCaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{TTL: time.Hour}, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "page") })
		outer := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Minute})
		defer outer.Close()
		h := outer.Handler(s.handler)
		get := func() { h.ServeHTTP(httptest.NewRecorder(), request("GET", "http://a/p")) }
		get()
		time.Sleep(2 * time.Minute)
		get()
		s.wantCalls(t, 1)
		time.Sleep(2 * time.Minute)
		if err := s.mw.Refresh(h, request("GET", "http://a/p")); err != nil {
			t.Error(err)
		}
		s.wantCalls(t, 1)
	})
}

// A bypass of the outer of two middlewares also bypasses the inner, without a second wait.
func TestChain_TwiceAndBypassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mw := bellwether.NewMiddleware(bellwether.HTTPOptions{MaxPassThrough: 1, MaxWait: time.Second})
		defer mw.Close()
		h := mw.Handler(mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				time.Sleep(5 * time.Second)
			}
			w.Header().Set("Cache-Control", "private")
			fmt.Fprint(w, "page")
		})))
		for _, test := range []struct {
			name, method, path string
			fields             []string
			took               time.Duration
		}{
			{"first", "GET", "/p", nil, 0},
			{"known as one client's", "GET", "/p", nil, 0},
			{"no-store", "GET", "/p", []string{"Cache-Control", "no-store"}, 0},
			{"POST", "POST", "/p", nil, 0},
			{"DELETE", "DELETE", "/p", nil, 0},
			{"let through", "GET", "/slow", nil, 6 * time.Second},
		} {
			start := time.Now()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, request(test.method, "http://a"+test.path, test.fields...))
			if w.Code != 200 || w.Body.String() != "page" || len(w.Header()["Cache-Status"]) != 1 || time.Since(start) != test.took {
				t.Errorf("%s: %d %q %q after %v", test.name, w.Code, w.Body, w.Header()["Cache-Status"], time.Since(start))
			}
			synctest.Wait()
		}
	})
}

// Fields that an outer middleware has set stay set, on a miss and on a hit.
func TestChain_OuterFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Add("Vary", "Accept-Encoding")
			if r.URL.Path == "/private" {
				http.SetCookie(w, &http.Cookie{Name: "inner", Value: "1"})
			} else {
				w.Header().Set("Cache-Control", "max-age=60")
			}
			io.WriteString(w, "x")
		})
		for _, path := range []string{"/p", "/p", "/private", "/private"} {
			w := httptest.NewRecorder()
			w.Header().Add("Vary", "Origin")
			w.Header().Add("Set-Cookie", "outer=1")
			w.Header().Set("X-Outer", "1")
			s.handler.ServeHTTP(w, request("GET", "http://a"+path))
			synctest.Wait()
			cookies := "[outer=1]"
			if path == "/private" {
				cookies = "[outer=1 inner=1]"
			}
			h := w.Header()
			if fmt.Sprint(h["Vary"], h["Set-Cookie"], h["X-Outer"]) != "[Origin Accept-Encoding] "+cookies+" [1]" {
				t.Errorf("%s: %v (%s)", path, h, h.Get("Cache-Status"))
			}
		}
	})
}

// Fields of an outer middleware reach only their own client, also by a POST or a validation.
func TestChain_OuterFieldsOfOneClient(t *testing.T) {
	for path, cc := range map[string]string{"/posted": "max-age=60", "/checked": "no-cache"} {
		inBubble(t, path, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", cc)
				w.Header().Set("Content-Location", path)
				w.Header().Set("ETag", `"e"`)
				w.Header().Add("Link", "</inner>")
				w.Header().Set("X-Id", "inner")
				if r.Header.Get("If-None-Match") != "" {
					w.WriteHeader(http.StatusNotModified)
				}
			})
			for _, who := range []string{"alice", "bob", "carol"} {
				method := "GET"
				if who == "alice" && path == "/posted" {
					method = "POST"
				}
				w := httptest.NewRecorder()
				w.Header().Set("X-Csrf-Token", who)
				w.Header().Add("Link", "</"+who+">")
				w.Header()["x-id"] = []string{who}
				s.handler.ServeHTTP(w, request(method, "http://a"+path))
				synctest.Wait()
				h := w.Header()
				if all := fmt.Sprint(h); who != "alice" && strings.Contains(all, "alice") {
					t.Errorf("%s: %s got %s", path, who, all)
				}
				if got, want := fmt.Sprint(h["X-Csrf-Token"], h["Link"]), fmt.Sprintf("[%s] [</%[1]s> </inner>]", who); got != want {
					t.Errorf("%s: %s got %s, want %s (%s)", path, who, got, want, h.Get("Cache-Status"))
				}
			}
			if cc == "no-cache" {
				s.wantCalls(t, 3)
			} else {
				s.wantCalls(t, 1)
			}
		})
	}
}

// Our Cache-Status comes after those of caches nearer to the origin (RFC 9211 section 2).
func TestChain_CacheStatusIsTheLast(t *testing.T) {
	for _, say := range []func(http.Header, string, string){http.Header.Set, http.Header.Add} {
		for _, cc := range []string{"private", "max-age=60"} {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", cc)
					say(w.Header(), "Cache-Status", "Origin;hit")
					io.WriteString(w, "x")
				})
				for _, r := range []*http.Request{
					request("GET", "http://a/p"), request("GET", "http://a/p"), request("POST", "http://a/p"), request("PUT", "http://a/p"),
					request("OPTIONS", "http://a/p"), request("HEAD", "http://a/p"), request("GET", "http://a/p", "Cache-Control", "no-store"),
					request("GET", "http://a/p", "Authorization", "x"), request("GET", "http://a/p", "Authorization", "x"),
				} {
					if got := strings.Join(s.do(r).Header()["Cache-Status"], ", "); !strings.HasPrefix(got, "Origin;hit, Bellwether") {
						t.Errorf("%s, %s %v: %q", cc, r.Method, r.Header, got)
					}
					synctest.Wait()
				}
			})
		}
	}
}

// Fields of an outer middleware, such as a cookie or a lifetime, neither prolong nor end hit-for-miss.
func TestChain_OuterFieldsAndHitForMiss(t *testing.T) {
	for _, outer := range []string{"", "Set-Cookie", "Cache-Control"} {
		for _, once := range []bool{false, true} {
			inBubble(t, fmt.Sprint(outer, once), func(t *testing.T) {
				silent := true
				s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
					if !silent {
						w.Header().Set("Cache-Control", "max-age=60")
					} // else without caching headers, and there is no TTL
					silent = silent && !once
				})
				all := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if outer != "" {
						w.Header().Add(outer, "max-age=600") // as a cookie too
					}
					s.handler.ServeHTTP(w, r)
				})
				for range 4 {
					all.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "http://a/", nil))
					synctest.Wait()
				}
				calls := int32(4)
				if once {
					calls = 3 // the response for one client, the response that ends hit-for-miss, and the stored response
				}
				s.wantCalls(t, calls)
				w := httptest.NewRecorder()
				all.ServeHTTP(w, httptest.NewRequest("GET", "http://a/", nil))
				if got := strings.Join(w.Header()["Cache-Status"], ", "); once != strings.Contains(got, "hit") || !once && !strings.Contains(got, "bypass") {
					t.Errorf("Cache-Status %s", got)
				}
			})
		}
	}
}

func outer(name, value string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header()[name] = []string{value}
			next.ServeHTTP(w, r)
		})
	}
}

// With no-store or private from an outer middleware, the cache neither stores nor serves the response.
func TestChain_OuterCacheControl(t *testing.T) {
	for name, tt := range map[string]struct {
		around func(http.Handler) http.Handler
		past   bool
	}{
		"chi's NoCache":                 {middleware.NoCache, true},
		"private":                       {outer("Cache-Control", "private"), true},
		"no-store, odd spelling":        {outer("cache-control", "No-Store"), true},
		"a targeted field":              {outer("Cdn-Cache-Control", "no-store"), true},
		"no-store beside understanding": {outer("Cache-Control", "no-store, must-understand"), true},
		"private for one field":         {outer("Cache-Control", `private="x-user"`), false},
		"max-age":                       {outer("Cache-Control", "max-age=60"), false},
		"a targeted field wins": {func(h http.Handler) http.Handler {
			return outer("Cdn-Cache-Control", "max-age=60")(middleware.NoCache(h))
		}, false},
		"nothing": {outer("X-Request-Id", "1"), false},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{TTL: time.Hour}, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					w.Header().Set("Cache-Control", "max-age=61")
					w.Header().Set("Content-Location", r.URL.Path)
				}
				io.WriteString(w, r.Method)
			})
			h := tt.around(s.handler)
			ask := func(method, path string) string {
				t.Helper()
				w := httptest.NewRecorder()
				h.ServeHTTP(w, request(method, "http://a"+path))
				synctest.Wait() // the response is stored just after the answer
				if w.Code != 200 || w.Body.String() != method && method == http.MethodPost {
					t.Errorf("%s %s: %d %q", method, path, w.Code, w.Body)
				}
				return w.Header().Get("Cache-Status")
			}
			calls := int32(1)
			if tt.past {
				calls = 2
			}
			for range 2 {
				got := ask("GET", "/p")
				if past := strings.Contains(got, `fwd=bypass;detail="outer cache-control"`); past != tt.past {
					t.Errorf("Cache-Status %q, want past the cache: %v", got, tt.past)
				}
			}
			s.wantCalls(t, calls)

			s.get("http://a/stored")
			synctest.Wait()
			if got := ask("GET", "/stored"); strings.Contains(got, "hit") == tt.past {
				t.Errorf("a stored page: Cache-Status %q", got)
			}
			s.wantCalls(t, calls)

			ask("POST", "/posted")
			if w := s.get("http://a/posted"); (w.Body.String() == "POST") == tt.past {
				t.Errorf("after a POST a client got %q", w.Body)
			}
		})
	}
}

// A POST that an outer middleware's no-store sends past the cache still invalidates.
func TestChain_OuterCacheControlInvalidates(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{TTL: time.Hour}, func(w http.ResponseWriter, r *http.Request) {})
	s.get("http://a/p")
	middleware.NoCache(s.handler).ServeHTTP(httptest.NewRecorder(), request("POST", "http://a/p"))
	s.get("http://a/p")
	s.wantCalls(t, 3)
}
