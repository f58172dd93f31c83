package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
	"go.uber.org/goleak"
)

// The tests here run one story with every store and every locker: its twin, or one that only elects.

// A backend is an engine with its test server and its flag.
type backend struct {
	name  string
	start func(testing.TB, ...string) *testserver.Server
	value string // of its flag, for the server's address
}

var (
	stores = []backend{
		{"redis", testserver.Redis, "%s"},
		{"memcached", testserver.Memcached, "%s"},
	}
	lockers = []backend{
		{"etcd", testserver.Etcd, "%s"},
		{"zookeeper", testserver.ZooKeeper, "%s"},
		{"dynamodb", func(tb testing.TB, _ ...string) *testserver.Server { return testserver.DynamoDB(tb) }, "http://%s"},
	}
)

// flags makes a server use the engine at addr as its store or its locker.
func (e backend) flags(as, addr string) []string {
	return []string{"-" + as, e.name, "-" + e.name, fmt.Sprintf(e.value, addr)}
}

// A pair is a running store and a running locker.
type pair struct {
	store, locker string             // their names
	elector       *testserver.Server // the locker's, for twins also the store's
	flags         []string
}

func (p pair) twins() bool { return p.store == p.locker }

// eachPair runs a test with every store and every locker beside it.
func eachPair(t *testing.T, test func(t *testing.T, p pair)) {
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			server := store.start(t)
			test(t, pair{store.name, store.name, server, store.flags("store", server.Addr)})
		})
		for _, locker := range lockers {
			t.Run(locker.name+" over "+store.name, func(t *testing.T) {
				t.Parallel()
				server, elector := store.start(t), locker.start(t)
				flags := append(store.flags("store", server.Addr), locker.flags("locker", elector.Addr)...)
				test(t, pair{store.name, locker.name, elector, flags})
			})
		}
	}
}

// together waits until the fleet elects: one upstream call for all processes.
func together(t *testing.T, o *origin, fleet ...*process) {
	t.Helper()
	delay := o.delay.Swap(int64(300 * time.Millisecond))
	defer o.delay.Store(delay)
	round := 0
	eventually(t, 20*time.Second, "one upstream call for all", func() bool {
		round++
		path := fmt.Sprint(unique, "/together/", time.Now().UnixNano(), round)
		herd(5, path, fleet...)
		return o.count(path) == 1
	})
}

// onlyOurLog fails if stderr has a line that is not the server's log.
func onlyOurLog(t *testing.T, fleet ...*process) {
	t.Helper()
	for _, p := range fleet {
		for lines := bufio.NewScanner(strings.NewReader(p.logged())); lines.Scan(); {
			if !strings.HasPrefix(lines.Text(), "time=") {
				t.Errorf("a line that is not the server's: %s", lines.Text())
			}
		}
	}
}

// term ends a process as an operator does, and fails if that takes too long.
func (p *process) term(t *testing.T, limit time.Duration) {
	t.Helper()
	began := time.Now()
	p.signal(t, syscall.SIGTERM)
	status, at := p.end(t)
	if took := at.Sub(began); status != 0 || took > limit {
		t.Errorf("ended with status %d after %v, want 0 within %v", status, took, limit)
	}
}

// TestServer_Elects has three processes build a page, and then a second one while one process is killed.
func TestServer_Elects(t *testing.T) {
	eachPair(t, func(t *testing.T, e pair) {
		const lease, build = time.Second, 2 * time.Second
		o := newOrigin(t, "max-age=60", time.Second)
		flags := append(e.flags, "-upstream", o.URL, "-lease", lease.String())
		a, b, c := start(t, flags...), start(t, flags...), start(t, flags...)
		fleet := []*process{a, b, c}
		together(t, o, fleet...)

		var before, after report
		add := func(to *report) {
			for _, p := range fleet {
				s := p.stats(t)
				to.Loads += s.Loads
				to.Hits += s.Hits + s.Misses + s.Collapsed
				to.Degraded += s.Degraded
				to.EngineErrors += s.EngineErrors
			}
		}
		add(&before)
		path := unique + "/cold/" + t.Name()
		got := herd(200, path, fleet...)
		want := map[string]int{fmt.Sprintf("200 %q <nil>", path+" 1"): 600}
		if n := o.count(path); n != 1 || !maps.Equal(got, want) {
			t.Errorf("%d upstream calls, answers %v; want 1 and %v", n, got, want)
		}
		add(&after)
		if loads, answered := after.Loads-before.Loads, after.Hits-before.Hits; loads != 1 || answered != 600 {
			t.Errorf("/stats: %d loads for %d requests, want 1 for 600", loads, answered)
		}
		if after.Degraded != before.Degraded || after.EngineErrors != before.EngineErrors {
			t.Errorf("/stats: %d rebuilds without the locker, %d engine errors", after.Degraded-before.Degraded, after.EngineErrors-before.EngineErrors)
		}
		if s := a.stats(t); s.Store != e.store || s.Locker != e.locker {
			t.Errorf("/stats: store %s, locker %s", s.Store, s.Locker)
		}

		o.delay.Store(int64(time.Minute)) // it is killed before the build ends
		path = unique + "/takeover/" + t.Name()
		waitsB, waitsC := b.stats(t).Waits, c.stats(t).Waits
		go a.get(path)
		eventually(t, 15*time.Second, "the upstream is asked", func() bool { return o.count(path) == 1 })
		others := make(chan map[string]int)
		go func() { others <- herd(20, path, b, c) }()
		eventually(t, 15*time.Second, "the others wait", func() bool { return b.stats(t).Waits > waitsB && c.stats(t).Waits > waitsC })
		o.delay.Store(int64(build))
		killed := time.Now()
		a.signal(t, syscall.SIGKILL)
		want = map[string]int{fmt.Sprintf("200 %q <nil>", path+" 2"): 40}
		if got := <-others; !maps.Equal(got, want) {
			t.Errorf("the others got %v, want %v", got, want)
		}
		// A dead process's lease ends before ZooKeeper's session of 10 s, and before etcd's sweep.
		if took, limit := time.Since(killed), lease+build+3*time.Second; took > limit {
			t.Errorf("they got it %v after the kill, want a lease and a build, and at most %v", took, limit)
		}
		if n := o.count(path); n != 2 {
			t.Errorf("%d upstream calls, want 2: the dead process's and one takeover", n)
		}
		onlyOurLog(t, fleet...)
	})
}

