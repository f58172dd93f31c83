package redisfleet_test

import (
	"context"
	"fmt"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/engines/redisfleet"
	"github.com/redis/go-redis/v9"
)

func Example() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379", DialerRetries: 1, MaxRetries: 1}) // the cache has a breaker
	defer rdb.Close()
	engine := redisfleet.New(rdb)
	defer engine.Close()
	users := bellwether.New(func(ctx context.Context, id string) (string, error) { return "user " + id, nil }, bellwether.Options{
		TTL: time.Minute, Fleet: bellwether.Fleet{Namespace: "users", Engine: engine},
	})
	defer users.Close()
	user, err := users.Get(ctx, "42")
	fmt.Println(user, err)
}
