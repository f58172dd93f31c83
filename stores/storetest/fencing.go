package storetest

import (
	"errors"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// This file tests the order of writes.

func testEpochsRise(k kit) {
	stores := []driver.Store{k.Open(k), k.Open(k)}
	var last uint64
	for i := range 30 {
		s := stores[i%2]
		epoch := k.newEpoch(s)
		if epoch <= last {
			k.Fatalf("claim %d gave epoch %d after %d", i, epoch, last)
		}
		last = epoch
		switch i % 5 {
		case 1:
			k.commit(s, value(epoch, "v"))
		case 3:
			k.invalidate(s)
		}
	}
}

func testEpochsAreDistinct(k kit) {
	stores := []driver.Store{k.Open(k), k.Open(k), k.Open(k), k.Open(k)}
	const claims = 100
	epochs := make([]uint64, claims)
	var wg sync.WaitGroup
	for i := range claims {
		wg.Go(func() {
			var err error
			if _, epochs[i], err = stores[i%len(stores)].Claim(k.Context(), k.key); err != nil {
				k.Errorf("Claim: %v", err)
			}
		})
	}
	wg.Wait()
	seen := map[uint64]bool{0: true}
	for _, epoch := range epochs {
		if seen[epoch] {
			k.Errorf("epoch %d was given out twice, or is 0", epoch)
		}
		seen[epoch] = true
	}
}

func testLateCommit(k kit) {
	quick, paused := k.Open(k), k.Open(k)
	late := k.newEpoch(paused)
	e := value(k.newEpoch(quick), "newer")
	k.commit(quick, e)
	k.refused(paused, value(late, "late"), "of claim 1 after claim 2 was committed")
	k.refused(quick, value(late, "late"), "of claim 1 through another store")
	k.refused(quick, value(0, "no epoch"), "of epoch 0")
	k.present(quick, e)
	k.present(paused, e)
}

// A Fencer predicts the answer of Commit.
func testFenced(k kit) {
	s, other := k.Open(k), k.Open(k)
	f, ok := s.(driver.Fencer)
	if !ok {
		return
	}
	fenced := func(epoch uint64, want bool, what string) {
		k.Helper()
		if got, err := f.Fenced(k.Context(), k.key, epoch); got != want || err != nil {
			k.Errorf("Fenced = %v, %v for an epoch %s, want %v", got, err, what, want)
		}
	}
	fenced(1, true, "of a key never claimed")
	first := k.newEpoch(s)
	fenced(first, false, "just claimed")
	second := k.newEpoch(other)
	fenced(first, false, "after another claim")
	k.commit(other, value(second, "v"))
	fenced(first, true, "after a later commit")
	fenced(second, false, "that was committed last")
	third := k.newEpoch(s)
	fenced(third, false, "claimed over an entry")
	k.invalidate(other)
	fenced(third, true, "after an invalidation")
	k.refused(s, value(third, "late"), "of an epoch that is fenced")
	fenced(k.newEpoch(s), false, "claimed after an invalidation")
	fenced(third+1<<40, true, "never given out")
}

func testCommitsInOrder(k kit) {
	a, b := k.Open(k), k.Open(k)
	first, second := value(k.newEpoch(a), "first"), value(k.newEpoch(b), "second")
	k.commit(a, first)
	k.present(b, first)
	k.commit(b, second)
	k.present(a, second)
}

func testEpochNeverClaimed(k kit) {
	s := k.Open(k)
	k.refused(s, value(1, "v"), "of a key never claimed")
	k.absent(s, "after a refused commit")
	e := value(k.newEpoch(s), "v")
	k.commit(s, e)
	for _, epoch := range []uint64{e.Epoch + 1, e.Epoch + 1_000_000_000, 1<<53 + 1, math.MaxInt64, math.MaxUint64} {
		k.refused(s, value(epoch, "from nowhere"), "of an epoch that was never given out")
	}
	k.present(s, e)
	// If one of them had been accepted, every later claim would be below the floor.
	e = value(k.newEpoch(s), "next")
	k.commit(s, e)
	k.present(s, e)
}

func testCommitAgain(k kit) {
	s, other := k.Open(k), k.Open(k)
	e := value(k.newEpoch(s), "v")
	k.commit(s, e)
	k.commit(s, e)
	k.commit(other, e)
	k.present(s, e)
	k.refused(s, value(e.Epoch, "w"), "of other bytes under the same epoch")
	changed := e
	changed.TTL++
	k.refused(s, changed, "of another TTL under the same epoch")
	k.present(s, e)

	claimed := k.newEpoch(other)
	k.commit(s, e) // a claim alone does not block it
	later := value(claimed, "later")
	k.commit(other, later)
	k.refused(s, e, "again after a later commit")
	k.present(s, later)
	k.invalidate(other)
	k.refused(s, later, "again after an invalidation")
	k.absent(s, "after an invalidation")
}

func testInvalidate(k kit) {
	a, b := k.Open(k), k.Open(k)
	k.invalidate(a)
	k.absent(a, "after an invalidation of a missing key")
	e := value(k.newEpoch(a), "v")
	k.commit(a, e)

	mine, theirs := k.newEpoch(a), k.newEpoch(b)
	k.invalidate(a)
	k.absent(a, "after Invalidate")
	k.absent(b, "after another's Invalidate")
	k.refused(a, value(mine, "old"), "of a claim before Invalidate")
	k.refused(b, value(theirs, "old"), "of another's claim before Invalidate")
	k.absent(b, "after refused commits")

	got, epoch := k.claim(b)
	k.empty(got, "after Invalidate")
	if epoch <= max(mine, theirs) {
		k.Fatalf("Claim gave epoch %d after %d", epoch, max(mine, theirs))
	}
	k.refused(a, value(theirs, "old"), "of a claim before Invalidate, after a claim behind it")
	e = value(epoch, "new")
	k.commit(b, e)
	k.present(a, e)
	k.invalidate(b)
	k.invalidate(a)
	k.absent(a, "after two invalidations")
}

// testInvalidateRacesCommits commits and invalidates at once: in every interleaving, no value
// claimed before an invalidation is served after it has returned.
func testInvalidateRacesCommits(k kit) {
	const committers, rounds = 4, 12
	invalidator := k.Open(k)
	stores := make([]driver.Store, committers)
	for i := range stores {
		stores[i] = k.Open(k)
	}
	var newestBefore uint64 // of the claims before the present invalidation
	check := func(when string) {
		k.Helper()
		e, err := invalidator.Get(k.Context(), k.key)
		if err == nil && e.Epoch <= newestBefore {
			k.Fatalf("Get %s returned epoch %d, which was claimed before the invalidation", when, e.Epoch)
		}
		if err != nil && !errors.Is(err, driver.ErrNotFound) {
			k.Fatalf("Get: %v", err)
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait() // a commit that fails after the case would end the whole test by a panic
	for range rounds {
		epochs := make([]uint64, committers)
		for i, s := range stores {
			epochs[i] = k.newEpoch(s)
			newestBefore = max(newestBefore, epochs[i])
		}
		for i, s := range stores {
			wg.Go(func() {
				err := s.Commit(k.Context(), k.key, value(epochs[i], "before"))
				if err != nil && !errors.Is(err, driver.ErrFenced) {
					k.Errorf("Commit: %v", err)
				}
			})
		}
		k.invalidate(invalidator)
		check("right after Invalidate")
		wg.Wait()
		check("after all commits have ended")
		e := value(k.newEpoch(invalidator), "after")
		k.commit(invalidator, e)
		k.present(invalidator, e)
	}
}

// testCommitsRace has many writers and readers: the highest epoch stays, and no reader sees it fall.
func testCommitsRace(k kit) {
	stores := []driver.Store{k.Open(k), k.Open(k), k.Open(k), k.Open(k)}
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for _, s := range stores {
		readers.Go(func() {
			var seen uint64
			for {
				select {
				case <-stop:
					return
				default:
				}
				e, err := s.Get(k.Context(), k.key)
				if errors.Is(err, driver.ErrNotFound) {
					continue
				}
				if err != nil {
					k.Errorf("Get: %v", err)
					return
				}
				if e.Epoch < seen || string(e.Value) != strconv.FormatUint(e.Epoch, 10) {
					k.Errorf("a reader saw epoch %d with value %q after epoch %d", e.Epoch, e.Value, seen)
					return
				}
				seen = e.Epoch
			}
		})
	}

	const writers, each = 8, 6
	var mu sync.Mutex // guards best, refused
	var best, refused uint64
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			s := stores[i%len(stores)]
			for n := range each {
				_, epoch, err := s.Claim(k.Context(), k.key)
				if err != nil {
					k.Errorf("Claim: %v", err)
					return
				}
				if (i+n)%3 == 0 {
					time.Sleep(time.Millisecond) // a holder is paused
				}
				err = s.Commit(k.Context(), k.key, value(epoch, strconv.FormatUint(epoch, 10)))
				mu.Lock()
				if err == nil {
					best = max(best, epoch)
				} else if errors.Is(err, driver.ErrFenced) {
					refused = max(refused, epoch)
				} else {
					k.Errorf("Commit: %v", err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	close(stop)
	readers.Wait()
	if best == 0 || refused > best {
		k.Fatalf("the highest epoch accepted is %d, the highest refused %d: want the highest of all accepted", best, refused)
	}
	k.present(stores[0], value(best, strconv.FormatUint(best, 10)))
}
