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
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file holds GetMany to its sentences.

// A batchingStore is a wired store that answers for many keys at once.
type batchingStore struct {
	*wiredStore
	// mute keys get no answer; set before use.
	mute map[string]bool
}

func (s batchingStore) GetMany(ctx context.Context, keys []string, each func(int, bellwether.Entry, error)) {
	if err := s.call(ctx, "getmany"); err != nil {
		for i := range keys {
			each(i, bellwether.Entry{}, err)
		}
		return
	}
	var wg sync.WaitGroup
	for i, key := range keys {
		if s.mute[ownKey(key)] {
			wg.Go(func() {
				<-ctx.Done()
				each(i, bellwether.Entry{}, ctx.Err())
			})
			continue
		}
		e, err := s.store.Get(ctx, key)
		each(i, s.tampered(e), err)
	}
	wg.Wait()
}

// A batchSource makes values "<key> v<n>", where n counts the loads.
type batchSource struct {
	mu      sync.Mutex // guards all
	build   time.Duration
	deaf    bool
	do      func(ctx context.Context, keys []string, values map[string]string) error // nil: all succeeds
	batches [][]string
	live    map[string]int // loads of a key at a time, the cancelled ones not counted
	most    int            // of these
	running int            // loads at a time, all counted
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

// loads returns the keys of each load.
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

// newBatchFleet starts n processes whose store answers for many keys.
func newBatchFleet(t *testing.T, n int, origin *batchSource, o bellwether.Options) []*process {
	t.Helper()
	store, locker := memstore.New(), locallock.New()
	var ps []*process
	for range n {
		p := &process{
			store:  &wiredStore{wire: &wire{}, store: store},
			locker: &wiredLocker{wire: &wire{}, locker: locker},
		}
		o.Store, o.Locker = batchingStore{wiredStore: p.store}, p.locker
		p.Cache = batchCache(t, origin.load, o)
		ps = append(ps, p)
	}
	return ps
}

// failures returns the errors of the keys of a GetMany's error.
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

// wantAll checks that each key has its value, of whatever load.
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
		values, err := ps[0].GetMany(t.Context(), keys)
		wantAll(t, keys, values, err)
		wantTook(t, start, time.Second)
		origin.wantLoads(t, strings.Join(keys, " "))
		if got, all := ps[0].store.count("getmany"), ps[0].store.count("getmany", "get"); got != 1 || all != 1 {
			t.Errorf("%d GetMany, %d reads in all, want 1", got, all)
		}
		synctest.Wait()
		if s := ps[0].Stats(); s.Misses != 100 || s.Flights != 0 || s.Collapsed != 0 || s.Loads != 100 {
			t.Errorf("stats %+v", s)
		}

		values, err = ps[1].GetMany(t.Context(), keys)
		wantAll(t, keys, values, err)
		if got := ps[1].store.count(); got != 1 {
			t.Errorf("the second process asks the store %d times, want once", got)
		}
		if got := ps[1].locker.count(); got != 0 {
			t.Errorf("the second process asks the locker %d times", got)
		}
		values, err = ps[1].GetMany(t.Context(), append(slices.Clone(keys), keys...))
		wantAll(t, keys, values, err)
		synctest.Wait() // the last flight counts itself when it has answered
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
				t.Errorf("of no keys: %v, %v", values, err)
			}
		}
		if ps[0].store.count() != 0 {
			t.Error("no keys ask the store")
		}
		values, err := ps[0].GetMany(t.Context(), []string{"b", "", "a", "b", ""})
		if err != nil || !maps.Equal(values, map[string]string{"a": "a v1", "b": "b v1", "": " v1"}) {
			t.Errorf("%q, %v", values, err)
		}
		origin.wantLoads(t, "b  a")
	})
}

func TestGetMany_WithoutABatchGetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{}
		store, keys := memstore.New(), manyKeys(100)
		writer := batchCache(t, origin.load, bellwether.Options{Store: store})
		if _, err := writer.GetMany(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
		var running, most atomic.Int32
		plain := &wiredStore{wire: &wire{}, store: store}
		plain.set(func(ctx context.Context, op string) error {
			n := running.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(time.Millisecond)
			running.Add(-1)
			return nil
		})
		reader := batchCache(t, origin.load, bellwether.Options{Store: struct{ bellwether.Store }{plain}})
		start := time.Now()
		values, err := reader.GetMany(t.Context(), keys)
		wantAll(t, keys, values, err)
		if most.Load() > 32 || most.Load() < 16 || time.Since(start) > 10*time.Millisecond {
			t.Errorf("%d reads at one time, %v in all", most.Load(), time.Since(start))
		}
		if got := len(origin.loads()); got != 1 {
			t.Errorf("%d loads", got)
		}
	})
}

