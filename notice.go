package bellwether

import (
	"context"
	"fmt"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
)

// This file is what a process hears of the others' writes where its store
// tells: the value that a flight waits for comes with the word that it is
// there, and the near tier follows a change before it has to ask. It only makes
// things sooner. What is not heard is found by looking.

// listen hears the store's notices until the engine is closed. It is called once
// the engine is complete, before its first use.
func (e *engine[V]) listen() {
	notifier, ok := e.Store.(driver.Notifier)
	if !ok {
		return
	}
	e.notified = true
	e.running.Go(func() {
		for e.open.Err() == nil {
			e.listenOnce(notifier)
			// It ends before the engine does only if something is wrong.
			select {
			case <-time.After(gate.Pause):
			case <-e.open.Done():
			}
		}
	})
}

// listenOnce returns when Notify does, in whatever way.
func (e *engine[V]) listenOnce(notifier driver.Notifier) {
	ended := make(chan struct{})
	go func() { // of its own: a Goexit would end the caller's
		defer close(ended)
		if err := fault.Guard(func() error { notifier.Notify(e.open, e.hear); return nil }); err != nil {
			e.OnError("", fmt.Errorf("listening to the store: %w", err))
		}
	}()
	<-ended
}

// A heard notice has the moment at which its change had not been made yet by the
// engine's own clock.
type heard struct {
	driver.Notice
	made instant
}

// whole reports whether the notice has an entry that may be believed at the time
// now: later than NearTTL after the change it may have been invalidated, and
// nobody has said so.
func (n *heard) whole(now instant, nearTTL time.Duration) bool {
	return n.Entry.Epoch != 0 && n.Entry.Epoch == n.Epoch && now < durations.Add(n.made, nearTTL)
}

// hear takes one notice in. It runs on the adapter's goroutine, which a panic of
// user code must not end.
func (e *engine[V]) hear(n driver.Notice) {
	key, ok := e.ownKey(n.Key)
	if !ok {
		return
	}
	if err := fault.Guard(func() error { e.take(key, n); return nil }); err != nil {
		e.OnError(key, &keyError{"hearing of", key, err})
	}
}

func (e *engine[V]) take(key string, told driver.Notice) {
	n := heard{told, e.clock.Instant(told.Made)}
	if key == sweeplog.Key && e.sweeps != nil {
		if n.Entry.Epoch != 0 && n.Entry.Epoch == n.Epoch {
			e.sweeps.Learn(n.Entry)
		} else {
			e.sweeps.Doubt()
		}
		return
	}
	known, w := e.pass(key, n)
	if known == nil {
		return
	}
	defer e.dismissApart(key, w)
	now := e.clock.Now()
	var it *items.Item[V]
	// What the store has not taken has no place in the order of epochs, and
	// may be of after an invalidation that this change is of before.
	if n.whole(now, e.NearTTL) && !known.Beside {
		it = e.apart(key, nil).decode(n.Entry, nil, n.made)
	}
	if it == nil {
		doubted := *known
		it, doubted.Trusted = &doubted, now
	}
	e.keep(key, it, func() bool { return w.generation == 0 })
}

// pass gives a notice to those who wait for it. If nobody does, it returns what the near tier has of
// the key, and a witness, if the notice tells of something later. A process that has no use for the key
// stays without it.
func (e *engine[V]) pass(key string, n heard) (known *items.Item[V], w *witness[V]) {
	s := e.shards.of(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flights[key]
	switch {
	case n.Invalidated:
		e.recall(s, key, n.Epoch)
	case f != nil:
		// The flight decodes it, if it waits for one; of several it needs the
		// latest only.
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
		w = &witness[V]{}
		s.attend(key, w)
	}
	return known, w
}

// told ends a waiting flight with a notice, if that answers. It reports whether
// the flight has ended.
func (r *run[V]) told(ctx context.Context, n heard) bool {
	known, now := r.engine.near.Get(r.key)
	if !n.whole(now, r.engine.NearTTL) || !r.lookBack(n.made) {
		return r.lookAnew(ctx)
	}
	r.looking.unshared, r.looking.before, r.looking.asked = 0, n.made, n.made
	if !r.consider(r.decode(n.Entry, known, n.made), true) {
		return false
	}
	if r.waiting.holder != nil { // and not for a slot or a turn
		r.committed = max(n.made, r.waiting.since)
	}
	return true
}

// lookBack is lookAgain for what was true at the time made. It returns false if
// that was before the flight began or the key was last invalidated: a notice may
// be overtaken by the invalidation of what it tells of, and by those who ask
// after that.
func (f *flight[V]) lookBack(made instant) bool {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if made <= f.since {
		return false
	}
	f.renew()
	return true
}
