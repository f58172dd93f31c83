package bellwether

import (
	"testing"
	"time"
)

func TestLeaseLength(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	for _, c := range []struct{ build, engine, longest, want time.Duration }{
		{0, 500 * ms, 5 * s, 5 * s},               // nobody knows
		{1, 500 * ms, 5 * s, 500 * ms},            // never shorter than the floor
		{100 * ms, 100 * ms, 5 * s, 500 * ms},     // nor for a quick engine
		{100 * ms, 2 * s, 5 * s, 2 * s},           // than a slow engine's answer
		{400 * ms, 500 * ms, 5 * s, 700 * ms},     // 1.75 times as long
		{2 * s, 500 * ms, 5 * s, 3500 * ms},       //
		{4 * s, 500 * ms, 5 * s, 5 * s},           // never longer than the longest
		{100 * ms, 2 * s, 300 * ms, 300 * ms},     // which beats the floor
		{forever, 500 * ms, 5 * s, 5 * s},         //
		{forever - 1, 500 * ms, forever, forever}, // no wrapping round
	} {
		if got := leaseLength(c.build, c.engine, c.longest); got != c.want {
			t.Errorf("build %v, engine %v, longest %v: %v, want %v", c.build, c.engine, c.longest, got, c.want)
		}
	}
}

// TestLeaseTerm_LongBuild has a holder of the shortest lease build for a minute:
// of two renewals in a length one may be lost, the lengths grow to the longest,
// and there are few of them.
func TestLeaseTerm_LongBuild(t *testing.T) {
	const longest = 5 * time.Second
	term := leaseTerm{began: time.Hour, asked: time.Hour, length: minLease}
	renewals := 0
	for term.asked < time.Hour+time.Minute {
		at := term.renewal()
		if left := term.asked + term.length - at; left < at-term.asked+term.patience(time.Second)/3 {
			t.Fatalf("renewed at %v, with %v left: no time for a second try", at, left)
		}
		next := term.renewed(at, longest)
		if next.length < term.length || next.length > longest || next.length > max(minLease, 3*(at-time.Hour)) {
			t.Fatalf("at %v from %v to %v", at-time.Hour, term.length, next.length)
		}
		term = next
		renewals++
	}
	if term.length != longest || renewals > 42 {
		t.Errorf("%d renewals in a minute, the last of %v; want at most 42 and %v", renewals, term.length, longest)
	}
}

func TestRecentTimes(t *testing.T) {
	var b recentTimes
	if b.usual() != 0 || b.slower() != 0 {
		t.Errorf("of nothing: %v and %v", b.usual(), b.slower())
	}
	b.note(0) // too quick for the clock, and yet known
	if b.usual() != 1 {
		t.Errorf("of one: %v", b.usual())
	}
	for n := range time.Duration(manyTimes) {
		b.note((n*7%manyTimes + 1) * time.Second) // each of 1 to 16 once
	}
	if b.usual() != 9*time.Second || b.slower() != 12*time.Second {
		t.Errorf("of 1 s to 16 s: %v and %v", b.usual(), b.slower())
	}
	for range manyTimes {
		b.note(time.Second)
	}
	if b.slower() != time.Second || b.usual() != time.Second {
		t.Errorf("%v: what is long ago is not forgotten", b.slower())
	}
}
