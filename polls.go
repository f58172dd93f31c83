package bellwether

import (
	"math/rand/v2"
	"time"
)

// This file is the pace of polls. Polling slows with the wait: a value is seen at most 2 ms or a sixteenth of its
// build time late. The reads grow with the logarithm of the wait up to 4 s, and by four or five per second beyond.

const (
	minPoll = 2 * time.Millisecond
	maxPoll = 250 * time.Millisecond
)

// pollInterval returns the pause before the next look, less up to a quarter to separate processes.
func pollInterval(waited time.Duration) time.Duration { return pollPause(waited / 16) }

// looksAhead is the number of looks before the usual end of a build. An early end, or the end of a
// build begun before this process came, is seen late by up to the pause between two such looks.
const looksAhead = 8

// pollBuild is pollInterval for a build with a usual time, 0 if unknown. Few looks come before the
// usual end, one look at the end, and the next looks follow closely.
func pollBuild(waited, usual time.Duration) time.Duration {
	if ahead := usual - waited; ahead > minPoll {
		return min(ahead, pollPause(usual/looksAhead))
	}
	return pollPause(min(waited/16, (waited-usual)/8+usual/64))
}

func pollPause(d time.Duration) time.Duration {
	d = min(max(d, minPoll), maxPoll)
	return d - time.Duration(rand.Int64N(int64(d/4)))
}