// Who asks for a key of a batch joins it, and a batch joins whoever loads one.
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
				t.Errorf("%q, %v", values, err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if v, err := c.Get(t.Context(), "c"); v != "c v2" || err != nil {
				t.Errorf("%q, %v", v, err)
			}
		})
		wg.Go(func() {
			values, err := c.GetMany(t.Context(), []string{"c", "a", "b"})
			if err != nil || len(values) != 3 {
				t.Errorf("%q, %v", values, err)
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

// A key that another process holds is waited for by itself.
func TestGetMany_HeldKeyDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, origin := &batchSource{build: 20 * time.Second}, &batchSource{build: time.Second}
		store, locker := memstore.New(), locallock.New()
		o := bellwether.Options{Store: store, Locker: locker}
		other, c, third := batchCache(t, slow.load, o), batchCache(t, origin.load, o), batchCache(t, origin.load, o)
		go other.Get(t.Context(), "held")
		synctest.Wait()

		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			values, err := c.GetMany(t.Context(), []string{"a", "held", "b"})
			wantAll(t, []string{"a", "held", "b"}, values, err)
			wantTook(t, start, 20*time.Second)
		})
		synctest.Wait()
		for _, p := range []*bellwether.Cache[string]{c, third} {
			wg.Go(func() {
				if v, err := p.Get(t.Context(), "b"); v != "b v1" || err != nil {
					t.Errorf("%q, %v", v, err)
				}
				wantTook(t, start, time.Second)
			})
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			values, err := third.GetMany(ctx, []string{"held", "a", "b"})
			if failed := failures(t, err); len(values) != 2 || len(failed) != 1 || !errors.Is(failed["held"], context.DeadlineExceeded) {
				t.Errorf("%q, %v", values, err)
			}
			wantTook(t, start, 2*time.Second)
		})
		wg.Wait()
		origin.wantLoads(t, "a b")
		slow.wantLoads(t, "held")
	})
}

// A lockerOf is a locker with a fault for some keys.
type lockerOf struct {
	bellwether.Locker
	fault func(ctx context.Context, key string) error
}

func (l lockerOf) TryAcquire(ctx context.Context, key string, ttl time.Duration) (bellwether.Lease, error) {
	if err := l.fault(ctx, ownKey(key)); err != nil {
		return nil, err
	}
	return l.Locker.TryAcquire(ctx, key, ttl)
}

// An engine that is slow about one key delays the others for a moment only, and
// the key is loaded later, by itself.
func TestGetMany_SlowElectionDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: 2 * time.Second}
		c := batchCache(t, origin.load, bellwether.Options{Store: memstore.New(), Locker: lockerOf{locallock.New(), func(ctx context.Context, key string) error {
			if key != "slow" {
				return nil
			}
			return blackHole(ctx, key)
		}}})
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			values, err := c.GetMany(t.Context(), []string{"a", "slow", "b"})
			wantAll(t, []string{"a", "slow", "b"}, values, err)
			wantTook(t, start, 2500*time.Millisecond)
		})
		synctest.Wait()
		if v, err := c.Get(t.Context(), "b"); v != "b v1" || err != nil {
			t.Errorf("%q, %v", v, err)
		}
		wantTook(t, start, 2020*time.Millisecond)
		wg.Wait()
		origin.wantLoads(t, "a b", "slow")
	})
}

// However many answers of the locker are slow one after another, who is ready
// waits for no more than EngineTimeout.
func TestGetMany_ManySlowElections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		var n atomic.Int32
		c := batchCache(t, origin.load, bellwether.Options{EngineTimeout: time.Second, Store: memstore.New(),
			Locker: lockerOf{locallock.New(), func(ctx context.Context, key string) error {
				time.Sleep(time.Duration(n.Add(1)) * 15 * time.Millisecond % (190 * time.Millisecond))
				return nil
			}}})
		keys := manyKeys(400)
		start := time.Now()
		values, err := c.GetMany(t.Context(), keys)
		wantAll(t, keys, values, err)
		loads := origin.loads()
		if len(loads) < 2 || len(loads) > 8 || time.Since(start) > 4*time.Second {
			t.Errorf("%d loads, %v in all", len(loads), time.Since(start))
		}
	})
}

