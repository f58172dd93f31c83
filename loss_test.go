package bellwether_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// A tellingLocker's leases tell of their loss.
type tellingLocker struct {
	*locallock.Locker
	lose <-chan struct{}
}

func (l tellingLocker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (bellwether.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, key, ttl)
	if err != nil {
		return nil, err
	}
	return tellingLease{lease, l.lose}, nil
}

// A tellingLease has no channel if its adapter is broken.
type tellingLease struct {
	bellwether.Lease
	lose <-chan struct{}
}

func (l tellingLease) Lost() <-chan struct{} {
	if l.lose == nil {
		panic("adapter")
	}
	return l.lose
}

// TestLossNotifier_CancelsTheLoad loses a lease long before its renewal is due:
// the load's context ends at that moment, with the cause, and the caller gets
// what the next load makes.
func TestLossNotifier_CancelsTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type end struct {
			cause error
			after time.Duration
		}
		lose, ended := make(chan struct{}), make(chan end, 1)
		start := time.Now()
		var loads atomic.Int64
		c := cacheOf(t, func(ctx context.Context, _ string) (string, error) {
			if loads.Add(1) > 1 {
				return "second", nil
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Second):
			}
			ended <- end{context.Cause(ctx), time.Since(start)}
			return "first", nil
		}, bellwether.Options{
			Store:    memstore.New(),
			Locker:   tellingLocker{locallock.New(), lose},
			LeaseTTL: time.Minute,
		})
		time.AfterFunc(time.Second, func() { close(lose) })
		v, err := c.Get(t.Context(), "k")
		if v != "second" || err != nil {
			t.Errorf("Get = %q, %v; want what was made after the loss", v, err)
		}
		if first := <-ended; !errors.Is(first.cause, bellwether.ErrLeaseLost) || first.after != time.Second {
			t.Errorf("the load ended after %v with %v, want ErrLeaseLost at once, after 1s", first.after, first.cause)
		}
		if n := c.Stats().LeasesLost; n == 0 {
			t.Error("the loss was not counted")
		}
	})
}

// A firstLossLocker's first lease is one that is lost after a second.
type firstLossLocker struct {
	*locallock.Locker
	taken atomic.Bool
}

func (l *firstLossLocker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (bellwether.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, key, ttl)
	if err != nil || l.taken.Swap(true) {
		return lease, err
	}
	lose := make(chan struct{})
	time.AfterFunc(time.Second, func() { close(lose) })
	return tellingLease{lease, lose}, nil
}

// A dozingStore's second read of a key takes two seconds.
type dozingStore struct {
	*memstore.Store
	key   string
	reads atomic.Int64
}

func (s *dozingStore) Get(ctx context.Context, key string) (bellwether.Entry, error) {
	if ownKey(key) == s.key && s.reads.Add(1) == 2 {
		time.Sleep(2 * time.Second)
	}
	return s.Store.Get(ctx, key)
}

// TestLoss_AndTheQueueIsFull has a rebuild lose its lease, and its slot with that,
// and find MaxQueued others who wait for one: it has been let in before.
func TestLoss_AndTheQueueIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
			select {
			case <-ctx.Done():
				return "", context.Cause(ctx)
			case <-time.After(10 * time.Second):
				return key, nil
			}
		}, bellwether.Options{
			Store: &dozingStore{Store: memstore.New(), key: "lost"}, Locker: &firstLossLocker{Locker: locallock.New()},
			EngineTimeout: 5 * time.Second, MaxRebuilds: 1, MaxQueued: 1,
		})
		get := func(key string) {
			wg.Go(func() {
				if v, err := c.Get(t.Context(), key); v != key || err != nil {
					t.Errorf("Get(%q) = %q, %v", key, v, err)
				}
			})
			synctest.Wait()
		}
		get("lost")
		get("next") // gets the slot when the lease is lost
		time.Sleep(2 * time.Second)
		get("waits") // in the one place of the queue, before "lost" comes back from the store
		if _, err := c.Get(t.Context(), "refused"); !errors.Is(err, bellwether.ErrOverloaded) {
			t.Errorf("the queue is not full: %v", err)
		}
		wg.Wait()
		if n := c.Stats().LeasesLost; n != 1 {
			t.Errorf("%d leases were lost, want 1", n)
		}
	})
}

// TestLossNotifier_Panics has an adapter that panics where it should tell: the
// load goes on with its renewals.
func TestLossNotifier_Panics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, func(context.Context, string) (string, error) {
			time.Sleep(time.Second)
			return "v", nil
		}, bellwether.Options{Store: memstore.New(), Locker: tellingLocker{locallock.New(), nil}})
		if v, err := c.Get(t.Context(), "k"); v != "v" || err != nil {
			t.Errorf("Get = %q, %v", v, err)
		}
		if n := c.Stats().EngineErrors; n != 1 {
			t.Errorf("%d engine errors, want the panic's", n)
		}
	})
}
