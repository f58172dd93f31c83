//go:build !race

package bellwether_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
	"github.com/maypok86/otter/v2"
)

// hitters returns a hit of ours and a hit of otter, the cache below ours, with expiry on.
func hitters(tb testing.TB) (ours, otters func() string) {
	ctx := context.Background()
	c := bellwether.New(func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{TTL: time.Hour})
	tb.Cleanup(func() { c.Close() })
	o := otter.Must(&otter.Options[string, string]{
		MaximumWeight:    64 << 20,
		Weigher:          func(k, v string) uint32 { return uint32(len(k) + len(v)) },
		ExpiryCalculator: otter.ExpiryWriting[string, string](time.Hour),
	})
	tb.Cleanup(func() { o.StopAllGoroutines() })
	loader := otter.LoaderFunc[string, string](func(context.Context, string) (string, error) { return "v", nil })
	return func() string { v, _ := c.Get(ctx, "key"); return v },
		func() string { v, _ := o.Get(ctx, "key", loader); return v }
}

func BenchmarkHit(b *testing.B) {
	ours, otters := hitters(b)
	for name, get := range map[string]func() string{"bellwether": ours, "otter": otters} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					get()
				}
			})
		})
	}
}

// The race detector distorts the ratio, so the file is not built under it.
func TestHit_BesideOtter(t *testing.T) {
	ours, otters := hitters(t)
	bench := func(get func() string) float64 {
		r := testing.Benchmark(func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					get()
				}
			})
		})
		if n := r.AllocsPerOp(); n != 0 {
			t.Errorf("%d allocations a hit, want 0", n)
		}
		return float64(r.T) / float64(r.N)
	}
	var ratios []float64
	for range 7 {
		ratios = append(ratios, bench(ours)/bench(otters))
	}
	got := median(ratios)
	t.Logf("a hit costs %.2f times otter's Get (median of %.2f)", got, ratios)
	if got > 1.5 {
		t.Errorf("a hit costs %.2f times otter's Get, want at most 1.5", got)
	}
}

func TestGet_HitsAreNotWatched(t *testing.T) {
	hits := 0
	others := observe.Observer{
		Serve:   func(context.Context, observe.Serve) {},
		Rebuild: func(ctx context.Context, _ string) (context.Context, func(observe.Rebuild)) { return ctx, nil },
		Herd:    func(observe.Herd) {}, Caller: func(context.Context) any { return nil }, Evict: func(string, int) {},
	}
	for name, by := range map[string]observe.Observer{
		"others": others, "hits": {Hit: func(context.Context, string) { hits++ }},
	} {
		c := bellwether.New(func(context.Context, string) (string, error) { return "v", nil },
			bellwether.Options{TTL: time.Hour, Observers: []observe.Observer{by}})
		defer c.Close()
		ctx := context.Background()
		c.Get(ctx, "k")
		if n := testing.AllocsPerRun(1000, func() { c.Get(ctx, "k") }); n != 0 {
			t.Errorf("a hit with an observer of %s allocates %v times", name, n)
		}
	}
	if hits != 1001 {
		t.Errorf("told of %d hits, want 1001", hits)
	}
}

// Joining a flight fits the 2 KB stack of a new goroutine. Growing the stacks would double a herd's cost.
func TestGet_FitsTheStackOfANewGoroutine(t *testing.T) {
	t.Run("string", fitsTheStack[string])
	t.Run("struct", fitsTheStack[struct{ words [11]int }]) // on the stack, and not in registers
}

func fitsTheStack[V any](t *testing.T) {
	const callers = 100
	gate := make(chan struct{})
	c := bellwether.New(func(context.Context, string) (v V, err error) { <-gate; return v, nil }, bellwether.Options{TTL: time.Hour})
	defer c.Close()
	fewest := callers
	for round := range uint64(5) {
		key := strconv.Itoa(int(round))
		var grown atomic.Int64
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				var here [64]byte // beside the caller's own variables
				before := uintptr(unsafe.Pointer(&here))
				c.Get(context.Background(), key)
				if uintptr(unsafe.Pointer(&here)) != before {
					grown.Add(1)
				}
			})
		}
		for s := c.Stats(); s.Misses+s.Collapsed < (round+1)*callers; s = c.Stats() {
			runtime.Gosched()
		}
		gate <- struct{}{}
		wg.Wait()
		fewest = min(fewest, int(grown.Load()))
	}
	// The first round fills the runtime's pools, and later rounds may refill an allocator's.
	if fewest > callers/4 {
		t.Errorf("at least %d of %d callers grew their stacks in every round", fewest, callers)
	}
}

// BenchmarkFlight compares callers of one flight with goroutines that wait for one channel.
func BenchmarkFlight(b *testing.B) {
	for _, callers := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("callers=%d/flight", callers), func(b *testing.B) {
			gate := make(chan struct{})
			c := bellwether.New(func(context.Context, string) (string, error) { <-gate; return "v", nil }, bellwether.Options{TTL: time.Hour})
			defer c.Close()
			for i := 0; b.Loop(); i++ {
				key := strconv.Itoa(i)
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() { c.Get(context.Background(), key) })
				}
				for c.Stats().Misses+c.Stats().Collapsed < uint64((i+1)*callers) {
					runtime.Gosched()
				}
				gate <- struct{}{}
				wg.Wait()
			}
		})
		b.Run(fmt.Sprintf("callers=%d/channel", callers), func(b *testing.B) {
			for b.Loop() {
				var wg sync.WaitGroup
				var waiting atomic.Int64
				done := make(chan struct{})
				for range callers {
					wg.Go(func() { waiting.Add(1); <-done })
				}
				for waiting.Load() < int64(callers) {
					runtime.Gosched()
				}
				close(done)
				wg.Wait()
			}
		})
	}
}

// BenchmarkJoin measures a herd of new goroutines that join one flight and get its value.
func BenchmarkJoin(b *testing.B) {
	for _, callers := range []uint64{1, 100, 10_000} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			var release chan struct{}
			load := func(context.Context, string) (string, error) { <-release; return "v", nil }
			c := bellwether.New(load, bellwether.Options{TTL: time.Nanosecond})
			defer c.Close()
			come := uint64(0)
			for b.Loop() {
				release = make(chan struct{})
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() { c.Get(context.Background(), "k") })
				}
				come += callers
				for s := c.Stats(); s.Collapsed+s.Misses < come; s = c.Stats() {
					runtime.Gosched()
				}
				close(release)
				wg.Wait()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(come), "ns/caller")
		})
	}
}

// BenchmarkKeys measures a thousand keys that are missed at one time, with engines in memory.
func BenchmarkKeys(b *testing.B) {
	const keys, callers = 1000, 2
	load := func(context.Context, string) (string, error) { return "v", nil }
	c := bellwether.New(load, bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New(), Namespace: "keys"}, Limits: bellwether.Limits{MaxRebuilds: keys}})
	defer c.Close()
	ctx := context.Background()
	for i := 0; b.Loop(); i++ {
		var wg sync.WaitGroup
		for k := range keys {
			key := strconv.Itoa(i*keys + k)
			for range callers {
				wg.Go(func() { c.Get(ctx, key) })
			}
		}
		wg.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/keys, "ns/key")
}
