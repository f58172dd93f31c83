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
	makes []*askers // those of the flights that it loads for
	depth int       // how many loads wait for each other, this one included
	slot  slots.Load
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

// A product is what one run of a load has made.
type product[V any] struct {
	value   V
	windows *items.Windows // of the value, or of its absence; nil: as the options say
	marks   *items.Marks   // nil: none
	kept    *items.Item[V] // the item whose value goes on; nil: the value is new
}

// loaded is what a load came to.
type loaded[V any] struct {
	product[V] // its windows are set
	err        error
	began      time.Time
	took       time.Duration
}

// lifetime are the windows of what the load has made. A validator is of use to the next load, so its
// value is kept for that, if it is kept at all.
func (l *loaded[V]) lifetime() items.Windows {
	w := *l.windows
	if l.marks != nil && l.marks.Validator != "" && w.TTL > w.Age {
		w.Keep = validatorKeep
	}
	return w
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
func (a attempt[V]) tell(p product[V], err error) { a.running.end(p, err) }

// end makes that the load's result, unless it has one.
func (l *loadRun[V]) end(p product[V], err error) {
	l.once.Do(func() {
		o := &l.attempt.engine.settings
		result := loaded[V]{product: p, err: err, began: l.began, took: time.Since(l.began)}
		switch {
		case p.windows != nil:
		case fault.NotFound(err):
			result.windows = &items.Windows{TTL: o.NotFoundTTL}
		default:
			result.windows = &o.windows
		}
		l.slot.End()
		l.free()
		l.result <- result
	})
}

func (l *loadRun[V]) run() {
	stack.Grow()
	var p product[V]
	fault.Run(func() (err error) {
		p, err = l.attempt.load(l.loadContext, l.attempt)
		fault.Inquire(err)
		return err
	}, func(err error) { l.end(p, err) })
}
