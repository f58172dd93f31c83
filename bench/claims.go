package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// This file holds the figures of a run to their bounds.

type claim struct {
	what  string
	got   []float64 // of each round; empty: not measured in this run
	bound float64
	floor bool // the bound is the least, not the most
	unit  string
}

func (c claim) holds() bool {
	if c.floor {
		return medianOf(c.got) >= c.bound
	}
	return medianOf(c.got) <= c.bound
}

func (c claim) figure() string {
	s := fmt.Sprintf("%.3g%s", medianOf(c.got), c.unit)
	if len(c.got) > 1 {
		s += fmt.Sprintf(" (%.3g to %.3g)", slices.Min(c.got), slices.Max(c.got))
	}
	return s
}

// printClaims reports whether each claim holds. A broken claim stands out.
func printClaims(w io.Writer, claims []claim, caveat string) {
	if len(claims) == 0 {
		return
	}
	fmt.Fprintln(w, "\nBounds, and the medians of the rounds, with the lowest and the highest:"+caveat)
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	failed := 0
	for _, c := range claims {
		sign := "<="
		if c.floor {
			sign = ">="
		}
		bound := fmt.Sprintf("%s %.4g%s", sign, c.bound, c.unit)
		switch {
		case len(c.got) == 0:
			fmt.Fprintf(out, "  %s\t-\t%s\tnot measured\n", c.what, bound)
		case c.holds():
			fmt.Fprintf(out, "  %s\t%s\t%s\tholds\n", c.what, c.figure(), bound)
		default:
			failed++
			fmt.Fprintf(out, "! %s\t%s\t%s\tDOES NOT HOLD\n", c.what, c.figure(), bound)
		}
	}
	out.Flush()
	fmt.Fprintf(w, "%d of %d do not hold\n", failed, len(claims))
}

// ofRounds applies of to a's and b's measurements of each round, and so of one state of the machine.
func ofRounds[T any](a, b []T, round func(T) int, of func(a, b T) (float64, bool)) (xs []float64) {
	for _, x := range a {
		for _, y := range b {
			if round(x) == round(y) {
				if v, ok := of(x, y); ok {
					xs = append(xs, v)
				}
			}
		}
	}
	return xs
}

// herdClaims are the bounds of a cold key and of the wake lag, for the measured strategies.
func herdClaims(r *record, size size) (claims []claim) {
	round := func(m measurement) int { return m.Round }
	add := func(scenario string, s strategy, what string, bound float64, unit string, of func(measurement) float64) {
		if ms := r.rounds(scenario, s.name); len(ms) > 0 {
			claims = append(claims, claim{what: fmt.Sprintf("%s, %s: %s", scenario, s.name, what), got: each(ms, of), bound: bound, unit: unit})
		}
	}
	cold := scenarios[0].name
	for _, s := range ours {
		add(cold, s, "loads", 1, "", func(m measurement) float64 { return float64(m.Loads) })
		if most, is := herdCommands[s.name]; is {
			add(cold, s, "commands of the fleet", most, "", func(m measurement) float64 { return m.Commands * float64(size.Processes) })
		}
		if ms := r.rounds(cold, s.name); len(ms) > 0 {
			// The yardstick's waits are a load and a fan-out to as many callers.
			claims = append(claims, claim{
				what:  fmt.Sprintf("%s, %s: p99 beyond the load and the fan-out in memory", cold, s.name),
				got:   ofRounds(ms, r.rounds(cold, fanOut.name), round, func(m, fan measurement) (float64, bool) { return m.P99 - fan.P99, true }),
				bound: herdLimits[s.name], unit: " ms",
			})
		}
	}
	// The bound is for each process: all but one of them poll.
	add(knownScenario, bellwetherMemcached, "commands of a process", 30, "", func(m measurement) float64 { return m.Commands })
	for _, s := range ours {
		p50 := median(r.rounds(wakeScenario, s.name), func(m measurement) float64 { return m.P50 })
		add(wakeScenario, s, fmt.Sprintf("p99 (p50: %.1f ms)", p50), wakeLimits[s.name], " ms", func(m measurement) float64 { return m.P99 })
	}
	return claims
}

// herdLimits are the bounds of a cold key's p99 beyond the load and the fan-out, in milliseconds.
var herdLimits = map[string]float64{bellwetherRedis.name: 5, bellwetherRedisPair.name: 5, bellwetherMemcached.name: 25, bellwetherEtcd.name: 10}

// herdCommands are the bounds of the fleet's commands for a cold key.
var herdCommands = map[string]float64{bellwetherRedis.name: 30, bellwetherRedisPair.name: 40}

// httpClaims are the bounds beside the bare handler and nginx. nginx's CPU has the Go server's behind it.
func httpClaims(r *record) (claims []claim) {
	for _, c := range []struct {
		load, figure, beside, name string
		of                         func(httpMeasurement) float64
		bound                      float64
		floor                      bool
	}{
		{hitSmall, "CPU/request", "bare", "the bare handler", cpuOf, 1.08, false},
		{hitSmall, "CPU/request", "nginx", "nginx", cpuOf, 1.1, false},
		{hitSmall, "requests/s", "bare", "the bare handler", rateOf, 0.95, true},
		{hitLarge, "requests/s", "bare", "the bare handler", rateOf, 0.95, true},
		{tenthMisses, "CPU/request", "nginx", "nginx + Go together", cpuOf, clearlyBelow, false},
		{herdUnderWrk, "CPU/request", "nginx", "nginx + Go together", cpuOf, clearlyBelow, false},
		{herdAtExpiry, "CPU/request", "nginx", "nginx + Go together", cpuOf, clearlyBelow, false},
	} {
		if ours := r.httpRounds(c.load, "bellwether"); len(ours) > 0 {
			claims = append(claims, claim{
				what: fmt.Sprintf("%s: %s beside %s", c.load, c.figure, c.name),
				got:  roundRatios(ours, r.httpRounds(c.load, c.beside), c.of), bound: c.bound, floor: c.floor, unit: "x",
			})
		}
	}
	return claims
}

// clearlyBelow is the bound of a ratio that must be clearly below 1.
const clearlyBelow = 0.9
