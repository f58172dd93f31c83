package bellwether

import (
	"context"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/slots"
	"github.com/bellwether-go/bellwether/internal/stack"
)

// This file runs the user's load: on a goroutine of its own, with a context
// that is nobody's request, and so that neither a panic nor a Goexit nor a load
// that never returns gets past it.

// loadKey is the context key of the *loadContext.
type loadKey struct{}

// A loadContext is the context of one run of the user's load.
type loadContext struct {
	context.Context
	makes     []*askers // those of the flights that it loads for
	depth     int       // how many loads wait for each other, this one included
	freshness freshnessSlot
	slot      slots.Load
}

// newLoadContext is the context of a load for these flights. It is part of the load
// that has begun them, if that still runs.
func newLoadContext(ctx context.Context, of *slots.Slots, makes []*askers) *loadContext {
	c := &loadContext{Context: ctx, makes: makes, depth: 1}
	c.slot.Begin(of)
	if within := runningLoad(ctx); within != nil {
		c.depth = within.depth + 1
	}
	return c
}

// Value returns the loadContext itself for loadKey.
func (c *loadContext) Value(key any) any {
	if key == (loadKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// loadOf is the innermost load that ctx is of, nil if it is of none.
func loadOf(ctx context.Context) *loadContext {
	c, _ := ctx.Value(loadKey{}).(*loadContext)
	return c
}

// runningLoad is the innermost load that ctx is of, nil if that has ended, or there is none: a
// goroutine that a load has left behind keeps nobody waiting.
func runningLoad(ctx context.Context) *loadContext {
	if c := loadOf(ctx); c != nil && !c.slot.Ended() {
		return c
	}
	return nil
}

// freshnessSlot is where a load leaves the Freshness of its value.
type freshnessSlot struct {
	mu sync.Mutex // guards all: a load may have goroutines of its own
	f  items.Windows
	of map[string]items.Windows // by key, of a batch load's values
	// set tells a load that has chosen from one that leaves it to the options.
	set bool
}

// SetFreshness, called by a load with its context, sets how long the value
// that this load returns may be served, in the place of what the options say.
// It sets all of it: a window that is left zero is closed, and the zero Freshness
// means that the value answers those who wait for it, and is not kept. It counts
// for an [ErrNotFound] too, in the place of NotFoundTTL, and for no other failure.
// The last call before the load returns counts. With a context that is not a
// load's it does nothing, nor with that of a handler behind a [Middleware], whose
// response says this in its header.
func SetFreshness(ctx context.Context, f Freshness) {
	setWindows(ctx, f.windows())
}

// setWindows is SetFreshness for all windows that there are.
func setWindows(ctx context.Context, f items.Windows) {
	if c := loadOf(ctx); c != nil {
		slot := &c.freshness
		slot.mu.Lock()
		slot.f, slot.set = f, true
		slot.mu.Unlock()
	}
}

// SetFreshnessOf is [SetFreshness] for one key of a batch load, see [NewBatch]:
// for its value, or for its not being found. It goes before what SetFreshness
// says, which in a batch load is for all values. With a context that is not a
// batch load's it does nothing.
func SetFreshnessOf(ctx context.Context, key string, f Freshness) {
	if c := loadOf(ctx); c != nil {
		slot := &c.freshness
		slot.mu.Lock()
		defer slot.mu.Unlock()
		if slot.of == nil {
			slot.of = make(map[string]items.Windows)
		}
		slot.of[key] = f.windows()
	}
}

// chosen is what a batch load has set for a key that it has found, or has not.
func (s *freshnessSlot) chosen(key string, found bool) (f items.Windows, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok = s.of[key]; !ok && found {
		f, ok = s.f, s.set
	}
	return f, ok
}

// settle makes that what a load of one key has set.
func (s *freshnessSlot) settle(key string, found bool) {
	f, ok := s.chosen(key, found)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.f, s.set = f, ok
}

// loaded is what a load came to.
type loaded[V any] struct {
	value     V
	err       error
	freshness items.Windows // of the value or of its absence
	began     time.Time
	took      time.Duration
}

// A loadRun is one run of the user's load for one flight.
type loadRun[V any] struct {
	*loadContext
	attempt attempt[V]
	began   time.Time
	once    sync.Once
	free    func()
	result  chan loaded[V]
}

// start runs the flight's load and sends what it came to, once. The channel has
// room for it: a load that everybody has given up on must not leak its goroutine
// on top. free is called when the load has really returned, or told.
func (a attempt[V]) start(ctx context.Context, free func()) <-chan loaded[V] {
	l := &loadRun[V]{
		loadContext: newLoadContext(ctx, a.engine.slots, []*askers{&a.flight.askers}),
		began:       time.Now(),
		free:        free,
		result:      make(chan loaded[V], 1),
	}
	l.attempt, l.attempt.running = a, l
	go l.run()
	return l.result
}

// tell ends the load with its result before it returns: it goes on behind that, for
// a client of its own. What it returns does not count then.
func (a attempt[V]) tell(value V, err error) { a.running.end(value, err) }

// end makes that the load's result, unless it has one.
func (l *loadRun[V]) end(value V, err error) {
	l.once.Do(func() {
		o, slot := &l.attempt.engine.settings, &l.freshness
		result := loaded[V]{value: value, err: err, began: l.began, took: time.Since(l.began)}
		slot.mu.Lock()
		switch {
		case slot.set:
			result.freshness = slot.f
		case fault.NotFound(err):
			result.freshness = items.Windows{TTL: o.NotFoundTTL}
		default:
			result.freshness = o.Freshness.windows()
		}
		slot.mu.Unlock()
		l.slot.End()
		l.free()
		l.result <- result
	})
}

func (l *loadRun[V]) run() {
	stack.Grow()
	var value V
	fault.Run(func() (err error) {
		value, err = l.attempt.load(l.loadContext, l.attempt)
		fault.Inquire(err)
		return err
	}, func(err error) { l.end(value, err) })
}
