package bellwether

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
)

// This file is the looks that waiting flights share. Keys that expire together have flights that wait
// together, and their looks are due at nearly the same time. The flight whose look is due first makes
// the other flights' looks too, in one request, if the store can answer for many keys.

// A lookout has the next looks of the flights that wait.
type lookout struct {
	store driver.BatchGetter // nil: each flight looks by itself

	mu    sync.Mutex // guards plans
	plans list.List  // of *plannedLook: those that no flight makes yet
}

// A plannedLook is the next look of one flight.
type plannedLook struct {
	key    string
	budget *gate.Budget
	from   instant          // from then on another flight may make it
	due    <-chan time.Time // when the flight makes it
	reply  chan *storeReply // the reply that another flight has had, nil if it had none; has room for one. No other flight makes the look if there is no channel.
	place  *list.Element    // guarded by lookout.mu: nil once a flight makes it
}

// planLook plans the flight's next look, in the place of the one that it has planned before. The look
// comes after the pause, or with another flight's look in the last quarter of the pause.
func (r *run[V]) planLook(pause time.Duration) *plannedLook {
	e := r.engine
	r.dropLook()
	p := &plannedLook{
		key: r.key, budget: r.budget, from: e.clock.Now() + pause - pause/4,
		due: time.After(pause),
	}
	r.planned = p
	// A flight that has lost time to engines has not enough left for a request of others.
	if e.lookout.store != nil && !r.storeDown && r.budget.Left() > e.sharedPatience() {
		p.reply = make(chan *storeReply, 1)
		e.lookout.add(p)
	}
	return p
}

// dropLook gives up the look that the flight has planned.
func (r *run[V]) dropLook() {
	if p := r.planned; p != nil {
		r.planned = nil
		r.engine.lookout.remove(p)
	}
}

// sharedPatience is what the flights of a request lose at most if the store does not answer. Each has
// the other half of an EngineTimeout for a look by itself.
func (e *engine[V]) sharedPatience() time.Duration { return e.EngineTimeout / 2 }

func (l *lookout) add(p *plannedLook) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.place = l.plans.PushBack(p)
}

// remove takes a look off the planned looks. It returns false if it is not among them.
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

// take takes the looks that may be made now off the planned looks, as many as go into one request
// with one more.
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

// lookTogether makes the planned look, which is due, and the looks of other flights that may be made
// now. It reports whether the flight has ended.
func (r *run[V]) lookTogether(ctx context.Context, p *plannedLook) bool {
	e := r.engine
	if p.reply == nil {
		return r.lookAnew(ctx)
	}
	if !e.lookout.remove(p) {
		select {
		case there := <-p.reply: // another flight makes it
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
	e.lookForAll(ctx, append(others, p))
	return r.lookAt(ctx, <-p.reply)
}

// lookAt is lookAnew with a reply for the flight, nil if there was no answer. A reply from before an
// invalidation is none.
func (r *run[V]) lookAt(ctx context.Context, there *storeReply) bool {
	if there == nil || !r.lookBack(there.asked) {
		return r.lookAnew(ctx)
	}
	r.looking.ahead = there
	return r.look(ctx)
}

// lookForAll reads the store for all these flights, and gives each its reply. The values of ctx count,
// and its end does not: the other flights need their replies.
func (e *engine[V]) lookForAll(ctx context.Context, plans []*plannedLook) {
	defer func() { // whatever the store's adapter does
		for _, p := range plans {
			select {
			case p.reply <- nil:
			default: // it has its reply
			}
		}
	}()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(e.open, cancel)()
	asking, end := e.store.WhileUp(ctx)
	defer end()
	keys := make([]string, len(plans))
	for i, p := range plans {
		keys[i] = p.key
	}
	budget := gate.NewBudget(e.sharedPatience())
	answered, _ := e.readMany(asking, e.lookout.store, keys, budget, func(i int, reply *storeReply) { plans[i].reply <- reply })
	for i, p := range plans {
		if !answered[i] { // and the flight's own look tells why
			p.budget.Spend(e.sharedPatience() - budget.Left())
		}
	}
}
