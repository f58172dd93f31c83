package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/engines/redisfleet"
	"github.com/bellwether-go/bellwether/lockers/etcdlock"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/lockers/memcachelock"
	"github.com/bellwether-go/bellwether/lockers/redislock"
	"github.com/bellwether-go/bellwether/lockers/zklock"
	"github.com/bellwether-go/bellwether/stores/memcachestore"
	"github.com/bellwether-go/bellwether/stores/redisstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// This file makes the store and the locker of the flags, without waiting for a server.

// connections is the number of kept connections to an engine. memcached has 1024 by default for the fleet.
const connections = 128

// engines are the store and the locker, nil if the cache needs none, or an engine that is both.
type engines struct {
	store  driver.Store
	locker driver.Locker
	both   driver.Elector
	remote []engine
	ends   []func() error
}

// An engine is one server or several, which may be unreachable.
type engine struct {
	name  string
	addrs []string
	probe func(context.Context) error
}

// connect makes the engines. A store and a locker of one kind share a client. Only addresses can fail.
func connect(c config) (*engines, error) {
	e := &engines{}
	if c.store == "memcached" || c.locker == "memcached" {
		mc := memcache.NewFromSelector(newServers(c.memcached))
		mc.MaxIdleConns = connections
		mc.Timeout = 500 * time.Millisecond
		e.ends = append(e.ends, mc.Close)
		e.remote = append(e.remote, engine{"memcached", c.memcached, func(context.Context) error { return mc.Ping() }})
		if c.store == "memcached" {
			e.store = memcachestore.New(mc)
		}
		if c.locker == "memcached" {
			e.locker = memcachelock.New(mc)
		}
	}
	if c.store == "redis" || c.locker == "redis" {
		rdb := redis.NewUniversalClient(&redis.UniversalOptions{
			Addrs:                 c.redis,
			ContextTimeoutEnabled: true, // the contexts have the cache's time-outs
			PoolSize:              connections,
			DialTimeout:           time.Second,
			// The cache has a breaker. A client that retries behind it would only lengthen outages.
			MaxRetries: 1, DialerRetries: 1,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		e.ends = append(e.ends, rdb.Close)
		e.remote = append(e.remote, engine{"redis", c.redis, func(ctx context.Context) error { return rdb.Ping(ctx).Err() }})
		switch {
		case c.store == c.locker: // one engine needs fewer requests than two
			eng := redisfleet.New(rdb)
			e.ends = append(e.ends, eng.Close)
			e.locker, e.both = eng, eng
		case c.store == "redis":
			e.store = redisstore.New(rdb)
		default:
			locker := redislock.New(rdb)
			e.ends = append(e.ends, locker.Close)
			e.locker = locker
		}
	}
	if c.locker == "etcd" {
		client, err := clientv3.New(clientv3.Config{
			Endpoints: c.etcd,
			Logger:    zap.NewNop(), // the calls also return the errors
			// A dead connection that is not closed would carry no push. etcd's default minimum is 5 s.
			DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		})
		if err != nil {
			e.close()
			return nil, fmt.Errorf("-etcd: %w", err)
		}
		locker := etcdlock.New(client)
		e.ends = append(e.ends, client.Close, locker.Close)
		e.remote = append(e.remote, engine{"etcd", c.etcd, func(ctx context.Context) error {
			_, err := client.Get(ctx, "health", clientv3.WithCountOnly())
			return err
		}})
		e.locker = locker
	}
	if c.locker == "dynamodb" {
		e.connectDynamoDB(c)
	}
	if c.locker == "zookeeper" {
		locker := zklock.New(c.zookeeper...)
		e.ends = append(e.ends, locker.Close)
		e.remote = append(e.remote, engine{"zookeeper", c.zookeeper, locker.Ping})
		e.locker = locker
	}
	if c.locker == "local" && e.store != nil {
		e.locker = locallock.New()
	}
	// With -store memory both are nil: the cache's memory is the store, and its flights elect.
	return e, nil
}

func (e *engines) join(f *bellwether.Fleet) {
	if e.both != nil {
		f.Engine = e.both
		return
	}
	f.Store, f.Locker = e.store, e.locker
}

// warm takes and returns a lease: the first election finds the locker connected. Later calls report failures.
func (e *engines) warm(ctx context.Context) {
	if e.locker == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if lease, err := e.locker.TryAcquire(ctx, "warm-up", time.Second); err == nil {
		lease.Release(ctx)
	}
}

// close ends the engines, the last first.
func (e *engines) close() error {
	var errs []error
	for i := len(e.ends) - 1; i >= 0; i-- {
		errs = append(errs, e.ends[i]())
	}
	return errors.Join(errs...)
}

// servers is a [memcache.ServerSelector] of names that each dial looks up. The client's own looks them
// up once: a process that started before its name server knew memcached would never find memcached.
type servers []net.Addr

// An unresolved address is the flag's host:port.
type unresolved string

func (unresolved) Network() string  { return "tcp" }
func (a unresolved) String() string { return string(a) }

func newServers(addrs []string) servers {
	var s servers
	for _, addr := range addrs {
		s = append(s, unresolved(addr))
	}
	return s
}

// PickServer implements [memcache.ServerSelector].
func (s servers) PickServer(key string) (net.Addr, error) {
	return s[int(crc32.ChecksumIEEE([]byte(key))%uint32(len(s)))], nil
}

// Each implements [memcache.ServerSelector].
func (s servers) Each(f func(net.Addr) error) error {
	for _, a := range s {
		if err := f(a); err != nil {
			return err
		}
	}
	return nil
}