// A server of the store's that does not answer for its keys has the others wait
// for nothing.
func TestGetMany_StoreIsSilentAboutSome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		store := &wiredStore{wire: &wire{}, store: memstore.New()}
		c := batchCache(t, origin.load, bellwether.Options{Store: batchingStore{store, map[string]bool{"mute": true}}})
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			values, err := c.GetMany(t.Context(), []string{"mute", "a", "b"})
			wantAll(t, []string{"a", "b", "mute"}, values, err)
			wantTook(t, start, 1500*time.Millisecond)
		})
		synctest.Wait()
		if v, err := c.Get(t.Context(), "a"); v != "a v1" || err != nil {
			t.Errorf("%q, %v", v, err)
		}
		wantTook(t, start, 1020*time.Millisecond)
		wg.Wait()
		origin.wantLoads(t, "a b", "mute")
	})
}

// The first of the keys may have its answer, and be over, while the store has not
// told of the others.
func TestGetMany_AnswersComeOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, keys := memstore.New(), manyKeys(20)
		origin := &batchSource{}
		if _, err := batchCache(t, origin.load, bellwether.Options{Store: store}).GetMany(t.Context(), keys); err != nil {
			t.Fatal(err)
		}
		c := batchCache(t, origin.load, bellwether.Options{Store: trickling{store}})
		values, err := c.GetMany(t.Context(), keys)
		wantAll(t, keys, values, err)
		if n := len(origin.loads()); n != 1 {
			t.Errorf("%d loads, want 1: %q", n, origin.loads())
		}
	})
}

type trickling struct{ *memstore.Store }

func (s trickling) GetMany(ctx context.Context, keys []string, each func(int, bellwether.Entry, error)) {
	for i, key := range keys {
		e, err := s.Get(ctx, key)
		each(i, e, err)
		time.Sleep(time.Millisecond)
	}
}

func TestGetMany_StoreIsDown(t *testing.T) {
	for name, f := range map[string]fault{"refuses": refuse, "hangs": blackHole} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				origin := &batchSource{build: time.Second}
				ps := newBatchFleet(t, 1, origin, bellwether.Options{})
				ps[0].store.set(f)
				keys := manyKeys(50)
				start := time.Now()
				values, err := ps[0].GetMany(t.Context(), keys)
				wantAll(t, keys, values, err)
				if took := time.Since(start); took > 1500*time.Millisecond {
					t.Errorf("took %v", took)
				}
				if n := ps[0].store.count(); n > 3 {
					t.Errorf("%d calls of a store that is down", n)
				}
				origin.wantLoads(t, strings.Join(keys, " "))
			})
		})
	}
	t.Run("one lost packet", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			origin := &batchSource{build: time.Second}
			ps := newBatchFleet(t, 2, origin, bellwether.Options{})
			keys := manyKeys(50)
			ps[1].GetMany(t.Context(), keys)
			ps[0].store.set(func(context.Context, string) error {
				ps[0].store.set(nil)
				return errRefused
			})
			values, err := ps[0].GetMany(t.Context(), keys)
			wantAll(t, keys, values, err)
			if n := len(origin.loads()); n != 1 || ps[0].store.count() != 2 {
				t.Errorf("%d loads, %d calls of the store", n, ps[0].store.count())
			}
		})
	})
}

