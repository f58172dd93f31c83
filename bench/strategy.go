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

// This file says what a way to keep a herd from an origin is. Each has a file of
// its own: baseline_*.go what is written without a library, rival_*.go what is
// written with another one, ours.go this project.

// A loader is the origin as a strategy sees it.
type loader func(ctx context.Context, key string) (string, error)

// A cache is a strategy at work in one process of the fleet.
type cache interface {
	// Get returns the value of key, from wherever the strategy has it.
	Get(ctx context.Context, key string) (string, error)
	// Close ends what the strategy runs behind its callers.
	Close()
}

// A policy is what all strategies are told alike.
type policy struct {
	TTL   time.Duration // how long a value is fresh
	Stale time.Duration // how long after that it may be served while it is rebuilt; 0: not at all
	Lease time.Duration // how long a lock is taken for
	Near  int           // how many values the process may keep; 0: as many as there are
	// Rebuilds is how many loads a process runs at one time, where the strategy
	// has a bound; 0: its default.
	Rebuilds int
}

// A trait is something that a strategy has and a scenario may need.
type trait int

const (
	staleServes  trait = 1 << iota // it can serve a stale value while it rebuilds
	locks                          // it has a lock that all processes see
	wholeSeconds                   // its TTL counts in whole seconds
	yardstick                      // it is no cache, but what the scenario costs without one
)

// A strategy is one way to keep a herd from an origin.
type strategy struct {
	name    string
	engines []string // the engines it talks to, whose commands are counted
	traits  trait
	caveat  string // what the figures do not say
	open    func(c *clients, p policy, load loader) (cache, error)
}

func (s strategy) has(t trait) bool { return s.traits&t == t }

var strategies = []strategy{
	fanOut,
	noProtection, onlySingleflight, racySemaphore, addMutex, onlyXFetch,
	sturdycInProcess, sturdycRedis, otterInProcess, gocacheRedis, goRedisCache, redislockAside, rockscacheRedis, rueidisAside,
	bellwetherInProcess, bellwetherRedis, bellwetherRedisPair, bellwetherMemcached, bellwetherEtcd,
}

// ours are the strategies of this project that have a locker.
var ours = []strategy{bellwetherRedis, bellwetherRedisPair, bellwetherMemcached, bellwetherEtcd}

func strategyNamed(name string) (strategy, bool) {
	i := slices.IndexFunc(strategies, func(s strategy) bool { return s.name == name })
	if i < 0 {
		return strategy{}, false
	}
	return strategies[i], true
}

// got is a cache that is no more than a function.
type got func(ctx context.Context, key string) (string, error)

func (g got) Get(ctx context.Context, key string) (string, error) { return g(ctx, key) }
func (got) Close()                                                {}

// closing is a cache with something to end.
type closing struct {
	got
	end func()
}

func (c closing) Close() { c.end() }

// clients are a process's connections to the engines. All strategies have the
// same.
type clients struct {
	redis     *redis.Client
	memcached *memcache.Client
	etcd      *clientv3.Client
	wire      *wire // what the connections with Redis and memcached are dialled by
}

// addresses are where the engines listen, by name.
type addresses map[string]string

func connect(a addresses) (*clients, error) {
	redis.SetLogger(silence{}) // its dials fail in the scenarios that stop the server
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
