package fleettest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// This file holds what ten processes owe each other that ask for many keys at a
// time.

// tenBatches has all processes ask at one moment for sets of keys that overlap,
// with one among them that cannot be had, and then again when the store has them.
func tenBatches(t *testing.T, f *fleet, kind Kind) {
	const spoilt = "batch-spoilt"
	f.origin.delay.Store(int64(300 * time.Millisecond))
	f.origin.fail(spoilt)
	set := func(id int) []string { return overlapping("batch", id) }
	wantSet := func(id int, r report) (rest map[string]int) {
		rest = r.Values
		for _, key := range set(id) {
			if rest[key+"#1"] != 1 {
				t.Errorf("process %d has no %s#1: %v", id, key, r.Values)
			}
			delete(rest, key+"#1")
		}
		return rest
	}
	reads := f.kinds("mget")
	at := time.Now().Add(100 * time.Millisecond)
	reports := f.each(func(id int) order {
		return order{Do: "many", Keys: append(set(id), spoilt), At: at}
	})
	for id, r := range reports {
		failed := 0
		for v, n := range wantSet(id, r) {
			if failed += n; !strings.HasPrefix(v, "error: "+spoilt+": ") || !strings.Contains(v, "the origin fails") {
				t.Errorf("process %d got %q", id, v)
			}
		}
		if failed != 1 {
			t.Errorf("process %d was told of %d failures, want that of the one key", id, failed)
		}
	}
	for i := range setKeys {
		if key := fmt.Sprint("batch", i); f.origin.count(key) != 1 {
			t.Errorf("%d loads of %s, want 1", f.origin.count(key), key)
		}
	}
	if n := f.origin.count(spoilt); n != 1 {
		t.Errorf("%d loads of the key that fails, want 1", n)
	}
	if kind.Name == Redis.Name {
		for id, n := range f.kinds("mget") {
			if n -= reads[id]; n != 1 {
				t.Errorf("process %d has read %d times for many keys, want once", id, n)
			}
		}
	}

	// What is near has to be confirmed after NearTTL, and some of it is not near.
	requests := f.quiet(t)
	time.Sleep(shortNearTTL)
	reports = f.each(func(id int) order { return order{Do: "many", Keys: set(id)} })
	for id, n := range f.kinds() {
		if n -= requests[id]; n != 1 {
			t.Errorf("process %d has asked the store %d times for the hits of one batch, want once", id, n)
		}
		if rest := wantSet(id, reports[id]); len(rest) > 0 {
			t.Errorf("process %d got %v too", id, rest)
		}
	}
	if n := f.origin.count("batch0"); n != 1 {
		t.Errorf("%d loads after the store had it", n)
	}
}

const setKeys = 30

// overlapping is the process's set of as many keys: each key is in four sets.
func overlapping(prefix string, id int) (set []string) {
	for i := range 4 * setKeys / 10 {
		set = append(set, fmt.Sprint(prefix, (id*setKeys/10+i)%setKeys))
	}
	return set
}

// kinds returns how many requests of these kinds each process has made; none:
// of all kinds.
func (f *fleet) kinds(kinds ...string) []int {
	all := make([]int, len(f.meters))
	for id, meters := range f.meters {
		for _, m := range meters {
			requests := m.Requests()
			for _, kind := range kinds {
				all[id] += requests[kind]
			}
			if len(kinds) == 0 {
				for _, n := range requests {
					all[id] += n
				}
			}
		}
	}
	return all
}

// quiet waits until the processes ask nothing any more, since leases are released
// behind the callers, and returns how many requests each has made.
func (f *fleet) quiet(t *testing.T) (requests []int) {
	t.Helper()
	if !waitFor(5*time.Second, func() bool {
		requests = f.kinds()
		time.Sleep(100 * time.Millisecond)
		for id, n := range f.kinds() {
			if n != requests[id] {
				return false
			}
		}
		return true
	}) {
		t.Fatal("the processes do not stop asking")
	}
	return requests
}
