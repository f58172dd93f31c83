package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
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
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

type record struct {
	mu       sync.Mutex // guards all fields
	hits     int
	ways     map[string]int // of Serve
	waited   time.Duration  // sum over Serve
	serves   []observe.Serve
	begun    int
	rebuilds []observe.Rebuild
	herds    []observe.Herd
	breakers []string
	evicted  map[string]int
	errs     []error
}

// failed is the number of rebuilds with OutcomeFailed.
func (r *record) failed() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.rebuilds {
		if b.Outcome == observe.OutcomeFailed {
			n++
		}
	}
	return n
}

func (r *record) observer() observe.Observer {
	lock := func(f func()) {
		r.mu.Lock()
		defer r.mu.Unlock()
		f()
	}
	return observe.Observer{
		Hit: func(context.Context, string) { lock(func() { r.hits++ }) },
		Serve: func(_ context.Context, s observe.Serve) {
			lock(func() {
				if r.ways == nil {
					r.ways = map[string]int{}
				}
				r.ways[s.Way.String()]++
				r.waited += s.Waited
				r.serves = append(r.serves, s)
			})
		},
		Caller: func(ctx context.Context) any { return ctx.Value(traceKey{}) },
		Rebuild: func(ctx context.Context, key string) (context.Context, func(observe.Rebuild)) {
			lock(func() { r.begun++ })
			return context.WithValue(ctx, spanKey{}, "span of "+key), func(b observe.Rebuild) {
				lock(func() { r.rebuilds = append(r.rebuilds, b) })
			}
		},
		Herd: func(h observe.Herd) { lock(func() { r.herds = append(r.herds, h) }) },
		Breaker: func(engine observe.Engine, from, to observe.BreakerState) {
			lock(func() { r.breakers = append(r.breakers, fmt.Sprintf("%v %v %v", engine, from, to)) })
		},
		Evict: func(key string, bytes int) {
			lock(func() {
				if r.evicted == nil {
					r.evicted = map[string]int{}
				}
				r.evicted[key] += bytes
			})
		},
		Error: func(_ string, err error) { lock(func() { r.errs = append(r.errs, err) }) },
	}
}

type spanKey struct{}

func (r *record) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hits, r.ways, r.waited, r.serves, r.begun, r.rebuilds, r.herds, r.breakers, r.evicted, r.errs = 0, nil, 0, nil, 0, nil, nil, nil, nil, nil
}

// wantWays compares the calls of Serve and Hit, as "hit 2, miss 1".
func (r *record) wantWays(t *testing.T, want string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []string
	if r.hits > 0 {
		got = append(got, fmt.Sprint("hit ", r.hits))
	}
	for _, way := range []string{"stale", "collapsed", "miss", "bypass"} {
		if n := r.ways[way]; n > 0 {
			got = append(got, fmt.Sprint(way, " ", n))
		}
	}
	if r.ways["hit"] > 0 {
		got = append(got, fmt.Sprint("hit after a wait ", r.ways["hit"]))
	}
	if got := strings.Join(got, ", "); got != want {
		t.Errorf("served: %s; want %s", got, want)
	}
}

func watched(o bellwether.Options) (*record, bellwether.Options) {
	r := &record{}
	o.Observers = append(o.Observers, r.observer())
	return r, o
}

func TestObserver_Herd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := watched(bellwether.Options{TTL: time.Minute})
		var span any
		c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
			span = ctx.Value(spanKey{})
			time.Sleep(time.Second)
			return "v", nil
		}, o)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() { c.Get(context.WithValue(t.Context(), traceKey{}, i), "k") })
		}
		time.Sleep(600 * time.Millisecond)
		for range 10 { // callers that leave are not answered by the cache
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				c.Get(ctx, "k")
			})
		}
		wg.Wait()
		synctest.Wait()
		for range 7 {
			c.Get(t.Context(), "k")
		}
		r.wantWays(t, "hit 7, collapsed 109, miss 1")
		if want := 101 * time.Second; r.waited != want {
			t.Errorf("calls waited %v in all, want %v", r.waited, want)
		}
		if span != "span of k" {
			t.Errorf("the load's context has %v, want the observer's value", span)
		}
		if r.begun != 1 || len(r.rebuilds) != 1 || len(r.herds) != 1 {
			t.Fatalf("%d rebuilds began, %d ended, %d herds; want 1 of each", r.begun, len(r.rebuilds), len(r.herds))
		}
		b := r.rebuilds[0]
		if b.Key != "k" || b.Outcome != observe.OutcomeValue || b.Took != time.Second || b.Err != nil || b.Takeover || b.LeaseLost {
			t.Errorf("rebuild %+v, want a value after 1s", b)
		}
		if len(b.Callers) != observe.MaxCallers {
			t.Errorf("%d callers of the rebuild, want the first %d", len(b.Callers), observe.MaxCallers)
		}
		seen := map[any]bool{}
		for _, mark := range b.Callers {
			if _, ok := mark.(int); !ok || seen[mark] {
				t.Errorf("caller %v, want the number of another caller", mark)
			}
			seen[mark] = true
		}
		h := r.herds[0]
		if h.Key != "k" || h.Callers != 100 || h.Waited != 100*time.Second || !h.Loaded || h.Err != nil || h.WakeLag != 0 {
			t.Errorf("herd %+v, want 100 callers that waited 100s", h)
		}
	})
}

