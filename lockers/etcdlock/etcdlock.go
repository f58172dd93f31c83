package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
)

// This file is the election: acquire, take over, renew, release.

const (
	// maxTTL is the longest lease, well below etcd's limit.
	maxTTL = 100 * 365 * 24 * time.Hour

	// detachedTimeout bounds a request after its caller has left. It is longer than the time-out of a running
	// etcd, 5 s and two election time-outs, 7 s by default. After a longer pause the request may still be
	// carried out.
	detachedTimeout = 10 * time.Second

	// maxUndos is the number of attempts to undo an acquire whose caller has left.
	maxUndos = 5

	// maxLearners is how often a request is sent again after a learner's refusal.
	maxLearners = 8

	// The pauses before a request is sent again after the refusal of a member without a leader. They double.
	firstPause, lastPause = time.Millisecond, 100 * time.Millisecond

	// reconnectPause is the least time between two hastened attempts to connect.
	reconnectPause = 500 * time.Millisecond
)

// Errors of a request given up before the end of its caller's context. A context's error would look
// like the caller's own.
var (
	errNoAnswer     = fmt.Errorf("no answer within %v", detachedTimeout)
	errClientClosed = errors.New("the client is closed")
)

// errLearner is the refusal of a member without a vote.
var errLearner = rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner)

// A Locker is a [driver.Locker] and a [driver.Watcher] on etcd. Lockers are safe for concurrent
// use. Create a Locker with [New], and close it.
type Locker struct {
	// Prefix begins the name of every key. Default: "bellwether/leases/". Set Prefix before first use.
	Prefix string

	client   *clientv3.Client
	sweepers sweepers
	seen     adapter.Observations[adapter.Announcement]
	watches  watches

	created  time.Time
	hastened atomic.Int64 // the last hastened attempt, as time since created
}

var (
	_ driver.Locker  = (*Locker)(nil)
	_ driver.Watcher = (*Locker)(nil)
	_ driver.Tokener = (*lease)(nil)
)

// New returns a Locker over client. The caller closes client. New sends no request, so etcd may be
// absent. It panics without a client.
func New(client *clientv3.Client) *Locker {
	if client == nil {
		panic(errors.New("etcdlock: New needs a client, such as clientv3.New makes"))
	}
	l := &Locker{Prefix: "bellwether/leases/", client: client, created: time.Now()}
	l.hastened.Store(int64(-reconnectPause))
	l.sweepers.client = client
	l.watches.init(client, &l.seen)
	return l
}

// Close ends every watch and revokes the Locker's etcd leases without keys, within half a second; others end
// by themselves. Afterwards only Watch returns an error. Close always returns nil, and may be called again.
func (l *Locker) Close() error {
	l.watches.close()
	l.sweepers.close()
	return nil
}

// TryAcquire implements [driver.Locker]. It costs 1 round trip, 2 for a takeover, and 1 more about every ten
// seconds for an etcd lease. A HeldError's Until counts from this Locker's first sight of the unchanged
// lease, so a long-dead holder costs at most its length.
func (l *Locker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("etcdlock: acquire %.100q: ttl %v is not positive", key, ttl)
	}
	ttl = min(ttl, maxTTL)
	mine := &lease{
		locker: l,
		name:   l.Prefix + adapter.Name(key),
		token:  adapter.Token(),
		end:    time.Now().Add(ttl),
	}
	// The request goes on when ctx ends. A cancelled request could still be on its way through
	// raft, where the undo could overtake it: the lease would be taken after it was freed.
	return adapter.Await(ctx, func() (driver.Lease, error) {
		detached, cancel := l.detached(ctx)
		defer cancel()
		l.reconnect()
		if err := l.acquire(detached, ctx, key, mine, ttl); err != nil {
			return nil, mine.wrap("acquire", err)
		}
		return mine, nil
	}, func(_ driver.Lease, err error) {
		// The caller has left. Other errors than ErrHeld leave open whether the lease was taken.
		if !mine.asked.Load() || errors.Is(err, driver.ErrHeld) {
			return
		}
		// A paused etcd may take the lease later, so an undo without an answer is repeated.
		for range maxUndos {
			ctx, cancel := l.detached(ctx)
			err := mine.free(ctx)
			if unavailable(err) {
				<-ctx.Done()
			}
			cancel()
			if !unavailable(err) && !errors.Is(err, errNoAnswer) {
				return
			}
		}
	})
}

