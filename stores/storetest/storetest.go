// Package storetest tests implementations of [driver.Store] against its contract.
//
// A store that passes [Run] keeps the promises of a Cache or a Middleware, if claims, floors and
// invalidations last for longer than any rebuild. Run waits only for some seconds; the stores of this
// repository keep them for an hour. All stores of a Run are in one process, so it does not find data or a clock of the
// process in place of the engine's.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// An Instance is an empty engine, with its faults for the tests, nil if the engine cannot have them. Its
// functions report failures to the given TB. They are called from one goroutine per key, for different keys
// at once.
type Instance struct {
	// Open returns a Store over the engine, as in another process: two stores share only the
	// engine. An in-memory store returns the same Store each time.
	Open func(testing.TB) driver.Store

	// Evict makes the engine forget all data of key: the entry, the counter and the floor. Never nil.
	Evict func(tb testing.TB, key string)

	// EvictCounter makes the engine forget the counter and the floor of key, and keep its entry.
	EvictCounter func(tb testing.TB, key string)

	// Poison overwrites key's entry with data, as another program on the engine might.
	Poison func(tb testing.TB, key string, data []byte)

	// Mix copies the bytes of the key from over those of the key to, as a proxy with mixed-up replies might.
	Mix func(tb testing.TB, from, to string)

	// Touches reports whether the stores are [driver.Toucher]s. This field and the next three have to agree with
	// the stores, because a cache finds their interfaces by itself.
	Touches bool

	// Elects reports whether the stores are [driver.Elector]s.
	Elects bool

	// Notifies reports whether the stores are [driver.Notifier]s.
	Notifies bool

	// Batches reports whether the stores are [driver.BatchGetter]s.
	Batches bool

	// Restart stops the engine and starts it empty. Open stores stay in use. Nil if the test cannot.
	Restart func(testing.TB)

	// TooLarge is the length of a Value that the store refuses with ErrTooLarge. It must be set, above a
	// million bytes: a single mistake fills a store without a bound.
	TooLarge int
}

// Run tests the store against its contract, in subtests of t, and returns when they have ended. It
// calls newStore for cases that share an engine, with a key each, and again for cases that restart it.
func Run(t *testing.T, newStore func(testing.TB) Instance) {
	t.Helper()
	t.Run("shared", func(t *testing.T) {
		instance := newStore(t)
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				if c.needs != nil && !c.needs(instance) {
					t.Skip("the engine has no such fault")
				}
				c.run(kit{T: t, Instance: instance, key: t.Name()})
			})
		}
	})
	t.Run("alone", func(t *testing.T) {
		instance := newStore(t)
		t.Run("Restart", func(t *testing.T) {
			if instance.Restart == nil {
				t.Skip("the engine cannot be restarted")
			}
			testRestart(kit{T: t, Instance: instance, key: t.Name()})
		})
	})
}

