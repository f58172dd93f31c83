package redisstore

import (
	"testing"

	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/stores/storetest"
	"github.com/redis/go-redis/v9"
)

// TestStore_Access runs as a user with only the documented permissions, in database 1.
func TestStore_Access(t *testing.T) {
	server := testserver.Redis(t).OwnOrSkip(t)
	testserver.Restrict(t, testserver.RedisRules, server)
	storetest.Run(t, func(tb testing.TB) storetest.Instance {
		connect := func(tb testing.TB, o redis.Options) *redis.Client {
			o.Addr, o.DB = server.Addr, 1
			rdb := redis.NewClient(&o)
			tb.Cleanup(func() { rdb.Close() })
			return rdb
		}
		return instance(connect(tb, redis.Options{}), "bellwether:"+adapter.Token()+":", func(tb testing.TB) *Store {
			return New(connect(tb, redis.Options{Username: testserver.RedisUser, Password: testserver.RedisPassword}))
		})
	})
}
