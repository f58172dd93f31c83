package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// A batchSource makes values "<key> v<n>" in load n.
type batchSource struct {
	mu      sync.Mutex // guards all fields
	build   time.Duration
	deaf    bool
	do      func(ctx context.Context, keys []string, values map[string]string) error // called by each load; nil: all keys succeed
	batches [][]string
	live    map[string]int // running loads of a key, without the cancelled loads
	most    int            // maximum of live
	running int            // running loads, with the cancelled loads
	mostAll int
}

func (o *batchSource) load(ctx context.Context, keys []string) (map[string]string, error) {
	o.mu.Lock()
	o.batches = append(o.batches, slices.Clone(keys))
	n, build, deaf, do := len(o.batches), o.build, o.deaf, o.do
	o.running++
	o.mostAll = max(o.mostAll, o.running)
	if o.live == nil {
		o.live = map[string]int{}
	}
	for _, key := range keys {
		o.live[key]++
		o.most = max(o.most, o.live[key])
	}
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.running--
		for _, key := range keys {
			o.live[key]--
		}
	}()
	done := ctx.Done()
	if deaf {
		done = nil
	}
	select {
	case <-time.After(build):
	case <-done:
		return nil, context.Cause(ctx)
	}
	values := map[string]string{}
	for _, key := range keys {
		values[key] = fmt.Sprintf("%s v%d", key, n)
	}
	if do != nil {
		return values, do(ctx, keys, values)
	}
	return values, nil
}

func (o *batchSource) set(f func(o *batchSource)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(o)
}

func (o *batchSource) loads() [][]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.batches)
}

func (o *batchSource) wantLoads(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, keys := range o.loads() {
		got = append(got, strings.Join(keys, " "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("loads of %q, want %q", got, want)
	}
}

func manyKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("k%05d", i)
	}
	return keys
}

func batchCache(t *testing.T, load func(context.Context, []string) (map[string]string, error), o bellwether.Options) *bellwether.Cache[string] {
	t.Helper()
	c := bellwether.NewBatch(load, named(o))
	t.Cleanup(func() { c.Close() })
	return c
}

// newBatchFleet starts n processes whose store is a BatchGetter.
func newBatchFleet(t *testing.T, n int, origin *batchSource, o bellwether.Options) []*process {
	t.Helper()
	store, locker := memstore.New(), locallock.New()
	var ps []*process
	for range n {
		p := &process{
			store:  wiredTo(store),
			locker: wiredLocks(locker),
		}
		o.Fleet.Store, o.Fleet.Locker = p.store.batching(), p.locker
		p.Cache = batchCache(t, origin.load, o)
		ps = append(ps, p)
	}
	return ps
}

func failures(t *testing.T, err error) map[string]error {
	t.Helper()
	if err == nil {
		return nil
	}
	batch, ok := err.(*bellwether.BatchError)
	if !ok || len(batch.Errors) == 0 {
		t.Fatalf("GetMany's error is %T %v, want a *BatchError that names keys", err, err)
	}
	return batch.Errors
}

// wantAll checks that each key has a value of its own, of any load.
func wantAll(t *testing.T, keys []string, values map[string]string, err error) {
	t.Helper()
	if err != nil || len(values) != len(keys) {
		t.Fatalf("%d values of %d, %v", len(values), len(keys), err)
	}
	for _, key := range keys {
		if !strings.HasPrefix(values[key], key+" v") {
			t.Fatalf("the value of %q is %q", key, values[key])
		}
	}
}

func getAll(t *testing.T, c interface {
	GetMany(ctx context.Context, keys []string) (map[string]string, error)
}, keys []string) {
	t.Helper()
	values, err := c.GetMany(t.Context(), keys)
	wantAll(t, keys, values, err)
}

func wantTook(t *testing.T, start time.Time, want time.Duration) {
	t.Helper()
	if got := time.Since(start); got != want {
		t.Errorf("took %v, want %v", got, want)
	}
}

