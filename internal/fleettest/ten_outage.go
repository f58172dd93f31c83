package fleettest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// This file tests ten processes under overload and without coordination.

// tooManyKeys asks for more keys than a process may rebuild and queue: it refuses the rest at once.
func tooManyKeys(t *testing.T, f *fleet, _ Kind) {
	const keys, let = 30, tenSlots + tenQueued
	f.origin.delay.Store(int64(2 * time.Second)) // longer than any caller is late
	// Closed when all permitted loads run.
	var begun atomic.Int64
	all := make(chan struct{})
	hold := func(int, int) {
		if begun.Add(1) == int64(len(f.workers)*tenSlots) {
			close(all)
		}
		select {
		case <-all:
		case <-time.After(10 * time.Second): // missing loads fail the counts below
		}
	}
	f.origin.onLoad.Store(&hold)
	at := time.Now().Add(200 * time.Millisecond)
	got := f.each(func(i int) order {
		return order{Do: "herd", Key: fmt.Sprint("many-", i, "-"), Callers: keys, Each: true, At: at}
	})
	for i, r := range got {
		refused, values := 0, 0
		for v, n := range r.Values {
			switch {
			case strings.Contains(v, "MaxQueued"):
				refused += n
			case strings.HasPrefix(v, fmt.Sprint("many-", i, "-")):
				values += n
			default:
				t.Errorf("process %d: %d callers got %q", i, n, v)
			}
		}
		if values != let || refused != keys-let || r.AtOnce != tenSlots {
			t.Errorf("process %d: %d values, %d refused, %d loads at one time; want %d, %d, %d; %d leases lost, the slowest answer after %v", i,
				values, refused, r.AtOnce, let, keys-let, tenSlots, r.Stats.LeasesLost, percentile(r.Took, 1))
		}
	}
}

// tenWithSlowStore slows the store's answers far beyond EngineTimeout for a while. No caller fails, or
// waits longer than the time-out and the build. Each process opens and closes the store's breaker.
func tenWithSlowStore(t *testing.T, f *fleet, _ Kind) {
	const (
		build   = 50 * time.Millisecond
		timeout = 500 * time.Millisecond // EngineTimeout's default
		answer  = 6 * timeout            // the least delay of an answer
	)
	f.origin.delay.Store(int64(build))
	f.origin.ttl.Store(int64(500 * time.Millisecond))
	before := f.all(order{Do: "stats"}).Stats.Degraded
	drive := func() report {
		return f.all(order{Do: "drive", Key: "slow", Callers: 2, For: 2500 * time.Millisecond})
	}
	done := make(chan report)
	go func() { done <- drive() }()
	time.Sleep(400 * time.Millisecond)
	for _, p := range f.proxies {
		p.SetLatency(answer)
	}
	r := <-done
	noneFailed(t, r)
	// A process with few calls, as on a busy machine, makes more.
	for round := 0; round < 10 && slices.ContainsFunc(f.workers, func(w *worker) bool { return len(storeBreaker(w)) == 0 }); round++ {
		took := r.Took
		r = drive()
		noneFailed(t, r)
		r.Took = append(took, r.Took...)
	}
	for _, p := range f.proxies {
		p.SetLatency(0)
	}
	// On a quiet machine the worst is the time-out and the build. A wait for another process's lease at the
	// start, and a busy machine, add to both. A caller that waits for the store exceeds the limit.
	worst := percentile(r.Took, 1)
	if limit := answer - timeout; worst > limit {
		t.Errorf("the slowest of %d callers took %v, want at most %v", len(r.Took), worst, limit)
	}
	if r.Stats.Degraded == before {
		t.Error("no load ran without the store: it was not slow enough")
	}
	round, recovered := 0, false
	for ; round < 20 && !recovered; round++ {
		key := fmt.Sprint("quick", round)
		recovered = f.herd(key, 5).Values[key+"#1"] == 50 && f.origin.count(key) == 1
		time.Sleep(100 * time.Millisecond)
	}
	if !recovered {
		t.Error("the store is quick again, and there is still more than one load in the fleet")
	}
	for id, w := range f.workers {
		var changes []string
		if !waitFor(2*time.Second, func() bool { // they are reported after the calls
			changes = storeBreaker(w)
			return len(changes) > 0 && strings.HasSuffix(changes[len(changes)-1], " to closed")
		}) || changes[0] != "store closed to open" {
			t.Errorf("process %d was told of %q; want the store's breaker to open first, and to close last", id, changes)
		}
	}
	t.Logf("%d calls, half of them quicker than %v, 9 in 10 than %v, slowest %v; one load in the fleet in round %d", len(r.Took), percentile(r.Took, .5), percentile(r.Took, .9), worst, round)
}

