package chaos

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	seedFlag     = flag.Int64("seed", 0, "run the schedule of this seed only")
	lockerFlag   = flag.String("locker", "", "with this locker: redis, memcached, etcd, zookeeper or dynamodb; or redisfleet, which is the store too")
	storeFlag    = flag.String("store", "", "with this store: redis or memcached")
	durationFlag = flag.Duration("duration", 0, "how long a run of a -seed takes; without one, for how long to go on from a random seed, a fifth of it for the lockers by themselves")
)

func TestMain(m *testing.M) {
	if config := os.Getenv(workerEnv); config != "" {
		if err := work(config); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

const (
	// The lengths of the runs with fixed seeds, and with random seeds.
	shortFleet = 7 * time.Second
	shortLocks = 3 * time.Second
	longFleet  = 20 * time.Second
	longLocks  = 10 * time.Second
)

// fixed are the seeds of the short runs. A seed selects the engines: twelve in a row meet every pair, and
// redisfleet twice. These meet both stores and every locker except redis, with which most bugs are planted.
var fixed = []int64{1, 2, 3, 4, 5}

// pairOf returns the engines of a seed, unless the flags name them.
func pairOf(seed int64) (locker, store string) {
	electors := append(slices.Clone(lockers), redisFleet)
	n, all := uint64(seed), uint64(len(electors))
	locker, store = electors[n%all], stores[(n+n/all)%uint64(len(stores))]
	if *lockerFlag != "" {
		locker = *lockerFlag
	}
	if *storeFlag != "" {
		store = *storeFlag
	}
	if locker == redisFleet {
		store = redisFleet
	}
	return locker, store
}

// TestFleet checks whole fleets against Bellwether's promises.
func TestFleet(t *testing.T) {
	total := newFindings()
	t.Cleanup(func() { // after the parallel runs
		if t.Failed() {
			return
		}
		total.mustJudge(t, checkStore, checkLock, checkOne, checkOrder, checkDrop, checkFailure, checkPause, checkLoser, checkBound, checkRecovery)
		if *seedFlag != 0 {
			return // one pair of engines, and perhaps no hedges
		}
		total.mustJudge(t, checkHedge)
		for _, store := range stores {
			if *storeFlag == "" || *storeFlag == store {
				total.mustJudge(t, hitsOver(store))
			}
		}
		if *storeFlag != "memcached" { // memcached sends no notices
			total.mustJudge(t, checkNear)
		}
	})
	switch {
	case *seedFlag != 0:
		length := *durationFlag
		if length == 0 {
			length = shortFleet
		}
		fleet(t, *seedFlag, length, total)
	case *durationFlag != 0:
		for seed, end := rand.Int64N(1<<31), time.Now().Add(*durationFlag*4/5); time.Now().Before(end); seed++ {
			fleet(t, seed, longFleet, total)
		}
	default:
		sideBySide(t)
		for _, seed := range fixed {
			fleet(t, seed, shortFleet, total)
		}
	}
}

// sideBySide runs a test of fixed seeds in parallel with others, as many as there are processors. A
// run mostly waits, but more runs would starve each other, and nothing could be judged.
func sideBySide(t *testing.T) {
	if *seedFlag == 0 && *durationFlag == 0 {
		t.Parallel()
	}
}

// fleet makes one run as a subtest, and adds its findings to total.
func fleet(t *testing.T, seed int64, length time.Duration, total *findings) {
	locker, store := pairOf(seed)
	t.Run(fmt.Sprintf("%s over %s, seed %d", locker, store, seed), func(t *testing.T) {
		sideBySide(t)
		t.Logf("to replay: go test -race -v -run 'TestFleet$' . -args -seed=%d -locker=%s -store=%s -duration=%v", seed, locker, store, length)
		r := runFleet(t, seed, length, locker, store, bug{})
		found := r.check()
		total.include(found)
		if h := r.plan.times.Hedge; h > 0 {
			t.Logf("hedged after %.1f usual builds, up to a part of %v", h, r.plan.times.Share)
		}
		t.Logf("%d events, %d loads; judged %v, left out %v", len(r.events), len(r.loads), found.judged, found.excused)
		if len(found.violations) > 0 {
			for _, s := range r.plan.steps {
				t.Log(s)
			}
			t.Errorf("%s\nthe whole history is in %s", found, r.keep(t))
		}
		if found.undecided > 0 {
			t.Errorf("porcupine could not decide %d histories in %v each", found.undecided, checkTime)
		}
	})
}

// mustJudge fails the test if one of the checks has judged nothing.
func (f *findings) mustJudge(t *testing.T, checks ...check) {
	t.Helper()
	for _, c := range checks {
		if f.judged[c] == 0 {
			t.Errorf("there was nothing that check %q could judge; %d were left out", c, f.excused[c])
		}
	}
}

// keep writes the history to a file that outlives the test.
func (r *fleetRun) keep(t *testing.T) string {
	dir := os.Getenv("BELLWETHER_CHAOS_DIR")
	if dir == "" {
		dir = os.TempDir()
	}
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("chaos-%d.txt", r.seed)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, e := range latest(r.events) {
		fmt.Fprintf(f, "%.2f %.2f %s\n", float64(e.Begin)/1e6, float64(e.End)/1e6, e)
	}
	for _, l := range r.loads {
		fmt.Fprintf(f, "%.2f the origin is asked for %s, version %d\n", float64(l.begin)/1e6, l.key, l.version)
	}
	for _, s := range r.faults {
		fmt.Fprintf(f, "%.2f %.2f fault of worker %d (-1: all)\n", float64(s.begin)/1e6, float64(s.end)/1e6, s.worker)
	}
	return f.Name()
}

// TestLockers checks each locker by itself against its contract.
func TestLockers(t *testing.T) {
	switch {
	case *seedFlag != 0:
		length := *durationFlag
		if length == 0 {
			length = shortLocks
		}
		locker, _ := pairOf(*seedFlag)
		locks(t, locker, *seedFlag, length)
	case *durationFlag != 0:
		for seed, end := rand.Int64N(1<<31), time.Now().Add(*durationFlag/5); time.Now().Before(end); seed++ {
			locker, _ := pairOf(seed)
			locks(t, locker, seed, longLocks)
		}
	default:
		sideBySide(t)
		for i, locker := range lockers {
			locks(t, locker, int64(11+i), shortLocks)
		}
	}
}

func locks(t *testing.T, locker string, seed int64, length time.Duration) {
	t.Run(fmt.Sprintf("%s, seed %d", locker, seed), func(t *testing.T) {
		sideBySide(t)
		t.Logf("to replay: go test -race -v -run 'TestLockers$' . -args -seed=%d -locker=%s -duration=%v", seed, locker, length)
		e, err := engineOf(locker)
		if err != nil {
			t.Fatal(err)
		}
		found := runLocks(t, e, seed, length, bug{})
		t.Logf("judged %v, left out %v", found.judged, found.excused)
		if len(found.violations) > 0 {
			t.Errorf("%s", found)
		}
		found.mustJudge(t, checkLock)
		if found.undecided > 0 {
			t.Errorf("porcupine could not decide %d histories in %v each", found.undecided, checkTime)
		}
		if slices.Contains([]string{"redis", redisFleet, "etcd", "zookeeper"}, locker) { // these lockers push
			found.mustJudge(t, checkWake)
		}
	})
}

// TestBugs plants each bug, and expects its check to find it.
func TestBugs(t *testing.T) {
	if *seedFlag != 0 || *durationFlag != 0 {
		t.Skip("the bugs have seeds of their own")
	}
	sideBySide(t)
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			// A seed fixes the schedule, not the interleaving: a busy machine may miss the bug's moment.
			for range bugRuns {
				found := b.run(t)
				if slices.Contains(found.caught(), b.check) {
					t.Logf("caught by %v:\n%.1000s", found.caught(), found)
					return
				}
				t.Logf("caught by %v; judged %v", found.caught(), found.judged)
			}
			t.Errorf("%q has not caught it in %d runs", b.check, bugRuns)
		})
	}
}

func (b bug) run(t *testing.T) *findings {
	if b.store != "" {
		return runFleet(t, b.seed, bugTime, b.locker, b.store, b).check()
	}
	e, err := engineOf(b.locker)
	if err != nil {
		t.Fatal(err)
	}
	return runLocks(t, e, b.seed, bugTime, b)
}

// A bug must show in one of bugRuns runs of bugTime, usually the first: a starved machine does little.
const (
	bugRuns = 16
	bugTime = 3 * time.Second
)

func TestBugs_TableInTheDocs(t *testing.T) {
	doc, err := os.ReadFile("../docs/chaos.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, b := range bugs {
		engines := b.locker
		if b.store != "" {
			engines += " over " + b.store
		}
		want = append(want, fmt.Sprintf("| %s | %s | %d | %s |", b.name, engines, b.seed, b.check))
	}
	_, table, _ := strings.Cut(string(doc), "| bug | engines | seed | caught by |\n|---|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if got := strings.Split(table, "\n"); !slices.Equal(got, want) {
		t.Errorf("docs/chaos.md has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
