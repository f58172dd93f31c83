package items

import "github.com/bellwether-go/bellwether/internal/durations"

// A Want is what a call asks of its answer. The zero Want takes any.
type Want[V any] struct {
	// Accept tells whether an item may answer that was made before the call.
	// Nil: any may. It is quick and does not wait; it is called under locks.
	Accept func(it *Item[V], now durations.Instant) bool
	// Aside is work for the call's own goroutine while it waits. Nil: none.
	Aside <-chan func()
	// Fits tells whether an item may answer the call at all, whenever it was made. Nil:
	// any may. It is as Accept.
	Fits func(it *Item[V]) bool
	// Client is equal for the calls of one client, see audience.Alike.
	Client string
	// Personal tells that the load may be slow because of the call: a time-out is for calls of the
	// same client.
	Personal bool
}

// Takes reports whether the item answers a call that began at asked: what was
// loaded since then answers it whatever else is wanted, or it would go on asking
// for ever; and so does a failure while no try is due, because what one client
// wants is no reason to try sooner.
func (w *Want[V]) Takes(it *Item[V], now, asked durations.Instant) bool {
	if w.Fits != nil && !w.Fits(it) {
		return false
	}
	return w.Accept == nil || it.Made > asked || it.BackingOff(now) || w.Accept(it, now)
}
