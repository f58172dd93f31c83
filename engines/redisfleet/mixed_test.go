package redisfleet

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/leasetest"
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
	if err != nil && !errors.Is(err, driver.ErrNotFound) && !errors.Is(err, driver.ErrCorrupt) || answers(won.Entry, past) {
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
	if won.Entry, won.Epoch, err = p.Claim(ctx, key); err != nil || answers(won.Entry, past) {
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

// TestMixed_Fleet goes through an election from either side, with keys whose names are hashed or not.
func TestMixed_Fleet(t *testing.T) {
	srv := testserver.Redis(t)
	for _, key := range []string{"plain", "", "{", "}", "{}", "{a}", "a{b}c", "{a}{b}", "a}b{c", "}{", "with space", "a/b", "#hash"} {
		t.Run(key, func(t *testing.T) {
			prefix := "test:" + adapter.Token() + ":"
			one := set(open(t, srv.Addr), prefix)
			two := newPair(t, dial(t, srv.Addr), prefix)
			sides := []driver.Elector{one, two}
			var last uint64
			for i, a := range sides {
				b := sides[1-i]
				heard := listen(t, b.(driver.Notifier), key)
				won := elect(t, a, key, 1<<53)
				if won.Lease == nil || won.Epoch <= last {
					t.Fatalf("%T: Elect: %+v, want a lease and an epoch above %d", a, won, last)
				}
				leasetest.MustBeHeld(t, b, key)
				freed := watch(t, b.(watcher), key)
				if _, epoch, err := b.Claim(t.Context(), key); err != nil || epoch <= won.Epoch {
					t.Errorf("%T: Claim: epoch %d after %d, %v", b, epoch, won.Epoch, err)
				} else {
					last = epoch
				}
				e := driver.Entry{Kind: driver.KindValue, Value: []byte("v"), Epoch: won.Epoch, TTL: time.Hour}
				if err := a.CommitAndRelease(t.Context(), key, e, won.Lease); err != nil {
					t.Fatalf("%T: CommitAndRelease: %v", a, err)
				}
				wait(t, "the release", freed)
				if n := wait(t, "the notice", heard); n.Epoch != won.Epoch || string(n.Entry.Value) != "v" {
					t.Errorf("%T hears %+v of epoch %d", b, n, won.Epoch)
				}
				if got := elect(t, b, key, 0); got.Lease != nil || got.Held != nil || got.Entry.Epoch != won.Epoch {
					t.Errorf("%T: Elect: %+v, want the entry of epoch %d", b, got, won.Epoch)
				}
			}
		})
	}
}

type watcher interface {
	driver.Locker
	driver.Watcher
}

// watch watches key once push works.
func watch(t *testing.T, l watcher, key string) <-chan struct{} {
	t.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) { // a subscription takes its time
		freed, err := l.Watch(t.Context(), leasetest.MustBeHeld(t, l, key))
		if err == nil {
			return freed
		}
		if time.Since(start) > 5*time.Second {
			t.Fatalf("no push after %v: %v", time.Since(start), err)
		}
	}
}

// listen returns the notices of the key's commits, once they come.
func listen(t *testing.T, s driver.Notifier, key string) <-chan driver.Notice {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	heard, up, ended := make(chan driver.Notice, 100), make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(ended)
		s.Notify(ctx, func(n driver.Notice) {
			switch {
			case n.Key == key && !n.Invalidated:
				heard <- n
			case n.Key == "up?":
				up <- struct{}{}
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	for {
		if err := s.(driver.Store).Invalidate(t.Context(), "up?"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-up:
			return heard
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func wait[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(5 * time.Second):
		t.Fatalf("%s does not come", what)
	}
	return v
}
