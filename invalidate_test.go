package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// tagged answers with the number of its call, fresh for an hour, with the tags of the query.
func tagged(calls *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n := calls.Add(1)
		time.Sleep(10 * time.Millisecond)
		w.Header().Set("Cache-Control", "max-age=3600, stale-while-revalidate=600")
		w.Header().Set("ETag", fmt.Sprintf(`"%d"`, n))
		for _, tag := range r.URL.Query()["tag"] {
			w.Header().Add("Surrogate-Key", tag)
		}
		if lang := r.URL.Query().Get("lang"); lang != "" {
			w.Header().Set("Vary", "Accept-Language")
		}
		fmt.Fprint(w, n)
	}
}

func sites(t *testing.T, n int, store driver.Store, h http.HandlerFunc) []*site {
	t.Helper()
	return sitesOf(t, n, bellwether.Fleet{Store: store}, h)
}

// sitesOf returns n processes of a fleet, without engines if the fleet has no store.
func sitesOf(t *testing.T, n int, fleet bellwether.Fleet, h http.HandlerFunc) []*site {
	t.Helper()
	if fleet.Store != nil {
		fleet.Locker = locallock.New()
	}
	var all []*site
	for range n {
		all = append(all, newSite(t, bellwether.HTTPOptions{Fleet: fleet}, h))
		synctest.Wait() // the first process has begun the log, and the others have read it
	}
	return all
}

func TestInvalidateMatching(t *testing.T) {
	urls := []string{"/a", "/a/b?tag=x", "/ab?tag=x+y", "/c?tag=y", "/c?tag=z,q", "/l?lang=1&tag=x"}
	for name, tt := range map[string]struct {
		match bellwether.Match
		gone  []string
	}{
		"nothing":         {bellwether.Match{}, nil},
		"a URL":           {bellwether.Match{Keys: []string{"http://example.com/a"}}, []string{"/a"}},
		"a prefix":        {bellwether.Match{Prefixes: []string{"http://Example.com:80/a"}}, []string{"/a", "/a/b?tag=x", "/ab?tag=x+y"}},
		"a directory":     {bellwether.Match{Prefixes: []string{"http://example.com/a/"}}, []string{"/a/b?tag=x"}},
		"a host":          {bellwether.Match{Prefixes: []string{"http://example.com"}}, urls},
		"another host":    {bellwether.Match{Prefixes: []string{"http://example.org"}}, nil},
		"a tag":           {bellwether.Match{Tags: []string{"x"}}, []string{"/a/b?tag=x", "/ab?tag=x+y", "/l?lang=1&tag=x"}},
		"part of a tag":   {bellwether.Match{Tags: []string{"z"}}, nil},
		"several":         {bellwether.Match{Tags: []string{"y"}, Keys: []string{"http://example.com/a"}}, []string{"/a", "/ab?tag=x+y", "/c?tag=y"}},
		"a soft URL":      {bellwether.Match{Keys: []string{"http://example.com/l?lang=1&tag=x"}, Soft: true}, []string{"/l?lang=1&tag=x"}},
		"a soft prefix":   {bellwether.Match{Prefixes: []string{"http://example.com/c"}, Soft: true}, []string{"/c?tag=y", "/c?tag=z,q"}},
		"a soft tag":      {bellwether.Match{Tags: []string{"y"}, Soft: true}, []string{"/ab?tag=x+y", "/c?tag=y"}},
		"a soft nonsense": {bellwether.Match{Tags: []string{"nobody has it"[:6]}, Soft: true}, nil},
	} {
		for fleet, store := range map[string]func() driver.Store{
			"alone":              func() driver.Store { return nil },
			"a store that tells": func() driver.Store { return memstore.New() },
			"a quiet store":      func() driver.Store { return quiet{memstore.New()} },
		} {
			inBubble(t, name+"/"+fleet, func(t *testing.T) {
				var calls atomic.Int64
				n := 3
				st := store()
				if st == nil {
					n = 1
				}
				all := sites(t, n, st, tagged(&calls))
				before := map[string]string{}
				for _, s := range all {
					for _, u := range urls {
						before[u] = s.get("http://example.com" + u).Body.String()
					}
				}
				synctest.Wait() // responses are kept after the clients' answers
				if calls.Load() != int64(len(urls)) {
					t.Fatalf("%d calls to fill the caches with %d pages", calls.Load(), len(urls))
				}
				sweep(t, all[0], tt.match)
				for i, s := range all {
					if i == 1 {
						time.Sleep(1001 * time.Millisecond) // NearTTL
					}
					for _, u := range urls {
						hit := slices.Contains(tt.gone, u)
						w := s.get("http://example.com" + u)
						if hit && tt.match.Soft && i == 0 {
							// The stale page is served once, during the rebuild.
							if w.Body.String() != before[u] || !strings.Contains(w.Header().Get("Cache-Status"), "ttl=") {
								t.Errorf("%s: %q, Cache-Status %q; want the stale %s", u, w.Body, w.Header().Get("Cache-Status"), before[u])
							}
							eventually(t, func() bool { return s.mw.Stats().Flights == 0 })
							w = s.get("http://example.com" + u)
						}
						if got := w.Body.String() != before[u]; got != hit {
							t.Errorf("process %d: %s was hit: %v, want %v", i, u, got, hit)
						}
					}
				}
				if n := calls.Load() - int64(len(urls)); n != int64(len(tt.gone)) {
					t.Errorf("%d calls after it, want %d", n, len(tt.gone))
				}
			})
		}
	}
}

