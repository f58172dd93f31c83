package main

import (
	"context"
	"slices"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// This file defines a strategy. Each strategy has a file of its own: baseline_*.go for strategies
// without a library, rival_*.go for other libraries, ours.go for this project.

// A loader is the origin as a strategy calls it.
type loader func(ctx context.Context, key string) (string, error)

// A cache is a running strategy in one process of the fleet.
type cache interface {
	Get(ctx context.Context, key string) (string, error)
	Close() // ends the strategy's background work
}

// A policy is the common settings of all strategies.
type policy struct {
	TTL      time.Duration // how long a value is fresh
	Stale    time.Duration // how long after that it may be served while it is rebuilt; 0: never
	Lease    time.Duration // the lock's lease
	Near     int           // number of values in the process; 0: no limit
	Rebuilds int           // bound of a process's concurrent loads, if the strategy has one; 0: its default
}

// A trait is a property of a strategy that a scenario may need.
type trait int

const (
	staleServes  trait = 1 << iota // it can serve a stale value while it rebuilds
	locks                          // it has a lock for all processes
	wholeSeconds                   // its TTL counts in whole seconds
	yardstick                      // it is no cache, but the scenario's cost without a cache
)

// A strategy is a way to keep a herd from an origin.
type strategy struct {
	name    string
	engines []string // its engines, whose commands are counted
	traits  trait
	caveat  string // a remark on its figures
	open    func(c *clients, p policy, load loader) (cache, error)
}

func (s strategy) has(t trait) bool { return s.traits&t == t }

var strategies = []strategy{
	fanOut,
	noProtection, onlySingleflight, racySemaphore, addMutex, onlyXFetch,
	sturdycInProcess, sturdycRedis, otterInProcess, gocacheRedis, goRedisCache, redislockAside, rockscacheRedis, rueidisAside,
	bellwetherInProcess, bellwetherRedis, bellwetherRedisPair, bellwetherMemcached, bellwetherEtcd,
}

// ours are this project's strategies with a locker.
var ours = []strategy{bellwetherRedis, bellwetherRedisPair, bellwetherMemcached, bellwetherEtcd}

func strategyNamed(name string) (strategy, bool) {
	i := slices.IndexFunc(strategies, func(s strategy) bool { return s.name == name })
	if i < 0 {
		return strategy{}, false
	}
	return strategies[i], true
}

// got is a cache that is only a function.
type got func(ctx context.Context, key string) (string, error)

func (g got) Get(ctx context.Context, key string) (string, error) { return g(ctx, key) }
func (got) Close()                                                {}

type closing struct {
	got
	end func()
}

func (c closing) Close() { c.end() }

// clients are a process's connections to the engines, the same for all strategies.
type clients struct {
	redis     *redis.Client
	memcached *memcache.Client
	etcd      *clientv3.Client
	wire      *wire // dials the connections to Redis and memcached
}

// addresses are where the engines listen, by name.
type addresses map[string]string

func connect(a addresses) (*clients, error) {
	redis.SetLogger(silence{}) // its dials fail in scenarios without the server
	w := &wire{}
	rdb := redis.NewClient(&redis.Options{Addr: a[redisEngine], ContextTimeoutEnabled: true, PoolSize: 64, Dialer: w.dial})
	mc := memcache.New(a[memcachedEngine])
	mc.MaxIdleConns, mc.DialContext = 64, w.dial
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints: []string{a[etcdEngine]}, Logger: zap.NewNop(),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: time.Second,
	})
	if err != nil {
		return nil, err
	}
	return &clients{redis: rdb, memcached: mc, etcd: etcd, wire: w}, nil
}

// silence is a logger for go-redis, which logs by itself.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
