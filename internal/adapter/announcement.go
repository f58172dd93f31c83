package adapter

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// This file is a lease's announcement, for engines with expiry too coarse for leases. It is
// readable by hand: "token 5000 2" is a lease of five seconds, renewed twice.

// An Announcement is a holder's record of its lease. Two are equal only if the lease has not
// changed in between: each holder has its own token, and each renewal counts.
type Announcement struct {
	Token    string
	Length   time.Duration // of the lease from its start or its last renewal
	Renewals uint64
}

// Encode rounds the length up to milliseconds, so no observer counts on a shorter lease than the holder.
func (a Announcement) Encode() []byte {
	return fmt.Appendf(nil, "%s %d %d", a.Token, Millis(a.Length), a.Renewals)
}

// DecodeAnnouncement decodes b, and returns false if b announces no lease.
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
