package memcachelock

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/bellwether-go/bellwether/driver"
)

// This file holds the fencing tokens of those who ask for them.

// counterLife is after how long the counter of a key's tokens is begun anew, in
// seconds, so that keys which are used no more leave nothing behind.
const counterLife = 24 * 60 * 60

// errTokenLate is why a lease was given back that had just been taken.
var errTokenLate = errors.New("the lease ended before its token was drawn")

// A tokenLease is a lease that was taken with Tokens.
type tokenLease struct {
	*lease
	fence uint64
}

var _ driver.Tokener = (*tokenLease)(nil)

// Token implements [driver.Tokener].
func (l *tokenLease) Token() uint64 { return l.fence }

// withToken returns the lease, just taken, with a token. If it gets none, it
// gives the lease back.
func (l *lease) withToken() (driver.Lease, error) {
	fence, err := l.locker.draw(l.counter)
	if err == nil && l.over() {
		// Only what was drawn while the lease lasted is certainly less than
		// what the next holder draws: this may have been drawn after that.
		err = errTokenLate
	}
	if err != nil {
		l.free()
		return nil, l.wrap("draw a token for", err)
	}
	return &tokenLease{l, fence}, nil
}

// draw returns the next number of a counter. It begins one that is not there
// with the client's date in microseconds, which is greater than any number that
// was counted up from an earlier one: nobody draws a million times a second.
func (l *Locker) draw(counter string) (uint64, error) {
	for range 3 {
		n, err := l.mc.Increment(counter, 1)
		if !errors.Is(err, memcache.ErrCacheMiss) {
			return n, err
		}
		seed := uint64(time.Now().UnixMicro())
		err = l.mc.Add(&memcache.Item{Key: counter, Value: strconv.AppendUint(nil, seed, 10), Expiration: counterLife})
		if !errors.Is(err, memcache.ErrNotStored) {
			return seed, err
		}
		// Another has begun it in between: a holder that is about to find out
		// that it was too late.
	}
	return 0, fmt.Errorf("the counter %s is lost again and again", counter)
}
