package lockertest

import (
	"bytes"
	"context"
	"errors"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
)

// This file has the cases for Watchers. By the contract a channel may close early, so no case waits
// for a first close alone: it looks for a quiet watch first.

var watcherCases = []testCase{
	{"WatchWakesOnRelease", watchWakesOnRelease},
	{"WatchMissesNoRelease", watchMissesNoRelease},
	{"WatchMissesNoReleaseInAYoungLocker", watchMissesNoReleaseInAYoungLocker},
	{"WatchMissesNoChangeOfHolder", watchMissesNoChangeOfHolder},
	{"WatchOfADeadHolder", watchOfADeadHolder},
	{"WatchesLeadToTheLease", watchesLeadToTheLease},
	{"WatchWakesAll", watchWakesAll},
	{"WatchEndsWithItsContext", watchEndsWithItsContext},
}

// watch watches held. With a healthy engine push must start, though not at once.
func watch(t *testing.T, ctx context.Context, l driver.Locker, held *driver.HeldError) <-chan struct{} {
	t.Helper()
	for start := time.Now(); ; time.Sleep(pollEvery) {
		freed, err := l.(driver.Watcher).Watch(ctx, held)
		if err == nil {
			if freed == nil {
				t.Fatal("Watch: neither a channel nor an error")
			}
			return freed
		}
		if time.Since(start) > 2*grace {
			t.Fatalf("Watch gives no push on a healthy engine for %v: %v", time.Since(start), err)
		}
	}
}

// watchQuietly watches the held key until a watch does not close by itself.
func watchQuietly(t *testing.T, ctx context.Context, l driver.Locker, key string) <-chan struct{} {
	t.Helper()
	for range 50 {
		freed := watch(t, ctx, l, mustBeHeld(t, l, key))
		select {
		case <-freed:
		case <-time.After(30 * time.Millisecond):
			return freed
		}
	}
	t.Fatal("a watch of a lease that does not end closes again and again")
	return nil
}

func mustClose(t *testing.T, what string, freed <-chan struct{}) time.Duration {
	t.Helper()
	start := time.Now()
	select {
	case <-freed:
	case <-time.After(2 * grace):
		t.Fatalf("%s: not woken within %v", what, 2*grace)
	}
	return time.Since(start)
}

func watchWakesOnRelease(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	// The quickest of several wakes is judged: a disguised poll is always slow, a busy machine is not.
	quickest := time.Hour
	for range 8 {
		lease := acquire(t, a, key, long)
		freed := watchQuietly(t, t.Context(), b, key)
		mustWork(t, "Release", lease.Release(t.Context()))
		quickest = min(quickest, mustClose(t, "after the release", freed))
	}
	t.Logf("woken %v after Release returned, at best of 8", quickest)
	if limit := 50 * time.Millisecond; quickest > limit {
		t.Errorf("the quickest of 8 wakes came %v after the release, want less than %v", quickest, limit)
	}
}

func watchMissesNoRelease(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	lease := acquire(t, a, key, long)
	watchQuietly(t, t.Context(), b, key) // push is up
	for range 20 {
		held := mustBeHeld(t, b, key)
		mustWork(t, "Release", lease.Release(t.Context()))
		mustClose(t, "a watch begun after the release, which came after the look", watch(t, t.Context(), b, held))
		lease = acquire(t, a, key, long)
	}
}

func watchMissesNoReleaseInAYoungLocker(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, key := newLocker(t), newKey()
	for range 10 {
		lease, young := acquire(t, a, key, long), newLocker(t)
		held := mustBeHeld(t, young, key)
		mustWork(t, "Release", lease.Release(t.Context()))
		mustClose(t, "a young locker's watch begun after the release", watch(t, t.Context(), young, held))
	}
}

func watchMissesNoChangeOfHolder(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, c, key := newLocker(t), newLocker(t), newKey()
	old := newLocker(t)
	lease := acquire(t, a, key, long)
	watchQuietly(t, t.Context(), old, key) // push is up
	for _, b := range []driver.Locker{old, newLocker(t)} {
		held := mustBeHeld(t, b, key)
		mustWork(t, "Release", lease.Release(t.Context()))
		lease = acquire(t, c, key, long)
		mustClose(t, "a watch of a lease that was released and is another's now", watch(t, t.Context(), b, held))
	}
}

