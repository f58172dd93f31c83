// Package leasetest is what the tests of all lockers do with leases, where
// lockertest's suite is not what they run.
package leasetest

import (
	"errors"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
)

// Acquire takes a lease that has to be free.
func Acquire(tb testing.TB, l bellwether.Locker, key string, ttl time.Duration) bellwether.Lease {
	tb.Helper()
	lease, err := l.TryAcquire(tb.Context(), key, ttl)
	if err != nil {
		tb.Fatalf("TryAcquire: %v", err)
	}
	return lease
}

// MustBeHeld fails if the lease can be taken, and returns what its taker is told.
func MustBeHeld(tb testing.TB, l bellwether.Locker, key string) *bellwether.HeldError {
	tb.Helper()
	_, err := l.TryAcquire(tb.Context(), key, time.Minute)
	held, ok := errors.AsType[*bellwether.HeldError](err)
	if !ok {
		tb.Fatalf("TryAcquire: err = %v, want a *HeldError", err)
	}
	return held
}

// MustBeLost fails if err, which what has returned, is not that the lease is lost.
func MustBeLost(tb testing.TB, what string, err error) {
	tb.Helper()
	if !errors.Is(err, bellwether.ErrLeaseLost) {
		tb.Errorf("%s: err = %v, want ErrLeaseLost", what, err)
	}
}
