package bellwether

import (
	"context"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/lookout"
)

// This file is an election in the same request as a look (driver.Elector).

// electsAtOnce reports whether one request can look, elect and claim. This request is a write.
func (r *run) electsAtOnce() bool {
	e := r.engine
	return e.Engine != nil && !r.storeDown && e.writes.Sound(r.key)
}

// readAndStand is read for an Elector. The flight stands in the same request, unless the entry is fresh and
// later than the entries that it has refused. The log has its own request: a request for both cannot hold an
// election. The election has half of the flight's budget, and after silence a read has the rest: an engine
// that takes no writes may still have a fresh entry.
func (r *run) readAndStand(ctx context.Context) lookout.Reply {
	e := r.engine
	e.sweeps.Follow(ctx, r.budget, r.logAge())
	if r.present == nil {
		r.present, _ = e.near.Get(r.key) // the lease's length depends on the item
	}
	asked := e.clock.Now()
	r.standing.asked, r.standing.length = asked, r.leaseLength()
	won, err := gate.AskInTurn(ctx, e.writes, r.key, r.budget.Half(), func(ctx context.Context) (*driver.Election, error) {
		won, err := e.Engine.Elect(ctx, e.engineKey(r.key), r.looking.unfitEpoch, r.standing.length)
		return &won, err // by pointer: copies in the frames below would make the stack grow
	})
	came := e.clock.Now()
	if err != nil {
		if ctx.Err() != nil {
			return lookout.Reply{Asked: asked, Err: err}
		}
		r.noAnswer(ctx, "taking the lease of", err)
		r.standing.ballot = &ballot{}
		return r.persist(ctx, r.read(ctx, r.budget))
	}
	if answers := won.Entry.Fresh() && won.Entry.Epoch > r.looking.unfitEpoch; !answers || won.Lease != nil {
		// An answer without lease and holder makes a ballot too, which counts as silence. With a nil
		// ballot the flight would look again without end.
		r.standing.ballot = &ballot{won.Lease, won.Epoch, won.Held}
	}
	if won.Entry.Kind == driver.KindNone && won.Entry.Failures == 0 {
		err = ErrNotFound
	}
	return lookout.Reply{Entry: won.Entry, Asked: asked, Came: came, Err: err}
}

// declineElection releases the ballot's lease: the flight has ended, or loads alone.
func (r *run) declineElection(ctx context.Context) {
	b := r.standing.ballot
	r.standing.ballot = nil
	if b != nil && b.lease != nil {
		r.leading.lease = b.lease
		r.releaseBehind(ctx)
	}
}