// TestServer_LockerAwayAndBack starts processes before their locker, and ends them while it hangs or is away.
func TestServer_LockerAwayAndBack(t *testing.T) {
	eachPair(t, func(t *testing.T, e pair) {
		e.elector.OwnOrSkip(t)
		e.elector.Kill()
		o := newOrigin(t, "max-age=60", 0)
		flags := append(e.flags, "-upstream", o.URL)
		a, b := start(t, flags...), start(t, flags...)
		for _, p := range []*process{a, b} {
			p.says(t, `msg="engine unreachable`)
			p.says(t, "engine="+e.locker)
		}
		path := unique + "/alone/" + t.Name()
		for _, p := range []*process{a, b, a, b} {
			if got := p.get(path); got.status != http.StatusOK || got.took > 5*time.Second {
				t.Errorf("without the locker: %v after %v", got, got.took)
			}
		}
		if got := do(http.MethodGet, "http://"+a.admin+"/healthz"); got.status != http.StatusOK {
			t.Errorf("/healthz without the locker: %v, want 200: the server serves", got)
		}
		if e.twins() { // and so without a store
			if n := o.count(path); n != 2 {
				t.Errorf("%d upstream calls, want one for each process", n)
			}
			reply := do(http.MethodPost, "http://"+a.admin+"/invalidate?url=http://localhost"+path)
			if reply.status != http.StatusServiceUnavailable || !strings.Contains(reply.body, "near tier") {
				t.Errorf("POST /invalidate: %v, want 503 and what was dropped", reply)
			}
		}

		e.elector.Start()
		a.says(t, `msg="engine answers again" engine=`+e.locker)
		b.says(t, `msg="engine answers again" engine=`+e.locker)
		together(t, o, a, b)

		o.delay.Store(int64(time.Second))
		path = unique + "/slow/" + t.Name()
		slow := make(chan answer)
		go func() { slow <- a.get(path) }()
		eventually(t, 5*time.Second, "the slow page is being built", func() bool { return o.count(path) == 1 })
		e.elector.Signal(syscall.SIGSTOP)
		a.term(t, 5*time.Second)
		if got := <-slow; got.status != http.StatusOK {
			t.Errorf("the request that was running: %v, want 200", got)
		}

		e.elector.Kill()
		o.delay.Store(0)
		if got := b.get(unique + "/again/" + t.Name()); got.status != http.StatusOK {
			t.Errorf("without the locker again: %v", got)
		}
		b.term(t, 2*time.Second)
		for _, p := range []*process{a, b} {
			if lines := strings.Count(p.logged(), "\n"); lines > 14 {
				t.Errorf("%d lines of log for two outages, want a handful", lines)
			}
		}
		onlyOurLog(t, a, b)
	})
}

// TestRun_LeavesNothing runs the server inside the test, so that goleak sees its goroutines.
func TestRun_LeavesNothing(t *testing.T) {
	store := stores[0]
	server := store.start(t)
	for _, locker := range append([]backend{store}, lockers...) {
		t.Run(locker.name, func(t *testing.T) {
			flags := store.flags("store", server.Addr)
			if locker.name != store.name {
				flags = append(flags, locker.flags("locker", locker.start(t).Addr)...)
			}
			before := goleak.IgnoreCurrent()
			c, err := parse(append(flags, "-addr", "127.0.0.1:0", "-admin", "127.0.0.1:0"))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			log := &process{}
			ended := make(chan error)
			go func() { ended <- run(ctx, c, textLog(log)) }()
			log.says(t, "msg=listening")
			addr, _ := field(log.logged(), "msg=listening addr=")
			// A page for each locker, so that each elects.
			if a := do(http.MethodGet, "http://"+addr+"/slow?delay=10ms&ttl=1s&locker="+c.locker); a.status != http.StatusOK {
				t.Error(a)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("run: %v", err)
			}
			client.CloseIdleConnections()
			if err := goleak.Find(before); err != nil {
				t.Error(err)
			}
		})
	}
}