// Partial results: what the map has, what the error names, and what neither has.
func TestGetMany_PartialResults(t *testing.T) {
	down := errors.New("shard down")
	for _, test := range []struct {
		name   string
		err    error
		failed map[string]error
		absent []string
	}{
		{"nil", nil, nil, []string{"x", "y"}},
		{"BatchError", &bellwether.BatchError{Errors: map[string]error{"x": down, "v": down}}, map[string]error{"x": down, "v": down}, []string{"y"}},
		{"not found by error", &bellwether.BatchError{Errors: map[string]error{"x": fmt.Errorf("row: %w", bellwether.ErrNotFound)}}, nil, []string{"x", "y"}},
		{"a nil error is none", &bellwether.BatchError{Errors: map[string]error{"x": nil}}, nil, []string{"x", "y"}},
		{"wrapped", fmt.Errorf("query: %w", &bellwether.BatchError{Errors: map[string]error{"x": down}}), map[string]error{"x": down, "y": down}, nil},
		{"joined", errors.Join(&bellwether.BatchError{Errors: map[string]error{"x": down}}, down), map[string]error{"x": down, "y": down}, nil},
		{"other", down, map[string]error{"x": down, "y": down}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				origin := &batchSource{do: func(_ context.Context, keys []string, values map[string]string) error {
					delete(values, "x")
					delete(values, "y")
					values["nobody asked"] = "for it"
					return test.err
				}}
				ps := newBatchFleet(t, 2, origin, bellwether.Options{ErrorTTL: time.Minute})
				keys := []string{"v", "w", "x", "y"}
				for i, p := range []*process{ps[0], ps[0], ps[1]} {
					values, err := p.GetMany(t.Context(), keys)
					failed := failures(t, err)
					for _, key := range keys {
						_, found := values[key]
						want := test.failed[key]
						remote, _ := errors.AsType[*bellwether.RemoteError](failed[key])
						switch {
						case want != nil:
							if found || !errors.Is(failed[key], want) && (remote == nil || !strings.Contains(remote.Message, want.Error())) {
								t.Errorf("call %d: %s: found %v, %v, want %v", i, key, found, failed[key], want)
							}
						case found == slices.Contains(test.absent, key) || failed[key] != nil:
							t.Errorf("call %d: %s: found %v, %v", i, key, found, failed[key])
						}
					}
					if len(values) > len(keys) {
						t.Errorf("values %q", values)
					}
				}
				origin.wantLoads(t, "v w x y") // failures and absences are remembered, elsewhere too
				if _, err := ps[1].Get(t.Context(), "nobody asked"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestNewBatch_GetIsABatchOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{do: func(_ context.Context, keys []string, values map[string]string) error {
			delete(values, "absent")
			if _, bad := values["bad"]; bad {
				return &bellwether.BatchError{Errors: map[string]error{"bad": errOrigin}}
			}
			return nil
		}}
		c := batchCache(t, origin.load, bellwether.Options{})
		if v, err := c.Get(t.Context(), "a"); v != "a v1" || err != nil {
			t.Errorf("%q, %v", v, err)
		}
		if _, err := c.Get(t.Context(), "absent"); err != bellwether.ErrNotFound {
			t.Error(err)
		}
		if _, err := c.Get(t.Context(), "bad"); err != errOrigin {
			t.Error(err)
		}
		origin.wantLoads(t, "a", "absent", "bad")
	})
}

// An invalidation has its own key loaded again, and no other.
func TestGetMany_InvalidatedDuringTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		ps := newBatchFleet(t, 2, origin, bellwether.Options{})
		for _, by := range ps {
			origin.set(func(o *batchSource) { o.batches = nil })
			if err := ps[0].Invalidate(t.Context(), "a", "b", "c"); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			var wg sync.WaitGroup
			wg.Go(func() {
				values, err := ps[0].GetMany(t.Context(), []string{"a", "b", "c"})
				if err != nil || !maps.Equal(values, map[string]string{"a": "a v1", "b": "b v2", "c": "c v1"}) {
					t.Errorf("%q, %v", values, err)
				}
			})
			time.Sleep(500 * time.Millisecond)
			by.Invalidate(t.Context(), "b")
			if v, err := ps[0].Get(t.Context(), "c"); v != "c v1" || err != nil {
				t.Errorf("%q, %v", v, err)
			}
			wantTook(t, start, time.Second)
			wg.Wait()
			origin.wantLoads(t, "a b c", "b")
			time.Sleep(2 * time.Second)
		}
	})
}

// A lease that is lost during the load takes its own key from it.
func TestGetMany_LeaseLostDuringTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, origin := &batchSource{build: 8 * time.Second}, &batchSource{build: time.Second}
		store, locker := memstore.New(), locallock.New()
		cut := &atomic.Bool{}
		c := batchCache(t, slow.load, bellwether.Options{Store: store, Locker: renewals{locker, func(key string) error {
			if key == "b" && cut.Load() {
				return errRefused
			}
			return nil
		}}})
		other := batchCache(t, origin.load, bellwether.Options{Store: store, Locker: locker})
		start := time.Now()
		var wg sync.WaitGroup
		cut.Store(true) // b's lease runs out at 5 s, and nobody says so
		wg.Go(func() {
			values, err := c.GetMany(t.Context(), []string{"a", "b"})
			if err != nil || !maps.Equal(values, map[string]string{"a": "a v1", "b": "b v1"}) {
				t.Errorf("%q, %v", values, err)
			}
			if took := time.Since(start); took < 8*time.Second || took > 8*time.Second+10*time.Millisecond {
				t.Errorf("took %v, want the load's 8 s", took)
			}
		})
		time.Sleep(6 * time.Second)
		if v, err := other.Get(t.Context(), "b"); v != "b v1" || err != nil {
			t.Errorf("%q, %v", v, err)
		}
		wg.Wait()
		slow.wantLoads(t, "a b")
		origin.wantLoads(t, "b")
		if s := c.Stats(); s.Fenced != 1 {
			t.Errorf("%d commits were fenced, want that of b", s.Fenced)
		}
	})
}

