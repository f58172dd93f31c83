package lockertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

type call struct {
	name string
	do   func(context.Context) error
}

// calls returns the methods of l and its lease. Release is last: a lease may know its end afterwards.
func calls(l driver.Locker, lease driver.Lease) []call {
	return []call{
		{"TryAcquire", func(ctx context.Context) error {
			_, err := l.TryAcquire(ctx, newKey(), long)
			return err
		}},
		{"Renew", func(ctx context.Context) error { return lease.Renew(ctx, long) }},
		{"Release", lease.Release},
	}
}

// Hang tests a Locker against its contexts while its engine, stopped by the caller, is a black hole: every
// method must return its context's error soon after ctx ends. lease comes from l, from before the stop, for a
// minute at least.
func Hang(t testing.TB, l driver.Locker, lease driver.Lease) {
	t.Helper()
	const patience = 50 * time.Millisecond
	// An engine of several threads may still answer on some of them after the signal that stops it.
	for hung, tries := 0, 0; hung < 5 && tries < 200; tries++ {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if _, err := l.TryAcquire(ctx, newKey(), time.Second); errors.Is(err, context.DeadlineExceeded) {
			hung++
		} else {
			hung = 0
		}
		cancel()
	}
	for _, c := range calls(l, lease) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		start := time.Now()
		err := c.do(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s with an engine that hangs: err = %v, want the context's", c.name, err)
		}
		if took := time.Since(start); took > patience+2*time.Second {
			t.Errorf("%s with an engine that hangs took %v with a context of %v", c.name, took, patience)
		}
	}
}

// Down tests a Locker's errors while its engine, ended by the caller, is gone: every method must fail, without
// claiming that the lease is held or lost. lease is as for [Hang].
func Down(t testing.TB, l driver.Locker, lease driver.Lease) {
	t.Helper()
	for _, c := range calls(l, lease) {
		err := c.do(t.Context())
		if err == nil {
			t.Errorf("%s with an engine that is gone succeeded", c.name)
		}
		for _, named := range []error{driver.ErrHeld, driver.ErrLeaseLost, context.Canceled, context.DeadlineExceeded} {
			if errors.Is(err, named) {
				t.Errorf("%s with an engine that is gone: err = %v, which is %v", c.name, err, named)
			}
		}
	}
}
