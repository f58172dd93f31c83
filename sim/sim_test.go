//go:build !race

// A module takes minutes to compile with the race detector, which would only look at the host.

package sim

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seeds = flag.Int("seeds", 20, "how many scenarios are played")
	first = flag.Int("first", 1, "the seed of the first")
	only  = flag.String("steps", "", "the steps that are played of the first scenario, with commas between them; empty: all scenarios, with all their steps")
	trace = flag.Bool("trace", false, "print all that happens in the first scenario")
)

// moduleVariable names a child process's file of compiled tests, cacheVariable wazero's directory.
const (
	moduleVariable = "BELLWETHER_SIM_MODULE"
	cacheVariable  = "BELLWETHER_SIM_CACHE"
)

// theCache is the directory of wazero's compilations. TestMain removes it.
var theCache = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(cacheVariable); dir != "" {
		return dir, nil
	}
	return os.MkdirTemp("", "bellwether-sim-cache-")
})

func TestMain(m *testing.M) {
	dir, err := theCache()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if os.Getenv(cacheVariable) == "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// theModule compiles the root's tests once.
var theModule = sync.OnceValues(func() ([]byte, error) {
	if file := os.Getenv(moduleVariable); file != "" {
		return os.ReadFile(file)
	}
	overlay, err := modelOnly()
	if err != nil {
		return nil, err
	}
	return build("..", overlay)
})

var compiledHost = sync.OnceValues(func() (*host, error) {
	module, err := theModule()
	if err != nil {
		return nil, err
	}
	dir, err := theCache()
	if err != nil {
		return nil, err
	}
	return newHost(context.Background(), module, dir)
})

func hostOf(t *testing.T) *host {
	t.Helper()
	h, err := compiledHost()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// each calls f for the seeds, on all processors, until a call returns false.
func each(first, n int, f func(seed int) bool) {
	var wg sync.WaitGroup
	var next atomic.Int64
	var over atomic.Bool
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && !over.Load(); i = next.Add(1) - 1 {
				if !f(first + int(i)) {
					over.Store(true)
				}
			}
		})
	}
	wg.Wait()
}

// maxFailures is the number of failures after which no scenario begins.
const maxFailures = 20

// TestScenarios reports the first scenario of each kind of violation, and shrinks the very first.
func TestScenarios(t *testing.T) {
	t.Parallel() // the other tests compile meanwhile
	h := hostOf(t)
	ctx := context.Background()
	if *only != "" || *trace {
		replay(t, h)
		return
	}
	began := time.Now()
	var played, operations atomic.Int64
	var mu sync.Mutex // guards the variables below
	failed, kinds := 0, map[string][]int{}
	each(*first, *seeds, func(seed int) bool {
		p, err := h.play(ctx, seed, "")
		if err != nil {
			t.Errorf("seed %d: %v", seed, err) // a failure of the host, or of the guest's runtime
			return false
		}
		operations.Add(int64(p.Operations))
		if n := played.Add(1); n%1000 == 0 {
			t.Logf("%d schedules, %d operations in %v", n, operations.Load(), time.Since(began).Round(time.Second))
		}
		if len(p.Violations) == 0 {
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		failed++
		kind := kindOf(p.Violations[0])
		if kinds[kind] = append(kinds[kind], seed); len(kinds[kind]) == 1 {
			t.Logf("seed %d: %s", seed, p.Violations[0])
		}
		return failed < maxFailures
	})
	took := time.Since(began)
	t.Logf("%d schedules with %d operations in %v: %.0f schedules and %.0f operations a second", played.Load(), operations.Load(),
		took.Round(time.Millisecond), float64(played.Load())/took.Seconds(), float64(operations.Load())/took.Seconds())
	least := 0
	for kind, seeds := range kinds {
		t.Errorf("%s: %d", kind, seeds)
		if least == 0 || slices.Min(seeds) < least {
			least = slices.Min(seeds)
		}
	}
	if least != 0 {
		tell(t, h, least)
	}
}

// tell shrinks a failing scenario and fails with it.
func tell(t *testing.T, h *host, seed int) {
	t.Helper()
	p, err := h.play(context.Background(), seed, "")
	if err != nil || len(p.Violations) == 0 {
		t.Fatalf("seed %d has failed once, and not again: %v", seed, err)
	}
	all := make([]int, p.Steps)
	for i := range all {
		all[i] = i
	}
	kind := kindOf(p.Violations[0])
	steps := shrink(all, 300, func(steps []int) bool {
		p, err := h.play(context.Background(), seed, commas(steps))
		return err == nil && len(p.Violations) > 0 && kindOf(p.Violations[0]) == kind
	})
	p, _ = h.play(context.Background(), seed, commas(steps))
	t.Errorf("seed %d, %d of %d steps:\n%s\n\nreplay with\n\tgo test -C sim -run '^TestScenarios$' -v . -args -first=%d -steps=%s", seed, len(steps), len(all), p.Output, seed, commas(steps))
}

// kindOf is a violation without its times, values and processes.
func kindOf(violation string) string {
	_, text, _ := strings.Cut(violation, ": ")
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, strings.Join(strings.Fields(text)[:min(4, len(strings.Fields(text)))], " "))
}

