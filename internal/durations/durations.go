// Package durations has the arithmetic of windows that may be for ever.
package durations

import "time"

// Forever is the longest duration, and on a clock that counts from its start the instant that never
// comes.
const Forever time.Duration = 1<<63 - 1

// Add adds two durations that are not negative without wrapping round: a window of "for ever"
// stays one.
func Add(a, b time.Duration) time.Duration {
	if s := a + b; s >= a {
		return s
	}
	return Forever
}
