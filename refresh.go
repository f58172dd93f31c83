package bellwether

import (
	"context"
	"errors"

	"github.com/bellwether-go/bellwether/internal/items"
)

// This file begins rebuilds for which no call waits: of a fresh item that is due early, and by Refresh.

// refresh begins a flight that replaces the item it, unless the key has a flight. It does not wait.
func (e *engine) refresh(ctx context.Context, key string, it *items.Item, b binder, client string) {
	c := e.refresher(ctx, key, it)
	c.want.Client = client
	c.join(b)
}

// refreshNow begins a flight that takes no value of a load that returned before the call.
func (e *engine) refreshNow(ctx context.Context, key string, b binder) error {
	c := e.rebuilder(context.WithoutCancel(ctx), key)
	c.began++ // a load of this instant has returned before the call, so its LoadBegan must not count as later
	c.takesLater()
	if c.join(b); c.flight != nil && c.collapsed {
		if c.flight.refreshBehind(c.began) {
			e.behind(func() { c.refreshAfter(b) })
		}
		return nil
	}
	return c.err
}

// refreshAfter begins the rebuild for all Refreshes of the key's flight, when the flight has ended and no load of
// it has returned after them: its look may find the fresh item that is to be replaced, or all its callers leave.
func (c *waiter) refreshAfter(b binder) {
	for c.flight != nil && c.collapsed {
		if _, err := c.flight.Landing(c.engine.open); err != nil {
			return // closed
		}
		left := c.flight.refreshLeft()
		if left == 0 {
			return
		}
		c.flight, c.began = nil, left
		c.takesLater()
		if c.joinFlight(b); c.collapsed && c.flight != nil && !c.flight.refreshBehind(left) {
			return // another goroutine waits for this flight
		}
	}
	if c.err != nil && !errors.Is(c.err, ErrClosed) {
		c.engine.OnError(c.key, &keyError{"refreshing", c.key, c.err})
	}
}

// takesLater lets the call take an item only if its load has returned after the call began.
func (c *waiter) takesLater() {
	var epoch uint64
	if near, _ := c.engine.near.Get(c.key); near != nil && near.Born <= c.began {
		epoch = near.Epoch // a store's entry of this epoch may look younger
	}
	c.want.Accept = func(it *items.Item, _ instant) bool { return it.Born > c.began && it.Epoch != epoch }
}

// refresher returns a waiter for the rebuild of the item it.
func (e *engine) refresher(ctx context.Context, key string, it *items.Item) *waiter {
	c := e.rebuilder(ctx, key)
	// The store still has the item that is to be replaced, and the item is fresh.
	c.want.Accept = func(other *items.Item, _ instant) bool { return other.Epoch != it.Epoch }
	return c
}

// rebuilder returns a waiter that begins a rebuild and is not counted as a call.
func (e *engine) rebuilder(ctx context.Context, key string) *waiter {
	c := e.waiter(ctx, key, nil)
	c.tallied, c.refreshes = true, true
	return c
}
