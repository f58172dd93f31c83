package storetest

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// This file tests the content and the life of entries.

func testNotFound(k kit) {
	s := k.Open(k)
	k.absent(s, "of a key never used")
	e, _ := k.claim(s)
	k.empty(e, "of a key never used")
	k.absent(s, "of a key that is claimed and not committed")
}

func testRoundTrip(k kit) {
	writer, reader := k.Open(k), k.Open(k)
	for _, want := range []driver.Entry{
		{
			Kind: driver.KindValue, Value: []byte("a value\r\n\x00\xff"),
			Age: 3 * time.Second, TTL: time.Minute, StaleWhileRevalidate: time.Hour, StaleIfError: 25 * time.Hour,
			Keep: 3 * time.Hour, BuildTime: 123456789, Sweep: 1<<53 - 1, Failures: 3, RetryAge: time.Minute + 1, Failure: "origin: 503\r\n\x00",
			Validator: "\"v1\"\r\n\x00", Tags: []string{"a tag", "", "another\xff"},
		},
		{Kind: driver.KindValue, Value: []byte("END\r\nVALUE x 0 1\r\nx"), TTL: time.Minute},
		{Kind: driver.KindNotFound, TTL: time.Minute, StaleIfError: time.Hour, Keep: 2 * time.Hour, BuildTime: 1},
		{Kind: driver.KindNone, Failures: 1, RetryAge: time.Minute, Failure: "no value was ever built"},
		{Kind: driver.KindUnshared, TTL: time.Minute},
		{Kind: driver.KindUnelected, TTL: time.Minute},
	} {
		want.Epoch = k.newEpoch(writer)
		k.commit(writer, want)
		k.present(writer, want)
		k.present(reader, want)
		got, epoch := k.claim(reader)
		if err := same(got, want); err != nil {
			k.Fatalf("Claim: %v", err)
		}
		if epoch <= want.Epoch {
			k.Fatalf("Claim gave epoch %d after %d", epoch, want.Epoch)
		}
	}
}

func testAge(k kit) {
	// A store may overestimate the age by a round trip, but never underestimate it. The upper bound
	// therefore begins before the first request, and has room for the store's longest call since.
	start := time.Now()
	const slack = time.Millisecond // rounding of engines
	longest := 50 * time.Millisecond
	timed := func(call func()) {
		began := time.Now()
		call()
		longest = max(longest, time.Since(began))
	}
	writer := k.Open(k)
	var e driver.Entry
	timed(func() { e = value(k.newEpoch(writer), "v") })
	e.Age = 5 * time.Second
	timed(func() { k.commit(writer, e) })
	committed := time.Now()

	check := func(what string, ask func() driver.Entry) {
		k.Helper()
		var got driver.Entry
		low := e.Age + time.Since(committed) - slack
		timed(func() { got = ask() })
		if high := e.Age + time.Since(start) + slack + longest; got.Age < low || got.Age > high {
			k.Errorf("%s: Age = %v, want %v to %v", what, got.Age, low, high)
		}
	}
	for _, s := range []driver.Store{writer, k.Open(k)} {
		for range 2 {
			time.Sleep(30 * time.Millisecond) // the engine's clock is real
			check("Get", func() driver.Entry {
				got, err := s.Get(k.Context(), k.key)
				if err != nil {
					k.Fatalf("Get: %v", err)
				}
				return got
			})
			check("Claim", func() driver.Entry {
				got, _ := k.claim(s)
				return got
			})
			if elector, ok := s.(driver.Elector); ok && k.Elects {
				k.electedAges(elector, e.Epoch, check)
			}
		}
	}

	e = value(k.newEpoch(writer), "from a clock that was set back")
	e.Age = -time.Hour
	k.commit(writer, e)
	got, err := writer.Get(k.Context(), k.key)
	if err != nil || got.Age < 0 || got.Age > time.Since(start)+slack {
		k.Errorf("Get of an entry committed with a negative Age: Age = %v, err = %v, want about 0", got.Age, err)
	}
}

