package bellwetherotel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/observe"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	api "go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// A collector has in-memory providers, and Options with them.
type collector struct {
	reader  *metric.ManualReader
	spans   *tracetest.InMemoryExporter
	tracer  *sdktrace.TracerProvider
	options Options
}

func newCollector(t *testing.T, o Options) *collector {
	t.Helper()
	c := &collector{reader: metric.NewManualReader(), spans: tracetest.NewInMemoryExporter()}
	c.tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(c.spans))
	o.MeterProvider, o.TracerProvider = metric.NewMeterProvider(metric.WithReader(c.reader)), c.tracer
	c.options = o
	return c
}

// collect returns all numbers by metric name and attribute values. A histogram's number is its count.
func (c *collector) collect(t *testing.T) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := c.reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	name := func(m metricdata.Metrics, set attribute.Set) string {
		name := m.Name
		for _, kv := range set.ToSlice() {
			name += " " + kv.Value.String()
		}
		if m.Description == "" || m.Unit == "" {
			t.Errorf("%s has no description or no unit", m.Name)
		}
		return name
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					got[name(m, p.Attributes)] = float64(p.Value)
				}
			case metricdata.Sum[float64]:
				for _, p := range data.DataPoints {
					got[name(m, p.Attributes)] = p.Value
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					got[name(m, p.Attributes)] = float64(p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					got[name(m, p.Attributes)] = float64(p.Count)
				}
			default:
				t.Errorf("%s is a %T", m.Name, data)
			}
		}
	}
	return got
}

// TestObserve_EveryField sees each field of Stats as a metric with its value, until the cache is closed.
func TestObserve_EveryField(t *testing.T) {
	var s observe.Stats
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint64:
			f.SetUint(uint64(100 + i))
		case reflect.Int:
			f.SetInt(int64(100 + i))
		case reflect.Bool:
			f.SetBool(i%2 == 1)
		default:
			t.Fatalf("Stats.%s is a %s", v.Type().Field(i).Name, f.Type())
		}
	}
	if len(levels) != v.NumField() {
		t.Fatalf("%d metrics of %d fields", len(levels), v.NumField())
	}
	c := newCollector(t, Options{Name: "users"})
	detach, err := Observe(c.options).Attach(func() observe.Stats { return s })
	if err != nil {
		t.Fatal(err)
	}
	got := c.collect(t)
	for i, l := range levels { // in the order of the fields
		want := float64(100 + i)
		if v.Field(i).Kind() == reflect.Bool {
			want = float64(i % 2)
		}
		if got[l.name+" users"] != want {
			t.Errorf("%s is %v, want Stats.%s, %v", l.name, got[l.name+" users"], v.Type().Field(i).Name, want)
		}
	}
	detach()
	if got := c.collect(t); len(got) != 0 {
		t.Errorf("after the end: %v", got)
	}
}

