package bellwether_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
)

// Clients that mean harm, and many of them at one time.

// A client opens 1,300 streams of HTTP/2, each for another cold page, and resets them. The
// rebuilds that have begun go on. The others leave the queue with their streams, so
// that the page of an honest client is made next.
func TestFlood_HTTP2StreamsThatAreReset(t *testing.T) {
	const slots = 128
	over := make(chan struct{}) // the rebuilds take as long as the flood
	s := newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{MaxRebuilds: slots, MaxQueued: 1024}}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/first" {
			<-over
		}
		page(0, "page")(w, r)
	})
	var open atomic.Int64
	server := serveHTTP2(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open.Add(1)
		defer open.Add(-1)
		s.handler.ServeHTTP(w, r)
	}))
	client := server.Client()
	res, err := client.Get(server.URL + "/first") // one connection for all streams
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	var streams sync.WaitGroup
	for i := range 1300 {
		streams.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			r, _ := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprint(server.URL, "/", i), nil)
			if res, err := client.Do(r); err == nil {
				res.Body.Close()
			}
		})
		if i%100 == 99 {
			streams.Wait() // a server takes 250 streams of a connection at one time
		}
	}
	streams.Wait()
	for open.Load() > 0 { // the server has seen the last reset
		time.Sleep(time.Millisecond)
	}
	close(over)
	for _, path := range []string{"/honest", "/another"} {
		began := time.Now()
		res, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if took := time.Since(began); res.StatusCode != http.StatusOK || string(body) != "page" || took > 3*time.Second {
			t.Errorf("%s: %d %q after %v, want the page at once", path, res.StatusCode, body, took)
		}
	}
	if n := s.calls.Load(); n > slots+3 {
		t.Errorf("%d runs of the handler for 1,300 streams that were reset, want the %d that had begun and three of an honest client", n, slots)
	}
}
