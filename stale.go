package bellwether

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is the whole of the time rules: given when a value was built and
// what windows it has, what to do with it now. The clock is always an argument,
// and always the process's own monotonic one; some of it rolls dice.

// Freshness says how long a value may be served. Windows that are not positive
// are closed.
type Freshness struct {
	// Age is how old the value is already when its load returns. Zero: it was
	// made just now.
	Age time.Duration
	// TTL is the age at which the value stops being fresh. A value that is past
	// its windows when its load returns answers those who wait for it, and is
	// not kept.
	TTL time.Duration
	// StaleWhileRevalidate is how long after TTL the value is still served at
	// once, while one rebuild runs behind it (RFC 5861 section 3).
	StaleWhileRevalidate time.Duration
	// StaleIfError is how long after TTL the value is served if rebuilds fail
	// (RFC 5861 section 4).
	StaleIfError time.Duration
}

// windows are the windows of f.
func (f Freshness) windows() items.Windows {
	return items.Windows{Age: f.Age, TTL: f.TTL, StaleWhileRevalidate: f.StaleWhileRevalidate, StaleIfError: f.StaleIfError}
}

type instant = durations.Instant

// forever is the instant that never comes.
const forever instant = durations.Forever

// A verdict is what to do for a caller, given an item.
type verdict uint8

const (
	rebuild    verdict = iota // nothing that may be served: wait for a rebuild
	serve                     // fresh
	serveStale                // serve it, and rebuild behind it
	serveOnly                 // serve it; rebuilds fail, and the next try is not due
	fail                      // answer with the last failure; the next try is not due
)

// judge applies the windows at the time now.
func judge(l *items.Lifetime, now instant) verdict {
	switch {
	case l.Fresh(now):
		return serve
	case l.Stale(now) && l.BackingOff(now):
		return serveOnly
	case l.Stale(now):
		return serveStale
	case l.BackingOff(now):
		return fail
	}
	return rebuild
}

// failed returns the lifetime after one more failed rebuild, at the time now.
// What was there to serve stays. A failure that is not remembered, with an errorTTL
// of 0, makes no later pause longer: one by itself has its retryAt when it was born.
func failed(l items.Lifetime, now instant, errorTTL, longest time.Duration) items.Lifetime {
	if errorTTL <= 0 {
		if l.Failures == 0 {
			l.Failures, l.RetryAt = 1, l.Born
		}
		return l
	}
	l.CountFailure()
	l.RetryAt = durations.Add(now, backOff(l.Failures, errorTTL, longest))
	return l
}

// failedUntil is failed for a failure that says itself how long nobody is to try
// again. Up to a tenth is added at random, so that keys that failed together are
// not tried again together.
func failedUntil(l items.Lifetime, now instant, pause time.Duration) items.Lifetime {
	l.CountFailure()
	l.RetryAt = durations.Add(now, durations.Add(pause, time.Duration(rand.Int64N(int64(pause/10)+1))))
	return l
}

// dueEarly reports by chance whether something fresh is to be rebuilt now, which
// took build to make (XFetch: Vattani, Chierichetti, Lowenstein, VLDB 2015). A
// read with the time t left says so with the probability exp(-t/(beta*build)).
func dueEarly(left, build time.Duration, beta float64) bool {
	scale := beta * float64(build)
	// Beyond that the chance is one in a hundred million, and not worth the dice.
	return float64(left) < 18*scale && -math.Log(rand.Float64())*scale >= float64(left)
}

// jittered is ttl less up to its part jitter. Equal keys and epochs lose the same.
func jittered(ttl time.Duration, jitter float64, key string, epoch uint64) time.Duration {
	if jitter == 0 || ttl <= 0 {
		return ttl
	}
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64([]byte(key), epoch))
	// FNV's high bits hardly depend on the last bytes: they are mixed again.
	x := h.Sum64()
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	x ^= x >> 32
	return ttl - time.Duration(float64(ttl)*jitter*float64(x>>11)/(1<<53))
}

// backOff is the pause after the nth failure in a row: ErrorTTL, doubled with
// every further failure until it is the longest, of which a random part of up to a
// half is taken off, so that keys that failed together are not tried again together.
func backOff(n uint32, errorTTL, longest time.Duration) time.Duration {
	d := max(0, errorTTL)
	for ; n > 1 && 0 < d && d < longest; n-- {
		d = min(durations.Add(d, d), longest)
	}
	return d - time.Duration(rand.Int64N(int64(d/2)+1))
}

// Polling starts fast and slows with the time already waited, so that a value is
// seen at most 2 ms or a sixteenth of its build time late. The reads of a wait are as
// the logarithm of its length up to 4 s, and four or five for each second beyond.
const (
	minPoll = 2 * time.Millisecond
	maxPoll = 250 * time.Millisecond
)

// pollInterval is the pause before the next look, after waiting for waited. Up
// to a quarter is taken off at random, to keep processes apart that began
// together.
func pollInterval(waited time.Duration) time.Duration { return pollPause(waited / 16) }

// looksAhead is the number of looks before the usual end of a build. A build that ends early, or
// that began before this process came, is seen late by up to the pause between two of these looks.
const looksAhead = 8

// pollBuild is pollInterval for a build that usually takes that long, 0 if that is not known. The looks are
// few before the usual end. One look comes at that end, and the next looks follow it closely.
func pollBuild(waited, usual time.Duration) time.Duration {
	if ahead := usual - waited; ahead > minPoll {
		return min(ahead, pollPause(usual/looksAhead))
	}
	return pollPause(min(waited/16, (waited-usual)/8+usual/64))
}

// pollPause is a pause of about d.
func pollPause(d time.Duration) time.Duration {
	d = min(max(d, minPoll), maxPoll)
	return d - time.Duration(rand.Int64N(int64(d/4)))
}
