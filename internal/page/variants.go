package page

import (
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
)

// This file bounds the variants of a key. A client can ask for a new variant of a field such as User-Agent
// with each request. Such variants must not fill the near tier and the store.

const (
	// maxVariants is the number of new variants of a key that this process builds for the cache at once, and as many
	// again in each variantTime. Requests for other new variants go to the handler. Existing variants are served.
	maxVariants = 1024
	variantTime = 10 * time.Minute
)

// variants count the new variants of a URL: the variants of requests that need one because of a
// pseudonym, and the others. Any client can invent the former for any URL, and must not shut
// out the latter. The zero value counts none. All methods are safe for concurrent use.
type variants struct{ needed, named variantCount }

func (v *variants) of(needed bool) *variantCount {
	if needed {
		return &v.needed
	}
	return &v.named
}

// A variantCount is a leaky bucket by one instant (GCRA): when all new variants so far no longer count.
type variantCount struct{ over atomic.Int64 }

// full reports whether no new variant may be built now.
func (c *variantCount) full(now durations.Instant) bool {
	return durations.Instant(c.over.Load())-now > variantTime-variantTime/maxVariants
}

// add counts a new variant. Loads that began beside each other may pass the limit.
func (c *variantCount) add(now durations.Instant) {
	for {
		over := c.over.Load()
		if c.over.CompareAndSwap(over, int64(max(durations.Instant(over), now)+variantTime/maxVariants)) {
			return
		}
	}
}
