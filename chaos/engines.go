package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/engines/redisfleet"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/dynamolock"
	"github.com/bellwether-go/bellwether/lockers/etcdlock"
	"github.com/bellwether-go/bellwether/lockers/memcachelock"
	"github.com/bellwether-go/bellwether/lockers/redislock"
	"github.com/bellwether-go/bellwether/lockers/zklock"
	"github.com/bellwether-go/bellwether/stores/memcachestore"
	"github.com/bellwether-go/bellwether/stores/redisstore"
)

// This file is the list of engines: how each is started and reached, and whether its data survives.

// An engine is a server that can elect, and may keep entries.
type engine struct {
	name    string
	start   func(testing.TB) *testserver.Server
	prepare func(addr string) error           // makes the objects that clients expect, after each start; nil: none
	forgets bool                              // no data survives the server's process
	atomic  bool                              // a commit's write and its fencing happen at the same moment
	open    func(addr string) (client, error) // connects a client; its store is nil if the engine has none
}

// A client is a process's end of an engine.
type client struct {
	locker driver.Locker
	store  driver.Store
	// free is release by plain delete, as by another client: it frees the lease on key of any
	// holder, as a planted bug does. Nil in engines without the bug.
	free  func(ctx context.Context, key string) error
	close func() error
}

// The clients' own time-outs, beside the context's. They exceed EngineTimeout, and so rarely count.
const (
	dialTimeout = 500 * time.Millisecond
	callTimeout = 500 * time.Millisecond

	// sessionTimeout exceeds any lease: a holder cut off from ZooKeeper stops before its session ends.
	sessionTimeout = 3 * time.Second

	table = "chaos"
)

var engines = []engine{
	{
		name:    "redis",
		start:   func(tb testing.TB) *testserver.Server { return testserver.Redis(tb) },
		forgets: true,
		atomic:  true,
		open: func(addr string) (client, error) {
			rdb := redisClient(addr)
			locker := redislock.New(rdb)
			locker.Tokens = true
			return client{
				locker: locker, store: redisstore.New(rdb),
				free: func(ctx context.Context, key string) error {
					return rdb.Del(ctx, locker.Prefix+"{"+adapter.Name(key)+"}:lease").Err()
				},
				close: func() error {
					locker.Close()
					return rdb.Close()
				},
			}, nil
		},
	},
	{
		name:    redisFleet,
		start:   func(tb testing.TB) *testserver.Server { return testserver.Redis(tb) },
		forgets: true,
		atomic:  true,
		open: func(addr string) (client, error) {
			rdb := redisClient(addr)
			eng := redisfleet.New(rdb)
			return client{locker: eng, store: eng, close: func() error {
				eng.Close()
				return rdb.Close()
			}}, nil
		},
	},
	{
		name:    "memcached",
		start:   func(tb testing.TB) *testserver.Server { return testserver.Memcached(tb) },
		forgets: true,
		open: func(addr string) (client, error) {
			mc := memcache.New(addr)
			mc.MaxIdleConns, mc.Timeout = 32, callTimeout
			locker := memcachelock.New(mc)
			locker.Tokens = true
			return client{
				locker: locker, store: memcachestore.New(mc),
				free: func(_ context.Context, key string) error {
					err := mc.Delete(locker.Prefix + adapter.Name(key) + ":lease")
					if errors.Is(err, memcache.ErrCacheMiss) {
						return nil
					}
					return err
				},
				close: mc.Close,
			}, nil
		},
	},
	{
		name:  "etcd",
		start: func(tb testing.TB) *testserver.Server { return testserver.Etcd(tb) },
		open: func(addr string) (client, error) {
			c, err := clientv3.New(clientv3.Config{
				Endpoints: []string{addr}, Logger: zap.NewNop(), DialTimeout: dialTimeout,
				DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: time.Second,
			})
			if err != nil {
				return client{}, err
			}
			locker := etcdlock.New(c)
			return client{locker: locker, close: func() error {
				locker.Close()
				return c.Close()
			}}, nil
		},
	},
	{
		name:  "zookeeper",
		start: func(tb testing.TB) *testserver.Server { return testserver.ZooKeeper(tb) },
		open: func(addr string) (client, error) {
			locker := zklock.New(addr)
			locker.SessionTimeout = sessionTimeout
			return client{locker: locker, close: locker.Close}, nil
		},
	},
	{
		name:    "dynamodb",
		start:   testserver.DynamoDB,
		forgets: true, // as dynalite does
		prepare: func(addr string) error {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			c, end := dynamoDB(addr)
			defer end()
			return dynamolock.CreateTable(ctx, c, table)
		},
		open: func(addr string) (client, error) {
			c, end := dynamoDB(addr)
			return client{locker: dynamolock.New(c, table), close: func() error {
				end()
				return nil
			}}, nil
		},
	},
}

func redisClient(addr string) *redis.Client {
	redis.SetLogger(silence{}) // failures here are intended
	return redis.NewClient(&redis.Options{
		Addr: addr, ContextTimeoutEnabled: true,
		DialTimeout: dialTimeout, ReadTimeout: callTimeout, WriteTimeout: callTimeout,
		MaxRetries: 1, DialerRetries: 1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

func dynamoDB(addr string) (*dynamodb.Client, func()) {
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		MaxIdleConnsPerHost: 32,
	}
	endpoint := "http://" + addr
	return dynamodb.New(dynamodb.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "emulator", SecretAccessKey: "emulator"}, nil
		}),
		HTTPClient: &http.Client{Transport: transport},
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
			o.MaxAttempts, o.MaxBackoff = 2, 50*time.Millisecond
		}),
	}), transport.CloseIdleConnections
}

func engineOf(name string) (engine, error) {
	for _, e := range engines {
		if e.name == name {
			return e, nil
		}
	}
	return engine{}, fmt.Errorf("no engine is called %q", name)
}

// redisFleet is store and locker together, and never paired with another engine.
const redisFleet = "redisfleet"

// stores are engines with entries, lockers engines with elections.
var (
	stores  = []string{"redis", "memcached"}
	lockers = []string{"redis", "memcached", "etcd", "zookeeper", "dynamodb"}
)

// silence is a logger for go-redis, which logs by itself.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
