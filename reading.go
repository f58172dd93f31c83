package bellwether

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
)

// This file reads the store for a flight: alone, with the log of sweeps, or with other flights' looks.

func (k *storeKey[V]) read(ctx context.Context, budget *gate.Budget) storeReply {
	e := k.engine
	asked := e.clock.Now()
	entry, err := gate.AskInTurn(ctx, e.store, k.key, budget, func(ctx context.Context) (driver.Entry, error) {
		return e.Store.Get(ctx, e.engineKey(k.key))
	})
	return storeReply{entry, asked, e.clock.Now(), err}
}

// persistently returns a function that reads the store, and repeats a read without an answer: one lost packet is
// not an outage. A dead engine fails again, and opens its breaker or uses up the budget.
func (r *run[V]) persistently(read func(context.Context) storeReply) func(context.Context) storeReply {
	return func(ctx context.Context) storeReply {
		there := read(ctx)
		for try := 1; try < gate.Trips && there.silent() && ctx.Err() == nil && r.budget.Left() > 0 && r.engine.store.Retries(); try++ {
			r.noAnswer(ctx, "reading", there.err)
			there = r.read(ctx, r.budget)
		}
		return there
	}
}

// readWithLog reads the key, and the log of sweeps if due. The two are one request where the store can.
func (r *run[V]) readWithLog(ctx context.Context) storeReply {
	if there := r.followLogAhead(ctx); there != nil {
		return *there
	}
	if r.sharesRead() {
		return r.readInQueue(ctx)
	}
	return r.read(ctx, r.budget)
}

// replyAtHand returns a function in place of these reads, for a flight whose key has been read with others.
func (r *run[V]) replyAtHand(there *storeReply) func(context.Context) storeReply {
	return func(ctx context.Context) storeReply {
		r.engine.sweeps.Follow(ctx, r.budget, r.logAge())
		return *there
	}
}

// logAge is the age at which a look reads the log of sweeps again. It is 0 after an earlier election:
// a store that has lost the key during the flight's load may have lost the log too.
func (r *run[V]) logAge() time.Duration {
	if r.leading.again {
		return 0
	}
	return r.engine.NearTTL / 2
}

// followLogAhead follows the log for a flight before it reads its key. A store that answers for many keys gets
// both keys in one call, and the result is the answer for the flight's key. Otherwise the result is nil.
func (r *run[V]) followLogAhead(ctx context.Context) (key *storeReply) {
	e := r.engine
	if e.many == nil {
		e.sweeps.Follow(ctx, r.budget, r.logAge())
		return nil
	}
	turn := e.sweeps.Turn(ctx, r.budget, r.logAge())
	if turn == nil {
		return nil
	}
	defer turn.End()
	var log *storeReply
	names := []string{e.ownName(sweeplog.Key), e.engineKey(r.key)}
	err := e.readMany(ctx, sweeplog.Key, func() []string { return names }, r.budget, func(i int, reply *storeReply) {
		switch {
		case i == 1:
			key = reply
		case reply.err == nil:
			// At once: other keys must not wait for the server of this key.
			turn.Took(ctx, r.budget, reply.entry, nil)
		default:
			log = reply
		}
	})
	if !turn.Over() {
		if log == nil {
			// The key's answer does not count without the log's.
			log, key = &storeReply{err: err}, nil
		}
		turn.Took(ctx, r.budget, log.entry, log.err)
	}
	return key
}

// sharesRead reports whether the look joins the looks that wait for a turn. With a free turn the
// look is made at once. Without an Elector, the look is a flight's only call of the store in turn.
// Under overload the turns then have to pass over the oldest looks, because their callers leave next.
func (r *run[V]) sharesRead() bool {
	e := r.engine
	return e.Engine != nil && e.many != nil && r.budget.Left() > e.sharedPatience() && e.store.Crowded()
}

// readInQueue is read in one request with the other looks that wait for a turn. The first of them
// waits for the turn, and reads for all that have come meanwhile.
func (r *run[V]) readInQueue(ctx context.Context) storeReply {
	e := r.engine
	p := &plannedLook{key: r.key, budget: r.budget, reply: make(chan *storeReply, 1)}
	if e.lookout.enqueue(p) {
		e.lookForAll(ctx, r.key, 1, e.sharedPatience(), e.lookout.takeQueued)
	}
	select {
	case there := <-p.reply:
		if !there.silent() {
			return *there
		}
	case <-ctx.Done(): // read returns the error
		e.lookout.end(p) // the key's next flight may queue a look: the keys of a request are distinct
	}
	return r.read(ctx, r.budget)
}

