package fleettest

import (
	"context"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/engines/redisfleet"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/memcachelock"
	"github.com/bellwether-go/bellwether/lockers/redislock"
	"github.com/bellwether-go/bellwether/stores/memcachestore"
	"github.com/bellwether-go/bellwether/stores/redisstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/go-redis/v9"
)

// This file has the kinds of fleets.

// A Kind of fleet is a store and a locker, and the servers they need.
type Kind struct {
	// Name identifies the kind in [Main].
	Name string

	// Start starts the servers, which end with the test. The last one elects.
	Start func(testing.TB) []*testserver.Server

	// Open makes a worker's store and locker from the servers' addresses, for the life of the process.
	// engineTimeout is the limit for a client that limits its calls itself; 0 is the default.
	Open func(addrs []string, engineTimeout time.Duration) (driver.Store, driver.Locker, error)
}

// The kinds with store and locker on the same servers. Memcacheds has three servers.
var (
	Redis = Kind{
		Name:  "redis",
		Start: func(tb testing.TB) []*testserver.Server { return []*testserver.Server{testserver.Redis(tb)} },
		Open: func(addrs []string, _ time.Duration) (driver.Store, driver.Locker, error) {
			redis.SetLogger(silence{}) // its dials fail in the tests that kill the server
			rdb := redis.NewClient(&redis.Options{Addr: addrs[0], ContextTimeoutEnabled: true})
			return redisstore.New(rdb), redislock.New(rdb), nil
		},
	}
	// RedisFleet is Redis as one engine: store and locker are one value.
	RedisFleet = Kind{
		Name:  "redisfleet",
		Start: Redis.Start,
		Open: func(addrs []string, _ time.Duration) (driver.Store, driver.Locker, error) {
			redis.SetLogger(silence{})
			eng := redisfleet.New(redis.NewClient(&redis.Options{Addr: addrs[0], ContextTimeoutEnabled: true}))
			return eng, eng, nil
		},
	}
	// RedisDatabase is database 1 of a Redis, for a user with only the permissions in docs/engines.md.
	RedisDatabase = Kind{
		Name: "redis-database",
		Start: func(tb testing.TB) []*testserver.Server {
			server := testserver.Redis(tb)
			testserver.Restrict(tb, testserver.RedisRules, server)
			return []*testserver.Server{server}
		},
		Open: func(addrs []string, _ time.Duration) (driver.Store, driver.Locker, error) {
			redis.SetLogger(silence{})
			rdb := redis.NewClient(&redis.Options{Addr: addrs[0], ContextTimeoutEnabled: true, DB: 1,
				Username: testserver.RedisUser, Password: testserver.RedisPassword})
			return redisstore.New(rdb), redislock.New(rdb), nil
		},
	}
	// RedisSentinel is master and replica behind sentinels, with their addresses, for RedisDatabase's user.
	RedisSentinel = Kind{
		Name:  "redis-sentinel",
		Start: func(tb testing.TB) []*testserver.Server { return testserver.RedisSentinel(tb).Servers() },
		Open: func(addrs []string, _ time.Duration) (driver.Store, driver.Locker, error) {
			redis.SetLogger(silence{})
			rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: testserver.SentinelName, SentinelAddrs: addrs,
				ContextTimeoutEnabled: true, DB: 1, Username: testserver.RedisUser, Password: testserver.RedisPassword})
			return redisstore.New(rdb), redislock.New(rdb), nil
		},
	}
	// RedisCluster is three masters with a replica each, for a user with docs/engines.md's permissions.
	RedisCluster = Kind{
		Name: "redis-cluster",
		Start: func(tb testing.TB) []*testserver.Server {
			servers := testserver.RedisCluster(tb, 1).Servers()
			testserver.Restrict(tb, testserver.RedisRules+" "+testserver.ClusterRules, servers...)
			return servers
		},
		Open: func(addrs []string, _ time.Duration) (driver.Store, driver.Locker, error) {
			redis.SetLogger(silence{})
			rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true,
				Username: testserver.RedisUser, Password: testserver.RedisPassword})
			return redisstore.New(rdb), redislock.New(rdb), nil
		},
	}
	Memcached = Kind{
		Name:  "memcached",
		Start: func(tb testing.TB) []*testserver.Server { return []*testserver.Server{testserver.Memcached(tb)} },
		Open:  openMemcached,
	}
	Memcacheds = Kind{
		Name: "memcacheds",
		Start: func(tb testing.TB) []*testserver.Server {
			return []*testserver.Server{testserver.Memcached(tb), testserver.Memcached(tb), testserver.Memcached(tb)}
		},
		Open: openMemcached,
	}
)

func openMemcached(addrs []string, engineTimeout time.Duration) (driver.Store, driver.Locker, error) {
	mc := memcache.New(addrs...)
	mc.Timeout, mc.MaxIdleConns = engineTimeout, 64
	return memcachestore.New(mc), memcachelock.New(mc), nil
}

// ElectedBy returns the kind with the store of k and a locker on engine. start starts the engine,
// from package testserver; open makes a worker's locker from its address.
func (k Kind) ElectedBy(engine string, start func(testing.TB, ...string) *testserver.Server, open func(addr string) (driver.Locker, error)) Kind {
	return Kind{
		Name:  engine + " over " + k.Name,
		Start: func(tb testing.TB) []*testserver.Server { return append(k.Start(tb), start(tb)) },
		Open: func(addrs []string, engineTimeout time.Duration) (driver.Store, driver.Locker, error) {
			last := len(addrs) - 1
			store, _, err := k.Open(addrs[:last], engineTimeout)
			if err != nil {
				return nil, nil, err
			}
			locker, err := open(addrs[last])
			return store, locker, err
		},
	}
}

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
