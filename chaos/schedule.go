package chaos

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// This file draws a run's times and steps from a seed.

// A deed is an act of the supervisor.
type deed string

const (
	cutLink     deed = "link"    // a fault on a worker's link to an engine
	slowLink    deed = "latency" // the link gets slow
	pauseWorker deed = "pause worker"
	killWorker  deed = "kill worker" // and start it again
	pauseEngine deed = "pause engine"
	killEngine  deed = "kill engine" // and start it again
	invalidate  deed = "invalidate"
)

type step struct {
	at     time.Duration
	do     deed
	worker int
	engine int // 0 is the store's, the last the locker's
	fault  testserver.Fault
	lasts  time.Duration
	key    string
}

func (s step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %s", s.at.Round(time.Millisecond), s.do)
	switch s.do {
	case cutLink, slowLink:
		fmt.Fprintf(&b, " %v of worker %d to engine %d", s.fault, s.worker, s.engine)
	case pauseWorker, killWorker:
		fmt.Fprintf(&b, " %d", s.worker)
	case pauseEngine, killEngine:
		fmt.Fprintf(&b, " %d", s.engine)
	case invalidate:
		return fmt.Sprintf("%s %s by worker %d", b.String(), s.key, s.worker)
	}
	fmt.Fprintf(&b, " for %v", s.lasts.Round(time.Millisecond))
	return b.String()
}

// A schedule is all decisions of a seed.
type schedule struct {
	times times
	steps []step
	slow  int // number of slow loads among eight
}

const (
	fleetWorkers = 3
	warmUp       = time.Second // when the first fault comes, after connections, scripts and subscriptions
)

func draw(seed int64, length time.Duration, engines int) schedule {
	dice := rand.New(rand.NewPCG(uint64(seed), 7))
	ms := func(least, most int) time.Duration {
		return time.Duration(least+dice.IntN(most-least+1)) * time.Millisecond
	}
	lease := ms(300, 1000)
	s := schedule{slow: 1, times: times{
		Lease: lease, TTL: ms(100, 250), Stale: []time.Duration{0, 200 * time.Millisecond}[dice.IntN(2)],
		StaleIfError: 6 * time.Second, Near: 100 * time.Millisecond, Engine: ms(150, 300), Rebuild: 3 * lease,
	}}
	more := rand.New(rand.NewPCG(uint64(seed), 8)) // separate dice: these draws do not change the others
	s.times.Failure = 100*time.Millisecond + time.Duration(more.Int64N(int64(300*time.Millisecond)))
	if more.IntN(3) == 0 { // near values then outlive NearTTL by far
		s.times.TTL = 400*time.Millisecond + time.Duration(more.Int64N(int64(400*time.Millisecond)))
	}
	if more.IntN(2) == 0 { // callers without a stale value then get the failures
		s.times.StaleIfError = 0
	}
	if more.IntN(2) == 0 {
		s.times.Hedge, s.times.Share = 1.5+2*more.Float64(), []float64{0.1, 0.5}[more.IntN(2)]
	}
	faults := []testserver.Fault{testserver.BlackHole, testserver.DeadRequests, testserver.DeadReplies,
		testserver.SwallowReplies, testserver.SlowClose, testserver.Reset}
	for at := warmUp; at < length; {
		// A storm, and then time in which all processes recover and can be judged without faults.
		storm := ms(1000, 2000)
		for range 2 + dice.IntN(4) {
			st := step{at: at + ms(0, int(storm/time.Millisecond)), worker: dice.IntN(fleetWorkers), engine: dice.IntN(engines), lasts: ms(50, 900)}
			switch n := dice.IntN(20); {
			case n < 8:
				st.do, st.fault = cutLink, faults[dice.IntN(len(faults))]
			case n < 11:
				st.do, st.lasts = slowLink, ms(300, 1500)
			case n < 14:
				st.do, st.lasts = pauseWorker, ms(100, 2*int(lease/time.Millisecond))
			case n < 16:
				st.do = killWorker
			case n < 18:
				st.do, st.lasts = pauseEngine, ms(50, 600)
			default:
				st.do, st.lasts = killEngine, ms(50, 500)
			}
			s.steps = append(s.steps, st)
		}
		at += storm + ms(2500, 3500)
	}
	for at := warmUp / 2; at < length; at += ms(150, 500) {
		s.steps = append(s.steps, step{at: at, do: invalidate, worker: dice.IntN(fleetWorkers), key: fmt.Sprint("k", dice.IntN(fleetKeys))})
	}
	slices.SortStableFunc(s.steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	return s
}

// peaceful removes the faults from s, not the invalidations. Then a bug has no excuses.
func peaceful(s *schedule) {
	s.steps = slices.DeleteFunc(s.steps, func(st step) bool { return st.do != invalidate })
}

// failing is peaceful, without stale values in front of failures.
func failing(s *schedule) {
	peaceful(s)
	s.times.TTL, s.times.Stale, s.times.StaleIfError, s.times.Hedge = 100*time.Millisecond, 0, 0, 0
}

// trusting is peaceful, with values that stay fresh long after NearTTL.
func trusting(s *schedule) {
	peaceful(s)
	s.times.TTL = 700 * time.Millisecond
}

// hedging is peaceful, with more slow loads, and with hedges for loads on which others wait.
func hedging(s *schedule) {
	peaceful(s)
	s.times.TTL, s.times.Stale, s.times.Hedge, s.times.Share = 100*time.Millisecond, 0, 1.5, 1
	s.times.Lease, s.times.Rebuild, s.slow = 400*time.Millisecond, 1200*time.Millisecond, 2
}

// answer is the origin's nth answer for a key: its time, from 10 ms to two leases, and failure.
func (s schedule) answer(seed int64, key string, n int) (takes time.Duration, fails bool) {
	var salt uint64
	for _, c := range key {
		salt = salt*31 + uint64(c)
	}
	dice := rand.New(rand.NewPCG(uint64(seed)^salt, uint64(n)))
	takes = 10*time.Millisecond + time.Duration(dice.Int64N(int64(60*time.Millisecond)))
	switch n := dice.IntN(8); {
	case n < s.slow:
		takes = time.Duration(dice.Int64N(int64(2 * s.times.Lease)))
	case n == 7:
		fails = true
	}
	return takes, fails
}
