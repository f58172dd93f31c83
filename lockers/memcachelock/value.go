package memcachelock

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// This file holds the value of a lease's item, readable to whoever looks into
// a memcached by hand: "token 5000 2" is a lease of five seconds that was
// renewed twice.

// A value is what the holder of a lease announces. Two values are equal only
// if nothing has happened to the lease in between: a holder's token is its own,
// and each of its renewals counts.
type value struct {
	token    string
	length   time.Duration // of the lease from its start or its last renewal
	renewals uint64
}

// encode rounds the length up to milliseconds, so that nobody takes the lease
// for shorter than its holder does.
func (v value) encode() []byte {
	ms := (v.length + time.Millisecond - 1) / time.Millisecond
	return fmt.Appendf(nil, "%s %d %d", v.token, ms, v.renewals)
}

// decode reports with false that b is not the value of a lease.
func decode(b []byte) (value, bool) {
	const maxMillis = uint64(maxTTL/time.Millisecond) + 1
	token, rest, ok1 := strings.Cut(string(b), " ")
	length, renewals, ok2 := strings.Cut(rest, " ")
	ms, err1 := strconv.ParseUint(length, 10, 64)
	n, err2 := strconv.ParseUint(renewals, 10, 64)
	if token == "" || !ok1 || !ok2 || err1 != nil || err2 != nil || ms == 0 || ms > maxMillis {
		return value{}, false
	}
	return value{token: token, length: time.Duration(ms) * time.Millisecond, renewals: n}, true
}