func TestGetMany_OneReadAndOneLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		ps := newBatchFleet(t, 2, origin, bellwether.Options{})
		keys := manyKeys(100)
		start := time.Now()
		getAll(t, ps[0], keys)
		wantTook(t, start, time.Second)
		origin.wantLoads(t, strings.Join(keys, " "))
		if got, all := ps[0].store.count("getmany"), ps[0].store.count("getmany", "get"); got != 1 || all != 1 {
			t.Errorf("%d GetMany, %d reads in all, want 1", got, all)
		}
		synctest.Wait()
		if s := ps[0].Stats(); s.Misses != 100 || s.Flights != 0 || s.Collapsed != 0 || s.Loads != 100 {
			t.Errorf("stats %+v", s)
		}

		getAll(t, ps[1], keys)
		if got := ps[1].store.count(); got != 1 {
			t.Errorf("the second process asks the store %d times, want once", got)
		}
		if got := ps[1].locker.count(); got != 0 {
			t.Errorf("the second process asks the locker %d times", got)
		}
		values, err := ps[1].GetMany(t.Context(), append(slices.Clone(keys), keys...))
		wantAll(t, keys, values, err)
		synctest.Wait() // the last flight is counted after its answer
		if s := ps[1].Stats(); ps[1].store.count() != 1 || s.Hits != 100 || s.StoreHits != 100 {
			t.Errorf("the third time: %d calls of the store, stats %+v", ps[1].store.count(), s)
		}
		origin.wantLoads(t, strings.Join(keys, " "))
	})
}

func TestGetMany_NothingAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{}
		ps := newBatchFleet(t, 1, origin, bellwether.Options{})
		for _, keys := range [][]string{nil, {}} {
			values, err := ps[0].GetMany(t.Context(), keys)
			if values == nil || len(values) != 0 || err != nil {
				t.Errorf("GetMany without keys: %v, %v", values, err)
			}
		}
		if ps[0].store.count() != 0 {
			t.Error("GetMany without keys asks the store")
		}
		values, err := ps[0].GetMany(t.Context(), []string{"b", "", "a", "b", ""})
		if err != nil || !maps.Equal(values, map[string]string{"a": "a v1", "b": "b v1", "": " v1"}) {
			t.Errorf("GetMany = %q, %v", values, err)
		}
		origin.wantLoads(t, "b  a")
	})
}

func TestGetMany_WithoutABatchGetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{}
		store, keys := memstore.New(), manyKeys(100)
		writer := batchCache(t, origin.load, bellwether.Options{Fleet: bellwether.Fleet{Store: store}})
		if _, err := writer.GetMany(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
		var g gauge
		plain := wiredTo(store)
		plain.set(func(ctx context.Context, op string) error {
			g.work(time.Millisecond)
			return nil
		})
		reader := batchCache(t, origin.load, bellwether.Options{Fleet: bellwether.Fleet{Store: plain}})
		start := time.Now()
		getAll(t, reader, keys)
		if g.most.Load() > 32 || g.most.Load() < 16 || time.Since(start) > 10*time.Millisecond {
			t.Errorf("%d reads at one time, %v in all", g.most.Load(), time.Since(start))
		}
		if got := len(origin.loads()); got != 1 {
			t.Errorf("%d loads", got)
		}
	})
}

// A Get joins a GetMany's rebuild of its key, and a GetMany joins a Get's rebuild.
func TestGetMany_CollapsesKeyByKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		ps := newBatchFleet(t, 1, origin, bellwether.Options{})
		c := ps[0].Cache
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { c.Get(t.Context(), "b") })
		synctest.Wait()
		wg.Go(func() {
			values, err := c.GetMany(t.Context(), []string{"a", "b", "c"})
			if err != nil || !maps.Equal(values, map[string]string{"a": "a v2", "b": "b v1", "c": "c v2"}) {
				t.Errorf("GetMany = %q, %v", values, err)
			}
		})
		synctest.Wait()
		wg.Go(func() { wantValue(t, c, "c", "c v2") })
		wg.Go(func() {
			values, err := c.GetMany(t.Context(), []string{"c", "a", "b"})
			if err != nil || len(values) != 3 {
				t.Errorf("GetMany = %q, %v", values, err)
			}
		})
		wg.Wait()
		wantTook(t, start, time.Second)
		origin.wantLoads(t, "b", "a c")
		if s := c.Stats(); s.Misses != 3 || s.Collapsed != 1+1+3 {
			t.Errorf("stats %+v", s)
		}
	})
}

// A key that joins another call's flight has no place for a flight of its own.
func TestGetMany_JoinedKeysHoldOnePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		c := batchCache(t, origin.load, bellwether.Options{})
		keys := manyKeys(5000)
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { getAll(t, c, keys[:4000]) })
		synctest.Wait()
		wg.Go(func() { getAll(t, c, keys) }) // 4,000 keys join, and 1,000 begin flights beside them
		wg.Wait()
		wantTook(t, start, time.Second)
	})
}

