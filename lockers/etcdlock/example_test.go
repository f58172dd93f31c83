package etcdlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/etcdlock"
	"github.com/bellwether-go/bellwether/stores/redisstore"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func Example() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{
		Endpoints:         []string{"localhost:2379"},
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second, // or a silent member keeps its share of the calls
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	locker := etcdlock.New(client)
	defer locker.Close()
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379", DialerRetries: 1, MaxRetries: 1}) // the cache has a breaker
	defer rdb.Close()
	users := bellwether.New(func(ctx context.Context, id string) (string, error) { return "user " + id, nil }, bellwether.Options{
		TTL: time.Minute, Fleet: bellwether.Fleet{Namespace: "users", Store: redisstore.New(rdb), Locker: locker},
	})
	defer users.Close()
	user, err := users.Get(ctx, "42")
	fmt.Println(user, err)
}
