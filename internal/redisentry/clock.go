package redisentry

import (
	"sync"
	"time"
)

// This file tells the server's time without asking: an entry carries the
// server's time of its commit, and a Get that had to ask for the present one
// would cost two commands instead of one.

// recency is how long a sighting is used. Two crystals drift apart by some
// milliseconds in that time; a server whose clock is set is believed wrongly no
// longer than that.
const recency = 30 * time.Second

// A Sighting pairs a time that the server told with the local instant just
// before it was asked.
type Sighting struct {
	Server time.Duration // since 1970
	Sent   time.Time     // with its monotonic reading
	Took   time.Duration // from Sent to the reply
}

// Now returns the server's time, or what it will be at most one round trip
// later. The server looked at its clock some time after Sent, so that this is
// never behind the truth, and an entry never seems younger than it is.
func (s Sighting) Now() time.Duration { return s.At(time.Now()) }

// At returns what was the server's time at t, as Now does.
func (s Sighting) At(t time.Time) time.Duration { return s.Server + t.Sub(s.Sent) }

// AtLeast returns a time that the server's clock had passed at t. The server looked at its clock
// before its reply came.
func (s Sighting) AtLeast(t time.Time) time.Duration { return s.At(t) - s.Took }

// A Clock remembers the latest sighting of one server's clock. The zero Clock
// has seen none. It is safe for concurrent use.
//
// A reply that took long makes entries look that much older, and stale too
// early: which leads to a claim, whose reply is a new sighting.
type Clock struct {
	mu   sync.Mutex // guards last
	last Sighting
}

// See notes s unless a later one is known.
func (c *Clock) See(s Sighting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Sent.After(c.last.Sent) {
		c.last = s
	}
}

// Lasting returns the latest sighting, and false if it will not be recent for long.
func (c *Clock) Lasting() (Sighting, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, !c.last.Sent.IsZero() && time.Since(c.last.Sent) < recency/2
}

// Recent returns the latest sighting, and false if it is too old to be used.
func (c *Clock) Recent() (Sighting, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, !c.last.Sent.IsZero() && time.Since(c.last.Sent) < recency
}
