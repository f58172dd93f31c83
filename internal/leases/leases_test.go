package leases

import (
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
)

func TestLeaseLength(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	for _, c := range []struct{ build, engine, longest, want time.Duration }{
		{0, 500 * ms, 5 * s, 5 * s},                                             // unknown duration
		{1, 500 * ms, 5 * s, 500 * ms},                                          // never shorter than the floor
		{100 * ms, 100 * ms, 5 * s, 500 * ms},                                   // the same for a quick engine
		{100 * ms, 2 * s, 5 * s, 2 * s},                                         // never shorter than a slow engine's answer
		{400 * ms, 500 * ms, 5 * s, 700 * ms},                                   // 1.75 times as long
		{2 * s, 500 * ms, 5 * s, 3500 * ms},                                     //
		{4 * s, 500 * ms, 5 * s, 5 * s},                                         // never longer than the longest
		{100 * ms, 2 * s, 300 * ms, 300 * ms},                                   // longest beats the floor
		{durations.Forever, 500 * ms, 5 * s, 5 * s},                             //
		{durations.Forever - 1, 500 * ms, durations.Forever, durations.Forever}, // no overflow
	} {
		if got := Length(c.build, c.engine, c.longest); got != c.want {
			t.Errorf("build %v, engine %v, longest %v: %v, want %v", c.build, c.engine, c.longest, got, c.want)
		}
	}
}

// TestLeaseTerm_LongBuild builds for a minute under the shortest lease. One of two renewals in a
// length may be lost, the lengths grow to the longest, and renewals are few.
func TestLeaseTerm_LongBuild(t *testing.T) {
	const longest = 5 * time.Second
	term := Term{Began: time.Hour, Asked: time.Hour, Length: shortest}
	renewals := 0
	for term.Asked < time.Hour+time.Minute {
		at := term.Renewal()
		if left := term.Asked + term.Length - at; left < at-term.Asked+term.Patience(time.Second)/3 {
			t.Fatalf("renewed at %v, with %v left: no time for a second try", at, left)
		}
		next := term.Renewed(at, longest)
		if next.Length < term.Length || next.Length > longest || next.Length > max(shortest, 3*(at-time.Hour)) {
			t.Fatalf("at %v from %v to %v", at-time.Hour, term.Length, next.Length)
		}
		term = next
		renewals++
	}
	if term.Length != longest || renewals > 42 {
		t.Errorf("%d renewals in a minute, the last of %v; want at most 42 and %v", renewals, term.Length, longest)
	}
}