// A failed rebuild is reported as OutcomeFailed, and the calls it leaves stale as stale.
func TestObserver_Failure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := watched(bellwether.Options{TTL: time.Second, StaleIfError: time.Hour, ErrorTTL: 10 * time.Second})
		down := errors.New("down")
		fail := false
		c := cacheOf(t, func(context.Context, string) (string, error) {
			if fail {
				return "", down
			}
			return "v", nil
		}, o)
		c.Get(t.Context(), "k")
		time.Sleep(2 * time.Second)
		fail = true
		for range 3 { // the rebuild fails, and then backs off
			wantValue(t, c, "k", "v")
		}
		synctest.Wait()
		c.Get(t.Context(), "other")
		c.Get(t.Context(), "other")
		synctest.Wait()
		r.wantWays(t, "stale 3, miss 3")
		if n := len(r.rebuilds); n != 3 {
			t.Fatalf("%d rebuilds, want 3", n)
		}
		for i, want := range []observe.Outcome{observe.OutcomeValue, observe.OutcomeFailed, observe.OutcomeFailed} {
			if b := r.rebuilds[i]; b.Outcome != want || (b.Err != nil) != (want == observe.OutcomeFailed) {
				t.Errorf("rebuild %d: %+v, want %v", i, b, want)
			}
		}
		if n := len(r.herds); n != 3 || !errors.Is(r.herds[2].Err, down) || r.herds[1].Err != nil {
			t.Errorf("herds %+v, want 3, the last of them with the failure", r.herds)
		}
	})
}

// A load that fails beside the store's stale item has failed, whether or not the failure is told to other processes.
func TestObserver_FailureBesideAStoredItem(t *testing.T) {
	for name, failure := range map[string]error{"told": errOrigin, "untold": context.Canceled} {
		inBubble(t, name, func(t *testing.T) {
			r, o := watched(bellwether.Options{TTL: time.Second, StaleIfError: time.Hour})
			f := newFleet(t, 1, push, o)
			f.get(1, "k")
			time.Sleep(2 * time.Second)
			f.origin.fail = func(int) error { return failure }
			wantValue(t, f.processes[0], "k", "v1")
			synctest.Wait()
			if n := len(r.rebuilds); n != 2 || r.rebuilds[1].Outcome != observe.OutcomeFailed || !errors.Is(r.rebuilds[1].Err, failure) {
				t.Errorf("rebuilds %+v, want a value and a failure", r.rebuilds)
			}
			if n := len(r.herds); n != 2 || !r.herds[1].Loaded {
				t.Errorf("herds %+v, want two with a load", r.herds)
			}
		})
	}
}

// A load that fails for one client alone, beside the store's stale page, has failed.
func TestObserver_FailureOfOneClientBesideAPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, first := &record{}, true
		s := newSite(t, bellwether.HTTPOptions{
			Observers: []observe.Observer{r.observer()}, Fleet: bellwether.Fleet{Store: memstore.New()},
		}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=1, stale-while-revalidate=3600")
			if !first {
				w.Header().Set("Content-Length", "8")
				fmt.Fprint(w, "half")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
			first = false
			fmt.Fprint(w, "page")
		})
		s.get("http://a/p")
		time.Sleep(2 * time.Second)
		s.get("http://a/p", "Cookie", "a=1")
		synctest.Wait()
		if n := len(r.rebuilds); n != 2 || r.rebuilds[1].Outcome != observe.OutcomeFailed || r.rebuilds[1].Err == nil {
			t.Errorf("rebuilds %+v, want a page and a failure", r.rebuilds)
		}
	})
}

