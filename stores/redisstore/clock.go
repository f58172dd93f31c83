package redisstore

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

// A sighting pairs a time that the server told with the local instant just
// before it was asked.
type sighting struct {
	server time.Duration // since 1970
	sent   time.Time     // with its monotonic reading
}

// now returns the server's time, or what it will be at most one round trip
// later. The server looked at its clock some time after sent, so that this is
// never behind the truth, and an entry never seems younger than it is.
func (s sighting) now() time.Duration { return s.at(time.Now()) }

// at returns what was the server's time at t, as now does.
func (s sighting) at(t time.Time) time.Duration { return s.server + t.Sub(s.sent) }

// A clock remembers the latest sighting of one server's clock. The zero clock
// has seen none. It is safe for concurrent use.
//
// A reply that took long makes entries look that much older, and stale too
// early: which leads to a claim, whose reply is a new sighting.
type clock struct {
	mu   sync.Mutex // guards last
	last sighting
}

// see notes s unless a later one is known.
func (c *clock) see(s sighting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.sent.After(c.last.sent) {
		c.last = s
	}
}

// recent returns the latest sighting, and false if it is too old to be used.
func (c *clock) recent() (sighting, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, !c.last.sent.IsZero() && time.Since(c.last.sent) < recency
}
