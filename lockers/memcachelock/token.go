package memcachelock

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
)

// This file is the fencing tokens.

// counterLife is the life of a key's token counter, in seconds, so unused keys leave nothing behind.
const counterLife = 24 * 60 * 60

var errTokenLate = errors.New("the lease ended before its token was drawn")

// A tokenLease is a lease taken with Tokens.
type tokenLease struct {
	*lease
	fence uint64
}

var _ driver.Tokener = (*tokenLease)(nil)

// Token implements [driver.Tokener].
func (l *tokenLease) Token() uint64 { return l.fence }

// withToken returns the lease, just taken, with a token. Without a token it gives the lease back.
func (l *lease) withToken() (driver.Lease, error) {
	fence, err := l.locker.draw(l.counter)
	if err == nil && l.over() {
		// Only a token drawn during the lease is certainly less than the next holder's.
		err = errTokenLate
	}
	if err != nil {
		if l.free() != nil || l.unaccounted {
			go l.undo()
		}
		return nil, l.wrap("draw a token for", err)
	}
	return &tokenLease{l, fence}, nil
}

// draw returns the next number of a counter: memcached's answer to an add or a swap has no number. A missing
// counter begins with the date in microseconds, above all numbers of an earlier one at less than a million
// draws a second.
func (l *Locker) draw(counter string) (uint64, error) {
	for range 3 {
		// The counter may be on another server than the lease. An increment with a lost reply leaves a gap.
		n, err := adapter.Reconnected(&l.conns, func() (uint64, error) { return l.mc.Increment(counter, 1) })
		if !errors.Is(err, memcache.ErrCacheMiss) {
			return n, err
		}
		seed := uint64(time.Now().UnixMicro())
		err = l.mc.Add(&memcache.Item{Key: counter, Value: strconv.AppendUint(nil, seed, 10), Expiration: counterLife})
		if !errors.Is(err, memcache.ErrNotStored) {
			return seed, err
		}
		// Another holder, about to find itself too late, has begun the counter in between.
	}
	return 0, fmt.Errorf("the counter %s is lost again and again", counter)
}
