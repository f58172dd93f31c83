package bellwether

import (
	"context"
	"time"

	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is the near tier switched off: each call has the store asked, and what a
// flight has to show answers the calls that came before the store was asked for it. For
// whoever comes later the store is asked again: once for all who have come meanwhile, and
// not while nobody comes.

// aloneTTL is for how long, with the near tier off, a process goes on with what the store
// has not taken: it would else load a key again for each call in an outage.
const aloneTTL = time.Second

// alone is for how long the process goes on with what no store has answered for.
func (s *settings) alone() time.Duration {
	if s.eachCall {
		return aloneTTL
	}
	return s.NearTTL
}

// trusts reports whether it may answer the call at the time now without another word of
// the store's.
func (c *waiter[V]) trusts(it *items.Item[V], now instant) bool {
	if c.engine.eachCall {
		return c.began < it.Trusted
	}
	return now < it.Trusted
}

// doubt has the store asked again about what the flight shows, for a call that came after
// it was asked. It does nothing with the near tier on.
func (f *flight[V]) doubt() {
	select {
	case f.doubts <- struct{}{}:
	default: // it is to be asked already, for all
	}
}

// doubtValue is doubt about the value that is being made. Without a Fencer nobody can say
// more of it: the answer would wake all who wait, and each would doubt again.
func (f *flight[V]) doubtValue() {
	if f.engine.fencer != nil {
		f.doubt()
	}
}

// answerDoubts asks the store whenever a call has doubted, until ctx ends or nothing later
// could be said.
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
