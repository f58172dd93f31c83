package chaos

import (
	"slices"
	"testing"
	"time"
)

// TestChecks holds each check of a fleet's history, and what excuses it, to
// histories that are written by hand. Times are in milliseconds; leases last
// 400, MaxWait is 1.6 s, and nothing but the case's own is in the way.
func TestChecks(t *testing.T) {
	const late = 100_000 // far from the beginning of all
	get := func(worker int, begin, end int64, version int) event {
		return event{Kind: kindGet, Key: "k", Worker: worker, Life: 1, Begin: (late + begin) * msec, End: (late + end) * msec, Result: done, Version: version}
	}
	load := func(worker int, begin, end int64) event {
		e := get(worker, begin, end, 0)
		e.Kind = kindLoad
		return e
	}
	commit := func(worker int, begin, end int64, version int, epoch uint64, r result) event {
		e := get(worker, begin, end, version)
		e.Kind, e.Epoch, e.Sum, e.Result, e.Keep = kindPut, epoch, epoch, r, time.Minute
		return e
	}
	drop := func(worker int, begin, end int64) event {
		e := get(worker, begin, end, 0)
		e.Kind = kindDrop
		return e
	}
	unanswered := func(worker int, at int64) event {
		e := get(worker, at-10, at, 0)
		e.Kind, e.Result = kindRead, silent
		return e
	}
	gapOf := func(worker int, begin, end int64) event {
		e := get(worker, begin, end, 0)
		e.Kind, e.Key = kindGap, ""
		return e
	}
	trouble := func(worker int, begin, end int64) fault {
		return fault{span{(late + begin) * msec, (late + end) * msec}, worker, -1}
	}
	for _, c := range []struct {
		name   string
		events []event
		faults []fault
		want   []check
	}{
		{"two loads at one time", []event{load(0, 0, 50), load(1, 40, 60)}, nil, []check{checkOne}},
		{"one after another", []event{load(0, 0, 50), load(1, 50, 60)}, nil, nil},
		{"two loads, one behind a fault", []event{load(0, 0, 50), load(1, 40, 60)}, []fault{trouble(1, -300, -200)}, nil},
		{"two loads, a fault elsewhere", []event{load(0, 0, 50), load(1, 40, 60)}, []fault{trouble(2, -300, -200)}, []check{checkOne}},
		{"two loads, a fault long ago", []event{load(0, 0, 50), load(1, 40, 60)}, []fault{trouble(1, -9000, -8000)}, []check{checkOne}},
		{"two loads, one of a starved process", []event{load(0, 0, 50), load(1, 40, 60), gapOf(0, -100, -50)}, nil, nil},
		{"two loads, a commit without an answer anywhere", []event{load(0, 0, 50), load(1, 40, 60), commit(2, -90, -80, 1, 1, silent)}, nil, nil},

		{"a version that falls", []event{commit(0, 0, 1, 1, 11, done), commit(0, 2, 3, 2, 12, done), get(1, 10, 11, 2), get(1, 20, 21, 1)}, nil, []check{checkOrder}},
		{"in another process", []event{commit(0, 0, 1, 1, 11, done), commit(0, 2, 3, 2, 12, done), get(1, 10, 11, 2), get(2, 20, 21, 1)}, nil, nil},
		{"at one time", []event{commit(0, 0, 1, 1, 11, done), commit(0, 2, 3, 2, 12, done), get(1, 10, 21, 2), get(1, 20, 21, 1)}, nil, nil},
		{"with an epoch that rises", []event{commit(0, 0, 1, 2, 11, done), commit(0, 2, 3, 1, 12, done), get(1, 10, 11, 2), get(1, 20, 21, 1)}, nil, nil},
		{"made without the store", []event{commit(0, 2, 3, 2, 12, done), get(1, 10, 11, 2), get(1, 20, 21, 1)}, nil, nil},
		{"never surely committed", []event{commit(0, 0, 1, 1, 11, done), commit(0, 2, 3, 2, 12, silent), get(1, 10, 11, 2), get(1, 20, 21, 1)}, nil, nil},

		{"own invalidation", []event{drop(0, 500, 510), get(0, 511, 512, 1)}, nil, []check{checkDrop}},
		{"own invalidation, no excuse", []event{drop(0, 500, 510), get(0, 511, 512, 1), unanswered(0, 505)}, nil, []check{checkDrop}},
		{"while it was made", []event{drop(0, 500, 510), get(0, 505, 512, 1)}, nil, nil},
		{"another's, within NearTTL", []event{drop(0, 500, 510), get(1, 600, 601, 1)}, nil, nil},
		{"another's, after it", []event{drop(0, 500, 510), get(1, 611, 612, 1)}, nil, []check{checkDrop}},
		{"another's, without an answer", []event{drop(0, 500, 510), get(1, 611, 612, 1), unanswered(1, 400)}, nil, nil},
		{"loaded after it", []event{drop(0, 500, 510), get(1, 611, 612, 4)}, nil, nil},

		{"a call that takes too long", []event{get(0, 0, 2601, 1)}, nil, []check{checkBound}},
		{"while its process did not run", []event{get(0, 0, 2601, 1), gapOf(0, 100, 200)}, nil, nil},
	} {
		r := &fleetRun{
			plan:    schedule{times: times{Lease: 400 * time.Millisecond, Near: 100 * time.Millisecond, Engine: 100 * time.Millisecond, Rebuild: 1200 * time.Millisecond}},
			engines: engines[:1],
			gaps:    &gapMeter{},
			faults:  c.faults,
			// Three versions were begun before every invalidation here, one after.
			loads: []originLoad{{"k", 1, late * msec}, {"k", 2, late * msec}, {"k", 3, late * msec}, {"k", 4, (late + 550) * msec}},
		}
		for i, e := range c.events {
			e.ID = uint64(i + 1)
			r.events = append(r.events, e)
		}
		if got := r.check().caught(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestChecks_Recovery(t *testing.T) {
	fresh := func() *fleetRun {
		r := &fleetRun{plan: draw(1, time.Second, 1), engines: engines[:1], gaps: &gapMeter{}, calmAt: 1, whole: true}
		id := uint64(0)
		for n := range fleetKeys {
			key := []string{"k0", "k1", "k2"}[n]
			r.loads = append(r.loads, originLoad{key, 1, 20 * msec})
			r.events = append(r.events, event{Kind: kindDrop, Key: key, ID: id, Life: 1, Begin: 10 * msec, End: 11 * msec, Result: done})
			for w := range fleetWorkers {
				id++
				r.events = append(r.events, event{Kind: kindGet, Key: key, ID: id, Worker: w, Life: 1, Begin: 200 * msec, End: 201 * msec, Result: done, Version: 1})
			}
			id++
		}
		return r
	}
	if found := fresh().check(); len(found.violations) > 0 {
		t.Errorf("a fleet that is one again: %s", found)
	}
	for name, spoil := range map[string]func(r *fleetRun){
		"not one again":                func(r *fleetRun) { r.whole = false },
		"a process without a value":    func(r *fleetRun) { r.events = r.events[:len(r.events)-1] },
		"an invalidation that fails":   func(r *fleetRun) { r.events[0].Result = silent },
		"an old value where it counts": func(r *fleetRun) { r.loads[0].begin = 5 * msec },
	} {
		r := fresh()
		spoil(r)
		if got := r.check().caught(); !slices.Contains(got, checkRecovery) {
			t.Errorf("%s: caught by %v", name, got)
		}
	}
	starved := fresh()
	starved.whole, starved.slow = false, 1
	if found := starved.check(); len(found.violations) > 0 || found.excused[checkRecovery] != 1 {
		t.Errorf("with engines that are slow by themselves: %s", found)
	}
}
