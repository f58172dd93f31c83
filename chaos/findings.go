package chaos

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// This file has the result of a run, and the measure of its starvation.

// A check holds a history against one promise.
type check string

const (
	checkLock     check = "lock"     // the locker's contract, by porcupine
	checkWake     check = "wake"     // a watch hears of a release
	checkStore    check = "store"    // the store's contract, by porcupine
	checkOne      check = "one"      // at most one rebuild of a key at a time
	checkOrder    check = "order"    // a process's answers do not grow older
	checkDrop     check = "drop"     // no value from before an invalidation is served
	checkNear     check = "near"     // nor in a process with the notice, from then on
	checkFailure  check = "failure"  // a call fails only with the origin's failure
	checkPause    check = "pause"    // after a failure no load before its time
	checkLoser    check = "loser"    // a refused or abandoned value answers no call
	checkHedge    check = "hedge"    // hedges keep their share, and give way
	checkBound    check = "bound"    // every call returns in time
	checkRecovery check = "recovery" // after the faults, one rebuild and all processes fresh
)

// hitsOver is the name for near hits that order has judged, by the store behind them.
func hitsOver(store string) check { return check("order of near hits over " + store) }

// findings are the violations of a run, and the number of judged events.
type findings struct {
	violations []violation
	judged     counts // calls, pairs of calls, loads: all that a check could have failed on
	excused    counts // could not be judged
	undecided  int    // keys whose histories porcupine could not decide in time

	mu sync.Mutex // guards judged and excused while runs are added up
}

type counts map[check]int

type violation struct {
	check check
	text  string
}

// maxPerCheck is the number of violations of a check that are printed.
const maxPerCheck = 3

func (f *findings) add(c check, format string, args ...any) {
	f.violations = append(f.violations, violation{c, fmt.Sprintf(format, args...)})
}

// caught returns the checks with violations, in the order of discovery.
func (f *findings) caught() []check {
	var cs []check
	for _, v := range f.violations {
		if !slices.Contains(cs, v.check) {
			cs = append(cs, v.check)
		}
	}
	return cs
}

// String returns a few violations of each check.
func (f *findings) String() string {
	var b strings.Builder
	n := counts{}
	for _, v := range f.violations {
		if n[v.check]++; n[v.check] <= maxPerCheck {
			fmt.Fprintf(&b, "%s: %s\n", v.check, v.text)
		}
	}
	for c, n := range n {
		if n > maxPerCheck {
			fmt.Fprintf(&b, "%s: %d in all\n", c, n)
		}
	}
	return b.String()
}

// tick is the period of a gapMeter. gap is the shortest time that counts as not having run.
const (
	tick = 5 * time.Millisecond
	gap  = 40 * time.Millisecond
)

// A gapMeter finds the times in which its process did not run: paused, or on a busy machine.
type gapMeter struct {
	note func(span)
	end  chan struct{}
	done sync.WaitGroup

	mu   sync.Mutex // guards gaps
	gaps []span
}

func newGapMeter(note func(span)) *gapMeter {
	m := &gapMeter{note: note, end: make(chan struct{})}
	m.done.Go(func() {
		tick := time.NewTicker(tick)
		defer tick.Stop()
		for last := now(); ; {
			select {
			case <-tick.C:
			case <-m.end:
				return
			}
			t := now()
			if t-last > int64(gap) {
				s := span{last, t}
				m.mu.Lock()
				m.gaps = append(m.gaps, s)
				m.mu.Unlock()
				m.note(s)
			}
			last = t
		}
	})
	return m
}

func (m *gapMeter) stop() {
	close(m.end)
	m.done.Wait()
}

// within returns the lost time between begin and end.
func (m *gapMeter) within(begin, end int64) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return overlap(m.gaps, begin, end)
}

func overlap(spans []span, begin, end int64) time.Duration {
	var sum int64
	for _, s := range spans {
		sum += max(0, min(s.end, end)-max(s.begin, begin))
	}
	return time.Duration(sum)
}

// latest returns the last record of each call, in the order of their begins.
func latest(events []event) []event {
	type call struct {
		worker, life int
		id           uint64
	}
	last := map[call]event{}
	for _, e := range events {
		last[call{e.Worker, e.Life, e.ID}] = e
	}
	out := make([]event, 0, len(last))
	for _, e := range last {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b event) int {
		switch {
		case a.Begin != b.Begin:
			return int(max(-1, min(1, a.Begin-b.Begin)))
		case a.Worker != b.Worker:
			return a.Worker - b.Worker
		}
		return int(max(-1, min(1, int64(a.ID)-int64(b.ID))))
	})
	return out
}

func only(events []event, key string) []event {
	var out []event
	for _, e := range events {
		if e.Key == key {
			out = append(out, e)
		}
	}
	return out
}

func newFindings() *findings { return &findings{judged: counts{}, excused: counts{}} }

// include adds the counts of another run.
func (f *findings) include(o *findings) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c, n := range o.judged {
		f.judged[c] += n
	}
	for c, n := range o.excused {
		f.excused[c] += n
	}
}
