package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// This file tests engines that are store and locker at once.

func elects(i Instance) bool { return i.Elects }

func (k kit) elector() driver.Elector {
	k.Helper()
	s := k.Open(k)
	e, ok := s.(driver.Elector)
	if !ok {
		k.Fatalf("%T is no driver.Elector", s)
	}
	return e
}

const electTTL = time.Minute

func (k kit) elect(s driver.Elector, past uint64) driver.Election {
	k.Helper()
	got, err := s.Elect(k.Context(), k.key, past, electTTL)
	if err != nil {
		k.Fatalf("Elect: %v", err)
	}
	return got
}

// leads elects, and wants the lease with the entry want and a later epoch.
func (k kit) leads(s driver.Elector, past uint64, want driver.Entry) driver.Election {
	k.Helper()
	got := k.elect(s, past)
	if got.Lease == nil || got.Held != nil || got.Epoch <= want.Epoch {
		k.Fatalf("Elect past %d: %+v, want a lease and an epoch above %d", past, got, want.Epoch)
	}
	if err := same(got.Entry, want); err != nil {
		k.Fatalf("Elect past %d shows the leader %v", past, err)
	}
	return got
}

// answers wants the entry alone from Elect.
func (k kit) answers(s driver.Elector, past uint64, want driver.Entry) {
	k.Helper()
	got := k.elect(s, past)
	if got.Lease != nil || got.Held != nil || got.Epoch != 0 {
		k.Fatalf("Elect past %d: %+v, want the entry of epoch %d alone", past, got, want.Epoch)
	}
	if err := same(got.Entry, want); err != nil {
		k.Fatalf("Elect past %d: %v", past, err)
	}
}

// held wants the holder from Elect, with the entry. The holder's lease has time left.
func (k kit) held(s driver.Elector, past uint64, want driver.Entry) *driver.HeldError {
	k.Helper()
	asked := time.Now()
	got := k.elect(s, past)
	if got.Held == nil || got.Lease != nil || got.Epoch != 0 {
		k.Fatalf("Elect past %d: %+v, want the holder", past, got)
	}
	if got.Held.Key != k.key {
		k.Fatalf("Elect past %d: HeldError.Key = %.40q, want the key as given, %.40q", past, got.Held.Key, k.key)
	}
	if until := got.Held.Until; !until.IsZero() && until.Before(asked) {
		k.Fatalf("Elect past %d: the holder's lease has ended %v before the call", past, asked.Sub(until))
	}
	if err := same(got.Entry, want); err != nil {
		k.Fatalf("Elect past %d shows who is not elected %v", past, err)
	}
	return got.Held
}

func (k kit) commitAndRelease(s driver.Elector, e driver.Entry, lease driver.Lease) {
	k.Helper()
	if err := s.CommitAndRelease(k.Context(), k.key, e, lease); err != nil {
		k.Fatalf("CommitAndRelease: %v", err)
	}
}

func testElect(k kit) {
	a, b := k.elector(), k.elector()
	won := k.leads(a, 0, driver.Entry{})
	if held := k.held(b, 0, driver.Entry{}); !errors.Is(held, driver.ErrHeld) {
		k.Fatalf("the holder is told by %v, want ErrHeld", held)
	}
	first := value(won.Epoch, "v")
	first.TTL, first.StaleIfError = time.Second, time.Hour // far longer than a busy machine delays the next request
	k.commitAndRelease(a, first, won.Lease)
	k.answers(b, 0, first)
	time.Sleep(first.TTL + 50*time.Millisecond) // of the engine's clock
	next := k.leads(b, 0, first)
	k.held(a, 0, first)
	k.present(a, first) // stale, and present
	if err := next.Lease.Release(k.Context()); err != nil {
		k.Fatalf("Release: %v", err)
	}
	k.leads(a, 0, first)
}

