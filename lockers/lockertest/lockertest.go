// Package lockertest tests implementations of [driver.Locker] against its contract.
//
// The adapters of this repository pass it. For your own adapter:
//
//	func TestConformance(t *testing.T) {
//		addr := startEngine(t)
//		lockertest.Run(t, func(tb testing.TB) driver.Locker {
//			client := dial(addr)
//			tb.Cleanup(func() { client.Close() })
//			return mylock.New(client)
//		})
//	}
//
// The cases run in real time, and the engine may have other users meanwhile: every key is random. Times are
// judged from the safe side: from before the holder's call to after the taker's, so no delay of the machine
// or the network makes a sound engine fail. Prompt events have a second of grace.
package lockertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
)

const (
	// long is the length of a lease that does not expire during a case.
	long = 30 * time.Second

	// grace is the tolerated delay of an engine and a busy machine.
	grace = time.Second

	pollEvery = 10 * time.Millisecond
)

// Run runs every case as a subtest of t. It leaves out the cases for optional interfaces that the Locker
// lacks. [Hang] and [Down] need a test that stops the engine. Each call of newLocker returns a Locker as in
// another process: on the same engine, with its own client, connections and memory. It may register its
// cleanup with the testing.TB.
func Run(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	t.Helper()
	cases := append(lockerCases[:len(lockerCases):len(lockerCases)], raceCases...)
	l := newLocker(t)
	if _, ok := l.(driver.Watcher); ok {
		cases = append(cases, watcherCases...)
	}
	lease := acquire(t, l, newKey(), long)
	if _, ok := lease.Lease.(driver.Tokener); ok {
		cases = append(cases, tokenCases...)
	}
	if _, ok := lease.Lease.(driver.LossNotifier); ok {
		cases = append(cases, lossCases...)
	}
	mustWork(t, "Release", lease.Release(t.Context()))
	// The group makes Run return after its parallel cases, so the caller may then stop the engine.
	t.Run("contract", func(t *testing.T) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t, newLocker)
			})
		}
	})
}

type testCase struct {
	name string
	run  func(t *testing.T, newLocker func(testing.TB) driver.Locker)
}

// newKey returns a key that no other case and no other process uses.
func newKey() string { return "lockertest:" + adapter.Token() }

// A claim is a lease with its end, as its holder counts.
type claim struct {
	driver.Lease
	end time.Time
}

func acquire(t *testing.T, l driver.Locker, key string, ttl time.Duration) claim {
	t.Helper()
	end := time.Now().Add(ttl)
	lease, err := l.TryAcquire(t.Context(), key, ttl)
	if err != nil {
		t.Fatalf("TryAcquire(%.40q, %v) of a free key: %v", key, ttl, err)
	}
	if lease == nil {
		t.Fatalf("TryAcquire(%.40q, %v): neither a lease nor an error", key, ttl)
	}
	return claim{lease, end}
}

func acquireWithin(t *testing.T, l driver.Locker, key string, ttl, limit time.Duration) claim {
	t.Helper()
	for start := time.Now(); ; time.Sleep(pollEvery) {
		end := time.Now().Add(ttl)
		lease, err := l.TryAcquire(t.Context(), key, ttl)
		if err == nil {
			return claim{lease, end}
		}
		if !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("TryAcquire(%.40q, %v): %v", key, ttl, err)
		}
		if time.Since(start) > limit {
			t.Fatalf("the lease on %.40q is still held after %v: %v", key, limit, err)
		}
	}
}

// takeOver takes a silent holder's lease, not before the holder's own end, nor much later than announced.
func takeOver(t *testing.T, l driver.Locker, key string, ttl time.Duration, dead claim) claim {
	t.Helper()
	end := time.Now().Add(ttl)
	lease, err := l.TryAcquire(t.Context(), key, ttl)
	taken := claim{lease, end}
	if err != nil {
		asHeld(t, err, key)
		taken = acquireWithin(t, l, key, ttl, time.Until(lastMoment(err, dead)))
	}
	if left := time.Until(dead.end); left > 0 {
		t.Fatalf("the lease on %.40q was given away %v before its end", key, left)
	}
	return taken
}

// lastMoment is the latest end of a dead holder's lease, by the first ErrHeld of a caller.
func lastMoment(err error, dead claim) time.Time {
	last := dead.end.Add(3 * grace)
	if held, ok := errors.AsType[*driver.HeldError](err); ok && !held.Until.IsZero() && held.Until.Add(grace).Before(last) {
		last = held.Until.Add(grace)
	}
	return last
}

func mustBeHeld(t *testing.T, l driver.Locker, key string) *driver.HeldError {
	t.Helper()
	lease, err := l.TryAcquire(t.Context(), key, long)
	if err == nil {
		lease.Release(t.Context())
		t.Fatalf("TryAcquire(%.40q) of a held key gave a lease", key)
	}
	return asHeld(t, err, key)
}

func asHeld(t *testing.T, err error, key string) *driver.HeldError {
	t.Helper()
	held, ok := errors.AsType[*driver.HeldError](err)
	if !ok || !errors.Is(err, driver.ErrHeld) {
		t.Fatalf("TryAcquire(%.40q): err = %v, want a *HeldError", key, err)
	}
	if held.Key != key {
		t.Fatalf("HeldError.Key = %.40q, want the key as given, %.40q", held.Key, key)
	}
	return held
}

func mustBeLost(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, driver.ErrLeaseLost) {
		t.Fatalf("%s: err = %v, want ErrLeaseLost", what, err)
	}
}

func mustWork(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func cancelled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
