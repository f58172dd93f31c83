//go:build !race

package bellwether_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

const earlyHeader = "| beta | a lease | rebuilds per TTL | by the formula | loads per rebuild | by the formula | rebuilds that came too late | by the formula |"

// docs/fleets.md's table and formulas hold for fifty processes, ten reads a build, without a stale window.
func TestClaim_DocumentEarlyRefresh(t *testing.T) {
	const (
		build, ttl = time.Second, 20 * time.Second
		processes  = 50
		lambda     = 10 // reads per build of all processes, at random moments
	)
	for _, row := range tableUnder(t, earlyHeader) {
		t.Run(strings.Join(row[:2], ", "), func(t *testing.T) {
			t.Parallel()
			beta, err := strconv.ParseFloat(row[0], 64)
			if err != nil {
				t.Fatal(err)
			}
			// With t in builds, the first read begins a rebuild where lambda * beta * exp(-t/beta)
			// is about 1, plus Euler's constant in the mean. Without a lease other processes begin
			// rebuilds meanwhile. A rebuild within one build of the expiry is late.
			lead := beta * (math.Log(lambda*beta) + 0.5772)
			perTTL := float64(ttl) / (float64(ttl) - (lead-1)*float64(build))
			together := math.Exp(1 / beta)
			if row[1] == "yes" {
				together = 1
			}
			late := math.Exp(-lambda * beta * math.Exp(-1/beta))

			rounds := 200
			if row[1] != "yes" {
				rounds = 600 // the number of concurrent loads has a larger variance
			}

			var mu sync.Mutex // guards the variables below
			loads, rebuilds, running, most := 0, 0, 0, 0
			waited := map[int]bool{} // by rebuild
			synctest.Test(t, func(t *testing.T) {
				store, locker := memstore.New(), locallock.New()
				o := bellwether.Options{TTL: ttl, EarlyRefresh: beta, Fleet: bellwether.Fleet{Store: store}}
				if row[1] == "yes" {
					o.Fleet.Locker = locker
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
				time.Sleep(2 * build) // for a load in the background that was begun early
			})
			loads, rebuilds = loads-1, rebuilds-1 // without the first load, which was not early
			number := func(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }
			formulas := []string{number(perTTL), number(together), fmt.Sprintf("1 in %.0f", 1/late)}
			measured := []string{number(float64(rebuilds) / float64(rounds)), number(float64(loads) / float64(rebuilds)), fmt.Sprintf("%d of %d", len(waited), rebuilds)}
			if row[1] != "yes" { // a process then waits for its own load, even if another process's load is done
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
			// Five deviations above the mean, and at least two rebuilds, have a chance of about one in a million.
			if mean := late * float64(rebuilds); row[1] == "yes" && float64(len(waited)) > mean+5*math.Sqrt(mean)+1.5 {
				t.Errorf("beta %v: readers waited for %d of %d rebuilds, %.2f by the formula", beta, len(waited), rebuilds, mean)
			}
		})
	}
}
