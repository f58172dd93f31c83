// Package bellwetherotel exports a cache's Stats and events to OpenTelemetry, and a span per rebuild.
//
// A rebuild belongs to no caller. Its span is a child of the span of the call that began the
// rebuild, so a trace leads to it, and has links to the spans of the collapsed calls.
//
// OpenTelemetry has no conventions for caches. The names follow its general ones: units are UCUM's, durations
// are histograms in seconds, levels that add up are UpDownCounters. The attribute error.type is the class of
// a failure:
//
//   - panic, goexit: how the load ended
//   - rebuild_timeout, timeout: [bellwether.ErrRebuildTimeout], and other time limits
//   - overloaded, closed, unavailable: the errors of package bellwether
//   - remote: the failure came from the store, mostly of another process's load
//   - canceled: a context was cancelled
//   - else the result of the error's method ErrorType() string, or the error's Go type
package bellwetherotel

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/observe"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
)

const scope = "github.com/bellwether-go/bellwether/bellwetherotel"

// Options configure [Observe]. The zero Options suit a program with one cache and the global providers.
type Options struct {
	// Name is the attribute bellwether.cache.name of all metrics and spans. It tells the caches of
	// one program apart. An empty Name leaves the attribute out.
	Name string
	// MeterProvider makes the metrics. Nil means otel.GetMeterProvider().
	MeterProvider metric.MeterProvider
	// TracerProvider makes the spans. Nil means otel.GetTracerProvider().
	TracerProvider trace.TracerProvider
	// Keys adds the key of a rebuild to its span, as bellwether.key. Default: false, since keys may
	// be personal. No metric ever has a key.
	Keys bool
}

// Observe returns an observer with the instruments of one cache, for its Options.Observers. OpenTelemetry
// reads the cache's Stats at each collection of metrics, from New to the end of Close. New and NewMiddleware
// panic if another open cache has the same name and MeterProvider, if a second cache uses the same observer,
// and with the errors of the providers. Hits cost nothing: they are read from Stats.
func Observe(o Options) observe.Observer {
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	t, err := newTelemetry(o)
	if err != nil {
		return observe.Observer{Attach: func(func() observe.Stats) (func(), error) { return nil, err }}
	}
	return t.observer()
}

// A telemetry has the instruments of one cache. It is safe for concurrent use.
type telemetry struct {
	options Options
	meter   metric.Meter
	tracer  trace.Tracer
	own     []attribute.KeyValue // of all metrics and spans

	rebuild, wait, wakeLag                  metric.Float64Histogram
	herds, herdCallers                      metric.Int64Counter
	herdWaiting                             metric.Float64Counter
	takeovers, evictions, evicted, breakers metric.Int64Counter

	// Made once, so no call builds attributes.
	byName    metric.MeasurementOption
	byWay     map[observe.Way]metric.MeasurementOption
	byOutcome map[observe.Outcome]metric.MeasurementOption
	byLoaded  map[bool]metric.MeasurementOption
	byState   map[change]metric.MeasurementOption
}

type change struct {
	engine observe.Engine
	to     observe.BreakerState
}

func newTelemetry(o Options) (*telemetry, error) {
	t := &telemetry{
		options: o,
		meter:   o.MeterProvider.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL)),
		tracer:  o.TracerProvider.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL)),
	}
	if o.Name != "" {
		t.own = []attribute.KeyValue{attribute.String("bellwether.cache.name", o.Name)}
	}
	var errs []error
	histogram := func(name, about string) metric.Float64Histogram {
		h, err := t.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(about),
			metric.WithExplicitBucketBoundaries(.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60))
		errs = append(errs, err)
		return h
	}
	count := func(name, unit, about string) metric.Int64Counter {
		c, err := t.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(about))
		errs = append(errs, err)
		return c
	}
	t.rebuild = histogram("bellwether.rebuild.duration", "Time from the begin of a load until its value is in the store.")
	t.wait = histogram("bellwether.wait.duration", "Time until a call has its answer, for calls without an immediate hit.")
	t.wakeLag = histogram("bellwether.wake.lag", "Time from a commit until the last waiting caller of this process has its answer.")
	t.herds = count("bellwether.herds", "{herd}", "Flights that have answered at least one call.")
	t.herdCallers = count("bellwether.herd.callers", "{call}", "Calls that flights have answered.")
	t.takeovers = count("bellwether.takeovers", "{rebuild}", "Rebuilds in place of a holder with an expired lease.")
	t.evictions = count("bellwether.near.evictions", "{value}", "Values that left this process's memory for other values.")
	t.evicted = count("bellwether.near.evicted", "By", "Size of these values.")
	t.breakers = count("bellwether.breaker.changes", "{change}", "Changes of the breakers before the engines, by the new state.")
	var err error
	t.herdWaiting, err = t.meter.Float64Counter("bellwether.herd.wait_time", metric.WithUnit("s"), metric.WithDescription("Waiting time of these calls in sum."))
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
				attribute.String("bellwether.engine", engine.String()), attribute.String("bellwether.breaker.state", to.String()))
		}
	}
	return t, nil
}

