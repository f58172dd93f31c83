package adapter

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// This file holds what a lease's holder writes where the engine counts time
// too coarsely for leases, readable to whoever looks into the engine by hand:
// "token 5000 2" is a lease of five seconds that was renewed twice.

// An Announcement is what the holder of a lease announces. Two are equal only
// if nothing has happened to the lease in between: a holder's token is its own,
// and each of its renewals counts.
type Announcement struct {
	Token    string
	Length   time.Duration // of the lease from its start or its last renewal
	Renewals uint64
}

// Encode rounds the length up to milliseconds, so that nobody takes the lease
// for shorter than its holder does.
func (a Announcement) Encode() []byte {
	return fmt.Appendf(nil, "%s %d %d", a.Token, Millis(a.Length), a.Renewals)
}

// Millis is d in milliseconds, rounded up: what lasts at all lasts for one, and
// nothing ends in an engine before its owner thinks so.
func Millis(d time.Duration) int64 {
	ms := d / time.Millisecond
	if d%time.Millisecond > 0 {
		ms++
	}
	return int64(ms)
}

// DecodeAnnouncement reports with false that b announces no lease.
func DecodeAnnouncement(b []byte) (Announcement, bool) {
	const maxMillis = uint64(math.MaxInt64 / int64(time.Millisecond))
	token, rest, ok1 := strings.Cut(string(b), " ")
	length, renewals, ok2 := strings.Cut(rest, " ")
	ms, err1 := strconv.ParseUint(length, 10, 64)
	n, err2 := strconv.ParseUint(renewals, 10, 64)
	if token == "" || !ok1 || !ok2 || err1 != nil || err2 != nil || ms == 0 || ms > maxMillis {
		return Announcement{}, false
	}
	return Announcement{Token: token, Length: time.Duration(ms) * time.Millisecond, Renewals: n}, true
}
