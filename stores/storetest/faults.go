package storetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"

	"github.com/bellwether-go/bellwether/driver"
)

// This file tests faults of an engine.

// unprovable wants the commit of a forgotten claim refused, now and after the next claim: a newer entry
// may have come since. The next claim is accepted: a lost counter must not block commits for good.
func (k kit) unprovable(a, b driver.Store, forgotten uint64) {
	k.Helper()
	k.refused(a, value(forgotten, "forgotten"), "of a claim that the engine has forgotten")
	epoch := k.newEpoch(b)
	if epoch <= forgotten {
		k.Fatalf("Claim gave epoch %d after %d, which the engine has forgotten", epoch, forgotten)
	}
	k.refused(a, value(forgotten, "forgotten"), "of a forgotten claim, after a newer claim")
	e := value(epoch, "next")
	k.commit(b, e)
	k.present(a, e)
	k.refused(a, value(forgotten, "forgotten"), "of a forgotten claim, after a newer commit")
	k.present(b, e)
}

func (k kit) evict() {
	k.Helper()
	if k.Evict == nil {
		k.Fatal("Instance.Evict is nil, want a function that makes the engine forget all data of a key")
	}
	k.Evict(k, k.key)
}

func testEvict(k kit) {
	a, b := k.Open(k), k.Open(k)
	for range 3 {
		k.commit(a, value(k.newEpoch(a), "v"))
		running := k.newEpoch(a)
		k.evict()
		k.absent(a, "after an eviction")
		k.absent(b, "after an eviction")
		k.unprovable(a, b, running)
	}
	running := k.newEpoch(a)
	k.invalidate(b)
	k.evict()
	k.refused(a, value(running, "old"), "of a claim before an invalidation that the engine has forgotten")
	k.unprovable(a, b, running)
	// Invalidate works on a forgotten key.
	running = k.newEpoch(a)
	k.evict()
	k.invalidate(b)
	k.refused(a, value(running, "old"), "of a claim before an invalidation")
	k.unprovable(a, b, running)
}

func testEvictCounter(k kit) {
	a, b := k.Open(k), k.Open(k)
	for range 3 {
		e := value(k.newEpoch(a), "v")
		k.commit(a, e)
		running := k.newEpoch(a)
		k.EvictCounter(k, k.key)
		// The store may serve the entry or not.
		got, err := b.Get(k.Context(), k.key)
		if err == nil {
			err = same(got, e)
		}
		if err != nil && !errors.Is(err, driver.ErrNotFound) {
			k.Fatalf("Get after the counter was lost: %v", err)
		}
		k.unprovable(a, b, running)
	}
	e := value(k.newEpoch(a), "v")
	k.commit(a, e)
	running := k.newEpoch(a)
	k.EvictCounter(k, k.key)
	k.invalidate(b)
	k.absent(a, "after an invalidation without a counter")
	k.refused(a, value(running, "old"), "of a claim before an invalidation without a counter")
	k.unprovable(a, b, running)
}

// foreign returns bytes that are no entry of the key.
func foreign() map[string][]byte {
	whole := value(1, "a value that was damaged").Append(nil, "another key")
	damaged := bytes.Clone(whole)
	damaged[len(damaged)-1] ^= 1
	// An entry's header, whatever the store puts before it, with the last epoch and a bad checksum.
	hostile := bytes.Clone(whole)
	binary.BigEndian.PutUint64(hostile[8:], math.MaxUint64)
	return map[string][]byte{
		"nothing":                        {},
		"text":                           []byte("hello, world"),
		"a number":                       []byte("1760000000000000"),
		"JSON":                           []byte(`{"value": "x", "epoch": 99999999999999999999}`),
		"zeros":                          make([]byte, 4<<10),
		"an entry cut short":             whole[:len(whole)-1],
		"an entry with a flipped bit":    damaged,
		"an entry of the last epoch":     hostile,
		"the same behind sixteen digits": append([]byte("1760000000000000"), hostile...),
		"the same behind other bytes":    append([]byte("sixteen bytes...!"[:16]), hostile...),
	}
}

