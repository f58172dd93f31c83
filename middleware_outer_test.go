package bellwether_test

import (
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

// outer is a middleware that sets a field of the response before the cache is
// reached, as fields of that spelling.
func outer(name, value string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header()[name] = []string{value}
			next.ServeHTTP(w, r)
		})
	}
}

// A middleware around the cache that says no-store or private keeps the page out of
// it, and its clients away from what is there.
func TestBypass_OuterCacheControl(t *testing.T) {
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{TTL: time.Hour}}, func(w http.ResponseWriter, r *http.Request) {
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
					synctest.Wait() // it is kept a moment after it was answered
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
					t.Errorf("of what is stored: Cache-Status %q", got)
				}
				s.wantCalls(t, calls)

				ask("POST", "/posted")
				if w := s.get("http://a/posted"); (w.Body.String() == "POST") == tt.past {
					t.Errorf("after a POST a client got %q", w.Body)
				}
			})
		})
	}
}

// A POST past the cache for that reason invalidates all the same.
func TestBypass_OuterCacheControlInvalidates(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{TTL: time.Hour}}, func(w http.ResponseWriter, r *http.Request) {})
	s.get("http://a/p")
	middleware.NoCache(s.handler).ServeHTTP(httptest.NewRecorder(), request("POST", "http://a/p"))
	s.get("http://a/p")
	s.wantCalls(t, 3)
}
