package zklock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/zklock"
)

func lock(t *testing.T, l *zklock.Locker, key string, ttl time.Duration) driver.Lease {
	t.Helper()
	lease, err := l.Lock(t.Context(), key, ttl)
	if err != nil {
		t.Fatalf("Lock: %v", err)
	}
	return lease
}

// A line is the waiters behind a lease in a queue.
type line struct {
	server *testserver.Server
	key    string
	mu     sync.Mutex // guards turns
	turns  []int      // in the order of their turns
	leases chan driver.Lease
}

// join has the n-th waiter queue up, and returns when it has its place.
func (q *line) join(t *testing.T, ctx context.Context, l *zklock.Locker, n int, ttl time.Duration) <-chan error {
	t.Helper()
	before := q.server.Monitor("zk_watch_count")
	ended := make(chan error, 1)
	go func() {
		lease, err := l.Lock(ctx, q.key, ttl)
		if err == nil {
			q.mu.Lock()
			q.turns = append(q.turns, n)
			q.mu.Unlock()
			q.leases <- lease
		}
		ended <- err
	}()
	leasetest.Eventually(t, 5*time.Second, "it waits", func() bool { return q.server.Monitor("zk_watch_count") > before })
	return ended
}

func (q *line) next(t *testing.T) driver.Lease {
	t.Helper()
	select {
	case lease := <-q.leases:
		return lease
	case <-time.After(5 * time.Second):
		t.Fatal("nobody's turn comes")
		return nil
	}
}

func (q *line) want(t *testing.T, turns ...int) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	if !slices.Equal(q.turns, turns) {
		t.Errorf("turns came in the order %v, want %v", q.turns, turns)
	}
}

func newLine(t *testing.T) *line {
	return &line{server: testserver.ZooKeeper(t).OwnOrSkip(t), key: newKey(), leases: make(chan driver.Lease, 1)}
}

func TestLock_FirstComeFirstServed(t *testing.T) {
	t.Parallel()
	q := newLine(t)
	first, firstGate := newGated(t, q.server.Addr, 10*time.Second)
	l, atL := newGated(t, q.server.Addr, 10*time.Second)
	other := newLocker(t, q.server.Addr)
	holder := lock(t, first, q.key, time.Minute)
	const n = 20
	var all []int
	for i := range n {
		q.join(t, t.Context(), []*zklock.Locker{l, other}[i%2], i, time.Minute)
		all = append(all, i)
	}
	if got := q.server.Monitor("zk_watch_count"); got != n {
		t.Errorf("%d watches for %d waiters, want one each", got, n)
	}
	wakes := q.server.Monitor("zk_sum_node_deleted_watch_count")
	var last uint64
	for i := range n {
		// A release wakes one waiter, which looks at the line and begins. A herd would make
		// requests for every waiter.
		if got := atL.count(func() {
			leasetest.Release(t, holder)
			holder = q.next(t)
		}); got > 4 {
			t.Errorf("turn %d: %d requests of one process in which %d waited, want at most 4", i, got, (n-i)/2)
		}
		if got := q.server.Monitor("zk_watch_count"); got != n-1-i {
			t.Errorf("turn %d: %d watches, want %d: a release wakes one", i, got, n-1-i)
		}
		token := leasetest.Token(t, holder)
		if token <= last {
			t.Errorf("turn %d: token %d after %d, want a greater one", i, token, last)
		}
		last = token
	}
	q.want(t, all...)
	if got := q.server.Monitor("zk_sum_node_deleted_watch_count") - wakes; got != n {
		t.Errorf("%d watches were told of %d releases, want one each", got, n)
	}
	leasetest.Release(t, holder)
	if got := firstGate.count(func() { holder = lock(t, first, q.key, time.Minute) }); got > 5 {
		t.Errorf("%d requests after the queue was removed, want 5", got)
	}
	leasetest.MustBeLost(t, "a second Release", func() error { holder.Release(t.Context()); return holder.Release(t.Context()) }())
	if n := q.server.Monitor("zk_ephemerals_count"); n != 0 {
		t.Errorf("%d places are left", n)
	}
}