func (t *telemetry) with(more ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(append(more, t.own...)...))
}

func (t *telemetry) observer() observe.Observer {
	return observe.Observer{
		Attach: t.attach,
		Serve: func(ctx context.Context, s observe.Serve) {
			t.wait.Record(ctx, s.Waited.Seconds(), append(failed(s.Err), t.byWay[s.Way])...)
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

// failed is the error attribute of a failed operation. ErrNotFound is no failure.
func failed(err error) []metric.RecordOption {
	if err == nil || errors.Is(err, bellwether.ErrNotFound) {
		return nil
	}
	return []metric.RecordOption{metric.WithAttributes(errorType(err))}
}

func errorType(err error) attribute.KeyValue {
	if _, ok := errors.AsType[*bellwether.PanicError](err); ok {
		return semconv.ErrorTypeKey.String("panic")
	}
	if _, ok := errors.AsType[*bellwether.RemoteError](err); ok {
		return semconv.ErrorTypeKey.String("remote")
	}
	for _, class := range []struct {
		is   error
		name string
	}{
		{bellwether.ErrGoexit, "goexit"},
		{bellwether.ErrRebuildTimeout, "rebuild_timeout"},
		{bellwether.ErrWaitTimeout, "timeout"},
		{bellwether.ErrOverloaded, "overloaded"},
		{bellwether.ErrClosed, "closed"},
		{bellwether.ErrUnavailable, "unavailable"},
		{context.DeadlineExceeded, "timeout"},
		{context.Canceled, "canceled"},
	} {
		if errors.Is(err, class.is) {
			return semconv.ErrorTypeKey.String(class.name)
		}
	}
	return semconv.ErrorType(err)
}

func (t *telemetry) rebuilt(ctx context.Context, span trace.Span, r observe.Rebuild) {
	// The rebuild's context carries its span, for the exemplars of the histogram.
	t.rebuild.Record(ctx, r.Took.Seconds(), append(failed(r.Err), t.byOutcome[r.Outcome])...)
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
		span.SetAttributes(errorType(r.Err))
		span.SetStatus(codes.Error, r.Err.Error())
	}
	span.End()
}

// A kind says how values of a level combine.
type kind uint8

const (
	counter kind = iota // only grows
	sum                 // goes up and down, and adds up over processes
	gauge               // does not add up
)

// A level is a field of [observe.Stats].
type level struct {
	name, unit, about string
	kind              kind
	of                func(observe.Stats) int64
}

var levels = []level{
	{"bellwether.hits", "{call}", "Calls with a fresh value from this process's memory.", counter,
		func(s observe.Stats) int64 { return int64(s.Hits) }},
	{"bellwether.stale", "{call}", "Calls with a stale value.", counter,
		func(s observe.Stats) int64 { return int64(s.Stale) }},
	{"bellwether.misses", "{call}", "Calls that began a flight.", counter,
		func(s observe.Stats) int64 { return int64(s.Misses) }},
	{"bellwether.collapsed", "{call}", "Calls that joined the flight of another call.", counter,
		func(s observe.Stats) int64 { return int64(s.Collapsed) }},
	{"bellwether.wait.timeouts", "{call}", "Calls that waited for MaxWait without a value.", counter,
		func(s observe.Stats) int64 { return int64(s.WaitTimeouts) }},
	{"bellwether.loads", "{load}", "Loads that this process has begun.", counter,
		func(s observe.Stats) int64 { return int64(s.Loads) }},
	{"bellwether.load.failures", "{load}", "Loads that failed.", counter,
		func(s observe.Stats) int64 { return int64(s.LoadFailures) }},
	{"bellwether.store.hits", "{flight}", "Flights with the answer from the store.", counter,
		func(s observe.Stats) int64 { return int64(s.StoreHits) }},
	{"bellwether.waits", "{flight}", "Flights that found the lease with another process.", counter,
		func(s observe.Stats) int64 { return int64(s.Waits) }},
	{"bellwether.fenced", "{commit}", "Commits that the store refused, after a later commit or an invalidation.", counter,
		func(s observe.Stats) int64 { return int64(s.Fenced) }},
	{"bellwether.leases.lost", "{lease}", "Leases that ended before their rebuild.", counter,
		func(s observe.Stats) int64 { return int64(s.LeasesLost) }},
	{"bellwether.hedges", "{load}", "Second loads beside the load of another process.", counter,
		func(s observe.Stats) int64 { return int64(s.Hedges) }},
	{"bellwether.degraded", "{load}", "Loads without a lease or without the store, because an engine did not answer.", counter,
		func(s observe.Stats) int64 { return int64(s.Degraded) }},
	{"bellwether.engine.errors", "{call}", "Calls of the store or the locker without an answer.", counter,
		func(s observe.Stats) int64 { return int64(s.EngineErrors) }},
	{"bellwether.flight.count", "{flight}", "Keys with a rebuild, or a wait for a rebuild, under way.", sum,
		func(s observe.Stats) int64 { return int64(s.Flights) }},
	{"bellwether.near.usage", "By", "Size of the values in this process's memory.", sum,
		func(s observe.Stats) int64 { return int64(s.NearBytes) }},
	{"bellwether.store.up", "1", "0 while the store does not answer, else 1.", gauge,
		func(s observe.Stats) int64 { return truth(s.StoreUp) }},
	{"bellwether.locker.up", "1", "0 while the locker does not answer, else 1.", gauge,
		func(s observe.Stats) int64 { return truth(s.LockerUp) }},
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// owners are the observed open caches. OpenTelemetry would mix the metrics of two caches with one name.
var owners sync.Map // of owner to nil

// An owner is a name in use at a provider.
type owner struct {
	provider metric.MeterProvider
	name     string
}

func (t *telemetry) attach(stats func() observe.Stats) (detach func(), err error) {
	own := owner{t.options.MeterProvider, t.options.Name}
	if reflect.ValueOf(own.provider).Comparable() {
		if _, taken := owners.LoadOrStore(own, nil); taken {
			return nil, fmt.Errorf("bellwetherotel: another open cache has the name %q at this MeterProvider; give each cache a name of its own, as in Options{Name: \"users\"}", own.name)
		}
		defer func() {
			if err != nil {
				owners.Delete(own)
			}
		}()
	}
	values, err := t.levels()
	if err != nil {
		return nil, err
	}
	registration, err := t.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := stats()
		for i, l := range levels {
			o.ObserveInt64(values[i].(metric.Int64Observable), l.of(s), t.byName)
		}
		return nil
	}, values...)
	if err != nil {
		return nil, err
	}
	return func() {
		if err := registration.Unregister(); err != nil {
			otel.Handle(err)
		}
		if reflect.ValueOf(own.provider).Comparable() {
			owners.Delete(own)
		}
	}, nil
}

func (t *telemetry) levels() (values []metric.Observable, err error) {
	var errs []error
	for _, l := range levels {
		var v metric.Observable
		var err error
		unit, about := metric.WithUnit(l.unit), metric.WithDescription(l.about)
		switch l.kind {
		case counter:
			v, err = t.meter.Int64ObservableCounter(l.name, unit, about)
		case sum:
			v, err = t.meter.Int64ObservableUpDownCounter(l.name, unit, about)
		case gauge:
			v, err = t.meter.Int64ObservableGauge(l.name, unit, about)
		}
		values, errs = append(values, v), append(errs, err)
	}
	return values, errors.Join(errs...)
}