// renewals is a locker whose renewals may fail.
type renewals struct {
	*locallock.Locker
	fault func(key string) error
}

func (l renewals) TryAcquire(ctx context.Context, key string, ttl time.Duration) (bellwether.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, key, ttl)
	if err != nil {
		return nil, err
	}
	return renewedLease{lease, func() error { return l.fault(ownKey(key)) }}, nil
}

type renewedLease struct {
	bellwether.Lease
	fault func() error
}

func (l renewedLease) Renew(ctx context.Context, ttl time.Duration) error {
	if err := l.fault(); err != nil {
		return err
	}
	return l.Lease.Renew(ctx, ttl)
}

func TestSetFreshnessOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{do: func(ctx context.Context, keys []string, values map[string]string) error {
			bellwether.SetFreshnessOf(ctx, "long", bellwether.Freshness{TTL: time.Hour})
			bellwether.SetFreshnessOf(ctx, "absent long", bellwether.Freshness{TTL: time.Hour})
			bellwether.SetFreshness(ctx, bellwether.Freshness{TTL: 10 * time.Minute})
			delete(values, "absent")
			delete(values, "absent long")
			return nil
		}}
		c := batchCache(t, origin.load, bellwether.Options{NotFoundTTL: 20 * time.Minute})
		keys := []string{"short", "long", "absent", "absent long"}
		for _, one := range []bool{false, true} {
			origin.set(func(o *batchSource) { o.batches = nil })
			c.Invalidate(t.Context(), keys...)
			ask := func() (loaded []string) {
				before := len(origin.loads())
				if one {
					for _, key := range keys {
						c.Get(t.Context(), key)
					}
				} else if _, err := c.GetMany(t.Context(), keys); err != nil {
					t.Error(err)
				}
				for _, keys := range origin.loads()[before:] {
					loaded = append(loaded, keys...)
				}
				return loaded
			}
			ask()
			for _, step := range []struct {
				after time.Duration
				want  []string
			}{
				{9 * time.Minute, nil},
				{2 * time.Minute, []string{"short"}},
				{8 * time.Minute, nil},
				{2 * time.Minute, []string{"short", "absent"}},
				{40 * time.Minute, []string{"short", "long", "absent", "absent long"}},
			} {
				time.Sleep(step.after)
				if got := ask(); !slices.Equal(got, step.want) {
					t.Errorf("one by one: %v: %v later %q are loaded, want %q", one, step.after, got, step.want)
				}
			}
		}
		bellwether.SetFreshnessOf(t.Context(), "k", bellwether.Freshness{}) // nothing
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

// A batch load is one of the MaxRebuilds, for as long as it runs.
func TestGetMany_MaxRebuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		ps := newBatchFleet(t, 1, origin, bellwether.Options{MaxRebuilds: 2, MaxQueued: 3})
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 5 { // 2 run, 3 wait, each as one however many keys it has
			wg.Go(func() {
				var keys []string
				for j := range 50 {
					keys = append(keys, fmt.Sprint(i, " ", j))
				}
				values, err := ps[0].GetMany(t.Context(), keys)
				wantAll(t, keys, values, err)
			})
		}
		synctest.Wait()
		if _, err := ps[0].GetMany(t.Context(), []string{"x", "y"}); !errors.Is(err, bellwether.ErrOverloaded) {
			t.Errorf("one more: %v", err)
		}
		wg.Wait()
		wantTook(t, start, 3*time.Second)
		origin.set(func(o *batchSource) {
			if len(o.batches) != 5 || o.mostAll != 2 {
				t.Errorf("%d loads, %d at one time", len(o.batches), o.mostAll)
			}
		})
	})
}

func TestGetMany_LoadThatIgnoresItsContextKeepsItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: 10 * time.Second, deaf: true}
		c := batchCache(t, origin.load, bellwether.Options{MaxRebuilds: 1, RebuildTimeout: time.Second, ErrorTTL: -1, MaxWait: time.Minute})
		if _, err := c.GetMany(t.Context(), []string{"a", "b"}); !errors.Is(err, bellwether.ErrRebuildTimeout) {
			t.Error(err)
		}
		origin.set(func(o *batchSource) { o.build = 0 })
		start := time.Now()
		values, err := c.GetMany(t.Context(), []string{"a", "b"})
		wantAll(t, []string{"a", "b"}, values, err)
		wantTook(t, start, 9*time.Second)
	})
}

