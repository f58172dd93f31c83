// Package leasetest has the lease helpers of all lockers' tests outside lockertest's suite.
package leasetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// Acquire takes a lease that has to be free.
func Acquire(tb testing.TB, l driver.Locker, key string, ttl time.Duration) driver.Lease {
	tb.Helper()
	lease, err := l.TryAcquire(tb.Context(), key, ttl)
	if err != nil {
		tb.Fatalf("TryAcquire: %v", err)
	}
	return lease
}

// Renew renews a lease that must not be lost.
func Renew(tb testing.TB, lease driver.Lease, ttl time.Duration) {
	tb.Helper()
	if err := lease.Renew(tb.Context(), ttl); err != nil {
		tb.Errorf("Renew: %v", err)
	}
}

// Release releases a lease that must not be lost.
func Release(tb testing.TB, lease driver.Lease) {
	tb.Helper()
	if err := lease.Release(tb.Context()); err != nil {
		tb.Errorf("Release: %v", err)
	}
}

// MustBeHeld fails if the lease is free, and returns the *HeldError otherwise.
func MustBeHeld(tb testing.TB, l driver.Locker, key string) *driver.HeldError {
	tb.Helper()
	_, err := l.TryAcquire(tb.Context(), key, time.Minute)
	held, ok := errors.AsType[*driver.HeldError](err)
	if !ok {
		tb.Fatalf("TryAcquire: err = %v, want a *HeldError", err)
	}
	return held
}

// MustBeLost fails unless err, the result of the call named what, is ErrLeaseLost.
func MustBeLost(tb testing.TB, what string, err error) {
	tb.Helper()
	if !errors.Is(err, driver.ErrLeaseLost) {
		tb.Errorf("%s: err = %v, want ErrLeaseLost", what, err)
	}
}

// MustGiveUp fails unless a call of a silent engine ends with its context.
func MustGiveUp(tb testing.TB, what string, call func(context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
		tb.Errorf("%s: err = %v, want the context's", what, err)
	}
	if took := time.Since(start); took > time.Second {
		tb.Errorf("%s took %v with a context of 50ms", what, took)
	}
}

// MustBecomeFree fails if, after calls for the lease were given up, it is not free within five seconds.
func MustBecomeFree(tb testing.TB, l driver.Locker, key string) {
	tb.Helper()
	Eventually(tb, 5*time.Second, "no lease without a holder blocks the key", func() bool {
		_, err := l.TryAcquire(tb.Context(), key, time.Minute)
		return err == nil
	})
}

// MustPanic fails unless f panics with a text that begins with want.
func MustPanic(tb testing.TB, want string, f func()) {
	tb.Helper()
	defer func() {
		if p := fmt.Sprint(recover()); !strings.HasPrefix(p, want) {
			tb.Errorf("the panic is %q, want %q", p, want)
		}
	}()
	f()
}

// Token is the fencing token of a lease, which must have one.
func Token(tb testing.TB, lease driver.Lease) uint64 {
	tb.Helper()
	tokener, ok := lease.(driver.Tokener)
	if !ok {
		tb.Fatalf("a %T is no Tokener", lease)
	}
	return tokener.Token()
}

// MustBeNoAnswer fails if err, of the call named what, is about the lease or looks like a context's end.
func MustBeNoAnswer(tb testing.TB, what string, err error) {
	tb.Helper()
	if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLeaseLost) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		tb.Errorf("%s: err = %v, want one of the engine", what, err)
	}
}

// A Watcher is a Locker with push.
type Watcher interface {
	driver.Locker
	driver.Watcher
}

// Watch watches a held key once l's push works: a subscription takes its time.
func Watch(tb testing.TB, l Watcher, key string) <-chan struct{} {
	tb.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		freed, err := l.Watch(tb.Context(), MustBeHeld(tb, l, key))
		if err == nil {
			return freed
		}
		if time.Since(start) > 5*time.Second {
			tb.Fatalf("no push after %v: %v", time.Since(start), err)
		}
	}
}

// IsClosed reports whether c is closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// MustClose fails unless c, the watch named what, closes within limit, and returns the time it took.
func MustClose(tb testing.TB, what string, c <-chan struct{}, limit time.Duration) time.Duration {
	tb.Helper()
	start := time.Now()
	select {
	case <-c:
	case <-time.After(limit):
		tb.Errorf("%s: not told within %v", what, limit)
	}
	return time.Since(start)
}

// Eventually fails unless ok becomes true within limit.
func Eventually(tb testing.TB, limit time.Duration, what string, ok func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("not within %v: %s", limit, what)
		}
	}
}
