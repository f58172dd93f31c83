package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
)

// A key that is read ten times per build makes no caller wait at its expiry. With a beta of 2 the
// rebuild is late with probability exp(-10 * 2 * exp(-1/2)), once in 200,000 TTLs (with 1, once in 40).
func TestEarlyRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			n, build, ttl = 4, time.Second, 60 * time.Second
			rounds        = 20
		)
		f := newFleet(t, n, notices, bellwether.Options{TTL: ttl, EarlyRefresh: 2})
		f.get(1, "k")
		start := time.Now()
		waited, reads := 0, 0
		for time.Since(start) < rounds*ttl {
			p := f.processes[reads%n]
			began := time.Now()
			if _, err := p.Get(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			if time.Since(began) > 0 {
				waited++
			}
			reads++
			time.Sleep(build / 10)
		}
		loads, most := f.origin.count()
		if waited > 0 || most > 1 {
			t.Errorf("%d of %d reads waited, %d loads at one time", waited, reads, most)
		}
		// Early rebuilds make slightly more rebuilds than TTLs.
		if loads-1 < rounds || loads-1 > rounds*6/5 {
			t.Errorf("%d rebuilds in %d TTLs", loads-1, rounds)
		}
		t.Logf("%d reads in %d TTLs of %v with a build of %v: %d rebuilds, none waited", reads, rounds, ttl, build, loads-1)
	})
}

// Callers keep getting the fresh value after an early rebuild fails.
func TestEarlyRefresh_Fails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{TTL: 10 * time.Second, EarlyRefresh: 100})
		f.origin.set(func(o *source) {
			o.fail = func(n int) error {
				if n == 1 {
					return nil
				}
				return errors.New("boom")
			}
		})
		f.get(1, "k")
		for range 80 {
			for _, p := range f.processes {
				wantValue(t, p, "k", "v1")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if loads, _ := f.origin.count(); loads < 2 {
			t.Error("nothing was rebuilt early")
		}
	})
}

type advice time.Duration

func (advice) Error() string               { return "busy" }
func (a advice) RetryAfter() time.Duration { return time.Duration(a) }

func TestFailure_SaysWhenToTryAgain(t *testing.T) {
	for pause, wantLoads := range map[time.Duration]int{20 * time.Second: 1, 0: 3, -time.Second: 3} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 3, notices, bellwether.Options{})
			f.origin.set(func(o *source) { o.fail = func(int) error { return fmt.Errorf("loading: %w", advice(pause)) } })
			for _, p := range f.processes {
				if _, err := p.Get(t.Context(), "k"); err == nil {
					t.Error("no error")
				}
				time.Sleep(5 * time.Second)
			}
			f.wantLoads(t, wantLoads)
			time.Sleep(10 * time.Second) // with the jitter of a tenth
			f.origin.set(func(o *source) { o.fail = nil })
			f.get(1, "k")
			f.wantLoads(t, wantLoads+1)
		})
	}
}

// The longest possible pause reaches the other processes undiminished.
func TestFleet_LongPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{})
		f.origin.build, f.origin.freshness = 0, &bellwether.Freshness{Age: time.Hour, TTL: time.Hour + time.Second, StaleIfError: time.Minute}
		f.origin.fail = func(n int) error {
			if n == 1 {
				return nil
			}
			return advice(1<<63 - 1)
		}
		encoded := func(e *driver.Entry) { e.Decode("k", e.Append(nil, "k")) }
		p, other := f.processes[0], f.processes[1]
		other.store.tamper.Store(&encoded)
		p.Get(t.Context(), "k")
		time.Sleep(10 * time.Second)
		p.Get(t.Context(), "k")
		time.Sleep(time.Second)
		v, err := other.Get(t.Context(), "k")
		synctest.Wait() // a third load would run in the background
		if loads, _ := f.origin.count(); v != "v1" || err != nil || loads != 2 {
			t.Errorf("%q, %v after %d loads, want the stale value and no third load", v, err, loads)
		}
	})
}

func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &source{build: 10 * time.Second}
		c := cacheOf(t, o.load, bellwether.Options{TTL: time.Minute, StaleIfError: time.Hour, Limits: bellwether.Limits{MaxRebuilds: 2, MaxQueued: 3}})
		c.Get(t.Context(), "known")
		time.Sleep(2 * time.Minute) // expired, within StaleIfError
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				if _, err := c.Get(context.Background(), fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		start := time.Now()
		if _, err := c.Get(t.Context(), "one more"); !errors.Is(err, bellwether.ErrOverloaded) || time.Since(start) > 0 {
			t.Errorf("err = %v after %v, want ErrOverloaded at once", err, time.Since(start))
		}
		if v, err := c.Get(t.Context(), "known"); v != "v1" || err != nil || time.Since(start) > 0 {
			t.Errorf("%q, %v after %v, want the stale v1 at once", v, err, time.Since(start))
		}
		wg.Wait()
		// ErrOverloaded is not remembered, and all slots are free again.
		if v, err := c.Get(t.Context(), "one more"); err != nil {
			t.Errorf("%q, %v afterwards", v, err)
		}
		for i := range 3 {
			wg.Go(func() { c.Get(context.Background(), fmt.Sprint("again", i)) })
		}
		wg.Wait()
	})
}