func replay(t *testing.T, h *host) {
	var environment []string
	if *trace {
		environment = append(environment, "BELLWETHER_TRACE=1")
	}
	p, err := h.play(context.Background(), *first, *only, environment...)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(p.Output)
	if len(p.Violations) > 0 {
		t.Fail()
	}
}

// TestSameSeedSameTrace plays seeds in two processes, and compares all events and their times.
func TestSameSeedSameTrace(t *testing.T) {
	t.Parallel()
	traces := func() string {
		h := hostOf(t)
		out := make([]string, *seeds)
		each(*first, *seeds, func(seed int) bool {
			p, err := h.play(context.Background(), seed, "")
			out[seed-*first] = fmt.Sprint(seed, " ", p.Trace, " ", p.Operations, " ", err)
			return true
		})
		return strings.Join(out, "\n")
	}
	if os.Getenv(moduleVariable) != "" {
		fmt.Println("traces\n" + traces() + "\n.")
		return
	}
	module, err := theModule()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "root.wasm")
	if err := os.WriteFile(file, module, 0o644); err != nil {
		t.Fatal(err)
	}
	hostOf(t) // its compilation goes into the cache
	dir, err := theCache()
	if err != nil {
		t.Fatal(err)
	}
	here := make(chan string)
	go func() { here <- traces() }()
	cmd := exec.Command(os.Args[0], "-test.run=^TestSameSeedSameTrace$", "-seeds="+strconv.Itoa(*seeds), "-first="+strconv.Itoa(*first))
	cmd.Env = append(os.Environ(), moduleVariable+"="+file, cacheVariable+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, there, _ := strings.Cut(string(out), "traces\n")
	there, _, _ = strings.Cut(there, "\n.\n")
	a, b := strings.Split(<-here, "\n"), strings.Split(there, "\n")
	same := 0
	for i := range min(len(a), len(b)) {
		if a[i] == b[i] {
			same++
		} else {
			t.Errorf("here %s, there %s", a[i], b[i])
		}
	}
	t.Logf("%d of %d seeds have the same trace in two processes", same, *seeds)
	if same != *seeds {
		t.Errorf("%d traces here, %d there", len(a), len(b))
	}
}

func TestShrink(t *testing.T) {
	all := make([]int, 100)
	for i := range all {
		all[i] = i
	}
	tries := 0
	got := shrink(all, 1000, func(steps []int) bool {
		tries++
		return slices.Contains(steps, 17) && slices.Contains(steps, 80) && slices.Contains(steps, 81)
	})
	if !slices.Equal(got, []int{17, 80, 81}) {
		t.Errorf("%v after %d tries", got, tries)
	}
}
