package redisentry

import (
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file tells the server's time without asking. An entry carries the server's time of its
// commit; a Get that asked for the present time would cost two commands instead of one.

// recency is the lifetime of a sighting. Two crystals drift apart by some milliseconds in that
// time. After a change of a server's clock, the old time is believed no longer than that.
const recency = 30 * time.Second

// A Sighting pairs a server's time with the local instant just before the request.
type Sighting struct {
	Server time.Duration // since 1970
	Sent   time.Time     // with its monotonic reading
	Took   time.Duration // from Sent to the reply
}

// SightingBy returns the sighting of the server's clock by the reply to a TIME that was sent then.
func SightingBy(now *redis.TimeCmd, sent time.Time) (Sighting, error) {
	t, err := now.Result()
	if err == nil && t.IsZero() {
		err = errors.New("no reply") // of a hook with an error at another command: a wrong time would make old entries new
	}
	return Sighting{Server: time.Duration(t.UnixMicro()) * time.Microsecond, Sent: sent, Took: time.Since(sent)}, err
}

// Now returns the server's time, or a time ahead of it by at most Took. The server read its clock after
// Sent, so Now is never behind, and an entry that is read seems no younger than it is.
func (s Sighting) Now() time.Duration { return s.At(time.Now()) }

// At returns the server's time at t, as Now does.
func (s Sighting) At(t time.Time) time.Duration { return s.Server + t.Sub(s.Sent) }

// AtLeast returns the server's time at t, or a time behind it by at most Took. The server read its clock
// before the reply came, so an entry that is committed as of AtLeast seems no younger than it is.
func (s Sighting) AtLeast(t time.Time) time.Duration { return s.At(t) - s.Took }

// agrees reports whether one server's clock, never set, can have given both times.
func (s Sighting) agrees(next Sighting) bool {
	return next.Server >= s.AtLeast(next.Sent) && next.Server-next.Took <= s.At(next.Sent)
}

// A Clock has a sighting of a server's clock, at first none. It is safe for concurrent use.
type Clock struct {
	mu   sync.Mutex // guards last
	last Sighting
}

// See records s, unless the present sighting was sent later, or was quicker and agrees with s: by the
// sighting of a slow reply, such as of a process that was paused, all entries look older than they are.
// It returns the recorded sighting, or s if the two contradict each other.
func (c *Clock) See(s Sighting) Sighting {
	c.mu.Lock()
	defer c.mu.Unlock()
	after, agrees := s.Sent.Sub(c.last.Sent), c.last.agrees(s)
	switch {
	case after > 0 && (after >= recency/2 || s.Took <= c.last.Took || !agrees):
		c.last = s
	case !agrees:
		return s
	}
	return c.last
}

// Lasting returns the sighting, and whether it stays recent for a while.
func (c *Clock) Lasting() (Sighting, bool) { return c.within(recency / 2) }

// Recent returns the sighting, and whether it is recent enough for use.
func (c *Clock) Recent() (Sighting, bool) { return c.within(recency) }

func (c *Clock) within(age time.Duration) (Sighting, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, time.Since(c.last.Sent) < age
}
