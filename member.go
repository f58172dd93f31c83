package bellwether

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/chain"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/gather"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/slots"
	"golang.org/x/sync/semaphore"
)

// This file is a batch and its members: the flights that a call of GetMany or a batch window begins together.

type batch[V any] struct {
	engine *engine[V]
	single binder[V]    // the load of each flight, if user is nil
	user   batchLoad[V] // the common load
	places *semaphore.Weighted
	loads  *gather.Group[*member[V], loadResult[V]]

	// complete is closed when all flights have begun. Before then members belongs to the goroutine
	// that begins them, or to the holder of window.mu; afterwards it does not change.
	complete chan struct{}
	members  []*member[V]
	read     func(driver.BatchGetter) // reads the store for the members

	mu          sync.Mutex // guards the fields below, and the members' fields that say so
	unread      int        // members that wait for the batch's read, and 1 until complete
	stopReading func()     // ends the batch's read; nil without a member
}

type loadResult[V any] struct {
	product[V]
	err error
}

// A member is a flight's place in its batch. Methods that flights call do nothing on a nil member.
type member[V any] struct {
	*batch[V]
	key        string
	order      int           // among the keys of the batch
	runFlight  func()        // runs the flight; nil if the key had a flight already
	askers     *chain.Flight // the flight's
	prefetched *storeReply   // see firstReply
	budget     *gate.Budget  // the flight's

	gathered *gather.Member[*member[V], loadResult[V]] // the member's place in the common loads
	start    atomic.Pointer[items.Item[V]]             // the item from which the latest load starts

	// Guarded by batch.mu.
	waits   bool // for the batch's read: the flight has callers and has not started
	started bool
}

func (m *member[V]) bind() loader[V] {
	if m.user == nil {
		return m.single.bind()
	}
	return func(ctx context.Context, a *attempt[V]) (product[V], error) {
		m.start.Store(a.present)
		return m.loadTogether(ctx)
	}
}

func (m *member[V]) loadTogether(ctx context.Context) (product[V], error) {
	result, err := m.gathered.Load(ctx)
	if err != nil {
		return result.product, err
	}
	return result.product, result.err
}

// firstReply takes the batch's reply for the flight's first look, nil if there is none.
func (m *member[V]) firstReply() *storeReply {
	if m == nil {
		return nil
	}
	there := m.prefetched
	m.prefetched = nil
	return there
}

// first reports whether the new flight is alone or the first of its batch. A batch counts once among the
// flights that wait for the store: more keys than MaxQueued would otherwise turn all other callers away.
func (m *member[V]) first() bool { return m == nil || len(m.members) == 0 }

// callersLeft says that the flight's callers have left before its election. The batch's read ends when no
// unread member has callers: under overload such reads would make the batches behind them too late.
func (m *member[V]) callersLeft() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waits {
		m.waits = false
		m.forgo()
	}
}

// forgo counts one reason for the read less, and ends the read after the last. b.mu is held.
func (b *batch[V]) forgo() {
	if b.unread--; b.unread == 0 {
		b.stopReading()
	}
}

// held says that another process holds the key: the common load does not wait for this member.
func (m *member[V]) held() {
	if m != nil {
		m.gathered.Held()
	}
}

func (m *member[V]) end() {
	if m != nil {
		m.gathered.End()
		m.places.Release(1)
	}
}

func (f *flight[V]) slots() slots.Source {
	if f.member == nil {
		return f.engine.slots
	}
	return f.member.gathered
}
