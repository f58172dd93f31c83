package bellwether_test

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// A hit is answered in one of two ways: with a header that was made for all, or,
// where its client's has a Cache-Status already, with one of its own. Nobody can
// tell from the reply.
func TestHTTP_HitsAreAlikeEitherWay(t *testing.T) {
	responses := map[string]http.HandlerFunc{
		"plain": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"e"`)
			w.Header()["X-Two"] = []string{"1", "2"}
			io.WriteString(w, "body")
		},
		"aged, by way of another cache": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Age", "7")
			w.Header().Set("Cache-Status", "Other; hit")
			w.Header().Set("Content-Length", "4")
			io.WriteString(w, "body")
		},
		"empty":      func(w http.ResponseWriter, r *http.Request) {},
		"no content": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"redirect":   func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/there", http.StatusFound) },
	}
	for name, respond := range responses {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				respond(w, r)
			})
			s.get("http://a/")
			s.wantCalls(t, 1)
			for _, age := range []time.Duration{0, 1500 * time.Millisecond, 200 * time.Millisecond, time.Second} {
				time.Sleep(age)
				synctest.Wait()
				for _, r := range []*http.Request{
					request("GET", "http://a/"), request("HEAD", "http://a/"), request("GET", "http://a/", "If-None-Match", `"e"`),
					request("GET", "http://a/", "If-Modified-Since", time.Now().UTC().Format(http.TimeFormat)),
				} {
					short := s.do(r)
					long := httptest.NewRecorder()
					long.Header().Set("Cache-Status", "Outer")
					s.handler.ServeHTTP(long, r)
					ours := func(w *httptest.ResponseRecorder) {
						members := w.Header()["Cache-Status"]
						w.Header()["Cache-Status"] = members[max(0, len(members)-1):]
					}
					ours(short)
					ours(long)
					if short.Code != long.Code || short.Body.String() != long.Body.String() ||
						!maps.EqualFunc(short.Header(), long.Header(), slices.Equal) {
						t.Errorf("%s, %s %v:\n%d %q %v, and\n%d %q %v", name, r.Method, r.Header,
							short.Code, short.Body, short.Header(), long.Code, long.Body, long.Header())
					}
				}
			}
			s.wantCalls(t, 0)
		})
	}
}