func storeBreaker(w *worker) []string {
	return slices.DeleteFunc(w.do(order{Do: "told"}).Told.Breakers, func(c string) bool { return !strings.HasPrefix(c, "store ") })
}

// tenTakeOver kills the process that rebuilds a key with known builds. One of the nine others takes
// over, after about the time of such a build rather than LeaseTTL.
func tenTakeOver(t *testing.T, f *fleet, kind Kind) {
	const build, shortest = 300 * time.Millisecond, 500 * time.Millisecond
	f.origin.delay.Store(int64(build))
	f.origin.ttl.Store(int64(build))
	last := len(f.workers) - 1
	f.workers[last].do(order{Do: "get", Key: "takeover"})
	time.Sleep(build + 50*time.Millisecond) // expired and kept: all processes know the build's duration
	f.origin.ttl.Store(0)
	var killed, at atomic.Int64
	kill := func(id, n int) {
		if n == 2 {
			killed.Store(int64(id) + 1)
			at.Store(time.Now().UnixNano())
			f.workers[id].kill()
		}
	}
	f.origin.onLoad.Store(&kill)
	r := f.herd("takeover", 20)
	took := time.Since(time.Unix(0, at.Load()))
	if n := f.origin.count("takeover"); n != 3 || killed.Load() == 0 || r.Values["takeover#3"] != 180 {
		t.Errorf("%d loads, answers %v; want one more load, for the 180 callers of nine processes", n-1, r.Values)
	}
	// The shortest lease, about the length for this build, and the build. A busy machine adds to
	// both: a lease counts its holders' recent call times.
	if limit := shortest + build + 3*time.Second; took > limit {
		t.Errorf("takeover took %v, want at most %v", took, limit)
	}
	// A polling locker may find the lease over just after its end, as after a release.
	least := 0
	if kind.Name == Redis.Name {
		least = 1
	}
	takeovers := 0
	if !waitFor(2*time.Second, func() bool { // rebuilds are reported at their end
		takeovers = 0
		for _, r := range f.each(func(int) order { return order{Do: "told", Key: "takeover"} }) {
			for _, b := range r.Told.Rebuilds {
				if b.Takeover {
					takeovers++
				}
			}
		}
		return takeovers >= least
	}) || takeovers > 1 {
		t.Errorf("%d rebuilds of the nine are told of as takeovers, want %d to 1", takeovers, least)
	}
	t.Logf("value %v after the kill", took)
}

// tenWithoutStore kills the store under load: no caller fails, and no process loads a key twice at
// one time. Then the origin fails too, and the near tiers serve their stale values.
func tenWithoutStore(t *testing.T, f *fleet, _ Kind) {
	f.elector().MustOwn(t)
	f.origin.delay.Store(int64(50 * time.Millisecond))
	f.origin.ttl.Store(int64(500 * time.Millisecond))
	if r := f.herd("kept", 1); len(r.Values) != 1 {
		t.Errorf("before the outage: %v", r.Values)
	}
	last := f.origin.count("kept")
	done := make(chan report)
	go func() { done <- f.all(order{Do: "drive", Key: "dark", Callers: 5, For: 2500 * time.Millisecond}) }()
	time.Sleep(700 * time.Millisecond)
	f.elector().Kill()
	r := <-done
	noneFailed(t, r)
	f.origin.noneDoubled(t)
	f.origin.mu.Lock()
	for key := range 4 {
		if n := f.origin.most["dark"+strconv.Itoa(key)]; n > f.living() {
			t.Errorf("%d loads of a key at one time in %d processes", n, f.living())
		}
	}
	f.origin.mu.Unlock()
	if r.Stats.Degraded == 0 {
		t.Error("no load ran without the engine: the outage did not happen")
	}

	// The values expired long ago, in the store and near.
	const callers = 5
	f.origin.fail("kept")
	r = f.herd("kept", callers)
	served := 0
	for v, n := range r.Values {
		if v := versionOf(v); v >= 1 && v <= last {
			served += n
		}
	}
	if want := callers * f.living(); served != want {
		t.Errorf("without store and origin the answers are %v, want the near tiers' value %d times", r.Values, want)
	}
	// The failure cannot be shared: each process has tried for itself.
	if n, most := f.origin.count("kept")-last, f.living(); n < 1 || n > most {
		t.Errorf("%d loads that fail, want one in each of %d processes at most", n, most)
	}
}
