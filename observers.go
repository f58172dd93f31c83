package bellwether

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/bellwether-go/bellwether/internal/tellings"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is the observers, and what is counted and noted for them.

// observers are the cache's observers, sorted by the functions that they have.
type observers struct {
	all     []observe.Observer
	hit     []func(context.Context, string)
	serve   []func(context.Context, observe.Serve)
	herd    []func(observe.Herd)
	breaker []func(observe.Engine, observe.BreakerState, observe.BreakerState)
	evict   []func(string, int)
	rebuild bool // an observer has Rebuild
	callers bool // an observer has Rebuild and Caller

	detach   []func() // written before the cache's first use, and called at its end
	tellings tellings.Queue
	entered  func(key string, p phase) // of a test, see engine.enter; set before the cache's first use
}

// sort takes the observers, before the cache's first use.
func (o *observers) sort(all []observe.Observer) {
	o.all = slices.Clone(all)
	for _, by := range o.all {
		if by.Hit != nil {
			o.hit = append(o.hit, by.Hit)
		}
		if by.Serve != nil {
			o.serve = append(o.serve, by.Serve)
		}
		if by.Herd != nil {
			o.herd = append(o.herd, by.Herd)
		}
		if by.Breaker != nil {
			o.breaker = append(o.breaker, by.Breaker)
		}
		if by.Evict != nil {
			o.evict = append(o.evict, by.Evict)
		}
		o.rebuild = o.rebuild || by.Rebuild != nil
		o.callers = o.callers || by.Rebuild != nil && by.Caller != nil
	}
}

// A herdCount counts the callers of an observed flight. Each caller leaves once. The last to leave,
// a caller or the flight itself, reports the herd.
type herdCount struct {
	aboard   atomic.Int64 // callers that have not left, and one for the flight
	answered atomic.Int64
	waited   atomic.Int64 // nanoseconds, of the answered callers
	last     atomic.Int64 // the instant of the last answer

	// Written by the flight's goroutine before the flight leaves.
	loaded bool
	since  instant // the commit, 0: none

	mu    sync.Mutex // guards marks
	marks [][]any    // results of each observer's Caller
}

// A rebuildWatch is the report of a load, for its end.
type rebuildWatch struct {
	began  instant
	losses int
	told   observe.Rebuild
	ends   []func(observe.Rebuild) // by observer; nil: not called
}

// watchedKey is the context key of the context returned by a rebuild's observers.
type watchedKey struct{}

// A watchedContext has the end of one context and the values of another, except for the key own.
type watchedContext struct {
	context.Context
	values context.Context
	own    any
}

func (c watchedContext) Value(key any) any {
	if key == c.own {
		return c.Context.Value(key)
	}
	return c.values.Value(key)
}

// watchedFrom returns ctx with the values of the rebuild's observed context, except for the key own.
func watchedFrom(ctx, ofRebuild context.Context, own any) context.Context {
	if watched, ok := ofRebuild.Value(watchedKey{}).(context.Context); ok {
		return watchedContext{ctx, watched, own}
	}
	return ctx
}
