package storetest

import (
	"errors"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// This file is the two writes that are no commits of a rebuild's own value: Touch keeps the
// value, Set fences rebuilds off.

func touches(i Instance) bool { return i.Touches }

// toucher opens a store and wants it to be a Toucher.
func (k kit) toucher() (driver.Store, driver.Toucher) {
	k.Helper()
	s := k.Open(k)
	t, ok := s.(driver.Toucher)
	if !ok {
		k.Fatalf("%T is no driver.Toucher", s)
	}
	return s, t
}

// testTouch renews an entry: the value stays, and all else is as committed.
func testTouch(k kit) {
	a, touch := k.toucher()
	first := value(k.newEpoch(a), "v")
	first.Validator, first.Tags = `"old"`, []string{"a", "b"}
	k.commit(a, first)
	renewed := driver.Entry{
		Kind: driver.KindValue, Epoch: k.newEpoch(a), Age: time.Second, TTL: 2 * time.Hour, StaleIfError: time.Minute,
		BuildTime: 3 * time.Millisecond, Sweep: 5, Validator: `"new"`, Tags: []string{"c"},
	}
	for range 2 { // as if the reply of the first were lost
		if err := touch.Touch(k.Context(), k.key, first.Epoch, renewed); err != nil {
			k.Fatalf("Touch: %v", err)
		}
		want := renewed
		want.Value = first.Value
		k.present(k.Open(k), want)
	}
	failed := renewed
	failed.Epoch, failed.Failures, failed.RetryAge, failed.Failure = k.newEpoch(a), 2, 3*time.Hour, "origin: 503"
	if err := touch.Touch(k.Context(), k.key, renewed.Epoch, failed); err != nil {
		k.Fatalf("Touch with a failure: %v", err)
	}
	failed.Value = first.Value
	k.present(k.Open(k), failed)
}

// testTouchFenced wants what Commit refuses refused, and ErrNotFound where the value is gone.
func testTouchFenced(k kit) {
	a, touch := k.toucher()
	first := value(k.newEpoch(a), "v")
	k.commit(a, first)
	try := func(what string, of, epoch uint64, want error) {
		k.Helper()
		e := value(epoch, "")
		e.Value = nil
		if err := touch.Touch(k.Context(), k.key, of, e); !errors.Is(err, want) {
			k.Fatalf("Touch %s: %v, want %v", what, err, want)
		}
	}
	older, later := k.newEpoch(a), k.newEpoch(a)
	second := value(later, "w")
	try("of an epoch that is not there", first.Epoch-1, older, driver.ErrNotFound)
	k.present(a, first)
	k.commit(a, second)
	try("of a claim before the last commit", first.Epoch, older, driver.ErrFenced)
	mine := k.newEpoch(a)
	try("of an entry that was replaced", first.Epoch, mine, driver.ErrNotFound)
	k.present(a, second)
	k.commit(a, value(mine, "the whole, under the same epoch"))
	running := k.newEpoch(a)
	k.invalidate(k.Open(k))
	try("of a claim before an invalidation", mine, running, driver.ErrFenced)
	k.absent(a, "after a refused Touch")
	try("of an entry that was invalidated", mine, k.newEpoch(a), driver.ErrNotFound)
	k.absent(a, "after a Touch of nothing")
}

// testSet writes beside rebuilds: those that have claimed before are refused.
func testSet(k kit) {
	a, b := k.Open(k), k.Open(k)
	set := func(s driver.Store, text string) driver.Entry {
		k.Helper()
		e := value(1, text) // the epoch is Set's affair
		epoch, err := driver.Set(k.Context(), s, k.key, e)
		if err != nil {
			k.Fatalf("Set: %v", err)
		}
		e.Epoch = epoch
		k.present(a, e)
		k.present(b, e)
		return e
	}
	first := set(a, "where nothing was")
	running, later := k.newEpoch(a), k.newEpoch(b)
	k.commit(b, value(running, "a rebuild's"))
	second := set(a, "over a rebuild's value")
	if second.Epoch <= later || later <= first.Epoch {
		k.Fatalf("Set took the epochs %d and %d, with a claim of %d between them", first.Epoch, second.Epoch, later)
	}
	k.refused(b, value(later, "older"), "of a claim before Set")
	k.present(a, second)
	k.invalidate(b)
	k.absent(a, "after an invalidation of what was set")
	third := set(b, "after an invalidation")
	next := value(k.newEpoch(a), "a rebuild's that began after it")
	k.commit(a, next)
	if next.Epoch <= third.Epoch {
		k.Fatalf("a claim after Set has epoch %d, below Set's %d", next.Epoch, third.Epoch)
	}
	k.present(b, next)
}

// testSetsRace has Sets and rebuilds meet: each Set succeeds, and the latest epoch stays.
func testSetsRace(k kit) {
	const writers, rounds = 4, 10
	var (
		mu    sync.Mutex // guards last
		last  driver.Entry
		races sync.WaitGroup
	)
	for range writers {
		s := k.Open(k)
		races.Go(func() {
			for range rounds {
				if epoch, err := driver.Set(k.Context(), s, k.key, value(0, "set")); err == nil {
					mu.Lock()
					if epoch > last.Epoch {
						last = value(epoch, "set")
					}
					mu.Unlock()
				} else if !errors.Is(err, driver.ErrFenced) { // it was fenced off each time
					k.Errorf("Set: %v", err)
				}
			}
		})
	}
	races.Wait()
	k.present(k.Open(k), last)
}
