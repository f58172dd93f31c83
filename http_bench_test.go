package bellwether_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/bellwether-go/bellwether"
)

// A nullWriter is a ResponseWriter that costs as little as one can: what a
// benchmark shows over it is the handler's own.
type nullWriter struct {
	header http.Header
	status int
	n      int
}

func (w *nullWriter) Header() http.Header         { return w.header }
func (w *nullWriter) WriteHeader(status int)      { w.status = status }
func (w *nullWriter) Write(b []byte) (int, error) { w.n += len(b); return len(b), nil }

// BenchmarkHTTP_Hit is a hit over a null writer, beside a bare handler that sets
// as many fields and writes the same bytes.
func BenchmarkHTTP_Hit(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		body := bytes.Repeat([]byte("b"), size)
		origin := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Cache-Control", "public, max-age=3600")
			h.Set("Content-Type", "text/plain")
			h.Set("Content-Length", strconv.Itoa(len(body)))
			w.Write(body)
		})
		bare := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h["Age"], h["Cache-Status"], h["Date"] = age, cacheStatus, date
			origin(w, r)
		})
		mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
		b.Cleanup(func() { mw.Close() })
		for _, h := range []struct {
			name string
			http.Handler
		}{{"bellwether", mw.Handler(origin)}, {"bare", bare}} {
			b.Run(strconv.Itoa(size>>10)+"KiB/"+h.name, func(b *testing.B) {
				serveAll(b, h.Handler, http.Header{}, http.StatusOK, size)
			})
		}
	}
}

// What the middleware adds to a response, for a bare handler to set as well.
var (
	age         = []string{"0"}
	cacheStatus = []string{`Bellwether;hit;ttl=3600`}
	date        = []string{"Sat, 21 Nov 2026 07:46:15 GMT"}
)

// BenchmarkHTTP_NotModified is a hit whose client has the response already.
func BenchmarkHTTP_NotModified(b *testing.B) {
	origin := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=3600")
		w.Header().Set("Etag", `"e"`)
		w.Write(make([]byte, 1<<10))
	})
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
	b.Cleanup(func() { mw.Close() })
	serveAll(b, mw.Handler(origin), http.Header{"If-None-Match": {`"e"`}}, http.StatusNotModified, 0)
}

// serveAll asks a handler over and over, once all is there, and sees to it that
// the answers are what they should be.
func serveAll(b *testing.B, h http.Handler, header http.Header, status, size int) {
	request := func() *http.Request {
		r := httptest.NewRequest("GET", "http://example.com/page?with=query", nil)
		r.Header = header.Clone()
		return r
	}
	h.ServeHTTP(httptest.NewRecorder(), request())
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		w, r := &nullWriter{header: http.Header{}}, request()
		for pb.Next() {
			clear(w.header)
			w.status, w.n = http.StatusOK, 0
			h.ServeHTTP(w, r)
			if w.status != status || w.n != size {
				b.Errorf("status %d with %d bytes, want %d with %d", w.status, w.n, status, size)
				return
			}
		}
	})
}