// One process rebuilds. The others' herds have the time since its commit as WakeLag.
func TestObserver_HerdOfAFleet(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		r, o := watched(bellwether.Options{})
		f := newFleet(t, 4, by, o)
		f.get(20, "k")
		synctest.Wait()
		if len(r.rebuilds) != 1 || r.rebuilds[0].Takeover || len(r.herds) != 4 {
			t.Fatalf("rebuilds %+v and herds %+v, want 1 and 4", r.rebuilds, r.herds)
		}
		loaded := 0
		for _, h := range r.herds {
			if h.Callers != 20 || h.Waited < 20*time.Second {
				t.Errorf("herd %+v, want 20 callers that waited for 1s each at least", h)
			}
			if late := h.Waited/20 - time.Second; h.WakeLag != late {
				t.Errorf("a wake lag of %v, want the %v after the commit", h.WakeLag, late)
			}
			if h.Loaded {
				loaded++
			}
		}
		if loaded != 1 {
			t.Errorf("%d herds have loaded for themselves, want 1", loaded)
		}
		r.reset()
		f.get(5, "k")
		r.wantWays(t, "hit 20")
	})
}

// WakeLag covers the delay of the notice, and not the duration of the commit.
func TestObserver_WakeLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := watched(bellwether.Options{})
		f := newFleet(t, 2, notices, o)
		f.processes[1].store.set(on(takes(300*time.Millisecond), "notice"))
		f.processes[1].locker.set(on(func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }, "watch"))
		go f.processes[0].Get(context.Background(), "k")
		synctest.Wait()
		callAll(f.processes[1:], 5, "k")
		synctest.Wait()
		if len(r.herds) != 2 {
			t.Fatalf("herds %+v, want 2", r.herds)
		}
		for _, h := range r.herds {
			if h.Loaded && h.WakeLag != 0 || !h.Loaded && (h.WakeLag <= 0 || h.WakeLag > 300*time.Millisecond || h.WakeLag != h.Waited/5-time.Second) {
				t.Errorf("herd %+v: want the lag of the notice, or of the look that came before it", h)
			}
		}
	})
}

// A rebuild after a lease that expires is a Takeover, and after a release without a value none.
func TestObserver_Takeover(t *testing.T) {
	for name, released := range map[string]bool{"expired": false, "released": true} {
		t.Run(name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, by way) {
				r, o := watched(bellwether.Options{Fleet: bellwether.Fleet{LeaseTTL: 2 * time.Second}, MaxWait: time.Minute})
				f := newFleet(t, 6, by, o)
				lease, err := f.processes[0].locker.locker.TryAcquire(t.Context(), "test:k", 2*time.Second) // never renewed
				if err != nil {
					t.Fatal(err)
				}
				if released {
					time.AfterFunc(time.Second, func() { lease.Release(context.Background()) })
				}
				f.get(20, "k")
				synctest.Wait()
				if len(r.rebuilds) != 1 || r.rebuilds[0].Takeover == released {
					t.Errorf("rebuilds %+v, want one, a takeover: %t", r.rebuilds, !released)
				}
				callers := 0
				for _, h := range r.herds {
					callers += h.Callers
				}
				if len(r.herds) != 6 || callers != 120 {
					t.Errorf("%d herds of %d callers, want 6 of 120", len(r.herds), callers)
				}
			})
		})
	}
}

func TestObserver_GetMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := watched(bellwether.Options{})
		c := cacheOf(t, func(_ context.Context, key string) (string, error) {
			if key == "none" {
				return "", bellwether.ErrNotFound
			}
			return key, nil
		}, o)
		for range 2 {
			if got, err := c.GetMany(t.Context(), []string{"k", "none"}); len(got) != 1 || err != nil {
				t.Fatalf("%v, %v", got, err)
			}
		}
		if r.hits != 2 || len(r.serves) != 2 {
			t.Fatalf("%d hits and %d other answers of two keys, asked for twice", r.hits, len(r.serves))
		}
		for _, s := range r.serves {
			if none := s.Key == "none"; s.Way != observe.WayMiss || (s.Err == bellwether.ErrNotFound) != none {
				t.Errorf("%s: %v, %v", s.Key, s.Way, s.Err)
			}
		}
	})
}

func TestObserver_FencedAndAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := watched(bellwether.Options{})
		f := newFleet(t, 1, push, o)
		p := f.processes[0]
		time.AfterFunc(500*time.Millisecond, func() { f.store.Invalidate(context.Background(), "test:k") }) // without a notice
		time.AfterFunc(1500*time.Millisecond, func() { p.Invalidate(context.Background(), "k") })
		wantValue(t, p, "k", "v3")
		synctest.Wait()
		var got []string
		for _, b := range r.rebuilds {
			got = append(got, b.Outcome.String())
		}
		if fmt.Sprint(got) != "[fenced abandoned value]" || r.begun != 3 || len(r.herds) != 1 {
			t.Errorf("rebuilds %v of %d, %d herds; want one fenced, one abandoned, one for the caller", got, r.begun, len(r.herds))
		}
		fenced := 0
		for _, err := range r.errs {
			if errors.Is(err, driver.ErrFenced) {
				fenced++
			}
		}
		if fenced != 1 {
			t.Errorf("errors %v, want one of a commit that was fenced", r.errs)
		}
	})
}

