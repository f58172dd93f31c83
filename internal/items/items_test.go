package items

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
)

func TestNewLifetime_Age(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		f                   Windows
		fresh, stale, error durations.Instant
	}{
		{Windows{TTL: 10 * s}, 110 * s, 110 * s, 110 * s},
		{Windows{Age: 4 * s, TTL: 10 * s, StaleWhileRevalidate: s, StaleIfError: 2 * s}, 106 * s, 107 * s, 108 * s},
		{Windows{Age: 14 * s, TTL: 10 * s, StaleWhileRevalidate: 10 * s}, 96 * s, 106 * s, 96 * s},
		{Windows{TTL: -s, StaleWhileRevalidate: -s, StaleIfError: -s}, 100 * s, 100 * s, 100 * s},
		{Windows{TTL: durations.Forever, StaleWhileRevalidate: durations.Forever, StaleIfError: durations.Forever}, 100*s + longestTTL, durations.Forever, durations.Forever},
		{Windows{TTL: s, StaleWhileRevalidate: durations.Forever, StaleIfError: durations.Forever}, 101 * s, durations.Forever, durations.Forever},
		{Windows{Age: durations.Forever, TTL: s}, 101*s - durations.Forever, 101*s - durations.Forever, 101*s - durations.Forever},
		// A negative age is zero: a value from the future must not be served longer.
		{Windows{Age: -s, TTL: 10 * s}, 110 * s, 110 * s, 110 * s},
		{Windows{Age: math.MinInt64, TTL: 10 * s}, 110 * s, 110 * s, 110 * s},
	} {
		l := NewLifetime(100*s, test.f)
		if !l.Held || l.FreshUntil != test.fresh || l.StaleUntil != test.stale || l.ErrorUntil != test.error {
			t.Errorf("%+v: fresh, stale, error until %v, %v, %v; want %v, %v, %v", test.f,
				l.FreshUntil, l.StaleUntil, l.ErrorUntil, test.fresh, test.stale, test.error)
		}
	}
}

// A lifetime that ends sooner keeps its windows, and one that has ended before stays as it is.
func TestStaleFrom(t *testing.T) {
	const s = time.Second
	l := NewLifetime(100*s, Windows{TTL: 10 * s, StaleWhileRevalidate: s, StaleIfError: 2 * s, Keep: 3 * s})
	for _, test := range []struct{ from, fresh durations.Instant }{
		{-durations.Forever, 100 * s}, {99 * s, 100 * s}, {104 * s, 104 * s}, {110 * s, 110 * s}, {111 * s, 110 * s}, {durations.Forever, 110 * s},
	} {
		want := NewLifetime(100*s, Windows{TTL: test.fresh - 100*s, StaleWhileRevalidate: s, StaleIfError: 2 * s, Keep: 3 * s})
		if got := l.StaleFrom(test.from); got != want {
			t.Errorf("stale from %v: %+v, want %+v", test.from, got, want)
		}
	}
}

func TestWeigh_Marks(t *testing.T) {
	it := &Item{Kind: driver.KindValue, Marks: &Marks{Validator: strings.Repeat("v", 1000), Tags: []string{strings.Repeat("t", 1000), "u"}}}
	if it.Weigh("k", func(string, any) int { return 0 }); it.Weight() < 2000 {
		t.Errorf("a weight of %d, want 2,000 at least", it.Weight())
	}
	changed := it.Unweighed()
	changed.Marks = nil
	if changed.Weigh("k", func(string, any) int { return 0 }); changed.Weight() >= 2000 {
		t.Errorf("a weight of %d without marks", changed.Weight())
	}
}

func TestWeigh_Failures(t *testing.T) {
	nothing := func(string, any) int { return 0 }
	for _, err := range []error{errors.New(string(make([]byte, 5000))), &fault.PanicError{Stack: make([]byte, 5000)}} {
		for _, remembered := range []bool{true, false} {
			it := &Item{Err: err}
			if it.Failures = 1; remembered {
				it.RetryAt = time.Second
			}
			if it.Weigh("k", nothing); (it.Weight() > 5000) != remembered {
				t.Errorf("%T: %d, remembered: %t", err, it.Weight(), remembered)
			}
		}
	}
}

// onceOnly is an error whose text is asked for once.
type onceOnly struct{ asked bool }

func (e *onceOnly) Error() string {
	if e.asked {
		panic("asked again, under the near tier's locks")
	}
	e.asked = true
	return "once"
}

