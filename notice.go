package bellwether

import (
	"fmt"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
)

// This file hears the notices of other processes' writes (driver.Notifier). A notice goes to the key's flight,
// or moves the near tier forward. Looks make up for lost notices.

// listen hears the store's notices until the engine closes. It is called before the engine's first use.
func (e *engine) listen() {
	notifier, ok := e.Store.(driver.Notifier)
	if !ok {
		return
	}
	e.notified = true
	e.running.Go(func() { e.listenTo(notifier) })
}

func (e *engine) listenTo(notifier driver.Notifier) {
	defer e.listenAgain(notifier) // also after a Goexit of the adapter
	if err := fault.Guard(func() error { notifier.Notify(e.open, e.receive); return nil }); err != nil {
		e.OnError("", fmt.Errorf("listening to the store: %w", err))
	}
}

// listenAgain goes on after Notify has returned before the close: with an error, or from a broken adapter.
func (e *engine) listenAgain(notifier driver.Notifier) {
	select {
	case <-time.After(gate.Pause):
		e.running.Go(func() { e.listenTo(notifier) })
	case <-e.open.Done():
	}
}

// receive handles a notice on the adapter's goroutine. User code must not end this goroutine by a panic.
func (e *engine) receive(n driver.Notice) {
	notice := timedNotice{n, e.clock.Instant(n.Made), e.clock.Now()}
	key, ok := e.ownKey(n.Key)
	apply := func() { e.applyNotice(key, notice) }
	if n.Key == e.ownName(sweeplog.Key) {
		key, ok, apply = sweeplog.Key, true, func() { e.applyLogNotice(notice) }
	}
	if !ok {
		return
	}
	if err := fault.Guard(func() error { apply(); return nil }); err != nil {
		e.OnError(key, &keyError{"hearing of", key, err})
	}
}

func (e *engine) applyLogNotice(n timedNotice) {
	switch {
	case e.sweeps == nil:
	case n.carriesEntry():
		e.sweeps.Learn(n.Entry)
	default:
		e.sweeps.Doubt()
	}
}

func (e *engine) applyNotice(key string, n timedNotice) {
	known, w := e.deliverNotice(key, n)
	if known == nil {
		return
	}
	defer e.endWitness(key, w)
	now := e.clock.Now()
	var it *items.Item
	// An item that the store has not taken has no place in the order of epochs: it may be from after
	// an invalidation, and the notice from before. So the store is asked.
	if n.credible(now, e.NearTTL) && !known.Beside {
		it, _ = (&storeKey{key: key, engine: e}).decode(n.reply(), nil)
	}
	if it == nil {
		doubted := *known
		it, doubted.TrustedUntil = &doubted, now
	}
	e.keepNear(key, it, func() bool { return w.generation == 0 })
}

// deliverNotice hands a notice to the key's flight. Without a flight it returns the near item, and a
// witness, if the notice is later. A process without the key stays without it.
func (e *engine) deliverNotice(key string, n timedNotice) (known *items.Item, w *witness) {
	s := e.shards.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flights[key]
	switch {
	case n.Invalidated:
		e.voidKey(s, key, n.Epoch)
	case f != nil:
		// A waiting flight decodes the notice. Of several it needs only the latest.
		select {
		case other := <-f.notices:
			if other.Epoch > n.Epoch {
				n = other
			}
		default:
		}
		f.notices <- n
	default:
		if known, _ = e.near.Get(key); known == nil || known.Epoch >= n.Epoch {
			return nil, nil
		}
		w = &witness{}
		s.addWitness(key, w)
	}
	return known, w
}
