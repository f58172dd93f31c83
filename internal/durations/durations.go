// Package durations has the arithmetic of windows that may be for ever.
package durations

import "time"

// Forever is the longest duration, and on a clock that counts from its start the instant that never
// comes.
const Forever time.Duration = 1<<63 - 1

// An Instant is a moment on a cache's own clock, which is monotonic: the time since that began.
type Instant = time.Duration

// Between is the time from one instant to a later one without wrapping round: what is old may
// have been made long before the clock began, and for ever is long after.
func Between(from, to Instant) time.Duration {
	if d := to - from; d >= 0 || to < from {
		return d
	}
	return Forever
}

// Add adds two durations that are not negative without wrapping round: a window of "for ever"
// stays one.
func Add(a, b time.Duration) time.Duration {
	if s := a + b; s >= a {
		return s
	}
	return Forever
}
