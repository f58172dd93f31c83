// Walk runs the walks that internal/walks counts, and prints the functions that each has entered as
// JSON. It uses only names that old revisions have too. Its argument is the address of an empty Redis.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/internal/walks/probe"
	"github.com/bellwether-go/bellwether/lockers/redislock"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: walk HOST:PORT (internal/walks calls it)")
		os.Exit(2)
	}
	walks, err := walkAll(os.Args[1])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(walks)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "walk:", err)
		os.Exit(1)
	}
}

func walkAll(addr string) ([]probe.Walk, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	locker := redislock.New(rdb)
	defer locker.Close()
	s := &subject{rdb: rdb, locker: locker}
	var walks []probe.Walk
	// One face after the other: a store's notices reach all open caches.
	for _, open := range []func() (face, []way){s.openCache, s.openMiddleware} {
		opened, ways := open()
		for _, w := range ways {
			recorded, err := s.walk(opened, w)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			walks = append(walks, recorded)
		}
		opened.Close()
	}
	return walks, nil
}

// A subject is the library over one Redis, with one caller at a time: the counts need no lock.
type subject struct {
	rdb    *redis.Client
	locker *redislock.Locker

	loads       int
	pages       int // the handler's responses of status 200
	revalidated int // its responses of status 304
}

// A face is a Cache or a Middleware.
type face interface {
	Stats() stats
	Close() error
}

// maxAge is the freshness of a page. HTTP counts it in seconds.
const maxAge = time.Second

// openCache returns a cache of strings with its walks.
func (s *subject) openCache() (face, []way) {
	cache := bellwether.New(func(context.Context, string) (string, error) {
		s.loads++
		return "value", nil
	}, s.cacheOptions())
	get := func(key string) error {
		_, err := cache.Get(context.Background(), key)
		return err
	}
	return cache, []way{
		{name: "a near hit", call: get, key: "hit", warm: true, count: &s.loads, want: 0},
		{name: "a cold miss through Redis", call: get, key: "miss", count: &s.loads, want: 1},
	}
}

func (s *subject) openMiddleware() (face, []way) {
	middleware := bellwether.NewMiddleware(s.pageOptions())
	handler := middleware.Handler(http.HandlerFunc(s.page))
	request := func(path string) error {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://shop.test/"+path, nil))
		if w.Code != http.StatusOK || w.Body.String() != "page" {
			return fmt.Errorf("the client got %d %q", w.Code, w.Body)
		}
		return nil
	}
	return middleware, []way{
		{name: "an HTTP cold miss", call: request, key: "miss", count: &s.pages, want: 1},
		{name: "a stale page revalidated with 304", call: request, key: "stale", warm: true, pause: maxAge + maxAge/10, count: &s.revalidated, want: 1},
	}
}

// page is the handler below the middleware.
func (s *subject) page(w http.ResponseWriter, r *http.Request) {
	const etag = `"1"`
	w.Header().Set("Cache-Control", fmt.Sprintf("max-age=%.0f", maxAge.Seconds()))
	w.Header().Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		s.revalidated++
		w.WriteHeader(http.StatusNotModified)
		return
	}
	s.pages++
	io.WriteString(w, "page")
}

// A way is a walk before it is run.
type way struct {
	name  string
	call  func(key string) error
	key   string        // the prefix of the keys, unique among the face's walks
	warm  bool          // the key is requested once before the recording
	pause time.Duration // the time between that request and the recording
	count *int          // proves the way of the call: each recording adds want
	want  int
}

// repeats is how often each walk is recorded. Goroutines interleave differently each time.
const repeats = 5

// walk records a way through a face, each time with another key.
func (s *subject) walk(f face, w way) (probe.Walk, error) {
	recorded := probe.Walk{Name: w.name}
	// The first call dials, and sends whole scripts.
	if err := w.call("first-" + w.key); err != nil {
		return recorded, err
	}
	for n := range repeats {
		key := fmt.Sprintf("%s-%d", w.key, n)
		if w.warm {
			if err := w.call(key); err != nil {
				return recorded, err
			}
		}
		time.Sleep(w.pause)
		if err := quiet(); err != nil {
			return recorded, err
		}
		before := *w.count
		probe.Record()
		err := w.call(key)
		if err == nil {
			err = quiet() // the rebuild has ended
		}
		recorded.Repeats = append(recorded.Repeats, probe.Recorded())
		if err != nil {
			return recorded, err
		}
		if got := *w.count - before; got != w.want {
			return recorded, fmt.Errorf("there were %d loads, want %d: this was another walk", got, w.want)
		}
		if err := s.ended(f); err != nil {
			return recorded, err
		}
	}
	return recorded, nil
}

// ended returns an error if a rebuild is still under way.
func (s *subject) ended(f face) error {
	if n := f.Stats().Flights; n != 0 {
		return fmt.Errorf("%d flights have not ended", n)
	}
	leases, err := s.rdb.Keys(context.Background(), "*:lease").Result()
	if err == nil && len(leases) != 0 {
		err = fmt.Errorf("the lease is not released: %q", leases)
	}
	return err
}

// quiet waits until no function has been entered for a while, in real time: a real Redis answers.
func quiet() error {
	const silence, limit = 100 * time.Millisecond, 10 * time.Second
	for began := time.Now(); time.Since(began) < limit; time.Sleep(silence / 10) {
		if _, at := probe.Last(); min(time.Since(at), time.Since(began)) >= silence {
			return nil
		}
	}
	last, _ := probe.Last()
	return fmt.Errorf("functions are still entered after %v, the last was %s in %s", limit, last.Function, last.File)
}