// sharedPatience is the most time that a shared request takes from a flight's budget. The other half
// of EngineTimeout is for the flight's own look.
func (e *engine[V]) sharedPatience() time.Duration { return e.EngineTimeout / 2 }

// lookForAll reads the store, in the request's turn, for all looks that take returns, and replies to each. Without
// an answer it asks again, tries times in all. The time without an answer costs each flight as much of its budget. The
// gate judges the request as for key. A flight's end does not count, since the others need their replies. Once all
// flights have left, the request ends: it would hold a turn for no flight.
func (e *engine[V]) lookForAll(ctx context.Context, key string, tries int, patience time.Duration, take func() []*plannedLook) {
	rest, silence := sync.OnceValue(take), ErrUnavailable
	budget := gate.NewBudget(patience)
	defer func() { // also after a Goexit of the adapter
		for _, p := range e.lookout.present(rest()) {
			p.budget.Spend(patience - budget.Left())
			p.reply <- &storeReply{err: silence}
		}
	}()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(e.open, cancel)()
	for ; ; tries-- {
		looks, lost := rest, patience-budget.Left()
		named := func() (names []string) {
			for _, p := range looks() {
				names = append(names, e.engineKey(p.key))
			}
			e.lookout.send(looks(), cancel)
			return names
		}
		err := e.readMany(ctx, key, named, budget, func(i int, reply *storeReply) {
			p := looks()[i]
			p.budget.Spend(lost)
			p.reply <- reply
			e.lookout.end(p)
		})
		left := e.lookout.present(looks())
		rest, silence = func() []*plannedLook { return left }, err
		if len(left) == 0 || tries == 1 || budget.Left() <= 0 || !e.store.Retries() || ctx.Err() != nil {
			return
		}
		key = left[0].key
		e.countNoAnswer(key, &keyError{"reading, with others,", key, err})
	}
}

// readMany reads many keys in one request, which the gate judges as a request for key. It calls named for
// their names in the store when the request's turn has come, and take for each answer at once, one call at a
// time. The error is the reason why other keys have no answer. Each answer begins the time limit anew: a store that
// goes on answering has all the time.
func (e *engine[V]) readMany(ctx context.Context, key string, named func() []string, budget *gate.Budget, take func(i int, reply *storeReply)) error {
	var (
		mu       sync.Mutex // guards the fields below, until over
		silence  = errors.New("no answer for the key")
		names    []string
		answered = map[int]bool{}
		over     bool
		began    instant
		last     instant // the last answer
		heard    func()
	)
	each := func(i int, entry driver.Entry, err error) {
		if failure := fault.Guard(func() error { fault.Inquire(err); return nil }); failure != nil {
			err = failure // each may run on a goroutine of the adapter
		}
		came := e.clock.Now()
		mu.Lock()
		defer mu.Unlock()
		switch {
		case over || answered[i]:
		case err != nil && !fault.IsAnswer(err):
			silence = err
		default:
			answered[i], last = true, max(last, came)
			heard()
			take(i, &storeReply{entry, began, came, err})
		}
	}
	err := gate.AskInPieces(ctx, e.store, key, budget, func(ctx context.Context, piece func()) error {
		defer func() { // also after a panic: later answers of the adapter are ignored
			mu.Lock()
			defer mu.Unlock()
			over = true
		}()
		mu.Lock()
		names = named()
		heard, began = piece, e.clock.Now()
		last = began
		mu.Unlock()
		if len(names) == 0 {
			return context.Canceled // the flights have left: neither an answer nor silence
		}
		e.many.GetMany(ctx, names, each)
		mu.Lock()
		defer mu.Unlock()
		if len(answered) == 0 {
			return silence
		}
		return nil // a server of the store may be silent, but the store is up
	})
	if err == nil && len(answered) < len(names) {
		budget.Spend(e.clock.Now() - last)
		err = fmt.Errorf("%w: %w", ErrUnavailable, silence)
	}
	return err
}