func (l *Locker) acquire(ctx, caller context.Context, key string, mine *lease, ttl time.Duration) error {
	announced := adapter.Announcement{Token: mine.token, Length: ttl}
	s, err := l.sweepers.take(ctx, ttl, mine.end)
	if err != nil {
		return err
	}
	free := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(mine.name), "=", 0)}
	claim := free
	for {
		put := clientv3.OpPut(mine.name, string(announced.Encode()), clientv3.WithLease(s.id))
		won, holder, err := mine.commit(ctx, caller, claim, put)
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			// Revoked by another client, or lost with etcd's data.
			if s, err = l.sweepers.replace(ctx, s, ttl, mine.end); err != nil {
				return err
			}
			continue
		case err != nil:
			// The key may exist, so it stays counted on the sweeper.
			return err
		case won != 0:
			mine.taken(won, s)
			l.seen.Forget(mine.name)
			return nil
		case holder.kv == nil:
			// Released between our look and our takeover.
			claim = free
			continue
		}
		held, ok := adapter.DecodeAnnouncement(holder.kv.Value)
		if !ok {
			l.sweepers.drop(s)
			return fmt.Errorf("%w: the key is not a lease", driver.ErrCorrupt)
		}
		if held.Token == mine.token {
			// The request was carried out, and its reply was lost.
			mine.taken(holder.kv.ModRevision, s)
			return nil
		}
		until := l.seen.Until(mine.name, held, held.Length)
		if time.Now().Before(until) {
			l.sweepers.drop(s)
			return &driver.HeldError{Key: key, Until: until, Seen: seenLease{l, held.Token, holder.revision}}
		}
		// A new lease of another holder has its end ahead, so the loop ends.
		claim = mine.unchanged(held.Token, holder.kv.ModRevision)
	}
}

// reconnect hastens the client's next attempt to connect: after a long outage the client, and each call with
// it, waits up to two minutes between two attempts by default.
func (l *Locker) reconnect() {
	conn := l.client.ActiveConnection()
	if conn == nil || conn.GetState() != connectivity.TransientFailure {
		return
	}
	last, now := l.hastened.Load(), int64(time.Since(l.created))
	if now-last >= int64(reconnectPause) && l.hastened.CompareAndSwap(last, now) {
		conn.ResetConnectBackoff()
	}
}

// detached returns a context with the values of ctx that does not end with ctx. It ends with the client: the
// client's calls would go on for seconds. Without a leader, as when it is cut off from its cluster, a member
// refuses requests with this context at once. Other requests wait there for a leader.
func (l *Locker) detached(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx = clientv3.WithRequireLeader(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeoutCause(ctx, detachedTimeout, errNoAnswer)
	ctx, fail := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.client.Ctx(), func() { fail(errClientClosed) })
	return ctx, func() {
		stop()
		fail(nil)
		cancel()
	}
}

// A lease is the holder's side of a key.
type lease struct {
	locker *Locker
	name   string // of the key
	token  string

	// born is the revision of the transaction that took the lease, set before the lease is shared.
	born int64

	// asked reports, for the undo of an acquire, whether a request for the lease may have been carried out.
	asked atomic.Bool

	mu       sync.Mutex // guards the fields below
	revision int64      // of the key, as far as this process knows
	end      time.Time  // of the lease, as its holder counts
	renewals uint64     // begun so far
	sweeper  *sweeper   // the etcd lease of the key
}

// taken records that this lease has the key since revision.
func (l *lease) taken(revision int64, s *sweeper) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.born, l.revision, l.sweeper = revision, revision, s
}

// Token implements [driver.Tokener], with the revision of the transaction that took the lease.
func (l *lease) Token() uint64 { return uint64(l.born) }

