package bellwether_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

const megabyte = 1 << 20

func megabytes(n int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		for range n {
			io.WriteString(w, strings.Repeat(r.URL.Path[1:2], megabyte))
		}
	}
}

// What the near tier has costs nothing, however many slow clients read it: all are
// answered with what is stored, and nobody is broken off.
func TestHTTP_MaxHeldOfTheNearTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{MaxHeld: 3 * megabyte, MaxBody: megabyte}, megabytes(1))
		paths := []string{"/a", "/b", "/c", "/d", "/e"}
		for _, p := range paths {
			s.get("http://h" + p)
			synctest.Wait()
		}
		s.calls.Store(0)
		var all sync.WaitGroup
		var slow []*client
		for _, p := range paths[:4] {
			w := heldClient()
			all.Go(func() { s.handler.ServeHTTP(w, request("GET", "http://h"+p)) })
			<-w.full
			slow = append(slow, w)
		}
		for range 100 {
			if w := s.get("http://h/e"); w.Body.Len() != megabyte || !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
				t.Fatalf("%d bytes, %v", w.Body.Len(), w.Header())
			}
			synctest.Wait() // or who is broken off would not know it yet
		}
		s.wantCalls(t, 0)
		for _, w := range slow {
			close(w.free)
		}
		all.Wait()
		for i, w := range slow {
			if w.took != megabyte {
				t.Errorf("slow client %d got %d bytes", i, w.took)
			}
		}
	})
}

// Slow clients of many stored bodies that the near tier does not have hold no more than
// MaxHeld: the eldest is broken off, many clients of one body count once, and
// nobody asks the handler.
func TestHTTP_MaxHeldOfStoredBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{MaxHeld: 3 * megabyte, MaxBody: megabyte,
			Options: bellwether.Options{Store: memstore.New(), NearBytes: megabyte / 2}}, megabytes(1))
		paths := []string{"/a", "/b", "/c", "/d"}
		for _, p := range paths {
			s.get("http://h" + p)
			synctest.Wait()
		}
		s.calls.Store(0)
		var all sync.WaitGroup
		slow := func(path string) *client {
			w := heldClient()
			all.Go(func() { s.handler.ServeHTTP(w, request("GET", "http://h"+path)) })
			<-w.full
			return w
		}
		var holding []*client
		for _, p := range []string{"/a", "/b", "/c", "/b", "/c"} {
			holding = append(holding, slow(p))
		}
		for range 100 {
			if w := s.get("http://h/d"); w.Body.Len() != megabyte || !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
				t.Fatalf("over MaxHeld: %d bytes, %v", w.Body.Len(), w.Header())
			}
			synctest.Wait()
		}
		s.wantCalls(t, 0)
		for i, w := range holding {
			if broken := w.broke.Load(); broken != (i == 0) {
				t.Errorf("client %d broken off: %t", i, broken)
			}
			if i > 0 {
				close(w.free)
			}
		}
		all.Wait()
		for i, w := range holding[1:] {
			if w.took != megabyte {
				t.Errorf("slow client %d got %d bytes", i+1, w.took)
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
		var clients []*client
		for _, path := range []string{"/a", "/b", "/c"} {
			w := heldClient()
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
			// There is room again, and the next response is kept.
			s.get("http://h" + p)
			synctest.Wait()
			if w := s.get("http://h" + p); !strings.Contains(w.Header().Get("Cache-Status"), "hit") {
				t.Errorf("%s afterwards: %v", p, w.Header())
			}
		}
	})
}

// A herd for a body that there is no room for is one run of the handler, and so is the
// next herd: want of memory says nothing about the key.
func TestHTTP_HerdWithoutMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := make(chan struct{})
		s := newSite(t, bellwether.HTTPOptions{MaxHeld: 5 * megabyte, MaxBody: 4 * megabyte}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(10 * time.Millisecond) // the herd arrives
			megabytes(4)(w, r)
			if r.URL.Path == "/held" {
				<-written // until then the near tier does not have it
			}
		})
		holder := heldClient()
		var all sync.WaitGroup
		all.Go(func() { s.handler.ServeHTTP(holder, request("GET", "http://h/held")) })
		<-holder.full
		for herd := range 3 {
			s.calls.Store(0)
			var clients sync.WaitGroup
			for range 25 {
				clients.Go(func() {
					if w := s.get("http://h/page"); w.Body.Len() != 4*megabyte {
						t.Errorf("herd %d: %d bytes, %v", herd, w.Body.Len(), w.Header())
					}
				})
			}
			clients.Wait()
			synctest.Wait()
			s.wantCalls(t, 1)
		}
		close(written)
		close(holder.free)
		all.Wait()
	})
}

// Slow clients of bodies that are complete, and that the near tier has, hold nothing: other
// pages are kept.
func TestHTTP_SlowReadersOfColdPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, bellwether.HTTPOptions{MaxHeld: 3 * megabyte, MaxBody: megabyte}, megabytes(1))
		var all sync.WaitGroup
		var slow []*client
		for _, p := range []string{"/a", "/b", "/c", "/d"} {
			w := heldClient()
			slow = append(slow, w)
			all.Go(func() { s.handler.ServeHTTP(w, request("GET", "http://h"+p)) })
			<-w.full
			synctest.Wait()
		}
		s.calls.Store(0)
		for range 10 {
			s.get("http://h/e")
			synctest.Wait()
		}
		s.wantCalls(t, 1)
		for i, w := range slow {
			if w.broke.Load() {
				t.Errorf("client %d is broken off", i)
				continue
			}
			close(w.free)
		}
		all.Wait()
	})
}
