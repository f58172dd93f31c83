package bellwether_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

func TestPace_OverMaxBodyTheSlowestIsBrokenOff(t *testing.T) {
	const size = 48 // MiB
	for _, rate := range []int{1, 10_000, 700_000} {
		inBubble(t, fmt.Sprint(rate, " B/s"), func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				megabytes(size)(w, r)
			})
			start := time.Now()
			slow := slowClient(rate)
			var took time.Duration // of the slow client
			var aborted any
			var all sync.WaitGroup
			all.Go(func() {
				defer func() { took, aborted = time.Since(start), recover() }()
				s.handler.ServeHTTP(slow, request("GET", "http://h/p"))
			})
			for range 10 {
				all.Go(func() {
					w := newClient()
					w.forgets = true
					s.handler.ServeHTTP(w, request("GET", "http://h/p"))
					if d := time.Since(start); w.took != size*megabyte || d > 10*time.Second {
						t.Errorf("%d bytes in %v, want all in 10 s at most", w.took, d)
					}
				})
			}
			all.Wait()
			if aborted != http.ErrAbortHandler || took > 10*time.Second {
				t.Errorf("the slow client's reply ended with %v after %v, want http.ErrAbortHandler after 10 s at most", aborted, took)
			}
			s.wantCalls(t, 1)
		})
	}
}

// Above MaxBodyBytes clients that are all equally slow are not broken off.
func TestPace_OverMaxBodyAllAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{MaxBodyBytes: 64 << 10}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second) // until all have come
			megabytes(1)(w, r)
		})
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				slow := slowClient(10_000)
				s.handler.ServeHTTP(slow, request("GET", "http://h/p"))
				if slow.Body.Len() != megabyte {
					t.Errorf("a slow client got %d bytes", slow.Body.Len())
				}
			})
		}
		all.Wait()
		s.wantCalls(t, 1)
	})
}

// A stored body breaks off at a stalled client, also if an outer writer hides its length and its deadlines.
func TestPace_StoredBodyBreaksOff(t *testing.T) {
	for _, fields := range [][]string{nil, {"Range", "bytes=1-"}} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, bellwether.HTTPOptions{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=6000")
				io.WriteString(w, strings.Repeat("x", 1<<20))
			})
			s.get("http://a/p")
			w := newClient()
			w.before = func([]byte) error { time.Sleep(5 * time.Minute); return nil }
			defer func() {
				if p := recover(); p != http.ErrAbortHandler {
					t.Errorf("%v: the panic %v, want ErrAbortHandler, after %d bytes", fields, p, w.Body.Len())
				}
			}()
			s.handler.ServeHTTP(w, request("GET", "http://a/p", fields...))
		})
	}
}
