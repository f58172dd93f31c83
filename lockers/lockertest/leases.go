package lockertest

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
)

var lockerCases = []testCase{
	{"OneOfManyWins", oneOfManyWins},
	{"NeverTwoAtATime", neverTwoAtATime},
	{"NotReentrant", notReentrant},
	{"ExpiresAfter50ms", func(t *testing.T, n func(testing.TB) driver.Locker) { expires(t, n, 50*time.Millisecond) }},
	{"ExpiresAfter1500ms", func(t *testing.T, n func(testing.TB) driver.Locker) { expires(t, n, 1500*time.Millisecond) }},
	{"RenewExtends", renewExtends},
	{"RenewAfterExpiry", renewAfterExpiry},
	{"RenewAfterTakeover", renewAfterTakeover},
	{"RenewConcurrently", renewConcurrently},
	{"ReleaseFreesAtOnce", releaseFreesAtOnce},
	{"ReleaseTwice", releaseTwice},
	{"ReleaseAfterExpiry", releaseAfterExpiry},
	{"ReleaseAfterTakeover", releaseAfterTakeover},
	{"ReleaseConcurrently", releaseConcurrently},
	{"AnnouncedEnd", announcedEnd},
	{"HostileKeys", hostileKeys},
	{"TTLNotPositive", ttlNotPositive},
	{"ShortTTL", shortTTL},
	{"LongTTL", longTTL},
	{"CancelledContext", cancelledContext},
	{"ContextEndsDuringTheCall", contextEndsDuringTheCall},
}

func oneOfManyWins(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	lockers := []driver.Locker{newLocker(t), newLocker(t), newLocker(t), newLocker(t)}
	key := newKey()
	leases, errs := make([]driver.Lease, 100), make([]error, 100)
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range leases {
		wg.Go(func() {
			<-begin
			leases[i], errs[i] = lockers[i%len(lockers)].TryAcquire(t.Context(), key, long)
		})
	}
	close(begin)
	wg.Wait()
	winners := 0
	for i, err := range errs {
		if err != nil {
			asHeld(t, err, key)
			continue
		}
		winners++
		defer leases[i].Release(t.Context())
	}
	if winners != 1 {
		t.Fatalf("%d of 100 acquired the lease at once, want 1", winners)
	}
}

// neverTwoAtATime has leases change hands quickly, so acquires meet releases: each holder is alone.
func neverTwoAtATime(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	key := newKey()
	lockers := []driver.Locker{newLocker(t), newLocker(t), newLocker(t)}
	stop := time.Now().Add(400 * time.Millisecond)
	var holders, turns atomic.Int64
	var wg sync.WaitGroup
	for _, l := range slices.Concat(lockers, lockers) {
		wg.Go(func() {
			for time.Now().Before(stop) {
				lease, err := l.TryAcquire(t.Context(), key, long)
				if errors.Is(err, driver.ErrHeld) {
					time.Sleep(time.Millisecond)
					continue
				}
				if err != nil {
					t.Errorf("TryAcquire: %v", err)
					return
				}
				turns.Add(1)
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d holders at a time", n)
				}
				time.Sleep(100 * time.Microsecond)
				holders.Add(-1)
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if turns.Load() == 0 {
		t.Error("nobody ever held the lease")
	}
}

func notReentrant(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	l, key := newLocker(t), newKey()
	lease := acquire(t, l, key, long)
	mustBeHeld(t, l, key)
	mustWork(t, "Renew", lease.Renew(t.Context(), long))
	mustBeHeld(t, l, key)
	mustWork(t, "Release of a lease that was asked for again", lease.Release(t.Context()))
}

// expires has a holder die, with twenty callers after its lease.
func expires(t *testing.T, newLocker func(testing.TB) driver.Locker, ttl time.Duration) {
	key := newKey()
	lockers := []driver.Locker{newLocker(t), newLocker(t), newLocker(t)}
	dead := acquire(t, newLocker(t), key, ttl)
	var winners, before atomic.Int64
	taken := make(chan driver.Lease, 20)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			var limit time.Time
			for winners.Load() == 0 {
				lease, err := lockers[i%len(lockers)].TryAcquire(t.Context(), key, long)
				switch {
				case err == nil:
					if time.Now().Before(dead.end) {
						before.Add(1)
					}
					winners.Add(1)
					taken <- lease
				case !errors.Is(err, driver.ErrHeld):
					t.Errorf("TryAcquire: %v", err)
					return
				case limit.IsZero():
					limit = lastMoment(err, dead)
				case time.Now().After(limit):
					t.Errorf("a lease of %v is still held %v after its end", ttl, time.Since(dead.end))
					return
				}
				time.Sleep(pollEvery)
			}
			if _, err := lockers[i%len(lockers)].TryAcquire(t.Context(), key, long); err == nil {
				winners.Add(1)
			}
		})
	}
	wg.Wait()
	// Only now: a busy engine may carry out an attempt from before the first win long after it.
	if len(taken) > 0 {
		(<-taken).Release(t.Context())
	}
	if n := winners.Load(); n != 1 && !t.Failed() {
		t.Errorf("%d took the dead holder's lease over, want 1", n)
	}
	if before.Load() > 0 {
		t.Error("the lease was given away before its end")
	}
}

