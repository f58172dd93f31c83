package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
	"go.uber.org/goleak"
)

// withZooKeeper runs a test with ZooKeeper as the locker of each store.
func withZooKeeper(t *testing.T, test func(t *testing.T, zookeeper *testserver.Server, flags []string)) {
	eachEngine(t, func(t *testing.T, _ *testserver.Server, flags []string) {
		zookeeper := testserver.ZooKeeper(t)
		test(t, zookeeper, append(flags, "-locker", "zookeeper", "-zookeeper", zookeeper.Addr))
	})
}

func TestZooKeeper_ColdHerd(t *testing.T) {
	withZooKeeper(t, func(t *testing.T, _ *testserver.Server, flags []string) {
		o := newOrigin(t, "max-age=60", time.Second)
		flags = append(flags, "-upstream", o.URL)
		fleet := []*process{start(t, flags...), start(t, flags...), start(t, flags...)}
		path := unique + "/zookeeper/cold/" + flags[1]

		got := herd(100, path, fleet...)
		want := map[string]int{fmt.Sprintf("200 %q <nil>", path+" 1"): 300}
		if n := o.count(path); n != 1 || !maps.Equal(got, want) {
			t.Errorf("%d upstream calls, answers %v; want 1 and %v", n, got, want)
		}
		for _, p := range fleet {
			if s := p.stats(t); s.Locker != "zookeeper" || s.Degraded != 0 || s.EngineErrors != 0 {
				t.Errorf("/stats: locker %s, %d rebuilds without it, %d engine errors", s.Locker, s.Degraded, s.EngineErrors)
			}
		}
	})
}

// TestZooKeeper_DiesWhileItRebuilds: the lease of a process that was killed is
// over before its session is.
func TestZooKeeper_DiesWhileItRebuilds(t *testing.T) {
	withZooKeeper(t, func(t *testing.T, _ *testserver.Server, flags []string) {
		o := newOrigin(t, "max-age=60", 2*time.Second)
		flags = append(flags, "-upstream", o.URL, "-lease", "1s")
		a, b, c := start(t, flags...), start(t, flags...), start(t, flags...)
		path := unique + "/zookeeper/takeover/" + flags[1]
		go a.get(path)
		eventually(t, 5*time.Second, "the upstream is asked", func() bool { return o.count(path) == 1 })
		got := make(chan map[string]int)
		go func() { got <- herd(20, path, b, c) }()
		eventually(t, 5*time.Second, "the others wait", func() bool { return b.stats(t).Waits > 0 && c.stats(t).Waits > 0 })
		killed := time.Now()
		a.signal(t, syscall.SIGKILL)
		want := map[string]int{fmt.Sprintf("200 %q <nil>", path+" 2"): 40}
		if got := <-got; !maps.Equal(got, want) {
			t.Errorf("the others got %v, want %v", got, want)
		}
		if took := time.Since(killed); took > 6*time.Second {
			t.Errorf("they got it after %v, want a lease of 1s and a build of 2s after the kill, not a session of 10s", took)
		}
		if n := o.count(path); n != 2 {
			t.Errorf("%d upstream calls, want 2: the dead process's and one takeover", n)
		}
	})
}

func TestZooKeeper_StartsWithoutIt(t *testing.T) {
	withZooKeeper(t, func(t *testing.T, zookeeper *testserver.Server, flags []string) {
		own(t, zookeeper)
		zookeeper.Kill()
		o := newOrigin(t, "max-age=60", 0)
		flags = append(flags, "-upstream", o.URL)
		a, b := start(t, flags...), start(t, flags...)
		a.says(t, `msg="engine unreachable`)
		a.says(t, `engine=zookeeper`)
		path := unique + "/zookeeper/alone/" + flags[1]
		for _, p := range []*process{a, b, a, b} {
			if got := p.get(path); got.status != http.StatusOK || got.took > 5*time.Second {
				t.Errorf("without ZooKeeper: %v after %v", got, got.took)
			}
		}
		if a := do(http.MethodGet, "http://"+a.admin+"/healthz"); a.status != http.StatusOK {
			t.Errorf("/healthz without ZooKeeper: %v, want 200", a)
		}

		zookeeper.Start()
		a.says(t, `msg="engine answers again" engine=zookeeper`)
		b.says(t, `msg="engine answers again" engine=zookeeper`)
		o.delay.Store(int64(200 * time.Millisecond))
		round := 0
		eventually(t, 15*time.Second, "one upstream call for both again", func() bool {
			round++
			path := fmt.Sprint(unique, "/zookeeper/together/", flags[1], "/", round)
			herd(20, path, a, b)
			return o.count(path) == 1
		})
	})
}

func TestZooKeeper_TermWhileItHangs(t *testing.T) {
	withZooKeeper(t, func(t *testing.T, zookeeper *testserver.Server, flags []string) {
		own(t, zookeeper)
		p := start(t, flags...)
		slow := make(chan answer)
		go func() { slow <- p.get("/slow?delay=1s") }()
		eventually(t, 5*time.Second, "the slow page is being built", func() bool { return p.stats(t).Loads == 1 })
		zookeeper.Signal(syscall.SIGSTOP)
		began := time.Now()
		p.signal(t, syscall.SIGTERM)
		status, at := p.end(t)
		if took := at.Sub(began); status != 0 || took > 5*time.Second {
			t.Errorf("ended with status %d after %v, want 0 within 5s", status, took)
		}
		if a := <-slow; a.status != http.StatusOK {
			t.Errorf("the running request: %v, want 200", a)
		}
	})
}

// TestZooKeeper_RunLeavesNothing is TestRun_LeavesNothing with it.
func TestZooKeeper_RunLeavesNothing(t *testing.T) {
	redis, zookeeper := testserver.Redis(t), testserver.ZooKeeper(t)
	before := goleak.IgnoreCurrent()
	c, err := parse([]string{"-addr", "127.0.0.1:0", "-admin", "127.0.0.1:0", "-store", "redis", "-redis", redis.Addr,
		"-locker", "zookeeper", "-zookeeper", zookeeper.Addr})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	log := &process{}
	ended := make(chan error)
	go func() { ended <- run(ctx, c, textLog(log)) }()
	log.says(t, "msg=listening")
	addr, _ := field(log.logged(), "msg=listening addr=")
	if a := do(http.MethodGet, "http://"+addr+"/slow?delay=10ms"); a.status != http.StatusOK {
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
}
