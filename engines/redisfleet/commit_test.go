package redisfleet

import (
	"fmt"
	"sync"
	"testing"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/redislease"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

// TestCommitAndRelease_Together: calls that come during a request share the next one. Each commits its own key, is
// refused by its own epoch, and releases its own lease.
func TestCommitAndRelease_Together(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	rdb, watched, seen := dial(t, srv.Addr), dial(t, srv.Addr), &scripts{}
	watched.AddHook(seen)
	eng := over(t, watched)
	first := elect(t, eng, "first", 0)
	must(t, eng.CommitAndRelease(t.Context(), "first", value(first.Epoch), first.Lease)) // Redis has the script now
	const keys = 200
	fenced := func(i int) bool { return i%10 == 7 }
	var won [keys]driver.Election
	for i := range keys {
		won[i] = elect(t, eng, fmt.Sprint("k", i), 0)
		if fenced(i) {
			must(t, eng.Invalidate(t.Context(), fmt.Sprint("k", i)))
		}
	}
	must(t, rdb.Do(t.Context(), "client", "pause", "100", "all").Err())
	seen.sent.Store(0)
	var errs [keys]error
	var calls sync.WaitGroup
	for i := range keys {
		calls.Go(func() {
			errs[i] = eng.CommitAndRelease(t.Context(), fmt.Sprint("k", i), value(won[i].Epoch), won[i].Lease)
		})
	}
	calls.Wait()
	if n := seen.sent.Load(); n > keys/4 {
		t.Errorf("%d scripts for %d keys", n, keys)
	}
	for i := range keys {
		key, want := fmt.Sprint("k", i), error(nil)
		if fenced(i) {
			want = driver.ErrFenced
		}
		got, err := eng.Get(t.Context(), key)
		held := rdb.Exists(t.Context(), redislease.Key(eng.Prefix, key)).Val() > 0
		if errs[i] != want || held != fenced(i) || fenced(i) != (err != nil) || !fenced(i) && got.Epoch != won[i].Epoch {
			t.Errorf("key %d: %v, want %v; then an entry of %d (%v), and held is %v", i, errs[i], want, got.Epoch, err, held)
		}
	}
}