func renewExtends(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	lease := acquire(t, a, key, 1200*time.Millisecond)
	time.Sleep(100 * time.Millisecond)
	mustBeHeld(t, b, key) // b has seen the lease before its renewal
	lease.end = time.Now().Add(1700 * time.Millisecond)
	mustWork(t, "Renew", lease.Renew(t.Context(), 1700*time.Millisecond))
	mustBeHeld(t, b, key)
	takeOver(t, b, key, long, lease)
	mustBeLost(t, "Renew after the renewed lease's end", lease.Renew(t.Context(), long))
}

func renewAfterExpiry(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	const ttl = 100 * time.Millisecond
	lease := acquire(t, a, key, ttl)
	time.Sleep(ttl) // from after the call: whenever in it the Locker read its clock, the lease is over
	mustBeLost(t, "Renew of an expired lease that nobody has taken", lease.Renew(t.Context(), long))
	acquireWithin(t, b, key, long, 3*grace)
}

func renewAfterTakeover(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, c, key := newLocker(t), newLocker(t), newLocker(t), newKey()
	lost := acquire(t, a, key, 100*time.Millisecond)
	taken := takeOver(t, b, key, long, lost)
	mustBeLost(t, "Renew of a lease that another has", lost.Renew(t.Context(), long))
	mustBeLost(t, "Renew of a lease that another has", lost.Renew(t.Context(), time.Millisecond))
	time.Sleep(100 * time.Millisecond)
	mustBeHeld(t, c, key) // not shortened to a millisecond
	mustWork(t, "Renew by the one who took over", taken.Renew(t.Context(), long))
	mustBeLost(t, "Renew of a lease that another has renewed", lost.Renew(t.Context(), long))
	mustWork(t, "Release by the one who took over", taken.Release(t.Context()))
	mustBeLost(t, "Renew of a lease that another has had", lost.Renew(t.Context(), long))
	acquire(t, c, key, long)
}

func renewConcurrently(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	lease := acquire(t, a, key, long)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := lease.Renew(t.Context(), long); err != nil {
				t.Errorf("Renew beside others of the same lease: %v", err)
			}
		})
	}
	wg.Wait()
	mustBeHeld(t, b, key)
	mustWork(t, "Release", lease.Release(t.Context()))
}

func releaseFreesAtOnce(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	for range 5 {
		lease := acquire(t, a, key, long)
		mustBeHeld(t, b, key)
		mustWork(t, "Release", lease.Release(t.Context()))
		lease = acquire(t, b, key, long)
		mustWork(t, "Renew", lease.Renew(t.Context(), long))
		mustBeHeld(t, a, key)
		mustWork(t, "Release", lease.Release(t.Context()))
	}
}

