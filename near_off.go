package bellwether

import (
	"context"
	"time"

	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is the near tier switched off: an item answers the calls from before the store was asked for it.
// The store is asked again for later calls, once for all that have come meanwhile, never without a call.

// aloneTTL is how long an untaken item is trusted with the near tier off. Otherwise each call in an outage
// would load its key again.
const aloneTTL = time.Second

// alone is how long the process serves an item that no store has confirmed.
func (s *settings) alone() time.Duration {
	if s.eachCall {
		return aloneTTL
	}
	return s.NearTTL
}

// trusts reports whether the item may answer the call now without asking the store. If the store was asked for
// it after the call began, it may: the reply may have been under way for longer than NearTTL.
func (c *waiter[V]) trusts(it *items.Item[V], now instant) bool {
	if c.engine.eachCall {
		return c.began < it.TrustedUntil
	}
	return now < it.TrustedUntil || c.began <= it.TrustedUntil-instant(c.engine.NearTTL)
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