var cases = []struct {
	name  string
	needs func(Instance) bool // nil if every engine can run it
	run   func(kit)
}{
	{"Abilities", nil, testAbilities},
	{"NotFound", nil, testNotFound},
	{"RoundTrip", nil, testRoundTrip},
	{"Age", nil, testAge},
	{"Sizes", nil, testSizes},
	{"TooLarge", nil, testTooLarge},
	{"Lives", nil, testLives},
	{"LifeEnds", nil, testLifeEnds},
	{"NothingToKeep", nil, testNothingToKeep},
	{"HostileKeys", nil, testHostileKeys},
	{"Kept", nil, testKept},
	{"Context", nil, testContext},

	{"EpochsRise", nil, testEpochsRise},
	{"EpochsAreDistinct", nil, testEpochsAreDistinct},
	{"LateCommit", nil, testLateCommit},
	{"Fenced", nil, testFenced},
	{"CommitsInOrder", nil, testCommitsInOrder},
	{"EpochNeverClaimed", nil, testEpochNeverClaimed},
	{"CommitAgain", nil, testCommitAgain},
	{"Invalidate", nil, testInvalidate},
	{"InvalidateRacesCommits", nil, testInvalidateRacesCommits},
	{"CommitsRace", nil, testCommitsRace},
	{"ClaimLasts", nil, testClaimLasts},
	{"InvalidationLasts", nil, testInvalidationLasts},
	{"FloorOutlivesEntry", nil, testFloorOutlivesEntry},

	{"Set", nil, testSet},
	{"SetsRace", nil, testSetsRace},

	{"GetMany", batches, testGetMany},

	{"Touch", touches, testTouch},
	{"TouchFenced", touches, testTouchFenced},
	{"TouchRaisesFloor", touches, testTouchRaisesFloor},
	{"TouchEpochNeverClaimed", touches, testTouchEpochNeverClaimed},
	{"TouchNoValue", touches, testTouchNoValue},
	{"TouchProlongs", touches, testTouchProlongs},

	{"Elect", elects, testElect},
	{"ElectPast", elects, testElectPast},
	{"ElectFailure", elects, testElectFailure},
	{"ElectBesideTheTwo", elects, testElectBesideTheTwo},
	{"ElectRace", elects, testElectRace},
	{"ElectArguments", elects, testElectArguments},
	{"ElectLeaseEnds", elects, testElectLeaseEnds},
	{"ElectCallerLeaves", elects, testElectCallerLeaves},
	{"ElectPoison", func(i Instance) bool { return i.Elects && i.Poison != nil }, testElectPoison},
	{"ElectLongKeys", elects, testElectLongKeys},
	{"CommitAndRelease", elects, testCommitAndRelease},
	{"CommitAndReleaseRefused", elects, testCommitAndReleaseRefused},
	{"CommitAndReleaseLate", elects, testCommitAndReleaseLate},

	{"Notices", notifies, testNotices},
	{"NoticesOfOtherWrites", func(i Instance) bool { return i.Notifies && (i.Touches || i.Elects) }, testNoticesOfOtherWrites},
	{"NoticesFollow", notifies, testNoticesFollow},
	{"NoticesAfterEvict", notifies, testNoticesAfterEvict},
	{"LateNotices", notifies, testLateNotices},
	{"NoticesEnd", notifies, testNoticesEnd},

	{"Evict", nil, testEvict},
	{"EvictCounter", func(i Instance) bool { return i.EvictCounter != nil }, testEvictCounter},
	{"Mix", func(i Instance) bool { return i.Mix != nil }, testMix},
	{"Poison", func(i Instance) bool { return i.Poison != nil }, testPoison},
}

// testAbilities wants the Instance to name all abilities of its stores: a cache finds them by itself, and without the name
// no case tests them.
func testAbilities(k kit) {
	s := k.Open(k)
	_, touches := s.(driver.Toucher)
	_, elects := s.(driver.Elector)
	_, notifies := s.(driver.Notifier)
	_, batches := s.(driver.BatchGetter)
	for _, ability := range []struct {
		name, field string
		has, named  bool
	}{
		{"Toucher", "Touches", touches, k.Touches},
		{"Elector", "Elects", elects, k.Elects},
		{"Notifier", "Notifies", notifies, k.Notifies},
		{"BatchGetter", "Batches", batches, k.Batches},
	} {
		if ability.has != ability.named {
			k.Errorf("%T is a driver.%s: %t, but Instance.%s = %t", s, ability.name, ability.has, ability.field, ability.named)
		}
	}
}

// A kit is an engine and a key for one case. Its methods fail the case, and are for its own goroutine.
type kit struct {
	*testing.T
	Instance
	key string
}

func value(epoch uint64, text string) driver.Entry {
	return driver.Entry{Kind: driver.KindValue, Value: []byte(text), Epoch: epoch, TTL: time.Hour}
}

