//go:build !race

package bellwether_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
)

type nullWriter struct{ header http.Header }

func (w *nullWriter) Header() http.Header         { return w.header }
func (w *nullWriter) WriteHeader(int)             {}
func (w *nullWriter) Write(p []byte) (int, error) { return len(p), nil }

var benchBody = []byte(strings.Repeat("x", 1024))

func benchPage(tb testing.TB) http.Handler {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
	tb.Cleanup(func() { mw.Close() })
	return mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/plain")
		h.Set("Cache-Control", "max-age=3600")
		h.Set("ETag", `"1"`)
		w.Write(benchBody)
	}))
}

// hits returns a bare handler with the same reply, a hit, and a hit with a 304, each for one goroutine.
func hits(tb testing.TB) (bare, hit, notModified func()) {
	cached := benchPage(tb)
	var recorded *httptest.ResponseRecorder
	for recorded == nil || !strings.Contains(recorded.Header().Get("Cache-Status"), "hit") {
		recorded = httptest.NewRecorder()
		cached.ServeHTTP(recorded, httptest.NewRequest("GET", "/a/b?c=d", nil))
	}
	fields := recorded.Header()
	same := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for name, values := range fields {
			h.Set(name, values[0])
		}
		w.WriteHeader(200)
		w.Write(benchBody)
	})
	call := func(h http.Handler, fields ...string) func() {
		r := httptest.NewRequest("GET", "/a/b?c=d", nil)
		for i := 0; i < len(fields); i += 2 {
			r.Header.Set(fields[i], fields[i+1])
		}
		w := &nullWriter{header: http.Header{}}
		return func() {
			clear(w.header)
			h.ServeHTTP(w, r)
		}
	}
	return call(same), call(cached), call(cached, "If-None-Match", `"1"`)
}

func BenchmarkHTTPHit(b *testing.B) {
	bare, hit, notModified := hits(b)
	for _, bb := range []struct {
		name string
		call func()
	}{{"bare", bare}, {"hit", hit}, {"304", notModified}} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				bb.call()
			}
		})
	}
}

func BenchmarkHTTPMiss(b *testing.B) {
	h := benchPage(b)
	r := httptest.NewRequest("GET", "http://example.com/", nil)
	w := &nullWriter{header: http.Header{}}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		clear(w.header)
		r.URL.Path = "/" + strconv.Itoa(n)
		r.RequestURI = r.URL.Path
		h.ServeHTTP(w, r)
	}
}

func TestClaim_HTTPHit(t *testing.T) {
	bare, hit, _ := hits(t)
	bareAllocs, hitAllocs := testing.AllocsPerRun(1000, bare), testing.AllocsPerRun(1000, hit)
	if hitAllocs > bareAllocs+1 {
		t.Errorf("a hit makes %v allocations, the bare handler %v; want at most one more", hitAllocs, bareAllocs)
	}
	// In turns, a few milliseconds each: the processor's speed changes.
	took := func(call func()) time.Duration {
		began := time.Now()
		for range 5000 {
			call()
		}
		return time.Since(began)
	}
	var ratios []float64
	for range 201 {
		ratios = append(ratios, float64(took(hit))/float64(took(bare)))
	}
	slices.Sort(ratios)
	if got := ratios[len(ratios)/2]; got > 1.5 {
		t.Errorf("a hit takes %.2f times as long as the bare handler, want at most 1.5 times", got)
	}
}

// The hidden fields of a page cost its hits no memory.
func TestHidden_HitsAreFree(t *testing.T) {
	s := newSite(t, bellwether.HTTPOptions{HiddenFields: []string{"Surrogate-Key"}}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		if r.URL.Path == "/tagged" {
			w.Header().Set("Surrogate-Key", "tag")
		}
	})
	hit := func(path string) float64 {
		w, r := &nullWriter{make(http.Header)}, request("GET", "http://a"+path)
		eventually(t, func() bool { return s.hits("http://a" + path) })
		return testing.AllocsPerRun(1000, func() {
			clear(w.header)
			s.handler.ServeHTTP(w, r)
		})
	}
	if plain, tagged := hit("/plain"), hit("/tagged"); tagged > plain {
		t.Errorf("%v allocations for a hit with a hidden field, %v without", tagged, plain)
	}
}
