package storetest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// This file tests how long a store remembers.

// memory is the wait before a case uses a claim or a floor again. Longer would only slow down the suite.
const memory = 2500 * time.Millisecond

// testClaimLasts wants a claim accepted some time later, in each state of the key.
func testClaimLasts(k kit) {
	s, other := k.Open(k), k.Open(k)
	k.each(map[string]func(kit){
		"of a key without an entry": func(k kit) {
			epoch := k.newEpoch(s)
			time.Sleep(memory) // the engine's clock is real, here and below
			k.accepted(s, value(epoch, "v"))
		},
		"over an entry": func(k kit) {
			k.commit(other, value(k.newEpoch(other), "old"))
			epoch := k.newEpoch(s)
			time.Sleep(memory)
			k.accepted(s, value(epoch, "v"))
		},
		"over an entry whose life ends": func(k kit) {
			old := value(k.newEpoch(other), "old")
			old.TTL = memory / 4
			k.commit(other, old)
			epoch := k.newEpoch(s)
			time.Sleep(memory)
			k.absent(other, "after the entry's life")
			k.accepted(s, value(epoch, "v"))
		},
		"under which an entry was committed whose life ends": func(k kit) {
			first, second := k.newEpoch(other), k.newEpoch(s)
			old := value(first, "old")
			old.TTL = memory / 4
			k.commit(other, old)
			time.Sleep(memory)
			k.absent(other, "after the entry's life")
			k.accepted(s, value(second, "v"))
		},
		"after an invalidation": func(k kit) {
			k.invalidate(other)
			epoch := k.newEpoch(s)
			time.Sleep(memory)
			k.accepted(s, value(epoch, "v"))
		},
	})
}

// testInvalidationLasts wants a slow rebuild refused by an invalidation, like a quick one.
func testInvalidationLasts(k kit) {
	s, other := k.Open(k), k.Open(k)
	k.each(map[string]func(kit){
		"of a key without an entry": func(k kit) {
			running := k.newEpoch(s)
			k.invalidate(other)
			time.Sleep(memory)
			k.refused(s, value(running, "old"), "of a claim before Invalidate, some time later")
		},
		"of an entry": func(k kit) {
			k.commit(other, value(k.newEpoch(other), "old"))
			running := k.newEpoch(s)
			k.invalidate(other)
			time.Sleep(memory)
			k.absent(s, "some time after Invalidate")
			k.refused(s, value(running, "old"), "of a claim before Invalidate, some time later")
		},
		"with a claim behind it": func(k kit) {
			running := k.newEpoch(s)
			k.invalidate(other)
			next := k.newEpoch(other)
			time.Sleep(memory)
			k.refused(s, value(running, "old"), "of a claim before Invalidate, some time later")
			k.accepted(other, value(next, "new"))
		},
	})
}

// testFloorOutlivesEntry wants a late commit refused although the overtaking entry is gone.
func testFloorOutlivesEntry(k kit) {
	quick, paused := k.Open(k), k.Open(k)
	k.each(map[string]func(kit){
		"whose life ends": func(k kit) {
			late := k.newEpoch(paused)
			e := value(k.newEpoch(quick), "newer")
			e.TTL = memory / 4
			k.commit(quick, e)
			time.Sleep(memory)
			k.absent(paused, "after the entry's life")
			k.refused(paused, value(late, "late"), "of claim 1 after the life of what claim 2 has committed")
		},
		"whose life ends with a claim behind it": func(k kit) {
			late := k.newEpoch(paused)
			e := value(k.newEpoch(quick), "newer")
			e.TTL = memory / 4
			k.commit(quick, e)
			next := k.newEpoch(quick)
			time.Sleep(memory)
			k.refused(paused, value(late, "late"), "of claim 1 after the life of what claim 2 has committed")
			k.accepted(quick, value(next, "next"))
		},
		"that keeps nothing": func(k kit) {
			late := k.newEpoch(paused)
			k.commit(quick, driver.Entry{Epoch: k.newEpoch(quick)})
			time.Sleep(memory)
			k.refused(paused, value(late, "late"), "of claim 1 after a commit of nothing by claim 2")
		},
	})
}

// testKept wants an entry kept until its last window closes, whichever it is.
func testKept(k kit) {
	writer, reader := k.Open(k), k.Open(k)
	const ttl, life = 300 * time.Millisecond, 1600 * time.Millisecond
	entry := func(e driver.Entry) func(kit) {
		return func(k kit) { k.kept(writer, reader, e) }
	}
	v := []byte("v")
	k.each(map[string]func(kit){
		"TTL":                  entry(driver.Entry{Kind: driver.KindValue, Value: v, TTL: life}),
		"StaleWhileRevalidate": entry(driver.Entry{Kind: driver.KindValue, Value: v, TTL: ttl, StaleWhileRevalidate: life - ttl}),
		"StaleIfError":         entry(driver.Entry{Kind: driver.KindValue, Value: v, TTL: ttl, StaleIfError: life - ttl}),
		"Keep":                 entry(driver.Entry{Kind: driver.KindValue, Value: v, TTL: ttl, Keep: life - ttl}),
		"not found":            entry(driver.Entry{Kind: driver.KindNotFound, TTL: ttl, StaleIfError: life - ttl}),
		"failures":             entry(driver.Entry{Kind: driver.KindValue, Value: v, TTL: ttl, Failures: 1, RetryAge: ttl, Failure: "f"}),
		"Age":                  entry(driver.Entry{Kind: driver.KindValue, Value: v, Age: time.Hour, TTL: time.Hour + life}),
	})
}

// kept commits e and wants it back after three quarters of its life, or of two seconds. Replies after
// nine tenths of the life are not judged: a store may overestimate an age by a call's length.
func (k kit) kept(writer, reader driver.Store, e driver.Entry) {
	k.Helper()
	life := min(e.Life(), 2*time.Second)
	for range 10 {
		e.Epoch = k.newEpoch(writer)
		start := time.Now()
		k.commit(writer, e)
		time.Sleep(life*3/4 - time.Since(start))
		for _, s := range []driver.Store{reader, writer} {
			got, err := s.Get(k.Context(), k.key)
			if time.Since(start) > life*9/10 {
				continue
			}
			if errors.Is(err, driver.ErrNotFound) {
				k.Fatalf("Get: %v, %v before the end of an entry's life of %v", err, e.Life()-time.Since(start), e.Life())
			}
			if err == nil {
				err = same(got, e)
			}
			if err != nil {
				k.Fatalf("Get: %v", err)
			}
			got, _ = k.claim(s)
			if time.Since(start) > life*9/10 {
				continue
			}
			if err := same(got, e); err != nil {
				k.Fatalf("Claim, %v before the end of an entry's life of %v: %v", e.Life()-time.Since(start), e.Life(), err)
			}
			return
		}
	}
	k.Fatalf("no two calls of ten rounds took less than %v", life*3/20)
}

func (k kit) accepted(s driver.Store, e driver.Entry) {
	k.Helper()
	if err := s.Commit(k.Context(), k.key, e); err != nil {
		k.Fatalf("Commit of a claim %v ago: %v", memory, err)
	}
	k.present(s, e)
}

// each runs the parts of a case at one time, with a key each: they wait more than they work.
func (k kit) each(parts map[string]func(kit)) {
	k.Helper()
	var waiting sync.WaitGroup
	for name, run := range parts {
		waiting.Go(func() {
			k.Run(name, func(t *testing.T) { run(kit{T: t, Instance: k.Instance, key: t.Name()}) })
		})
	}
	waiting.Wait()
}
