// Package locallock is the [driver.Locker] within one process: a table of
// leases under a mutex. It elects among the goroutines that share one *Locker,
// it is the reference that lockers/lockertest is written against, and it shows
// the contract without an engine in the way.
//
// A lease lives in the table until it is released or has expired. There is no
// goroutine and no timer: whoever comes next clears what has expired, so the
// table never holds more than the leases that were live at the last call. The
// reverse of the coin is that nobody is told of an expiry when it happens: a
// watcher's channel closes at a release at once, and after an expiry only when
// somebody uses the Locker. Watchers keep a timer for HeldError.Until, as with
// any engine.
package locallock

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// A Locker is a [driver.Locker] and a [driver.Watcher] for those who
// share it. It is safe for concurrent use. Create one with [New].
type Locker struct {
	mu     sync.Mutex        // guards everything below and the fields of every lease there
	leases map[string]*lease // by key; never an expired one after purge
	queue  queue             // the same leases, soonest end first
	tokens uint64            // how many leases there were
}

var (
	_ driver.Locker  = (*Locker)(nil)
	_ driver.Watcher = (*Locker)(nil)
	_ driver.Tokener = (*lease)(nil)
)

// New returns a Locker on which nothing is held.
func New() *Locker {
	return &Locker{leases: make(map[string]*lease)}
}

// TryAcquire implements [driver.Locker]. The error's Until is exact, and
// its Seen is the channel that the present lease closes when it ends. A ttl
// that is not positive is an error. The lease is a [driver.Tokener].
func (l *Locker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if ttl <= 0 {
		return nil, fmt.Errorf("locallock: acquire %q: ttl %v is not positive", key, ttl)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.purge()
	if other := l.leases[key]; other != nil {
		return nil, &driver.HeldError{Key: key, Until: other.end, Seen: other.ended}
	}
	l.tokens++
	mine := &lease{locker: l, key: key, token: l.tokens, end: now.Add(ttl), ended: make(chan struct{})}
	l.leases[key] = mine
	heap.Push(&l.queue, mine)
	return mine, nil
}

// Watch implements [driver.Watcher]. It returns the channel of the very
// lease that held reports, so no end can be missed, and keeps nothing that
// would have to be cleared when ctx ends.
func (l *Locker) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ended, ok := held.Seen.(chan struct{})
	if !ok {
		return nil, fmt.Errorf("locallock: watch %q: the lease was not seen by a locallock", held.Key)
	}
	return ended, nil
}

// purge removes the expired leases and returns the time as of which it did.
// The caller holds mu.
//
// Each lease is pushed once and popped once, so that the work is paid for by
// the call that took the lease, whatever the size of the table.
func (l *Locker) purge() time.Time {
	now := time.Now()
	for len(l.queue) > 0 && !now.Before(l.queue[0].end) {
		l.remove(l.queue[0])
	}
	return now
}

// remove takes a lease out of the table and tells its watchers. The caller
// holds mu.
func (l *Locker) remove(gone *lease) {
	delete(l.leases, gone.key)
	heap.Remove(&l.queue, gone.index)
	close(gone.ended)
}

// A lease is an entry of the table and the holder's handle in one: it is held
// exactly as long as the table leads to it.
type lease struct {
	locker *Locker
	key    string
	token  uint64
	ended  chan struct{} // closed when the lease leaves the table
	end    time.Time     // guarded by locker.mu
	index  int           // in locker.queue, guarded by locker.mu
}

// Token implements [driver.Tokener]. It counts the leases of its Locker, on
// whatever key, so tokens rise for as long as the Locker lives. They mean
// nothing beside another Locker's, such as that of the process's next start.
func (l *lease) Token() uint64 { return l.token }

// Renew implements [driver.Lease].
func (l *lease) Renew(ctx context.Context, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if ttl <= 0 {
		return fmt.Errorf("locallock: renew %q: ttl %v is not positive", l.key, ttl)
	}
	l.locker.mu.Lock()
	defer l.locker.mu.Unlock()
	now := l.locker.purge()
	if l.locker.leases[l.key] != l {
		return driver.ErrLeaseLost
	}
	l.end = now.Add(ttl)
	heap.Fix(&l.locker.queue, l.index)
	return nil
}

// Release implements [driver.Lease].
func (l *lease) Release(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.locker.mu.Lock()
	defer l.locker.mu.Unlock()
	l.locker.purge()
	if l.locker.leases[l.key] != l {
		return driver.ErrLeaseLost
	}
	l.locker.remove(l)
	return nil
}

// A queue is a heap of leases, soonest end first.
type queue []*lease

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].end.Before(q[j].end) }

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *queue) Push(x any) {
	l := x.(*lease)
	l.index = len(*q)
	*q = append(*q, l)
}

func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = nil // let it be collected
	*q = old[:len(old)-1]
	return last
}