// A weighed item forgets its failure without the failure's code, and keeps its weight.
func TestForgetting(t *testing.T) {
	it := &Item{Kind: driver.KindValue, Value: "v", Err: &onceOnly{}}
	it.Failures = 1
	it.Weigh("k", func(string, any) int { return 100 })
	if got := it.Forgetting(time.Second); got.Err != errForgotten || got.Weight() != it.Weight() {
		t.Errorf("%v with a weight of %d, want %v with %d", got.Err, got.Weight(), errForgotten, it.Weight())
	}
}

// A value of 4 GiB is as heavy as an item can be, with any failure: it does not become light. On a machine of 32 bits
// the largest int is as heavy, and the weight, an int to the observers, does not become negative.
func TestWeigh_HeaviestItem(t *testing.T) {
	it := &Item{Kind: driver.KindValue, Err: errors.New(strings.Repeat("down ", 100))}
	it.Failures, it.RetryAt = 1, time.Second
	if it.Weigh("k", func(string, any) int { return min(math.MaxUint32, math.MaxInt) }); it.Weight() != heaviest {
		t.Errorf("a weight of %d, want %d", it.Weight(), uint32(heaviest))
	}
}

// An item that this process has decoded keeps its value and failure, except a forgotten failure.
func TestAdopt(t *testing.T) {
	now := time.Second
	known := &Item{Kind: driver.KindValue, Value: "v", Err: errors.New("down"), Early: EarlyTryHad}
	known.Failures, known.RetryAt = 1, now
	known.Weigh("k", func(string, any) int { return 100 })
	remote := errors.New("down, as the store has it")
	for _, forgotten := range []bool{false, true} {
		want := known.Err
		if forgotten {
			known, want = known.Forgetting(now), remote
		}
		it := &Item{Kind: driver.KindValue, Err: remote}
		it.Failures, it.RetryAt = 1, 2*now
		if it.Adopt(known); it.Value != "v" || it.Err != want || it.Early != EarlyTryHad || it.RetryAt != now {
			t.Errorf("forgotten %t: %+v, want the value, %q and the earlier try", forgotten, it, want)
		}
		if least := uint32(100 + len(want.Error())); it.Weight() < least {
			t.Errorf("forgotten %t: a weight of %d, want %d at least", forgotten, it.Weight(), least)
		}
	}
	for _, times := range [][2]time.Duration{{now, 2 * now}, {2 * now, now}} {
		it, known := &Item{}, &Item{Early: EarlyTryDue}
		it.RetryAt, known.RetryAt = times[0], times[1]
		if it.Adopt(known); it.RetryAt != 2*now {
			t.Errorf("without an early try: the next try at %v of %v, want the later", it.RetryAt, times)
		}
	}
}

func TestBackOff(t *testing.T) {
	for _, test := range []struct {
		n                   uint32
		unit, longest, full time.Duration
	}{
		{1, time.Second, 20 * time.Second, time.Second},
		{2, time.Second, 20 * time.Second, 2 * time.Second},
		{5, time.Second, 20 * time.Second, 16 * time.Second},
		{6, time.Second, 20 * time.Second, 20 * time.Second},
		{math.MaxUint32, time.Second, 20 * time.Second, 20 * time.Second},
		{1, time.Second, time.Second, time.Second},
		{1, durations.Forever, durations.Forever, durations.Forever},
		{6, durations.Forever, durations.Forever, durations.Forever},
		{6, durations.Forever / 16, durations.Forever, durations.Forever},
		{3, 0, time.Second, 0},
		{3, -time.Second, time.Second, 0},
		{1, 1, 1, 1},
	} {
		least, most := durations.Forever, time.Duration(0)
		for range 2000 {
			d := BackOff(test.n, test.unit, test.longest)
			least, most = min(least, d), max(most, d)
		}
		if least < test.full-test.full/2 || most > test.full {
			t.Errorf("BackOff(%d, %v) is in %v .. %v, want in %v .. %v", test.n, test.unit, least, most, test.full/2, test.full)
		}
		// The jitter spreads keys that fail together.
		if span := test.full / 2; most-least < span-span/20 {
			t.Errorf("BackOff(%d, %v) spreads over %v, want nearly %v", test.n, test.unit, most-least, span)
		}
	}
}

// An item fits the runtime's size class of 144 bytes; the next has 160. Items are most of what the near tier costs.
func TestItem_Size(t *testing.T) {
	if size := unsafe.Sizeof(Item{}); size > 144 {
		t.Errorf("an item takes %d bytes, want at most 144", size)
	}
}
