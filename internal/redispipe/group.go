package redispipe

import (
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/internal/stack"
)

// This file is the group commit: who sends the calls of many callers, and when.

const (
	// patience bounds the delay of other items by a request's hanging connection or long reply.
	patience = 2 * time.Millisecond
	// most is the largest number of items in a run. The client's time-outs apply to all of them.
	most = 64
)

// A Group runs the items of many callers together. Items that come during a run go together in the next run.
// It is safe for concurrent use.
type Group[T any] struct {
	run   func([]T)
	joins bool // else each item goes alone

	mu      sync.Mutex // guards the fields below
	busy    bool       // items wait for a run under way
	waiting []T
}

// NewGroup returns a group for requests to rdb. run may end its goroutine, and must not panic. Only items of a
// [redis.Client] are joined: in a cluster or a ring, items for a dead server would delay items for the others.
func NewGroup[T any](rdb redis.UniversalClient, run func([]T)) *Group[T] {
	_, joins := rdb.(*redis.Client)
	return &Group[T]{run: run, joins: joins}
}

// Join adds an item to the next run. It reports whether the item has to wait for no run: then the caller runs the
// item itself, by Lead or by Alone.
func (g *Group[T]) Join(item T) (first bool) {
	if !g.joins {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.busy {
		g.waiting = append(g.waiting, item)
		return false
	}
	g.busy = true
	return true
}

// Alone runs an item by f. This caller does not lead the items that come meanwhile.
func (g *Group[T]) Alone(f func()) {
	over := time.AfterFunc(patience, g.next)
	f()
	if over.Stop() {
		g.next()
	}
}

// Lead runs the items, and the items that come meanwhile, until no item waits.
func (g *Group[T]) Lead(items []T) {
	stack.Grow()
	for items != nil {
		over := time.AfterFunc(patience, g.next)
		g.run(items)
		if !over.Stop() {
			return // the timer has started another leader
		}
		items = g.take()
	}
}

// next starts a goroutine for the waiting items. It runs once per run: at the run's end, or earlier by its timer.
// The timer also goes on after the run has ended its goroutine.
func (g *Group[T]) next() {
	if items := g.take(); items != nil {
		go g.Lead(items)
	}
}

// take returns the waiting items. If no item waits, the next item is run at once.
func (g *Group[T]) take() []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(len(g.waiting), most)
	g.busy = n > 0
	if n == 0 {
		return nil
	}
	items := g.waiting[:n:n]
	g.waiting = slices.Clone(g.waiting[n:])
	return items
}
