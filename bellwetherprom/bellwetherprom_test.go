package bellwetherprom

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

type fixed observe.Stats

func (f fixed) Stats() observe.Stats { return observe.Stats(f) }

// TestCollector_EveryField holds that each field of Stats is a metric, that its
// value is the field's and no other's, and that it says what it is.
func TestCollector_EveryField(t *testing.T) {
	var s observe.Stats
	var want strings.Builder
	var names []string
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		f, n := v.Type().Field(i), 100+i
		name, kind := "bellwether_"+f.Tag.Get("json"), "gauge"
		switch f.Type.Kind() {
		case reflect.Uint64:
			v.Field(i).SetUint(uint64(n))
			if f.Name != "NearBytes" {
				name, kind = name+"_total", "counter"
			}
		case reflect.Int:
			v.Field(i).SetInt(int64(n))
		case reflect.Bool:
			n = i % 2
			v.Field(i).SetBool(n == 1)
		default:
			t.Fatalf("Stats.%s is a %s; this package and its test know numbers and truths", f.Name, f.Type)
		}
		found := false
		for _, m := range metrics {
			if m.name == name {
				found = true
				fmt.Fprintf(&want, "# HELP %[1]s %[2]s\n# TYPE %[1]s %[3]s\n%[1]s{cache=\"users\"} %[4]d\n", name, m.help, kind, n)
			}
		}
		if !found {
			t.Errorf("Stats.%s has no metric; add %s, also to docs/operations.md and, if it is worth a look, to docs/grafana.json", f.Name, name)
		}
		names = append(names, name)
	}
	if len(metrics) != v.NumField() {
		t.Errorf("%d metrics of %d fields", len(metrics), v.NumField())
	}
	c := New("users")
	if n := testutil.CollectAndCount(c, names...); n != 0 {
		t.Errorf("%d metrics of Stats before there is a cache", n)
	}
	c.Attach(fixed(s))
	if err := testutil.CollectAndCompare(c, strings.NewReader(want.String()), names...); err != nil {
		t.Error(err)
	}
	problems, err := testutil.CollectAndLint(c)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

// TestCollector_Herd has a fleet of two: one rebuilds after a dead holder's
// lease, the other waits for it.
func TestCollector_Herd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New("")
		store, locker := memstore.New(), locallock.New()
		if _, err := locker.TryAcquire(t.Context(), "values:k", 2*time.Second); err != nil { // and no word more
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 2 {
			cache := bellwether.New(func(context.Context, string) (string, error) {
				time.Sleep(3 * time.Second)
				return "v", nil
			}, bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{Store: store, Locker: locker, Namespace: "values"}, Observers: []observe.Observer{c.Observer()}})
			defer cache.Close()
			for range 50 {
				wg.Go(func() { cache.Get(t.Context(), "k") })
			}
		}
		wg.Wait()
		synctest.Wait()
		for name, got := range map[string]float64{
			"herds 2":        testutil.ToFloat64(c.herds),
			"callers 100":    testutil.ToFloat64(c.herdCallers),
			"takeovers 1":    testutil.ToFloat64(c.takeovers),
			"evictions 0":    testutil.ToFloat64(c.nearEvictions),
			"to open 0":      testutil.ToFloat64(c.breakerChanges.WithLabelValues("store", "open")),
			"rebuilds 1":     float64(samples(t, c.rebuild.WithLabelValues("value").(prometheus.Histogram))),
			"failed 0":       float64(samples(t, c.rebuild.WithLabelValues("failed").(prometheus.Histogram))),
			"collapsed 98":   float64(samples(t, c.wait.WithLabelValues("collapsed").(prometheus.Histogram))),
			"misses 2":       float64(samples(t, c.wait.WithLabelValues("miss").(prometheus.Histogram))),
			"after a load 0": float64(samples(t, c.wakeLag.WithLabelValues("load").(prometheus.Histogram))),
		} {
			if !strings.HasSuffix(name, fmt.Sprint(" ", got)) {
				t.Errorf("got %v, want %s", got, name)
			}
		}
		if got := testutil.ToFloat64(c.herdWaiting); got < 500 || got > 520 {
			t.Errorf("the herds waited %v s, want 100 times the rest of a lease and a load", got)
		}
	})
}

