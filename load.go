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

// This file runs the user's load, on a goroutine and with a context of its own. A panic, a Goexit
// or a load that never returns ends in a failure here.

// loadKey is the context key of the *loadContext.
type loadKey struct{}

// A loadContext is the context of one run of the user's load.
type loadContext struct {
	context.Context
	makes []*askers // of the flights that the load answers
	depth int       // number of loads that wait for each other, with this one
	slot  slots.Load
}

// newLoadContext returns the context of a load for these flights, as a part of the running load
// that has begun them, if any.
func newLoadContext(ctx context.Context, of *slots.Slots, makes []*askers) *loadContext {
	c := &loadContext{Context: ctx, makes: makes, depth: 1}
	c.slot.Begin(of)
	if within := runningLoad(ctx); within != nil {
		c.depth = within.depth + 1
	}
	return c
}

func (c *loadContext) Value(key any) any {
	if key == (loadKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// loadOf returns the innermost load of ctx, nil if there is none.
func loadOf(ctx context.Context) *loadContext {
	c, _ := ctx.Value(loadKey{}).(*loadContext)
	return c
}

// runningLoad is loadOf without a load that has ended: a goroutine that a load has left behind
// lends no slot and waits in no circle.
func runningLoad(ctx context.Context) *loadContext {
	if c := loadOf(ctx); c != nil && !c.slot.Ended() {
		return c
	}
	return nil
}

// A product is the result of one run of a load.
type product[V any] struct {
	value   V
	windows *items.Windows // of the value or of its absence; nil: the options' windows
	marks   *items.Marks   // nil: none
	kept    *items.Item[V] // the item whose value stays; nil: the value is new
}

// A loaded is a product whose windows are set, with the load's error and times.
type loaded[V any] struct {
	product[V]
	err   error
	began time.Time
	took  time.Duration
}

// lifetime returns the windows of the product. A value with a validator is kept for the next load,
// unless it is not kept at all.
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

// start runs the flight's load and sends its result once. It calls free when the load has returned
// or told its result. The channel has room for the result: an abandoned load must not leak its
// goroutine.
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

// tell ends the load with a result before the load returns. The load goes on for a client of its
// own, and its return value has no effect.
func (a attempt[V]) tell(p product[V], err error) { a.running.end(p, err) }

// end sets the load's result, unless it has one.
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
