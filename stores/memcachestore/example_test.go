package memcachestore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/memcachelock"
	"github.com/bellwether-go/bellwether/stores/memcachestore"
	"github.com/bradfitz/gomemcache/memcache"
)

func Example() {
	ctx := context.Background()
	mc := memcache.New("localhost:11211")
	mc.MaxIdleConns = 64                // the default is 2 per server
	mc.Timeout = 100 * time.Millisecond // less than half of EngineTimeout
	defer mc.Close()
	users := bellwether.New(func(ctx context.Context, id string) (string, error) { return "user " + id, nil }, bellwether.Options{
		TTL: time.Minute, Fleet: bellwether.Fleet{Namespace: "users", Store: memcachestore.New(mc), Locker: memcachelock.New(mc)},
	})
	defer users.Close()
	user, err := users.Get(ctx, "42")
	fmt.Println(user, err)
}
