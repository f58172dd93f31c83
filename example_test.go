package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

func Example() {
	loads := 0
	users := bellwether.New(func(ctx context.Context, id string) (string, error) {
		loads++ // no lock: however many callers there are, one load runs
		time.Sleep(10 * time.Millisecond)
		return "user " + id, nil
	}, bellwether.Options{TTL: time.Minute, StaleWhileRevalidate: 10 * time.Minute})
	defer users.Close()

	var herd sync.WaitGroup
	for range 1000 {
		herd.Go(func() { users.Get(context.Background(), "42") })
	}
	herd.Wait()
	user, err := users.Get(context.Background(), "42")
	fmt.Println(user, err, loads)
	// Output: user 42 <nil> 1
}

// Two caches that share a Store and a Locker are what two processes are.
func ExampleOptions_store() {
	o := bellwether.Options{TTL: time.Minute, Store: memstore.New(), Locker: locallock.New()}
	load := func(ctx context.Context, key string) (int, error) {
		fmt.Println("loading", key)
		return len(key), nil
	}
	here, there := bellwether.New(load, o), bellwether.New(load, o)
	defer here.Close()
	defer there.Close()

	a, _ := here.Get(context.Background(), "key")
	b, _ := there.Get(context.Background(), "key")
	fmt.Println(a, b)
	// Output:
	// loading key
	// 3 3
}

func ExampleSetFreshness() {
	c := bellwether.New(func(ctx context.Context, key string) (string, error) {
		bellwether.SetFreshness(ctx, bellwether.Freshness{TTL: time.Nanosecond}) // as the origin says
		return time.Now().Format(time.RFC3339Nano), nil
	}, bellwether.Options{TTL: time.Hour})
	defer c.Close()

	a, _ := c.Get(context.Background(), "now")
	b, _ := c.Get(context.Background(), "now")
	fmt.Println(a == b)
	// Output: false
}

func ExampleErrNotFound() {
	c := bellwether.New(func(ctx context.Context, key string) (string, error) {
		fmt.Println("asking the database")
		return "", fmt.Errorf("no row %s: %w", key, bellwether.ErrNotFound)
	}, bellwether.Options{TTL: time.Minute, NotFoundTTL: 10 * time.Second})
	defer c.Close()

	for range 2 { // the second time it is known
		_, err := c.Get(context.Background(), "42")
		fmt.Println(errors.Is(err, bellwether.ErrNotFound))
	}
	// Output:
	// asking the database
	// true
	// true
}

func ExampleCache_Invalidate() {
	version := 1
	c := bellwether.New(func(ctx context.Context, key string) (int, error) { return version, nil },
		bellwether.Options{TTL: time.Hour})
	defer c.Close()

	before, _ := c.Get(context.Background(), "k")
	version = 2
	err := c.Invalidate(context.Background(), "k")
	after, _ := c.Get(context.Background(), "k")
	fmt.Println(before, err, after)
	// Output: 1 <nil> 2
}