func releaseTwice(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	first := acquire(t, a, key, long)
	mustWork(t, "Release", first.Release(t.Context()))
	mustBeLost(t, "a second Release", first.Release(t.Context()))
	mustBeLost(t, "Renew after Release", first.Renew(t.Context(), long))
	second := acquire(t, a, key, long)
	mustBeLost(t, "a Release with another lease of the same locker there", first.Release(t.Context()))
	mustBeHeld(t, b, key)
	mustWork(t, "Release", second.Release(t.Context()))
}

func releaseAfterExpiry(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	const ttl = 100 * time.Millisecond
	lease := acquire(t, a, key, ttl)
	time.Sleep(ttl) // from after the call: whenever in it the Locker read its clock, the lease is over
	mustBeLost(t, "Release of an expired lease that nobody has taken", lease.Release(t.Context()))
	acquireWithin(t, b, key, long, 3*grace)
}

func releaseAfterTakeover(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, c, key := newLocker(t), newLocker(t), newLocker(t), newKey()
	stale := acquire(t, a, key, 100*time.Millisecond)
	taken := takeOver(t, b, key, long, stale)
	mustBeLost(t, "Release of a lease that another has", stale.Release(t.Context()))
	mustBeHeld(t, c, key)
	mustWork(t, "Renew by the one who took over", taken.Renew(t.Context(), long))
	mustBeLost(t, "Release of a lease that another has", stale.Release(t.Context()))
	mustBeHeld(t, a, key)
	mustWork(t, "Release by the one who took over", taken.Release(t.Context()))
}

func releaseConcurrently(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	l, key := newLocker(t), newKey()
	lease := acquire(t, l, key, long)
	var released atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			switch err := lease.Release(t.Context()); {
			case err == nil:
				released.Add(1)
			case !errors.Is(err, driver.ErrLeaseLost):
				t.Errorf("Release beside others of the same lease: %v", err)
			}
		})
	}
	wg.Wait()
	if n := released.Load(); n != 1 {
		t.Errorf("%d of 8 releases of one lease report success, want 1", n)
	}
	acquire(t, l, key, long)
}

func announcedEnd(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	const ttl = 10 * time.Second
	holder := acquire(t, a, key, ttl)
	check := func(what string, ttl time.Duration) {
		t.Helper()
		held := mustBeHeld(t, b, key)
		if held.Until.IsZero() {
			return // the engine does not tell
		}
		if held.Until == held.Until.Round(0) {
			t.Errorf("%s: Until has no monotonic clock reading, and moves with the wall clock: make it of time.Now", what)
		}
		if held.Until.Before(holder.end) {
			t.Errorf("%s: Until is %v before the holder's own end", what, holder.end.Sub(held.Until))
		}
		if latest := time.Now().Add(ttl + grace); held.Until.After(latest) {
			t.Errorf("%s: Until is more than %v later than a lease of %v can last", what, held.Until.Sub(latest), ttl)
		}
	}
	check("first look", ttl)
	time.Sleep(200 * time.Millisecond)
	check("second look", ttl)
	holder.end = time.Now().Add(2 * ttl)
	mustWork(t, "Renew", holder.Renew(t.Context(), 2*ttl))
	check("after a renewal", 2*ttl)
	time.Sleep(100 * time.Millisecond)
	holder.end = time.Now().Add(2 * ttl)
	mustWork(t, "Renew to the same length", holder.Renew(t.Context(), 2*ttl))
	check("after a renewal to the same length", 2*ttl)
	mustWork(t, "Release", holder.Release(t.Context()))
}

