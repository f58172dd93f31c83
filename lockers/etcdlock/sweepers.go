package etcdlock

import (
	"context"
	"errors"
	"math/bits"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// This file holds the etcd leases on which a Locker's keys hang. They only
// sweep up what a dead process has left behind: when a lease ends is announced
// in its key. So one etcd lease serves many keys, and none is ever kept alive.

const (
	// sweepAfter is how much longer than the lease it is granted for a sweeper
	// lives. For nearly that long it serves new keys; and no longer than that
	// and twice the lease, the key of a dead process stays where nobody asks
	// for it.
	sweepAfter = 10 * time.Second

	// margin is by how much a sweeper has to outlive the keys that are hung on
	// it: etcd's clock is not ours.
	margin = time.Second

	// grantPatience is how long others wait for one call's request. Etcd answers
	// in milliseconds, or after some 7 s where the request was lost with its
	// leader; the next leader is there after two election time-outs at most,
	// 2 s by default. Asked sooner, it would be lost again; and where etcd is
	// away, a herd asks no more often than this.
	grantPatience = 2 * time.Second

	// closeTimeout bounds Close.
	closeTimeout = 500 * time.Millisecond
)

// errNoGrant is what the others get where the client has not returned to the call
// that asked.
var errNoGrant = errors.New("the client has ended the request for an etcd lease")

// sweepers are the etcd leases of one Locker. There is one at a time for each
// power of two of seconds up to which leases last, so that keys with short
// leases are not kept for as long as those with long ones.
type sweepers struct {
	client *clientv3.Client

	mu     sync.Mutex
	latest map[int]*sweeper      // guarded by mu; by class
	living map[*sweeper]struct{} // guarded by mu; granted, and not known to have ended
}

// A sweeper is an etcd lease.
type sweeper struct {
	class   int
	asked   time.Time     // when its request began
	granted chan struct{} // closed when the fields below it are set
	err     error
	id      clientv3.LeaseID
	end     time.Time // not after etcd's own

	keys int // that hang on it, or may; guarded by sweepers.mu
}

// take returns a sweeper for a key whose lease lasts until end, which is at
// most ttl from now. The caller drops it when the key hangs on it no longer.
func (s *sweepers) take(ctx context.Context, ttl time.Duration, end time.Time) (*sweeper, error) {
	class := bits.Len64(uint64((ttl - 1) / time.Second)) // ttl is at most 1<<class seconds
	for {
		s.mu.Lock()
		latest := s.latest[class]
		if latest == nil || latest.late() || latest.done() && latest.end.Before(end.Add(margin)) {
			latest = &sweeper{class: class, asked: time.Now(), granted: make(chan struct{})}
			if s.latest == nil {
				s.latest, s.living = make(map[int]*sweeper), make(map[*sweeper]struct{})
			}
			s.latest[class] = latest
			s.mu.Unlock()
			s.grant(ctx, latest)
			s.mu.Lock()
		}
		if latest.done() && latest.err == nil && !latest.end.Before(end.Add(margin)) {
			latest.keys++
			s.mu.Unlock()
			return latest, nil
		}
		s.mu.Unlock()
		// Another call is asking for it, and this one has what that gets, a
		// failure included: a herd must not make an outage worse. When that takes
		// too long, one of those who wait asks anew.
		select {
		case <-latest.granted:
			if latest.err != nil {
				return nil, latest.err
			}
		case <-time.After(time.Until(latest.asked.Add(grantPatience))):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// done reports whether the attempt to have it granted has ended.
func (s *sweeper) done() bool {
	select {
	case <-s.granted:
		return true
	default:
		return false
	}
}

// late reports whether it has been asked for too long ago for others to wait.
func (s *sweeper) late() bool { return !s.done() && time.Since(s.asked) >= grantPatience }

// grant asks etcd for the lease. Only the caller that has put it into latest
// calls it, without the mutex.
func (s *sweepers) grant(ctx context.Context, g *sweeper) {
	life := time.Second<<g.class + sweepAfter
	var answer *clientv3.LeaseGrantResponse
	err := errNoGrant
	// Deferred, or where an interceptor of the client's panics, all who need this
	// lease would wait for it from then on.
	defer func() { s.answered(ctx, g, answer, err) }()
	answer, err = s.client.Grant(ctx, int64(life/time.Second))
}

// answered takes in what etcd has answered, or why it has not. A late answer,
// when another has been asked for meanwhile, serves the call that waited for it.
func (s *sweepers) answered(ctx context.Context, g *sweeper, answer *clientv3.LeaseGrantResponse, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(g.granted)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		g.err = err
		if s.latest[g.class] == g {
			delete(s.latest, g.class)
		}
		return
	}
	// etcd may give more than it was asked for, and counts from later than we.
	g.id, g.end = answer.ID, g.asked.Add(time.Duration(answer.TTL)*time.Second)
	for old := range s.living {
		if old.end.Before(g.asked) {
			delete(s.living, old)
		}
	}
	s.living[g] = struct{}{}
}

// replace is take after etcd has said that it does not know gone.
func (s *sweepers) replace(ctx context.Context, gone *sweeper, ttl time.Duration, end time.Time) (*sweeper, error) {
	s.mu.Lock()
	if s.latest[gone.class] == gone {
		delete(s.latest, gone.class)
	}
	delete(s.living, gone)
	s.mu.Unlock()
	return s.take(ctx, ttl, end)
}

// drop says that a key no longer hangs on the sweeper, which may be nil.
func (s *sweepers) drop(dropped *sweeper) {
	if dropped == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	dropped.keys--
}

// close revokes the sweepers without keys. A key that hangs on the others is
// somebody's, or may be: revoking its sweeper would take it away.
func (s *sweepers) close() {
	s.mu.Lock()
	var idle []*sweeper
	for g := range s.living {
		if g.keys > 0 {
			continue
		}
		idle = append(idle, g)
		delete(s.living, g)
		if s.latest[g.class] == g {
			delete(s.latest, g.class)
		}
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, g := range idle {
		wg.Go(func() { s.client.Revoke(ctx, g.id) }) // if it fails, the lease ends by itself
	}
	wg.Wait()
}
