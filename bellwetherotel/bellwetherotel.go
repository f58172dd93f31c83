// Package bellwetherotel tells OpenTelemetry what a cache does: its Stats and
// what an observer is told, as metrics, and each rebuild as a span.
//
// The rebuild belongs to no caller, and so does its span. It is a child of the
// span of the call that began it, because somebody's trace has to lead there,
// and it is linked to the spans of the calls that collapsed on it.
package bellwetherotel

import (
	"context"
	"errors"
	"sync"

	"github.com/bellwether-go/bellwether/observe"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// scope is the name of the instrumentation.
const scope = "github.com/bellwether-go/bellwether/bellwetherotel"

// Options configure a [Telemetry]. The zero Options are those of a program with
// one cache and the global providers.
type Options struct {
	// Name is the attribute bellwether.cache of all metrics and spans, by which
	// the caches of one program are told apart. Empty: there is none.
	Name string
	// MeterProvider makes the metrics. Nil means otel.GetMeterProvider().
	MeterProvider metric.MeterProvider
	// TracerProvider makes the spans. Nil means otel.GetTracerProvider().
	TracerProvider trace.TracerProvider
	// Keys puts the key of a rebuild into its span, as bellwether.key. Default:
	// keys stay here, since they may be personal. No metric ever has one.
	Keys bool
}

// A Telemetry has the instruments of one cache. Create one with New, give its
// Observer to the cache, and the cache to Attach. It is safe for concurrent use.
type Telemetry struct {
	options Options
	meter   metric.Meter
	tracer  trace.Tracer
	own     []attribute.KeyValue // of all metrics and spans

	rebuild, wait, wakeLag                  metric.Float64Histogram
	herds, herdCallers                      metric.Int64Counter
	herdWaiting                             metric.Float64Counter
	takeovers, evictions, evicted, breakers metric.Int64Counter

	// Made once: a call's answer is no time to build attributes.
	byName    metric.MeasurementOption
	byWay     map[observe.Way]metric.MeasurementOption
	byOutcome map[observe.Outcome]metric.MeasurementOption
	byLoaded  map[bool]metric.MeasurementOption
	byState   map[change]metric.MeasurementOption

	mu         sync.Mutex // guards registered
	registered []metric.Registration
}

// A change is what is counted of a breaker's changes.
type change struct {
	engine observe.Engine
	to     observe.BreakerState
}

// New returns the instruments. The error is the providers'.
func New(o Options) (*Telemetry, error) {
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	t := &Telemetry{options: o, meter: o.MeterProvider.Meter(scope), tracer: o.TracerProvider.Tracer(scope)}
	if o.Name != "" {
		t.own = []attribute.KeyValue{attribute.String("bellwether.cache", o.Name)}
	}
	var errs []error
	histogram := func(name, about string) metric.Float64Histogram {
		h, err := t.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(about),
			metric.WithExplicitBucketBoundaries(.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60))
		errs = append(errs, err)
		return h
	}
	counter := func(name, unit, about string) metric.Int64Counter {
		c, err := t.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(about))
		errs = append(errs, err)
		return c
	}
	t.rebuild = histogram("bellwether.rebuild.duration", "Time from the begin of a load until its value is in the store.")
	t.wait = histogram("bellwether.wait.duration", "Time until a call has its answer, for calls without an immediate hit.")
	t.wakeLag = histogram("bellwether.wake.lag", "Time from a commit until the last waiting caller of this process has its answer.")
	t.herds = counter("bellwether.herds", "{herd}", "Flights that have answered at least one call.")
	t.herdCallers = counter("bellwether.herd.callers", "{call}", "Calls that flights have answered.")
	t.takeovers = counter("bellwether.takeovers", "{rebuild}", "Rebuilds in place of a holder with an expired lease.")
	t.evictions = counter("bellwether.near.evictions", "{value}", "Values that left this process's memory for other values.")
	t.evicted = counter("bellwether.near.evicted", "By", "Size of these values.")
	t.breakers = counter("bellwether.breaker.changes", "{change}", "Changes of the breakers before the engines, by the new state.")
	var err error
	t.herdWaiting, err = t.meter.Float64Counter("bellwether.herd.wait", metric.WithUnit("s"), metric.WithDescription("Waiting time of these calls in sum."))
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}

	t.byName = t.with()
	t.byWay = map[observe.Way]metric.MeasurementOption{}
	for way := observe.WayHit; way <= observe.WayBypass; way++ {
		t.byWay[way] = t.with(attribute.String("bellwether.way", way.String()))
	}
	t.byOutcome = map[observe.Outcome]metric.MeasurementOption{}
	for outcome := observe.OutcomeValue; outcome <= observe.OutcomeAbandoned; outcome++ {
		t.byOutcome[outcome] = t.with(attribute.String("bellwether.outcome", outcome.String()))
	}
	t.byLoaded = map[bool]metric.MeasurementOption{
		true:  t.with(attribute.String("bellwether.from", "load")),
		false: t.with(attribute.String("bellwether.from", "store")),
	}
	t.byState = map[change]metric.MeasurementOption{}
	for engine := observe.EngineStore; engine <= observe.EngineWrites; engine++ {
		for to := observe.BreakerClosed; to <= observe.BreakerOpen; to++ {
			t.byState[change{engine, to}] = t.with(
				attribute.String("bellwether.engine", engine.String()), attribute.String("bellwether.state", to.String()))
		}
	}
	return t, nil
}

