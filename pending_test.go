package bellwether_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests invalidations by unsafe requests while the store is silent.

// versioned is a page for an hour. A POST makes its next version.
func versioned() http.HandlerFunc {
	var version atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			version.Add(1)
			return
		}
		w.Header().Set("Cache-Control", "max-age=3600")
		fmt.Fprint(w, version.Load())
	}
}

func silentFleet(store *wiredStore) bellwether.HTTPOptions {
	return bellwether.HTTPOptions{OnError: func(string, error) {}, Fleet: bellwether.Fleet{Store: store, Locker: locallock.New()}}
}

// A POST while the store is silent invalidates the page in the whole fleet once the store answers.
func TestUnsafe_StoreSilent(t *testing.T) {
	for name, tt := range map[string]struct {
		kind  bellwether.Invalidation
		fault fault
		url   string
	}{
		"refused":      {fault: refuse, url: "http://a/p"},
		"silent":       {fault: blackHole, url: "https://a/p"},
		"no writes":    {fault: on(refuse, "claim", "commit", "invalidate"), url: "http://a/p"},
		"soft, silent": {kind: bellwether.SoftInvalidation, fault: blackHole, url: "https://a/p"},
	} {
		inBubble(t, name, func(t *testing.T) {
			store, h := wiredTo(memstore.New()), versioned()
			o := silentFleet(store)
			o.UnsafeInvalidation = tt.kind
			first, second := newSite(t, o, h), newSite(t, o, h)
			for _, s := range []*site{first, second} {
				s.wantBody(t, "0", tt.url)
				synctest.Wait()
			}
			store.set(tt.fault)
			first.do(request("POST", tt.url))
			time.Sleep(30 * time.Second) // the outage
			store.set(nil)
			time.Sleep(20 * time.Second)
			for _, s := range []*site{first, second} {
				s.wantBody(t, "1", tt.url)
				synctest.Wait()
			}
			calls := store.count("invalidate")
			time.Sleep(time.Minute)
			if n := store.count("invalidate") - calls; n > 0 {
				t.Errorf("%d calls after the invalidation", n)
			}
		})
	}
}

// The keys of a dead server neither delay the other keys nor stop the calls for them.
func TestUnsafe_ServerDead(t *testing.T) {
	for name, tt := range map[string]struct {
		posts, gets int
		pause       time.Duration
	}{
		"busy":  {posts: 200, gets: 600, pause: 100 * time.Millisecond},
		"quiet": {posts: 4, gets: 200, pause: 10130 * time.Millisecond},
	} {
		inBubble(t, name, func(t *testing.T) {
			store := wiredTo(memstore.New())
			store.busy, store.trip = true, time.Millisecond
			store.only = func(key string) bool { return strings.Contains(key, "/dead") }
			store.set(blackHole)
			s := newSite(t, silentFleet(store), versioned())
			var wg sync.WaitGroup
			for i := range tt.posts {
				wg.Go(func() { s.do(request("POST", fmt.Sprintf("http://a/dead%d", i))) })
			}
			wg.Wait()
			time.Sleep(time.Minute)
			claims, slowest := store.count("claim"), atomic.Int64{}
			for i := range tt.gets {
				time.Sleep(tt.pause)
				wg.Go(func() {
					start := time.Now()
					s.get(fmt.Sprintf("http://a/living%d", i))
					if took := int64(time.Since(start)); took > slowest.Load() {
						slowest.Store(took)
					}
				})
			}
			wg.Wait()
			if took := time.Duration(slowest.Load()); took > 100*time.Millisecond {
				t.Errorf("a page of a living server took %v", took)
			}
			if n := store.count("claim") - claims; n < tt.gets*95/100 {
				t.Errorf("%d claims for %d pages of a living server", n, tt.gets)
			}
		})
	}
}

// A repetition that ends its goroutine loses no other key. Close ends the repetitions.
func TestUnsafe_RepetitionEnds(t *testing.T) {
	const posts = 10
	silent := func(t *testing.T) (*site, *wiredStore) {
		store := wiredTo(memstore.New())
		store.set(refuse)
		s := newSite(t, silentFleet(store), versioned())
		for i := range posts {
			s.do(request("POST", fmt.Sprintf("http://a/%d", i)))
		}
		return s, store
	}
	inBubble(t, "Goexit", func(t *testing.T) {
		_, store := silent(t)
		var calls atomic.Int32
		store.set(on(func(context.Context, string) error {
			if calls.Add(1) == 1 {
				runtime.Goexit()
			}
			return nil
		}, "invalidate"))
		time.Sleep(time.Minute)
		if n := calls.Load(); n != posts {
			t.Errorf("%d calls, want %d", n, posts)
		}
	})
	inBubble(t, "Close", func(t *testing.T) {
		s, store := silent(t)
		store.set(takes(20 * time.Millisecond))
		time.Sleep(1010 * time.Millisecond)
		calls := store.count("invalidate")
		s.mw.Close()
		if n := store.count("invalidate") - calls; n > 0 {
			t.Errorf("%d calls after Close", n)
		}
	})
}

// Clients cannot fill the memory with invalidations.
func TestUnsafe_RepetitionsAreBounded(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		const most, posts = 4096, 5000
		store := wiredTo(memstore.New())
		store.busy = true
		store.set(refuse)
		s := newSite(t, silentFleet(store), versioned())
		for i := range posts {
			s.do(request("POST", fmt.Sprintf("http://a/%d", i)))
		}
		calls := store.count("invalidate")
		store.set(nil)
		time.Sleep(time.Minute)
		if n := store.count("invalidate") - calls; n != most {
			t.Errorf("%d calls, want %d", n, most)
		}
	})
}