// testElectPast elects past an entry that the caller does not accept as an answer.
func testElectPast(k kit) {
	a, b := k.elector(), k.elector()
	won := k.leads(a, 0, driver.Entry{})
	e := value(won.Epoch, "v")
	k.commitAndRelease(a, e, won.Lease)
	k.answers(b, e.Epoch-1, e)
	next := k.leads(b, e.Epoch, e)
	// Other callers accept it while it is replaced.
	k.answers(a, 0, e)
	k.held(a, e.Epoch, e)
	newer := value(next.Epoch, "w")
	k.commitAndRelease(b, newer, next.Lease)
	k.answers(a, e.Epoch, newer)
	unshared := driver.Entry{Kind: driver.KindUnshared, TTL: time.Hour}
	last := k.leads(a, newer.Epoch, newer)
	unshared.Epoch = last.Epoch
	k.commitAndRelease(a, unshared, last.Lease)
	k.answers(b, newer.Epoch, unshared)
}

// testElectFailure elects no caller until a failed rebuild's next try is due.
func testElectFailure(k kit) {
	a, b := k.elector(), k.elector()
	won := k.leads(a, 0, driver.Entry{})
	e := value(won.Epoch, "v")
	e.TTL, e.Failures, e.RetryAge, e.Failure = time.Nanosecond, 1, time.Hour, "origin: 503"
	e.StaleIfError = time.Hour
	k.commitAndRelease(a, e, won.Lease)
	k.answers(b, 0, e)
	won = k.leads(b, e.Epoch, e)
	e.Epoch, e.RetryAge = won.Epoch, 0
	k.commitAndRelease(b, e, won.Lease)
	k.leads(a, 0, e)
}

func testElectBesideTheTwo(k kit) {
	a, b := k.elector(), k.elector()
	lease, err := a.TryAcquire(k.Context(), k.key, electTTL)
	if err != nil {
		k.Fatalf("TryAcquire: %v", err)
	}
	k.held(b, 0, driver.Entry{})
	e := value(k.newEpoch(a), "v")
	k.commitAndRelease(a, e, lease)
	k.answers(b, 0, e)
	k.invalidate(a)
	won := k.leads(b, 0, driver.Entry{})
	if won.Epoch <= e.Epoch {
		k.Fatalf("Elect gave epoch %d after %d", won.Epoch, e.Epoch)
	}
	if _, err := a.TryAcquire(k.Context(), k.key, electTTL); !errors.Is(err, driver.ErrHeld) {
		k.Fatalf("TryAcquire beside an elected one: %v, want ErrHeld", err)
	}
	if later := k.newEpoch(a); later <= won.Epoch {
		k.Fatalf("Claim gave epoch %d after Elect's %d", later, won.Epoch)
	}
	newer := value(won.Epoch, "w")
	k.commit(b, newer)
	k.answers(a, 0, newer) // the lease is still held
	if err := won.Lease.Release(k.Context()); err != nil {
		k.Fatalf("Release: %v", err)
	}
}

// testElectRace has many callers stand at one time: one leads.
func testElectRace(k kit) {
	const callers = 16
	for range 5 {
		var (
			leaders atomic.Int32
			holders atomic.Int32
			won     driver.Election
			race    sync.WaitGroup
		)
		var from [callers]driver.Elector
		for i := range from {
			from[i] = k.elector()
		}
		for _, s := range from {
			race.Go(func() {
				got, err := s.Elect(k.Context(), k.key, 1<<63-1, electTTL)
				switch {
				case err != nil:
					k.Errorf("Elect: %v", err)
				case got.Lease != nil:
					leaders.Add(1)
					won = got
				case got.Held != nil:
					holders.Add(1)
				}
			})
		}
		race.Wait()
		if leaders.Load() != 1 || holders.Load() != callers-1 {
			k.Fatalf("of %d, %d lead and %d are told of the holder", callers, leaders.Load(), holders.Load())
		}
		k.commitAndRelease(from[0], value(won.Epoch, "v"), won.Lease)
	}
}

