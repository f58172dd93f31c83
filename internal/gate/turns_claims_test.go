//go:build !race

package gate

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A busyEngine answers after its distance, when it has done the work of the calls before.
type busyEngine struct {
	mu       sync.Mutex // guards the fields below
	distance time.Duration
	work     time.Duration // of one call; calls are served in sequence
	free     time.Time     // when the work so far is done
}

func (b *busyEngine) call() {
	b.mu.Lock()
	now := time.Now()
	if b.free.Before(now) {
		b.free = now
	}
	b.free = b.free.Add(b.work)
	wait := b.free.Sub(now) + b.distance
	b.mu.Unlock()
	time.Sleep(wait)
}

func (b *busyEngine) move(distance time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.distance = distance
}

// press has 500 callers, and returns the calls per second of the latter half and its slowest call.
func press(b *busyEngine, t *turns, long time.Duration) (rate float64, slowest time.Duration) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	n, began := 0, time.Now()
	for range 500 {
		wg.Go(func() {
			for time.Since(began) < long {
				if t.take(context.Background(), &t.others, nil) != nil {
					panic("no turn")
				}
				start := time.Now()
				b.call()
				t.done(start, true)
				mu.Lock()
				if end := time.Since(began); end > long/2 && end <= long {
					n, slowest = n+1, max(slowest, time.Since(start))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return float64(n) / (long / 2).Seconds(), slowest
}

const boundTimeout = 500 * time.Millisecond

// Distance is no reason to wait: mostTurns calls run.
func TestTurns_FarEngine(t *testing.T) {
	for _, distance := range []time.Duration{time.Millisecond, 80 * time.Millisecond, 150 * time.Millisecond, 300 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			rate, _ := press(&busyEngine{distance: distance}, newTurns(boundTimeout), 100*distance)
			t.Logf("%v away: %.0f calls a second", distance, rate)
			if want := mostTurns / distance.Seconds(); rate < 0.97*want {
				t.Errorf("%v away: %.0f calls a second, want %.0f", distance, rate, want)
			}
		})
	}
}

// Under endless load no call comes near its timeout, and the engine is never idle for long.
func TestTurns_SaturatedEngine(t *testing.T) {
	for _, b := range []*busyEngine{{work: 5 * time.Millisecond}, {distance: 150 * time.Millisecond, work: 5 * time.Millisecond}, {distance: 300 * time.Millisecond, work: 2 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			turns := newTurns(boundTimeout)
			for minute := range 4 {
				rate, slowest := press(b, turns, time.Minute)
				t.Logf("%v away, minute %d: %.0f calls a second, slowest %v, base %v, bound %.1f", b.distance, minute, rate, slowest, turns.base, turns.bound)
				if most := boundTimeout * 9 / 10; slowest > most {
					t.Errorf("%v away, minute %d: a call took %v, want %v at most", b.distance, minute, slowest, most)
				}
				if want := float64(time.Second / b.work); rate < 0.75*want {
					t.Errorf("%v away, minute %d: %.0f calls a second, want %.0f", b.distance, minute, rate, want)
				}
				if most := b.distance + fewTurns*b.work; turns.base > most {
					t.Errorf("%v away, minute %d: the base is %v, want %v at most", b.distance, minute, turns.base, most)
				}
			}
		})
	}
}

// Under endless load the base follows the engine's distance.
func TestTurns_EngineMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, turns := &busyEngine{}, newTurns(boundTimeout)
		for _, distance := range []time.Duration{40 * time.Millisecond, 300 * time.Millisecond, 20 * time.Millisecond} {
			b.move(distance)
			rate, _ := press(b, turns, 40*time.Second)
			t.Logf("%v away: %.0f calls a second", distance, rate)
			if want := mostTurns / distance.Seconds(); rate < 0.9*want {
				t.Errorf("%v away: %.0f calls a second, want %.0f", distance, rate, want)
			}
		}
	})
}

// A call without an answer keeps the base, and a hanging call holds up a probe at most for the timeout.
func TestTurns_ProbeBesideCallsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, turns := &busyEngine{distance: 10 * time.Millisecond}, newTurns(boundTimeout)
		press(b, turns, time.Second)
		base := turns.base
		turns.done(time.Now(), false)
		turns.running++
		if turns.base != base {
			t.Errorf("the base is %v after a call without an answer, was %v", turns.base, base)
		}
		for range fewTurns {
			if err := turns.take(t.Context(), &turns.others, nil); err != nil {
				t.Fatal(err)
			}
		}
		b.move(200 * time.Millisecond)
		press(b, turns, 20*time.Second)
		// The last probe gave no base, and no later call begins the next probe.
		turns.mu.Lock()
		turns.probing = time.Now().Add(boundTimeout)
		turns.mu.Unlock()
		time.AfterFunc(boundTimeout, turns.resume)
		began := time.Now()
		if err := turns.take(t.Context(), &turns.others, nil); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > boundTimeout {
			t.Errorf("a turn came after %v, want %v at most", took, boundTimeout)
		}
	})
}

// A call that finds no other call in the queue keeps the bound of a probe, and overtakes no waiting call.
func TestTurns_WithoutAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTurns(boundTimeout)
		tr.probing = time.Now().Add(boundTimeout)
		for range fewTurns {
			tr.take(t.Context(), &tr.others, nil)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if tr.take(ctx, &tr.others, nil) == nil {
			t.Error("a call beyond fewTurns runs during a probe")
		}
		waits := true
		go func() {
			tr.take(context.Background(), &tr.holders, nil)
			waits = false
		}()
		time.Sleep(boundTimeout) // the probe's time is over, and its timer is not there
		tr.take(t.Context(), &tr.others, nil)
		synctest.Wait()
		if waits {
			t.Error("a call has overtaken a waiting call")
			tr.resume()
		}
	})
}
