package bellwether

import (
	"context"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/chain"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/stack"
)

// This file runs the user's load, with a goroutine and a context of its own. A panic, a Goexit and
// an endless load end in a failure here.

// A loaded is a product whose windows are set, with the load's error and times.
type loaded[V any] struct {
	product[V]
	err   error
	began time.Time
	took  time.Duration // until its end, when the value has its windows' age
}

func (l *loaded[V]) lifetime() items.Windows {
	w := *l.windows
	if l.marks != nil && l.marks.Validator != "" && w.TTL > w.Age {
		w.Keep = validatorKeep
	}
	return w
}

type loadRun[V any] struct {
	*chain.Load
	attempt attempt[V]
	began   time.Time
	once    sync.Once
	free    func()
	result  chan loaded[V]
}

// start runs the flight's load and sends its result once. The channel has room for the result, or an
// abandoned load would leak its goroutine. free is called when the load has returned or told.
func (a attempt[V]) start(ctx context.Context, free func()) <-chan loaded[V] {
	l := &loadRun[V]{
		Load:   chain.NewLoad(ctx, a.engine.slots, &a.flight.askers),
		began:  time.Now(),
		free:   free,
		result: make(chan loaded[V], 1),
	}
	l.attempt, l.attempt.running = a, l
	go l.run()
	return l.result
}

// tell ends the load with a result. The load goes on for its own client, and its return value is ignored.
func (a attempt[V]) tell(p product[V], err error) { a.running.end(p, err) }

func (l *loadRun[V]) end(p product[V], err error) {
	l.once.Do(func() {
		result := loaded[V]{product: p, err: err, began: l.began, took: time.Since(l.began)}
		if p.windows == nil {
			result.windows = &l.attempt.engine.windows
		}
		l.Slot.End()
		l.free()
		l.result <- result
	})
}

func (l *loadRun[V]) run() {
	stack.Grow()
	var p product[V]
	fault.Run(func() (err error) {
		p, err = l.attempt.load(l.Load, l.attempt)
		fault.Inquire(err)
		if p.windows == nil && fault.NotFound(err) {
			p.windows = &items.Windows{TTL: l.attempt.engine.NotFoundTTL}
		}
		return err
	}, func(err error) { l.end(p, err) })
}