// testMix gives one key the bytes of another: a miss, mended by the next rebuild.
func testMix(k kit) {
	a, b := k.Open(k), k.Open(k)
	other := k
	other.key += " other"
	other.commit(a, value(other.newEpoch(a), "another key's"))
	k.commit(a, value(k.newEpoch(a), "the key's own"))
	k.Mix(k, other.key, k.key)
	if e, err := b.Get(k.Context(), k.key); !errors.Is(err, driver.ErrCorrupt) {
		k.Fatalf("Get with another key's bytes: entry of epoch %d with %q, err = %v, want ErrCorrupt", e.Epoch, e.Value, err)
	}
	got, epoch := k.claim(b)
	k.empty(got, "over another key's bytes")
	e := value(epoch, "mended")
	k.commit(b, e)
	k.present(a, e)
}

func testPoison(k kit) {
	a, b := k.Open(k), k.Open(k)
	foreign := foreign()
	corrupt := func(s driver.Store, name string) {
		k.Helper()
		e, err := s.Get(k.Context(), k.key)
		if len(foreign[name]) == 0 && errors.Is(err, driver.ErrNotFound) {
			return // some engines have no empty values
		}
		if !errors.Is(err, driver.ErrCorrupt) {
			k.Fatalf("Get of %s: entry %+v, err = %v, want ErrCorrupt", name, e, err)
		}
	}
	name := k.key
	for what, data := range foreign {
		// Under a key never claimed.
		k.key = name + what
		k.Poison(k, k.key, data)
		corrupt(a, what)
		got, older := k.claim(a)
		k.empty(got, "over "+what)
		first := k.newEpoch(a)
		e := value(first, "repaired")
		k.commit(a, e)
		k.present(b, e)

		// Over an entry.
		k.Poison(k, k.key, data)
		corrupt(b, what)
		got, epoch := k.claim(b)
		k.empty(got, "over "+what)
		if epoch <= first {
			k.Fatalf("Claim over %s gave epoch %d after %d", what, epoch, first)
		}
		k.refused(a, value(older, "late"), "below the floor, over "+what)
		e = value(epoch, "repaired again")
		k.commit(b, e)
		k.present(a, e)

		k.Poison(k, k.key, data)
		k.invalidate(a)
		k.absent(b, "after an invalidation over "+what)
		e = value(k.newEpoch(b), "after it")
		k.commit(b, e)
		k.present(a, e)
	}
}

func testRestart(k kit) {
	a, b := k.Open(k), k.Open(k)
	k.commit(a, value(k.newEpoch(a), "before"))
	running := k.newEpoch(a)
	k.newEpoch(b) // b's connections outlive the engine too
	k.Restart(k)

	for _, s := range []driver.Store{a, b} {
		err := k.untilAnswer("Get", func(ctx context.Context) error {
			_, err := s.Get(ctx, k.key)
			return err
		})
		if !errors.Is(err, driver.ErrNotFound) {
			k.Fatalf("Get after a restart: err = %v, want ErrNotFound", err)
		}
	}
	err := k.untilAnswer("Commit", func(ctx context.Context) error {
		return a.Commit(ctx, k.key, value(running, "from before"))
	})
	if !errors.Is(err, driver.ErrFenced) {
		k.Fatalf("Commit of a claim from before a restart: err = %v, want ErrFenced", err)
	}
	var epoch uint64
	err = k.untilAnswer("Claim", func(ctx context.Context) error {
		var err error
		_, epoch, err = b.Claim(ctx, k.key)
		return err
	})
	if err != nil || epoch <= running {
		k.Fatalf("Claim after a restart gave epoch %d after %d, err = %v", epoch, running, err)
	}
	k.refused(a, value(running, "from before"), "of a claim from before a restart, after a claim behind it")
	e := value(epoch, "after")
	err = k.untilAnswer("Commit", func(ctx context.Context) error { return b.Commit(ctx, k.key, e) })
	if err != nil {
		k.Fatalf("Commit after a restart: %v", err)
	}
	k.untilAnswer("Get", func(ctx context.Context) error {
		got, err := a.Get(ctx, k.key)
		if err == nil {
			err = same(got, e)
		}
		return err
	})
}