func (t *Telemetry) with(more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(append(more, t.own...)...))
}

// Observer returns the observer that feeds the instruments. It does not watch
// hits, which Stats count: they stay as fast as they are.
func (t *Telemetry) Observer() observe.Observer {
	return observe.Observer{
		Serve: func(ctx context.Context, s observe.Serve) {
			t.wait.Record(ctx, s.Waited.Seconds(), t.byWay[s.Way])
		},
		Caller: func(ctx context.Context) any { return trace.SpanContextFromContext(ctx) },
		Rebuild: func(ctx context.Context, key string) (context.Context, func(observe.Rebuild)) {
			ctx, span := t.tracer.Start(ctx, "bellwether.rebuild", trace.WithAttributes(t.own...))
			if t.options.Keys {
				span.SetAttributes(attribute.String("bellwether.key", key))
			}
			return ctx, func(r observe.Rebuild) { t.rebuilt(ctx, span, r) }
		},
		Herd: func(h observe.Herd) {
			ctx := context.Background()
			t.herds.Add(ctx, 1, t.byName)
			t.herdCallers.Add(ctx, int64(h.Callers), t.byName)
			t.herdWaiting.Add(ctx, h.Waited.Seconds(), t.byName)
			if h.WakeLag > 0 {
				t.wakeLag.Record(ctx, h.WakeLag.Seconds(), t.byLoaded[h.Loaded])
			}
		},
		Breaker: func(engine observe.Engine, _, to observe.BreakerState) {
			t.breakers.Add(context.Background(), 1, t.byState[change{engine, to}])
		},
		Evict: func(_ string, bytes int) {
			t.evictions.Add(context.Background(), 1, t.byName)
			t.evicted.Add(context.Background(), int64(bytes), t.byName)
		},
	}
}

// rebuilt ends a rebuild's span.
func (t *Telemetry) rebuilt(ctx context.Context, span trace.Span, r observe.Rebuild) {
	// The rebuild's context carries its span, for the histogram's exemplars.
	t.rebuild.Record(ctx, r.Took.Seconds(), t.byOutcome[r.Outcome])
	if r.Takeover {
		t.takeovers.Add(ctx, 1, t.byName)
	}
	span.SetAttributes(
		attribute.String("bellwether.outcome", r.Outcome.String()),
		attribute.Bool("bellwether.takeover", r.Takeover),
		attribute.Bool("bellwether.lease_lost", r.LeaseLost),
	)
	for _, caller := range r.Callers {
		if sc, ok := caller.(trace.SpanContext); ok && sc.IsValid() {
			span.AddLink(trace.Link{SpanContext: sc})
		}
	}
	if r.Err != nil {
		span.RecordError(r.Err)
		span.SetStatus(codes.Error, r.Err.Error())
	}
	span.End()
}

// A level is a field of [observe.Stats] that is read when metrics are
// collected.
type level struct {
	name, unit, about string
	gauge             bool
	of                func(observe.Stats) int64
}

