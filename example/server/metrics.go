package main

import (
	"net/http"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/bellwetherprom"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// This file is /metrics, of the cache and the process. docs/operations.md explains the numbers.

// newCache returns a cache, and the registry with its metrics. The only cache needs no name.
func newCache(o bellwether.HTTPOptions) (*bellwether.Middleware, *prometheus.Registry) {
	metrics := prometheus.NewRegistry()
	o.Observers = append(o.Observers, bellwetherprom.Observe(metrics, ""))
	return bellwether.NewMiddleware(o), metrics
}

func (s *server) metricsHandler() http.Handler {
	return promhttp.HandlerFor(s.allMetrics(), promhttp.HandlerOpts{})
}

func (s *server) allMetrics() prometheus.Gatherer {
	own := prometheus.NewRegistry()
	own.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "bellwether_info", Help: "Always 1. The labels name the store, the locker and the upstream.",
			ConstLabels: prometheus.Labels{"store": s.config.store, "locker": s.config.locker, "upstream": name(s.config)},
		}, func() float64 { return 1 }),
	)
	return prometheus.Gatherers{s.metrics, own}
}
