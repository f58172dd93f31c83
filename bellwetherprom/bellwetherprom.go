// Package bellwetherprom exports a cache's Stats and events to Prometheus.
//
// docs/operations.md explains each metric. docs/grafana.json and docs/alerts.yml use the metrics.
package bellwetherprom

import (
	"context"
	"fmt"

	"github.com/bellwether-go/bellwether/observe"
	"github.com/prometheus/client_golang/prometheus"
)

type metric struct {
	name string
	kind prometheus.ValueType
	help string
	of   func(observe.Stats) float64
}

var metrics = []metric{
	counter("hits", "Calls with a fresh value from this process's memory.",
		func(s observe.Stats) uint64 { return s.Hits }),
	counter("stale", "Calls with a stale value.",
		func(s observe.Stats) uint64 { return s.Stale }),
	counter("misses", "Calls that began a flight: no fresh value in this process, and no flight for the key.",
		func(s observe.Stats) uint64 { return s.Misses }),
	counter("collapsed", "Calls that joined the flight of another call.",
		func(s observe.Stats) uint64 { return s.Collapsed }),
	counter("wait_timeouts", "Calls that waited for MaxWait without a value.",
		func(s observe.Stats) uint64 { return s.WaitTimeouts }),
	counter("loads", "Loads that this process has begun.",
		func(s observe.Stats) uint64 { return s.Loads }),
	counter("load_failures", "Loads that failed.",
		func(s observe.Stats) uint64 { return s.LoadFailures }),
	counter("store_hits", "Flights with the answer from the store.",
		func(s observe.Stats) uint64 { return s.StoreHits }),
	counter("waits", "Flights that found the lease with another process.",
		func(s observe.Stats) uint64 { return s.Waits }),
	counter("fenced", "Commits that the store refused, after a later commit or an invalidation.",
		func(s observe.Stats) uint64 { return s.Fenced }),
	counter("leases_lost", "Leases that ended before their rebuild.",
		func(s observe.Stats) uint64 { return s.LeasesLost }),
	counter("hedges", "Second loads beside the load of another process.",
		func(s observe.Stats) uint64 { return s.Hedges }),
	counter("degraded", "Loads without a lease or without the store, because an engine did not answer.",
		func(s observe.Stats) uint64 { return s.Degraded }),
	counter("engine_errors", "Calls of the store or the locker without an answer.",
		func(s observe.Stats) uint64 { return s.EngineErrors }),
	gauge("flights", "Keys with a rebuild, or a wait for a rebuild, under way.",
		func(s observe.Stats) float64 { return float64(s.Flights) }),
	gauge("near_bytes", "Size of the values in this process's memory.",
		func(s observe.Stats) float64 { return float64(s.NearBytes) }),
	gauge("store_up", "0 while the store does not answer, else 1.",
		func(s observe.Stats) float64 { return truth(s.StoreUp) }),
	gauge("locker_up", "0 while the locker does not answer, else 1.",
		func(s observe.Stats) float64 { return truth(s.LockerUp) }),
}

func counter(name, help string, of func(observe.Stats) uint64) metric {
	return metric{"bellwether_" + name + "_total", prometheus.CounterValue, help,
		func(s observe.Stats) float64 { return float64(of(s)) }}
}

