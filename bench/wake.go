package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// This file measures the wake lag: from a load in one process to the last waiter in another.

const (
	// Both are as in internal/fleettest, the bounds' source: more would measure the scheduler of two cores.
	wakeProcesses, wakeCallers = 3, 50

	wakeScenario = "wake lag"
)

// wakeLimits are the bounds of the 99th percentile, in milliseconds. memcached cannot push.
var wakeLimits = map[string]float64{bellwetherRedis.name: 5, bellwetherRedisPair.name: 5, bellwetherMemcached.name: 25, bellwetherEtcd.name: 5}

// wakes runs bursts in sequence, each for its own cold key. A key gives one lag per waiting process.
//
// A lag begins at the load's end in the origin's log, with the callers' clock, and so includes the commit.
func (x *trial) wakes() error {
	if err := x.open(); err != nil {
		return err
	}
	x.asking = min(wakeProcesses, x.size.Processes)
	bursts := make([][]report, x.size.Wakes)
	err := x.measure(float64(len(bursts)), func() error {
		var all []report
		for n := range bursts {
			at := time.Now().Add(20 * time.Millisecond)
			err := x.run("burst", func(i int, o *order) {
				o.Key, o.At, o.Trace, o.Callers = wakeKey(x.key(), n), at, true, wakeCallers
				if i >= wakeProcesses {
					o.Callers = 0
				}
			})
			if err != nil {
				return err
			}
			bursts[n], all = x.reports, append(all, x.reports...)
		}
		x.reports = all
		return nil
	})
	if err != nil {
		return err
	}
	h := newHistogram()
	for n, reports := range bursts {
		for _, lag := range wakeLags(reports, x.events, keyOf(wakeKey(x.key(), n), 0)) {
			h.RecordValue(max(1, lag.Microseconds()))
		}
	}
	if h.TotalCount() == 0 {
		return fmt.Errorf("%s: nobody has waited for another process", x.strategy.name)
	}
	x.m.waits(h)
	return nil
}

func wakeKey(prefix string, n int) string { return fmt.Sprint(prefix, "-", n) }

// wakeLags returns the times from the key's first load to the last return in each other process.
func wakeLags(reports []report, events []event, key string) (lags []time.Duration) {
	loaders := map[int]bool{}
	var loaded time.Time
	for _, e := range events {
		switch {
		case e.key != key:
		case e.begin:
			loaders[e.pid] = true
		case loaded.IsZero():
			loaded = e.at
		}
	}
	for _, r := range reports {
		if len(r.Samples) == 0 || loaders[r.Process] || loaded.IsZero() {
			continue
		}
		last := slices.MaxFunc(r.Samples, func(a, b sample) int { return a.returned().Compare(b.returned()) })
		lags = append(lags, last.returned().Sub(loaded))
	}
	return lags
}

func (s sample) returned() time.Time { return s.At.Add(s.Wait) }

// waits records the percentiles of a histogram of microseconds.
func (m *measurement) waits(h *hdrhistogram.Histogram) {
	ms := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1000 }
	m.P50, m.P99, m.P999, m.Max = ms(50), ms(99), ms(99.9), float64(h.Max())/1000
}
