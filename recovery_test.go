package bellwether_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// This file tests how soon callers get values after an origin was down.

// untilGood calls Get ten times a second until it succeeds, and returns the time this took.
func untilGood(p *process, key string) time.Duration {
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if _, err := p.Get(context.Background(), key); err == nil {
			return time.Since(start)
		}
	}
}

func TestMaxErrorTTL_BoundsThePauses(t *testing.T) {
	for _, o := range []struct {
		bellwether.Options
		most time.Duration
	}{
		{bellwether.Options{}, 5 * time.Second},
		{bellwether.Options{MaxErrorTTL: 2 * time.Second}, 2 * time.Second},
		{bellwether.Options{ErrorTTL: 10 * time.Second}, 10 * time.Second},
	} {
		everyWay(t, func(t *testing.T, by way) {
			f := newFleet(t, 2, by, o.Options)
			f.origin.build = 10 * time.Millisecond
			f.origin.fail = func(int) error { return errOrigin }
			down := time.Now()
			for time.Since(down) < 90*time.Second { // without the bound, a pause would be at least 32 s
				f.get(1, "k")
				time.Sleep(100 * time.Millisecond)
			}
			f.origin.set(func(o *source) { o.fail = nil })
			if took := untilGood(f.processes[0], "k"); took > o.most+200*time.Millisecond {
				t.Errorf("the first good answer came %v after the origin was well, want %v at most", took, o.most)
			}
		})
	}
}

// When a load succeeds after all have failed for a while, each failing key has one early try.
func TestRecovery_OneEarlyTry(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		const keys = 20
		f := newFleet(t, 2, by, bellwether.Options{TTL: time.Hour, ErrorTTL: time.Minute, MaxErrorTTL: time.Hour})
		p := f.processes[0]
		f.origin.build = 10 * time.Millisecond
		f.origin.fail = func(int) error { return errOrigin }
		p.Get(t.Context(), "first")
		time.Sleep(time.Minute)
		for i := range keys { // their pauses are at least half a minute
			p.Get(t.Context(), fmt.Sprint(i))
		}
		var mu sync.Mutex
		broken := 0
		get := func(p *process, key string) (string, error) {
			return p.GetFunc(t.Context(), key, func(context.Context, string) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				broken++
				return "", errOrigin
			})
		}
		get(p, "broken")
		time.Sleep(5 * time.Second)
		f.origin.set(func(o *source) { o.fail = nil })
		if _, err := p.Get(t.Context(), "another"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		before := broken
		for i := range keys {
			if v, err := p.Get(t.Context(), fmt.Sprint(i)); err != nil {
				t.Errorf("key %d after another key's load succeeded: %q, %v", i, v, err)
			}
		}
		for i := range 200 {
			get(p, "broken")
			get(f.processes[1], "broken")
			time.Sleep(500 * time.Millisecond)
			p.Get(t.Context(), fmt.Sprint("more", i))
		}
		// Its pauses are at least a minute, and double.
		if n := broken - before; n < 1 || n > 3 {
			t.Errorf("a failing key was tried %d times in 100 s, want its early try and at most two more", n)
		}
	})
}

func TestRecovery_OneEarlyTryUntilItSucceeds(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 1, by, bellwether.Options{TTL: time.Hour, ErrorTTL: time.Minute, MaxErrorTTL: 100 * time.Hour})
		p, tries := f.processes[0], 0
		f.origin.build = 0
		broken := func() {
			p.GetFunc(t.Context(), "broken", func(context.Context, string) (string, error) { tries++; return "", errOrigin })
		}
		for tries < 8 { // the next pause is at least an hour
			broken()
			time.Sleep(30 * time.Second)
		}
		tries = 0
		for i := range 5 {
			f.origin.set(func(o *source) { o.fail = func(int) error { return errOrigin } })
			p.Get(t.Context(), fmt.Sprint("down ", i))
			time.Sleep(2 * time.Minute)
			f.origin.set(func(o *source) { o.fail = nil })
			p.Get(t.Context(), fmt.Sprint("well ", i))
			synctest.Wait()
			broken()
		}
		if tries > 1 {
			t.Errorf("a key that always fails was tried %d times as the origin recovered, want once", tries)
		}
	})
}

// There is no early try after a RetryAfter, nor if loads have failed for less than ErrorTTL.
func TestRecovery_NoEarlyTry(t *testing.T) {
	for name, c := range map[string]struct {
		failure error
		after   time.Duration
	}{
		"advised": {advice(time.Hour), 11 * time.Second},
		"at once": {errOrigin, 3 * time.Second},
	} {
		inBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 1, push, bellwether.Options{TTL: time.Hour, ErrorTTL: 10 * time.Second})
			p, loads := f.processes[0], 0
			get := func() {
				p.GetFunc(t.Context(), "k", func(context.Context, string) (string, error) { loads++; return "", c.failure })
			}
			get()
			time.Sleep(c.after)
			p.Get(t.Context(), "another")
			synctest.Wait()
			if get(); loads != 1 {
				t.Errorf("%d early tries, want none", loads-1)
			}
		})
	}
}
