package bellwether_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// A commit whose first try was not answered and whose second is refused may
// have been written, or come after an invalidation. It is asked for which.
func TestFleet_CommitLostThenRefused(t *testing.T) {
	for _, invalidated := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 2, push, bellwether.Options{NearTTL: time.Second, TTL: time.Hour})
			f.origin.build = 5 * time.Second
			a, b := f.processes[0], f.processes[1]
			a.store.set(func(_ context.Context, op string) error {
				if op == "commit" && a.store.count("commit") == 1 {
					return errRefused
				}
				return nil
			})
			done := make(chan struct{})
			go func() {
				defer close(done)
				a.Get(context.Background(), "k") // began before, and may get either
			}()
			time.Sleep(time.Second)
			if invalidated {
				b.Invalidate(t.Context(), "k")
			}
			time.Sleep(4001 * time.Millisecond)
			if v, err := a.Get(t.Context(), "k"); (v == "v1") == invalidated || err != nil {
				t.Errorf("invalidated elsewhere 4 s ago: %v; Get = %q, %v", invalidated, v, err)
			}
			<-done
		})
	}
}

// A slot that comes while user code panics is not lost.
// Stale beats slow also where the rebuild waits for one of the MaxRebuilds,
// with the store and without.
// The end of a record is no value that others must make for themselves.
// A key that is invalidated during each load, here or where it is heard, is
// answered all the same, after some loads: with what began to be loaded after
// the call.
