package bellwetherprom_test

import (
	"context"
	"fmt"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/bellwetherprom"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/prometheus/client_golang/prometheus"
)

func Example() {
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	users := bellwether.New(func(ctx context.Context, id string) (string, error) { return "user " + id, nil },
		bellwether.Options{TTL: time.Minute, Observers: []observe.Observer{bellwetherprom.Observe(registry, "users")}})
	defer users.Close()

	for range 3 {
		users.Get(context.Background(), "42")
	}
	families, _ := registry.Gather()
	for _, f := range families {
		switch f.GetName() {
		case "bellwether_hits_total", "bellwether_misses_total", "bellwether_loads_total":
			fmt.Println(f.GetName(), f.Metric[0].Label[0].GetValue(), f.Metric[0].Counter.GetValue())
		}
	}
	// Output:
	// bellwether_hits_total users 2
	// bellwether_loads_total users 1
	// bellwether_misses_total users 1
}
