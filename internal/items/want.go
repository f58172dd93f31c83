package items

import "github.com/bellwether-go/bellwether/internal/durations"

// A Want is a call's conditions on its answer. The zero Want accepts any item.
type Want struct {
	// Accept, quick and under locks, reports whether an item from before the call may answer. Nil: any may.
	Accept func(it *Item, now durations.Instant) bool
	// Aside is work for the call's own goroutine while it waits. Nil: none.
	Aside <-chan func()
	// Fits reports whether even a newer item may answer at all. It needs an Accept, and is as quick.
	Fits func(it *Item) bool
	// Client is equal for the calls of one client, see audience.Alike.
	Client string
	// Counted: the request has waited before, for an item that led it on to this key, and was counted then.
	Counted bool
	// Personal: the load may be slow because of the call, and a time-out without a stale item answers only its client.
	Personal bool
}

// Takes reports whether the item answers a call that began at asked. An item that was loaded since
// then answers it whatever Accept says: otherwise the call would ask for ever. A failure answers it
// while no try is due: one client's conditions are no reason to try sooner.
func (w *Want) Takes(it *Item, now, asked durations.Instant) bool {
	if w.Fits != nil && !w.Fits(it) {
		return false
	}
	return w.Accept == nil || it.LoadBegan > asked || it.BackingOff(now) || w.Accept(it, now)
}