func TestInvalidateMatching_AtOneTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, each = 5, 20
		var calls atomic.Int64
		all := sites(t, n, quiet{memstore.New()}, tagged(&calls))
		for i := range n * each {
			all[0].get(fmt.Sprintf("http://example.com/%d?tag=t%d", i, i))
		}
		var wg sync.WaitGroup
		for i, s := range all {
			for j := range each {
				wg.Go(func() { sweep(t, s, bellwether.Match{Tags: []string{fmt.Sprint("t", i*each+j)}}) })
			}
		}
		wg.Wait()
		time.Sleep(1001 * time.Millisecond)
		before := calls.Load()
		for i := range n * each {
			all[i%n].get(fmt.Sprintf("http://example.com/%d?tag=t%d", i, i))
		}
		if made := calls.Load() - before; made != n*each {
			t.Errorf("%d of %d swept pages were made anew", made, n*each)
		}
	})
}

// An entry older than the oldest remembered sweep counts as swept. A younger entry stays.
func TestInvalidateMatching_LogForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		all := sites(t, 2, quiet{memstore.New()}, tagged(&calls))
		all[0].get("http://example.com/old")
		for i := range 6 {
			if i == 3 {
				all[0].get("http://example.com/young")
			}
			var tags []string
			for j := range 100 {
				tags = append(tags, fmt.Sprint("t", i, "-", j))
			}
			sweep(t, all[0], bellwether.Match{Tags: tags})
		}
		time.Sleep(1001 * time.Millisecond) // until the other process has read the log
		before := calls.Load()
		if got := all[1].get("http://example.com/young").Body.String(); got != "2" || calls.Load() != before {
			t.Errorf("young is %s after %d calls, want the kept one", got, calls.Load()-before)
		}
		all[1].wantBody(t, "3", "http://example.com/old")
	})
}

// A log of sweeps that is too large for the store forgets its oldest sweeps: a refused log would end all later sweeps.
// Entries older than the forgotten sweeps count as swept.
func TestInvalidateMatching_LogIsTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		store := wiredTo(memstore.New())
		store.limit = func(e driver.Entry) error {
			if len(e.Value) > 4<<10 {
				return driver.ErrTooLarge
			}
			return nil
		}
		all := sites(t, 2, quiet{store}, tagged(&calls))
		all[0].get("http://example.com/old?tag=t0")
		for i := range 200 {
			if i == 199 {
				all[0].get("http://example.com/young")
			}
			sweep(t, all[i%2], bellwether.Match{Tags: []string{fmt.Sprint("t", i)}})
		}
		time.Sleep(1001 * time.Millisecond) // until the other process has read the log
		all[1].wantBody(t, "2", "http://example.com/young")
		all[1].wantBody(t, "3", "http://example.com/old?tag=t0")
		sweep(t, all[0], bellwether.Match{Tags: []string{strings.Repeat("x", 5<<10)}}) // alone too large
		all[0].wantBody(t, "4", "http://example.com/young")
	})
}

