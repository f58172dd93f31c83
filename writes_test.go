package bellwether_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// With a working locker and a store known to take no writes, callers wait for no process and no timeout.
func TestFleet_StoreTakesNoWrites(t *testing.T) {
	const n, timeout = 4, 500 * time.Millisecond
	for name, f := range map[string]fault{"silent": blackHole, "refuses": refuse} {
		t.Run(name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, by way) {
				fl := newFleet(t, n, by, bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{EngineTimeout: timeout}})
				fl.get(1, "before")
				fl.each(func(p *process) { p.store.set(on(f, "claim", "commit", "invalidate")) })
				for i := range 6 { // until the fault is known
					fl.get(1, fmt.Sprint("found out ", i))
				}
				for round := range 10 {
					before, _ := fl.origin.count()
					var mu sync.Mutex
					var wg sync.WaitGroup
					late := 0
					for i := range 10 {
						wg.Go(func() {
							got := fl.get(5, fmt.Sprint("k", round, " ", i))
							if len(got.failed) > 0 || got.slowest > time.Second+timeout+10*time.Millisecond {
								t.Errorf("round %d, key %d: %v", round, i, got.count)
							}
							mu.Lock()
							defer mu.Unlock()
							if got.slowest > time.Second+10*time.Millisecond {
								late++
							}
						})
					}
					wg.Wait()
					if late > n { // each process probes the store once a second
						t.Errorf("round %d: callers of %d keys waited for the store", round, late)
					}
					if loads, _ := fl.origin.count(); loads-before > 10*n {
						t.Errorf("round %d: %d loads of 10 keys in %d processes", round, loads-before, n)
					}
				}
				fl.each(func(p *process) {
					if s := p.Stats(); s.StoreUp {
						t.Error("Stats reports a store without writes as up")
					}
				})
				synctest.Wait()
				fl.wantRecovery(t)
			})
		})
	}
}
