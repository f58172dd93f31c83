package bellwether_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// slowly answers with the number of its call, the header at once and the rest
// after 5 s.
func slowly(calls *atomic.Int32) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n := calls.Add(1)
		w.Header().Set("Cache-Control", "max-age=3600")
		w.(http.Flusher).Flush()
		time.Sleep(5 * time.Second)
		fmt.Fprint(w, n)
	}
}

// A request that does not take the response that is being written gets the next
// one, also if the store refuses the first.
func TestHTTP_RefusedWhileOthersRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		store := memstore.New()
		s := newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{Store: quiet{store}}}, slowly(&calls))
		go s.get("http://example.com/")
		time.Sleep(time.Second)
		time.AfterFunc(time.Second, func() { store.Invalidate(t.Context(), "example.com/") })
		if w := s.get("http://example.com/", "Cache-Control", "no-cache"); w.Body.String() != "2" {
			t.Errorf("%d %q, want 2", w.Code, w.Body)
		}
	})
}

// A page that is swept faster than it is made is answered all the same, with
// what began after the request.
func TestHTTP_SweptFasterThanMade(t *testing.T) {
	for name, match := range map[string]bellwether.Match{
		"prefix": {Prefixes: []string{"http://example.com/"}}, "tag": {Tags: []string{"x"}}, "soft": {Tags: []string{"x"}, Soft: true},
		"URL": {URLs: []string{"http://example.com/"}},
	} {
		for fleet, store := range map[string]func() bellwether.Store{"alone": func() bellwether.Store { return nil }, "store": func() bellwether.Store { return memstore.New() }} {
			t.Run(name+"/"+fleet, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var calls atomic.Int32
					s := newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{Store: store(), MaxWait: 10 * time.Minute}}, func(w http.ResponseWriter, r *http.Request) {
						n := calls.Add(1)
						time.Sleep(5 * time.Second)
						w.Header().Set("Cache-Control", "max-age=3600")
						w.Header().Set("Surrogate-Key", "x")
						fmt.Fprint(w, n)
					})
					stop := make(chan struct{})
					defer close(stop)
					go func() {
						for {
							select {
							case <-stop:
								return
							case <-time.After(2 * time.Second):
								s.mw.InvalidateMatching(t.Context(), match)
							}
						}
					}()
					for range 3 {
						before, start := calls.Load(), time.Now()
						var n int32
						w := s.get("http://example.com/")
						if fmt.Sscan(w.Body.String(), &n); n <= before || time.Since(start) > time.Minute {
							t.Errorf("%d %q after %v, with call %d under way before it", w.Code, w.Body, time.Since(start), before)
						}
						time.Sleep(7 * time.Second)
					}
				})
			})
		}
	}
}