// electedAges has check judge the entry of the epoch in each of Elect's three answers.
func (k kit) electedAges(s driver.Elector, epoch uint64, check func(what string, ask func() driver.Entry)) {
	k.Helper()
	check("Elect that answers", func() driver.Entry { return k.elect(s, 0).Entry })
	var won driver.Election
	check("Elect that gives the lease", func() driver.Entry {
		won = k.elect(s, epoch)
		return won.Entry
	})
	check("Elect that tells of the holder", func() driver.Entry { return k.elect(s, epoch).Entry })
	if won.Lease == nil {
		k.Fatalf("Elect past %d: %+v, want a lease", epoch, won)
	}
	if err := won.Lease.Release(k.Context()); err != nil {
		k.Fatalf("Release: %v", err)
	}
}

// testElectLeaseEnds has an elected holder fall silent: the lease ends after its ttl, and no earlier.
func testElectLeaseEnds(k kit) {
	a, b := k.elector(), k.elector()
	const ttl = 300 * time.Millisecond
	end := time.Now().Add(ttl)
	dead, err := a.Elect(k.Context(), k.key, 0, ttl)
	if err != nil || dead.Lease == nil {
		k.Fatalf("Elect: %+v, %v, want a lease", dead, err)
	}
	var next driver.Election
	for next = k.elect(b, 0); next.Lease == nil; next = k.elect(b, 0) {
		if until := next.Held.Until; !until.IsZero() && until.Before(end) {
			k.Fatalf("Elect tells of an end %v before the holder's own", end.Sub(until))
		}
		if late := time.Since(end); late > 3*time.Second {
			k.Fatalf("a lease of %v is still held %v after its end", ttl, late)
		}
		time.Sleep(10 * time.Millisecond) // of the engine's clock
	}
	if left := time.Until(end); left > 0 {
		k.Fatalf("a lease of %v was given away %v before its end", ttl, left)
	}
	if next.Epoch <= dead.Epoch {
		k.Fatalf("Elect gave epoch %d after %d", next.Epoch, dead.Epoch)
	}
	if err := dead.Lease.Renew(k.Context(), electTTL); !errors.Is(err, driver.ErrLeaseLost) {
		k.Fatalf("Renew after the lease's end: %v, want ErrLeaseLost", err)
	}
	if err := dead.Lease.Release(k.Context()); !errors.Is(err, driver.ErrLeaseLost) {
		k.Fatalf("Release after the lease's end: %v, want ErrLeaseLost", err)
	}
	k.held(a, 0, driver.Entry{})
}

// testElectCallerLeaves ends contexts between Elect's call and its reply: the election's lease ends.
func testElectCallerLeaves(k kit) {
	a, b := k.elector(), k.elector()
	start := time.Now()
	won := k.leads(a, 0, driver.Entry{})
	roundTrip := min(time.Since(start), 5*time.Millisecond)
	if err := won.Lease.Release(k.Context()); err != nil {
		k.Fatalf("Release: %v", err)
	}
	const rounds = 160
	for i := range time.Duration(rounds) {
		start, limit := time.Now(), 2*roundTrip*i/rounds
		ctx, cancel := context.WithTimeout(k.Context(), limit)
		got, err := a.Elect(ctx, k.key, 0, electTTL)
		took := time.Since(start)
		if took > 2*time.Second {
			k.Errorf("Elect took %v with a context of %v", took, limit)
		}
		switch {
		// A client may see the deadline before the context's timer does.
		case err != nil && (!errors.Is(err, context.DeadlineExceeded) || took < limit):
			k.Errorf("Elect: %v after %v of %v, want the error of the context's end", err, took, limit)
		case err != nil || got.Held != nil: // by an earlier round, whose lease is about to end
		case got.Lease == nil:
			k.Errorf("Elect: %+v of a key without an entry", got)
		default:
			if err := got.Lease.Release(k.Context()); err != nil {
				k.Errorf("Release: %v", err)
			}
		}
		cancel()
	}
	left := time.Now()
	for k.elect(b, 0).Lease == nil {
		if time.Since(left) > 3*time.Second {
			k.Fatalf("a lease is held %v after all callers of Elect have left", time.Since(left))
		}
		time.Sleep(10 * time.Millisecond) // requests left behind are under way
	}
}