func gauge(name, help string, of func(observe.Stats) float64) metric {
	return metric{"bellwether_" + name, prometheus.GaugeValue, help, of}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

var (
	ways     = []observe.Way{observe.WayHit, observe.WayStale, observe.WayCollapsed, observe.WayMiss, observe.WayBypass}
	outcomes = []observe.Outcome{observe.OutcomeValue, observe.OutcomeFailed, observe.OutcomeFenced, observe.OutcomeAbandoned}
	engines  = []observe.Engine{observe.EngineStore, observe.EngineLocker, observe.EngineWatch, observe.EngineWrites}
	states   = []observe.BreakerState{observe.BreakerClosed, observe.BreakerHalfOpen, observe.BreakerOpen}
)

// Observe returns an observer with the metrics of one cache, for its Options.Observers.
//
// The cache registers the metrics with registry when it is made, and unregisters them at the end of
// its Close. A nil registry is [prometheus.DefaultRegisterer].
//
// The label cache="name" tells the caches of one program apart. An empty name leaves the label out, for
// the only cache of a registry. All other labels have a fixed set of values, and no key is ever a label.
//
// New and NewMiddleware panic if registry refuses the metrics, as for a second cache with the same name, and
// if a second cache uses the same observer. Hits cost nothing: they are read from Stats.
func Observe(registry prometheus.Registerer, name string) observe.Observer {
	if registry == nil {
		registry = prometheus.DefaultRegisterer
	}
	return newCollector(name).observer(registry)
}

// A collector has the counts of one cache's observer. It is safe for concurrent use.
type collector struct {
	name  string
	descs []*prometheus.Desc // of metrics

	rebuild, wait, wakeLag                      *prometheus.HistogramVec
	herds, herdCallers, herdWaiting             prometheus.Counter
	takeovers, nearEvictions, nearEvictionBytes prometheus.Counter
	breakerChanges                              *prometheus.CounterVec
	parts                                       []prometheus.Collector // all metrics above
}

func newCollector(name string) *collector {
	var labels prometheus.Labels
	if name != "" {
		labels = prometheus.Labels{"cache": name}
	}
	c := &collector{name: name}
	for _, m := range metrics {
		c.descs = append(c.descs, prometheus.NewDesc(m.name, m.help, nil, labels))
	}
	histogram := func(name, help, label string, smallest float64) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "bellwether_" + name, Help: help, ConstLabels: labels,
			Buckets: prometheus.ExponentialBuckets(smallest, 2, 17),
		}, []string{label})
		c.parts = append(c.parts, h)
		return h
	}
	count := func(name, help string) prometheus.Counter {
		n := prometheus.NewCounter(prometheus.CounterOpts{Name: "bellwether_" + name + "_total", Help: help, ConstLabels: labels})
		c.parts = append(c.parts, n)
		return n
	}
	c.rebuild = histogram("rebuild_seconds", "Time from the begin of a load until its value is in the store.", "outcome", 0.001)
	c.wait = histogram("wait_seconds", "Time until a call has its answer, for calls without an immediate hit.", "way", 0.001)
	c.wakeLag = histogram("wake_lag_seconds", "Time from a commit until the last waiting caller of this process has its answer.", "from", 0.00005)
	c.herds = count("herds", "Flights that have answered at least one call.")
	c.herdCallers = count("herd_callers", "Calls that flights have answered.")
	c.herdWaiting = count("herd_wait_seconds", "Waiting time of these calls in sum.")
	c.takeovers = count("takeovers", "Rebuilds in place of a holder with an expired lease.")
	c.nearEvictions = count("near_evictions", "Values that left this process's memory for other values.")
	c.nearEvictionBytes = count("near_evicted_bytes", "Size of these values.")
	c.breakerChanges = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "bellwether_breaker_changes_total", Help: "Changes of the breakers before the engines, by the new state.", ConstLabels: labels,
	}, []string{"engine", "to"})
	c.parts = append(c.parts, c.breakerChanges)

	// Every label value exists from the start: Prometheus computes no rate from a first sample.
	for _, way := range ways {
		c.wait.WithLabelValues(way.String())
	}
	for _, outcome := range outcomes {
		c.rebuild.WithLabelValues(outcome.String())
	}
	for _, loaded := range []bool{false, true} {
		c.wakeLag.WithLabelValues(from(loaded))
	}
	for _, engine := range engines {
		for _, state := range states {
			c.breakerChanges.WithLabelValues(engine.String(), state.String())
		}
	}
	return c
}

func from(loaded bool) string {
	if loaded {
		return "load"
	}
	return "store"
}

// attach registers the metrics of a cache. detach unregisters them.
func (c *collector) attach(registry prometheus.Registerer, stats func() observe.Stats) (detach func(), err error) {
	all := &attached{c, stats}
	if err := registry.Register(all); err != nil {
		return nil, fmt.Errorf("bellwetherprom: the registry refuses the metrics of the cache %q; each cache needs a name and an observer of its own, unless the one before it is closed: %w", c.name, err)
	}
	return func() { registry.Unregister(all) }, nil
}

func (c *collector) observer(registry prometheus.Registerer) observe.Observer {
	return observe.Observer{
		Attach: func(stats func() observe.Stats) (func(), error) { return c.attach(registry, stats) },
		Serve: func(_ context.Context, s observe.Serve) {
			c.wait.WithLabelValues(s.Way.String()).Observe(s.Waited.Seconds())
		},
		Rebuild: func(ctx context.Context, _ string) (context.Context, func(observe.Rebuild)) {
			return ctx, func(r observe.Rebuild) {
				c.rebuild.WithLabelValues(r.Outcome.String()).Observe(r.Took.Seconds())
				if r.Takeover {
					c.takeovers.Inc()
				}
			}
		},
		Herd: func(h observe.Herd) {
			c.herds.Inc()
			c.herdCallers.Add(float64(h.Callers))
			c.herdWaiting.Add(h.Waited.Seconds())
			if h.WakeLag > 0 {
				c.wakeLag.WithLabelValues(from(h.Loaded)).Observe(h.WakeLag.Seconds())
			}
		},
		Breaker: func(engine observe.Engine, _, to observe.BreakerState) {
			c.breakerChanges.WithLabelValues(engine.String(), to.String()).Inc()
		},
		Evict: func(_ string, bytes int) {
			c.nearEvictions.Inc()
			c.nearEvictionBytes.Add(float64(bytes))
		},
	}
}

// An attached collector also has the Stats of its cache.
type attached struct {
	*collector
	stats func() observe.Stats
}

// Describe implements [prometheus.Collector].
func (a *attached) Describe(out chan<- *prometheus.Desc) {
	for _, d := range a.descs {
		out <- d
	}
	for _, p := range a.parts {
		p.Describe(out)
	}
}

// Collect implements [prometheus.Collector]. The Stats are of a single moment.
func (a *attached) Collect(out chan<- prometheus.Metric) {
	s := a.stats()
	for i, m := range metrics {
		out <- prometheus.MustNewConstMetric(a.descs[i], m.kind, m.of(s))
	}
	for _, p := range a.parts {
		p.Collect(out)
	}
}
