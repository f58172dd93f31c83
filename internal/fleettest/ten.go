package fleettest

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// This file holds what ten processes owe each other, and what they owe the
// origin when they cannot ask each other, on one fleet.

const (
	tenNearTTL = time.Second
	tenLease   = time.Second
	tenSlots   = 4 // MaxRebuilds, and as many may wait
)

// TenProcesses has one fleet of ten go through it all. The last two cases leave
// it with a process less, and without its store.
func TenProcesses(t *testing.T, kind Kind) {
	f := newFleet(t, kind, 10, fleetOptions{
		NearTTL: tenNearTTL, LeaseTTL: tenLease, EarlyRefresh: 1, MaxRebuilds: tenSlots, MaxQueued: tenSlots,
	})
	for _, c := range []struct {
		name string
		test func(t *testing.T, f *fleet, kind Kind)
	}{
		{"near tiers follow an invalidation", nearTiersFollow},
		{"a failure is shared", failureShared},
		{"a steady key is rebuilt early", rebuiltEarly},
		{"too many keys", tooManyKeys},
		{"the holder is killed", tenTakeOver},
		{"the store is killed", tenWithoutStore},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.origin.delay.Store(0)
			f.origin.ttl.Store(0)
			f.origin.fails.Store(false)
			f.origin.onLoad.Store(nil)
			c.test(t, f, kind)
		})
	}
}

// follow has all processes but the last read a key for a while, and returns what
// each has seen.
func (f *fleet) follow(key string, d, every time.Duration) func() [][]sighting {
	seen := make([][]sighting, len(f.workers)-1)
	var wg sync.WaitGroup
	for i, w := range f.workers[:len(seen)] {
		wg.Go(func() { seen[i] = w.do(order{Do: "follow", Key: key, For: d, Every: every}).Seen })
	}
	return func() [][]sighting { wg.Wait(); return seen }
}

// versionOf is the n of "key#n", 0 of what has none.
func versionOf(value string) int {
	_, n, _ := strings.Cut(value, "#")
	v, _ := strconv.Atoi(n)
	return v
}

// wantForward fails if a process has got an older version after a newer one.
func wantForward(t *testing.T, seen [][]sighting) {
	t.Helper()
	for id, s := range seen {
		for i := 1; i < len(s); i++ {
			if versionOf(s[i].Value) <= versionOf(s[i-1].Value) {
				t.Errorf("process %d got %q after %q", id, s[i].Value, s[i-1].Value)
			}
		}
	}
}

// nearTiersFollow invalidates a key in one process while nine others read it:
// where the store pushes they follow at once, else within NearTTL.
func nearTiersFollow(t *testing.T, f *fleet, kind Kind) {
	const rounds = 3
	f.origin.delay.Store(int64(30 * time.Millisecond))
	f.herd("near", 1)
	seen := f.follow("near", rounds*1500*time.Millisecond+tenNearTTL+500*time.Millisecond, 5*time.Millisecond)
	last := f.workers[len(f.workers)-1]
	var done []time.Time
	for range rounds {
		time.Sleep(1500 * time.Millisecond)
		if r := last.do(order{Do: "invalidate", Key: "near"}); r.Err != "" {
			t.Fatal(r.Err)
		}
		done = append(done, time.Now())
	}
	limit := tenNearTTL + 100*time.Millisecond
	if kind.Name == Redis.Name {
		limit = tenNearTTL / 2 // far below, and far above what a busy machine adds
	}
	got := seen()
	wantForward(t, got)
	var worst time.Duration
	for id, s := range got {
		for _, of := range s {
			v := versionOf(of.Value)
			if v < 1 || v > rounds+1 {
				t.Errorf("process %d got %q", id, of.Value)
			} else if v <= rounds {
				worst = max(worst, of.Last.Sub(done[v-1]))
			}
		}
		if len(s) != rounds+1 {
			t.Errorf("process %d has seen %d versions, want %d", id, len(s), rounds+1)
		}
	}
	if worst > limit {
		t.Errorf("an old version was served to who came %v after its invalidation, want at most %v", worst, limit)
	}
	if n := f.origin.count("near"); n != rounds+1 {
		t.Errorf("%d loads, want one for each of %d versions", n, rounds+1)
	}
	t.Logf("served at most %v after an invalidation", worst)
}

// failureShared has a load fail: it answers the callers of ten processes, and
// the next tries are one caller's, after pauses that grow.
func failureShared(t *testing.T, f *fleet, _ Kind) {
	f.origin.delay.Store(int64(50 * time.Millisecond))
	f.origin.fails.Store(true)
	began := time.Now()
	r := f.herd("failing", 20)
	if n := f.origin.count("failing"); n != 1 {
		t.Errorf("%d loads, want 1", n)
	}
	answered := 0
	for v, n := range r.Values {
		if strings.HasPrefix(v, "error: ") && strings.Contains(v, "the origin fails") {
			answered += n
		}
	}
	if answered != 200 {
		t.Errorf("answers %v, want the failure 200 times", r.Values)
	}
	// ErrorTTL is 1 s, of which up to a half is taken off, and doubles: tries are
	// due 0.5 to 1 s after the first, 1 to 2 s after that, and then 2 to 4 s.
	seen := f.follow("failing", 3400*time.Millisecond-time.Since(began), 10*time.Millisecond)()
	if n := f.origin.count("failing"); n != 3 {
		t.Errorf("%d loads in %v, want 3", n, time.Since(began))
	}
	f.origin.mu.Lock()
	defer f.origin.mu.Unlock()
	if n := f.origin.most["failing"]; n != 1 {
		t.Errorf("%d loads at one time", n)
	}
	for id, s := range seen {
		for _, of := range s {
			if !strings.HasPrefix(of.Value, "error: ") {
				t.Errorf("process %d got %q of an origin that fails", id, of.Value)
			}
		}
	}
}