// Renew implements [driver.Lease], with 1 round trip.
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if ttl <= 0 {
		return fmt.Errorf("etcdlock: renew %s: ttl %v is not positive", l.name, ttl)
	}
	ttl = min(ttl, maxTTL)
	end := time.Now().Add(ttl)
	if l.over() {
		// An observer may be about to take the lease over: after its end, no process has to respect it.
		return l.Release(ctx)
	}
	return adapter.Do(ctx, func() error {
		detached, cancel := l.locker.detached(ctx)
		defer cancel()
		l.locker.reconnect()
		return l.wrap("renew", l.renew(detached, ctx, ttl, end))
	})
}

// renew goes on after its caller's context ends: other calls may wait for its sweeper, and a late
// answer moves the lease's end.
func (l *lease) renew(ctx, caller context.Context, ttl time.Duration, end time.Time) error {
	l.mu.Lock()
	// No two renewals have the same announcement: to an observer, an equal announcement is an unchanged
	// lease. The attempts of one renewal share theirs.
	l.renewals++
	announced := adapter.Announcement{Token: l.token, Length: ttl, Renewals: l.renewals}
	l.mu.Unlock()
	s, err := l.locker.sweepers.take(ctx, ttl, end)
	if err != nil {
		return err
	}
	for {
		put := clientv3.OpPut(l.name, string(announced.Encode()), clientv3.WithLease(s.id))
		revision, err := l.change(ctx, caller, put)
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			if s, err = l.locker.sweepers.replace(ctx, s, ttl, end); err != nil {
				return err
			}
			continue
		case errors.Is(err, driver.ErrLeaseLost):
			l.locker.sweepers.drop(s)
			return err
		case err != nil:
			l.mayEnd(end, revision)
			return err
		}
		l.mu.Lock()
		// Of two concurrent renewals the last one in etcd counts: observers read its length.
		last := s
		if revision >= l.revision {
			l.revision, l.end = revision, end
			l.sweeper, last = s, l.sweeper
		}
		l.mu.Unlock()
		l.locker.sweepers.drop(last)
		return nil
	}
}

// mayEnd ends the lease no later than a failed renewal of that revision: if it was carried out, observers read its
// length. A later revision known here is another renewal's.
func (l *lease) mayEnd(end time.Time, revision int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revision <= revision && end.Before(l.end) {
		l.end = end
	}
}

// Release implements [driver.Lease], with 1 round trip. For an expired lease it clears the key, so
// no process has to observe it, and returns ErrLeaseLost.
func (l *lease) Release(ctx context.Context) error {
	over := l.over()
	err := adapter.Do(ctx, func() error {
		ctx, cancel := l.locker.detached(ctx)
		defer cancel()
		l.locker.reconnect()
		return l.wrap("release", l.free(ctx))
	})
	if err == nil && over {
		err = driver.ErrLeaseLost
	}
	return err
}

func (l *lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !time.Now().Before(l.end)
}

func (l *lease) free(ctx context.Context) error {
	_, err := l.change(ctx, ctx, clientv3.OpDelete(l.name))
	if err == nil || errors.Is(err, driver.ErrLeaseLost) {
		l.mu.Lock()
		s := l.sweeper
		l.sweeper = nil
		l.mu.Unlock()
		l.locker.sweepers.drop(s)
	}
	return err
}

// change carries op out if this lease has the key, and returns the revision of op. Otherwise the
// error is ErrLeaseLost. With a request's error it returns the revision that op was to replace.
//
// An unexpected revision alone does not mean a lost lease: another call may have renewed it, or an earlier
// one whose reply was lost. So the loop tries again. It ends, because each round is such a success.
//
// Nothing is sent once the caller's context has ended, checked after the revision is known. Without the
// check: a renewal to 5 s waits for a new leader, or for its sweeper, until its caller gives up. The next
// one, to 60 s, succeeds. Now the first uses the second's revision, observers count 5 s, and the holder finds
// its lease at a past end. A renewal after the check changes the revision.
func (l *lease) change(ctx, caller context.Context, op clientv3.Op) (int64, error) {
	l.mu.Lock()
	revision := l.revision
	l.mu.Unlock()
	for {
		if caller.Err() != nil {
			return 0, context.Cause(caller)
		}
		done, holder, err := l.commit(ctx, caller, l.unchanged(l.token, revision), op)
		switch {
		case err != nil:
			return revision, err
		case done != 0:
			return done, nil
		case holder.kv == nil:
			return 0, driver.ErrLeaseLost
		}
		if held, ok := adapter.DecodeAnnouncement(holder.kv.Value); !ok || held.Token != l.token {
			return 0, driver.ErrLeaseLost
		}
		revision = holder.kv.ModRevision
	}
}

