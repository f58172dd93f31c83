package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if handled, err := asProcess(); handled {
		if err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// tiny is a herd for tests: real processes, real engines, a few callers.
var tiny = size{
	Name: "tiny", Processes: 2, Callers: 10, Load: 100 * time.Millisecond, TTL: time.Second, Lease: 2 * time.Second,
	Drive: 100 * time.Millisecond, Rate: 50, Rounds: 1,
}

func newTestHerd(t *testing.T) *herdBench {
	t.Helper()
	b, err := newHerdBench(tiny)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return b
}

// TestStrategies_ColdThenKept: callers get the key's value, loads and commands are counted, values are kept.
func TestStrategies_ColdThenKept(t *testing.T) {
	b := newTestHerd(t)
	const all = 2 * 10
	kept := scenario{name: "kept", run: func(x *trial) error {
		x.load(x.size.Load)
		if err := x.open(); err != nil {
			return err
		}
		if err := x.run("burst", func(_ int, o *order) { o.At = time.Now() }); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond) // real processes: some strategies set in the background
		if err := os.Truncate(x.log, 0); err != nil {
			return err
		}
		return x.measure(1, func() error { return x.run("burst", func(_ int, o *order) { o.At = time.Now() }) })
	}}
	for _, s := range strategies {
		t.Run(s.name, func(t *testing.T) {
			cold, err := b.trial(scenarios[0], s, 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			if cold.Calls != all || cold.Failures+cold.Wrong+cold.Hung != 0 {
				t.Errorf("of %d calls %d were counted, %d failed (%s), %d got a wrong value, %d hung", all, cold.Calls, cold.Failures, cold.Error, cold.Wrong, cold.Hung)
			}
			most := all // strategies without protection, or without a second look under the lock, may load for each caller
			switch s.name {
			case noProtection.name, onlyXFetch.name, racySemaphore.name, addMutex.name:
			default:
				most = tiny.Processes
				if s.has(locks) {
					most = 1
				}
			}
			if cold.Loads < 1 || cold.Loads > most {
				t.Errorf("%d loads, want 1 to %d", cold.Loads, most)
			}
			if got, want := cold.Commands > 0, len(s.engines) > 0; got != want {
				t.Errorf("%v commands for each process, with the engines %q", cold.Commands, s.engines)
			}
			if cold.P50 < 50 || cold.Waiting < all*0.05 {
				t.Errorf("half waited %v ms, all together %v s, for a load of %v", cold.P50, cold.Waiting, tiny.Load)
			}
			if s.has(yardstick) {
				return // it keeps nothing
			}
			again, err := b.trial(kept, s, 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			if again.Loads != 0 || again.Calls != all || again.Failures+again.Wrong+again.Hung != 0 {
				t.Errorf("once it was loaded: %+v, want %d calls and no load", again, all)
			}
		})
	}
}

func TestScenarios_HolderKilledAndStoreDown(t *testing.T) {
	b := newTestHerd(t)
	for _, name := range []string{"holder killed", "store down", "first caller leaves", "failing origin"} {
		sc, err := choose(scenarios, func(s scenario) string { return s.name }, name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := b.trial(sc[0], bellwetherRedis, 0, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		switch name {
		case "holder killed":
			if m.Loads != 2 || m.Calls != tiny.Callers || m.Failures != 0 {
				t.Errorf("%s: %+v, want the second load to answer the process that lives", name, m)
			}
		case "store down":
			if m.Failures != 0 || m.Commands != -1 {
				t.Errorf("%s: %+v, want no failure and no count of commands", name, m)
			}
		case "first caller leaves":
			if m.Loads != 1 || m.Calls != 2*tiny.Callers-1 || m.Failures != 0 {
				t.Errorf("%s: %+v, want one load for all but who left", name, m)
			}
		case "failing origin":
			if m.Failures != m.Calls || m.Loads == 0 {
				t.Errorf("%s: %+v, want nothing but failures", name, m)
			}
		}
	}
}

func TestQuick_OneStrategyInEveryScenario(t *testing.T) {
	began := time.Now()
	rec, err := measureHerd(quick, scenarios, []strategy{bellwetherRedis}, &progress{w: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(rec.Measurements), len(scenarios); got != want {
		t.Errorf("%d measurements, want %d", got, want)
	}
	if took := time.Since(began); took > quick.Limit/2 {
		t.Errorf("one strategy took %v of a run that is to end within %v", took, quick.Limit)
	}
	var table bytes.Buffer
	printHerd(&table, rec, quick, scenarios)
	for _, sc := range scenarios {
		if !strings.Contains(table.String(), "\n"+sc.name+": ") {
			t.Errorf("the table lacks %q", sc.name)
		}
	}
	path := filepath.Join(t.TempDir(), "a.json")
	if err := rec.write(path); err != nil {
		t.Fatal(err)
	}
	again, err := readRecord(path)
	if err != nil {
		t.Fatal(err)
	}
	var compared bytes.Buffer
	if err := compare(&compared, rec, again); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(compared.String(), "WARNING") || !strings.Contains(compared.String(), "cold: bellwether redis") {
		t.Errorf("a record compared with itself:\n%s", compared.String())
	}
}

// A store killed under load fails no request, and exceeds no bound of loads. Then one process loads for all.
func TestOutage_Quick(t *testing.T) {
	c, err := measureOutage(outageQuick, bellwetherRedis)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(c)
	if err := c.held(); err != nil {
		t.Error(err)
	}
	before, dark, after := c.rates()
	if dark <= before || after > 0.8*dark {
		t.Errorf("%.0f loads a second before, %.0f without the store, %.0f after it", before, dark, after)
	}
	if err := c.plot("test", filepath.Join(t.TempDir(), "outage.svg")); err != nil {
		t.Error(err)
	}
}

// The picture of waits has a panel for each strategy, and reaches beyond the queue of its last expiry.
func TestPlots_Expiry(t *testing.T) {
	if got, want := plotFull.expiriesShown(), 2*(2*time.Second+900*time.Millisecond+100*time.Millisecond); got != want {
		t.Errorf("the picture shows %v, want %v: two TTLs, each with nine rounds of the origin and a load", got, want)
	}
	b, err := newHerdBench(plotQuick.herd(plotQuick.Processes))
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	path := filepath.Join(t.TempDir(), "expiry.svg")
	if err := b.plotExpiry(plotQuick, path, &progress{w: io.Discard}); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shown {
		if caption := s.name + ": wait of the slowest caller"; strings.Count(string(svg), caption) != 1 {
			t.Errorf("no panel is called %q", caption)
		}
	}
	if !strings.Contains(string(svg), "bellwether redis: wait of the slowest caller, ms; 1 load at each expiry") {
		t.Error("Bellwether's panel does not have its one load")
	}
}

func TestLoadsIn(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	begin := func(ms int, pid int, load, key string) event { return event{true, load, pid, at(ms), key} }
	end := func(ms int, pid int, load, key string) event { return event{false, load, pid, at(ms), key} }
	for name, c := range map[string]struct {
		events                        []event
		killed                        map[int]time.Time
		loads, duplicates, keys, most int
	}{
		"one after another": {[]event{begin(0, 1, "a", "k"), end(10, 1, "a", "k"), begin(10, 2, "b", "k"), end(20, 2, "b", "k")}, nil, 2, 0, 1, 1},
		"at one time":       {[]event{begin(0, 1, "a", "k"), begin(5, 2, "b", "k"), end(10, 1, "a", "k"), end(20, 2, "b", "k")}, nil, 2, 1, 1, 2},
		"different keys":    {[]event{begin(0, 1, "a", "k"), begin(5, 2, "b", "l"), end(10, 1, "a", "k"), end(20, 2, "b", "l")}, nil, 2, 0, 2, 2},
		"after a kill":      {[]event{begin(0, 1, "a", "k"), begin(20, 2, "b", "k"), end(30, 2, "b", "k")}, map[int]time.Time{1: at(10)}, 2, 0, 1, 1},
		"before a kill":     {[]event{begin(0, 1, "a", "k"), begin(20, 2, "b", "k"), end(30, 2, "b", "k")}, map[int]time.Time{1: at(25)}, 2, 1, 1, 2},
	} {
		loads, duplicates, keys, most := loadsIn(c.events, c.killed)
		if loads != c.loads || duplicates != c.duplicates || keys != c.keys || most != c.most {
			t.Errorf("%s: %d loads, %d duplicates, %d keys, %d at once; want %d, %d, %d, %d", name,
				loads, duplicates, keys, most, c.loads, c.duplicates, c.keys, c.most)
		}
	}
}

func TestOrigin_LogsWhatItLoads(t *testing.T) {
	log, err := os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	o := &origin{log: log}
	o.now.Store(&behaviour{})
	if v, err := o.load(t.Context(), "k 1"); v != valueOf("k 1") || err != nil {
		t.Errorf("load: %q, %v", v, err)
	}
	o.now.Store(&behaviour{Fails: true})
	if _, err := o.load(t.Context(), "k 2"); !errors.Is(err, errOrigin) {
		t.Errorf("the load of an origin that fails: %v", err)
	}
	o.now.Store(&behaviour{Load: time.Hour})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := o.load(gone, "other"); !errors.Is(err, context.Canceled) {
		t.Errorf("a load whose ctx has ended: %v", err)
	}
	events, err := readLog(log.Name(), "k ")
	if err != nil {
		t.Fatal(err)
	}
	if loads, _, keys, _ := loadsIn(events, nil); loads != 2 || keys != 2 || len(events) != 4 {
		t.Errorf("%d loads of %d keys in %d events, want 2 of 2 in 4", loads, keys, len(events))
	}
}

func TestServers_Go(t *testing.T) {
	l := &life{}
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	t.Cleanup(l.end)
	load := httpLoads[len(httpLoads)-1] // a herd at expiry
	for kind := range middlewares {
		var s *server
		if err := l.do(func() { s = startGo(kind)(l) }); err != nil {
			t.Fatal(err)
		}
		m, err := s.measure(load, httpSize{Open: 200 * time.Millisecond, Rate: 100}, "k", t.TempDir())
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if m.Failures != 0 || m.Requests == 0 || m.P99 <= 0 {
			t.Errorf("%s: %+v", kind, m)
		}
		if kind == "bare" && m.Runs != m.Requests || kind == "bellwether" && m.Runs > 1 {
			t.Errorf("%s: the handler ran %d times for %d requests", kind, m.Runs, m.Requests)
		}
	}
}

func TestParseWrk(t *testing.T) {
	got, err := parseWrk("  123 requests in 2.00s, 1.2MB read\n  Socket errors: connect 1, read 2, write 0, timeout 3\n  Non-2xx or 3xx responses: 4\nRequests/sec:     61.50\n")
	if want := (throughput{123, 61.5, 10}); got != want || err != nil {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if _, err := parseWrk("unable to connect"); err == nil {
		t.Error("no error for what is no result")
	}
}

func TestParseStat(t *testing.T) {
	pid, parent, err := parseStat("42 (a (b) c) S 7 1 1 0 -1 4194304 1 2 3 4 100 23 0 0 20 0 1 0 1 1 1")
	if pid != 42 || parent != 7 || err != nil {
		t.Errorf("pid %d, parent %d, %v; want 42, 7", pid, parent, err)
	}
	for _, bad := range []string{"", "42 S 7", "42 (a) S", "42 (a) S x"} {
		if _, _, err := parseStat(bad); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}

// processTime reads the same clock as a process reads within.
func TestProcessTime(t *testing.T) {
	within := func() time.Duration {
		var own unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &own); err != nil {
			t.Fatal(err)
		}
		return time.Duration(own.Nano())
	}
	before := within()
	got, err := processTime(os.Getpid())
	if after := within(); got < before || got > after || err != nil {
		t.Errorf("%v, %v; want %v to %v", got, err, before, after)
	}
	if _, err := processTime(1 << 24); err == nil {
		t.Error("no error for a process that is not there")
	}
}

// The lag ends with the last return in a process that has not loaded, for the same key.
func TestWakeLags(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	events := []event{
		{true, "1 1", 1, at(0), "k"}, {true, "1 2", 1, at(0), "other"}, {false, "1 2", 1, at(1), "other"}, {false, "1 1", 1, at(40), "k"},
	}
	reports := []report{
		{Process: 1, Samples: []sample{{at(0), 90 * time.Millisecond, true}}},
		{Process: 2, Samples: []sample{{at(0), 43 * time.Millisecond, true}, {at(30), 11 * time.Millisecond, true}}},
		{Process: 3},
	}
	if got, want := wakeLags(reports, events, "k"), []time.Duration{3 * time.Millisecond}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := wakeLags(reports, events[:3], "k"); got != nil {
		t.Errorf("%v of a load that has not ended", got)
	}
}

func TestPrintClaims(t *testing.T) {
	var out bytes.Buffer
	printClaims(&out, []claim{
		{what: "most", got: []float64{9, 1, 2}, bound: 1}, {what: "least", got: []float64{2}, bound: 1, floor: true}, {what: "absent", bound: 1},
	}, "")
	for line, marked := range map[string]string{"most": "! ", "least": "  ", "absent": "  "} {
		if !strings.Contains(out.String(), "\n"+marked+line) {
			t.Errorf("%q is not marked %q:\n%s", line, marked, out.String())
		}
	}
	if !strings.Contains(out.String(), "1 of 3 do not hold") || strings.Count(out.String(), "DOES NOT HOLD") != 1 || !strings.Contains(out.String(), "not measured") ||
		!strings.Contains(out.String(), "2 (1 to 9)") {
		t.Error(out.String())
	}
}

func TestChoose(t *testing.T) {
	got, err := choose(scenarios, func(s scenario) string { return s.name }, "zipf, cold")
	if err != nil || len(got) != 2 || got[0].name != "zipf" || got[1].name != "cold" {
		t.Errorf("%v, %v", got, err)
	}
	named := func(name string) string { return name }
	commas, err := choose([]string{"a", "b", "a, b", "c"}, named, "a, b,c , b")
	if err != nil || !slices.Equal(commas, []string{"a, b", "c", "b"}) {
		t.Errorf("%q, %v; a name may have a comma", commas, err)
	}
	if _, err := choose(scenarios, func(s scenario) string { return s.name }, "nothing"); err == nil {
		t.Error("no error for a name that is not there")
	}
}

func TestNoise(t *testing.T) {
	for _, c := range []struct {
		a, b []float64
		want string
	}{{[]float64{1, 3}, []float64{2}, "~"}, {[]float64{2}, []float64{1, 3}, "~"}, {[]float64{1, 2}, []float64{3, 4}, ""}} {
		if got := noise(c.a, c.b); got != c.want {
			t.Errorf("noise(%v, %v) = %q, want %q", c.a, c.b, got, c.want)
		}
	}
}

func TestWrapFresh(t *testing.T) {
	if v, fresh := unwrapFresh(wrapFresh("v", time.Hour)); v != "v" || !fresh {
		t.Errorf("%q, %v", v, fresh)
	}
	if _, fresh := unwrapFresh(wrapFresh("v", -time.Second)); fresh {
		t.Error("fresh after its time")
	}
	if _, fresh := unwrapFresh([]byte("short")); fresh {
		t.Error("fresh without a time")
	}
}
