package main

import (
	"net/http"

	"github.com/bellwether-go/bellwether"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// This file is /metrics: the cache's Stats in Prometheus's words. A program of
// your own can take it over as it is. docs/operations.md says what to do when
// one of the numbers is not what it should be.

// A metric is one field of [bellwether.Stats]. A counter's name ends in _total.
type metric struct {
	name string
	kind prometheus.ValueType
	help string
	of   func(bellwether.Stats) float64
}

var metrics = []metric{
	counter("hits", "Requests answered by a fresh response of this process's memory.",
		func(s bellwether.Stats) uint64 { return s.Hits }),
	counter("stale", "Requests answered by a stale response.",
		func(s bellwether.Stats) uint64 { return s.Stale }),
	counter("misses", "Requests that began a flight: what this process has was not fresh, and no other request was at the key.",
		func(s bellwether.Stats) uint64 { return s.Misses }),
	counter("collapsed", "Requests that came to another's flight and shared what it brought.",
		func(s bellwether.Stats) uint64 { return s.Collapsed }),
	counter("wait_timeouts", "Requests that waited for max-wait in vain.",
		func(s bellwether.Stats) uint64 { return s.WaitTimeouts }),
	counter("loads", "Calls of the origin that this process has begun in order to rebuild.",
		func(s bellwether.Stats) uint64 { return s.Loads }),
	counter("load_failures", "Calls of the origin that failed.",
		func(s bellwether.Stats) uint64 { return s.LoadFailures }),
	counter("store_hits", "Flights answered by a fresh entry of the store.",
		func(s bellwether.Stats) uint64 { return s.StoreHits }),
	counter("waits", "Flights that found the lease held by another process.",
		func(s bellwether.Stats) uint64 { return s.Waits }),
	counter("fenced", "Commits that the store refused because something newer was there.",
		func(s bellwether.Stats) uint64 { return s.Fenced }),
	counter("leases_lost", "Leases that ended before the rebuild did.",
		func(s bellwether.Stats) uint64 { return s.LeasesLost }),
	counter("hedges", "Calls of the origin beside another process's. This server makes none.",
		func(s bellwether.Stats) uint64 { return s.Hedges }),
	counter("degraded", "Calls of the origin without lease or store, because those did not answer.",
		func(s bellwether.Stats) uint64 { return s.Degraded }),
	counter("engine_errors", "Calls of store or lock engine that got no answer.",
		func(s bellwether.Stats) uint64 { return s.EngineErrors }),
	gauge("flights", "Keys with a rebuild, or a wait for one, under way.",
		func(s bellwether.Stats) float64 { return float64(s.Flights) }),
	gauge("near_bytes", "Size of the responses in this process's memory.",
		func(s bellwether.Stats) float64 { return float64(s.NearBytes) }),
	gauge("store_up", "1 if the store's breaker lets calls through, 0 if the store does not answer.",
		func(s bellwether.Stats) float64 { return truth(s.StoreUp) }),
	gauge("locker_up", "1 if the lock engine's breaker lets calls through, 0 if the engine does not answer.",
		func(s bellwether.Stats) float64 { return truth(s.LockerUp) }),
}

func counter(name, help string, of func(bellwether.Stats) uint64) metric {
	return metric{"bellwether_" + name + "_total", prometheus.CounterValue, help,
		func(s bellwether.Stats) float64 { return float64(of(s)) }}
}

func gauge(name, help string, of func(bellwether.Stats) float64) metric {
	return metric{"bellwether_" + name, prometheus.GaugeValue, help, of}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// A collector hands a cache's Stats to Prometheus, all of one moment.
type collector struct {
	stats func() bellwether.Stats
	descs []*prometheus.Desc
}

func newCollector(stats func() bellwether.Stats) *collector {
	c := &collector{stats: stats}
	for _, m := range metrics {
		c.descs = append(c.descs, prometheus.NewDesc(m.name, m.help, nil, nil))
	}
	return c
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s := c.stats()
	for i, m := range metrics {
		out <- prometheus.MustNewConstMetric(c.descs[i], m.kind, m.of(s))
	}
}

// metricsHandler serves the cache's metrics, and Go's and the process's own.
func (s *server) metricsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		newCollector(s.cache.Stats),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "bellwether_info", Help: "Always 1; the labels say what this process is made of.",
			ConstLabels: prometheus.Labels{"store": s.config.store, "locker": s.config.locker, "upstream": name(s.config)},
		}, func() float64 { return 1 }),
	)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}
