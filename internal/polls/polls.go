// Package polls is the pace of polls. Polling slows with the wait: a value is seen at most 2 ms or a sixteenth of its
// build time late. The reads grow with the logarithm of the wait up to 4 s, and by four or five per second beyond.
package polls

import (
	"math/rand/v2"
	"time"
)

// The pauses between two polls are from Shortest to Longest, less up to a quarter.
const (
	Shortest = 2 * time.Millisecond
	Longest  = 250 * time.Millisecond
)

// Interval returns the pause before the next look, less up to a quarter to separate processes.
func Interval(waited time.Duration) time.Duration { return pause(waited / 16) }

// looksAhead is the number of looks before the usual end of a build. An early end, or the end of a
// build begun before this process came, is seen late by up to the pause between two such looks.
const looksAhead = 8

// IntervalOfBuild is [Interval] for a build with a usual time, 0 if unknown. Few looks come before the
// usual end, one look at the end, and the next looks follow closely.
func IntervalOfBuild(waited, usual time.Duration) time.Duration {
	if ahead := usual - waited; ahead > Shortest {
		return min(ahead, pause(usual/looksAhead))
	}
	return pause(min(waited/16, (waited-usual)/8+usual/64))
}

func pause(d time.Duration) time.Duration {
	d = min(max(d, Shortest), Longest)
	return d - time.Duration(rand.Int64N(int64(d/4)))
}
