package fleettest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// This file tests ten processes with a holder that takes too long.

// knownBuild is the duration of each process's first builds. A hedge comes after three times that,
// far longer than in any other case of its fleet.
const knownBuild = 400 * time.Millisecond

// tenLearn has each process load enough own keys to earn a hedge.
func tenLearn(t *testing.T, f *fleet, _ Kind) {
	const own = 1 / tenShare
	f.origin.delay.Store(int64(knownBuild))
	at := time.Now().Add(100 * time.Millisecond)
	for id, r := range f.each(func(id int) order {
		return order{Do: "herd", Key: fmt.Sprint("own-", id, "-"), Callers: own, Each: true, At: at}
	}) {
		if len(r.Values) != own || r.Stats.Loads < own || r.Stats.Hedges > 0 {
			t.Errorf("process %d got %v by %d loads", id, r.Values, r.Stats.Loads)
		}
	}
}

// tenHedge has a key's holder hang: another process begins a second load, whose value answers all.
func tenHedge(t *testing.T, f *fleet, _ Kind) {
	const hang, callers = 20 * time.Second, 20
	f.origin.delay.Store(int64(hang))
	second := func(_, n int) {
		if n == 2 {
			f.origin.delay.Store(int64(knownBuild))
		}
	}
	f.origin.onLoad.Store(&second)
	before := f.all(order{Do: "stats"}).Stats
	r := f.herd("hangs", callers)
	if r.Values["hangs#2"] != 10*callers {
		t.Errorf("answers %v, want the hedge's value %d times", r.Values, 10*callers)
	}
	if worst := percentile(r.Took, 1); worst > hang/2 {
		t.Errorf("the slowest caller took %v, and the holder takes %v", worst, hang)
	}
	if n, hedges := f.origin.count("hangs"), r.Stats.Hedges-before.Hedges; n != 2 || hedges != 1 {
		t.Errorf("%d loads and %d hedges, want 2 and 1", n, hedges)
	}
	var cut []string
	if !waitFor(hang/4, func() bool {
		cut = nil
		for _, r := range f.each(func(int) order { return order{Do: "stats"} }) {
			if r.Cut != "" {
				cut = append(cut, r.Cut)
			}
		}
		return len(cut) > 0
	}) || len(cut) != 1 || !strings.Contains(cut[0], "another process's value was committed first") {
		t.Errorf("loads were cancelled because of %q, want the holder's because of the hedge's commit", cut)
	}
	if !waitFor(hang/4, func() bool {
		f.origin.mu.Lock()
		defer f.origin.mu.Unlock()
		return f.origin.together["hangs"] == 0
	}) {
		t.Error("the holder's load still runs")
	}
	for id, s := range f.follow("hangs", 2*shortNearTTL, 20*time.Millisecond)() {
		if len(s) != 1 || s[0].Value != "hangs#2" {
			t.Errorf("afterwards process %d got %v, want the hedge's value", id, s)
		}
	}
	if n := f.origin.count("hangs"); n != 2 {
		t.Errorf("%d loads in the end, want 2", n)
	}
	t.Logf("slowest caller %v", percentile(r.Took, 1))
}

// tenWithSlowOrigin has every key take long everywhere: no process hedges more than its share.
func tenWithSlowOrigin(t *testing.T, f *fleet, _ Kind) {
	const keys = tenKeys
	f.origin.delay.Store(int64(2500 * time.Millisecond))
	before := f.all(order{Do: "stats"}).Stats
	at := time.Now().Add(100 * time.Millisecond)
	reports := f.each(func(id int) order {
		set := overlapping("tired", id)
		return order{Do: "herd", Keys: set, Callers: len(set), At: at}
	})
	answered, loads := 0, 0
	r := sum(reports)
	noneFailed(t, r)
	for _, n := range r.Values {
		answered += n
	}
	for i := range keys {
		n := f.origin.count(fmt.Sprint("tired", i))
		if loads += n; n > 2 {
			t.Errorf("%d loads of one key, want a second at most", n)
		}
	}
	for id, r := range reports {
		if most := tenShare * float64(r.Stats.Loads-r.Stats.Hedges); float64(r.Stats.Hedges) > most+1e-9 {
			t.Errorf("process %d has hedged %d times, want %.1f times at most", id, r.Stats.Hedges, most)
		}
	}
	hedges := int(r.Stats.Hedges - before.Hedges)
	if answered != 4*keys || loads != keys+hedges || hedges == 0 || hedges >= keys {
		t.Errorf("%d answers by %d loads of %d keys, %d of them hedges; want some hedges, and not for every key", answered, loads, keys, hedges)
	}
	t.Logf("%d hedges for %d slow keys", hedges, keys)
}
