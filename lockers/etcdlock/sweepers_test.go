package etcdlock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// leases is etcd's side of the sweepers, on the bubble's clock.
type leases struct {
	clientv3.Lease // its other methods are not called

	takes time.Duration // for a grant
	least int64         // the shortest grant, in seconds
	err   error
	asked func() // called by a grant, if not nil

	mu       sync.Mutex // guards the fields below
	granted  int
	noLeader int // so many more grants reach a member without a leader
	ends     map[clientv3.LeaseID]time.Time
}

func (l *leases) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	if l.asked != nil {
		l.asked()
	}
	select {
	case <-time.After(l.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	if l.noLeader > 0 {
		l.noLeader--
		return nil, rpctypes.ErrNoLeader
	}
	ttl = max(ttl, l.least)
	l.granted++
	if l.ends == nil {
		l.ends = map[clientv3.LeaseID]time.Time{}
	}
	id := clientv3.LeaseID(l.granted)
	l.ends[id] = time.Now().Add(time.Duration(ttl) * time.Second)
	return &clientv3.LeaseGrantResponse{ID: id, TTL: ttl}, nil
}

func (l *leases) Revoke(_ context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ends, id)
	return &clientv3.LeaseRevokeResponse{}, nil
}

func newSweepers(l *leases) *sweepers {
	return &sweepers{client: &clientv3.Client{Lease: l}}
}

func take(t *testing.T, s *sweepers, ttl time.Duration) *sweeper {
	t.Helper()
	sweeper, err := s.take(t.Context(), ttl, time.Now().Add(ttl))
	if err != nil {
		t.Fatal(err)
	}
	return sweeper
}

func TestSweepers_OutliveTheirKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &leases{takes: 3 * time.Millisecond}
		s := newSweepers(etcd)
		const hours = 2
		for start := time.Now(); time.Since(start) < hours*time.Hour; time.Sleep(777 * time.Millisecond) {
			for _, ttl := range []time.Duration{50 * time.Millisecond, 5 * time.Second, time.Minute} {
				end := time.Now().Add(ttl)
				sweeper := take(t, s, ttl)
				if swept := etcd.ends[sweeper.id]; swept.Before(end.Add(margin)) || swept.After(end.Add(ttl+sweepAfter+time.Second)) {
					t.Fatalf("a key with a lease of %v would be swept up %v after its end", ttl, swept.Sub(end))
				}
				s.drop(sweeper)
			}
		}
		// Three classes, each serving for at least nine seconds.
		if most := 3 * hours * 3600 / 9; etcd.granted > most {
			t.Errorf("%d etcd leases in %d hours, want at most %d", etcd.granted, hours, most)
		}
		if len(s.living) > 20 {
			t.Errorf("%d etcd leases are remembered, most of which have ended", len(s.living))
		}
	})
}

func TestSweepers_OneForAHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &leases{takes: time.Second}
		s := newSweepers(etcd)
		ask := func(ctx context.Context) error {
			_, err := s.take(ctx, time.Second, time.Now().Add(time.Second))
			return err
		}
		herd := func(want error) {
			t.Helper()
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					if err := ask(t.Context()); !errors.Is(err, want) {
						t.Errorf("err = %v, want %v", err, want)
					}
				})
			}
			wg.Wait()
		}
		herd(nil)
		if etcd.granted != 1 {
			t.Errorf("%d etcd leases for a herd, want 1", etcd.granted)
		}

		// The whole herd shares a failure, and the next call sends a new request.
		time.Sleep(time.Minute)
		etcd.err = errors.New("etcd is away")
		start := time.Now()
		herd(etcd.err)
		if took := time.Since(start); took > time.Second {
			t.Errorf("a herd took %v to learn what one request has learnt in a second", took)
		}
		etcd.err = nil
		herd(nil)

		// A call that waits for another's request leaves with its own context.
		time.Sleep(time.Minute)
		first := make(chan error)
		go func() { first <- ask(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := ask(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err = %v, want the context's", err)
		}
		if err := <-first; err != nil {
			t.Errorf("the one who asked: %v", err)
		}
	})
}

func TestSweepers_SlowGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A slow grant is over sooner: it counts from before the request.
		etcd := &leases{takes: 6 * time.Second, least: 2}
		s := newSweepers(etcd)
		sweeper := take(t, s, 8*time.Second)
		if sweeper.end.After(etcd.ends[sweeper.id]) {
			t.Errorf("the etcd lease is taken to last %v longer than it does", sweeper.end.Sub(etcd.ends[sweeper.id]))
		}
		// Etcd may grant more than requested.
		etcd.takes, etcd.least = 0, 3600
		sweeper = take(t, s, time.Second)
		time.Sleep(30 * time.Minute)
		if take(t, s, time.Second) != sweeper {
			t.Error("another etcd lease, although the first lasts an hour")
		}
	})
}

// TestSweepers_GrantLostWithItsLeader has one request answered only when etcd gives it up: the
// other calls do not wait for that, and nothing of it is left.
func TestSweepers_GrantLostWithItsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &leases{takes: 7 * time.Second}
		s := newSweepers(etcd)
		var wg sync.WaitGroup
		takes := func(want time.Duration) {
			wg.Go(func() {
				start := time.Now()
				sweeper, err := s.take(t.Context(), time.Second, start.Add(time.Second))
				if err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took != want {
					t.Errorf("an etcd lease after %v, want %v", took, want)
				}
				s.drop(sweeper)
			})
		}
		takes(7 * time.Second)
		synctest.Wait()
		etcd.takes = time.Millisecond
		for range 100 {
			takes(grantPatience + time.Millisecond)
		}
		wg.Wait()
		if etcd.granted != 2 {
			t.Errorf("%d etcd leases, want the late one and one for all others", etcd.granted)
		}
		if s.close(); len(etcd.ends) > 0 {
			t.Errorf("Close has left %d etcd leases that no key hangs on", len(etcd.ends))
		}
	})
}

func TestSweepers_GrantPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		granting := &leases{asked: func() { panic("boom") }}
		l := over(t, &oneKey{}, granting)
		if _, err := l.TryAcquire(t.Context(), "key", time.Second); err == nil || !strings.Contains(err.Error(), "boom") {
			t.Errorf("TryAcquire: err = %v, want the panic", err)
		}
		granting.asked = nil
		if _, err := l.TryAcquire(t.Context(), "key", time.Second); err != nil {
			t.Errorf("TryAcquire after it: %v", err)
		}
	})
}

func TestSweepers_CloseRevokesTheIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &leases{}
		s := newSweepers(etcd)
		idle, older := take(t, s, time.Second), take(t, s, time.Minute)
		s.drop(idle)
		time.Sleep(15 * time.Second)
		held := take(t, s, time.Minute) // older still has a key, and no time left for new ones
		if older == held {
			t.Fatal("one etcd lease serves for longer than it may")
		}
		s.drop(older)
		s.drop(nil)
		s.close()
		if _, there := etcd.ends[held.id]; !there {
			t.Error("Close has revoked an etcd lease that a key hangs on")
		}
		if _, there := etcd.ends[older.id]; there {
			t.Error("Close has left an etcd lease that no key hangs on")
		}
		s.close()
		take(t, s, time.Second) // a closed Locker can still acquire
	})
}
