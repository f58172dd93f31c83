package redislock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/redislock"
	"github.com/bellwether-go/bellwether/stores/redisstore"
	"github.com/redis/go-redis/v9"
)

func Example() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379", DialerRetries: 1, MaxRetries: 1}) // the cache has a breaker
	defer rdb.Close()
	locker := redislock.New(rdb)
	defer locker.Close()
	users := bellwether.New(func(ctx context.Context, id string) (string, error) { return "user " + id, nil }, bellwether.Options{
		TTL: time.Minute, Fleet: bellwether.Fleet{Namespace: "users", Store: redisstore.New(rdb), Locker: locker},
	})
	defer users.Close()
	user, err := users.Get(ctx, "42")
	fmt.Println(user, err)
}
