// Package records has what a process remembers of its latest builds, of its store's commits, of its origin
// and of its hedges. All types are safe for concurrent use, and their zero values are ready for use.
package records

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
)

// many is how many Times remember.
const many = 16

// Times are how long the latest took of something that is done again and
// again: they stand in for what is not known of the next one.
type Times struct {
	mu   sync.Mutex // guards all
	last [many]time.Duration
	n    int // how many there were
}

// Note takes in how long the latest took.
func (b *Times) Note(took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last[b.n%many] = max(took, 1)
	b.n++
}

// Usual is the median, 0 if there was none.
func (b *Times) Usual() time.Duration { return b.rank(func(n int) int { return n / 2 }) }

// Quicker is what a quarter of them fall short of, 0 if there was none.
func (b *Times) Quicker() time.Duration { return b.rank(func(n int) int { return n / 4 }) }

// Slower is what a quarter of them exceed, 0 if there was none. One
// that hangs now and then makes it no longer.
func (b *Times) Slower() time.Duration { return b.rank(func(n int) int { return (n*3 - 1) / 4 }) }

func (b *Times) rank(of func(n int) int) time.Duration {
	b.mu.Lock()
	last, n := b.last, min(b.n, many)
	b.mu.Unlock()
	if n == 0 {
		return 0
	}
	slices.Sort(last[:n])
	return last[of(n)]
}

// Commits tell whether a store takes what it is given. One that is full
// may answer all else. It is no breaker: to try again costs nobody anything, and
// is how the end of it is found out.
type Commits struct {
	failures atomic.Int32 // in a row
	last     atomic.Int64 // the instant of the last of them
}

// commitMemory is for how long failed commits count.
const commitMemory = 10 * time.Second

// Note takes in how a commit has ended.
func (c *Commits) Note(err error, now durations.Instant) {
	if err == nil || fault.IsAnswer(err) {
		c.failures.Store(0)
		return
	}
	c.last.Store(int64(now))
	c.failures.Add(1)
}

// Fail reports whether the next commit will probably fail too.
func (c *Commits) Fail(now durations.Instant) bool {
	return c.failures.Load() >= gate.Trips && now < durations.Add(durations.Instant(c.last.Load()), commitMemory)
}

// An Origin tells how long all loads of a cache have failed.
type Origin struct {
	mu      sync.Mutex        // guards all
	failing bool              // no load has succeeded since one failed
	since   durations.Instant // when the first of those was
}

// Note takes in how a load has ended. It reports whether the load has succeeded
// after all had failed for that long.
func (o *Origin) Note(succeeded bool, now, long durations.Instant) (recovered bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	recovered = succeeded && o.failing && now-o.since >= long
	if !succeeded && !o.failing {
		o.since = now
	}
	o.failing = !succeeded
	return recovered
}

const (
	// maxHedges is how many hedges a process may have saved up.
	maxHedges = 10
	// slowBuilds is how many of the 16 latest builds have to be slow for the
	// origin to be slow, and not one holder.
	slowBuilds = 8
)

// Hedges are what a process may begin of them: a bucket, into which each of its
// own loads puts its share of a hedge, and out of which a hedge takes a whole one.
type Hedges struct {
	mu     sync.Mutex // guards all
	tokens float64    // none at first: the share holds from the first rebuild on
	slow   uint16     // the latest builds, a bit each, the latest the lowest: took too long
}

// Earn puts that share of a hedge into the bucket.
func (h *Hedges) Earn(share float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tokens = min(h.tokens+share, maxHedges)
}

// Take takes a hedge out of the bucket, unless that has none, or what one holder
// suffers from is everybody's: a hedge would be more of that.
func (h *Hedges) Take() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tokens < 1 || bits.OnesCount16(h.slow) >= slowBuilds {
		return false
	}
	h.tokens--
	return true
}

// Note takes in whether the latest build has taken too long.
func (h *Hedges) Note(slow bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.slow <<= 1; slow {
		h.slow |= 1
	}
}