func TestGetMany_RebuildTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause atomic.Value
		c := batchCache(t, func(ctx context.Context, keys []string) (map[string]string, error) {
			if d, ok := ctx.Deadline(); !ok || time.Until(d) > 3*time.Second {
				t.Errorf("deadline %v, %v", d, ok)
			}
			<-ctx.Done()
			cause.Store(context.Cause(ctx))
			return nil, ctx.Err()
		}, bellwether.Options{RebuildTimeout: 3 * time.Second})
		start := time.Now()
		_, err := c.GetMany(t.Context(), []string{"a", "b"})
		failed := failures(t, err)
		if !errors.Is(failed["a"], bellwether.ErrRebuildTimeout) || !errors.Is(failed["b"], bellwether.ErrRebuildTimeout) {
			t.Error(err)
		}
		wantTook(t, start, 3*time.Second)
		synctest.Wait()
		if !errors.Is(cause.Load().(error), bellwether.ErrRebuildTimeout) {
			t.Errorf("the load's context ended by %v", cause.Load())
		}
	})
}

// A load may name each key's error after the end of its context. The flights' contexts end at the same time, some of
// them after the load has returned.
func TestGetMany_RebuildTimeoutInABatchError(t *testing.T) {
	for name, of := range map[string]func(end error) error{
		"the context's error": func(end error) error { return end },
		"wrapped":             func(end error) error { return fmt.Errorf("reading the row: %w", end) },
	} {
		inBubble(t, name, func(t *testing.T) {
			keys := manyKeys(1000)
			c := batchCache(t, func(ctx context.Context, keys []string) (map[string]string, error) {
				<-ctx.Done()
				failed := map[string]error{}
				for _, key := range keys {
					failed[key] = of(ctx.Err())
				}
				return nil, &bellwether.BatchError{Errors: failed}
			}, bellwether.Options{RebuildTimeout: 3 * time.Second})
			_, err := c.GetMany(t.Context(), keys)
			failed := failures(t, err)
			for _, key := range keys {
				if !errors.Is(failed[key], bellwether.ErrRebuildTimeout) {
					t.Fatalf("%s: %v, want ErrRebuildTimeout", key, failed[key])
				}
			}
		})
	}
}

// Callers get stale values at once, and one load rebuilds all the keys.
func TestGetMany_StaleAndEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		ps := newBatchFleet(t, 1, origin, bellwether.Options{TTL: time.Minute, StaleWhileRevalidate: time.Hour})
		c, keys := ps[0].Cache, []string{"a", "b", "c"}
		c.GetMany(t.Context(), keys)
		time.Sleep(2 * time.Minute)
		c.GetMany(t.Context(), keys) // the near tier asks the store, whose entry is stale too
		time.Sleep(5 * time.Second)
		origin.wantLoads(t, "a b c", "a b c")
		start := time.Now()
		time.Sleep(time.Minute + 500*time.Millisecond)
		c.GetMany(t.Context(), keys)
		wantTook(t, start, time.Minute+500*time.Millisecond)
		time.Sleep(5 * time.Second)
		origin.wantLoads(t, "a b c", "a b c", "a b c")
	})
	inBubble(t, "early", func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		c := batchCache(t, origin.load, bellwether.Options{TTL: time.Hour, EarlyRefresh: 1e12})
		c.GetMany(t.Context(), []string{"a", "b"})
		start := time.Now()
		values, err := c.GetMany(t.Context(), []string{"a", "x", "b"})
		if err != nil || values["a"] != "a v1" || values["b"] != "b v1" || values["x"] != "x v2" {
			t.Errorf("GetMany = %q, %v", values, err)
		}
		wantTook(t, start, time.Second)
		synctest.Wait()
		origin.wantLoads(t, "a b", "x a b")
		if s := c.Stats(); s.Hits != 2 || s.Misses != 3 || s.Flights != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// Values from the store are rebuilt early after a GetMany, all in one load.
func TestGetMany_EarlyAfterAnAnswerOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		ps := newBatchFleet(t, 2, origin, bellwether.Options{TTL: time.Hour, EarlyRefresh: 1e12})
		ps[0].GetMany(t.Context(), []string{"a", "b"})
		start := time.Now()
		values, err := ps[1].GetMany(t.Context(), []string{"a", "x", "b"})
		wantAll(t, []string{"a", "x", "b"}, values, err)
		wantTook(t, start, time.Second)
		if values["a"] != "a v1" || values["b"] != "b v1" {
			t.Errorf("%q, want the store's values", values)
		}
		time.Sleep(10 * time.Second)
		origin.set(func(o *batchSource) { // the keys are in the order of the store's answers
			for _, keys := range o.batches {
				slices.Sort(keys)
			}
		})
		origin.wantLoads(t, "a b", "x", "a b")
		if s := ps[1].Stats(); s.Misses != 3 || s.StoreHits != 2 || s.Flights != 0 {
			t.Errorf("stats %+v", s)
		}
		// A value that was loaded just now is not rebuilt early.
		ps[1].GetMany(t.Context(), []string{"y"})
		time.Sleep(10 * time.Second)
		origin.wantLoads(t, "a b", "x", "a b", "y")
	})
}

