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

// A holdingClient takes a part of the body and then nothing until
// it is let go.
type holdingClient struct {
	header http.Header
	took   int
	stuck  sync.Once
	full   chan struct{} // closed when it takes nothing more
	free   chan struct{}
	status string
}

func newHoldingClient() *holdingClient {
	return &holdingClient{header: http.Header{}, full: make(chan struct{}), free: make(chan struct{})}
}

func (w *holdingClient) Header() http.Header { return w.header }
func (w *holdingClient) WriteHeader(int)     { w.status = w.header.Get("Cache-Status") }
func (w *holdingClient) Write(p []byte) (int, error) {
	w.stuck.Do(func() {
		close(w.full)
		<-w.free
	})
	w.took += len(p)
	return len(p), nil
}

const megabyte = 1 << 20

func megabytes(n int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		for range n {
			io.WriteString(w, strings.Repeat(r.URL.Path[1:2], megabyte))
		}
	}
}

// Slow clients of many stored bodies hold no more than MaxHeld: who asks for one
// more is answered by the handler, many clients of one body count once, and what
// is let go counts no more. Small bodies are served on.
func TestHTTP_MaxHeldOfStoredBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{MaxHeld: 3 * megabyte}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/small" {
				w.Header().Set("Cache-Control", "max-age=3600")
				fmt.Fprint(w, "small")
				return
			}
			megabytes(1)(w, r)
		})
		paths := []string{"/a", "/b", "/c", "/d"}
		for _, p := range append(paths, "/small") {
			s.get("http://h" + p)
			synctest.Wait()
		}
		s.calls.Store(0)
		var all sync.WaitGroup
		slow := func(path string) *holdingClient {
			w := newHoldingClient()
			all.Go(func() { s.handler.ServeHTTP(w, request("GET", "http://h"+path)) })
			<-w.full
			return w
		}
		var holding []*holdingClient
		for _, p := range []string{"/a", "/b", "/c", "/a", "/b", "/c"} {
			holding = append(holding, slow(p))
		}
		s.wantCalls(t, 0)
		w := s.get("http://h/d")
		if w.Body.Len() != megabyte || !strings.Contains(w.Header().Get("Cache-Status"), "detail=memory") {
			t.Errorf("over MaxHeld: %d bytes, %v", w.Body.Len(), w.Header())
		}
		s.wantCalls(t, 1)
		s.get("http://h/small")
		s.get("http://h/a")
		s.get("http://h/d", "If-Modified-Since", "Thu, 01 Jan 1970 00:00:00 GMT", "Range", "bytes=0-0")
		s.wantCalls(t, 1)
		close(holding[0].free)
		synctest.Wait()
		s.get("http://h/d") // another still reads /a
		s.wantCalls(t, 1)
		close(holding[3].free)
		synctest.Wait()
		if w := s.get("http://h/d"); w.Body.Len() != megabyte || !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
			t.Errorf("with room again: %d bytes, %v", w.Body.Len(), w.Header())
		}
		s.wantCalls(t, 0)
		for i, w := range holding {
			if i != 0 && i != 3 {
				close(w.free)
			}
		}
		all.Wait()
		for _, w := range holding {
			if w.took != megabyte {
				t.Errorf("a slow client got %d bytes", w.took)
			}
		}
	})
}

// Bodies that are being written hold no more than MaxHeld either: the one that
// would is not kept, its client gets it whole, and its handler goes at
// that pace.
func TestHTTP_MaxHeldOfGrowingBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{MaxHeld: 5 * megabyte}, megabytes(4))
		var all sync.WaitGroup
		var clients []*holdingClient
		for _, path := range []string{"/a", "/b", "/c"} {
			w := newHoldingClient()
			clients = append(clients, w)
			all.Go(func() { s.handler.ServeHTTP(w, request("GET", "http://h"+path)) })
			<-w.full
			synctest.Wait()
		}
		for _, w := range clients {
			close(w.free)
		}
		all.Wait()
		synctest.Wait()
		for i, w := range clients {
			if w.took != 4*megabyte {
				t.Errorf("client %d got %d bytes", i, w.took)
			}
		}
		s.calls.Store(0)
		time.Sleep(time.Second)
		if w := s.get("http://h/a"); !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
			t.Errorf("the first body was not kept: %v", w.Header())
		}
		for _, p := range []string{"/b", "/c"} {
			if w := s.get("http://h" + p); !strings.Contains(w.Header().Get("Cache-Status"), "detail=memory") || w.Body.Len() != 4*megabyte {
				t.Errorf("%s: %d bytes, %v", p, w.Body.Len(), w.Header())
			}
			synctest.Wait()
			// One cacheable response has ended that, and there is room again.
			s.get("http://h" + p)
			synctest.Wait()
			if w := s.get("http://h" + p); !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
				t.Errorf("%s afterwards: %v", p, w.Header())
			}
		}
	})
}
