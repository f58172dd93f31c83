package fleettest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// This file tests ten processes that ask for many keys at a time.

// tenBatches has all processes ask at one moment for overlapping sets of keys, with one key whose
// load fails, and then again when the store has the values.
func tenBatches(t *testing.T, f *fleet, kind Kind) {
	const keys, spoilt = tenKeys, "batch-spoilt"
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
	before := f.asked(t, kind)
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
	for i := range keys {
		if key := fmt.Sprint("batch", i); f.origin.count(key) != 1 {
			t.Errorf("%d loads of %s, want 1", f.origin.count(key), key)
		}
	}
	if n := f.origin.count(spoilt); n != 1 {
		t.Errorf("%d loads of the key that fails, want 1", n)
	}
	if kind.Name == Redis.Name {
		if n := f.asked(t, kind)["mget"] - before["mget"]; n != 10 {
			t.Errorf("%d reads of many keys by ten batches, want one for each", n)
		}
	}

	// Near values have to be confirmed after NearTTL. A process that gets no processor for NearTTL confirms them twice.
	asked, detail := 0, ""
	for try := 0; try < 3 && asked != 10; try++ {
		before = f.quiet(t, kind)
		time.Sleep(shortNearTTL)
		reports = f.each(func(id int) order { return order{Do: "many", Keys: set(id)} })
		asked, detail = f.asked(t, kind).Since(before)
	}
	if asked != 10 {
		t.Errorf("the store was asked %d times for the hits of ten batches, want once for each:%s", asked, detail)
	}
	for id, r := range reports {
		if rest := wantSet(id, r); len(rest) > 0 {
			t.Errorf("process %d got %v too", id, rest)
		}
	}
	if n := f.origin.count("batch0"); n != 1 {
		t.Errorf("%d loads after the store had it", n)
	}
}

const tenKeys = 30

// overlapping is the process's set of keys: each key is in four sets.
func overlapping(prefix string, id int) (set []string) {
	for i := range 4 * tenKeys / 10 {
		set = append(set, fmt.Sprint(prefix, (id*tenKeys/10+i)%tenKeys))
	}
	return set
}

// asked returns the number of requests of each kind to the engine. Redis counts them itself: a
// meter in between, in a busy process, delays some pushes more than others.
func (f *fleet) asked(t *testing.T, kind Kind) testserver.Counts {
	t.Helper()
	if kind.Name == Redis.Name {
		return commands(t, f.servers[0].Addr)
	}
	all := testserver.Counts{}
	for _, meters := range f.meters {
		for _, m := range meters {
			for name, n := range m.Requests() {
				all[name] += n
			}
		}
	}
	return all
}

// quiet waits for the releases after the callers' answers, until no request comes, and returns the counts.
func (f *fleet) quiet(t *testing.T, kind Kind) (asked testserver.Counts) {
	t.Helper()
	if !waitFor(5*time.Second, func() bool {
		before := f.asked(t, kind)
		time.Sleep(100 * time.Millisecond)
		asked = f.asked(t, kind)
		n, _ := asked.Since(before)
		return n == 0
	}) {
		t.Fatal("the processes do not stop asking")
	}
	return asked
}