func testSizes(k kit) {
	s := k.Open(k)
	for _, n := range []int{0, 1, 4 << 10, 1_000_000} {
		for _, content := range [][]byte{make([]byte, n), bytes.Repeat([]byte("\r\nEND"), n/5+1)[:n]} {
			e := value(k.newEpoch(s), string(content))
			k.commit(s, e)
			k.present(s, e)
			got, _ := k.claim(s)
			if err := same(got, e); err != nil {
				k.Fatalf("Claim of %d bytes: %v", n, err)
			}
		}
	}
}

func testTooLarge(k kit) {
	if k.TooLarge <= 1_000_000 {
		k.Fatalf("Instance.TooLarge = %d, want the size that the store documents, above 1000000", k.TooLarge)
	}
	s := k.Open(k)
	old := value(k.newEpoch(s), "old")
	k.commit(s, old)
	e := value(k.newEpoch(s), strings.Repeat("x", k.TooLarge))
	if err := s.Commit(k.Context(), k.key, e); !errors.Is(err, driver.ErrTooLarge) {
		k.Fatalf("Commit of %d bytes: err = %v, want ErrTooLarge", k.TooLarge, err)
	}
	got, err := s.Get(k.Context(), k.key)
	switch {
	case errors.Is(err, driver.ErrNotFound):
	case err != nil:
		k.Fatalf("Get after ErrTooLarge: %v, want the old value or ErrNotFound", err)
	default:
		if err := same(got, old); err != nil {
			k.Fatalf("Get after ErrTooLarge: %v", err)
		}
	}
	// A reply left unread on a connection shows up as the answer to another request.
	for range 20 {
		e := value(k.newEpoch(s), "small")
		k.commit(s, e)
		k.present(s, e)
	}
}

func testLives(k kit) {
	s := k.Open(k)
	const day = 24 * time.Hour
	for _, e := range []driver.Entry{
		{TTL: 30 * day},
		{TTL: 31 * day}, // memcached takes more than 30 days for a date
		{TTL: 40 * day, StaleWhileRevalidate: 400 * day},
		{TTL: math.MaxInt64, StaleIfError: math.MaxInt64},
		{TTL: 900 * time.Millisecond, StaleIfError: time.Hour},
	} {
		e.Kind, e.Value, e.Epoch = driver.KindValue, []byte("v"), k.newEpoch(s)
		k.commit(s, e)
		k.present(s, e)
	}
}

func testLifeEnds(k kit) {
	writer, reader := k.Open(k), k.Open(k)
	for _, e := range []driver.Entry{
		{TTL: 1},
		{TTL: 20 * time.Millisecond},
		{TTL: 100 * time.Millisecond, StaleWhileRevalidate: 150 * time.Millisecond},
		{TTL: time.Hour, Age: time.Hour - 1100*time.Millisecond},
	} {
		e.Kind, e.Value, e.Epoch = driver.KindValue, []byte("v"), k.newEpoch(writer)
		life := e.Life()
		k.commit(writer, e)
		committed := time.Now()
		for found := true; found; {
			for _, s := range []driver.Store{reader, writer} {
				asked := time.Since(committed)
				got, err := s.Get(k.Context(), k.key)
				if err == nil && got.Life() <= 0 {
					k.Fatalf("Get returned an entry whose life is over, at age %v of %v", got.Age, e.Age+life)
				}
				if err == nil && asked > life+time.Millisecond {
					k.Fatalf("Get returned an entry of life %v after %v, with Age %v", life, asked, got.Age)
				}
				if err != nil && !errors.Is(err, driver.ErrNotFound) {
					k.Fatalf("Get: %v", err)
				}
				found = err == nil
			}
			if found {
				time.Sleep(life / 20) // the engine's clock is real
			}
		}
		// A store that overestimates ages may know better by then, so only the true end counts.
		for {
			asked := time.Since(committed)
			got, epoch := k.claim(reader)
			if epoch <= e.Epoch {
				k.Fatalf("Claim gave epoch %d after the entry of epoch %d", epoch, e.Epoch)
			}
			if got.Life() > 0 && asked <= life+time.Millisecond {
				continue
			}
			k.empty(got, "after the entry's life")
			break
		}
	}
}

