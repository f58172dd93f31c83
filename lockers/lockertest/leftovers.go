package lockertest

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bellwether-go/bellwether/driver"
)

// LeavesNothing takes and releases ten thousand leases (a thousand with -short), each on its own key. It
// fails if the engine keeps more afterwards than before, while the Lockers are in use and after their end.
// The engine must have no other users meanwhile. newLocker is the argument of [Run]. count returns the
// numbers of all things that a lease may leave: keys, nodes, items, sessions. Things kept by a Locker
// whatever the number of leases must end with the Locker's testing.TB.
func LeavesNothing(t *testing.T, newLocker func(testing.TB) driver.Locker, count func() map[string]int) {
	t.Helper()
	const lockers, callers = 4, 40
	keys := 10_000
	if testing.Short() {
		keys = 1_000
	}
	unique := newKey()
	cycles := func(t *testing.T, keys int) (inUse map[string]int) {
		var users []driver.Locker
		for range lockers {
			users = append(users, newLocker(t))
		}
		var next atomic.Int64
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for n := next.Add(1); n <= int64(keys); n = next.Add(1) {
					lease, err := users[i%lockers].TryAcquire(t.Context(), fmt.Sprint(unique, ":", n), long)
					if err == nil {
						err = lease.Release(t.Context())
					}
					if err != nil {
						t.Errorf("cycle %d: %v", n, err)
						return
					}
				}
			})
		}
		wg.Wait()
		return count()
	}
	// Things made once for all keys exist before the count.
	var inUseBefore, inUse map[string]int
	t.Run("a few", func(t *testing.T) { inUseBefore = cycles(t, lockers) })
	before := count()
	t.Run("many", func(t *testing.T) { inUse = cycles(t, keys) })
	if !maps.Equal(inUse, inUseBefore) {
		t.Errorf("after %d leases there are %v, and %v after %d", keys, inUse, inUseBefore, lockers)
	}
	if after := count(); !maps.Equal(after, before) {
		t.Errorf("%d leases have left %v, where there were %v", keys, after, before)
	}
}
