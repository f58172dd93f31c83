package bellwether

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/items"
)

const endless time.Duration = math.MaxInt64

func TestJudge(t *testing.T) {
	const s = time.Second
	// a value with a TTL of 10 s from 100 s, stale until 120 s, and until 140 s if rebuilds fail
	value := items.NewLifetime(100*s, items.Windows{TTL: 10 * s, StaleWhileRevalidate: 10 * s, StaleIfError: 30 * s})
	failing := value
	failing.Failures, failing.RetryAt = 1, 125*s
	kept := items.NewLifetime(100*s, items.Windows{TTL: 10 * s, Keep: 60 * s})
	nothing := items.Lifetime{Failures: 3, RetryAt: 125 * s}
	for _, test := range []struct {
		name string
		l    items.Lifetime
		now  instant
		want verdict
	}{
		{"new", value, 100 * s, serve},
		{"last fresh moment", value, 110*s - 1, serve},
		{"TTL over", value, 110 * s, serveStale},
		{"last moment of the stale window", value, 120*s - 1, serveStale},
		{"stale window over, no failure", value, 120 * s, rebuild},
		{"fresh, though a rebuild failed", failing, 105 * s, serve},
		{"stale and backing off", failing, 115 * s, serveOnly},
		{"stale-if-error and backing off", failing, 125*s - 1, serveOnly},
		{"stale-if-error, next try due", failing, 125 * s, serveStale},
		{"last moment of stale-if-error", failing, 140*s - 1, serveStale},
		{"all windows over, next try due", failing, 140 * s, rebuild},
		{"kept for a rebuild to start from", kept, 120 * s, rebuild},
		{"nothing held and backing off", nothing, 125*s - 1, fail},
		{"nothing held, next try due", nothing, 125 * s, rebuild},
		{"nothing known", items.Lifetime{}, 0, rebuild},
	} {
		if got := judge(&test.l, test.now); got != test.want {
			t.Errorf("%s: judge(%v) = %d, want %d", test.name, test.now, got, test.want)
		}
	}
	gone := failing
	gone.RetryAt = 200 * s
	if got := judge(&gone, 150*s); got != fail {
		t.Errorf("backing off with all windows over: %d, want fail", got)
	}
}

// anyDuration returns a random duration, sometimes so large that sums overflow.
func anyDuration(rng *rand.Rand) time.Duration {
	switch rng.IntN(6) {
	case 0:
		return endless - time.Duration(rng.IntN(3))
	case 1:
		return 0
	case 2:
		return -time.Duration(rng.IntN(1e9))
	}
	return time.Duration(rng.Int64N(1 << rng.IntN(62)))
}

// A servable value may be kept, its verdict only falls with time, and a failure shortens no window.
func TestJudge_Properties(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	rank := map[verdict]int{serve: 3, serveOnly: 2, serveStale: 2, fail: 1, rebuild: 0}
	for range 100_000 {
		begin := time.Duration(rng.Int64N(1 << 50))
		f := items.Windows{Age: max(0, anyDuration(rng)), TTL: anyDuration(rng), StaleWhileRevalidate: anyDuration(rng), StaleIfError: anyDuration(rng), Keep: anyDuration(rng)}
		l := items.NewLifetime(begin, f)
		if l.StaleUntil < l.FreshUntil || l.ErrorUntil < l.FreshUntil || l.FreshUntil < l.Born || l.KeepUntil < l.FreshUntil || l.KeepUntil > l.End() {
			t.Fatalf("%+v: windows out of order: %+v", f, l)
		}
		failure := l
		pause := time.Duration(0)
		for range 1 + rng.IntN(40) {
			d := anyDuration(rng)
			failure = failed(failure, begin, d, 32*time.Second)
			pause = max(pause, d)
		}
		if pause > 0 && failure.RetryAt < begin {
			t.Fatalf("%+v: next try at %v, before the failure", failure, failure.RetryAt)
		}
		now := durations.Add(begin, max(0, anyDuration(rng)))
		later := durations.Add(now, max(0, anyDuration(rng)))
		for _, x := range []*items.Lifetime{&l, &failure} {
			v, w := judge(x, now), judge(x, later)
			if rank[w] > rank[v] {
				t.Fatalf("%+v: verdict %d at %v and %d at %v", x, v, now, w, later)
			}
			if (v == serve || v == serveStale || v == serveOnly || v == fail) && x.End() <= now {
				t.Fatalf("%+v: verdict %d at %v, but the tier may drop it at %v", x, v, now, x.End())
			}
			if v == serveStale && x.Failures > 0 && x.RetryAt > now {
				t.Fatalf("%+v: another try at %v", x, now)
			}
		}
		if v := judge(&l, now); rank[v] >= 2 && rank[judge(&failure, now)] < 2 {
			t.Fatalf("%+v: verdict %d at %v before the failure and %d after it", l, v, now, judge(&failure, now))
		}
	}
}