func testNothingToKeep(k kit) {
	s := k.Open(k)
	k.commit(s, value(k.newEpoch(s), "old"))
	older := k.newEpoch(s)
	for _, e := range []driver.Entry{
		{},
		{Kind: driver.KindValue, Value: []byte("stale on arrival"), TTL: time.Second, Age: time.Hour},
	} {
		e.Epoch = k.newEpoch(s)
		k.commit(s, e)
		k.absent(s, "after a commit of nothing")
		k.commit(s, e) // again, for a lost reply
		k.refused(s, value(older, "late"), "below a commit of nothing")
		k.absent(s, "after a refused commit")
		older = e.Epoch
	}
	e := value(k.newEpoch(s), "new")
	k.commit(s, e)
	k.present(s, e)
	k.refused(s, driver.Entry{Epoch: e.Epoch}, "of nothing under the epoch of a value")
	k.present(s, e)
}

func testHostileKeys(k kit) {
	long := strings.Repeat("k", 10<<10)
	keys := []string{
		"", " ", "  ", "a b", "a", "A", "a\x00", "a\x00b", "\x7f", "a\n", "a\r\n", "a\r\nflush_all\r\n", "a 0 0 1\r\nx\r\n",
		"*1\r\n$8\r\nFLUSHALL\r\n", "ключ", "鍵", "e\u0301", "\u00e9", "\xff", "\xfe", "\xc3(",
		"{a}", "{a}b", "a}", "}{", "{}", "#", "#a", "#47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU",
		"/", "a/b", "a//b", "a_b", "a-b", "a%2Fb", "../a", "a:v", "a:m", "a}:v", "a}:m{a", ":", "%s%d%n", "*", "a?", "[a]",
		long, long + "k", strings.Repeat("k", 160), strings.Repeat("k", 161), strings.Repeat("k", 250), strings.Repeat("k", 251),
		strings.Repeat("\u00e9", 125),
	}
	s, reader := k.Open(k), k.Open(k)
	// The keys do not begin with the case's name; newStore gives every engine its own name space.
	epochs := map[string]uint64{}
	for _, key := range keys {
		k.key = key
		e := value(k.newEpoch(s), "under "+key)
		k.commit(s, e)
		epochs[key] = e.Epoch
	}
	for _, key := range keys {
		k.key = key
		k.present(reader, value(epochs[key], "under "+key))
	}
	for i, key := range keys {
		k.key = key
		k.invalidate(s)
		k.absent(reader, "of an invalidated key")
		if i+1 < len(keys) {
			k.key = keys[i+1]
			k.present(reader, value(epochs[k.key], "under "+k.key))
		}
	}
}

