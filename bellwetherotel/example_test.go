package bellwetherotel_test

import (
	"context"
	"fmt"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/bellwetherotel"
	"github.com/bellwether-go/bellwether/observe"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

func Example() {
	spans := tracetest.NewInMemoryExporter() // in production, an exporter to a collector
	users := bellwether.New(func(ctx context.Context, id string) (string, error) { return "user " + id, nil },
		bellwether.Options{TTL: time.Minute, Observers: []observe.Observer{bellwetherotel.Observe(bellwetherotel.Options{
			Name: "users", Keys: true,
			TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)), // nil is the global provider
		})}})

	users.Get(context.Background(), "42")
	users.Close()
	for _, span := range spans.GetSpans() {
		fmt.Println(span.Name)
		for _, kv := range span.Attributes {
			fmt.Println(kv.Key, kv.Value.String())
		}
	}
	// Output:
	// bellwether.rebuild
	// bellwether.cache.name users
	// bellwether.key 42
	// bellwether.outcome value
	// bellwether.takeover false
	// bellwether.lease_lost false
}
