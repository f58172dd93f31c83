package bellwether_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/observe"
)

// OnError gets the failures of loads that no caller gets.
func TestOnError_FailuresOfLoads(t *testing.T) {
	const ttl = 10 * time.Second
	get := func(c *bellwether.Cache[string]) { c.Get(context.Background(), "k") }
	for name, test := range map[string]struct {
		bellwether.Options
		cold bool // the key has no value
		ask  func(c *bellwether.Cache[string])
		told int
	}{
		"something stale is served":                {bellwether.Options{StaleWhileRevalidate: time.Hour}, false, get, 1},
		"a caller waits, and gets something stale": {bellwether.Options{StaleIfError: time.Hour}, false, get, 1},
		"an early refresh":                         {bellwether.Options{TTL: time.Hour, EarlyRefresh: 1e9}, false, get, 1},
		"many keys": {bellwether.Options{StaleWhileRevalidate: time.Hour}, false, func(c *bellwether.Cache[string]) {
			c.GetMany(context.Background(), []string{"k", "k2"})
		}, 1},
		"nobody waits any more": {bellwether.Options{}, true, func(c *bellwether.Cache[string]) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
			defer cancel()
			c.Get(ctx, "k")
		}, 1},
		"a caller waits, and gets it":                         {bellwether.Options{}, true, get, 0},
		"a caller gets it, and what is expired is not served": {bellwether.Options{}, false, get, 0},
	} {
		aloneAndInAFleet(t, name, func(t *testing.T, fleet bellwether.Fleet) {
			var mu sync.Mutex
			var told []error
			broken := test.cold
			o := test.Options
			o.TTL, o.Fleet = cmp.Or(o.TTL, ttl), fleet
			o.OnError = func(key string, err error) {
				mu.Lock()
				defer mu.Unlock()
				if key == "k" {
					told = append(told, err)
				}
			}
			o.Observers = []observe.Observer{{Error: func(_ string, err error) {
				t.Errorf("an observer's Error is told of %v, which its Rebuild is", err)
			}}}
			c := cacheOf(t, func(context.Context, string) (string, error) {
				time.Sleep(time.Second)
				if broken {
					return "", errOrigin
				}
				return "v", nil
			}, o)
			if !test.cold {
				get(c)
				broken = true
				time.Sleep(ttl + time.Second)
			}
			test.ask(c)
			time.Sleep(5 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			if len(told) != test.told {
				t.Fatalf("told of %v, want %d failures", told, test.told)
			}
			for _, err := range told {
				if !errors.Is(err, errOrigin) || err.Error() != `refreshing "k": origin is broken` {
					t.Errorf("told of %v", err)
				}
			}
		})
	}
}

// A load may have failed before the Refresh that began it has returned.
func TestOnError_QuickFailuresOfRefreshes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers = 200
		each := 100
		if testing.Short() {
			each = 10
		}
		var told atomic.Int64
		c := cacheOf(t, func(context.Context, string) (string, error) { return "", errOrigin }, bellwether.Options{
			TTL: time.Hour, Limits: bellwether.Limits{MaxQueued: callers * each},
			OnError: func(string, error) { told.Add(1) },
		})
		for i := range callers {
			go func() {
				for j := range each {
					if err := c.Refresh(t.Context(), fmt.Sprint(i, j)); err != nil {
						t.Error(err)
					}
				}
			}()
		}
		synctest.Wait()
		if n := told.Load(); n != int64(callers*each) {
			t.Errorf("OnError was told of %d of %d failures", n, callers*each)
		}
	})
}

func TestOnError_HandlerFailsBehindAStalePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		broken := false
		s := newSite(t, bellwether.HTTPOptions{
			OnError: func(key string, err error) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, err.Error())
			},
		}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=10, stale-while-revalidate=60")
			if broken {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			fmt.Fprint(w, "page")
		})
		s.get("http://a/p")
		broken = true
		time.Sleep(11 * time.Second)
		if got := s.get("http://a/p"); got.Code != http.StatusOK {
			t.Errorf("%d, want the stale page", got.Code)
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if want := `[refreshing "a/p": bellwether: handler answered with a server error: 503]`; fmt.Sprint(told) != want {
			t.Errorf("told of %v, want %s", told, want)
		}
	})
}

// A commit that has used up EngineTimeout is one silence: no second request follows it.
func TestOnError_SilentCommit(t *testing.T) {
	for by, way := range map[string]way{"a pair": push, "an elector": atOnce} {
		inBubble(t, by, func(t *testing.T) {
			var errs []error
			f := newFleet(t, 1, way, bellwether.Options{TTL: time.Hour, OnError: func(_ string, err error) { errs = append(errs, err) }})
			p := f.processes[0]
			p.store.set(on(blackHole, "commit"))
			if v, err := p.Get(t.Context(), "k"); v != "v1" || err != nil {
				t.Errorf("Get = %q, %v", v, err)
			}
			synctest.Wait()
			if n := p.Stats().EngineErrors; n != 1 || len(errs) != 1 {
				t.Errorf("%d engine errors, OnError got %v; want one", n, errs)
			}
		})
	}
}