// testElectPoison elects over bytes that are no entry: all see the zero Entry, and a commit mends it.
func testElectPoison(k kit) {
	a, b := k.elector(), k.elector()
	parts := map[string]func(kit){}
	for what, data := range foreign() {
		parts[what] = func(k kit) {
			k.Poison(k, k.key, data)
			first := k.mends(a, b, 0)
			k.Poison(k, k.key, data) // over an entry
			k.mends(b, a, first.Epoch)
		}
	}
	if k.Mix != nil {
		parts["another key's entry"] = func(k kit) {
			other := k
			other.key += " other"
			other.commit(a, value(other.newEpoch(a), "another key's"))
			own := value(k.newEpoch(a), "the key's own")
			k.commit(a, own)
			k.Mix(k, other.key, k.key)
			k.mends(a, b, own.Epoch)
		}
	}
	k.each(parts)
}

// mends elects s over bytes that are no entry, beside other, and commits an entry of a later epoch.
func (k kit) mends(s, other driver.Elector, before uint64) driver.Entry {
	k.Helper()
	won := k.leads(s, 0, driver.Entry{})
	if won.Epoch <= before {
		k.Fatalf("Elect gave epoch %d after %d", won.Epoch, before)
	}
	k.held(other, 0, driver.Entry{})
	e := value(won.Epoch, "mended")
	k.commitAndRelease(s, e, won.Lease)
	k.answers(other, 0, e)
	return e
}

// testElectLongKeys wants separate leases and entries for long keys that begin alike, and for hostile keys.
func testElectLongKeys(k kit) {
	a, b := k.elector(), k.elector()
	long, longer := k.key+strings.Repeat("k", 250), k.key+strings.Repeat("k", 10<<10)
	keys := []string{long, long + "a", long + "b", longer + "a", longer + "b"}
	for _, shape := range []string{"{%s", "}%s", "{}%s", "{%s}", "a{%s}c", "{a}{%s}", "}{%s", "%s with space", "#%s"} {
		keys = append(keys, fmt.Sprintf(shape, k.key))
	}
	won := make([]driver.Election, len(keys))
	for i, key := range keys {
		k.key = key
		won[i] = k.leads(a, 0, driver.Entry{})
	}
	for _, key := range keys {
		k.key = key
		k.held(b, 0, driver.Entry{})
		if _, err := b.TryAcquire(k.Context(), key, electTTL); !errors.Is(err, driver.ErrHeld) {
			k.Fatalf("TryAcquire beside an elected one, with a key of %d bytes: %v, want ErrHeld", len(key), err)
		}
	}
	for i, key := range keys {
		k.key = key
		e := value(won[i].Epoch, key[len(key)-1:])
		k.commitAndRelease(a, e, won[i].Lease)
		k.answers(b, 0, e)
		if i+1 < len(keys) {
			k.key = keys[i+1]
			k.held(b, 0, driver.Entry{})
		}
	}
}

func testElectArguments(k kit) {
	a := k.elector()
	for _, ttl := range []time.Duration{0, -1} {
		if got, err := a.Elect(k.Context(), k.key, 0, ttl); err == nil {
			k.Fatalf("Elect for %v: %+v, want an error", ttl, got)
		}
	}
	ended, cancel := context.WithCancel(k.Context())
	cancel()
	if got, err := a.Elect(ended, k.key, 0, electTTL); !errors.Is(err, context.Canceled) {
		k.Fatalf("Elect with an ended context: %+v, %v", got, err)
	}
	won := k.leads(a, 0, driver.Entry{})
	if err := a.CommitAndRelease(ended, k.key, value(won.Epoch, "v"), won.Lease); !errors.Is(err, context.Canceled) {
		k.Fatalf("CommitAndRelease with an ended context: %v", err)
	}
	k.absent(a, "after a commit with an ended context")
}

