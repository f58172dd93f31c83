package locallock_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	// Processes have no common memory but the engine, which is this Locker.
	engine := locallock.New()
	lockertest.Run(t, func(testing.TB) bellwether.Locker { return engine })
}

func TestCycles_LeaveNothing(t *testing.T) {
	engine := locallock.New()
	newLocker := func(testing.TB) bellwether.Locker { return engine }
	lockertest.LeavesNothing(t, newLocker, func() map[string]int { return map[string]int{"leases": engine.Len()} })
}

func TestTryAcquire_EndsExactlyAtItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locallock.New()
		start := time.Now()
		first, err := l.TryAcquire(t.Context(), "k", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second - 1)
		var held *bellwether.HeldError
		if _, err := l.TryAcquire(t.Context(), "k", time.Second); !errors.As(err, &held) {
			t.Fatalf("err = %v one nanosecond before the end, want a HeldError", err)
		}
		if want := start.Add(time.Second); !held.Until.Equal(want) {
			t.Fatalf("Until = %v, want %v", held.Until, want)
		}
		time.Sleep(time.Nanosecond)
		if _, err := l.TryAcquire(t.Context(), "k", time.Second); err != nil {
			t.Fatalf("err = %v at the end, want the lease", err)
		}
		if err := first.Renew(t.Context(), time.Hour); !errors.Is(err, bellwether.ErrLeaseLost) {
			t.Fatalf("Renew of the expired lease: err = %v, want ErrLeaseLost", err)
		}
	})
}

func TestRenew_CountsFromItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locallock.New()
		lease, err := l.TryAcquire(t.Context(), "k", 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		// Shorter than what is left: a holder may give time back.
		if err := lease.Renew(t.Context(), 2*time.Second); err != nil {
			t.Fatal(err)
		}
		var held *bellwether.HeldError
		if _, err := l.TryAcquire(t.Context(), "k", time.Second); !errors.As(err, &held) {
			t.Fatalf("err = %v, want a HeldError", err)
		}
		if got, want := time.Until(held.Until), 2*time.Second; got != want {
			t.Fatalf("Until is in %v, want in %v", got, want)
		}
	})
}

func TestWatch_ExpiryIsToldByWhoeverComesNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locallock.New()
		if _, err := l.TryAcquire(t.Context(), "k", time.Second); err != nil {
			t.Fatal(err)
		}
		var held *bellwether.HeldError
		if _, err := l.TryAcquire(t.Context(), "k", time.Second); !errors.As(err, &held) {
			t.Fatalf("err = %v, want a HeldError", err)
		}
		ended, err := l.Watch(t.Context(), held)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		select {
		case <-ended:
			t.Fatal("an expiry was announced with nobody there to see it: who runs a timer?")
		default:
		}
		if _, err := l.TryAcquire(t.Context(), "another key", time.Second); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ended:
		default:
			t.Fatal("the expired lease was cleared without a word to its watchers")
		}
	})
}

func TestWatch_ForeignHeldError(t *testing.T) {
	if _, err := locallock.New().Watch(t.Context(), &bellwether.HeldError{Key: "k"}); err == nil {
		t.Fatal("a HeldError that the Locker never made was watched without an error")
	}
}

func TestTable_HoldsNoExpiredLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locallock.New()
		for i := range 1000 {
			lease, err := l.TryAcquire(t.Context(), fmt.Sprint("short", i), time.Duration(1+i%7)*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			switch i % 3 {
			case 0:
				if err := lease.Renew(t.Context(), time.Duration(1+i%5)*time.Second); err != nil {
					t.Fatal(err)
				}
			case 1:
				if err := lease.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(10 * time.Second)
		if _, err := l.TryAcquire(t.Context(), "last", time.Second); err != nil {
			t.Fatal(err)
		}
		if got := l.Len(); got != 1 {
			t.Fatalf("the table holds %d leases, want the last one alone", got)
		}
	})
}