func TestGetMany_ContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		ps := newBatchFleet(t, 1, origin, bellwether.Options{})
		c := ps[0].Cache
		c.Get(t.Context(), "near")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		before := ps[0].store.count()
		values, err := c.GetMany(ended, []string{"near", "a"})
		if failed := failures(t, err); values["near"] != "near v1" || !errors.Is(failed["a"], context.Canceled) || len(failed) != 1 {
			t.Errorf("GetMany = %q, %v", values, err)
		}
		if ps[0].store.count() != before {
			t.Error("a context that has ended asks the store")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		start := time.Now()
		_, err = c.GetMany(ctx, manyKeys(5000))
		if failed := failures(t, err); len(failed) != 5000 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%d failures", len(failed))
		}
		wantTook(t, start, time.Second/2)
		time.Sleep(time.Second) // the rebuilds go on without callers
		if v, err := c.Get(t.Context(), "k00001"); err != nil || !strings.HasPrefix(v, "k00001 v") {
			t.Errorf("Get = %q, %v", v, err)
		}
		if n := len(origin.loads()); n != 1+4 {
			t.Errorf("%d loads, want the four that had begun", n-1)
		}
	})
}

// hangBeside loads the key "stale" alone. All other loads hang.
func hangBeside(ctx context.Context, keys []string) (map[string]string, error) {
	if keys[0] == "stale" {
		return map[string]string{"stale": "v"}, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// A stale value is served with or without room for its rebuild, beside keys that fail.
func TestGetMany_StaleAmongVeryMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := batchCache(t, hangBeside, bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour})
		c.Get(t.Context(), "stale")
		time.Sleep(2 * time.Second)
		for _, n := range []int{10, 4500} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			values, err := c.GetMany(ctx, append(manyKeys(n), "stale"))
			if failed := failures(t, err); values["stale"] != "v" || len(failed) != n || failed["stale"] != nil {
				t.Errorf("beside %d keys: %q, %v, and %d have failed", n, values["stale"], failed["stale"], len(failed))
			}
		}
	})
}

// Every key fails with ErrWaitTimeout after MaxWait, also the keys without room for a rebuild.
func TestGetMany_MaxWait(t *testing.T) {
	for _, n := range []int{10, 10_000} {
		synctest.Test(t, func(t *testing.T) {
			c := batchCache(t, func(ctx context.Context, _ []string) (map[string]string, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}, bellwether.Options{MaxWait: time.Second})
			start := time.Now()
			values, err := c.GetMany(t.Context(), manyKeys(n))
			wantTook(t, start, time.Second)
			failed := failures(t, err)
			for key, err := range failed {
				if err != bellwether.ErrWaitTimeout {
					t.Fatalf("%s: %v", key, err)
				}
			}
			if timeouts := c.Stats().WaitTimeouts; len(failed) != n || len(values) != 0 || timeouts != uint64(n) {
				t.Errorf("%d keys: %d have failed, %d have values, %d WaitTimeouts", n, len(failed), len(values), timeouts)
			}
		})
	}
}

// A stale value whose window ends while other keys of its call wait for places answers its key.
func TestGetMany_StaleBeforeTheWaitForPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := batchCache(t, hangBeside, bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Second, MaxWait: time.Second})
		c.Get(t.Context(), "stale")
		time.Sleep(1500 * time.Millisecond)
		values, err := c.GetMany(t.Context(), append(manyKeys(9000), "stale"))
		if values["stale"] != "v" {
			t.Errorf("the stale key got %v", failures(t, err)["stale"])
		}
	})
}

