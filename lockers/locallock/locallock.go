// Package locallock is a [driver.Locker] within one process: a table of leases under a mutex.
//
// It elects among the goroutines that share one *Locker, and is the reference implementation for
// lockers/lockertest. There is no goroutine and no timer: each call clears the expired leases. A watcher's
// channel therefore closes at once after a release, but after an expiry only at the next call of the Locker.
package locallock

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// A Locker is a [driver.Locker] and a [driver.Watcher] for the goroutines that share it. Lockers
// are safe for concurrent use. Create a Locker with [New].
type Locker struct {
	mu     sync.Mutex        // guards everything below and the fields of every lease there
	leases map[string]*lease // by key; no expired leases after purge
	queue  queue             // the same leases, soonest end first
	tokens uint64            // the number of leases so far
}

var (
	_ driver.Locker  = (*Locker)(nil)
	_ driver.Watcher = (*Locker)(nil)
	_ driver.Tokener = (*lease)(nil)
)

// New returns a Locker without leases.
func New() *Locker {
	return &Locker{leases: make(map[string]*lease)}
}

// TryAcquire implements [driver.Locker]. The lease is a [driver.Tokener]. A HeldError's Until is exact, and
// its Seen is a channel that closes when the lease ends.
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

// Watch implements [driver.Watcher], with the channel of the very lease behind held: it misses no end.
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

// purge removes the expired leases as of the returned time, each once in its life. The caller holds mu.
func (l *Locker) purge() time.Time {
	now := time.Now()
	for len(l.queue) > 0 && !now.Before(l.queue[0].end) {
		l.remove(l.queue[0])
	}
	return now
}

// remove takes a lease out of the table and tells its watchers. The caller holds mu.
func (l *Locker) remove(gone *lease) {
	delete(l.leases, gone.key)
	heap.Remove(&l.queue, gone.index)
	close(gone.ended)
}

// A lease is an entry of the table and the holder's handle in one: held while it is in the table.
type lease struct {
	locker *Locker
	key    string
	token  uint64
	ended  chan struct{} // closed when the lease leaves the table
	end    time.Time     // guarded by locker.mu
	index  int           // in locker.queue, guarded by locker.mu
}

// Token implements [driver.Tokener]. It counts the Locker's leases, on all keys, so tokens rise while
// the Locker lives. Tokens of different Lockers have no order, even across restarts of a process.
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
	old[len(old)-1] = nil // for the garbage collector
	*q = old[:len(old)-1]
	return last
}
