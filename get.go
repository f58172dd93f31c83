package bellwether

import (
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is a call's way to its answer: a hit of the near tier, or a flight to wait for.

func (c *waiter) outcome(b binder) (any, error) {
	if c.dueEarly() {
		c.engine.refresh(c.ctx, c.key, c.answer.item, b, "")
	}
	if c.engine.observers.Serves() {
		c.tellObservers()
	}
	if c.err != nil {
		return nil, c.err
	}
	return c.answer.item.Answer()
}

// hit answers, without allocating, from a near item that needs no flight: fresh, or stale while no try
// is due. If ok is false, the item is for the end of the caller's patience, or nil. A nil w takes any item. It is one
// function: two calls within it would cost a hit a tenth of its time.
func (e *engine) hit(key string, w *items.Want) (it *items.Item, early, ok bool) {
	it, now := e.near.Get(key)
	if it == nil || now >= it.TrustedUntil || w != nil && !w.Takes(it, now, now) {
		return nil, false, false
	}
	counted := w != nil && w.Counted
	switch judge(&it.Lifetime, now) {
	case serve:
		if !counted && e.isAnswer(it.Value) {
			e.count.hits.add()
		}
		return it, e.EarlyRefresh > 0 && dueEarly(it.FreshUntil-now, it.Build, e.EarlyRefresh), true
	case serveOnly:
		if !counted {
			e.count.stale.Add(1)
		}
		return it, false, true
	case serveStale:
		return it, false, false
	}
	return nil, false, false
}

// dueEarly decides by chance about an early rebuild after the store's answer. In a large fleet each process
// may read a popular key less than once per NearTTL, and so never as a near hit. A value that this process
// has just loaded is excluded: the herd that waited for it would load the key again.
func (c *waiter) dueEarly() bool {
	e, it := c.engine, c.answer.item
	if e.EarlyRefresh <= 0 || it == nil || c.collapsed || !c.answer.flown || it.LoadBegan != 0 {
		return false
	}
	now := e.clock.Now()
	return it.Fresh(now) && dueEarly(it.FreshUntil-now, it.Build, e.EarlyRefresh)
}

// tellObservers is not inlined, like all code for observers only: a herd waits on the frames around the code.
//
//go:noinline
func (c *waiter) tellObservers() { c.engine.observers.Serve(c.ctx, c.observed()) }

func (c *waiter) observed() observe.Serve {
	now := c.engine.clock.Now()
	s := observe.Serve{Key: c.key, Way: observe.WayMiss, Waited: now - c.began, Err: c.err}
	it := c.answer.item
	switch {
	case c.err == nil && !c.answer.flown, c.err == nil && it.Failures > 0 && now >= it.FreshUntil:
		s.Way = it.Way(now)
	case c.collapsed:
		s.Way = observe.WayCollapsed
	}
	if c.err == nil && it.Kind == driver.KindNotFound {
		s.Err = ErrNotFound
	}
	return s
}
