package fleettest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// WakeLag returns the median and the 99th percentile of the wake lag. It is the time from a load's end
// to the value in another process's last waiter: commit, notice, and the way out of the flight.
func WakeLag(t *testing.T, kind Kind) (median, p99 time.Duration) {
	const processes, callers = 3, 50
	rounds := 60
	if testing.Short() {
		rounds = 30 // a median of 60 lags
	}
	f := newFleet(t, kind, processes, fleetOptions{})
	f.origin.delay.Store(int64(40 * time.Millisecond))
	var lags []time.Duration
	for round := range rounds {
		key := fmt.Sprint("wake", round)
		at := time.Now().Add(20 * time.Millisecond)
		reports := make([]report, processes)
		var wg sync.WaitGroup
		for i, w := range f.workers {
			wg.Go(func() { reports[i] = w.do(order{Do: "herd", Key: key, Callers: callers, At: at}) })
		}
		wg.Wait()
		loader := slices.IndexFunc(reports, func(r report) bool { return r.Load > 0 })
		if loader < 0 || f.origin.count(key) != 1 {
			t.Fatalf("%d loads of %s", f.origin.count(key), key)
		}
		for i, r := range reports {
			if i != loader {
				lags = append(lags, r.Last.Sub(reports[loader].Loaded)) // one machine, one clock
			}
		}
	}
	median, p99 = percentile(lags, .5), percentile(lags, .99)
	t.Logf("%s: from the end of the load to the last waiter in another process: median %v, p99 %v, most %v", kind.Name, median, p99, percentile(lags, 1))
	return median, p99
}
