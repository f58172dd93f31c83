package bellwether

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
)

// This file is the looks that flights share. Keys that expire together have flights that look at
// nearly the same time. The waiting flight whose look is due first makes the other looks too, in one
// request to a driver.BatchGetter. Looks that wait for a turn at the store become one request too.

type lookout struct {
	store driver.BatchGetter // nil: each flight looks by itself

	mu     sync.Mutex     // guards the fields below
	plans  list.List      // of *plannedLook, without the looks under way
	queued []*plannedLook // looks that wait for a turn at the store
}

type plannedLook struct {
	key    string
	budget *gate.Budget
	from   instant          // from then on another flight may make the look
	due    <-chan time.Time // when the flight itself makes the look
	reply  chan *storeReply // another flight's reply, nil if silent; has room for one; without a channel no other flight makes the look
	place  *list.Element    // guarded by lookout.mu; nil once the look is under way
}

// planLook plans the flight's next look, instead of its last plan: after the pause, or with another
// flight's look in the last quarter of the pause.
func (r *run[V]) planLook(pause time.Duration) *plannedLook {
	e := r.engine
	r.dropLook()
	p := &plannedLook{
		key: r.key, budget: r.budget, from: e.clock.Now() + pause - pause/4,
		due: time.After(pause),
	}
	r.planned = p
	// A flight without enough time for a shared request looks alone.
	if e.lookout.store != nil && !r.storeDown && r.budget.Left() > e.sharedPatience() {
		p.reply = make(chan *storeReply, 1)
		e.lookout.add(p)
	}
	return p
}

func (r *run[V]) dropLook() {
	if p := r.planned; p != nil {
		r.planned = nil
		r.engine.lookout.remove(p)
	}
}

// sharedPatience is the most time that a shared request takes from a flight's budget. The other half
// of EngineTimeout is for the flight's own look.
func (e *engine[V]) sharedPatience() time.Duration { return e.EngineTimeout / 2 }

func (l *lookout) add(p *plannedLook) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.place = l.plans.PushBack(p)
}

func (l *lookout) remove(p *plannedLook) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.place == nil {
		return false
	}
	l.plans.Remove(p.place)
	p.place = nil
	return true
}

// take removes and returns the looks that may be made now. The request has room for one more.
func (l *lookout) take(now instant) (taken []*plannedLook) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for place := l.plans.Front(); place != nil && len(taken) < maxTogether-1; {
		p := place.Value.(*plannedLook)
		place = place.Next()
		if p.from <= now {
			l.plans.Remove(p.place)
			p.place = nil
			taken = append(taken, p)
		}
	}
	return taken
}

// lookTogether makes the due look and other flights' looks. It reports whether the flight has ended.
func (r *run[V]) lookTogether(ctx context.Context, p *plannedLook) bool {
	e := r.engine
	if p.reply == nil {
		return r.lookAnew(ctx)
	}
	if !e.lookout.remove(p) {
		select {
		case there := <-p.reply: // another flight makes the look
			return r.lookAt(ctx, there)
		case <-ctx.Done():
			return false
		}
	}
	others := e.lookout.take(e.clock.Now())
	if len(others) == 0 {
		return r.lookAnew(ctx)
	}
	e.enter(r.key, phaseLooking)
	others = append(others, p)
	e.lookForAll(ctx, r.key, func() []*plannedLook { return others })
	return r.lookAt(ctx, <-p.reply)
}

// lookAt is lookAnew with a reply. After a nil reply, or a reply from before an invalidation, it looks.
func (r *run[V]) lookAt(ctx context.Context, there *storeReply) bool {
	if there == nil || !r.lookBack(there.asked) {
		return r.lookAnew(ctx)
	}
	r.looking.prefetched = there
	return r.look(ctx)
}

// looksTogether reports whether the look joins the looks that wait for a turn. With a free turn the
// look is made at once. Without an Elector, the look is a flight's only call of the store in turn.
// Under overload the turns then have to pass over the oldest looks, because their callers leave next.
func (r *run[V]) looksTogether() bool {
	e := r.engine
	return e.Engine != nil && e.lookout.store != nil && r.budget.Left() > e.sharedPatience() && e.store.Crowded()
}

// readTogether is read in one request with the other looks that wait for a turn. The first of them
// waits for the turn, and reads for all that have come meanwhile.
func (r *run[V]) readTogether(ctx context.Context) storeReply {
	e := r.engine
	p := &plannedLook{key: r.key, budget: r.budget, reply: make(chan *storeReply, 1)}
	if e.lookout.queue(p) {
		e.lookForAll(ctx, r.key, e.lookout.takeQueued)
	}
	select {
	case there := <-p.reply:
		if there != nil {
			return *there
		}
	case <-ctx.Done(): // read returns the error
		e.lookout.unqueue(p) // the key's next flight may queue a look: the keys of a request are distinct
	}
	return r.read(ctx, r.budget)
}

// queue queues a look. It reports whether the caller makes a request: each has room for maxTogether.
func (l *lookout) queue(p *plannedLook) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queued = append(l.queued, p)
	return len(l.queued)%maxTogether == 1
}

// unqueue removes a look that no request has taken. The next request may then find none.
func (l *lookout) unqueue(p *plannedLook) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.queued, p); i >= 0 {
		l.queued = slices.Delete(l.queued, i, i+1)
	}
}

func (l *lookout) takeQueued() []*plannedLook {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.queued), maxTogether)
	taken := l.queued[:n:n]
	l.queued = slices.Clone(l.queued[n:])
	return taken
}

// lookForAll reads the store, in the request's turn, for all looks that take returns, and replies to each.
// The gate judges it as a request for key. ctx's end does not count: the other flights need their replies.
func (e *engine[V]) lookForAll(ctx context.Context, key string, take func() []*plannedLook) {
	take = sync.OnceValue(take)
	defer func() { // also after a panic or Goexit of the adapter, and without a turn
		for _, p := range take() {
			select {
			case p.reply <- nil:
			default: // the look has its reply
			}
		}
	}()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(e.open, cancel)()
	asking, end := e.store.WhileUp(ctx)
	defer end()
	named := func() (names []string) {
		for _, p := range take() {
			names = append(names, e.engineKey(p.key))
		}
		return names
	}
	budget := gate.NewBudget(e.sharedPatience())
	answered, _ := e.readMany(asking, e.lookout.store, key, named, budget, func(i int, reply *storeReply) {
		take()[i].reply <- reply
	})
	for i, p := range take() {
		if !answered[i] { // the flight's own look reports the reason
			p.budget.Spend(e.sharedPatience() - budget.Left())
		}
	}
}
