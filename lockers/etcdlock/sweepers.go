package etcdlock

import (
	"context"
	"errors"
	"math/bits"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// This file is the etcd leases of a Locker's keys, which sweep up after a dead process.

const (
	// sweepAfter is how much longer than its longest lease a sweeper lives, and nearly how long it takes new
	// keys. A dead process's key without waiters stays for at most sweepAfter and twice the lease.
	sweepAfter = 10 * time.Second

	// margin is how much longer than its keys a sweeper has to live: etcd's clock is not ours.
	margin = time.Second

	// grantPatience is how long other calls wait for one call's request. Etcd answers in milliseconds, or
	// after about 7 s if the request was lost with its leader. The next leader is there after at most two
	// election time-outs, 2 s by default. During an outage, a herd sends requests no more often than this.
	grantPatience = 2 * time.Second

	closeTimeout = 500 * time.Millisecond
)

// errNoGrant is the error for the other calls if the client did not return to the requesting call.
var errNoGrant = errors.New("the client has ended the request for an etcd lease")

// sweepers are the etcd leases of one Locker: one at a time for each power of two of a lease's
// seconds, so keys with short leases are not kept as long as keys with long ones.
type sweepers struct {
	client *clientv3.Client

	mu     sync.Mutex
	latest map[int]*sweeper      // guarded by mu; by class
	living map[*sweeper]struct{} // guarded by mu; granted, and not known to have ended
}

// A sweeper is an etcd lease.
type sweeper struct {
	class   int
	asked   time.Time     // the start of its request
	granted chan struct{} // closed when the fields below it are set
	err     error
	id      clientv3.LeaseID
	end     time.Time // not after etcd's own

	keys int // attached keys, and possible ones; guarded by sweepers.mu
}

// take returns a sweeper for a key whose lease lasts until end, at most ttl from now. The caller
// drops it when the key is no longer attached to it.
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
		// Another call has requested it, and this one shares its result, even a failure: a herd must not make
		// an outage worse. After grantPatience one of the waiting calls sends a new request.
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

func (s *sweeper) done() bool {
	select {
	case <-s.granted:
		return true
	default:
		return false
	}
}

// late reports whether its request is too old for other calls to wait.
func (s *sweeper) late() bool { return !s.done() && time.Since(s.asked) >= grantPatience }

// grant requests the lease from etcd. Its caller has put it into latest, and does not hold the mutex. The client
// repeats a request that members without a leader refuse, but gives up within an election.
func (s *sweepers) grant(ctx context.Context, g *sweeper) {
	life := time.Second<<g.class + sweepAfter
	var answer *clientv3.LeaseGrantResponse
	err := errNoGrant
	// Deferred: otherwise, if an interceptor of the client panics, all later calls wait for this lease.
	defer func() { s.answered(ctx, g, answer, err) }()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		answer, err = s.client.Grant(ctx, int64(life/time.Second))
		if !errors.Is(err, rpctypes.ErrNoLeader) || !waited(ctx, ctx, pause) {
			return
		}
	}
}

// answered records etcd's answer, or the failure. A late answer, after a newer request, serves the
// call that waited for it.
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
	// etcd may grant more than requested, and counts from later than we.
	g.id, g.end = answer.ID, g.asked.Add(time.Duration(answer.TTL)*time.Second)
	for old := range s.living {
		if old.end.Before(g.asked) {
			delete(s.living, old)
		}
	}
	s.living[g] = struct{}{}
}

// replace is take after etcd has answered that gone does not exist.
func (s *sweepers) replace(ctx context.Context, gone *sweeper, ttl time.Duration, end time.Time) (*sweeper, error) {
	s.mu.Lock()
	if s.latest[gone.class] == gone {
		delete(s.latest, gone.class)
	}
	delete(s.living, gone)
	s.mu.Unlock()
	return s.take(ctx, ttl, end)
}

// drop detaches a key from the sweeper, which may be nil.
func (s *sweepers) drop(dropped *sweeper) {
	if dropped == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	dropped.keys--
}

// close revokes the sweepers without keys. A revoke of the others would remove keys that may be held.
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
		wg.Go(func() { s.client.Revoke(ctx, g.id) }) // after a failure, the lease ends by itself
	}
	wg.Wait()
}
