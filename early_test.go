package bellwether_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
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
