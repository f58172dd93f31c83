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

// refreshSince begins a flight that takes an item only if its load has returned after began. If the key has a flight,
// it begins when that takes no more callers, unless a load of it has returned: its look may find the fresh item that is
// to be replaced, or all its callers leave.
func (e *engine) refreshSince(ctx context.Context, key string, b binder, began instant) error {
	c := e.rebuilder(ctx, key)
	c.began = began
	var epoch uint64
	if near, _ := e.near.Get(key); near != nil && near.Born <= began {
		epoch = near.Epoch // a store's entry of this epoch may look younger
	}
	c.want.Accept = func(it *items.Item, _ instant) bool { return it.Born > began && it.Epoch != epoch }
	c.next = &nextRefresh{began, func() {
		if err := e.refreshSince(ctx, key, b, began); err != nil && !errors.Is(err, ErrClosed) {
			e.OnError(key, &keyError{"refreshing", key, err})
		}
	}}
	c.join(b)
	return c.err
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