// TestCollector_Events feeds the observer by hand.
func TestCollector_Events(t *testing.T) {
	c := New("")
	o := c.Observer()
	o.Evict("k", 700)
	o.Evict("l", 300)
	o.Breaker(observe.EngineLocker, observe.BreakerClosed, observe.BreakerOpen)
	o.Herd(observe.Herd{Callers: 3, Waited: 1500 * time.Millisecond, WakeLag: time.Millisecond})
	_, end := o.Rebuild(t.Context(), "k")
	end(observe.Rebuild{Outcome: observe.OutcomeFailed, Took: time.Second, Err: errors.New("down")})
	err := testutil.CollectAndCompare(c, strings.NewReader(`
# HELP bellwether_near_evictions_total Values that left this process's memory for other values.
# TYPE bellwether_near_evictions_total counter
bellwether_near_evictions_total 2
# HELP bellwether_near_evicted_bytes_total Size of these values.
# TYPE bellwether_near_evicted_bytes_total counter
bellwether_near_evicted_bytes_total 1000
# HELP bellwether_herd_wait_seconds_total Waiting time of these calls in sum.
# TYPE bellwether_herd_wait_seconds_total counter
bellwether_herd_wait_seconds_total 1.5
# HELP bellwether_breaker_changes_total Changes of the breakers before the engines, by the new state.
# TYPE bellwether_breaker_changes_total counter
bellwether_breaker_changes_total{engine="locker",to="closed"} 0
bellwether_breaker_changes_total{engine="locker",to="half-open"} 0
bellwether_breaker_changes_total{engine="locker",to="open"} 1
bellwether_breaker_changes_total{engine="store",to="closed"} 0
bellwether_breaker_changes_total{engine="store",to="half-open"} 0
bellwether_breaker_changes_total{engine="store",to="open"} 0
bellwether_breaker_changes_total{engine="watch",to="closed"} 0
bellwether_breaker_changes_total{engine="watch",to="half-open"} 0
bellwether_breaker_changes_total{engine="watch",to="open"} 0
bellwether_breaker_changes_total{engine="writes",to="closed"} 0
bellwether_breaker_changes_total{engine="writes",to="half-open"} 0
bellwether_breaker_changes_total{engine="writes",to="open"} 0
`), "bellwether_near_evictions_total", "bellwether_near_evicted_bytes_total", "bellwether_herd_wait_seconds_total", "bellwether_breaker_changes_total")
	if err != nil {
		t.Error(err)
	}
	if n := samples(t, c.wakeLag.WithLabelValues("store").(prometheus.Histogram)); n != 1 {
		t.Errorf("%d wake lags, want 1", n)
	}
	if n := samples(t, c.rebuild.WithLabelValues("failed").(prometheus.Histogram)); n != 1 {
		t.Errorf("%d failed rebuilds, want 1", n)
	}
}

// TestCollector_Names has two caches in one registry, told apart by their name.
func TestCollector_Names(t *testing.T) {
	registry := prometheus.NewRegistry()
	for _, name := range []string{"users", "pages"} {
		if err := registry.Register(New(name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := registry.Register(New("users")); err == nil {
		t.Error("two caches of one name were registered")
	}
}

// The figures of one of two caches would be lost without a word.
func TestAttach_Twice(t *testing.T) {
	c := New("")
	c.Attach(fixed{})
	defer func() {
		if p := fmt.Sprint(recover()); !strings.HasPrefix(p, "bellwetherprom: Attach was called twice") {
			t.Errorf("the panic is %q", p)
		}
	}()
	c.Attach(fixed{})
}

// samples is how many a histogram has.
func samples(t *testing.T, h prometheus.Histogram) uint64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(h)
	families, err := r.Gather()
	if err != nil || len(families) != 1 {
		t.Fatal(families, err)
	}
	return families[0].Metric[0].Histogram.GetSampleCount()
}
