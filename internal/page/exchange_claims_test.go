//go:build !race

package page_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/internal/page"
)

// decoding is how many bytes f allocates in decoding stored headers.
func decoding(f func()) (bytes int64) {
	sum := func() (bytes int64) {
		runtime.GC()
		runtime.GC() // the profile is of the time before the last collection
		records := make([]runtime.MemProfileRecord, 10_000)
		n, _ := runtime.MemProfile(records, true)
		for _, r := range records[:n] {
			frames := runtime.CallersFrames(r.Stack())
			for frame, more := frames.Next(); ; frame, more = frames.Next() {
				if strings.HasSuffix(frame.Function, "page.fields.header") {
					bytes += r.AllocBytes
				}
				if !more {
					break
				}
			}
		}
		return bytes
	}
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1
	before := sum()
	f()
	return sum() - before
}

// TestClaim_ValidationDecodesTheHeaderOnce: in a load, and for a page that each request validates.
func TestClaim_ValidationDecodesTheHeaderOnce(t *testing.T) {
	const fields, runs = 400, 20
	set := func(h http.Header) {
		for i := range fields {
			h.Set(fmt.Sprint("X-Field-", i), "value")
		}
	}
	for name, test := range map[string]struct{ response, request string }{
		"a load":       {"max-age=60", "no-cache"},
		"each request": {"no-cache", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := bellwether.NewMiddleware(bellwether.HTTPOptions{TTL: time.Hour})
			defer m.Close()
			h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("ETag", `"1"`)
				w.Header().Set("Cache-Control", test.response)
				if r.Header.Get("If-None-Match") != "" {
					w.WriteHeader(http.StatusNotModified)
					return
				}
				set(w.Header())
			}))
			validated := 0
			get := func() {
				r := httptest.NewRequest("GET", "http://a/p", nil)
				if test.request != "" {
					r.Header.Set("Cache-Control", test.request)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if strings.Contains(w.Header().Get("Cache-Status"), "fwd-status=304") && w.Code == http.StatusOK {
					validated++
				}
			}
			get()
			get()
			validated = 0
			bytes := decoding(func() {
				for range runs {
					get()
				}
			})
			if validated != runs {
				t.Fatalf("%d of %d requests were validated", validated, runs)
			}
			header := make(http.Header)
			set(header)
			once := decoding(func() {
				for range runs {
					runtime.KeepAlive(page.Decoded(header))
				}
			})
			times := float64(bytes) / float64(once)
			t.Logf("%.2f decodings for each 304", times)
			if times > 1.3 {
				t.Errorf("%.2f decodings of the stored header for each 304, want one", times)
			}
		})
	}
}