var levels = []level{
	{"bellwether.hits", "{call}", "Calls with a fresh value from this process's memory.", false,
		func(s observe.Stats) int64 { return int64(s.Hits) }},
	{"bellwether.stale", "{call}", "Calls with a stale value.", false,
		func(s observe.Stats) int64 { return int64(s.Stale) }},
	{"bellwether.misses", "{call}", "Calls that began a flight.", false,
		func(s observe.Stats) int64 { return int64(s.Misses) }},
	{"bellwether.collapsed", "{call}", "Calls that joined the flight of another call.", false,
		func(s observe.Stats) int64 { return int64(s.Collapsed) }},
	{"bellwether.wait.timeouts", "{call}", "Calls that waited for MaxWait without a value.", false,
		func(s observe.Stats) int64 { return int64(s.WaitTimeouts) }},
	{"bellwether.loads", "{load}", "Loads that this process has begun.", false,
		func(s observe.Stats) int64 { return int64(s.Loads) }},
	{"bellwether.load.failures", "{load}", "Loads that failed.", false,
		func(s observe.Stats) int64 { return int64(s.LoadFailures) }},
	{"bellwether.store.hits", "{flight}", "Flights with the answer from the store.", false,
		func(s observe.Stats) int64 { return int64(s.StoreHits) }},
	{"bellwether.waits", "{flight}", "Flights that found the lease with another process.", false,
		func(s observe.Stats) int64 { return int64(s.Waits) }},
	{"bellwether.fenced", "{commit}", "Commits that the store refused because of a later epoch.", false,
		func(s observe.Stats) int64 { return int64(s.Fenced) }},
	{"bellwether.leases.lost", "{lease}", "Leases that ended before their rebuild.", false,
		func(s observe.Stats) int64 { return int64(s.LeasesLost) }},
	{"bellwether.hedges", "{load}", "Second loads beside the load of another process.", false,
		func(s observe.Stats) int64 { return int64(s.Hedges) }},
	{"bellwether.degraded", "{load}", "Loads without a lease or without the store, because an engine did not answer.", false,
		func(s observe.Stats) int64 { return int64(s.Degraded) }},
	{"bellwether.engine.errors", "{call}", "Calls of the store or the locker without an answer.", false,
		func(s observe.Stats) int64 { return int64(s.EngineErrors) }},
	{"bellwether.flights", "{flight}", "Keys with a rebuild, or a wait for a rebuild, under way.", true,
		func(s observe.Stats) int64 { return int64(s.Flights) }},
	{"bellwether.near.size", "By", "Size of the values in this process's memory.", true,
		func(s observe.Stats) int64 { return int64(s.NearBytes) }},
	{"bellwether.store.up", "1", "0 while the store does not answer, else 1.", true,
		func(s observe.Stats) int64 { return truth(s.StoreUp) }},
	{"bellwether.locker.up", "1", "0 while the locker does not answer, else 1.", true,
		func(s observe.Stats) int64 { return truth(s.LockerUp) }},
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// Attach has the Stats of a Cache or a Middleware read
// whenever metrics are collected, until Close. The error is the provider's.
func (t *Telemetry) Attach(cache interface{ Stats() observe.Stats }) error {
	var instruments []metric.Observable
	var values []metric.Int64Observable
	var errs []error
	for _, l := range levels {
		var v metric.Int64Observable
		var err error
		if l.gauge {
			v, err = t.meter.Int64ObservableGauge(l.name, metric.WithUnit(l.unit), metric.WithDescription(l.about))
		} else {
			v, err = t.meter.Int64ObservableCounter(l.name, metric.WithUnit(l.unit), metric.WithDescription(l.about))
		}
		instruments, values, errs = append(instruments, v), append(values, v), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	registration, err := t.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := cache.Stats()
		for i, l := range levels {
			o.ObserveInt64(values[i], l.of(s), t.byName)
		}
		return nil
	}, instruments...)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.registered = append(t.registered, registration)
	return nil
}

// Close ends the reading of Stats. Call it when the cache is closed.
func (t *Telemetry) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, r := range t.registered {
		errs = append(errs, r.Unregister())
	}
	t.registered = nil
	return errors.Join(errs...)
}