func TestObserver_LeaseLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := watched(bellwether.Options{Fleet: bellwether.Fleet{LeaseTTL: 3 * time.Second}})
		f := newFleet(t, 1, push, o)
		p := f.processes[0]
		f.origin.set(func(o *source) { o.build = 2 * time.Second })
		var once sync.Once
		p.locker.set(on(func(context.Context, string) (err error) {
			once.Do(func() { err = driver.ErrLeaseLost })
			return err
		}, "renew"))
		if _, err := p.Get(t.Context(), "k"); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if len(r.rebuilds) != 2 || !r.rebuilds[0].LeaseLost || r.rebuilds[0].Outcome != observe.OutcomeAbandoned ||
			r.rebuilds[1].LeaseLost || r.rebuilds[1].Outcome != observe.OutcomeValue {
			t.Errorf("rebuilds %+v, want one that lost its lease, and the next", r.rebuilds)
		}
	})
}

// A breaker's states are reported in order, each once, also to an observer that has exited.
func TestObserver_Breaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := watched(bellwether.Options{})
		exiting := &record{}
		tell := exiting.observer().Breaker
		o.Observers = append(o.Observers, observe.Observer{Breaker: func(engine observe.Engine, from, to observe.BreakerState) {
			if tell(engine, from, to); len(exiting.breakers) == 1 {
				runtime.Goexit()
			}
		}})
		f := newFleet(t, 1, push, o)
		p := f.processes[0]
		p.store.set(refuse)
		f.origin.set(func(o *source) { o.build = 0 })
		for i := range 3 {
			p.Get(t.Context(), fmt.Sprint("k", i))
		}
		time.Sleep(2 * time.Second)
		p.Get(t.Context(), "still down")
		p.store.set(nil)
		time.Sleep(2 * time.Second)
		p.Get(t.Context(), "up again")
		synctest.Wait()
		want := []string{
			"store closed open", "store open half-open", "store half-open open", "store open half-open", "store half-open closed",
		}
		for _, told := range [][]string{r.breakers, exiting.breakers} {
			if !slices.Equal(told, want) {
				t.Errorf("told of %q, want %q", told, want)
			}
		}
	})
}

func TestObserver_Evict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := watched(bellwether.Options{TTL: time.Minute, Limits: bellwether.Limits{NearBytes: 10 << 10}})
		c := cacheOf(t, func(context.Context, string) (string, error) { return strings.Repeat("x", 700), nil }, o)
		for i := range 100 {
			c.Get(t.Context(), fmt.Sprint("k", i))
		}
		synctest.Wait()
		r.mu.Lock()
		n := len(r.evicted)
		for key, bytes := range r.evicted {
			if bytes < 700 || bytes > 1100 {
				t.Errorf("%s had %d bytes, want 700 and the cost of an entry", key, bytes)
			}
		}
		r.mu.Unlock()
		if kept := int(c.Stats().NearBytes) / 900; n < 80 || n+kept > 100+5 {
			t.Errorf("%d values evicted and some %d kept, of 100", n, kept)
		}
		r.reset()
		time.Sleep(5 * time.Minute)
		c.Get(t.Context(), "k")
		synctest.Wait()
		if len(r.evicted) > 0 {
			t.Errorf("%v: expired values count as evicted", r.evicted)
		}
	})
}

func TestObserver_CloseWaitsForEvict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gauge
		var closed atomic.Bool
		var late, told atomic.Int32
		c := cacheOf(t, func(context.Context, string) (string, error) { return strings.Repeat("x", 700), nil }, bellwether.Options{
			Limits: bellwether.Limits{NearBytes: 10 << 10},
			Observers: []observe.Observer{{Evict: func(string, int) {
				g.work(10 * time.Millisecond)
				told.Add(1)
				if closed.Load() {
					late.Add(1)
				}
			}}},
		})
		const keys = 1000
		for i := range keys {
			c.Get(t.Context(), fmt.Sprint("k", i))
		}
		synctest.Wait() // the near tier evicts in the background
		c.Close()
		closed.Store(true)
		if n := g.running.Load(); n > 0 {
			t.Errorf("Close has returned while Evict runs, %d times", n)
		}
		synctest.Wait()
		time.Sleep(time.Hour)
		if n := late.Load(); n > 0 {
			t.Errorf("Evict has returned %d times after Close", n)
		}
		if n := told.Load(); n < keys*9/10 {
			t.Errorf("%d evictions told of, want nearly all of %d", n, keys)
		}
		if n := g.most.Load(); n > 1 {
			t.Errorf("Evict ran %d times at once", n)
		}
	})
}

