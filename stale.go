package bellwether

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
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

	// keep is how long after TTL the value is kept at least, beyond its windows
	// too, for its next load to start from. It is not served for that.
	keep time.Duration
}

// instant is a moment on a cache's own clock: the time since it was made.
type instant = time.Duration

// forever is the instant that never comes.
const forever instant = durations.Forever

// between is the time from one instant to a later one without wrapping round: what
// is old may have been made long before the clock, and for ever is long after it.
func between(from, to instant) time.Duration {
	if d := to - from; d >= 0 || to < from {
		return d
	}
	return 1<<63 - 1
}

// lifetime is what the time rules know of an item.
type lifetime struct {
	held       bool    // there is something to serve: a value, or the knowledge that there is none
	failures   uint32  // rebuilds that failed in a row since
	born       instant // when its age was zero
	freshUntil instant // end of the TTL
	staleUntil instant // end of the stale-while-revalidate window
	errorUntil instant // end of the stale-if-error window
	keepUntil  instant // until when it is kept for a load to start from
	retryAt    instant // when the next try is due, if failures > 0
}

// newLifetime is the lifetime of a value that is f.Age old at the time now.
func newLifetime(now instant, f Freshness) lifetime {
	born := now - max(0, f.Age)
	ttl, swr, sie, keep := max(0, f.TTL), max(0, f.StaleWhileRevalidate), max(0, f.StaleIfError), max(0, f.keep)
	fresh := durations.Add(born, ttl)
	return lifetime{
		held:       true,
		born:       born,
		freshUntil: fresh,
		staleUntil: durations.Add(fresh, swr),
		errorUntil: durations.Add(fresh, sie),
		keepUntil:  durations.Add(fresh, keep),
	}
}

// freshness is what the lifetime comes to at the time now, without its failures.
func (l *lifetime) freshness(now instant) Freshness {
	return Freshness{
		Age: between(l.born, now), TTL: between(l.born, l.freshUntil),
		StaleWhileRevalidate: between(l.freshUntil, l.staleUntil), StaleIfError: between(l.freshUntil, l.errorUntil),
		keep: between(l.freshUntil, l.keepUntil),
	}
}

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
func (l *lifetime) judge(now instant) verdict {
	switch {
	case l.held && now < l.freshUntil:
		return serve
	case l.stale(now) && l.backingOff(now):
		return serveOnly
	case l.stale(now):
		return serveStale
	case l.backingOff(now):
		return fail
	}
	return rebuild
}

// stale reports whether the item may be served past its TTL: in the
// stale-while-revalidate window always, in the stale-if-error window only
// after a failure.
func (l *lifetime) stale(now instant) bool {
	return l.held && (now < l.staleUntil || l.failures > 0 && now < l.errorUntil)
}

func (l *lifetime) backingOff(now instant) bool {
	return l.failures > 0 && now < l.retryAt
}

// remembersFailures reports whether there was a pause after the failures: without one,
// they answered their callers, and nobody else.
func (l *lifetime) remembersFailures() bool { return l.failures > 0 && l.retryAt > l.born }

// staleFrom returns the lifetime of something that stops being fresh at t, if
// it has not before. Its windows begin then.
func (l lifetime) staleFrom(t instant) lifetime {
	// Not by a difference alone: what is old may have been made long before the clock.
	if t = max(t, l.born); t < l.freshUntil {
		early := between(t, l.freshUntil)
		for _, end := range []*instant{&l.freshUntil, &l.staleUntil, &l.errorUntil, &l.keepUntil} {
			*end -= early
		}
	}
	return l
}

// End is when the item is of no more use to anybody.
func (l *lifetime) End() instant {
	var end instant
	if l.held {
		end = max(l.staleUntil, l.errorUntil, l.keepUntil)
	}
	if l.remembersFailures() {
		end = max(end, durations.Add(l.retryAt, driver.FailureMemory))
	}
	return end
}

// failed returns the lifetime after one more failed rebuild, at the time now.
// What was there to serve stays. A failure that is not remembered, with an errorTTL
// of 0, makes no later pause longer: one by itself has its retryAt when it was born.
func (l lifetime) failed(now instant, errorTTL, longest time.Duration) lifetime {
	if errorTTL <= 0 {
		if l.failures == 0 {
			l.failures, l.retryAt = 1, l.born
		}
		return l
	}
	l.count()
	l.retryAt = durations.Add(now, backOff(l.failures, errorTTL, longest))
	return l
}

// count counts one more failure that is remembered.
func (l *lifetime) count() {
	if l.failures == 0 || l.remembersFailures() {
		l.failures++
	}
}

// failedUntil is failed for a failure that says itself how long nobody is to try
// again. Up to a tenth is added at random, so that keys that failed together are
// not tried again together.
func (l lifetime) failedUntil(now instant, pause time.Duration) lifetime {
	l.count()
	l.retryAt = durations.Add(now, durations.Add(pause, time.Duration(rand.Int64N(int64(pause/10)+1))))
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
func pollInterval(waited time.Duration) time.Duration {
	d := min(max(waited/16, minPoll), maxPoll)
	return d - time.Duration(rand.Int64N(int64(d/4)))
}
