package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// A key that is read ten times per build never makes a caller wait at its
// expiry, although nothing stale may be served: with a beta of 2 the rebuild
// begins too late, less than one build before the expiry, with the probability
// exp(-10 * 2 * exp(-1/2)), once in 200,000 TTLs. (With 1 it is once in 40.) One rebuild runs at a time in the whole fleet.
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
		// An early rebuild comes some builds before the expiry, so there are a
		// little more than one for each TTL.
		if loads-1 < rounds || loads-1 > rounds*6/5 {
			t.Errorf("%d rebuilds in %d TTLs", loads-1, rounds)
		}
		t.Logf("%d reads in %d TTLs of %v with a build of %v: %d rebuilds, none waited", reads, rounds, ttl, build, loads-1)
	})
}

const earlyHeader = "| beta | a lease | rebuilds per TTL | by the formula | loads per rebuild | by the formula | rebuilds that came too late | by the formula |"

// A key that is read ten times per build, by fifty processes, and is not to be
// served stale: what EarlyRefresh costs and saves, beside what the theory
// says. docs/fleet.md has the table.
func TestDocument_EarlyRefresh(t *testing.T) {
	const (
		build, ttl = time.Second, 20 * time.Second
		processes  = 50
		lambda     = 10 // reads in the time of a build, in all; at random moments
	)
	for _, row := range tableUnder(t, earlyHeader) {
		beta, err := strconv.ParseFloat(row[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		// The first read to begin a rebuild does so where lambda * beta * exp(-t/beta)
		// is about 1, and Euler's constant more in the mean; t in builds. Without a
		// lease others do so until it is done. It is too late if nobody has by one
		// build before the end.
		lead := beta * (math.Log(lambda*beta) + 0.5772)
		perTTL := float64(ttl) / (float64(ttl) - (lead-1)*float64(build))
		together := math.Exp(1 / beta)
		if row[1] == "yes" {
			together = 1
		}
		late := math.Exp(-lambda * beta * math.Exp(-1/beta))

		rounds := 200
		if row[1] != "yes" {
			rounds = 600 // how many load at one time is scattered more
		}

		var mu sync.Mutex // guards what follows
		loads, rebuilds, running, most := 0, 0, 0, 0
		waited := map[int]bool{} // by rebuild
		synctest.Test(t, func(t *testing.T) {
			store, locker := memstore.New(), locallock.New()
			o := bellwether.Options{TTL: ttl, EarlyRefresh: beta, Store: store}
			if row[1] == "yes" {
				o.Locker = locker
			}
			var caches []*bellwether.Cache[string]
			for range processes {
				caches = append(caches, cacheOf(t, func(context.Context, string) (string, error) {
					mu.Lock()
					loads++
					if running++; running == 1 {
						rebuilds++
					}
					most = max(most, running)
					mu.Unlock()
					time.Sleep(build)
					mu.Lock()
					defer mu.Unlock()
					running--
					return "v", nil
				}, o))
			}
			if _, err := caches[0].Get(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			var callers sync.WaitGroup
			rng := rand.New(rand.NewPCG(1, 2))
			for start := time.Now(); time.Since(start) < time.Duration(rounds)*ttl; {
				c := caches[rng.IntN(processes)]
				callers.Go(func() {
					began := time.Now()
					if _, err := c.Get(t.Context(), "k"); err != nil {
						t.Error(err)
					}
					if time.Since(began) > 0 {
						mu.Lock()
						defer mu.Unlock()
						waited[rebuilds] = true
					}
				})
				time.Sleep(time.Duration(rng.ExpFloat64() * float64(build/lambda)))
			}
			callers.Wait()
		})
		loads, rebuilds = loads-1, rebuilds-1 // there was nothing to begin with
		number := func(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }
		formulas := []string{number(perTTL), number(together), fmt.Sprintf("1 in %.0f", 1/late)}
		measured := []string{number(float64(rebuilds) / float64(rounds)), number(float64(loads) / float64(rebuilds)), fmt.Sprintf("%d of %d", len(waited), rebuilds)}
		if row[1] != "yes" { // a process waits for its own load then, also where another's is done
			formulas[2], measured[2] = "-", "-"
		}
		t.Logf("| %s | %s | %s | %s | %s | %s | %s | %s |", row[0], row[1], measured[0], formulas[0], measured[1], formulas[1], measured[2], formulas[2])
		if !slices.Equal(formulas, []string{row[3], row[5], row[7]}) {
			t.Errorf("the formulas of %q come to %q", row, formulas)
		}
		for i, want := range []float64{perTTL, together} {
			if got, _ := strconv.ParseFloat(measured[i], 64); math.Abs(got-want) > 0.1*want {
				t.Errorf("beta %v, lease %s: %.2f measured, %.2f by the formula", beta, row[1], got, want)
			}
		}
		if row[1] == "yes" && most > 1 {
			t.Errorf("beta %v: %d loads at one time under a lease", beta, most)
		}
		// Five deviations more than the mean are one chance in millions.
		if mean := late * float64(rebuilds); row[1] == "yes" && float64(len(waited)) > mean+5*math.Sqrt(mean)+0.5 {
			t.Errorf("beta %v: readers waited for %d of %d rebuilds, %.2f by the formula", beta, len(waited), rebuilds, mean)
		}
	}
}

// A rebuild that was begun early and fails takes nothing away.
func TestEarlyRefresh_Fails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{TTL: 10 * time.Second, EarlyRefresh: 100})
		f.get(1, "k")
		f.origin.set(func(o *source) { o.fail = func(int) error { return errors.New("boom") } })
		for range 80 {
			for _, p := range f.processes {
				if v, err := p.Get(t.Context(), "k"); v != "v1" || err != nil {
					t.Fatalf("%q, %v, want v1", v, err)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
		if loads, _ := f.origin.count(); loads < 2 {
			t.Error("nothing was rebuilt early")
		}
	})
}

// advice is an error that says when to try again.
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
			time.Sleep(10 * time.Second) // and a tenth
			f.origin.set(func(o *source) { o.fail = nil })
			f.get(1, "k")
			f.wantLoads(t, wantLoads+1)
		})
	}
}

// Over MaxQueued callers are told so at once, or get what is stale.
func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &source{build: 10 * time.Second}
		c := cacheOf(t, o.load, bellwether.Options{TTL: time.Minute, StaleIfError: time.Hour, MaxRebuilds: 2, MaxQueued: 3})
		c.Get(t.Context(), "known")
		time.Sleep(2 * time.Minute) // it has expired, and may be served on errors
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
		// Nothing of that is remembered, and all the slots are back.
		if v, err := c.Get(t.Context(), "one more"); err != nil {
			t.Errorf("%q, %v afterwards", v, err)
		}
		for i := range 3 {
			wg.Go(func() { c.Get(context.Background(), fmt.Sprint("again", i)) })
		}
		wg.Wait()
	})
}
