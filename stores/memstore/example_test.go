package memstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

func Example() {
	ctx := context.Background()
	users := bellwether.New(func(ctx context.Context, id string) (string, error) { return "user " + id, nil }, bellwether.Options{
		TTL: time.Minute, Fleet: bellwether.Fleet{Namespace: "users", Store: memstore.New(), Locker: locallock.New()},
	})
	defer users.Close()
	user, err := users.Get(ctx, "42")
	fmt.Println(user, err)
	// Output: user 42 <nil>
}
