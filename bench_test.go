//go:build !race

package bellwether_test

import (
	"context"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/maypok86/otter/v2"
)

// hitters are a hit of ours and a hit of the in-process cache that we build
// on, by its own Get with a loader, with expiry on in both.
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

// TestHit_BesideOtter holds the claim: a hit costs at most 2.5 times otter's.
// Under the race detector the ratio would mean nothing, so this file is not
// built there; `make test` runs it without.
func TestHit_BesideOtter(t *testing.T) {
	ours, otters := hitters(t)
	bench := func(get func() string) float64 {
		r := testing.Benchmark(func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					get()
				}
			})
		})
		return float64(r.T) / float64(r.N)
	}
	var ratios []float64
	for range 5 {
		ratios = append(ratios, bench(ours)/bench(otters))
	}
	got := median(ratios)
	t.Logf("a hit costs %.2f times otter's Get (median of %.2f)", got, ratios)
	if got > 2.5 {
		t.Errorf("a hit costs %.2f times otter's Get, want at most 2.5", got)
	}
}