func hostileKeys(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, unique := newLocker(t), newLocker(t), newKey()
	keys := []string{
		unique,
		unique + " ",
		" " + unique,
		unique + "\x00",
		unique + "\x00\x00",
		unique + "\n",
		unique + "\r\n",
		unique + "\t",
		unique + "\x7f",
		unique + "\r\nset injected 0 0 1\r\nx\r\n",
		unique + "\r\nDEL injected\r\n",
		unique + " 0 60 1 noreply",
		unique + "é",       // composed
		unique + "e\u0301", // the same to the eye, decomposed
		unique + "\u200b",
		unique + "世界",
		unique + "\xff",
		unique + "\xff\xfe",
		unique + "\xc3",
		unique + "\ufffd", // a decoder's replacement for the invalid ones
		"{" + unique,
		"}" + unique,
		"{" + unique + "}",
		"{}" + unique,
		"{a}{b}" + unique,
		"#" + unique,
		"/" + unique,
		unique + "/",
		unique + "/a",
		unique + "//a",
		unique + "_a",
		unique + "-a",
		unique + "%2Fa",
		unique + "/../a",
		"../" + unique,
		"*" + unique,
		unique + "?",
		unique + "%20",
		unique + "'; --",
		strings.ToUpper(unique),
		unique + strings.Repeat("k", 100),
		unique + strings.Repeat("k", 200),
		unique + strings.Repeat("k", 10<<10),
		unique + strings.Repeat("k", 10<<10) + "l",
		unique + strings.Repeat("\x01", 10<<10),
	}
	for _, key := range keys[1:] {
		// This repository's adapters' name for the key, as a key.
		if name := adapter.Name(key); name != key {
			keys = append(keys, name)
		}
	}
	leases := make([]claim, len(keys))
	for i, key := range keys {
		leases[i] = acquire(t, a, key, long) // free although all keys before are held
	}
	for i, key := range keys {
		mustBeHeld(t, b, key)
		mustWork(t, "Renew", leases[i].Renew(t.Context(), long))
	}
	for i, key := range keys {
		mustWork(t, "Release", leases[i].Release(t.Context()))
		mustWork(t, "Release", acquire(t, b, key, long).Release(t.Context()))
	}

	// All users of the engine share one empty key.
	lease := acquireWithin(t, a, "", 2*time.Second, 5*time.Second)
	mustBeHeld(t, b, "")
	mustWork(t, "Release", lease.Release(t.Context()))
}

func ttlNotPositive(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	check := func(what string, err error) {
		t.Helper()
		if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("%s: err = %v, want one that is neither ErrHeld nor ErrLeaseLost", what, err)
		}
	}
	for _, ttl := range []time.Duration{0, -1, -time.Hour} {
		_, err := a.TryAcquire(t.Context(), key, ttl)
		check("TryAcquire of a free key with ttl "+ttl.String(), err)
	}
	lease := acquire(t, a, key, long)
	for _, ttl := range []time.Duration{0, -1, -time.Hour} {
		_, err := b.TryAcquire(t.Context(), key, ttl)
		check("TryAcquire of a held key with ttl "+ttl.String(), err)
		check("Renew with ttl "+ttl.String(), lease.Renew(t.Context(), ttl))
	}
	mustBeHeld(t, b, key)
	mustWork(t, "Release", lease.Release(t.Context()))
}

// longTTL uses the longest length, with which the end of a lease may overflow. A lease may end sooner than in centuries.
func longTTL(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	const longest = time.Duration(math.MaxInt64)
	a, b, key := newLocker(t), newLocker(t), newKey()
	held := func() {
		t.Helper()
		if until := mustBeHeld(t, b, key).Until; !until.IsZero() && time.Until(until) < long {
			t.Errorf("a lease with ttl %v is announced to end in %v", longest, time.Until(until))
		}
	}
	lease := acquire(t, a, key, longest)
	held()
	mustWork(t, "Renew", lease.Renew(t.Context(), longest))
	held()
	mustWork(t, "Release", lease.Release(t.Context()))
	mustWork(t, "Release", acquire(t, b, key, long).Release(t.Context()))
}

