package redisfleet

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
	"github.com/bellwether-go/bellwether/lockers/redislock"
	"github.com/bellwether-go/bellwether/stores/redisstore"
	"github.com/bellwether-go/bellwether/stores/storetest"
	"github.com/redis/go-redis/v9"
)

// This file tests a fleet with engines in some processes, and redisstore and redislock in the others.

// A pair is redisstore and redislock in one process, as an Elector of several requests.
type pair struct {
	*redisstore.Store
	locker *redislock.Locker
}

func newPair(tb testing.TB, rdb redis.UniversalClient, prefix string) pair {
	tb.Helper()
	p := pair{redisstore.New(rdb), redislock.New(rdb)}
	p.Prefix, p.locker.Prefix, p.MaxValue = prefix, prefix, limit
	tb.Cleanup(func() { p.locker.Close() })
	return p
}

func (p pair) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	return p.locker.TryAcquire(ctx, key, ttl)
}

func (p pair) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	return p.locker.Watch(ctx, held)
}

func (p pair) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (won driver.Election, err error) {
	won.Entry, err = p.Get(ctx, key)
	if err != nil && !errors.Is(err, driver.ErrNotFound) && !errors.Is(err, driver.ErrCorrupt) || suffices(won.Entry, past) {
		return won, err
	}
	lease, err := p.TryAcquire(ctx, key, ttl)
	if held, ok := errors.AsType[*driver.HeldError](err); ok {
		won.Held = held
		return won, nil
	}
	if err != nil {
		return driver.Election{}, err
	}
	won.Lease = lease
	if won.Entry, won.Epoch, err = p.Claim(ctx, key); err != nil || suffices(won.Entry, past) {
		won.Lease, won.Epoch = nil, 0
		lease.Release(context.WithoutCancel(ctx))
	}
	return won, err
}

func (p pair) CommitAndRelease(ctx context.Context, key string, e driver.Entry, lease driver.Lease) error {
	if err := p.Commit(ctx, key, e); err != nil {
		return err
	}
	if err := lease.Release(ctx); !errors.Is(err, driver.ErrLeaseLost) {
		return err
	}
	return nil
}

// TestMixed runs the kits with processes that alternate between the two kinds.
func TestMixed(t *testing.T) {
	srv := testserver.Redis(t)
	mixed := func(prefix string) func(testing.TB) driver.Elector {
		var opened atomic.Int32
		return func(tb testing.TB) driver.Elector {
			if opened.Add(1)%2 == 0 {
				return set(open(tb, srv.Addr), prefix)
			}
			return newPair(tb, dial(tb, srv.Addr), prefix)
		}
	}
	t.Run("store", func(t *testing.T) {
		storetest.Run(t, func(tb testing.TB) storetest.Instance {
			prefix := "test:" + adapter.Token() + ":"
			return instance(dial(tb, srv.Addr), prefix, mixed(prefix))
		})
	})
	t.Run("locker", func(t *testing.T) {
		next := mixed("bellwether:")
		lockertest.Run(t, func(tb testing.TB) driver.Locker { return next(tb) })
	})
}