func TestGetMany_CloseBeginsNoLoad(t *testing.T) {
	for range 20 { // the flights end in random order
		synctest.Test(t, func(t *testing.T) {
			origin := &batchSource{}
			ps := newBatchFleet(t, 1, origin, bellwether.Options{})
			ps[0].store.set(func(ctx context.Context, op string) error {
				if op == "claim" && ps[0].store.count("claim") == 3 {
					return blackHole(ctx, op) // the other flights of the batch wait for this claim
				}
				return nil
			})
			go ps[0].GetMany(t.Context(), []string{"a", "b", "c"})
			synctest.Wait()
			ps[0].Close()
			synctest.Wait()
			if n := len(origin.loads()); n != 0 {
				t.Fatalf("%d loads have begun", n)
			}
		})
	}
}

func TestGetMany_ObserverThatExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exits := observe.Observer{Serve: func(context.Context, observe.Serve) { runtime.Goexit() }}
		c := bellwether.NewBatch(func(ctx context.Context, keys []string) (map[string]string, error) {
			time.Sleep(time.Second)
			return map[string]string{"a": "v"}, nil
		}, bellwether.Options{TTL: time.Minute, Observers: []observe.Observer{exits}})
		defer c.Close()
		for range 5000 { // more calls than a call has places for keys
			got, err := c.GetMany(t.Context(), []string{"a"})
			if got["a"] != "v" || err != nil {
				t.Fatal(got, err)
			}
			c.Invalidate(t.Context(), "a")
		}
	})
}

// A call that begins while Close runs ends with it.
func TestGetMany_MeetsClose(t *testing.T) {
	for name, window := range map[string]time.Duration{"alone": 0, "in a window": time.Millisecond} {
		inBubble(t, name, func(t *testing.T) {
			for range 100 {
				c := bellwether.NewBatch((&batchSource{}).load, bellwether.Options{TTL: time.Minute, BatchWindow: window})
				var calls sync.WaitGroup
				start := make(chan struct{})
				for i := range 16 {
					calls.Go(func() {
						<-start
						for j := range 20 {
							began := time.Now()
							c.GetMany(context.Background(), []string{fmt.Sprint(i%4, " ", j), fmt.Sprint(j)})
							if took := time.Since(began); took > time.Second {
								t.Errorf("a call took %v", took)
							}
						}
					})
				}
				close(start)
				c.Close()
				calls.Wait()
			}
		})
	}
}

// An invalidated key is loaded again when its load has returned, also if the load goes on for other keys.
func TestGetMany_InvalidatedKeyHasOneLoadAtATime(t *testing.T) {
	for name, get := range map[string]func(c *bellwether.Cache[string]) error{
		"one key": func(c *bellwether.Cache[string]) error {
			_, err := c.GetMany(context.Background(), []string{"a"})
			return err
		},
		"two keys": func(c *bellwether.Cache[string]) error {
			_, err := c.GetMany(context.Background(), []string{"a", "b"})
			return err
		},
		"in a window": func(c *bellwether.Cache[string]) error { _, err := c.Get(context.Background(), "a"); return err },
	} {
		for _, obeys := range []bool{false, true} {
			inBubble(t, fmt.Sprintf("%s, obeys %t", name, obeys), func(t *testing.T) {
				g := &gauge{}
				o := bellwether.Options{TTL: time.Minute}
				if name == "in a window" {
					o.BatchWindow = 10 * time.Millisecond
				}
				loads := 0
				c := batchCache(t, func(ctx context.Context, keys []string) (map[string]string, error) {
					values := map[string]string{}
					for _, key := range keys {
						values[key] = key
					}
					if slices.Contains(keys, "a") {
						defer g.enter()()
						loads++
					}
					select {
					case <-time.After(600 * time.Millisecond):
					case <-ctx.Done():
						if !obeys {
							time.Sleep(time.Second)
						}
						return nil, ctx.Err()
					}
					return values, nil
				}, o)
				var calls sync.WaitGroup
				call := func() {
					calls.Go(func() {
						if err := get(c); err != nil {
							t.Error(err)
						}
					})
				}
				call()
				for range 3 {
					time.Sleep(100 * time.Millisecond)
					if err := c.Invalidate(t.Context(), "a"); err != nil {
						t.Fatal(err)
					}
					call()
				}
				calls.Wait()
				if most := g.most.Load(); most != 1 {
					t.Errorf("%d loads of the key at one time, of %d", most, loads)
				}
			})
		}
	}
}
