// Package leases has the rules of a lease's time: how long it is asked for, when it is renewed, and when it
// is over. A lease lasts for about one rebuild, so that a holder that dies costs its key no more than that.
package leases

import (
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
)

// Shortest is the shortest lease, however short the rebuild is. It is renewed
// every 167 ms, so it outlives a pause of the process of a third of a second (a
// container that has used its share of the processor up stands still for a tenth),
// and of its renewals one may be lost, or be sent once more by TCP, which takes
// 200 ms to notice. All the lockers below lockers/ announce leases in
// milliseconds, whatever their engines' own expiry is; a Locker whose engine
// cannot makes them longer, and is slower to replace a holder that died.
const Shortest = 500 * time.Millisecond

// Length is how long a lease is asked for under which something is built
// that usually takes build; 0 if nobody knows. It is 1.75 times as long: a usual
// build has one renewal, is over well before the second one would be due, and
// those who wait stand for election when the lease they saw is over, and find the
// value by then, not a lease that was renewed. A holder that dies is replaced after
// two thirds of this to the whole: 7/6 to 7/4 of a build.
//
// It is no bound on the build: the lease is renewed, at a third of its length, for
// as long as its holder lives. If the holder pauses for longer than two thirds,
// or its engine does, another takes over, and there is a load too many; the
// store refuses the earlier one's commit. So a length that is too short costs
// work, and nothing else.
func Length(build, engineTimeout, longest time.Duration) time.Duration {
	if build <= 0 {
		return longest
	}
	return min(max(durations.Add(build, 3*(build/4)), Shortest, engineTimeout), longest)
}

// A Term is what a holder goes by while it keeps a lease.
type Term struct {
	Began  durations.Instant // when it was asked for, which is before the build
	Asked  durations.Instant // when it was, or its last renewal
	Length time.Duration     // from then
}

// Renewal is when the lease is to be renewed.
func (l Term) Renewal() durations.Instant {
	return durations.Add(l.Asked, max(l.Length/3, time.Millisecond))
}

// End is when the lease is over unless it is renewed.
func (l Term) End() durations.Instant { return durations.Add(l.Asked, l.Length) }

// Patience is how long a renewal may take: of two in one length, both have time.
func (l Term) Patience(engineTimeout time.Duration) time.Duration {
	return min(engineTimeout, max(l.Length/2, time.Millisecond))
}

// Renewed is the lease after a renewal at the time now. It gets longer when its
// build outlasts what was expected, at the second renewal and then each time: the
// next one comes when the build has taken twice as long. So a long build of which
// nothing was known does not renew every 167 ms to its end, and a crash costs in
// proportion to what has been built when it comes.
func (l Term) Renewed(now durations.Instant, longest time.Duration) Term {
	if taken := now - l.Began; taken >= 2*(l.Length/3) {
		l.Length = max(l.Length, min(3*taken, longest))
	}
	l.Asked = now
	return l
}
