// Package chain tracks which loads of this process, in all caches, wait for other loads. A load that
// would wait for itself gets an error at once, and so does a chain of more than 64 loads.
package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/bellwether-go/bellwether/internal/slots"
)

// longest is the longest chain of loads that wait, each for the next.
const longest = 64

var (
	errOwnKey = errors.New("bellwether: a load asks its cache for its own key, and would wait for itself; make the value without the cache")

	errCircle = errors.New("bellwether: a load asks for a key that waits for this load, and would wait for itself; make one of the two values without the cache")

	errTooLong = fmt.Errorf("bellwether: %d loads that wait for each other, and the last load asks for another key; shorten the chain, or get some keys before their loads", longest)
)

// A Load is a running load, and the context of its user's function.
type Load struct {
	context.Context
	Slot slots.Load

	flights []*Flight // the flights that the load answers
	depth   int       // number of loads that wait for each other, with this one
}

// NewLoad returns a load that begins now for these flights, as a part of ctx's running load, if any.
func NewLoad(ctx context.Context, of *slots.Slots, flights ...*Flight) *Load {
	l := &Load{Context: ctx, flights: flights, depth: 1}
	l.Slot.Begin(of)
	if within := Running(ctx); within != nil {
		l.depth = within.depth + 1
	}
	return l
}

// NewCommonLoad returns the load of a batch's flights. Their own loads only wait for it, so it does not
// make the chain longer than ctx's running load, which is one of them.
func NewCommonLoad(ctx context.Context, of *slots.Slots, flights ...*Flight) *Load {
	l := NewLoad(ctx, of, flights...)
	l.depth = max(1, l.depth-1)
	return l
}

type loadKey struct{}

// Value returns the load itself for the key of a load, and the value of its context otherwise.
func (l *Load) Value(key any) any {
	if key == (loadKey{}) {
		return l
	}
	return l.Context.Value(key)
}

// With returns ctx with the load of another context.
func With(ctx, of context.Context) context.Context {
	return context.WithValue(ctx, loadKey{}, loadOf(of))
}

func loadOf(ctx context.Context) *Load {
	l, _ := ctx.Value(loadKey{}).(*Load)
	return l
}

// Running returns the innermost load of ctx, or nil if the load has ended: a goroutine left behind by a
// load must not make others wait. It runs the code of ctx.
func Running(ctx context.Context) *Load {
	if l := loadOf(ctx); l != nil && !l.Slot.Ended() {
		return l
	}
	return nil
}

// Full returns an error if no load may be begun for the load.
func (l *Load) Full() error {
	if l.depth >= longest {
		return errTooLong
	}
	return nil
}

// waits guards all flights, since a circle may go through several caches.
var waits sync.Mutex

// A Flight has the loads that wait for it. The zero Flight has none.
type Flight struct {
	loads map[*Load]int // with the number of their calls; guarded by waits
}

// Await adds a call of the load, or returns why the load must not wait.
func (f *Flight) Await(l *Load) error {
	waits.Lock()
	defer waits.Unlock()
	if slices.Contains(l.flights, f) {
		return errOwnKey
	}
	if f.awaited(l.flights, make(map[*Load]bool)) {
		return errCircle
	}
	if f.loads == nil {
		f.loads = make(map[*Load]int)
	}
	f.loads[l]++
	return nil
}

// awaited reports whether a load of f waits for one of flights, directly or not. Each load is visited once, since a
// batch's load waits for many flights. waits is held.
func (f *Flight) awaited(flights []*Flight, seen map[*Load]bool) bool {
	for _, flight := range flights {
		for l := range flight.loads {
			if seen[l] || l.Slot.Ended() {
				continue
			}
			seen[l] = true
			if slices.Contains(l.flights, f) || f.awaited(l.flights, seen) {
				return true
			}
		}
	}
	return false
}

// Leave takes a call of the load off.
func (f *Flight) Leave(l *Load) {
	waits.Lock()
	defer waits.Unlock()
	if f.loads[l]--; f.loads[l] <= 0 {
		delete(f.loads, l)
	}
}
