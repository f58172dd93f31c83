package bellwether_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// A hit with a shared header and a hit that adds to an existing Cache-Status are alike.
func TestHot_HitsAreAlikeEitherWay(t *testing.T) {
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

func TestHot_HitsTakeWhatIsCounted(t *testing.T) {
	for _, tt := range []struct{ pages, fields, value, body int }{
		{pages: 5000, fields: 1, value: 1, body: 1 << 10},
		{pages: 600, fields: 20, value: 1000, body: 4},
	} {
		t.Run(fmt.Sprintf("%d fields of %d bytes", tt.fields, tt.value), func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=3600")
				w.Header().Set("Etag", `"e"`)
				w.Header().Set("Content-Type", "text/html")
				for i := range tt.fields {
					w.Header().Set(fmt.Sprint("X-Field-", i), strings.Repeat("v", tt.value))
				}
				io.WriteString(w, strings.Repeat("p", tt.body))
			})
			heap := func() int64 {
				var m runtime.MemStats
				runtime.GC()
				runtime.GC()
				runtime.ReadMemStats(&m)
				return int64(m.HeapAlloc)
			}
			before := heap()
			all := func(status int, fields ...string) {
				for i := range tt.pages {
					if got := s.get(fmt.Sprint("http://a/", i), fields...).Code; got != status {
						t.Fatalf("page %d: %d, want %d", i, got, status)
					}
				}
			}
			all(200)
			s.wantCalls(t, int32(tt.pages))
			all(200)
			all(304, "If-None-Match", `"e"`)
			s.wantCalls(t, 0)
			took, counted := heap()-before, int64(s.mw.Stats().NearBytes)
			t.Logf("%d bytes, %d counted", took, counted)
			if took > counted*4/3 {
				t.Errorf("%d bytes are in use for %d that are counted", took, counted)
			}
			runtime.KeepAlive(s)
		})
	}
}

// If the handler removes the Content-Type of an outer middleware, hits have none either.
func TestHot_NoTypeOnAHit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header()["Content-Type"] = nil
			io.WriteString(w, "page")
		})
		inner := s.handler
		s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/outer")
			inner.ServeHTTP(w, r)
		})
		for _, fields := range [][]string{nil, nil, {"Cache-Control", "max-age=30"}} {
			w := s.get("http://a/p", fields...)
			if got := w.Header()["Content-Type"]; len(got) > 0 {
				t.Errorf("%v: type %q, want none; %v", fields, got, w.Header()["Cache-Status"])
			}
			synctest.Wait()
		}
		s.wantCalls(t, 1)
	})
}