// unchanged compares the key with the lease of token at revision. A revision alone is not enough: an
// etcd that has lost its data gives the revision again, to a stranger's lease.
func (l *lease) unchanged(token string, revision int64) []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(l.name), "=", revision),
		// All announcements of token, and of no other token, are between these two values.
		clientv3.Compare(clientv3.Value(l.name), ">", token+" "),
		clientv3.Compare(clientv3.Value(l.name), "<", token+"!"),
	}
}

// A look is a key as found by a transaction.
type look struct {
	kv       *mvccpb.KeyValue // nil if the key did not exist
	revision int64            // of etcd as a whole, then
}

// commit carries op out if the comparisons hold and returns the revision; else it returns 0 and the present
// key. Etcd's client does not repeat a request that may have been carried out. commit repeats it, once, after
// a lost connection or leader: the second attempt finds the first one's key under this lease's token, or does
// the work. A learner and a member without a leader refuse each transaction, and the client gives its next request to
// another member. Nothing is repeated for a caller that has left: it could announce an end that has passed.
func (l *lease) commit(ctx, caller context.Context, cmps []clientv3.Cmp, op clientv3.Op) (done int64, found look, err error) {
	repeated, learners, pause := false, 0, firstPause
	for {
		before := l.asked.Swap(true) // the client may panic after etcd has carried the request out
		resp, err := l.locker.client.Txn(ctx).If(cmps...).Then(op).Else(clientv3.OpGet(l.name)).Commit()
		learner, noLeader := errors.Is(err, errLearner), errors.Is(err, rpctypes.ErrNoLeader)
		if learner || noLeader {
			l.asked.Store(before)
		}
		switch {
		case err == nil && resp.Succeeded:
			return resp.Header.Revision, look{}, nil
		case err == nil:
			found.revision = resp.Header.Revision
			if kvs := resp.Responses[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
				found.kv = kvs[0]
			}
			return 0, found, nil
		case ctx.Err() != nil:
			return 0, look{}, context.Cause(ctx)
		case caller.Err() != nil:
			return 0, look{}, err
		case learner && learners < maxLearners:
			learners++
		case noLeader:
			if !waited(ctx, caller, pause) {
				return 0, look{}, err
			}
			pause = min(2*pause, lastPause)
		case unavailable(err) && !repeated:
			repeated = true
		default:
			return 0, look{}, err
		}
	}
}

// waited reports whether both contexts have lasted for the pause.
func waited(ctx, caller context.Context, pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-caller.Done():
	case <-ctx.Done():
	}
	return false
}

// unavailable reports whether err leaves the outcome open, and another attempt may be answered.
func unavailable(err error) bool {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Code() == codes.Unavailable
	}
	return status.Code(err) == codes.Unavailable
}

// wrap adds the operation and a remedy to an engine's error. Errors of the contract pass unchanged.
func (l *lease) wrap(doing string, err error) error {
	if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLeaseLost) {
		return err
	}
	if todo := l.locker.remedy(err); todo != "" {
		err = fmt.Errorf("%s: %w", todo, err)
	}
	return fmt.Errorf("etcdlock: %s %s: %w", doing, l.name, err)
}

// remedy returns how to end a refusal, or "".
func (l *Locker) remedy(err error) string {
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return "etcd keeps its history until it is compacted: turn auto-compaction on, compact, defragment and disarm the alarm"
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return "etcd asks for a user: give the client a certificate, or Username and Password"
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Sprintf("the client's user needs a role with readwrite permission for the prefix %q", l.Prefix)
	case errors.Is(err, errLearner):
		return "an etcd member without a vote takes no lease: promote it, or leave it out of the client's Endpoints"
	}
	return ""
}
