package main

import (
	"bufio"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// The tests here have one engine for the responses and another, etcd, for the
// elections.

// withEtcd runs a test with etcd as the locker, over each store.
func withEtcd(t *testing.T, test func(t *testing.T, etcd *testserver.Server, flags []string)) {
	for name, run := range map[string]func(testing.TB, ...string) *testserver.Server{
		"redis": testserver.Redis, "memcached": testserver.Memcached,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, etcd := run(t), testserver.Etcd(t)
			test(t, etcd, []string{"-store", name, "-" + name, store.Addr, "-locker", "etcd", "-etcd", etcd.Addr})
		})
	}
}

// onlyOurLog fails if something other than the server has written to stderr.
func onlyOurLog(t *testing.T, p *process) {
	t.Helper()
	for lines := bufio.NewScanner(strings.NewReader(p.logged())); lines.Scan(); {
		if !strings.HasPrefix(lines.Text(), "time=") {
			t.Errorf("a line that is not the server's: %s", lines.Text())
		}
	}
}

func TestServer_ElectedByEtcd(t *testing.T) {
	withEtcd(t, func(t *testing.T, _ *testserver.Server, flags []string) {
		o := newOrigin(t, "max-age=60", time.Second)
		flags = append(flags, "-upstream", o.URL, "-lease", "1s")
		fleet := []*process{start(t, flags...), start(t, flags...), start(t, flags...)}

		path := unique + "/etcd/cold/" + flags[1]
		got := herd(100, path, fleet...)
		want := map[string]int{fmt.Sprintf("200 %q <nil>", path+" 1"): 300}
		if n := o.count(path); n != 1 || !maps.Equal(got, want) {
			t.Errorf("%d upstream calls, answers %v; want 1 and %v", n, got, want)
		}
		if s := fleet[0].stats(t); s.Locker != "etcd" || s.Store != flags[1] {
			t.Errorf("/stats: locker %s, store %s", s.Locker, s.Store)
		}

		// One of them dies while it rebuilds.
		path = unique + "/etcd/takeover/" + flags[1]
		b, c := fleet[1].stats(t).Waits, fleet[2].stats(t).Waits
		go fleet[0].get(path)
		eventually(t, 5*time.Second, "the upstream is asked", func() bool { return o.count(path) == 1 })
		others := make(chan map[string]int)
		go func() { others <- herd(20, path, fleet[1:]...) }()
		eventually(t, 5*time.Second, "the others wait", func() bool { return fleet[1].stats(t).Waits > b && fleet[2].stats(t).Waits > c })
		fleet[0].signal(t, syscall.SIGKILL)
		want = map[string]int{fmt.Sprintf("200 %q <nil>", path+" 2"): 40}
		if got := <-others; !maps.Equal(got, want) {
			t.Errorf("the others got %v, want %v", got, want)
		}
		for _, p := range fleet {
			onlyOurLog(t, p)
		}
	})
}

func TestServer_WithoutEtcd(t *testing.T) {
	withEtcd(t, func(t *testing.T, etcd *testserver.Server, flags []string) {
		own(t, etcd)
		etcd.Kill()
		o := newOrigin(t, "max-age=60", 100*time.Millisecond)
		flags = append(flags, "-upstream", o.URL)
		a, b := start(t, flags...), start(t, flags...)
		a.says(t, `msg="engine unreachable`)
		a.says(t, "engine=etcd")
		b.says(t, `msg="engine unreachable`)

		path := unique + "/etcd/alone/" + flags[1]
		for round := range 4 {
			for _, p := range []*process{a, b} {
				if got := p.get(fmt.Sprint(path, round)); got.status != http.StatusOK || got.took > 5*time.Second {
					t.Errorf("without etcd: %v after %v", got, got.took)
				}
			}
		}
		if a := do(http.MethodGet, "http://"+a.admin+"/healthz"); a.status != http.StatusOK {
			t.Errorf("/healthz without etcd: %v, want 200: the server serves", a)
		}

		etcd.Start()
		a.says(t, `msg="engine answers again"`)
		b.says(t, `msg="engine answers again"`)
		round := 0
		eventually(t, 10*time.Second, "one upstream call for both again", func() bool {
			round++
			path := fmt.Sprint(unique, "/etcd/together/", flags[1], round)
			herd(20, path, a, b)
			return o.count(path) == 1
		})

		// And away again: it neither speaks of it for ever nor hangs on it.
		etcd.Kill()
		for _, p := range []*process{a, b} {
			if got := p.get(fmt.Sprint(unique, "/etcd/again/", flags[1])); got.status != http.StatusOK {
				t.Errorf("without etcd again: %v", got)
			}
			began := time.Now()
			p.signal(t, syscall.SIGTERM)
			status, at := p.end(t)
			if took := at.Sub(began); status != 0 || took > 2*time.Second {
				t.Errorf("without etcd: ended with status %d after %v, want 0 within 2s", status, took)
			}
			if lines := strings.Count(p.logged(), "\n"); lines > 14 {
				t.Errorf("%d lines of log for two outages, want a handful", lines)
			}
			onlyOurLog(t, p)
		}
	})
}

func TestServer_TermWhileEtcdHangs(t *testing.T) {
	withEtcd(t, func(t *testing.T, etcd *testserver.Server, flags []string) {
		own(t, etcd)
		p := start(t, flags...)
		slow := make(chan answer)
		go func() { slow <- p.get("/slow?delay=1s") }()
		eventually(t, 5*time.Second, "the slow page is being built", func() bool { return p.stats(t).Loads == 1 })
		etcd.Signal(syscall.SIGSTOP)
		began := time.Now()
		p.signal(t, syscall.SIGTERM)
		status, at := p.end(t)
		if took := at.Sub(began); status != 0 || took > 5*time.Second {
			t.Errorf("ended with status %d after %v, want 0 within 5s", status, took)
		}
		if a := <-slow; a.status != http.StatusOK {
			t.Errorf("the running request: %v, want 200", a)
		}
		onlyOurLog(t, p)
	})
}
