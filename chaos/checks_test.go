package chaos

import (
	"slices"
	"testing"
	"time"
)

// TestChecks holds each check and its excuses to histories that are written by hand. Times are in
// milliseconds. Leases last 400, MaxWait is 1.6 s, and there are no other faults.
func TestChecks(t *testing.T) {
	const late = 100_000 // far from the beginning of the history
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
	// of makes e an event of another kind, with change applied.
	of := func(e event, k kind, change func(*event)) event {
		e.Kind = k
		if change != nil {
			change(&e)
		}
		return e
	}
	version := func(n int) func(*event) { return func(e *event) { e.Version = n } }
	epoch := func(n uint64) func(*event) { return func(e *event) { e.Epoch = n } }
	near := func(e event) event { e.Near = true; return e }
	fails := func(e event) event { e.Result = failed; return e }
	take := func(worker int, begin, end int64, key string) event {
		return of(get(worker, begin, end, 0), kindTake, func(e *event) { e.Key, e.TTL = key, time.Minute })
	}
	load3 := func(e event) event { e.Version = 3; return e }
	// failure is the commit of a load's failure, with a pause from its begin on.
	failure := func(worker int, begin, end int64, version int, epoch uint64, pause time.Duration) event {
		e := commit(worker, begin, end, 0, epoch, done)
		e.Failure, e.Retry = version, pause
		return e
	}
	// claim is a claim that found the failure of a load.
	claim := func(worker int, begin, end int64, epoch, claimed uint64, found int) event {
		return of(get(worker, begin, end, 0), kindClaim, func(e *event) { e.Epoch, e.Sum, e.Claimed, e.Failure = epoch, epoch, claimed, found })
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

		{"a failure after a newer value", []event{failure(0, 0, 1, 1, 11, 0), commit(0, 2, 3, 2, 12, done), get(1, 10, 11, 2), fails(get(1, 20, 21, 1))}, nil, []check{checkOrder}},
		{"a failure before it", []event{failure(0, 0, 1, 1, 11, 0), fails(get(1, 1, 2, 1)), commit(0, 2, 3, 2, 12, done), get(1, 10, 11, 2)}, nil, nil},
		{"an older value after a failure", []event{commit(0, 0, 1, 1, 11, done), failure(0, 2, 3, 2, 12, 0), fails(get(1, 10, 11, 2)), get(1, 20, 21, 1)}, nil, []check{checkOrder}},
		{"kept by the failure's commit", []event{commit(0, 0, 1, 1, 11, done), of(failure(0, 2, 3, 2, 12, 0), kindPut, version(1)), fails(get(1, 10, 11, 2)), get(1, 20, 21, 1)}, nil, nil},
		{"a failure from before an invalidation", []event{drop(0, 500, 510), fails(get(0, 511, 512, 1))}, nil, []check{checkDrop}},

		{"what a notice told of", []event{commit(0, 0, 1, 1, 11, done), of(get(1, 5, 6, 0), kindTold, epoch(12)), near(get(1, 7, 8, 1))}, nil, []check{checkNear}},
		{"before it was taken in", []event{commit(0, 0, 1, 1, 11, done), of(get(1, 5, 8, 0), kindTold, epoch(12)), near(get(1, 7, 9, 1))}, nil, nil},
		{"what it told another", []event{commit(0, 0, 1, 1, 11, done), of(get(2, 5, 6, 0), kindTold, epoch(12)), near(get(1, 7, 8, 1))}, nil, nil},
		{"what came after it", []event{commit(0, 0, 1, 1, 13, done), of(get(1, 5, 6, 0), kindTold, epoch(12)), near(get(1, 7, 8, 1))}, nil, nil},

		{"an error that is not the origin's", []event{of(get(1, 0, 1, 0), kindGet, func(e *event) { e.Result = silent })}, nil, []check{checkFailure}},
		{"the caller's own end", []event{of(get(1, 0, 1, 0), kindGet, func(e *event) { e.Result = left })}, nil, nil},
		{"a load within the pause", []event{failure(0, 0, 1, 1, 11, 90*time.Millisecond), claim(1, 50, 51, 11, 12, 1), load(1, 52, 53)}, nil, []check{checkPause}},
		{"a load within the pause, a fault that answers", []event{failure(0, 0, 1, 1, 11, 90*time.Millisecond), claim(1, 50, 51, 11, 12, 1), load(1, 52, 53)}, []fault{trouble(1, 0, 60)}, []check{checkPause}},
		{"a load after it", []event{failure(0, 0, 1, 1, 11, 90*time.Millisecond), claim(1, 88, 89, 11, 12, 1), load(1, 91, 92)}, nil, nil},
		{"a load that did not find it", []event{failure(0, 0, 1, 1, 11, 90*time.Millisecond), of(get(2, 2, 3, 0), kindVoid, nil), claim(1, 50, 51, 0, 13, 0), load(1, 52, 53)}, nil, nil},
		{"a load without a claim", []event{failure(0, 0, 1, 1, 11, 90*time.Millisecond), claim(1, 5, 6, 11, 12, 1), unanswered(1, 40), load(1, 52, 53)}, nil, nil},

		{"what the store refused", []event{load3(load(0, 0, 50)), commit(0, 51, 52, 3, 11, fenced), get(0, 60, 61, 3)}, nil, []check{checkLoser}},
		{"what it had before it refused it", []event{load3(load(0, 0, 50)), commit(0, 51, 58, 3, 11, fenced), of(get(1, 53, 54, 3), kindRead, nil), get(1, 52, 61, 3)}, nil, nil},
		{"what it had, to who has not read it", []event{load3(load(0, 0, 50)), commit(0, 51, 58, 3, 11, fenced), of(get(1, 53, 54, 3), kindRead, nil), get(0, 60, 61, 3)}, nil, []check{checkLoser}},
		{"to one from before it", []event{load3(load(0, 5, 50)), commit(0, 51, 52, 3, 11, fenced), get(0, 0, 61, 3)}, nil, []check{checkLoser}},
		{"what is kept after all", []event{load3(load(0, 0, 50)), commit(0, 51, 52, 3, 11, silent), get(0, 60, 61, 3)}, nil, nil},
		{"the fifth that comes to nothing", []event{load(0, -40, -39), load(0, -30, -29), load(0, -20, -19), load(0, -10, -9), load3(load(0, 5, 50)), commit(0, 51, 52, 3, 11, fenced), get(0, 0, 61, 3)}, nil, nil},
		{"the fifth, to one who came later", []event{load(0, -40, -39), load(0, -30, -29), load(0, -20, -19), load(0, -10, -9), load3(load(0, 5, 50)), commit(0, 51, 52, 3, 11, fenced), get(0, 6, 61, 3)}, nil, []check{checkLoser}},
		{"what a refused failure repeats", []event{load3(load(0, 0, 50)), of(commit(0, 71, 72, 3, 11, fenced), kindPut, func(e *event) { e.Failure = 9 }), get(0, 60, 61, 3)}, nil, nil},
		{"what was given up on", []event{claim(0, -2, -1, 0, 11, 0), load3(load(0, 0, 50)), get(0, 60, 61, 3)}, nil, []check{checkLoser}},
		{"what was made without a claim", []event{load3(load(0, 0, 50)), get(0, 60, 61, 3)}, nil, nil},
		{"what is made without the store", []event{claim(0, -2, -1, 0, 11, 0), load3(load(0, 0, 50)), unanswered(0, 55), get(0, 60, 61, 3)}, nil, nil},

		{"a hedge", []event{load(0, 0, 50), take(1, 10, 11, hedgeLease+"k"), claim(1, 12, 13, 0, 12, 0), load(1, 14, 40)}, nil, nil},
		{"two hedges", []event{load(0, 0, 50), take(1, 10, 11, hedgeLease+"k"), load(1, 14, 40), take(2, 10, 11, hedgeLease+"k"), load(2, 14, 40)}, nil, []check{checkLock, checkOne}},
		{"a hedge beside two holders", []event{load(0, 0, 50), take(1, 10, 11, hedgeLease+"k"), load(1, 14, 40), load(2, 20, 30)}, nil, []check{checkOne}},
		{"a holder who had been a hedge", []event{load(0, 0, 50), take(1, 10, 11, hedgeLease+"k"), take(1, 12, 13, "k"), load(1, 14, 40)}, nil, []check{checkOne}},
		{"a hedge that does not look", []event{take(1, 10, 11, hedgeLease+"k"), claim(1, 12, 13, 0, 12, 0), load3(load(1, 14, 40)), commit(0, 20, 21, 2, 11, done), commit(1, 41, 42, 3, 12, done)}, nil, []check{checkHedge}},
		{"a holder whose value is over", []event{take(1, 10, 11, hedgeLease+"k"), claim(1, 12, 13, 0, 12, 0), load3(load(1, 14, 40)), of(commit(0, 20, 21, 2, 11, done), kindPut, func(e *event) { e.Keep = time.Second }), commit(1, 41, 42, 3, 12, done)}, nil, nil},
		{"a value from before the hedge", []event{commit(0, 7, 8, 2, 11, done), take(1, 10, 11, hedgeLease+"k"), claim(1, 12, 13, 0, 12, 0), load3(load(1, 14, 40)), commit(1, 41, 42, 3, 12, done)}, nil, []check{checkStore}},
		{"a holder who was first by little", []event{take(1, 10, 11, hedgeLease+"k"), claim(1, 12, 13, 0, 12, 0), load3(load(1, 14, 40)), commit(0, 39, 41, 2, 11, done), commit(1, 42, 43, 3, 12, done)}, nil, nil},
		{"a holder who was invalidated", []event{take(1, 10, 11, hedgeLease+"k"), claim(1, 12, 13, 0, 12, 0), load3(load(1, 14, 40)), commit(0, 20, 21, 2, 11, done), of(get(2, 25, 26, 0), kindVoid, nil), commit(1, 41, 42, 3, 12, fenced)}, nil, nil},
		{"a hedge that tells of its failure", []event{take(1, 10, 11, hedgeLease+"k"), claim(1, 12, 13, 0, 12, 0), fails(load3(load(1, 14, 40))), failure(1, 41, 42, 3, 12, 0)}, nil, []check{checkHedge}},
		{"hedges beyond their share", []event{take(1, 10, 11, hedgeLease+"k"), load(1, 14, 20), of(get(1, 21, 22, 0), kindFree, func(e *event) { e.Key, e.Lease = hedgeLease+"k", 0 }), take(1, 30, 31, hedgeLease+"k"), load(1, 34, 40)}, nil, []check{checkHedge}},
		{"hedges within it", []event{load(1, -5, -4), load(1, -3, -2), take(1, 10, 11, hedgeLease+"k"), load(1, 14, 20), of(get(1, 21, 22, 0), kindFree, func(e *event) { e.Key, e.Lease = hedgeLease+"k", 0 }), take(1, 30, 31, hedgeLease+"k"), load(1, 34, 40)}, nil, nil},

		{"a call that takes too long", []event{get(0, 0, 2601, 1)}, nil, []check{checkBound}},
		{"while its process did not run", []event{get(0, 0, 2601, 1), gapOf(0, 100, 200)}, nil, nil},
	} {
		r := &fleetRun{
			plan:    schedule{times: times{Lease: 400 * time.Millisecond, Near: 100 * time.Millisecond, Engine: 100 * time.Millisecond, Rebuild: 1200 * time.Millisecond, Hedge: 3, Share: 0.5}},
			engines: engines[:1],
			gaps:    &gapMeter{},
			faults:  c.faults,
			// Three versions begin before every invalidation here, one after.
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