// shortTTL uses lengths below engines' units: rounded to 0, they are errors, ended leases, or no expiry.
func shortTTL(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b := newLocker(t), newLocker(t)
	for _, ttl := range []time.Duration{1, time.Microsecond, 499 * time.Microsecond, 999 * time.Microsecond} {
		key := newKey()
		lease := acquire(t, a, key, long)
		_, drawsToken := lease.Lease.(driver.Tokener)
		start := time.Now()
		mustWork(t, "Renew with ttl "+ttl.String(), lease.Renew(t.Context(), ttl))
		// By the contract it may end as late as before, and no sooner than ttl after the call.
		if taken, err := b.TryAcquire(t.Context(), key, long); err == nil {
			if passed := time.Since(start); passed < ttl {
				t.Errorf("a lease that was renewed with ttl %v was given away after %v", ttl, passed)
			}
			mustWork(t, "Release", taken.Release(t.Context()))
		}

		key = newKey()
		start = time.Now()
		switch short, err := a.TryAcquire(t.Context(), key, ttl); {
		case err == nil:
			takeOver(t, b, key, long, claim{short, start.Add(ttl)})
		case !drawsToken || time.Since(start) < ttl: // else it may be over before its token is drawn
			t.Errorf("TryAcquire of a free key with ttl %v: %v", ttl, err)
		}

		key = newKey()
		lease = acquire(t, a, key, 200*time.Millisecond)
		if err := lease.Renew(t.Context(), ttl); err != nil && !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("Renew with ttl %v: %v", ttl, err)
		}
		takeOver(t, b, key, long, claim{lease.Lease, start})
	}
}

func cancelledContext(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	ended := cancelled(t)
	expired, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()

	if _, err := a.TryAcquire(ended, key, long); !errors.Is(err, context.Canceled) {
		t.Fatalf("TryAcquire with a cancelled context: err = %v, want context.Canceled", err)
	}
	if _, err := a.TryAcquire(expired, key, long); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("TryAcquire after the context's deadline: err = %v, want context.DeadlineExceeded", err)
	}
	lease := acquireWithin(t, b, key, long, 2*grace) // no lease without a holder is left
	if err := lease.Renew(ended, long); !errors.Is(err, context.Canceled) {
		t.Errorf("Renew with a cancelled context: err = %v, want context.Canceled", err)
	}
	if err := lease.Renew(expired, long); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Renew after the context's deadline: err = %v, want context.DeadlineExceeded", err)
	}
	if err := lease.Release(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Release with a cancelled context: err = %v, want context.Canceled", err)
	}
	if _, err := a.TryAcquire(ended, key, long); !errors.Is(err, context.Canceled) {
		t.Errorf("TryAcquire of a held key with a cancelled context: err = %v, want context.Canceled", err)
	}
	if err := lease.Release(t.Context()); err != nil && !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Release after one with a cancelled context: %v", err)
	}
	acquireWithin(t, a, key, long, 2*grace)
}

// contextEndsDuringTheCall ends the context before the request, after the reply, and between.
func contextEndsDuringTheCall(t *testing.T, newLocker func(testing.TB) driver.Locker) {
	a, b, key := newLocker(t), newLocker(t), newKey()
	for i := range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
		start := time.Now()
		lease, err := a.TryAcquire(ctx, key, long)
		if took := time.Since(start); took > grace {
			t.Errorf("TryAcquire took %v with a context that ended at once", took)
		}
		switch {
		case err == nil:
			if err := lease.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
		case errors.Is(err, driver.ErrHeld):
			// By an earlier round, whose release is still on its way.
		case ctx.Err() == nil || !errors.Is(err, ctx.Err()):
			t.Errorf("TryAcquire: err = %v, want the context's %v", err, ctx.Err())
		}
		cancel()
	}
	// The engine may have a queue of the rounds' requests. The adapter's time begins when it has answered them.
	for range 2 {
		mustWork(t, "Release", acquire(t, b, newKey(), long).Release(t.Context()))
	}
	acquireWithin(t, b, key, long, 3*grace)
}