// A key of a call that another process takes too long for is hedged with a slot
// of the call's, and that one's load may use it once.
func TestGetMany_Hedge(t *testing.T) {
	for name, get := range map[string]func(*bellwether.Cache[string], *batchSource, ...string) (map[string]string, error){
		"GetMany": func(c *bellwether.Cache[string], _ *batchSource, keys ...string) (map[string]string, error) {
			return c.GetMany(context.Background(), keys)
		},
		"GetManyFunc": func(c *bellwether.Cache[string], origin *batchSource, keys ...string) (map[string]string, error) {
			return c.GetManyFunc(context.Background(), keys, origin.load)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if !survives(t) {
				return
			}
			synctest.Test(t, func(t *testing.T) {
				origin := &batchSource{build: time.Second}
				ps := newBatchFleet(t, 2, origin, bellwether.Options{MaxRebuilds: 2, Hedge: 3, HedgeShare: 1})
				for i := range 3 {
					ps[1].Get(t.Context(), fmt.Sprint("own", i))
				}
				origin.set(func(o *batchSource) { o.build = 20 * time.Second })
				for _, key := range []string{"a", "b"} {
					go ps[0].Get(t.Context(), key)
				}
				synctest.Wait()
				origin.set(func(o *batchSource) { o.build = time.Second })
				start := time.Now()
				values, err := get(ps[1].Cache, origin, "a", "b")
				wantAll(t, []string{"a", "b"}, values, err)
				if took := time.Since(start); took > 5*time.Second || ps[1].Stats().Hedges != 2 {
					t.Errorf("took %v, %d hedges", took, ps[1].Stats().Hedges)
				}
				time.Sleep(time.Minute)
				start = time.Now()
				var wg sync.WaitGroup
				for _, key := range []string{"x", "y"} { // both slots are back, and no more
					wg.Go(func() { ps[1].Get(t.Context(), key) })
				}
				wg.Wait()
				wantTook(t, start, time.Second)
			})
		})
	}
}

// Who comes too late for the load that its slot was for waits for another slot
// without its share of that one, also when late ones could fill all slots.
func TestGetMany_LateForItsSlot(t *testing.T) {
	for _, slots := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				origin := &batchSource{build: 10 * time.Millisecond}
				c := batchCache(t, origin.load, bellwether.Options{MaxRebuilds: slots, Store: memstore.New(),
					Locker: lockerOf{locallock.New(), func(_ context.Context, key string) error {
						if strings.HasPrefix(key, "late") {
							time.Sleep(100 * time.Millisecond)
						}
						return nil
					}}})
				start := time.Now()
				var wg sync.WaitGroup
				for i := range slots {
					wg.Go(func() {
						keys := []string{fmt.Sprint("early", i), fmt.Sprint("late", i)}
						values, err := c.GetMany(t.Context(), keys)
						wantAll(t, keys, values, err)
						wantTook(t, start, 110*time.Millisecond)
					})
				}
				wg.Wait()
				origin.set(func(o *batchSource) {
					o.build = time.Second
					if o.mostAll > slots {
						t.Errorf("%d loads at one time", o.mostAll)
					}
				})
				start = time.Now()
				for i := range slots + 1 { // all slots are back, and no more
					wg.Go(func() { c.Get(t.Context(), fmt.Sprint(i)) })
				}
				wg.Wait()
				wantTook(t, start, 2*time.Second)
			})
		})
	}
}

// Of New's load a GetMany makes one call for each key, and none of them is too
// many, however few may run or wait.
func TestGetMany_WithoutABatchLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most, loads atomic.Int32
		c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
			loads.Add(1)
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(time.Second)
			return key + " v", nil
		}, bellwether.Options{MaxRebuilds: 10, MaxQueued: 1, Store: memstore.New(), Locker: locallock.New()})
		keys := manyKeys(100)
		start := time.Now()
		values, err := c.GetMany(t.Context(), keys)
		wantAll(t, keys, values, err)
		wantTook(t, start, 10*time.Second)
		if most.Load() != 10 || loads.Load() != 100 {
			t.Errorf("%d loads, %d at one time", loads.Load(), most.Load())
		}
	})
}

func TestGetManyFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin, own := &batchSource{build: time.Second}, &batchSource{build: time.Second}
		c := batchCache(t, origin.load, bellwether.Options{})
		go c.Get(t.Context(), "b")
		synctest.Wait()
		values, err := c.GetManyFunc(t.Context(), []string{"a", "b", "c"}, own.load)
		wantAll(t, []string{"a", "b", "c"}, values, err)
		own.wantLoads(t, "a c")
		origin.wantLoads(t, "b")
	})
}