// rebuiltEarly has steady readers in nine processes over several TTLs: nobody
// waits at an expiry, since one process has rebuilt the key before.
func rebuiltEarly(t *testing.T, f *fleet, _ Kind) {
	const (
		build, ttl = 300 * time.Millisecond, 2500 * time.Millisecond
		span       = 8 * time.Second
	)
	f.origin.delay.Store(int64(build))
	f.origin.ttl.Store(int64(ttl))
	f.herd("early", 1)
	seen := f.follow("early", span, 90*time.Millisecond)()
	wantForward(t, seen)
	reads := 0
	for id, s := range seen {
		for _, of := range s {
			reads += of.Reads
			if versionOf(of.Value) == 0 || of.Longest > build*5/6 {
				t.Errorf("process %d: a reader of %q waited %v", id, of.Value, of.Longest)
			}
		}
	}
	f.origin.mu.Lock()
	defer f.origin.mu.Unlock()
	if n := f.origin.most["early"]; n != 1 {
		t.Errorf("%d loads at one time", n)
	}
	// The dice come up about 1.2 s before the end (see docs/fleet.md), so one
	// value lasts some 1.6 s.
	if n := f.origin.loads["early"] - 1; n < int(span/ttl) || n > 2*int(span/ttl)+1 {
		t.Errorf("%d rebuilds in %v of TTLs of %v", n, span, ttl)
	}
	t.Logf("%d reads in %v, %d rebuilds", reads, span, f.origin.loads["early"]-1)
}

// tooManyKeys has each process asked for more keys than it may rebuild and keep
// waiting: the rest is refused, and at once.
func tooManyKeys(t *testing.T, f *fleet, _ Kind) {
	const keys = 30
	f.origin.delay.Store(int64(500 * time.Millisecond))
	at := time.Now().Add(200 * time.Millisecond)
	got := make([]report, len(f.workers))
	var wg sync.WaitGroup
	for i, w := range f.workers {
		wg.Go(func() {
			got[i] = w.do(order{Do: "herd", Key: fmt.Sprint("many-", i, "-"), Callers: keys, Each: true, At: at})
		})
	}
	wg.Wait()
	for i, r := range got {
		refused, values := 0, 0
		for v, n := range r.Values {
			switch {
			case strings.Contains(v, "too many rebuilds"):
				refused += n
			case strings.HasPrefix(v, fmt.Sprint("many-", i, "-")):
				values += n
			default:
				t.Errorf("process %d: %d callers got %q", i, n, v)
			}
		}
		if values != 2*tenSlots || refused != keys-2*tenSlots || r.AtOnce != tenSlots {
			t.Errorf("process %d: %d values, %d refused, %d loads at one time; want %d, %d, %d", i,
				values, refused, r.AtOnce, 2*tenSlots, keys-2*tenSlots, tenSlots)
		}
	}
}

// tenTakeOver kills the process that rebuilds: one other does it.
func tenTakeOver(t *testing.T, f *fleet, _ Kind) {
	f.origin.delay.Store(int64(200 * time.Millisecond))
	var killed atomic.Int64
	kill := func(id, n int) {
		if n == 1 {
			killed.Store(int64(id) + 1)
			f.workers[id].kill()
		}
	}
	f.origin.onLoad.Store(&kill)
	r := f.herd("takeover", 20)
	if n := f.origin.count("takeover"); n != 2 || killed.Load() == 0 || r.Values["takeover#2"] != 180 {
		t.Errorf("%d loads, answers %v; want one more load, for the 180 callers of nine processes", n, r.Values)
	}
}

// tenWithoutStore kills the store under load: no caller fails, and no process
// loads a key twice at one time.
func tenWithoutStore(t *testing.T, f *fleet, _ Kind) {
	if !f.elector().Own() {
		t.Fatal("this test kills its engine and needs one of its own: unset the BELLWETHER_ variable that names it")
	}
	f.origin.delay.Store(int64(50 * time.Millisecond))
	f.origin.ttl.Store(int64(500 * time.Millisecond))
	done := make(chan report)
	go func() { done <- f.all(order{Do: "drive", Key: "dark", Callers: 5, For: 2500 * time.Millisecond}) }()
	time.Sleep(700 * time.Millisecond)
	f.elector().Kill()
	r := <-done
	for v, n := range r.Values {
		if strings.HasPrefix(v, "error") {
			t.Errorf("%d callers failed: %s", n, v)
		}
	}
	f.origin.mu.Lock()
	defer f.origin.mu.Unlock()
	if len(f.origin.doubled) > 0 {
		t.Errorf("loads of one key at one time in one process: %v", f.origin.doubled)
	}
	for key := range 4 {
		if n := f.origin.most["dark"+strconv.Itoa(key)]; n > len(f.workers)-1 {
			t.Errorf("%d loads of a key at one time in %d processes", n, len(f.workers)-1)
		}
	}
	if r.Stats.Degraded == 0 {
		t.Error("no load ran without the engine: the outage did not happen")
	}
}