// Failures that are not remembered lengthen no later pause, also after a RetryAfter.
func TestFailed_AfterWhatIsNotRemembered(t *testing.T) {
	l := items.Lifetime{Born: time.Hour}
	l = failed(l, l.Born, 0, time.Minute)
	l = failed(l, l.Born, 0, time.Minute)
	l = failedUntil(l, l.Born, time.Second)
	if l = failed(l, l.Born, time.Second, time.Minute); l.Failures != 2 {
		t.Errorf("%d failures are counted, want the two that are remembered", l.Failures)
	}
}

// The chance of an early rebuild is XFetch's, exp(-left/(beta*build)).
func TestDueEarly(t *testing.T) {
	const n = 200_000
	for _, tt := range []struct {
		left, build time.Duration
		beta        float64
	}{
		{time.Second, time.Second, 1},
		{2 * time.Second, time.Second, 1},
		{2 * time.Second, time.Second, 2},
		{100 * time.Millisecond, time.Second, 1},
		{time.Minute, time.Second, 1},
		{time.Second, 0, 1},
	} {
		due := 0
		for range n {
			if dueEarly(tt.left, tt.build, tt.beta) {
				due++
			}
		}
		want := math.Exp(-float64(tt.left) / (tt.beta * float64(tt.build)))
		if got := float64(due) / n; math.Abs(got-want) > 0.01 {
			t.Errorf("%v before expiry, built in %v, beta %v: chance %.3f, want %.3f", tt.left, tt.build, tt.beta, got, want)
		}
	}
}

func TestJittered(t *testing.T) {
	const n = 20_000
	var sum time.Duration
	seen := map[time.Duration]int{}
	for i := range n {
		got := jittered(time.Minute, .2, fmt.Sprint("key", i%100), uint64(i/100))
		if got > time.Minute || got < 48*time.Second {
			t.Fatalf("a TTL of a minute became %v", got)
		}
		if again := jittered(time.Minute, .2, fmt.Sprint("key", i%100), uint64(i/100)); again != got {
			t.Fatalf("%v the second time, %v the first", again, got)
		}
		sum += got
		seen[got.Truncate(time.Second)]++
	}
	if mean := sum / n; mean < 53*time.Second || mean > 55*time.Second {
		t.Errorf("the mean is %v, want about 54s", mean)
	}
	for second, k := range seen {
		if k > n/8 {
			t.Errorf("%d of %d within one second of %v", k, n, second)
		}
	}
	for _, ttl := range []time.Duration{0, -time.Second, forever} {
		if got := jittered(ttl, .5, "k", 1); got > max(0, ttl) || got < min(0, ttl) {
			t.Errorf("%v became %v", ttl, got)
		}
	}
	if got := jittered(time.Minute, 0, "k", 1); got != time.Minute {
		t.Errorf("without jitter a minute became %v", got)
	}
}