// After the store has lost the log, older entries count as swept.
func TestInvalidateMatching_LogIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		store := memstore.New()
		all := sites(t, 2, quiet{store}, tagged(&calls))
		all[0].get("http://example.com/?tag=x")
		sweep(t, all[0], bellwether.Match{Tags: []string{"x"}})
		store.Invalidate(t.Context(), "\x00sweeps") // the store loses the log
		time.Sleep(2 * time.Second)
		for _, s := range all {
			s.wantBody(t, "2", "http://example.com/?tag=x")
		}
		sweep(t, all[1], bellwether.Match{Tags: []string{"x"}})
		time.Sleep(2 * time.Second)
		all[0].wantBody(t, "3", "http://example.com/?tag=x") // after a sweep in the new log
	})
}

func TestInvalidateMatching_Errors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		wired := wiredTo(memstore.New())
		s := sites(t, 1, wired, tagged(&calls))[0]
		s.get("http://example.com/a?tag=x")
		s.get("http://example.com/b?tag=y")
		synctest.Wait()
		err := s.mw.InvalidateMatching(t.Context(), bellwether.Match{
			Keys: []string{"/a", "://", "http://example.com/a?tag=x", "ftp://h/x"}, Prefixes: []string{"a", "ftp://example.com", "http://", "http://ex ample"}, Tags: []string{"", "a b", "a,b"},
		})
		for _, part := range []string{`"/a"`, `"ftp://h/x"`, `"a"`, `"ftp://example.com"`, `"http://"`, `"a b"`, `"a,b"`, `""`} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("the error does not name %s: %v", part, err)
			}
		}
		s.wantBody(t, "2", "http://example.com/b?tag=y") // the others hit nothing
		s.wantBody(t, "3", "http://example.com/a?tag=x") // the valid parts were done
		synctest.Wait()
		// While the store is down, a process sweeps its own near tier and returns ErrUnavailable.
		wired.set(refuse)
		if err := s.mw.InvalidateMatching(t.Context(), bellwether.Match{Tags: []string{"x"}}); !errors.Is(err, bellwether.ErrUnavailable) {
			t.Errorf("err = %v, want ErrUnavailable", err)
		}
		s.wantBody(t, "4", "http://example.com/a?tag=x")
	})
}

// An Invalidate, or a Set, that the store does not answer is repeated as an invalidation: the store comes back
// with the value from before.
func TestInvalidate_RepeatedAfterAnOutage(t *testing.T) {
	for name, write := range map[string]func(ctx context.Context, p *process) error{
		"Invalidate": func(ctx context.Context, p *process) error { return p.Invalidate(ctx, "k") },
		"Set":        func(ctx context.Context, p *process) error { return p.Set(ctx, "k", "v2") },
	} {
		for how, down := range map[string]fault{"silent": blackHole, "refusing": refuse} {
			t.Run(name+", "+how, func(t *testing.T) {
				everyWay(t, func(t *testing.T, by way) {
					f := newFleet(t, 2, by, bellwether.Options{TTL: time.Hour})
					f.get(1, "k") // v1
					f.each(func(p *process) { p.store.set(down) })
					if err := write(t.Context(), f.processes[0]); !errors.Is(err, bellwether.ErrUnavailable) {
						t.Errorf("%s: %v, want ErrUnavailable", name, err)
					}
					f.each(func(p *process) { p.store.set(nil) })
					time.Sleep(20 * time.Second)
					f.each(func(p *process) {
						if v, err := p.Get(t.Context(), "k"); v == "v1" || err != nil {
							t.Errorf("Get afterwards: %q, %v; want a value of a later load", v, err)
						}
					})
				})
			})
		}
	}
}