func testContext(k kit) {
	s := k.Open(k)
	epoch := k.newEpoch(s)
	var lease driver.Lease
	if elector, ok := s.(driver.Elector); ok {
		lease = k.leads(elector, 0, driver.Entry{}).Lease
	}
	cancelled, cancel := context.WithCancel(k.Context())
	cancel()
	expired, cancel := context.WithDeadline(k.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for want, ctx := range map[error]context.Context{context.Canceled: cancelled, context.DeadlineExceeded: expired} {
		for name, call := range calls(s, k.key, epoch, lease) {
			start := time.Now()
			if err := call(ctx); !errors.Is(err, want) {
				k.Errorf("%s: err = %v, want %v", name, err, want)
			}
			if took := time.Since(start); took > 5*time.Second {
				k.Errorf("%s took %v to see that its context had ended", name, took)
			}
		}
	}
	k.commit(s, value(k.newEpoch(s), "the store goes on"))
}

// calls returns all methods of s that send requests, by name. An Elector needs a lease of its own.
func calls(s driver.Store, key string, epoch uint64, lease driver.Lease) map[string]func(context.Context) error {
	of := map[string]func(context.Context) error{
		"Get": func(ctx context.Context) error {
			_, err := s.Get(ctx, key)
			return err
		},
		"Claim": func(ctx context.Context) error {
			_, _, err := s.Claim(ctx, key)
			return err
		},
		"Commit": func(ctx context.Context) error {
			return s.Commit(ctx, key, value(epoch, "v"))
		},
		"Invalidate": func(ctx context.Context) error {
			return s.Invalidate(ctx, key)
		},
	}
	if fencer, ok := s.(driver.Fencer); ok {
		of["Fenced"] = func(ctx context.Context) error {
			_, err := fencer.Fenced(ctx, key, epoch)
			return err
		}
	}
	if toucher, ok := s.(driver.Toucher); ok {
		of["Touch"] = func(ctx context.Context) error {
			return toucher.Touch(ctx, key, epoch, value(epoch, ""))
		}
	}
	if elector, ok := s.(driver.Elector); ok {
		of["Elect"] = func(ctx context.Context) error {
			_, err := elector.Elect(ctx, key, 0, electTTL)
			return err
		}
		of["CommitAndRelease"] = func(ctx context.Context) error {
			return elector.CommitAndRelease(ctx, key, value(epoch, "v"), lease)
		}
	}
	if getter, ok := s.(driver.BatchGetter); ok {
		of["GetMany"] = func(ctx context.Context) error {
			var mu sync.Mutex // guards all
			var all error
			over := false
			getter.GetMany(ctx, []string{key, key + " 2", key + " 3"}, func(_ int, _ driver.Entry, err error) {
				mu.Lock()
				defer mu.Unlock()
				if !over {
					all = errors.Join(all, err)
				}
			})
			mu.Lock()
			defer mu.Unlock()
			over = true
			return all
		}
	}
	return of
}

// Hang tests a store against its contexts while its engine, stopped by the caller, is a black hole: every
// method must return its context's error soon after ctx ends. A [driver.Elector] needs one lease from before,
// for a minute at least.
func Hang(t testing.TB, s driver.Store, lease ...driver.Lease) {
	t.Helper()
	of := givenLease(t, s, lease)
	const patience = 50 * time.Millisecond
	// An engine of several threads may still answer on some of them after the signal that stops it.
	for hung, tries := 0, 0; hung < 5 && tries < 200; tries++ {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if _, err := s.Get(ctx, "hang"); errors.Is(err, context.DeadlineExceeded) {
			hung++
		} else {
			hung = 0
		}
		cancel()
	}
	for name, call := range calls(s, "hang", 1, of) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		start := time.Now()
		err := call(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s of an engine that hangs: err = %v, want the context's", name, err)
		}
		if took := time.Since(start); took > patience+2*time.Second {
			t.Errorf("%s of an engine that hangs took %v with a context of %v", name, took, patience)
		}
	}
}

// Down tests a store's errors while its engine is gone: every method must fail, with none of the
// errors of the contract. A [driver.Elector] needs one lease, as for [Hang].
func Down(t testing.TB, s driver.Store, lease ...driver.Lease) {
	t.Helper()
	of := givenLease(t, s, lease)
	for name, call := range calls(s, "down", 1, of) {
		err := call(t.Context())
		if err == nil {
			t.Errorf("%s of an engine that is gone succeeded", name)
		}
		for _, named := range []error{driver.ErrNotFound, driver.ErrFenced, driver.ErrCorrupt, driver.ErrTooLarge, driver.ErrHeld, driver.ErrLeaseLost, context.Canceled, context.DeadlineExceeded} {
			if errors.Is(err, named) {
				t.Errorf("%s of an engine that is gone: err = %v, which is %v", name, err, named)
			}
		}
	}
}

func givenLease(t testing.TB, s driver.Store, leases []driver.Lease) driver.Lease {
	t.Helper()
	_, elects := s.(driver.Elector)
	switch {
	case len(leases) > 0:
		return leases[0]
	case elects:
		t.Fatalf("%T is a driver.Elector: CommitAndRelease needs a lease that it gave out before", s)
	}
	return nil
}
