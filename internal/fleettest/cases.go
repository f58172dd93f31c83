package fleettest

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// This file has the cases for every pair of a store and a locker.

// patient is an EngineTimeout for cases without a failing engine. With many tests on few cores, a first
// call that dials may exceed the default, and after a time-out its process loads by itself.
const patient = 2 * time.Second

// Each runs a case for every kind, in parallel: the cases wait more than they work.
func Each(t *testing.T, kinds []Kind, test func(t *testing.T, kind Kind)) {
	for _, kind := range kinds {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// Elected runs the cases about leases on fleets with a locker on another engine than the store's.
// Cases independent of the store run only on the last of kinds.
func Elected(t *testing.T, kinds []Kind) {
	last := kinds[len(kinds)-1:]
	for _, c := range []struct {
		name  string
		kinds []Kind
		test  func(*testing.T, Kind)
	}{
		{"ColdKey", kinds, ColdKey},
		{"HolderKilled", kinds, HolderKilled},
		{"Waiters", kinds, Waiters},
		{"HolderKilledAtAKnownBuild", kinds, HolderKilledAtAKnownBuild},
		{"HolderPausedPastItsLease", last, HolderPausedPastItsLease},
		{"EngineKilledUnderLoad", last, EngineKilledUnderLoad},
		{"BlackHole", last, BlackHole},
	} {
		t.Run(c.name, func(t *testing.T) { Each(t, c.kinds, c.test) })
	}
}

// ColdKey has 3 processes with 200 callers each ask for a cold key: one load answers all callers.
func ColdKey(t *testing.T, kind Kind) {
	f := newFleet(t, kind, 3, fleetOptions{EngineTimeout: patient})
	f.origin.delay.Store(int64(300 * time.Millisecond))
	for round := range 3 {
		key := fmt.Sprint("cold", round)
		r := f.herd(key, 200)
		if r.Values[key+"#1"] != 600 || f.origin.count(key) != 1 {
			t.Errorf("%d loads, answers %v; want 1 load for 600 callers", f.origin.count(key), r.Values)
		}
		t.Logf("p50 %v, p99 %v", percentile(r.Took, .5), percentile(r.Took, .99))
	}
}

// HolderKilled kills the rebuilding process: exactly one takes over, within lease, build and a second.
func HolderKilled(t *testing.T, kind Kind) {
	const lease, build = time.Second, 300 * time.Millisecond
	f := newFleet(t, kind, 3, fleetOptions{LeaseTTL: lease, EngineTimeout: patient})
	f.origin.delay.Store(int64(build))
	took := killHolder(t, f)
	if limit := lease + build + time.Second; took > limit {
		t.Errorf("takeover took %v, want at most %v", took, limit)
	}
	t.Logf("value %v after the kill", took)
}

// killHolder kills the process that rebuilds in a herd, and returns the time to the others' value.
func killHolder(t *testing.T, f *fleet) time.Duration {
	t.Helper()
	var killed atomic.Int64
	kill := func(id, n int) {
		if n == 1 {
			killed.Store(time.Now().UnixNano())
			f.workers[id].kill()
		}
	}
	f.origin.onLoad.Store(&kill)
	r := f.herd("k", 200)
	took := time.Since(time.Unix(0, killed.Load()))
	if r.Values["k#2"] != 400 || f.origin.count("k") != 2 {
		t.Errorf("%d loads, answers %v; want 1 takeover that answers 400", f.origin.count("k"), r.Values)
	}
	return took
}

// HolderKilledAtAKnownBuild kills the holder of a build whose known duration decides, not LeaseTTL.
func HolderKilledAtAKnownBuild(t *testing.T, kind Kind) {
	f := newFleet(t, kind, 3, fleetOptions{LeaseTTL: 20 * time.Second})
	f.origin.delay.Store(int64(300 * time.Millisecond))
	// EngineTimeout is as short as the shortest lease, and a first call dials: a late process loads alone.
	f.all(order{Do: "get", Key: "warm-up"})
	var build time.Duration // including the requests to the engines, as in the lease's length
	for n := range 3 {
		r := f.herd(fmt.Sprint("known", n), 10)
		if len(r.Values) != 1 {
			t.Fatalf("before the kill: %v", r.Values)
		}
		build = max(build, percentile(r.Took, 1))
	}
	took := killHolder(t, f)
	// The holder's lease, the build, and time for the first look after the lease and a busy machine.
	if limit := build/4*7 + build + 700*time.Millisecond; took > limit {
		t.Errorf("takeover took %v, want at most %v: a build takes %v", took, limit, build)
	}
	t.Logf("value %v after the kill, a build takes %v", took, build)
}

// HolderPausedPastItsLease resumes a holder long after a takeover: its value is never served.
func HolderPausedPastItsLease(t *testing.T, kind Kind) {
	f := newFleet(t, kind, 3, fleetOptions{LeaseTTL: time.Second, NearTTL: 50 * time.Millisecond})
	f.origin.delay.Store(int64(200 * time.Millisecond))
	paused := make(chan int, 1)
	pause := func(id, n int) {
		if n == 1 {
			f.workers[id].signal(syscall.SIGSTOP)
			paused <- id
		}
	}
	f.origin.onLoad.Store(&pause)

	var wg sync.WaitGroup
	got := make([]report, 3)
	at := time.Now().Add(100 * time.Millisecond)
	for i, w := range f.workers {
		wg.Go(func() { got[i] = w.do(order{Do: "herd", Key: "k", Callers: 50, At: at}) })
	}
	holder := <-paused
	// The others take over and have the newer value; then the holder resumes with the older value.
	if !waitFor(10*time.Second, func() bool { return f.origin.count("k") == 2 }) {
		t.Fatal("nobody took over")
	}
	time.Sleep(time.Second)
	f.workers[holder].signal(syscall.SIGCONT)
	wg.Wait()
	for i, r := range got {
		if r.Values["k#2"] != 50 {
			t.Errorf("worker %d (holder %d) answered %v, want only the newer value", i, holder, r.Values)
		}
	}
	for range 20 {
		if r := f.all(order{Do: "get", Key: "k"}); r.Values["k#2"] != 3 {
			t.Fatalf("after the newer value: %v", r.Values)
		}
	}
	if n := f.origin.count("k"); n != 2 {
		t.Errorf("%d loads, want 2", n)
	}
	r := f.all(order{Do: "stats"})
	if r.Stats.Fenced+r.Stats.LeasesLost == 0 {
		t.Error("neither a fenced commit nor a lost lease: the pause did not happen")
	}
	t.Logf("fenced %d, leases lost %d", r.Stats.Fenced, r.Stats.LeasesLost)
}

// InvalidateDuringRebuild invalidates a key during its rebuild, in any process: no older load is served.
func InvalidateDuringRebuild(t *testing.T, kind Kind) {
	f := newFleet(t, kind, 3, fleetOptions{NearTTL: 50 * time.Millisecond, EngineTimeout: patient})
	f.origin.delay.Store(int64(500 * time.Millisecond))
	for _, where := range []string{"elsewhere", "in the rebuilding process"} {
		key := strings.ReplaceAll(where, " ", "-")
		asking := f.workers[:2]
		o := order{Do: "herd", Key: key, Callers: 50, At: time.Now().Add(50 * time.Millisecond)}
		if where != "elsewhere" {
			asking, o.Spoil = f.workers[:1], 200*time.Millisecond
		}
		var wg sync.WaitGroup
		got := make([]report, len(asking))
		for i, w := range asking {
			wg.Go(func() { got[i] = w.do(o) })
		}
		if where == "elsewhere" {
			if !waitFor(5*time.Second, func() bool { return f.origin.count(key) == 1 }) {
				t.Fatal("no load")
			}
			time.Sleep(100 * time.Millisecond)
			if r := f.workers[2].do(order{Do: "invalidate", Key: key}); r.Err != "" {
				t.Fatal(r.Err)
			}
		}
		wg.Wait()
		for i, r := range got {
			if r.Values[key+"#2"] != 50 || r.Err != "" {
				t.Errorf("invalidated %s: worker %d answered %v, %s; want only what was loaded after it", where, i, r.Values, r.Err)
			}
		}
		for range 10 {
			if r := f.all(order{Do: "get", Key: key}); r.Values[key+"#2"] != 3 {
				t.Fatalf("served after the invalidation: %v", r.Values)
			}
		}
		if n := f.origin.count(key); n != 2 {
			t.Errorf("invalidated %s: %d loads, want 2; %+v", where, n, f.all(order{Do: "stats"}).Stats)
		}
	}
}

// Waiters has a thousand callers in four processes wait for a key that a fifth rebuilds. The
// engines see one caller in each of the four: at most four watches, or four that poll.
func Waiters(t *testing.T, kind Kind) {
	const processes, callers, build = 4, 250, 2 * time.Second
	f := newFleet(t, kind, processes+1, fleetOptions{metered: true, EngineTimeout: patient})
	f.origin.delay.Store(int64(build))
	// wait returns the waiting processes' requests, and their watches on the electing engine.
	wait := func(key string, callers int) (requests, watches int) {
		count := func() (requests, watches int) {
			for _, meters := range f.meters[:processes] {
				for _, m := range meters {
					for _, n := range m.Requests() {
						requests += n
					}
				}
				watches += meters[len(meters)-1].Watches()
			}
			return requests, watches
		}
		held := make(chan report)
		go func() { held <- f.workers[processes].do(order{Do: "get", Key: key}) }()
		if !waitFor(5*time.Second, func() bool { return f.origin.count(key) == 1 }) {
			t.Fatal("nobody holds the key")
		}
		requestsBefore, watchesBefore := count()
		got := make([]report, processes)
		var wg sync.WaitGroup
		at := time.Now().Add(50 * time.Millisecond)
		for i, w := range f.workers[:processes] {
			wg.Go(func() { got[i] = w.do(order{Do: "herd", Key: key, Callers: callers, At: at}) })
		}
		wg.Wait()
		<-held
		requests, watches = count()
		for i, r := range got {
			if r.Values[key+"#1"] != callers {
				t.Errorf("worker %d answered %v, want one value %d times", i, r.Values, callers)
			}
		}
		return requests - requestsBefore, watches - watchesBefore
	}
	few, _ := wait("one-caller-each", 1)
	many, watches := wait("many-callers-each", callers)
	t.Logf("%d requests for a waiter in each of %d processes, %d for %d: %d of them watches", few, processes, many, callers, watches)
	if few < processes {
		t.Fatalf("%d requests of %d processes: the meters miss some", few, processes)
	}
	// The pauses between polls are random within a quarter, and a busy machine makes processes late.
	if limit := few + few/2 + processes; many > limit {
		t.Errorf("%d requests for %d waiters in each process, and %d for one; want no more than %d", many, callers, few, limit)
	}
	for i, meters := range f.meters[:processes] {
		for _, m := range meters {
			// A process subscribes to two Redis channels, for releases and commits.
			if n := m.Requests()["subscribe"]; n > 2 {
				t.Errorf("worker %d has subscribed %d times, want at most twice", i, n)
			}
		}
	}
	if watches > processes {
		t.Errorf("%d watches for %d waiters in %d processes, want at most one for each process", watches, processes*callers, processes)
	}
}

// Hits counts the cost of hits: one request for a hit in the store, none for a near hit.
func Hits(t *testing.T, kind Kind) {
	const keys, again = 50, 20
	f := newFleet(t, kind, 2, fleetOptions{metered: true, NearTTL: time.Hour})
	key := func(i int) string { return fmt.Sprint("hit", i) }
	// The second process loads its own key first, for requests made once, such as the server's time.
	f.workers[1].do(order{Do: "get", Key: "its own"})
	for i := range keys {
		f.workers[0].do(order{Do: "get", Key: key(i)})
	}
	count := func() (requests int) {
		for _, m := range f.meters[1] {
			for _, n := range m.Requests() {
				requests += n
			}
		}
		return requests
	}
	get := func() int {
		before := count()
		for i := range keys {
			if r := f.workers[1].do(order{Do: "get", Key: key(i)}); r.Values[key(i)+"#1"] != 1 {
				t.Errorf("the second process got %v for %s, want the first one's value", r.Values, key(i))
			}
		}
		return count() - before
	}
	if !waitFor(5*time.Second, func() bool { // the release of its own key follows its caller's answer
		before := count()
		time.Sleep(50 * time.Millisecond)
		return count() == before
	}) {
		t.Fatal("the second process does not stop asking")
	}
	if n := get(); n != keys {
		t.Errorf("%d requests for %d hits of the store, want one for each", n, keys)
	}
	before := count()
	for range again {
		get()
	}
	if n := count() - before; n != 0 {
		t.Errorf("%d requests for %d hits of the near tier, want none", n, again*keys)
	}
}

// EngineKilledUnderLoad kills the electing engine for a while: no caller fails, and the fleet recovers.
func EngineKilledUnderLoad(t *testing.T, kind Kind) {
	const build, timeout = 50 * time.Millisecond, 500 * time.Millisecond
	f := newFleet(t, kind, 3, fleetOptions{TTL: 500 * time.Millisecond, EngineTimeout: timeout, LeaseTTL: time.Second})
	f.elector().MustOwn(t)
	f.origin.delay.Store(int64(build))
	done := make(chan report)
	go func() { done <- f.all(order{Do: "drive", Key: "hot", Callers: 20, For: 6 * time.Second}) }()
	time.Sleep(1500 * time.Millisecond)
	f.elector().Kill()
	time.Sleep(2500 * time.Millisecond)
	f.elector().Start()
	r := <-done
	noneFailed(t, r)
	f.origin.noneDoubled(t)
	// One time-out, one build, and time for a busy machine.
	if worst := percentile(r.Took, 1); worst > timeout+build+time.Second {
		t.Errorf("the slowest of %d callers took %v", len(r.Took), worst)
	}
	if r.Stats.Degraded == 0 {
		t.Error("no load ran without the engine: the outage did not happen")
	}
	t.Logf("%d calls, slowest %v, %d loads without the engine", len(r.Took), percentile(r.Took, 1), r.Stats.Degraded)
	recovered := false
	for round := 0; round < 10 && !recovered; round++ {
		key := fmt.Sprint("after", round)
		recovered = f.herd(key, 50).Values[key+"#1"] == 150 && f.origin.count(key) == 1
		time.Sleep(300 * time.Millisecond)
	}
	if !recovered {
		t.Error("4 s after the engine came back there is still more than one load per fleet")
	}
}

// BlackHole has the electing engine answer no request: few callers pay a time-out, and none fails.
func BlackHole(t *testing.T, kind Kind) {
	f := newFleet(t, kind, 2, fleetOptions{TTL: 500 * time.Millisecond, LeaseTTL: time.Second})
	f.elector().MustOwn(t)
	f.origin.delay.Store(int64(50 * time.Millisecond))
	f.elector().Signal(syscall.SIGSTOP)
	r := f.all(order{Do: "drive", Key: "hot", Callers: 10, For: 4 * time.Second})
	f.elector().Signal(syscall.SIGCONT)
	slow := 0
	for _, took := range r.Took {
		if took > 400*time.Millisecond {
			slow++
		}
	}
	for v := range r.Values {
		if strings.HasPrefix(v, "error") {
			t.Errorf("a caller failed: %s", v)
		}
	}
	// Only callers at the closed or half-open breaker pay the time-out.
	if slow*5 > len(r.Took) || percentile(r.Took, 1) > 2*time.Second {
		t.Errorf("%d of %d calls paid a time-out, the slowest took %v", slow, len(r.Took), percentile(r.Took, 1))
	}
	t.Logf("%d of %d calls paid a time-out, slowest %v", slow, len(r.Took), percentile(r.Took, 1))
}
