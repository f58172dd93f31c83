package lockertest

import (
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

var tokenCases = []testCase{
	{"TokensRise", tokensRise},
	{"TokenStaysThroughRenewals", tokenStaysThroughRenewals},
}

func token(t *testing.T, lease claim) uint64 {
	t.Helper()
	tokener, ok := lease.Lease.(driver.Tokener)
	if !ok {
		t.Fatal("the Locker's first lease is a Tokener, and this one is not")
	}
	return tokener.Token()
}

func tokensRise(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	lockers := []driver.Locker{newLocker(t), newLocker(t)}
	key := newKey()
	lease := acquire(t, lockers[0], key, long)
	last := token(t, lease)
	rises := func(how string) {
		t.Helper()
		now := token(t, lease)
		if now <= last {
			t.Errorf("after a %s the token is %d, which was %d before", how, now, last)
		}
		last = now
	}
	for i := range 20 {
		mustWork(t, "Release", lease.Release(t.Context()))
		lease = acquire(t, lockers[i%2], key, long)
		rises("release")
	}
	mustWork(t, "Renew", lease.Renew(t.Context(), long))
	mustWork(t, "Release", lease.Release(t.Context()))
	lease = acquire(t, lockers[0], key, 100*time.Millisecond)
	rises("renewal and a release")
	lease = takeOver(t, lockers[1], key, 100*time.Millisecond, lease)
	rises("takeover")
	time.Sleep(time.Until(lease.end))
	lease = acquireWithin(t, lockers[1], key, long, 3*grace)
	rises("takeover from itself")
}

func tokenStaysThroughRenewals(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	lease := acquire(t, newLocker(t), newKey(), long)
	want := token(t, lease)
	for range 3 {
		mustWork(t, "Renew", lease.Renew(t.Context(), long))
		if got := token(t, lease); got != want {
			t.Fatalf("a renewal made the token %d of %d", got, want)
		}
	}
	mustWork(t, "Release", lease.Release(t.Context()))
	if got := token(t, lease); got != want {
		t.Fatalf("the release made the token %d of %d", got, want)
	}
}
