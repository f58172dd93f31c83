package bellwether

import "context"

// This file is what a process hears of the others' writes where its store
// tells: the value that a flight waits for comes with the word that it is
// there, and the near tier follows a change before it has to ask. It only makes
// things sooner. What is not heard is found by looking.

// listen hears the store's notices until the engine is closed.
func (e *engine[V]) listen() {
	ctx, deafen := context.WithCancel(context.Background())
	e.deafen = deafen
	if notifier, ok := e.Store.(Notifier); ok {
		e.notified = true
		e.running.Go(func() { notifier.Notify(ctx, e.hear) })
	}
}

// hear takes one notice in.
func (e *engine[V]) hear(n Notice) {
	key, ok := e.ownKey(n.Key)
	if !ok {
		return
	}
	if key == logKey && e.sweeper.on() {
		if n.Entry.Epoch != 0 {
			e.learn(n.Entry)
		} else {
			e.sweeper.asked.Store(0) // it is read at the next occasion
		}
		return
	}
	if n.Invalidated {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.recall(key, n.Epoch)
		return
	}
	e.mu.Lock()
	f, before := e.flights[key], e.invalidations
	e.mu.Unlock()
	if f != nil {
		// The flight decodes it, if it waits for one; of several it needs the
		// latest only. Nobody else sends here, so that there is room.
		select {
		case <-f.notices:
		default:
		}
		f.notices <- n
		return
	}
	// Nobody waits. A process that has no use for the key stays without it.
	known, now := e.near.get(key)
	if known == nil || known.epoch >= n.Epoch {
		return
	}
	r := &run[V]{flight: &flight[V]{key: key, engine: e}}
	it := r.decode(n.Entry, nil, now-n.Delay)
	if it == nil {
		doubted := *known
		it, doubted.trusted = &doubted, now
	}
	e.near.weigh(key, it)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.invalidations == before && e.sweeper.spare(key, it) == it {
		e.near.put(key, it)
	}
}

// told ends a waiting flight with a notice, if that answers. It reports whether
// the flight has ended.
func (r *run[V]) told(ctx context.Context, n Notice) bool {
	e := r.engine
	known, now := e.near.get(r.key)
	if n.Entry.Epoch == 0 || n.Delay >= e.NearTTL {
		// Too large to be sent along, or so late that it may have been
		// invalidated long since.
		r.lookAgain()
		return r.look(ctx)
	}
	r.unshared = 0
	return r.consider(r.decode(n.Entry, known, now-n.Delay), true)
}
