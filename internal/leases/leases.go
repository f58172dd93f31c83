// Package leases has the time rules of leases: length, renewal and end. A lease lasts for about one
// rebuild, so a dead holder costs its key about one rebuild.
package leases

import (
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
)

// shortest is the shortest lease, however short the rebuild. Its renewals come every 167 ms. The lease
// outlives a pause of the process of a third of a second (a container that has used up its share of the
// processor stands still for a tenth). One renewal may be lost, or be sent again by TCP, which takes 200
// ms to notice. The lockers below lockers/ announce leases in milliseconds, whatever their engine's
// expiry is. A Locker with a coarser engine makes longer leases and replaces a dead holder later.
const shortest = 500 * time.Millisecond

// Length returns the length of a lease for a build of the usual duration build. If build is 0, the
// duration is unknown and the lease is as long as longest.
//
// The length is 1.75 builds. A usual build has one renewal and ends well before a second one is due.
// Waiters stand for election at the end of the lease they saw, and find the value by then, not a renewed
// lease. A dead holder is replaced after two thirds of the length to the whole: 7/6 to 7/4 of a build.
//
// The length does not bound the build: a living holder renews the lease at each third. If the holder or
// its engine pauses for longer than two thirds, another holder takes over, with one load too many, and
// the store refuses the earlier holder's commit. A length that is too short costs only work.
func Length(build, engineTimeout, longest time.Duration) time.Duration {
	if build <= 0 {
		return longest
	}
	return min(max(durations.Add(build, 3*(build/4)), shortest, engineTimeout), longest)
}

// A Term is the holder's view of its lease.
type Term struct {
	Began  durations.Instant // time of the request for the lease, before the build
	Asked  durations.Instant // time of the request for the lease or its last renewal
	Length time.Duration     // from Asked
}

// Renewal is the time of the next renewal.
func (l Term) Renewal() durations.Instant {
	return durations.Add(l.Asked, max(l.Length/3, time.Millisecond))
}

// End is the end of the lease unless renewed.
func (l Term) End() durations.Instant { return durations.Add(l.Asked, l.Length) }

// Patience is the time limit of a renewal. Two renewals fit into one length.
func (l Term) Patience(engineTimeout time.Duration) time.Duration {
	return min(engineTimeout, max(l.Length/2, time.Millisecond))
}

// Renewed is the lease after a renewal at now. From the second renewal on, when the build outlasts the expected
// duration, the lease gets longer: three times what the build has taken. The next renewal comes when the build has
// taken twice as long. A long build of unknown duration thus does not renew every 167 ms to its end, and a crash
// costs time in proportion to the lost work.
func (l Term) Renewed(now durations.Instant, longest time.Duration) Term {
	l.Length = max(l.Length, min(3*(now-l.Began), longest))
	l.Asked = now
	return l
}
