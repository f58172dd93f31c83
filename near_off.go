package bellwether

import (
	"context"
)

// This file is the near tier switched off: an item answers the calls from before the store was asked for it.
// The store is asked again for later calls, once for all that have come meanwhile, never without a call.

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
	e := f.engine
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
		if e.fencer != nil && vouches && !f.vouchFor(ctx, published, epoch) {
			return
		}
	}
}