func TestObserver_Panics(t *testing.T) {
	if !inOwnProcess(t) {
		return
	}
	boom := func() { panic("observer") }
	for name, by := range map[string]observe.Observer{
		"Hit":     {Hit: func(context.Context, string) { boom() }},
		"Serve":   {Serve: func(context.Context, observe.Serve) { boom() }},
		"Caller":  {Caller: func(context.Context) any { boom(); return nil }, Rebuild: func(context.Context, string) (context.Context, func(observe.Rebuild)) { return nil, nil }},
		"Rebuild": {Rebuild: func(context.Context, string) (context.Context, func(observe.Rebuild)) { boom(); return nil, nil }},
		"its end": {Rebuild: func(ctx context.Context, _ string) (context.Context, func(observe.Rebuild)) {
			return ctx, func(observe.Rebuild) { boom() }
		}},
		"Herd":    {Herd: func(observe.Herd) { boom() }},
		"Breaker": {Breaker: func(observe.Engine, observe.BreakerState, observe.BreakerState) { boom() }},
		"Evict":   {Evict: func(string, int) { boom() }},
	} {
		inBubble(t, name, func(t *testing.T) {
			var mu sync.Mutex
			var told []error
			r, o := watched(bellwether.Options{
				Limits: bellwether.Limits{NearBytes: 1 << 10}, Observers: []observe.Observer{by}, OnError: func(_ string, err error) {
					mu.Lock()
					defer mu.Unlock()
					if _, ok := errors.AsType[*bellwether.PanicError](err); ok {
						told = append(told, err)
					}
				},
			})
			f := newFleet(t, 1, push, o)
			for i := range 8 {
				f.origin.set(func(o *source) { o.build = time.Millisecond })
				if got := f.get(5, fmt.Sprint("k", i)); len(got.failed) > 0 || got.slowest > time.Second {
					t.Errorf("callers failed, or waited %v: %v", got.slowest, got.failed)
				}
				f.get(1, fmt.Sprint("k", i))
			}
			f.processes[0].store.set(refuse)
			time.Sleep(time.Second) // until the silence counts as an outage
			for i := range 3 {
				f.get(1, fmt.Sprint("down", i))
			}
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(told) == 0 {
				t.Error("OnError got no panic")
			}
			if len(r.rebuilds) != 11 || len(r.herds) < 11 || len(r.breakers) != 1 {
				t.Errorf("another observer was told of %d rebuilds, %d herds, %v", len(r.rebuilds), len(r.herds), r.breakers)
			}
		})
	}
}

// After a Goexit in Rebuild, other observers are told of the end, and no load is counted.
func TestObserver_RebuildExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := watched(bellwether.Options{})
		o.Observers = append(o.Observers, observe.Observer{
			Rebuild: func(context.Context, string) (context.Context, func(observe.Rebuild)) {
				runtime.Goexit()
				return nil, nil
			},
		})
		f := newFleet(t, 1, push, o)
		f.get(1, "k")
		synctest.Wait() // observers are told after the callers' answers
		if s := f.processes[0].Stats(); s.Loads+s.LoadFailures != 0 || r.begun != 1 || len(r.rebuilds) != 1 || r.rebuilds[0].Outcome != observe.OutcomeAbandoned {
			t.Errorf("stats %+v; told of %d loads, and of these ends: %v", s, r.begun, r.rebuilds)
		}
	})
}

