package storetest

import (
	"errors"
	"math"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// This file tests the other two writes: Touch keeps the value, Set fences rebuilds off.

func touches(i Instance) bool { return i.Touches }

func (k kit) toucher() (driver.Store, driver.Toucher) {
	k.Helper()
	s := k.Open(k)
	t, ok := s.(driver.Toucher)
	if !ok {
		k.Fatalf("%T is no driver.Toucher", s)
	}
	return s, t
}

func (k kit) touch(s driver.Toucher, of uint64, e driver.Entry) {
	k.Helper()
	if err := s.Touch(k.Context(), k.key, of, e); err != nil {
		k.Fatalf("Touch of epoch %d: %v", e.Epoch, err)
	}
}

func (k kit) touchFails(s driver.Toucher, what string, of, epoch uint64, want error) {
	k.Helper()
	e := value(epoch, "")
	e.Value = nil
	if err := s.Touch(k.Context(), k.key, of, e); !errors.Is(err, want) {
		k.Fatalf("Touch %s: %v, want %v", what, err, want)
	}
}

// testTouch renews an entry: the value stays, and the rest is as committed.
func testTouch(k kit) {
	a, touch := k.toucher()
	first := value(k.newEpoch(a), "v")
	first.Validator, first.Tags = `"old"`, []string{"a", "b"}
	k.commit(a, first)
	renewed := driver.Entry{
		Kind: driver.KindValue, Epoch: k.newEpoch(a), Age: time.Second, TTL: 2 * time.Hour, StaleIfError: time.Minute,
		BuildTime: 3 * time.Millisecond, Sweep: 5, Validator: `"new"`, Tags: []string{"c"},
	}
	for range 2 { // as after a lost reply
		k.touch(touch, first.Epoch, renewed)
		want := renewed
		want.Value = first.Value
		k.present(k.Open(k), want)
	}
	failed := renewed
	failed.Epoch, failed.Failures, failed.RetryAge, failed.Failure = k.newEpoch(a), 2, 3*time.Hour, "origin: 503"
	k.touch(touch, renewed.Epoch, failed)
	failed.Value = first.Value
	k.present(k.Open(k), failed)
}

// testTouchFenced wants Touch to refuse as Commit does, and ErrNotFound if the value is gone.
func testTouchFenced(k kit) {
	a, touch := k.toucher()
	first := value(k.newEpoch(a), "v")
	k.commit(a, first)
	older, later := k.newEpoch(a), k.newEpoch(a)
	second := value(later, "w")
	k.touchFails(touch, "of an epoch that is not there", first.Epoch-1, older, driver.ErrNotFound)
	k.present(a, first)
	k.commit(a, second)
	k.touchFails(touch, "of a claim before the last commit", first.Epoch, older, driver.ErrFenced)
	mine := k.newEpoch(a)
	k.touchFails(touch, "of an entry that was replaced", first.Epoch, mine, driver.ErrNotFound)
	k.present(a, second)
	k.commit(a, value(mine, "the whole, under the same epoch"))
	running := k.newEpoch(a)
	k.invalidate(k.Open(k))
	k.touchFails(touch, "of a claim before an invalidation", mine, running, driver.ErrFenced)
	k.absent(a, "after a refused Touch")
	k.touchFails(touch, "of an entry that was invalidated", mine, k.newEpoch(a), driver.ErrNotFound)
	k.absent(a, "after a Touch of nothing")
	if k.EvictCounter == nil {
		return
	}
	last := value(k.newEpoch(a), "x")
	k.commit(a, last)
	forgotten := k.newEpoch(a)
	k.EvictCounter(k, k.key)
	k.touchFails(touch, "of a claim that the engine has forgotten", last.Epoch, forgotten, driver.ErrFenced)
}

// testTouchRaisesFloor wants earlier claims refused after a Touch, and later claims accepted.
func testTouchRaisesFloor(k kit) {
	a, touch := k.toucher()
	first := value(k.newEpoch(a), "v")
	k.commit(a, first)
	older, mine, later := k.newEpoch(a), k.newEpoch(a), k.newEpoch(a)
	renewed := first
	renewed.Epoch = mine
	k.touch(touch, first.Epoch, renewed)
	k.refused(a, value(older, "late"), "of a claim before a Touch")
	k.touchFails(touch, "of a claim before another Touch", mine, older, driver.ErrFenced)
	k.refused(a, first, "again after a Touch")
	k.present(k.Open(k), renewed)
	next := value(later, "next")
	k.commit(a, next)
	k.present(k.Open(k), next)
}

func testTouchEpochNeverClaimed(k kit) {
	a, touch := k.toucher()
	k.touchFails(touch, "of a key never claimed", 1, 1, driver.ErrFenced)
	k.absent(a, "after a refused Touch")
	e := value(k.newEpoch(a), "v")
	k.commit(a, e)
	for _, epoch := range []uint64{e.Epoch + 1, e.Epoch + 1_000_000_000, 1<<53 + 1, math.MaxInt64, math.MaxUint64} {
		k.touchFails(touch, "of an epoch that was never given out", e.Epoch, epoch, driver.ErrFenced)
	}
	k.present(k.Open(k), e)
	// An epoch never issued, if accepted, would put every later claim below the floor.
	renewed := e
	renewed.Epoch = k.newEpoch(a)
	k.touch(touch, e.Epoch, renewed)
	k.present(k.Open(k), renewed)
}

func testTouchNoValue(k kit) {
	a, touch := k.toucher()
	for what, e := range map[string]driver.Entry{
		"of an entry that is not found": {Kind: driver.KindNotFound, TTL: time.Hour},
		"of an entry that is unshared":  {Kind: driver.KindUnshared, TTL: time.Hour},
		"of an entry of failures":       {Kind: driver.KindNone, Failures: 1, RetryAge: time.Hour, Failure: "origin: 503"},
	} {
		e.Epoch = k.newEpoch(a)
		k.commit(a, e)
		mine := k.newEpoch(a)
		k.touchFails(touch, what, e.Epoch, mine, driver.ErrNotFound)
		k.present(k.Open(k), e)
		whole := value(mine, "the whole, under the same epoch")
		k.commit(a, whole)
		k.present(k.Open(k), whole)
	}
}

// testTouchProlongs touches an entry within its life and wants it after the end of that life.
func testTouchProlongs(k kit) {
	a, touch := k.toucher()
	const life = 300 * time.Millisecond
	for range 10 {
		first := value(k.newEpoch(a), "v")
		first.TTL = life
		start := time.Now()
		k.commit(a, first)
		renewed := value(k.newEpoch(a), "v")
		err := touch.Touch(k.Context(), k.key, first.Epoch, renewed)
		if errors.Is(err, driver.ErrNotFound) && time.Since(start) > life*9/10 {
			continue // the calls took longer than the entry's life
		}
		if err != nil {
			k.Fatalf("Touch: %v", err)
		}
		time.Sleep(2*life - time.Since(start)) // the engine's clock is real
		k.present(k.Open(k), renewed)
		if got, _ := k.claim(a); same(got, renewed) != nil {
			k.Fatalf("Claim after the first life: %v", same(got, renewed))
		}
		return
	}
	k.Fatalf("no three calls of ten rounds took less than %v", life)
}

// testSet writes beside rebuilds: earlier claims are refused.
func testSet(k kit) {
	a, b := k.Open(k), k.Open(k)
	set := func(s driver.Store, text string) driver.Entry {
		k.Helper()
		e := value(1, text) // Set chooses the epoch
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