// TestObserve_Span has a herd: the rebuild's span is the first caller's child, with links to the other spans.
func TestObserve_Span(t *testing.T) {
	c := newCollector(t, Options{Name: "users", Keys: true})
	began, gate := make(chan struct{}), make(chan struct{})
	var inLoad trace.SpanContext
	cache := bellwether.New(func(ctx context.Context, _ string) (string, error) {
		inLoad = trace.SpanContextFromContext(ctx)
		close(began)
		<-gate
		return "v", nil
	}, bellwether.Options{TTL: time.Minute, Observers: []observe.Observer{Observe(c.options)}})
	defer cache.Close()
	const callers = 50
	tracer := c.tracer.Tracer("test")
	spans := map[trace.SpanID]bool{}
	var wg sync.WaitGroup
	call := func() trace.SpanContext {
		ctx, span := tracer.Start(t.Context(), "caller")
		wg.Go(func() {
			defer span.End()
			if v, err := cache.Get(ctx, "k"); v != "v" || err != nil {
				t.Errorf("Get = %q, %v", v, err)
			}
		})
		return span.SpanContext()
	}
	first := call()
	<-began
	for range callers - 1 {
		spans[call().SpanID()] = true
	}
	for cache.Stats().Collapsed < callers-1 {
		time.Sleep(time.Millisecond)
	}
	close(gate)
	wg.Wait()
	stats := c.collect(t)
	cache.Close() // the flight has reported its end by then
	var rebuild tracetest.SpanStub
	n := 0
	for _, s := range c.spans.GetSpans() {
		if s.Name == "bellwether.rebuild" {
			rebuild = s
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%d spans of rebuilds, want 1", n)
	}
	if rebuild.Parent.SpanID() != first.SpanID() || rebuild.SpanContext.TraceID() != first.TraceID() {
		t.Errorf("the rebuild's parent is %v, want the first caller's span", rebuild.Parent.SpanID())
	}
	if inLoad.SpanID() != rebuild.SpanContext.SpanID() {
		t.Errorf("the load runs in the span %v, want the rebuild's", inLoad.SpanID())
	}
	linked := map[trace.SpanID]bool{}
	for _, l := range rebuild.Links {
		if !spans[l.SpanContext.SpanID()] || linked[l.SpanContext.SpanID()] {
			t.Errorf("a link to %v, which is no other caller's", l.SpanContext.SpanID())
		}
		linked[l.SpanContext.SpanID()] = true
	}
	if len(linked) != observe.MaxCallers {
		t.Errorf("%d links, want %d", len(linked), observe.MaxCallers)
	}
	attributes := map[string]string{}
	for _, kv := range rebuild.Attributes {
		attributes[string(kv.Key)] = kv.Value.String()
	}
	if want := map[string]string{
		"bellwether.cache.name": "users", "bellwether.key": "k", "bellwether.outcome": "value",
		"bellwether.takeover": "false", "bellwether.lease_lost": "false",
	}; !reflect.DeepEqual(attributes, want) {
		t.Errorf("attributes %v, want %v", attributes, want)
	}
	if stats["bellwether.loads users"] != 1 || stats["bellwether.collapsed users"] != callers-1 {
		t.Errorf("before Close %v, want 1 load and %d collapsed calls", stats, callers-1)
	}
	got := c.collect(t)
	for name, want := range map[string]float64{
		"bellwether.herds users": 1, "bellwether.herd.callers users": callers,
		"bellwether.rebuild.duration users value": 1, "bellwether.wait.duration users collapsed": callers - 1,
		"bellwether.wait.duration users miss": 1,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

func TestObserve_FailedSpan(t *testing.T) {
	c := newCollector(t, Options{})
	cache := bellwether.New(func(context.Context, string) (string, error) { return "", errors.New("down") },
		bellwether.Options{TTL: time.Minute, Observers: []observe.Observer{Observe(c.options)}})
	cache.Get(t.Context(), "secret")
	cache.Close()
	spans := c.spans.GetSpans()
	if len(spans) != 1 || spans[0].Status.Code != codes.Error || spans[0].Status.Description != "down" || len(spans[0].Events) != 1 {
		t.Fatalf("spans %+v, want one with the failure", spans)
	}
	for _, kv := range spans[0].Attributes {
		if kv.Value.String() == "secret" {
			t.Errorf("the key is in the attribute %s", kv.Key)
		}
	}
}

func TestObserve_Events(t *testing.T) {
	c := newCollector(t, Options{})
	o := Observe(c.options)
	o.Evict("k", 700)
	o.Evict("l", 300)
	o.Breaker(observe.EngineLocker, observe.BreakerClosed, observe.BreakerOpen)
	o.Herd(observe.Herd{Callers: 3, Waited: 1500 * time.Millisecond, WakeLag: time.Millisecond})
	_, end := o.Rebuild(t.Context(), "k")
	end(observe.Rebuild{Takeover: true})
	got := c.collect(t)
	for name, want := range map[string]float64{
		"bellwether.near.evictions": 2, "bellwether.near.evicted": 1000, "bellwether.breaker.changes open locker": 1,
		"bellwether.herd.wait_time": 1.5, "bellwether.wake.lag store": 1, "bellwether.takeovers": 1,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v, in %v", name, got[name], want, got)
		}
	}
}

// TestObserve_Names has caches at one provider: a name in use is refused, a closed cache's name is free.
func TestObserve_Names(t *testing.T) {
	c := newCollector(t, Options{})
	named := func(name string) observe.Observer {
		o := c.options
		o.Name = name
		return Observe(o)
	}
	open := func(by observe.Observer) *bellwether.Cache[string] {
		return bellwether.New(func(context.Context, string) (string, error) { return "v", nil },
			bellwether.Options{TTL: time.Minute, Observers: []observe.Observer{by}})
	}
	same := named("users")
	users, pages := open(same), open(named("pages"))
	defer pages.Close()
	for range 3 {
		users.Get(t.Context(), "k")
	}
	if got := c.collect(t); got["bellwether.hits users"] != 2 || got["bellwether.hits pages"] != 0 {
		t.Errorf("%v, want 2 hits of users and none of pages", got)
	}
	for _, by := range []observe.Observer{same, named("users")} {
		func() {
			defer func() {
				if p := fmt.Sprint(recover()); !strings.Contains(p, "Observers[0]") || !strings.Contains(p, `another open cache has the name "users"`) {
					t.Errorf("the panic is %s", p)
				}
			}()
			open(by)
		}()
	}
	users.Close()
	if _, there := c.collect(t)["bellwether.loads users"]; there {
		t.Error("after Close there are still loads of users")
	}
	open(same).Close()
}

// A wrapper's type can be compared, but not its value if the wrapped provider has no equality.
type (
	wrapper struct{ api.MeterProvider }
	unequal struct {
		noop.MeterProvider
		_ []int
	}
)

func TestObserve_UnequalProvider(t *testing.T) {
	for range 2 {
		c := bellwether.New(func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{
			TTL: time.Minute, Observers: []observe.Observer{Observe(Options{MeterProvider: wrapper{unequal{}}})},
		})
		defer c.Close()
	}
}

func TestObserve_GlobalProviders(t *testing.T) {
	c := newCollector(t, Options{})
	otel.SetMeterProvider(c.options.MeterProvider)
	otel.SetTracerProvider(c.tracer)
	users := bellwether.New(func(context.Context, string) (string, error) { return "v", nil },
		bellwether.Options{TTL: time.Minute, Observers: []observe.Observer{Observe(Options{Name: "users"})}})
	defer users.Close()
	users.Get(t.Context(), "k")
	if got := c.collect(t)["bellwether.loads users"]; got != 1 {
		t.Errorf("%v loads, want 1", got)
	}
}

type classed struct{ error }

func (classed) ErrorType() string { return "deadlock" }

func TestErrorType(t *testing.T) {
	for _, of := range []struct {
		err  error
		want string
	}{
		{&bellwether.PanicError{Value: "boom"}, "panic"},
		{bellwether.ErrGoexit, "goexit"},
		{bellwether.ErrRebuildTimeout, "rebuild_timeout"},
		{bellwether.ErrWaitTimeout, "timeout"},
		{fmt.Errorf("querying: %w", context.DeadlineExceeded), "timeout"},
		{bellwether.ErrOverloaded, "overloaded"},
		{bellwether.ErrClosed, "closed"},
		{bellwether.ErrUnavailable, "unavailable"},
		{&bellwether.RemoteError{}, "remote"},
		{context.Canceled, "canceled"},
		{fmt.Errorf("querying: %w", &net.DNSError{}), "*net.DNSError"},
		{fmt.Errorf("querying: %w", classed{}), "deadlock"},
	} {
		if got := errorType(of.err); string(got.Key) != "error.type" || got.Value.AsString() != of.want {
			t.Errorf("%v: %v is %s, want %s", of.err, got.Key, got.Value.AsString(), of.want)
		}
	}
}

// TestObserve_Failures sees error.type on failed calls and loads, and on no others.
func TestObserve_Failures(t *testing.T) {
	c := newCollector(t, Options{})
	cache := bellwether.New(func(_ context.Context, key string) (string, error) {
		if key == "none" {
			return "", bellwether.ErrNotFound
		}
		panic(key)
	}, bellwether.Options{TTL: time.Minute, Observers: []observe.Observer{Observe(c.options)}})
	cache.Get(t.Context(), "none")
	cache.Get(t.Context(), "boom")
	cache.Close()
	got := c.collect(t)
	for name, want := range map[string]float64{
		"bellwether.wait.duration miss": 1, "bellwether.wait.duration miss panic": 1,
		"bellwether.rebuild.duration value": 1, "bellwether.rebuild.duration failed panic": 1,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v, in %v", name, got[name], want, got)
		}
	}
}
