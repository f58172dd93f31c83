// Package records has a process's records of its latest builds, store commits, origin and hedges.
// All types are safe for concurrent use, and their zero values are ready for use.
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

const many = 16

// Times are the latest durations of a repeated operation. They estimate the next duration.
type Times struct {
	mu   sync.Mutex // guards all fields
	last [many]time.Duration
	n    int // durations noted so far
}

// Note adds the latest duration.
func (b *Times) Note(took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last[b.n%many] = max(took, 1)
	b.n++
}

// A Rank is a place among the durations, the shortest first.
type Rank int

const (
	Quicker Rank = iota + 1 // the first quartile
	Usual                   // the median
	Slower                  // the third quartile, which an occasional hang does not change
)

// At is the duration at the rank, 0 without a duration.
func (b *Times) At(r Rank) time.Duration {
	b.mu.Lock()
	last, n := b.last, min(b.n, many)
	b.mu.Unlock()
	if n == 0 {
		return 0
	}
	slices.Sort(last[:n])
	if r == Slower {
		return last[(n*3-1)/4]
	}
	return last[n*int(r)/4]
}

// Commits report whether a store accepts commits: a full store may answer all other calls. This is
// no breaker, because another try costs nothing and finds the end of the failures.
type Commits struct {
	failures atomic.Int32 // in a row
	last     atomic.Int64 // the instant of the last failure
}

// commitMemory is how long failed commits count.
const commitMemory = 10 * time.Second

// Note records the outcome of a commit.
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

// An Origin records how long all loads of a cache have failed.
type Origin struct {
	mu      sync.Mutex        // guards all fields
	failing bool              // no load has succeeded since a failure
	since   durations.Instant // when the first of these failures was
}

// Note records the outcome of a load. It reports a success after all loads had failed for that long.
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
	// maxHedges is the largest number of saved hedges.
	maxHedges = 10
	// slowBuilds is how many of the 16 latest builds make the origin slow, and not one holder.
	slowBuilds = 8
)

// Hedges are a process's budget of hedges: a bucket to which each of its loads adds a share of a hedge.
type Hedges struct {
	mu     sync.Mutex // guards all fields
	tokens float64    // none at first: the share applies from the first rebuild on
	slow   uint16     // a bit for each of the latest builds, the latest the lowest: it took too long
}

// Earn puts that share of a hedge into the bucket.
func (h *Hedges) Earn(share float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tokens = min(h.tokens+share, maxHedges)
}

// Take takes a hedge from the bucket. The result is false if the bucket has none, or if the origin
// is slow for all holders: then a hedge would add to the load.
func (h *Hedges) Take() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tokens < 1 || bits.OnesCount16(h.slow) >= slowBuilds {
		return false
	}
	h.tokens--
	return true
}

// Note records whether the latest build has taken too long.
func (h *Hedges) Note(slow bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.slow <<= 1; slow {
		h.slow |= 1
	}
}
