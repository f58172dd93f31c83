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

// This file has the rules of time: the verdict on a value now, by the time of its build and its
// windows. The clock is an argument, always the process's own monotonic clock. Some rules roll dice.

// Freshness is how long a value may be served. A window up to zero is closed.
type Freshness struct {
	// Age is the value's age when its load returns. Zero: just made.
	Age time.Duration
	// TTL is the age at which the value becomes stale.
	TTL time.Duration
	// StaleWhileRevalidate is how long after TTL the value is served at once (RFC 5861 section 3).
	StaleWhileRevalidate time.Duration
	// StaleIfError is how long after TTL the value is served if rebuilds fail (RFC 5861 section 4).
	StaleIfError time.Duration
}

type instant = durations.Instant

const forever instant = durations.Forever

// A verdict is the answer to a caller by an item.
type verdict uint8

const (
	rebuild    verdict = iota // wait for a rebuild
	serve                     // fresh
	serveStale                // serve it, and rebuild behind it
	serveOnly                 // serve it; rebuilds fail, and the next try is not due
	fail                      // answer with the last failure; the next try is not due
)

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

// failed returns the lifetime after a further failed rebuild. The value stays. With an errorTTL of 0 the
// failure is not remembered and prolongs no later pause: without an earlier failure, RetryAt is Born.
func failed(l items.Lifetime, now instant, errorTTL, longest time.Duration) items.Lifetime {
	if errorTTL <= 0 {
		if l.Failures == 0 {
			l.Failures, l.RetryAt = 1, l.Born
		}
		return l
	}
	l.CountFailure()
	l.RetryAt = durations.Add(now, items.BackOff(l.Failures, errorTTL, longest))
	return l
}

// failedUntil is failed with the failure's own pause, plus up to a tenth at random to keep keys apart.
func failedUntil(l items.Lifetime, now instant, pause time.Duration) items.Lifetime {
	l.CountFailure()
	l.RetryAt = durations.Add(now, durations.Add(pause, time.Duration(rand.Int64N(int64(pause/10)+1))))
	return l
}

// waitersLife is how long an entry for the waiting processes alone is kept, after a load that took as long: a
// second, in which they find it, and the time of two loads, in which they make their own values.
func waitersLife(took time.Duration) time.Duration { return durations.Add(time.Second, 2*took) }

// dueEarly reports by chance whether to rebuild a fresh value now (XFetch: Vattani, Chierichetti,
// Lowenstein, VLDB 2015). With the time t left, the probability is exp(-t/(beta*build)).
func dueEarly(left, build time.Duration, beta float64) bool {
	scale := beta * float64(build)
	// Beyond 18 the chance is one in a hundred million, and not worth the dice.
	return float64(left) < 18*scale && -math.Log(rand.Float64())*scale >= float64(left)
}

// jittered subtracts a fraction of up to jitter. Equal keys and epochs have equal fractions.
func jittered(ttl time.Duration, jitter float64, key string, epoch uint64) time.Duration {
	if jitter == 0 || ttl <= 0 {
		return ttl
	}
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64([]byte(key), epoch))
	// FNV's high bits hardly depend on the last bytes, so they are mixed again.
	x := h.Sum64()
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	x ^= x >> 32
	return ttl - time.Duration(float64(ttl)*jitter*float64(x>>11)/(1<<53))
}