func watchOfADeadHolder(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	dead := acquire(t, a, key, 700*time.Millisecond)
	held := mustBeHeld(t, b, key)
	start := time.Now()
	watch(t, t.Context(), b, held)
	if took := time.Since(start); took > grace {
		t.Errorf("Watch itself took %v: it returns a channel, and does not wait", took)
	}
	takeOver(t, b, key, long, dead)
}

// watchesLeadToTheLease waits for a lease as a process does: it tries at each wake, and watches again if it is refused.
func watchesLeadToTheLease(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	for range 10 {
		lease := acquire(t, a, key, long)
		freed := watchQuietly(t, t.Context(), b, key)
		released := make(chan error, 1)
		go func() { released <- lease.Release(t.Context()) }()
		mustClose(t, "a watch of a lease that is being released", freed)
		next, err := b.TryAcquire(t.Context(), key, long)
		for ; err != nil; next, err = b.TryAcquire(t.Context(), key, long) {
			mustClose(t, "a watch begun after a wake that came before the release", watch(t, t.Context(), b, asHeld(t, err, key)))
		}
		mustWork(t, "Release", <-released)
		mustWork(t, "Release", next.Release(t.Context()))
	}
}

func watchWakesAll(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, c, key := newLocker(t), newLocker(t), newLocker(t), newKey()
	lease := acquire(t, a, key, long)
	watchQuietly(t, t.Context(), b, key)
	watchQuietly(t, t.Context(), c, key)
	var watches []<-chan struct{}
	for i := range 50 {
		l := []driver.Locker{b, c}[i%2]
		// Some watches end before the release: the others must not suffer.
		if ctx, cancel := context.WithCancel(t.Context()); i%5 == 0 {
			watch(t, ctx, l, mustBeHeld(t, l, key))
			cancel()
		} else {
			defer cancel()
			watches = append(watches, watch(t, ctx, l, mustBeHeld(t, l, key)))
		}
	}
	mustWork(t, "Release", lease.Release(t.Context()))
	for _, freed := range watches {
		mustClose(t, "one of many watchers of a key", freed)
	}
}

func watchEndsWithItsContext(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	lease := acquire(t, a, key, long)
	watchQuietly(t, t.Context(), b, key) // all that the locker starts once is running

	if _, err := b.(driver.Watcher).Watch(cancelled(t), mustBeHeld(t, b, key)); !errors.Is(err, context.Canceled) {
		t.Errorf("Watch with a cancelled context: err = %v, want context.Canceled", err)
	}

	// Goroutines inherit labels from their starters, which tells them from those of concurrent cases.
	mark := adapter.Token()
	var wg sync.WaitGroup
	wg.Go(func() {
		pprof.Do(t.Context(), pprof.Labels("lockertest", mark), func(ctx context.Context) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			for range 100 {
				_, err := b.TryAcquire(ctx, key, long)
				held, ok := errors.AsType[*driver.HeldError](err)
				if !ok {
					t.Errorf("TryAcquire of a held key: err = %v, want a *HeldError", err)
					return
				}
				if _, err := b.(driver.Watcher).Watch(ctx, held); err != nil {
					t.Errorf("Watch: %v", err)
					return
				}
			}
		})
	})
	wg.Wait()
	left := ""
	for start := time.Now(); time.Since(start) < 2*grace; time.Sleep(pollEvery) {
		if left = labelled(mark); left == "" {
			break
		}
	}
	if left != "" {
		t.Errorf("goroutines of watches whose context has ended are still there:\n%s", left)
	}
	mustWork(t, "Release", lease.Release(t.Context()))
}

// labelled returns the stacks of the goroutines with mark.
func labelled(mark string) string {
	var all bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&all, 1)
	var marked []string
	for _, stack := range strings.Split(all.String(), "\n\n") {
		if strings.Contains(stack, mark) {
			marked = append(marked, stack)
		}
	}
	return strings.Join(marked, "\n\n")
}