// Observers and Size may use the cache: they are called without a lock.
func TestObserver_MayUseTheCache(t *testing.T) {
	if !inOwnProcess(t) {
		return
	}
	watchdog := time.AfterFunc(20*time.Second, func() { panic("deadlock: an observer or Size is called under a lock") })
	defer watchdog.Stop()
	var c *bellwether.Cache[string]
	use := func() {
		c.Stats()
		c.Invalidate(context.Background(), "another")
	}
	store := wiredTo(memstore.New())
	told := make(chan struct{}, 10)
	c = bellwether.New(func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{
		TTL: time.Minute, Fleet: bellwether.Fleet{Store: store, Namespace: "test", EngineTimeout: 50 * time.Millisecond}, Limits: bellwether.Limits{NearBytes: 1 << 10},
		Size: func(string, any) int { use(); return 100 },
		Observers: []observe.Observer{{
			Hit:    func(context.Context, string) { use() },
			Serve:  func(context.Context, observe.Serve) { use() },
			Caller: func(context.Context) any { use(); return nil },
			Rebuild: func(ctx context.Context, _ string) (context.Context, func(observe.Rebuild)) {
				use()
				return ctx, func(observe.Rebuild) { use() }
			},
			Herd: func(observe.Herd) { use() },
			Breaker: func(observe.Engine, observe.BreakerState, observe.BreakerState) {
				c.Stats()
				told <- struct{}{}
			},
			Evict: func(string, int) { use() },
		}},
	})
	defer c.Close()
	for i := range 20 {
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { wantValue(t, c, fmt.Sprint("k", i), "v") })
		}
		wg.Wait()
	}
	store.set(refuse)
	for i := 0; len(told) == 0; i++ { // until the breaker opens, after an EngineTimeout of silence
		c.Get(t.Context(), fmt.Sprint("down", i))
	}
}

// Each request is reported once, however many lookups lead to its variant.
func TestObserver_HTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := watched(bellwether.Options{})
		var span atomic.Value
		s := newSite(t, pageOptions(o), func(w http.ResponseWriter, req *http.Request) {
			if v := req.Context().Value(spanKey{}); v != nil {
				span.Store(v)
			}
			time.Sleep(time.Second)
			h := w.Header()
			switch req.URL.Path {
			case "/private":
				h.Set("Cache-Control", "private")
			case "/down":
				w.WriteHeader(http.StatusServiceUnavailable)
			case "/panic":
				panic("handler")
			default:
				h.Set("Cache-Control", "max-age=10, stale-while-revalidate=10")
				h.Set("Vary", "Accept-Language")
			}
			fmt.Fprint(w, "body")
		})
		step := func(n int, url, want string) {
			t.Helper()
			r.reset()
			s.burst(n, same(url))
			synctest.Wait()
			r.wantWays(t, want)
		}
		step(10, "/page", "collapsed 9, miss 1")
		if span.Load() == nil {
			t.Error("the handler's context has nothing of the rebuild's")
		}
		if !strings.HasSuffix(r.serves[0].Key, "/page") {
			t.Errorf("a key of %q, want the URL", r.serves[0].Key)
		}
		callers := 0
		for _, h := range r.herds {
			callers += h.Callers
		}
		if callers < 10 || len(r.rebuilds) == 0 {
			t.Errorf("herds %+v and rebuilds %+v, want 10 callers", r.herds, r.rebuilds)
		}
		step(5, "/page", "hit 5")
		r.reset()
		s.get("/page", "Accept-Language", "de")
		synctest.Wait()
		r.wantWays(t, "miss 1")
		time.Sleep(12 * time.Second)
		step(4, "/page", "stale 4")
		time.Sleep(2 * time.Second)
		step(1, "/page", "hit 1")
		step(3, "/private", "miss 1, bypass 2")
		step(3, "/private", "bypass 3")
		step(2, "/panic", "collapsed 1, miss 1")
		for _, served := range r.serves {
			if served.Err == nil {
				t.Errorf("served %+v, want the handler's panic", served)
			}
		}
		r.reset()
		s.get("/cold", "Cache-Control", "only-if-cached")
		r.wantWays(t, "miss 1")
		r.reset()
		s.do(request(http.MethodPost, "/page"))
		r.wantWays(t, "")
	})
}

// faces make a cache of each kind with these observers and OnError, and return its Close.
var faces = map[string]func(onError func(string, error), observers ...observe.Observer) func() error{
	"Cache": func(onError func(string, error), observers ...observe.Observer) func() error {
		load := func(context.Context, string) (string, error) { return "v", nil }
		return bellwether.New(load, bellwether.Options{TTL: time.Minute, OnError: onError, Observers: observers}).Close
	},
	"Middleware": func(onError func(string, error), observers ...observe.Observer) func() error {
		return bellwether.NewMiddleware(bellwether.HTTPOptions{OnError: onError, Observers: observers}).Close
	},
}

