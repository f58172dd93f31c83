package polls

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
)

func TestInterval_Bounds(t *testing.T) {
	for _, waited := range []time.Duration{0, 1, time.Millisecond, 40 * time.Millisecond, time.Second, time.Hour, durations.Forever} {
		d := min(max(waited/16, Shortest), Longest)
		least, most := durations.Forever, time.Duration(0)
		for range 2000 {
			p := Interval(waited)
			least, most = min(least, p), max(most, p)
		}
		if least < d/2 || most > d*5/4 || most-least < d/5 {
			t.Errorf("Interval(%v) is in %v .. %v, want spread about %v", waited, least, most, d)
		}
	}
}

// A poll is at most a sixteenth of the build time late, or the shortest pause, with few reads.
func TestInterval_LatenessAndReads(t *testing.T) {
	for range 2000 {
		build := time.Millisecond + time.Duration(rand.Int64N(int64(4*time.Second)))
		var waited time.Duration
		reads := 0
		for ; waited < build; reads++ {
			waited += Interval(waited)
		}
		if late := waited - build; late > max(build/16, Shortest*5/4) {
			t.Fatalf("a value that took %v is seen %v late, want at most a sixteenth", build, late)
		}
		if most := 25 + 30*math.Log(1+float64(build)/float64(16*Shortest)); float64(reads) > most {
			t.Fatalf("%d reads for %v, want at most %.0f", reads, build, most)
		}
	}
}

// Few looks see a build of known length: at once after its usual time, else a pause or a sixteenth late.
func TestIntervalOfBuild_LatenessAndReads(t *testing.T) {
	for range 5000 {
		usual := 16*Shortest + time.Duration(rand.Int64N(int64(time.Second)))
		build := time.Duration(rand.Float64() * 2 * float64(usual))
		var waited time.Duration
		reads := 0
		for ; waited < build; reads++ {
			waited += IntervalOfBuild(waited, usual)
		}
		late, most := waited-build, max(usual/looksAhead, Shortest)
		if build > usual-Shortest {
			most = max(build/16, Shortest)
		}
		if late > most {
			t.Fatalf("a value that took %v is seen %v late, want at most %v for one that takes %v as a rule", build, late, most, usual)
		}
		if allowed := 2*looksAhead + 20; reads > allowed {
			t.Fatalf("%d reads for %v, which takes %v as a rule, want at most %d", reads, build, usual, allowed)
		}
		if late := IntervalOfBuild(0, usual); late > usual {
			t.Fatalf("the first look comes after %v, and the build ends after %v", late, usual)
		}
	}
	for range 2000 {
		usual := 16*Shortest + time.Duration(rand.Int64N(int64(time.Second)))
		waited := time.Duration(0)
		for waited < usual-Shortest {
			waited += IntervalOfBuild(waited, usual)
		}
		if waited > usual {
			t.Fatalf("no look at the usual end of %v, but at %v", usual, waited)
		}
	}
}
