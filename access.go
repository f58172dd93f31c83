package bellwether

import (
	"context"
	"errors"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file keeps and finds values without a flight: a variant, a bypassing request's response, an answer
// without a rebuild. A witness shows whether an invalidation, with no flight to end, came before.

// put keeps a value, which has w's age now, without a flight. If over is not nil, put keeps the value
// only in place of the item over: otherwise another item, or an invalidation, has come later.
func (e *engine) put(ctx context.Context, key string, v any, w items.Windows, position uint64, over *items.Item) {
	now := e.clock.Now()
	d, there := e.access(key, gate.NewBudget(e.EngineTimeout)).draft(ctx)
	defer d.End()
	switch {
	case over == nil:
	case e.Store == nil || d.storeDown:
		if !e.HoldsNear(key, over) {
			return
		}
	case there.Epoch != over.Epoch || there.Epoch == 0: // epoch 0 is never an entry's in a store
		return
	}
	d.position = position
	d.keep(ctx, v, w, now)
}

// An access is work on a key without a flight, with what it knows of the key's entry.
type access struct {
	storeKey
	storeDown bool // the last request had no answer
	mark      mark // of the entry found
}

// A draft is a value in the making without a flight. A later invalidation fences its epoch off.
type draft struct {
	*access
	present  *items.Item
	began    instant
	epoch    uint64
	position uint64 // the log's position, see items.Item
	witness  *witness
	own      uint64 // invalidations of the key by the draft's own request, which do not void the draft
}

func (e *engine) access(key string, budget *gate.Budget) *access {
	return &access{storeKey: storeKey{key, e, budget}}
}

func (a *access) draft(ctx context.Context) (_ *draft, there driver.Entry) {
	d := &draft{access: a, position: a.engine.sweeps.Log().Position()}
	d.witness = a.engine.beginWitness(a.key)
	begun := false
	defer func() {
		if !begun { // the store's adapter has called Goexit, or the client's context has failed
			d.End()
		}
	}()
	d.present, d.began = a.engine.near.Get(a.key)
	if !a.storeDown {
		there, d.epoch = a.claimEpoch(ctx)
		a.storeDown = d.epoch == 0
	}
	begun = true
	return d, there
}

// Forgive lets the draft outlive one invalidation of the key, by its own request.
func (d *draft) Forgive() { d.own++ }

func (d *draft) End() { d.engine.endWitness(d.key, d.witness) }

// keep keeps the value, which had w's age at now.
func (d *draft) keep(ctx context.Context, v any, w items.Windows, now instant) {
	e := d.engine
	it := &items.Item{Kind: driver.KindValue, Value: v, Epoch: d.epoch, Position: d.position, TrustedUntil: e.trustedUntil(now)}
	it.Lifetime = e.lifetimeOf(now, w, d.key, d.epoch)
	written := commitTaken
	switch {
	case e.Store == nil:
	case d.storeDown:
		written = commitNotTaken
	case it.End() <= now:
		// Past its windows the value only ends the present entry: no process waits for a KindUnshared entry.
		if errors.Is(d.write(ctx, outgoing{Entry: driver.Entry{Epoch: d.epoch}}, nil), driver.ErrFenced) {
			written = commitFenced
		}
	case d.mark.unshared != 0:
		it.Epoch = d.mark.unshared // as under a flight's load: a look that finds the mark confirms the item
		written = d.stillUnshared(ctx, d.mark.unshared)
	default:
		written = d.commitBy(ctx, it, nil)
	}
	switch written {
	case commitFenced:
		return
	case commitNotTaken:
		e.setBeside(it, d.present, d.began, d.mark.unshared)
	}
	// After an invalidation the near tier does not take the value. Only the store may have it.
	e.keepNear(d.key, it, func() bool { return d.witness.generation == d.own })
}

// keepNear puts an item without a flight into the near tier if still, called under the lock, returns true.
func (e *engine) keepNear(key string, it *items.Item, still func() bool) {
	it.Weigh(key, e.size) // before the lock: Options.Size is user code
	s := e.shards.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if it = e.afterSweeps(key, it); it != nil && e.open.Err() == nil && still() {
		e.near.Advance(key, it)
	}
}

// Find returns the key's item in the near tier or the store, nil if there is none. A silent store cannot void the near
// item, also not one that is no longer trusted.
func (a *access) Find(ctx context.Context) *items.Item {
	e := a.engine
	it, now := e.near.Get(a.key)
	if it != nil && now < it.TrustedUntil || e.Store == nil || e.open.Err() != nil {
		return it
	}
	e.sweeps.Follow(ctx, a.budget, e.NearTTL/2) // perhaps no flight has followed the log of late
	there := a.read(ctx, a.budget)
	switch {
	case there.Silent():
		a.storeDown = true
		return it
	case there.Err != nil:
		return nil
	}
	it, a.mark = a.decode(there, it)
	return it
}
