package zklock

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether/internal/adapter"
)

// This file is the data of a lease's node. It is readable by hand: "token 5000" is a lease of five
// seconds. Renewals need no count: the node's mzxid differs after each change.

// A value is a holder's announcement of its lease.
type value struct {
	token  string
	length time.Duration // of the lease from its start or its last renewal
}

// encode rounds the length up to milliseconds, so no observer takes the lease for shorter than it is.
func (v value) encode() []byte {
	return fmt.Appendf(nil, "%s %d", v.token, adapter.Millis(v.length))
}

// maxToken bounds a token, 22 bytes of its own. It is part of a path, and the client panics on a request that
// fills its buffer to the last byte.
const maxToken = 64

// decode decodes b, and returns false if b is not the data of a lease.
func decode(b []byte) (value, bool) {
	const maxMillis = math.MaxInt64/int64(time.Millisecond) + 1
	token, length, ok := strings.Cut(string(b), " ")
	ms, err := strconv.ParseInt(length, 10, 64)
	if token == "" || len(token) > maxToken || !ok || err != nil || ms <= 0 || ms > maxMillis {
		return value{}, false
	}
	if ms == maxMillis {
		return value{token, math.MaxInt64}, true // rounded up beyond the largest duration
	}
	return value{token, time.Duration(ms) * time.Millisecond}, true
}
