package bellwether

import (
	"context"

	"github.com/bellwether-go/bellwether/internal/gather"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/lookout"
	"github.com/bellwether-go/bellwether/internal/slots"
	"golang.org/x/sync/semaphore"
)

// This file is a batch and its members: the flights that a call of GetMany or a batch window begins together.

// maxTogether is the most keys in one load, as in one request to the store.
const maxTogether = lookout.Most

type batch struct {
	engine *engine
	single binder              // the load of each flight, if user is nil
	user   commonLoader        // the common load
	places *semaphore.Weighted // of the call of GetMany; each flight frees a place at its end; nil: no call waits for places
	loads  *gather.Group

	// complete is closed when all flights have begun. Before then looks belongs to the goroutine that begins
	// them, or to the holder of window.mu; afterwards it does not change.
	complete chan struct{}
	looks    []*lookout.Look // the first looks of the flights
}

// A commonLoader is a load of many keys in one call.
type commonLoader interface {
	binder
	load(ctx context.Context, attempts []*attempt) (commonResult, error)
}

// A commonResult is what a common load has returned beside its error err: it returns the result of one of the load's
// attempts. batchErr is the BatchError in err, or nil.
type commonResult func(a *attempt, batchErr *BatchError, err error) (items.Product, error)

// A member is a flight's place in its batch. Methods that flights call do nothing on a nil member.
type member struct {
	*batch
	look     *lookout.Look  // the flight's first look
	gathered *gather.Member // nil: the key had a flight already
}

func (m *member) bind() loader {
	if m.user == nil {
		return m.single.bind()
	}
	return func(ctx context.Context, a *attempt) (items.Product, error) { return a.seat.Load(ctx) }
}

// firstReply waits until all flights of the batch have begun, and for the reply to the flight's first look. It
// returns nil after ctx's end, and if each flight looks by itself.
func (m *member) firstReply(ctx context.Context) *lookout.Reply {
	select {
	case <-m.complete:
	case <-ctx.Done():
		return nil
	}
	if !m.engine.lookout.Shares() {
		return nil
	}
	select {
	case there := <-m.look.Reply():
		return there
	case <-ctx.Done():
		return nil
	}
}

// callersLeft says that the flight's callers have left before its election: its first look is for no caller.
func (m *member) callersLeft() {
	if m != nil {
		m.engine.lookout.End(m.look)
	}
}

// held says that another process holds the key: the common load does not wait for this member.
func (m *member) held() {
	if m != nil {
		m.gathered.Held()
	}
}

func (m *member) end() {
	if m != nil {
		m.gathered.End()
		if m.places != nil {
			m.places.Release(1)
		}
	}
}

func (f *flight) slots() slots.Source {
	if f.member == nil {
		return f.engine.slots
	}
	return f.member.gathered
}

// demanded returns the flight's demand for a slot. The flights of a batch share one.
func (f *flight) demanded() *slots.Demand {
	if f.member != nil {
		return &f.member.loads.Demand
	}
	return &f.demand
}
