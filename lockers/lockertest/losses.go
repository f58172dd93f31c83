package lockertest

import (
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// This file has the cases for LossNotifiers. Lost may never close, so a case judges only a closed
// channel: its lease has to be lost.

var lossCases = []testCase{
	{"LostIsOpenWhileHeld", lostIsOpenWhileHeld},
	{"LostIsOpenAfterRenewals", lostIsOpenAfterRenewals},
	{"LostIsNotAnothers", lostIsNotAnothers},
}

// mustNotBeLost fails if the lease, which is held, reports a loss.
func mustNotBeLost(t *testing.T, when string, lease claim) {
	t.Helper()
	notifier, ok := lease.Lease.(driver.LossNotifier)
	if !ok {
		t.Fatal("the Locker's first lease is a LossNotifier, and this one is not")
	}
	select {
	case <-notifier.Lost():
		t.Errorf("%s: Lost is closed, and Renew says %v", when, lease.Renew(t.Context(), long))
	case <-time.After(50 * time.Millisecond): // a close on its way comes within it
	}
}

func lostIsOpenWhileHeld(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	lease := acquire(t, a, key, long)
	mustNotBeLost(t, "after TryAcquire", lease)
	mustBeHeld(t, a, key)
	mustBeHeld(t, b, key)
	mustNotBeLost(t, "after others were refused", lease)
	mustWork(t, "Renew", lease.Renew(t.Context(), long))
	mustNotBeLost(t, "after Renew", lease)
	mustWork(t, "Release", lease.Release(t.Context()))
}

// lostIsOpenAfterRenewals outlasts the ends that a lease had before its renewals.
func lostIsOpenAfterRenewals(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	const ttl = grace
	lease := acquire(t, newLocker(t), newKey(), ttl)
	mustWork(t, "Renew", lease.Renew(t.Context(), 2*ttl))
	mustWork(t, "Renew", lease.Renew(t.Context(), long))
	time.Sleep(2*ttl + 50*time.Millisecond)
	mustNotBeLost(t, "after the end that the lease had before Renew", lease)
	mustWork(t, "Release", lease.Release(t.Context()))
}

// lostIsNotAnothers has other leases end in each way, on the same key before and on others meanwhile.
func lostIsNotAnothers(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key, other := newLocker(t), newLocker(t), newKey(), newKey()
	const short = 100 * time.Millisecond
	dead := acquire(t, a, key, short)
	back := takeOver(t, b, key, long, dead)
	mustBeLost(t, "Renew of a lease that another has", dead.Renew(t.Context(), long))
	mustWork(t, "Release", back.Release(t.Context()))
	lease := acquire(t, a, key, long)
	mustNotBeLost(t, "after an earlier lease on the key was lost", lease)
	mustBeLost(t, "Release of a lease that is lost", dead.Release(t.Context()))
	mustNotBeLost(t, "after the release of an earlier lease on the key", lease)

	mustWork(t, "Release", acquire(t, a, other, long).Release(t.Context()))
	mustNotBeLost(t, "after the release of another lease", lease)
	dead = acquire(t, a, other, short)
	takeOver(t, b, other, long, dead)
	mustNotBeLost(t, "after another lease was taken over", lease)
	mustBeLost(t, "Renew of a lease that another has", dead.Renew(t.Context(), long))
	mustNotBeLost(t, "after another lease was found lost", lease)
	mustWork(t, "Renew", lease.Renew(t.Context(), long))
	mustWork(t, "Release", lease.Release(t.Context()))
}
