package items

import (
	"math/rand/v2"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/observe"
)

// Windows are a value's age, and how long it may be served and kept. Zero or less: closed.
type Windows struct {
	Age                  time.Duration // when the value's load returned
	TTL                  time.Duration // the age from which the value is stale
	StaleWhileRevalidate time.Duration // how long after TTL it is served at once, with a rebuild in the background
	StaleIfError         time.Duration // how long after TTL it is served if rebuilds fail
	// Keep is the least time after TTL for which the value is kept for its next load, unserved.
	Keep time.Duration
}

// A Lifetime is an item's state for the rules of time.
type Lifetime struct {
	Held       bool              // there is an answer to serve: a value, or not found
	Failures   uint32            // rebuilds that failed in a row since
	Born       durations.Instant // when its age was zero
	FreshUntil durations.Instant // end of the TTL
	StaleUntil durations.Instant // end of the stale-while-revalidate window
	ErrorUntil durations.Instant // end of the stale-if-error window
	KeepUntil  durations.Instant // until then it is kept for a load to start from
	RetryAt    durations.Instant // when the next try is due, if Failures > 0
}

// longestTTL is the longest TTL that counts, 146 years.
const longestTTL = durations.Forever / 2

// NewLifetime is the lifetime of a value that is w.Age old at now.
func NewLifetime(now durations.Instant, w Windows) Lifetime {
	born := now - max(0, w.Age)
	ttl, swr, sie, keep := max(0, w.TTL), max(0, w.StaleWhileRevalidate), max(0, w.StaleIfError), max(0, w.Keep)
	// Beyond longestTTL the windows would end with the TTL, and after a soft invalidation there would be none.
	fresh := durations.Add(born, min(ttl, longestTTL))
	return Lifetime{
		Held:       true,
		Born:       born,
		FreshUntil: fresh,
		StaleUntil: durations.Add(fresh, swr),
		ErrorUntil: durations.Add(fresh, sie),
		KeepUntil:  durations.Add(fresh, keep),
	}
}

// Windows are the windows of the lifetime at now, without its failures.
func (l *Lifetime) Windows(now durations.Instant) Windows {
	return Windows{
		Age: durations.Between(l.Born, now), TTL: durations.Between(l.Born, l.FreshUntil),
		StaleWhileRevalidate: durations.Between(l.FreshUntil, l.StaleUntil), StaleIfError: durations.Between(l.FreshUntil, l.ErrorUntil),
		Keep: durations.Between(l.FreshUntil, l.KeepUntil),
	}
}

// Fresh reports whether there is an answer within its TTL.
func (l *Lifetime) Fresh(now durations.Instant) bool { return l.Held && now < l.FreshUntil }

// Stale reports whether the item may be served past its TTL: always in the stale-while-revalidate
// window, and after a failure in the stale-if-error window.
func (l *Lifetime) Stale(now durations.Instant) bool {
	return l.Held && (now < l.StaleUntil || l.Failures > 0 && now < l.ErrorUntil)
}

// BackingOff reports whether rebuilds have failed and the next try is not due.
func (l *Lifetime) BackingOff(now durations.Instant) bool {
	return l.Failures > 0 && now < l.RetryAt
}

// RemembersFailures reports whether failures have a pause. Without one they answer only their callers.
func (l *Lifetime) RemembersFailures() bool { return l.Failures > 0 && l.RetryAt > l.Born }

// StaleFrom returns the lifetime with freshness until t at most. The windows begin then.
func (l Lifetime) StaleFrom(t durations.Instant) Lifetime {
	// A plain difference could overflow: an old value may precede the clock.
	if t = max(t, l.Born); t < l.FreshUntil {
		early := durations.Between(t, l.FreshUntil)
		for _, end := range []*durations.Instant{&l.FreshUntil, &l.StaleUntil, &l.ErrorUntil, &l.KeepUntil} {
			*end -= early
		}
	}
	return l
}

// End is when the item is of no more use.
func (l *Lifetime) End() durations.Instant {
	var end durations.Instant
	if l.Held {
		end = max(l.StaleUntil, l.ErrorUntil, l.KeepUntil)
	}
	if l.RemembersFailures() {
		end = max(end, durations.Add(l.RetryAt, driver.FailureMemory))
	}
	return end
}

// CountFailure counts one more remembered failure.
func (l *Lifetime) CountFailure() {
	if l.Failures == 0 || l.RemembersFailures() {
		l.Failures++
	}
}

// Way is how the item serves a call at now.
func (l *Lifetime) Way(now durations.Instant) observe.Way {
	if now < l.FreshUntil {
		return observe.WayHit
	}
	return observe.WayStale
}

// BackOff returns the pause after the nth failure in a row: errorTTL, doubled with each further failure
// up to longest, less a random part of up to a half, to keep the next tries of several keys apart.
func BackOff(n uint32, errorTTL, longest time.Duration) time.Duration {
	d := max(0, errorTTL)
	for ; n > 1 && 0 < d && d < longest; n-- {
		d = min(durations.Add(d, d), longest)
	}
	return d - time.Duration(rand.Int64N(int64(d/2)+1))
}
