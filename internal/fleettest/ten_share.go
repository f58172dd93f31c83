package fleettest

import (
	"strings"
	"testing"
	"time"
)

// This file tests that ten processes share invalidations, failures and early refreshes.

// nearTiersFollow invalidates a key in one process while nine others read it: with a pushing store
// they follow at once, else within NearTTL.
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
		limit = tenNearTTL / 2 // far below, and far above the delay of a busy machine
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

// failureShared has a load fail: the failure answers all processes, and single callers try again later.
func failureShared(t *testing.T, f *fleet, _ Kind) {
	f.origin.delay.Store(int64(50 * time.Millisecond))
	f.origin.fail("failing")
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
	// ErrorTTL is 1 s, less up to a half at random, and doubles: tries are due 0.5 to 1 s after the
	// first, 1 to 2 s after that, and then 2 to 4 s.
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

// rebuiltEarly has steady readers over several TTLs. None waits, as a process rebuilds the key early.
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
	// Early refresh comes about 1.2 s before the end (docs/fleets.md), so a value lasts about 1.6 s.
	if n := f.origin.loads["early"] - 1; n < int(span/ttl) || n > 2*int(span/ttl)+1 {
		t.Errorf("%d rebuilds in %v of TTLs of %v", n, span, ttl)
	}
	t.Logf("%d reads in %v, %d rebuilds", reads, span, f.origin.loads["early"]-1)
}
