package storetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// This file holds an engine that is store and locker at once to the contract of one request.

func elects(i Instance) bool { return i.Elects }

// elector opens a store and wants it to be an Elector.
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

// leads wants the leadership from Elect, with the entry and an epoch above the floor.
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

// held wants Elect to tell of the holder, with the entry.
func (k kit) held(s driver.Elector, past uint64, want driver.Entry) *driver.HeldError {
	k.Helper()
	got := k.elect(s, past)
	if got.Held == nil || got.Lease != nil || got.Epoch != 0 {
		k.Fatalf("Elect past %d: %+v, want the holder", past, got)
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

// testElect follows a key from nothing to a value, and to the next.
func testElect(k kit) {
	a, b := k.elector(), k.elector()
	won := k.leads(a, 0, driver.Entry{})
	if held := k.held(b, 0, driver.Entry{}); !errors.Is(held, driver.ErrHeld) || held.Key != k.key {
		k.Fatalf("the holder is told by %v of %q", held, held.Key)
	}
	first := value(won.Epoch, "v")
	first.TTL, first.StaleIfError = 150*time.Millisecond, time.Hour
	k.commitAndRelease(a, first, won.Lease)
	k.answers(b, 0, first)
	time.Sleep(200 * time.Millisecond) // of the engine's clock
	next := k.leads(b, 0, first)
	k.held(a, 0, first)
	k.present(a, first) // stale, and there
	if err := next.Lease.Release(k.Context()); err != nil {
		k.Fatalf("Release: %v", err)
	}
	k.leads(a, 0, first)
}

// testElectPast elects past an entry that the caller does not take for an answer.
func testElectPast(k kit) {
	a, b := k.elector(), k.elector()
	won := k.leads(a, 0, driver.Entry{})
	e := value(won.Epoch, "v")
	k.commitAndRelease(a, e, won.Lease)
	k.answers(b, e.Epoch-1, e)
	next := k.leads(b, e.Epoch, e)
	// Others take it for one while it is replaced.
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

// testElectFailure elects nobody until a failed rebuild's next try is due.
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

// testElectBesideTheTwo mixes Elect with the methods of Store and Locker.
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

// testElectRace has many stand at one time: one leads.
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

// testCommitAndRelease wants the lease over with the commit, and who watches it woken.
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
}

// testCommitAndReleaseRefused wants the lease kept where the commit is refused.
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

// testCommitAndReleaseLate commits after the lease's end: the commit counts, and another's
// lease stays.
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