// Stats works from Attach on, and Close detaches the observer once, after its last call.
func TestAttach(t *testing.T) {
	var stats func() observe.Stats
	var told []string
	o := observe.Observer{
		Attach: func(s func() observe.Stats) (func(), error) {
			stats = s
			told = append(told, fmt.Sprint("attached with ", s().Loads))
			return func() { told = append(told, fmt.Sprint("detached with ", s().Loads)) }, nil
		},
		Rebuild: func(ctx context.Context, _ string) (context.Context, func(observe.Rebuild)) {
			return ctx, func(r observe.Rebuild) { told = append(told, r.Outcome.String()) }
		},
	}
	began := make(chan struct{})
	c := bellwether.New(func(ctx context.Context, _ string) (string, error) {
		close(began)
		<-ctx.Done()
		return "", ctx.Err()
	}, bellwether.Options{TTL: time.Minute, Observers: []observe.Observer{o, {Attach: func(func() observe.Stats) (func(), error) { return nil, nil }}}})
	done := make(chan error)
	go func() {
		_, err := c.Get(t.Context(), "k")
		done <- err
	}()
	<-began
	c.Close()
	c.Close()
	if err := <-done; !errors.Is(err, bellwether.ErrClosed) {
		t.Errorf("Get: %v", err)
	}
	if got, want := strings.Join(told, ", "), "attached with 0, abandoned, detached with 1"; got != want {
		t.Errorf("told %s; want %s", got, want)
	}
	if got := stats(); got != c.Stats() || got.Loads != 1 {
		t.Errorf("after Close %+v, want %+v", got, c.Stats())
	}
}

// Attach is an observer's first call, also before the error about a type that JSON changes.
func TestAttach_BeforeError(t *testing.T) {
	var told []string
	load := func(context.Context, string) (withSecret, error) { return withSecret{}, nil }
	c := bellwether.New(load, bellwether.Options{
		TTL: time.Minute, Fleet: bellwether.Fleet{Namespace: "attach", Store: memstore.New()},
		Observers: []observe.Observer{{
			Attach: func(func() observe.Stats) (func(), error) { told = append(told, "Attach"); return nil, nil },
			Error:  func(string, error) { told = append(told, "Error") },
		}},
	})
	defer c.Close()
	if got, want := strings.Join(told, ", "), "Attach, Error"; got != want {
		t.Errorf("told %s; want %s", got, want)
	}
}

// If the first OnError ends New's goroutine, there is no cache, and the observers are detached.
func TestAttach_GoexitOfOnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no goroutine of the engine is left
		detached := false
		load := func(context.Context, string) (withSecret, error) { return withSecret{}, nil }
		var wg sync.WaitGroup
		wg.Go(func() {
			bellwether.New(load, bellwether.Options{
				TTL: time.Minute, Fleet: bellwether.Fleet{Namespace: "attach", Store: memstore.New()},
				OnError: func(string, error) { runtime.Goexit() },
				Observers: []observe.Observer{{
					Attach: func(func() observe.Stats) (func(), error) { return func() { detached = true }, nil },
				}},
			})
			t.Error("there is a cache")
		})
		wg.Wait()
		if !detached {
			t.Error("the observer is attached to no cache")
		}
	})
}

// If an observer's Attach fails, there is no cache, and the observers before it are detached.
func TestAttach_Fails(t *testing.T) {
	taken := errors.New("the name is taken")
	for way, fail := range map[string]func(){"error": nil, "panic": func() { panic(taken) }, "Goexit": runtime.Goexit} {
		for name, face := range faces {
			var told []string
			attach := func(name string, f func() error) observe.Observer {
				return observe.Observer{Attach: func(func() observe.Stats) (func(), error) {
					told = append(told, "+"+name)
					return func() { told = append(told, "-"+name) }, f()
				}}
			}
			fine := func() error { return nil }
			failing := func() error {
				if fail != nil {
					fail()
				}
				return taken
			}
			var panicked any
			var wg sync.WaitGroup
			wg.Go(func() {
				defer func() { panicked = recover() }()
				face(nil, attach("1", fine), attach("2", failing), attach("3", fine))
				t.Errorf("%s, %s: there is a cache", name, way)
			})
			wg.Wait()
			if got, want := strings.Join(told, " "), "+1 +2 -1"; got != want {
				t.Errorf("%s, %s: %s; want %s", name, way, got, want)
			}
			err, _ := panicked.(error)
			if way == "Goexit" {
				if panicked != nil {
					t.Errorf("%s, %s: a panic with %v", name, way, panicked)
				}
			} else if !errors.Is(err, taken) || !strings.HasPrefix(err.Error(), "bellwether: Observers[1] cannot be attached: ") {
				t.Errorf("%s, %s: a panic with %v", name, way, panicked)
			}
		}
	}
}