// TestLock_OneLeaves takes waiters out of the middle, by their context, their session's end and Close.
func TestLock_OneLeaves(t *testing.T) {
	t.Parallel()
	q := newLine(t)
	l, closed := newLocker(t, q.server.Addr), newLocker(t, q.server.Addr)
	mortal, g := newGated(t, q.server.Addr, 2*time.Second)
	holder := lock(t, l, q.key, time.Minute)
	ctx, leave := context.WithCancel(t.Context())
	byContext := q.join(t, ctx, l, 1, time.Minute)
	q.join(t, t.Context(), l, 2, time.Minute)
	bySession := q.join(t, t.Context(), mortal, 3, time.Minute)
	byClose := q.join(t, t.Context(), closed, 4, time.Minute)
	q.join(t, t.Context(), l, 5, time.Minute)
	places := func(n int) func() bool {
		return func() bool { return q.server.Monitor("zk_ephemerals_count") == n }
	}

	leave()
	if err := <-byContext; !errors.Is(err, context.Canceled) {
		t.Errorf("Lock of a cancelled context: err = %v, want context.Canceled", err)
	}
	leasetest.Eventually(t, 3*time.Second, "its place is gone", places(5))
	g.cut()
	leasetest.Eventually(t, 5*time.Second, "the place of the session that expires is gone", places(4))
	closed.Close()
	leasetest.MustBeNoAnswer(t, "Lock of a closed Locker", <-byClose)
	leasetest.Eventually(t, 3*time.Second, "its place is gone", places(3))
	g.open()
	leasetest.MustBeNoAnswer(t, "Lock whose session has expired", <-bySession)

	for range 2 {
		leasetest.Release(t, holder)
		holder = q.next(t)
	}
	q.want(t, 2, 5)
	leasetest.Release(t, holder)
	leasetest.Eventually(t, 3*time.Second, "nothing is left", places(0))
}

// TestLock_HolderFallsSilent has two living holders fall silent: each is skipped after its length.
func TestLock_HolderFallsSilent(t *testing.T) {
	t.Parallel()
	q := newLine(t)
	const ttl = 2 * time.Second // longer than it takes to join
	dead, deadGate := newGated(t, q.server.Addr, 30*time.Second)
	paused, pausedGate := newGated(t, q.server.Addr, 30*time.Second)
	l := newLocker(t, q.server.Addr)
	end := time.Now().Add(ttl)
	silent := lock(t, dead, q.key, ttl)
	passed := q.join(t, t.Context(), paused, 1, ttl)
	q.join(t, t.Context(), l, 2, time.Minute)
	deadGate.cut()
	pausedGate.cut()
	// The next waiter is paused, so the waiter behind it finds out.
	lease := q.next(t)
	took := time.Since(end)
	t.Logf("two silent holders of %v each were skipped %v after the first one's end", ttl, took)
	if took < ttl {
		t.Errorf("the second turn was over after %v, want not before its end", took)
	}
	if limit := ttl + 2400*time.Millisecond; took > limit {
		t.Errorf("two silent holders were skipped after %v, want within %v", took, limit)
	}
	q.want(t, 2)

	deadGate.open()
	pausedGate.open()
	connected(t, dead)
	leasetest.MustBeLost(t, "Renew of a lease that was taken away", silent.Renew(t.Context(), ttl))
	leasetest.MustBeNoAnswer(t, "Lock of one whose place was taken away", <-passed)
	leasetest.Renew(t, lease, time.Minute)
	leasetest.Release(t, lease)
}

// TestLock_RenewedIsNotSilent keeps a lease for several times its length.
func TestLock_RenewedIsNotSilent(t *testing.T) {
	t.Parallel()
	q := newLine(t)
	a, b := newLocker(t, q.server.Addr), newLocker(t, q.server.Addr)
	const ttl = 3 * time.Second
	lease := lock(t, a, q.key, ttl)
	q.join(t, t.Context(), b, 1, ttl)
	for range 5 {
		time.Sleep(ttl / 3)
		leasetest.Renew(t, lease, ttl)
	}
	q.want(t)
	leasetest.Release(t, lease)
	q.next(t).Release(t.Context())
}

func TestLock_AndTryAcquireAreTwoLocks(t *testing.T) {
	server := shared(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	lock(t, a, key, time.Minute)
	leasetest.Acquire(t, b, key, time.Minute)
	if _, err := b.Lock(within(t, 200*time.Millisecond), key, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lock of a held lease: err = %v, want the context's", err)
	}
	if _, err := b.Lock(t.Context(), key, 0); err == nil || errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Lock for no time: err = %v, want one that says so", err)
	}
}
