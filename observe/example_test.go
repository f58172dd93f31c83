package observe_test

import (
	"context"
	"fmt"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/observe"
)

func Example() {
	printer := observe.Observer{
		Rebuild: func(ctx context.Context, key string) (context.Context, func(observe.Rebuild)) {
			return ctx, func(r observe.Rebuild) { fmt.Println("rebuilt", r.Key, r.Outcome) }
		},
	}
	users := bellwether.New(func(ctx context.Context, id string) (string, error) { return "user " + id, nil },
		bellwether.Options{TTL: time.Minute, Observers: []observe.Observer{printer}})
	users.Get(context.Background(), "42")
	users.Close()
	// Output: rebuilt 42 value
}