// After each Close, also one of two at a time, the observers are detached: another cache may have their names.
func TestDetach_SimultaneousClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var attached atomic.Bool
		observer := observe.Observer{Attach: func(func() observe.Stats) (func(), error) {
			attached.Store(true)
			return func() {
				time.Sleep(time.Second)
				attached.Store(false)
			}, nil
		}}
		c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{Observers: []observe.Observer{observer}})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if c.Close(); attached.Load() {
					t.Error("Close has returned before the observer was detached")
				}
			})
		}
		wg.Wait()
	})
}

func TestDetach_Fails(t *testing.T) {
	for way, fail := range map[string]func(){"panic": func() { panic("detaching") }, "Goexit": runtime.Goexit} {
		for name, face := range faces {
			detached := false
			observer := func(detach func()) observe.Observer {
				return observe.Observer{Attach: func(func() observe.Stats) (func(), error) { return detach, nil }}
			}
			var errs []error
			closeFace := face(func(_ string, err error) { errs = append(errs, err) },
				observer(func() { detached = true }), observer(fail))
			var wg sync.WaitGroup
			wg.Go(func() { closeFace() })
			wg.Wait()
			if !detached {
				t.Errorf("%s, %s: the other is still attached", name, way)
			}
			if _, ok := errors.AsType[*bellwether.PanicError](errors.Join(errs...)); ok != (way == "panic") {
				t.Errorf("%s, %s: OnError was told %v", name, way, errs)
			}
		}
	}
}

// Error calls the cache at the silence of the log of sweeps, which no other call waits for then.
func TestObserver_ErrorMayUseTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		var c *bellwether.Cache[string]
		told := 0
		c = bellwether.New(func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{
			TTL: time.Minute, Sweeps: true, Fleet: bellwether.Fleet{Store: store, Namespace: "n"},
			Observers: []observe.Observer{{Error: func(string, error) {
				if told++; told == 1 {
					ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
					defer cancel()
					c.Set(ctx, "last error", "x")
				}
			}}},
		})
		defer c.Close()
		wantValue(t, c, "k", "v")
		time.Sleep(2 * time.Minute)
		store.set(refuse)
		for range 2 {
			began := time.Now()
			if wantValue(t, c, "k", "v"); time.Since(began) > 2*time.Second {
				t.Errorf("after %v", time.Since(began))
			}
		}
		if told == 0 {
			t.Error("no error was told")
		}
	})
}

// A page that another process invalidates while the handler writes it is reported as OutcomeFenced.
func TestObserve_FencedPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, told := memstore.New(), &record{}
		h := func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, "page")
			w.(http.Flusher).Flush()
			time.Sleep(time.Second)
		}
		sites := make([]*site, 2)
		for i := range sites {
			sites[i] = newSite(t, bellwether.HTTPOptions{
				Observers: []observe.Observer{told.observer()},
				Fleet:     bellwether.Fleet{Store: &struct{ driver.Store }{store}, Locker: locallock.New()},
			}, h)
		}
		time.AfterFunc(time.Second/2, func() {
			if err := sites[1].mw.Invalidate(context.Background(), "http://a/p"); err != nil {
				t.Error(err)
			}
		})
		sites[0].get("http://a/p")
		synctest.Wait()
		if len(told.rebuilds) != 1 || told.rebuilds[0].Outcome != observe.OutcomeFenced || sites[0].mw.Stats().Fenced != 1 {
			t.Errorf("rebuilds: %+v; want one that is fenced", told.rebuilds)
		}
	})
}

// A load that comes to nothing after an earlier load of its flight has failed is reported as abandoned.
func TestObserve_AbandonedAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := &record{}
		f := newFleet(t, 2, push, bellwether.Options{TTL: time.Hour, Observers: []observe.Observer{told.observer()}})
		f.origin.fail = func(n int) error {
			if n == 1 {
				return errOrigin
			}
			return nil
		}
		a, b := f.processes[0], f.processes[1]
		time.AfterFunc(500*time.Millisecond, func() { b.Invalidate(context.Background(), "k") })  // fences the failure
		time.AfterFunc(1800*time.Millisecond, func() { a.Invalidate(context.Background(), "k") }) // during the second load
		if v, err := a.Get(t.Context(), "k"); v != "v3" || err != nil {
			t.Errorf("Get = %q, %v", v, err)
		}
		synctest.Wait()
		var got []observe.Outcome
		for _, r := range told.rebuilds {
			got = append(got, r.Outcome)
		}
		if want := []observe.Outcome{observe.OutcomeFenced, observe.OutcomeAbandoned, observe.OutcomeValue}; !slices.Equal(got, want) {
			t.Errorf("outcomes %v, want %v", got, want)
		}
	})
}
