package bellwether

import "context"

// This file confirms the stale item on offer during a rebuild. Otherwise a key that another process invalidates would
// be served stale for as long as its rebuild takes. With the near tier off an item answers only the calls from before
// the store was asked for it: the store is asked again for later calls, once for all that have come meanwhile, never
// without a call.

// confirmOffers begins to confirm the flight's offer until ctx ends. next is closed when there may be another
// offer to confirm: at the end of this one, or at the flight's next change if it has none.
func (f *flight[V]) confirmOffers(ctx context.Context) (next <-chan struct{}) {
	if f.engine.Store == nil {
		return nil
	}
	if state := f.state.Load(); state.offered == nil {
		return state.news
	}
	ended := make(chan struct{})
	f.engine.running.Go(func() {
		defer close(ended)
		f.engine.confirm(ctx, f.engine.clock.Now(), func() bool { return f.confirmOffer(ctx) })
	})
	return ended
}

// confirmOffer asks the store about the offer. It returns false without an offer, or after ctx's end.
func (f *flight[V]) confirmOffer(ctx context.Context) bool {
	e := f.engine
	offered := f.state.Load().offered
	if offered == nil {
		return false
	}
	budget := e.confirmation(ctx)
	there := f.read(ctx, budget)
	confirmed := *offered
	switch confirmed.TrustedUntil = e.trustedUntil(there.asked); {
	case ctx.Err() != nil:
		return false
	case there.silent():
		// A silent store cannot say that the item is void, also not to the callers that came meanwhile.
		confirmed.TrustedUntil = max(confirmed.TrustedUntil, e.clock.Now()+1)
	case there.err != nil || there.entry.Epoch != offered.Epoch:
		f.reoffer(offered, nil)
		return true
	}
	f.reoffer(offered, &confirmed)
	return true
}

// doubt makes the flight ask the store again, for a later call. It does nothing with the near tier on.
func (f *flight[V]) doubt() {
	select {
	case f.doubts <- struct{}{}:
	default: // the store will be asked anyway, for all calls
	}
}

// doubtValue is doubt for the value that the load still writes. Without a Fencer the store has no new
// answer. Any answer would wake all waiting calls, and each would doubt again.
func (f *flight[V]) doubtValue() {
	if f.engine.fencer != nil {
		f.doubt()
	}
}

// answerDoubts asks the store after each doubt, until ctx ends or the store can say nothing later.
func (f *flight[V]) answerDoubts(ctx context.Context) {
	for {
		select {
		case <-f.doubts:
		case <-ctx.Done():
			return
		}
		f.confirmOffer(ctx)
		f.shard.mu.Lock()
		published, epoch, l := f.state.Load().published, f.witness.epoch, f.current
		vouches := published != nil && l != nil && !l.storeless
		f.shard.mu.Unlock()
		if f.engine.fencer != nil && vouches && !f.confirmPublished(ctx, published, epoch) {
			return
		}
	}
}
