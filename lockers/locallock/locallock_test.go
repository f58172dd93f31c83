package locallock_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	// Processes share only the engine, here this Locker.
	engine := locallock.New()
	lockertest.Run(t, func(testing.TB) driver.Locker { return engine })
}

func TestCycles_LeaveNothing(t *testing.T) {
	engine := locallock.New()
	newLocker := func(testing.TB) driver.Locker { return engine }
	lockertest.LeavesNothing(t, newLocker, func() map[string]int { return map[string]int{"leases": engine.Len()} })
}

func TestTryAcquire_EndsExactlyAtItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locallock.New()
		start := time.Now()
		first := leasetest.Acquire(t, l, "k", time.Second)
		time.Sleep(time.Second - 1)
		if got, want := leasetest.MustBeHeld(t, l, "k").Until, start.Add(time.Second); !got.Equal(want) {
			t.Fatalf("Until = %v, want %v", got, want)
		}
		time.Sleep(time.Nanosecond)
		leasetest.Acquire(t, l, "k", time.Second)
		leasetest.MustBeLost(t, "Renew of the expired lease", first.Renew(t.Context(), time.Hour))
	})
}

func TestRenew_CountsFromItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locallock.New()
		lease := leasetest.Acquire(t, l, "k", 10*time.Second)
		time.Sleep(time.Second)
		// Shorter than the remaining time: a holder may give time back.
		leasetest.Renew(t, lease, 2*time.Second)
		if got, want := time.Until(leasetest.MustBeHeld(t, l, "k").Until), 2*time.Second; got != want {
			t.Fatalf("Until is in %v, want in %v", got, want)
		}
	})
}

func TestWatch_ExpiryIsToldByWhoeverComesNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locallock.New()
		leasetest.Acquire(t, l, "k", time.Second)
		ended, err := l.Watch(t.Context(), leasetest.MustBeHeld(t, l, "k"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		select {
		case <-ended:
			t.Fatal("an expiry was announced with nobody there to see it: who runs a timer?")
		default:
		}
		leasetest.Acquire(t, l, "another key", time.Second)
		select {
		case <-ended:
		default:
			t.Fatal("the expired lease was cleared without a word to its watchers")
		}
	})
}

func TestWatch_ForeignHeldError(t *testing.T) {
	if _, err := locallock.New().Watch(t.Context(), &driver.HeldError{Key: "k"}); err == nil {
		t.Fatal("a HeldError that the Locker never made was watched without an error")
	}
}

func TestTable_HoldsNoExpiredLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locallock.New()
		for i := range 1000 {
			lease := leasetest.Acquire(t, l, fmt.Sprint("short", i), time.Duration(1+i%7)*time.Second)
			switch i % 3 {
			case 0:
				leasetest.Renew(t, lease, time.Duration(1+i%5)*time.Second)
			case 1:
				leasetest.Release(t, lease)
			}
		}
		time.Sleep(10 * time.Second)
		leasetest.Acquire(t, l, "last", time.Second)
		if got := l.Len(); got != 1 {
			t.Fatalf("the table holds %d leases, want the last one alone", got)
		}
	})
}
