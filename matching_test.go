package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// Only matching keys are dropped, or stale if Soft: here when the call returns, elsewhere within NearTTL.
func TestCache_InvalidateMatching(t *testing.T) {
	for name, test := range map[string]struct {
		match bellwether.Match
		gone  string // the matching keys
	}{
		"keys":                  {bellwether.Match{Keys: []string{"a", "none"}}, "a"},
		"prefix":                {bellwether.Match{Prefixes: []string{"http"}}, "https://x/1 http://x/1"},
		"prefix with a scheme":  {bellwether.Match{Prefixes: []string{"https://x"}}, "https://x/1"},
		"tag":                   {bellwether.Match{Tags: []string{"even", "none"}}, "a https://x/1"},
		"all":                   {bellwether.Match{All: true}, "a b https://x/1 http://x/1"},
		"nothing":               {bellwether.Match{}, ""},
		"several at once":       {bellwether.Match{Keys: []string{"b"}, Tags: []string{"even"}}, "a b https://x/1"},
		"a soft key":            {bellwether.Match{Keys: []string{"a"}, Soft: true}, "a"},
		"softly all with a tag": {bellwether.Match{Tags: []string{"even"}, Soft: true}, "a https://x/1"},
	} {
		for _, by := range []way{push, poll, atOnce} {
			inBubble(t, fmt.Sprint(name, " ", by), func(t *testing.T) {
				keys := []string{"a", "b", "https://x/1", "http://x/1"}
				f := newFleet(t, 2, by, bellwether.Options{Sweeps: true, TTL: time.Hour, StaleWhileRevalidate: time.Hour})
				f.origin.build, f.origin.tags = 10*time.Millisecond, func(key string) []string {
					for i, k := range keys {
						if k == key && i%2 == 0 {
							return []string{"even", "number " + fmt.Sprint(i)}
						}
					}
					return nil
				}
				for _, p := range f.processes {
					for _, key := range keys {
						if _, err := p.Get(t.Context(), key); err != nil {
							t.Fatal(err)
						}
					}
				}
				before, _ := f.origin.count()
				if err := f.processes[0].InvalidateMatching(t.Context(), test.match); err != nil {
					t.Fatal(err)
				}
				for i, p := range f.processes {
					time.Sleep(time.Duration(i) * (time.Second + time.Millisecond)) // NearTTL
					for _, key := range keys {
						swept := strings.Contains(" "+test.gone+" ", " "+key+" ")
						first, err := p.Get(t.Context(), key)
						eventually(t, func() bool { return p.Stats().Flights == 0 }) // a rebuild in the background ends
						second, _ := p.Get(t.Context(), key)
						renewed := version(second) > before
						served := version(first) > before
						if err != nil || renewed != swept || served != (swept && (i == 1 || !test.match.Soft)) {
							t.Errorf("process %d, %s: %q and then %q, %v; swept %t", i, key, first, second, err, swept)
						}
					}
				}
				after, _ := f.origin.count()
				if want := len(strings.Fields(test.gone)); after-before != want {
					t.Errorf("%d loads, want %d", after-before, want)
				}
			})
		}
	}
}

func TestCache_InvalidateMatching_DuringALoad(t *testing.T) {
	for _, soft := range []bool{false, true} {
		inBubble(t, fmt.Sprint("soft ", soft), func(t *testing.T) {
			f := newFleet(t, 2, push, bellwether.Options{Sweeps: true, TTL: time.Hour})
			f.origin.tags = func(string) []string { return []string{"tag"} }
			go f.get(1, "k")
			time.Sleep(500 * time.Millisecond)
			if err := f.processes[1].InvalidateMatching(t.Context(), bellwether.Match{Tags: []string{"tag"}, Soft: soft}); err != nil {
				t.Fatal(err)
			}
			if got := f.get(1, "k"); len(got.failed) > 0 || got.values["v1"] > 0 {
				t.Errorf("%v, want values loaded after the call", got.count)
			}
		})
	}
}

func TestCache_InvalidateMatching_NeedsALog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{})
		err := f.processes[0].InvalidateMatching(t.Context(), bellwether.Match{All: true})
		if err == nil || !strings.Contains(err.Error(), "needs Options.Sweeps") {
			t.Errorf("in a fleet: %v, want an error that names Options.Sweeps", err)
		}
		n := 0
		c := cacheOf(t, func(context.Context, string) (int, error) { n++; return n, nil }, bellwether.Options{})
		c.Get(t.Context(), "k")
		if err := c.InvalidateMatching(t.Context(), bellwether.Match{Prefixes: []string{"k"}}); err != nil {
			t.Error(err)
		}
		if v, err := c.Get(t.Context(), "k"); v != 2 || err != nil {
			t.Errorf("alone: %d, %v", v, err)
		}
	})
}