func (k kit) claim(s driver.Store) (driver.Entry, uint64) {
	k.Helper()
	e, epoch, err := s.Claim(k.Context(), k.key)
	if err != nil {
		k.Fatalf("Claim: %v", err)
	}
	return e, epoch
}

func (k kit) newEpoch(s driver.Store) uint64 {
	k.Helper()
	_, epoch := k.claim(s)
	return epoch
}

func (k kit) commit(s driver.Store, e driver.Entry) {
	k.Helper()
	if err := s.Commit(k.Context(), k.key, e); err != nil {
		k.Fatalf("Commit of epoch %d: %v", e.Epoch, err)
	}
}

func (k kit) refused(s driver.Store, e driver.Entry, why string) {
	k.Helper()
	if err := s.Commit(k.Context(), k.key, e); !errors.Is(err, driver.ErrFenced) {
		k.Fatalf("Commit %s: err = %v, want ErrFenced", why, err)
	}
}

func (k kit) invalidate(s driver.Store) {
	k.Helper()
	if err := s.Invalidate(k.Context(), k.key); err != nil {
		k.Fatalf("Invalidate: %v", err)
	}
}

func (k kit) present(s driver.Store, want driver.Entry) {
	k.Helper()
	got, err := s.Get(k.Context(), k.key)
	if err != nil {
		k.Fatalf("Get: %v, want epoch %d", err, want.Epoch)
	}
	if err := same(got, want); err != nil {
		k.Fatalf("Get: %v", err)
	}
}

func (k kit) absent(s driver.Store, why string) {
	k.Helper()
	if e, err := s.Get(k.Context(), k.key); !errors.Is(err, driver.ErrNotFound) {
		k.Fatalf("Get %s: entry of epoch %d, err = %v, want ErrNotFound", why, e.Epoch, err)
	}
}

// same returns the difference between got, from a store, and want, as committed.
func same(got, want driver.Entry) error {
	if got.Age < max(0, want.Age) {
		return fmt.Errorf("an Age of %v, want at least the %v of the commit", got.Age, want.Age)
	}
	if !bytes.Equal(got.Value, want.Value) {
		return fmt.Errorf("a Value of %.40q (%d bytes), want %.40q (%d bytes)", got.Value, len(got.Value), want.Value, len(want.Value))
	}
	if got.Kind != want.Kind || got.Epoch != want.Epoch ||
		got.TTL != want.TTL || got.StaleWhileRevalidate != want.StaleWhileRevalidate || got.StaleIfError != want.StaleIfError ||
		got.Keep != want.Keep || got.Validator != want.Validator || !slices.Equal(got.Tags, want.Tags) || got.BuildTime != want.BuildTime || got.Sweep != want.Sweep || got.Failures != want.Failures || got.RetryAge != want.RetryAge || got.Failure != want.Failure {
		got.Value, want.Value = nil, nil
		return fmt.Errorf("entry %+v, want %+v", got, want)
	}
	return nil
}

// empty wants the zero Entry, as from Claim without an entry.
func (k kit) empty(e driver.Entry, why string) {
	k.Helper()
	if e.Kind != driver.KindNone || e.Value != nil || e.Epoch != 0 || e.Life() != 0 || e.Failures != 0 {
		k.Fatalf("Claim %s returned an entry of epoch %d, want the zero Entry", why, e.Epoch)
	}
}

// untilAnswer calls f until its error is nil or an error of the contract: a restart may fail some calls.
func (k kit) untilAnswer(what string, f func(context.Context) error) error {
	k.Helper()
	ctx, cancel := context.WithTimeout(k.Context(), 20*time.Second)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil || errors.Is(err, driver.ErrNotFound) || errors.Is(err, driver.ErrFenced) || errors.Is(err, driver.ErrCorrupt) {
			return err
		}
		if ctx.Err() != nil {
			k.Fatalf("%s after a restart still fails: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond) // a real server is coming back
	}
}
