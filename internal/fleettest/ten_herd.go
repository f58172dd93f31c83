package fleettest

import (
	"fmt"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/observe"
)

// This file tests the cost of one cold key for ten processes, and their observations of it.

func tenHerd(t *testing.T, f *fleet, kind Kind) {
	const waited, callers, build = 9, 20, 500 * time.Millisecond
	f.origin.delay.Store(int64(build))
	// The notice has the value. On a busy machine a process may receive the release 10 ms before
	// the notice, and look; but most processes do not, in two rounds of a few.
	looks, earlier := waited, waited // in the last round, and the one before it
	for round := 0; round < 2 || looks+earlier > waited && round < 6; round++ {
		key := fmt.Sprint("cold", round)
		before := f.all(order{Do: "stats"}).Stats
		commandsBefore := f.asked(t, kind)
		r := f.herd(key, callers)
		if n := f.origin.count(key); n != 1 || r.Values[key+"#1"] != 10*callers {
			t.Errorf("%d loads, answers %v; want 1 load for %d callers", n, r.Values, 10*callers)
		}
		tenTold(t, f, key, callers)
		if kind.Name == Redis.Name {
			// Each process looks once, the claim and the commit read, and the release compares.
			after := f.quiet(t, kind)
			again := after["get"] + after["getrange"] - commandsBefore["get"] - commandsBefore["getrange"] - 10 - 2 - 1
			earlier, looks = looks, again
			total, detail := after.Since(commandsBefore)
			t.Logf("%d commands:%s; %d looks by who waited", total, detail, again)
			// Three for each waiting process, and the holder's.
			if most := 3*waited + 19; total-again > most {
				t.Errorf("%d commands and %d looks by who waited, want %d commands at most", total-again, again, most)
			}
		} else {
			looks, earlier = 0, 0 // no notice comes
		}
		after := r.Stats
		for _, c := range []struct {
			name      string
			got, want uint64
		}{
			{"loads", after.Loads - before.Loads, 1},
			{"flights that waited", after.Waits - before.Waits, 9},
			{"misses", after.Misses - before.Misses, 10},
			{"collapsed calls", after.Collapsed - before.Collapsed, 10*callers - 10},
			{"hedges", after.Hedges - before.Hedges, 0},
		} {
			if c.got != c.want {
				t.Errorf("%d %s in the fleet, want %d", c.got, c.name, c.want)
			}
		}
	}
	if n := looks + earlier; n > waited {
		t.Errorf("%d looks of %d processes that waited; want the value in the notice", n, 2*waited)
	}
}

// tenTold wants the observers of all processes to add up to one herd: one rebuild in one process,
// and in each process one report of a herd of all its callers, with a wake lag if it waited.
func tenTold(t *testing.T, f *fleet, key string, callers int) {
	t.Helper()
	var reports []report
	if !waitFor(2*time.Second, func() bool { // the last caller's answer comes before the report of its herd
		herds, rebuilds := 0, 0
		reports = f.each(func(int) order { return order{Do: "told", Key: key} })
		for _, r := range reports {
			herds += len(r.Told.Herds)
			rebuilds += len(r.Told.Rebuilds)
		}
		return herds >= len(reports) && rebuilds > 0
	}) {
		t.Errorf("%s: not every process has told of its herd", key)
	}
	rebuilds, loaded := 0, 0
	for id, r := range reports {
		for _, b := range r.Told.Rebuilds {
			if rebuilds++; b.Outcome != observe.OutcomeValue || b.Takeover || b.LeaseLost {
				t.Errorf("process %d tells of the rebuild %+v", id, b)
			}
		}
		if len(r.Told.Herds) != 1 {
			t.Errorf("process %d tells of %d herds, want 1", id, len(r.Told.Herds))
			continue
		}
		h := r.Told.Herds[0]
		if h.Loaded {
			loaded++
		}
		if h.Loaded != (len(r.Told.Rebuilds) == 1) || h.Callers != callers || h.WakeLag < 0 || h.WakeLag == 0 && !h.Loaded || h.Waited < h.WakeLag {
			t.Errorf("process %d tells of %+v, want %d callers who waited, and when they woke", id, h, callers)
		}
	}
	if rebuilds != 1 || loaded != 1 {
		t.Errorf("%s: the observers tell of %d rebuilds, and of %d herds that loaded; want 1", key, rebuilds, loaded)
	}
}