// GetMany is itself a batch load.
func TestGetMany_IsABatchLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{do: func(_ context.Context, keys []string, values map[string]string) error {
			delete(values, "absent")
			return &bellwether.BatchError{Errors: map[string]error{"bad": errOrigin}}
		}}
		behind := batchCache(t, origin.load, bellwether.Options{})
		c := batchCache(t, behind.GetMany, bellwether.Options{})
		values, err := c.GetMany(t.Context(), []string{"a", "bad", "absent"})
		if failed := failures(t, err); len(values) != 1 || values["a"] == "" || len(failed) != 1 || !errors.Is(failed["bad"], errOrigin) {
			t.Errorf("%q, %v", values, err)
		}
		origin.wantLoads(t, "a bad absent")
	})
}

// Who has something stale does not wait, and one load behind makes all anew.
func TestGetMany_StaleAndEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		ps := newBatchFleet(t, 1, origin, bellwether.Options{TTL: time.Minute, StaleWhileRevalidate: time.Hour})
		c, keys := ps[0].Cache, []string{"a", "b", "c"}
		c.GetMany(t.Context(), keys)
		time.Sleep(2 * time.Minute)
		c.GetMany(t.Context(), keys) // the near tier asks the store; that is stale too
		time.Sleep(5 * time.Second)
		origin.wantLoads(t, "a b c", "a b c")
		start := time.Now()
		time.Sleep(time.Minute + 500*time.Millisecond)
		c.GetMany(t.Context(), keys)
		wantTook(t, start, time.Minute+500*time.Millisecond)
		time.Sleep(5 * time.Second)
		origin.wantLoads(t, "a b c", "a b c", "a b c")
	})
	t.Run("early", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			origin := &batchSource{build: time.Second}
			c := batchCache(t, origin.load, bellwether.Options{TTL: time.Hour, EarlyRefresh: 1e12})
			c.GetMany(t.Context(), []string{"a", "b"})
			start := time.Now()
			values, err := c.GetMany(t.Context(), []string{"a", "x", "b"})
			if err != nil || values["a"] != "a v1" || values["b"] != "b v1" || values["x"] != "x v2" {
				t.Errorf("%q, %v", values, err)
			}
			wantTook(t, start, time.Second)
			synctest.Wait()
			origin.wantLoads(t, "a b", "x a b")
			if s := c.Stats(); s.Hits != 2 || s.Misses != 3 || s.Flights != 0 {
				t.Errorf("stats %+v", s)
			}
		})
	})
}

// What the store answers a GetMany with may be rebuilt early as after a Get, and
// that of several keys is one load.
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
			t.Errorf("%q, want what the store had", values)
		}
		time.Sleep(10 * time.Second)
		origin.set(func(o *batchSource) { // in the order of their answers
			for _, keys := range o.batches {
				slices.Sort(keys)
			}
		})
		origin.wantLoads(t, "a b", "x", "a b")
		if s := ps[1].Stats(); s.Misses != 3 || s.StoreHits != 2 || s.Flights != 0 {
			t.Errorf("stats %+v", s)
		}
		// What was loaded just now is not.
		ps[1].GetMany(t.Context(), []string{"y"})
		time.Sleep(10 * time.Second)
		origin.wantLoads(t, "a b", "x", "a b", "y")
	})
}

// A process that died with many leases is followed by few loads and not by one
// for each key.
func TestGetMany_TakeoverTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{build: time.Second}
		store, locker := memstore.New(), locallock.New()
		keys := manyKeys(50)
		for _, key := range keys[:40] { // and nobody renews
			if _, err := locker.TryAcquire(t.Context(), "test:"+key, 5*time.Second); err != nil {
				t.Fatal(err)
			}
		}
		c := batchCache(t, origin.load, bellwether.Options{Store: store, Locker: locker})
		start := time.Now()
		values, err := c.GetMany(t.Context(), keys)
		wantAll(t, keys, values, err)
		loads := origin.loads()
		if len(loads) > 4 || len(loads[0]) != 10 {
			t.Errorf("%d loads: %q", len(loads), loads)
		}
		if took := time.Since(start); took > 7*time.Second {
			t.Errorf("took %v", took)
		}
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
			t.Errorf("%q, %v", values, err)
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
		time.Sleep(time.Second) // the rebuilds belong to nobody
		if v, err := c.Get(t.Context(), "k00001"); err != nil || !strings.HasPrefix(v, "k00001 v") {
			t.Errorf("%q, %v", v, err)
		}
		if n := len(origin.loads()); n != 1+4 {
			t.Errorf("%d loads, want the four that had begun", n-1)
		}
	})
}

