//go:build !race

package bellwether_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/bellwether-go/bellwether"
)

// nullWriter throws everything away.
type nullWriter struct{ header http.Header }

func (w *nullWriter) Header() http.Header         { return w.header }
func (w *nullWriter) WriteHeader(int)             {}
func (w *nullWriter) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkHTTPHit is a hit over a null writer, beside a bare handler that sets
// the same fields and writes the same bytes.
func BenchmarkHTTPHit(b *testing.B) {
	body := []byte(strings.Repeat("x", 1024))
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
	defer mw.Close()
	cached := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/plain")
		h.Set("Cache-Control", "max-age=3600")
		h.Set("ETag", `"1"`)
		w.Write(body)
	}))
	first := httptest.NewRecorder()
	cached.ServeHTTP(first, httptest.NewRequest("GET", "http://example.com/a/b?c=d", nil))
	hit := httptest.NewRecorder()
	cached.ServeHTTP(hit, httptest.NewRequest("GET", "http://example.com/a/b?c=d", nil))
	fields := hit.Header()
	bare := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for name, values := range fields {
			h.Set(name, values[0])
		}
		w.WriteHeader(200)
		w.Write(body)
	})
	for _, bb := range []struct {
		name  string
		h     http.Handler
		field string
	}{{"bare", bare, ""}, {"hit", cached, ""}, {"304", cached, `"1"`}} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				r := httptest.NewRequest("GET", "http://example.com/a/b?c=d", nil)
				if bb.field != "" {
					r.Header.Set("If-None-Match", bb.field)
				}
				w := &nullWriter{header: http.Header{}}
				for pb.Next() {
					clear(w.header)
					bb.h.ServeHTTP(w, r)
				}
			})
		})
	}
}
