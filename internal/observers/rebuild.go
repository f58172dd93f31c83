package observers

import (
	"context"

	"github.com/bellwether-go/bellwether/observe"
)

// A Rebuild is a load that observers hear of.
type Rebuild struct {
	// Told is what the observers hear at the end. Its Key is set, and End sets Took.
	Told observe.Rebuild

	set   *Set
	began instant
	ends  []func(observe.Rebuild) // by observer; nil: not called
}

// Rebuild returns the report of a load, nil if no observer hears of loads.
func (s *Set) Rebuild(told observe.Rebuild) *Rebuild {
	if !s.rebuild {
		return nil
	}
	return &Rebuild{Told: told, set: s, ends: make([]func(observe.Rebuild), len(s.all))}
}

// Begin calls the observers' Rebuild, and returns the load's context. End is for the observers that have heard of
// the beginning, also if the Goexit of one keeps Begin from returning.
func (r *Rebuild) Begin(ctx context.Context, now instant) context.Context {
	r.began = now
	watched := ctx
	for i, by := range r.set.all {
		if by.Rebuild == nil {
			continue
		}
		r.set.tell(r.Told.Key, func() {
			next, end := by.Rebuild(watched, r.Told.Key)
			if next != nil {
				watched = next
			}
			r.ends[i] = end
		})
	}
	return context.WithValue(watched, watchedKey{}, watched)
}

// End reports the end, with the callers of herd unless it is nil.
func (r *Rebuild) End(now instant, herd *Herd) {
	r.Told.Took = now - r.began
	for i, end := range r.ends {
		if end == nil {
			continue
		}
		told := r.Told
		if herd != nil {
			told.Callers = herd.callers(i)
		}
		r.set.tell(told.Key, func() { end(told) })
	}
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

// Within returns ctx with the values of the rebuild's observed context, except for the key own.
func Within(ctx, ofRebuild context.Context, own any) context.Context {
	if watched, ok := ofRebuild.Value(watchedKey{}).(context.Context); ok {
		return watchedContext{ctx, watched, own}
	}
	return ctx
}