// Of very many keys, what is stale is served whether there is room for its rebuild or
// not, and whoever it is asked for with.
func TestGetMany_StaleAmongVeryMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := batchCache(t, func(ctx context.Context, keys []string) (map[string]string, error) {
			if keys[0] == "stale" {
				return map[string]string{"stale": "v"}, nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}, bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour})
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

// Who has waited for MaxWait goes: also the keys that there has been no room for.
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

// Nobody waits for a load that would begin then.
func TestGetMany_CloseBeginsNoLoad(t *testing.T) {
	for range 20 { // by the order in which the flights end
		synctest.Test(t, func(t *testing.T) {
			origin := &batchSource{}
			ps := newBatchFleet(t, 1, origin, bellwether.Options{})
			ps[0].store.set(func(ctx context.Context, op string) error {
				if op == "claim" && ps[0].store.count("claim") == 3 {
					return blackHole(ctx, op) // the others wait for it, for a while
				}
				return nil
			})
			go ps[0].GetMany(t.Context(), []string{"a", "b", "c"})
			time.Sleep(10 * time.Millisecond)
			ps[0].Close()
			synctest.Wait()
			if n := len(origin.loads()); n != 0 {
				t.Fatalf("%d loads have begun", n)
			}
		})
	}
}

// A store's adapter that does not keep its contract costs its keys the store, and
// nobody an answer.
func TestGetMany_AdapterFaults(t *testing.T) {
	for name, getMany := range map[string]func(keys []string, each func(int, bellwether.Entry, error)){
		"panics": func(keys []string, each func(int, bellwether.Entry, error)) {
			each(0, bellwether.Entry{}, bellwether.ErrNotFound)
			panic("adapter")
		},
		"exits":     func(keys []string, each func(int, bellwether.Entry, error)) { runtime.Goexit() },
		"says none": func(keys []string, each func(int, bellwether.Entry, error)) {},
		"says twice": func(keys []string, each func(int, bellwether.Entry, error)) {
			for range 2 {
				for i := range keys {
					each(i, bellwether.Entry{}, bellwether.ErrNotFound)
				}
			}
		},
		"of others": func(keys []string, each func(int, bellwether.Entry, error)) {
			each(len(keys), bellwether.Entry{}, bellwether.ErrNotFound)
		},
		"late": func(keys []string, each func(int, bellwether.Entry, error)) {
			time.AfterFunc(time.Second/2, func() { each(0, bellwether.Entry{}, bellwether.ErrNotFound) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				origin := &batchSource{build: time.Second}
				c := batchCache(t, origin.load, bellwether.Options{Store: faultyBatches{memstore.New(), getMany}})
				values, err := c.GetMany(t.Context(), []string{"a", "b"})
				wantAll(t, []string{"a", "b"}, values, err)
			})
		})
	}
}

type faultyBatches struct {
	bellwether.Store
	getMany func([]string, func(int, bellwether.Entry, error))
}

func (s faultyBatches) GetMany(_ context.Context, keys []string, each func(int, bellwether.Entry, error)) {
	s.getMany(keys, each)
}

func TestBatchError(t *testing.T) {
	a, b := errors.New("a's"), fmt.Errorf("b's: %w", context.Canceled)
	e := &bellwether.BatchError{Errors: map[string]error{"b": b, "a": a}}
	if got := e.Error(); got != `bellwether: 2 keys failed, the first is "a": a's` {
		t.Error(got)
	}
	if got := (&bellwether.BatchError{Errors: map[string]error{"b": b}}).Error(); got != `bellwether: key "b": b's: context canceled` {
		t.Error(got)
	}
	if got := (&bellwether.BatchError{}).Error(); got != "bellwether: no key failed" {
		t.Error(got)
	}
	if !errors.Is(e, a) || !errors.Is(e, context.Canceled) || errors.Is(e, bellwether.ErrNotFound) || !slices.Equal(e.Unwrap(), []error{a, b}) {
		t.Error(e.Unwrap())
	}
}

// What an observer does comes after the answer.
func TestGetMany_ObserverThatExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exits := bellwether.Observer{Serve: func(context.Context, bellwether.Serve) { runtime.Goexit() }}
		c := bellwether.NewBatch(func(ctx context.Context, keys []string) (map[string]string, error) {
			time.Sleep(time.Second)
			return map[string]string{"a": "v"}, nil
		}, bellwether.Options{TTL: time.Minute, Observers: []bellwether.Observer{exits}})
		defer c.Close()
		for range 5000 { // more than a call has places
			got, err := c.GetMany(t.Context(), []string{"a"})
			if got["a"] != "v" || err != nil {
				t.Fatal(got, err)
			}
			c.Invalidate(t.Context(), "a")
		}
	})
}
