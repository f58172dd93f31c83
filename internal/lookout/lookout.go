// Package lookout makes the looks of many flights one request to the store.
//
// A flight looks when it reads its key. Keys that expire together have flights that look at nearly the same time, and
// a request for a hundred keys costs little more than a request for one. Three kinds of looks go together: the planned
// looks of flights that wait, the looks that wait for their turn at the store, and the first looks of a batch.
//
// lookout.go has the looks and who goes with whom, request.go the request.
package lookout

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/gate"
)

// Most is the most keys in one request.
const Most = 1000

// Config is a lookout's way to the store and to the cache.
type Config struct {
	// Store answers for many keys. If it is nil, each flight looks by itself.
	Store driver.BatchGetter
	// Reads stands before Store.
	Reads *gate.Gate
	// Name is a key as the store knows it.
	Name func(key string) string
	// Timeout is the cache's EngineTimeout. A shared request has a half of it, and the flight's own look the other half.
	// The request for the first looks of a batch has the whole.
	Timeout time.Duration
	// Now is the cache's clock.
	Now func() durations.Instant
	// Open ends with the cache. Behind runs a function on a goroutine that the cache waits for, unless Open has ended.
	Open   context.Context
	Behind func(func())
	// Silent reports a request without an answer for a key, before its repetition.
	Silent func(key string, err error)
}

// A Lookout knows the looks of a process. It is safe for concurrent use.
type Lookout struct {
	Config

	mu     sync.Mutex        // guards the fields below
	plans  list.List         // of *Look: the planned looks that are not due yet
	queued []*Look           // looks that wait for a turn at the store
	next   durations.Instant // when timer runs makeDue
	timer  *time.Timer       // nil without plans: a synctest bubble keeps no timer of another
}

// New returns a lookout without looks.
func New(c Config) *Lookout { return &Lookout{Config: c} }

// A Look is a flight's look.
type Look struct {
	key    string
	budget *gate.Budget // the flight's time for silent engines
	reply  chan *Reply  // has room for the one reply

	// Lookout.mu guards the fields below.
	from, due durations.Instant // of a planned look: when another flight's request may make it, and when it is due
	place     *list.Element     // in plans; nil for other looks
	request   *request          // under way, nil if none
	over      bool              // replied to or ended
}

// New returns a look for [Lookout.Ask].
func (l *Lookout) New(key string, budget *gate.Budget) *Look {
	return &Look{key: key, budget: budget, reply: make(chan *Reply, 1)}
}

// Reply gets one reply: nil if the flight has to look by itself, and silence if a request had no answer for the key.
func (p *Look) Reply() <-chan *Reply { return p.reply }

// Shares reports whether looks can go together.
func (l *Lookout) Shares() bool { return l.Store != nil }

// SharesWithin reports whether the budget is enough for a request with others.
func (l *Lookout) SharesWithin(budget *gate.Budget) bool {
	return l.Shares() && budget.Left() > l.patience()
}

func (l *Lookout) patience() time.Duration { return l.Timeout / 2 }

// Plan plans a look after the pause, in place of the flight's last plan, which may be nil. In the last quarter of the
// pause another flight's request may make the look. A look that is under way stays.
func (l *Lookout) Plan(last *Look, key string, budget *gate.Budget, pause time.Duration) *Look {
	now := l.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case last == nil || last.over:
		last = l.New(key, budget)
		last.place = l.plans.PushBack(last)
	case last.place == nil:
		return last // under way
	}
	last.from, last.due = durations.Add(now, pause-pause/4), durations.Add(now, pause)
	l.wakeAt(last.due, now)
	return last
}

// wakeAt lets the timer fire at due or earlier. mu is held.
func (l *Lookout) wakeAt(due, now durations.Instant) {
	switch {
	case l.timer == nil:
		l.timer = time.AfterFunc(due-now, func() { l.Behind(l.makeDue) })
	case due < l.next:
		l.timer.Reset(due - now)
	default:
		return
	}
	l.next = due
}

// stop ends the timer, if there is one. mu is held.
func (l *Lookout) stop() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

func (l *Lookout) makeDue() {
	if together := l.takeDue(); len(together) > 0 {
		l.ask(l.Open, together[0].key, 1, l.patience(), func() []*Look { return l.stillPresent(together) })
	}
}

// takeDue takes the due looks out of the plans, and returns those that go together, with others that may be made now. A
// look that goes alone is left to its flight.
func (l *Lookout) takeDue() (together []*Look) {
	now := l.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stop() // a plan may have set another timer since this one fired
	due := false
	for place := l.plans.Front(); place != nil; {
		p := place.Value.(*Look)
		place = place.Next()
		switch shares := l.SharesWithin(p.budget); {
		case shares && p.from <= now:
			together, due = append(together, p), due || p.due <= now
		case p.due <= now:
			l.leave(p)
		}
	}
	switch together = together[:min(len(together), Most)]; {
	case !due: // the timer was of a plan that has been changed
		together = nil
	case len(together) == 1:
		l.leave(together[0])
		together = nil
	}
	for _, p := range together {
		l.unplan(p)
	}
	for place := l.plans.Front(); place != nil; place = place.Next() {
		l.wakeAt(place.Value.(*Look).due, now)
	}
	return together
}

// leave leaves a planned look to its flight. mu is held.
func (l *Lookout) leave(p *Look) {
	l.end(p)
	p.reply <- nil
}

func (l *Lookout) unplan(p *Look) {
	l.plans.Remove(p.place)
	p.place = nil
}

// End ends a look: its flight waits no more. The look may be nil.
func (l *Lookout) End(p *Look) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(p)
}

func (l *Lookout) end(p *Look) {
	if p == nil || p.over {
		return
	}
	p.over = true
	if p.place != nil {
		l.unplan(p)
		if l.plans.Len() == 0 {
			l.stop()
		}
	}
	if r := p.request; r != nil {
		if r.waiting--; r.waiting == 0 {
			r.cancel()
		}
	}
}

// InQueue makes a look together with the other looks that wait for a turn. The first of them waits for the turn, and
// asks for all that have come meanwhile. The result is nil after ctx's end, and if there is no answer for the key.
func (l *Lookout) InQueue(ctx context.Context, key string, budget *gate.Budget) *Reply {
	p := l.New(key, budget)
	if l.enqueue(p) {
		l.ask(ctx, key, 1, l.patience(), l.takeQueued)
	}
	select {
	case there := <-p.reply:
		if !there.Silent() {
			return there
		}
	case <-ctx.Done():
		l.End(p) // the key's next flight may queue a look: the keys of a request are distinct
	}
	return nil
}

// enqueue queues a look. It reports whether the caller makes a request: each request has room for Most.
func (l *Lookout) enqueue(p *Look) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queued = append(l.queued, p)
	return len(l.queued)%Most == 1
}

func (l *Lookout) takeQueued() []*Look {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.queued), Most)
	taken := l.queued[:n:n]
	l.queued = slices.Clone(l.queued[n:])
	return present(taken)
}

// Ask makes the looks of a batch that have not ended. An engine that is silent is asked again.
func (l *Lookout) Ask(ctx context.Context, looks []*Look) {
	waiting := func() []*Look { return l.stillPresent(looks) }
	if now := waiting(); len(now) > 0 {
		l.ask(ctx, now[0].key, gate.Trips, l.Timeout, waiting)
	}
}

// present returns the looks that are not over. Lookout.mu is held.
func present(looks []*Look) []*Look {
	return slices.DeleteFunc(slices.Clone(looks), func(p *Look) bool { return p.over })
}
