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

// TestObserve_EveryField sees each field of Stats as a metric with its own value and a help text.
func TestObserve_EveryField(t *testing.T) {
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
	c := &attached{newCollector("users"), func() observe.Stats { return s }}
	if err := testutil.CollectAndCompare(c, strings.NewReader(want.String()), names...); err != nil {
		t.Error(err)
	}
	problems, err := testutil.CollectAndLint(c)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

// TestObserve_Herd has two processes: one rebuilds after a dead holder's lease, the other waits for it.
func TestObserve_Herd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCollector("") // of both caches: the test reads only its counts
		store, locker := memstore.New(), locallock.New()
		if _, err := locker.TryAcquire(t.Context(), "values:k", 2*time.Second); err != nil { // the holder then stays silent
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 2 {
			cache := bellwether.New(func(context.Context, string) (string, error) {
				time.Sleep(3 * time.Second)
				return "v", nil
			}, bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{Store: store, Locker: locker, Namespace: "values"}, Observers: []observe.Observer{c.observer(prometheus.NewRegistry())}})
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

func TestObserve_Events(t *testing.T) {
	c := newCollector("")
	o := c.observer(nil)
	o.Evict("k", 700)
	o.Evict("l", 300)
	o.Breaker(observe.EngineLocker, observe.BreakerClosed, observe.BreakerOpen)
	o.Herd(observe.Herd{Callers: 3, Waited: 1500 * time.Millisecond, WakeLag: time.Millisecond})
	_, end := o.Rebuild(t.Context(), "k")
	end(observe.Rebuild{Outcome: observe.OutcomeFailed, Took: time.Second, Err: errors.New("down")})
	for name, got := range map[string]float64{
		"evictions 2":       testutil.ToFloat64(c.nearEvictions),
		"evicted 1000":      testutil.ToFloat64(c.nearEvictionBytes),
		"waiting 1.5":       testutil.ToFloat64(c.herdWaiting),
		"to open 1":         testutil.ToFloat64(c.breakerChanges.WithLabelValues("locker", "open")),
		"kinds 12":          float64(testutil.CollectAndCount(c.breakerChanges)), // each is there before it happens
		"wake lags 1":       float64(samples(t, c.wakeLag.WithLabelValues("store").(prometheus.Histogram))),
		"failed rebuilds 1": float64(samples(t, c.rebuild.WithLabelValues("failed").(prometheus.Histogram))),
	} {
		if !strings.HasSuffix(name, fmt.Sprint(" ", got)) {
			t.Errorf("got %v, want %s", got, name)
		}
	}
}

func load(context.Context, string) (string, error) { return "v", nil }

func options(observers ...observe.Observer) bellwether.Options {
	return bellwether.Options{TTL: time.Minute, Observers: observers}
}

// hits are the values of bellwether_hits_total in a registry, by the label cache.
func hits(t *testing.T, registry prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "bellwether_hits_total" {
				got[m.Label[0].GetValue()] = m.Counter.GetValue()
			}
		}
	}
	return got
}

// TestObserve_Registry has two named caches in one registry. A third takes the name of a closed cache.
func TestObserve_Registry(t *testing.T) {
	registry := prometheus.NewRegistry()
	users := bellwether.New(load, options(Observe(registry, "users")))
	pages := bellwether.NewMiddleware(bellwether.HTTPOptions{Observers: []observe.Observer{Observe(registry, "pages")}})
	defer pages.Close()
	for range 3 {
		users.Get(t.Context(), "k")
	}
	if got := hits(t, registry); len(got) != 2 || got["users"] != 2 || got["pages"] != 0 {
		t.Errorf("hits %v, want 2 of users and 0 of pages", got)
	}
	users.Close()
	if got := hits(t, registry); len(got) != 1 {
		t.Errorf("after Close the registry has hits of %v, want those of pages alone", got)
	}
	again := bellwether.New(load, options(Observe(registry, "users")))
	defer again.Close()
	if got := hits(t, registry); len(got) != 2 || got["users"] != 0 {
		t.Errorf("hits %v, want 0 of the new users", got)
	}
}

func TestObserve_DefaultRegistry(t *testing.T) {
	c := bellwether.New(load, options(Observe(nil, "of the default registry")))
	defer c.Close()
	if got := hits(t, prometheus.DefaultGatherer); len(got) != 1 {
		t.Errorf("the default registry has hits of %v", got)
	}
}

// TestObserve_Refused has New panic: a cache without its own metrics would lose its figures in silence.
func TestObserve_Refused(t *testing.T) {
	twice := Observe(prometheus.NewRegistry(), "users")
	registry := prometheus.NewRegistry()
	for name, observers := range map[string][2]observe.Observer{
		"one name":       {Observe(registry, "users"), Observe(registry, "users")},
		"one observer":   {twice, twice},
		"a missing name": {Observe(registry, "users"), Observe(registry, "")},
	} {
		first := bellwether.New(load, options(observers[0]))
		func() {
			defer func() {
				p := fmt.Sprint(recover())
				if !strings.Contains(p, "Observers[0]") || !strings.Contains(p, "bellwetherprom: the registry refuses the metrics of the cache \"") {
					t.Errorf("%s: the panic is %s", name, p)
				}
			}()
			bellwether.New(load, options(observers[1]))
		}()
		first.Close()
		bellwether.New(load, options(observers[0])).Close() // the name is free again
	}
}

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
