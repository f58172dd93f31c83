// Package durations has the arithmetic of windows that may last for ever.
package durations

import "time"

// Forever is the longest duration, and as an Instant the moment that never comes.
const Forever time.Duration = 1<<63 - 1

// An Instant is a moment on a cache's own monotonic clock: the time since the clock began.
type Instant = time.Duration

// Between is the time from an instant to a later one. It returns Forever instead of wrapping round:
// an old value may have been made long before the clock began, and Forever is long after.
func Between(from, to Instant) time.Duration {
	if d := to - from; d >= 0 || to < from {
		return d
	}
	return Forever
}

// Add adds two durations that are not negative, up to Forever instead of wrapping round.
func Add(a, b time.Duration) time.Duration {
	if s := a + b; s >= a {
		return s
	}
	return Forever
}