// A sweep of a tag with 100,000 values takes as few engine calls as with one value.
func TestCache_InvalidateMatching_ManyValues(t *testing.T) {
	many := 100_000
	if testing.Short() {
		many = 2_000
	}
	synctest.Test(t, func(t *testing.T) {
		store, locker := memstore.New(), locallock.New()
		version := "old"
		load := func(_ context.Context, requests []bellwether.Request[string]) (map[string]bellwether.Result[string], error) {
			results := make(map[string]bellwether.Result[string], len(requests))
			for _, r := range requests {
				results[r.Key] = bellwether.Result[string]{Value: version, Tags: []string{"org:7"}}
			}
			return results, nil
		}
		var all []*bellwether.Cache[string]
		var stores []*wiredStore
		var lockers []*wiredLocker
		for range 2 {
			s, l := wiredTo(store), wiredLocks(locker)
			s.busy, l.busy = true, true
			o := named(bellwether.Options{TTL: time.Hour, Sweeps: true, Fleet: bellwether.Fleet{Store: s, Locker: l}, Limits: bellwether.Limits{NearBytes: 1 << 30}})
			c := bellwether.NewBatchLoader(load, o)
			t.Cleanup(func() { c.Close() })
			all, stores, lockers = append(all, c), append(stores, s), append(lockers, l)
		}
		keys := make([]string, many)
		for i := range keys {
			keys[i] = fmt.Sprint("user:", i)
		}
		for _, c := range all {
			for some := range slices.Chunk(keys, 1000) {
				if values, err := c.GetMany(t.Context(), some); len(values) != len(some) || err != nil {
					t.Fatalf("%d values, %v", len(values), err)
				}
			}
		}
		synctest.Wait() // for the releases
		for i := range stores {
			stores[i].reset()
			lockers[i].reset()
		}
		version = "new"
		if err := all[0].InvalidateMatching(t.Context(), bellwether.Match{Tags: []string{"org:7"}}); err != nil {
			t.Fatal(err)
		}
		calls := 0
		for i := range stores {
			calls += stores[i].count() + lockers[i].count()
		}
		if calls > 6 {
			t.Errorf("the call has cost %d calls of the engines, want 6 at most", calls)
		}
		for i, c := range all {
			time.Sleep(time.Duration(i) * (time.Second + time.Millisecond)) // NearTTL
			for some := range slices.Chunk(keys, 1000) {
				values, err := c.GetMany(t.Context(), some)
				for key, v := range values {
					if v != "new" {
						t.Fatalf("process %d serves %s from before the call", i, key)
					}
				}
				if len(values) != len(some) || err != nil {
					t.Fatalf("process %d: %d values, %v", i, len(values), err)
				}
			}
		}
	})
}

// A flight that waits for its slot gives its load no item that a sweep has dropped meanwhile: NotModified would bring
// the value back.
func TestSweep_WhileAFlightQueues(t *testing.T) {
	for name, match := range map[string]bellwether.Match{"Keys": {Keys: []string{"k"}}, "Prefixes": {Prefixes: []string{"k"}}, "Tags": {Tags: []string{"t"}}, "All": {All: true}} {
		inBubble(t, name, func(t *testing.T) {
			release := make(chan struct{})
			computed := map[bool]string{false: "before the call", true: "after the call"}
			invalidated, found := false, false
			c := bellwether.NewLoader(func(ctx context.Context, r bellwether.Request[string]) (bellwether.Result[string], error) {
				if r.Key == "other" {
					<-release
				}
				if r.Key == "k" {
					found = r.Found
				}
				if r.Found {
					return bellwether.Result[string]{NotModified: true}, nil
				}
				return bellwether.Result[string]{Value: computed[invalidated], Validator: "1", Tags: []string{"t"}}, nil
			}, bellwether.Options{TTL: time.Second, Limits: bellwether.Limits{MaxRebuilds: 1}})
			defer c.Close()
			c.Get(t.Context(), "k")
			time.Sleep(2 * time.Second) // k is stale
			go c.Get(t.Context(), "other")
			synctest.Wait()
			go c.Get(t.Context(), "k") // waits for the only slot
			synctest.Wait()
			if err := c.InvalidateMatching(t.Context(), match); err != nil {
				t.Fatal(err)
			}
			invalidated = true
			close(release)
			if v, err := c.Get(t.Context(), "k"); v != "after the call" {
				t.Errorf("Get: a value computed %s, %v; the load's Found is %t", v, err, found)
			}
		})
	}
}

// A soft invalidation leaves a value its windows, however long its TTL.
func TestSweep_SoftOfAValueForEver(t *testing.T) {
	for _, fleet := range []bool{false, true} {
		for _, ttl := range []time.Duration{100 * 365 * 24 * time.Hour, math.MaxInt64} {
			inBubble(t, fmt.Sprint("fleet ", fleet, ", TTL ", ttl), func(t *testing.T) {
				o := bellwether.Options{TTL: ttl, StaleWhileRevalidate: time.Hour, StaleIfError: time.Hour, Sweeps: fleet}
				if fleet {
					o.Fleet = bellwether.Fleet{Store: memstore.New(), Locker: locallock.New(), Namespace: "n"}
				}
				fails := false
				c := bellwether.New(func(ctx context.Context, key string) (string, error) {
					if fails {
						return "", errors.New("down")
					}
					return "v", nil
				}, o)
				defer c.Close()
				c.Get(t.Context(), "k")
				time.Sleep(time.Minute)
				fails = true
				if err := c.InvalidateMatching(t.Context(), bellwether.Match{Keys: []string{"k"}, Soft: true}); err != nil {
					t.Fatal(err)
				}
				if v, err := c.Get(t.Context(), "k"); v != "v" || err != nil {
					t.Errorf("Get: %q, %v; want the stale value within its window of an hour", v, err)
				}
			})
		}
	}
}

// The end of the caller's context leaves the log unwritten, wherever it comes. The error says so as Invalidate's does.
func TestInvalidateMatching_ContextEnds(t *testing.T) {
	for _, patience := range []time.Duration{0, time.Second} { // before the call, and while another process writes the log
		synctest.Test(t, func(t *testing.T) {
			engine := memstore.New()
			c := cacheOf(t, (&source{}).load, bellwether.Options{Sweeps: true, Fleet: bellwether.Fleet{Engine: engine, Namespace: "test"}})
			c.Get(t.Context(), "k")
			if _, err := engine.TryAcquire(t.Context(), "test\x00sweeps", time.Hour); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := c.InvalidateMatching(ctx, bellwether.Match{All: true})
			if !errors.Is(err, bellwether.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("after %v: %v, want ErrUnavailable and the context's error", patience, err)
			}
		})
	}
}