// testCommitAndRelease wants the lease ended by the commit, its watchers woken, and repeats harmless.
func testCommitAndRelease(k kit) {
	a, b := k.elector(), k.elector()
	won := k.leads(a, 0, driver.Entry{})
	held := k.held(b, 0, driver.Entry{})
	var woken <-chan struct{}
	if w, ok := b.(driver.Watcher); ok {
		var err error
		if woken, err = w.Watch(k.Context(), held); err != nil {
			k.Fatalf("Watch: %v", err)
		}
	}
	e := value(won.Epoch, "v")
	k.commitAndRelease(a, e, won.Lease)
	if woken != nil {
		select {
		case <-woken:
		case <-time.After(5 * time.Second):
			k.Fatal("who watches is not woken by CommitAndRelease")
		}
	}
	if err := won.Lease.Renew(k.Context(), electTTL); !errors.Is(err, driver.ErrLeaseLost) {
		k.Fatalf("Renew after CommitAndRelease: %v, want ErrLeaseLost", err)
	}
	if lease, err := b.TryAcquire(k.Context(), k.key, electTTL); err != nil {
		k.Fatalf("TryAcquire after CommitAndRelease: %v", err)
	} else if err := lease.Release(k.Context()); err != nil {
		k.Fatalf("Release: %v", err)
	}
	k.present(b, e)

	// As after a lost reply: without a lease, and beside another holder's lease.
	k.commitAndRelease(a, e, won.Lease)
	next := k.leads(b, e.Epoch, e)
	k.commitAndRelease(a, e, won.Lease)
	k.held(a, e.Epoch, e)
	if err := next.Lease.Release(k.Context()); err != nil {
		k.Fatalf("Release of another's lease after a repeated CommitAndRelease: %v", err)
	}
}

// testCommitAndReleaseRefused wants the lease kept if the commit is refused.
func testCommitAndReleaseRefused(k kit) {
	a, b := k.elector(), k.elector()
	won := k.leads(a, 0, driver.Entry{})
	large := value(won.Epoch, "")
	large.Value = make([]byte, k.TooLarge)
	if err := a.CommitAndRelease(k.Context(), k.key, large, won.Lease); !errors.Is(err, driver.ErrTooLarge) {
		k.Fatalf("CommitAndRelease of %d bytes: %v, want ErrTooLarge", k.TooLarge, err)
	}
	k.held(b, 0, driver.Entry{})
	k.invalidate(b)
	if err := a.CommitAndRelease(k.Context(), k.key, value(won.Epoch, "v"), won.Lease); !errors.Is(err, driver.ErrFenced) {
		k.Fatalf("CommitAndRelease after an invalidation: %v, want ErrFenced", err)
	}
	k.absent(b, "after a refused commit")
	k.held(b, 0, driver.Entry{})
	if err := won.Lease.Renew(k.Context(), electTTL); err != nil {
		k.Fatalf("Renew after a refused commit: %v", err)
	}
}

// testCommitAndReleaseLate commits after the lease's end: the commit counts, another's lease stays.
func testCommitAndReleaseLate(k kit) {
	a, b := k.elector(), k.elector()
	won := k.leads(a, 0, driver.Entry{})
	if err := won.Lease.Release(k.Context()); err != nil {
		k.Fatalf("Release: %v", err)
	}
	other := k.leads(b, 0, driver.Entry{})
	e := value(won.Epoch, "late")
	k.commitAndRelease(a, e, won.Lease)
	k.present(b, e)
	k.held(a, e.Epoch, e)
	newer := value(other.Epoch, "w")
	k.commitAndRelease(b, newer, other.Lease)
	k.answers(a, 0, newer)
}
