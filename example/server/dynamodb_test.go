package main

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// withDynamoDB runs a test with DynamoDB as the locker, and each engine that can
// be the store beside it.
func withDynamoDB(t *testing.T, test func(t *testing.T, dynamo *testserver.Server, flags []string)) {
	for name, run := range map[string]func(testing.TB, ...string) *testserver.Server{
		"redis": testserver.Redis, "memcached": testserver.Memcached,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dynamo := testserver.DynamoDB(t)
			test(t, dynamo, []string{"-store", name, "-" + name, run(t).Addr, "-locker", "dynamodb", "-dynamodb", "http://" + dynamo.Addr})
		})
	}
}

func TestServer_DynamoDB_ColdHerd(t *testing.T) {
	withDynamoDB(t, func(t *testing.T, _ *testserver.Server, flags []string) {
		o := newOrigin(t, "max-age=60", time.Second)
		flags = append(flags, "-upstream", o.URL)
		fleet := []*process{start(t, flags...), start(t, flags...), start(t, flags...)}
		oneCallForAll(t, o, fleet)

		path := unique + "/cold/dynamodb/" + flags[1]
		got := herd(100, path, fleet...)
		want := map[string]int{fmt.Sprintf("200 %q <nil>", path+" 1"): 300}
		if n := o.count(path); n != 1 || !maps.Equal(got, want) {
			t.Errorf("%d upstream calls, answers %v; want 1 and %v", n, got, want)
		}
	})
}

// oneCallForAll waits until the fleet elects, which is when the table has been
// made.
func oneCallForAll(t *testing.T, o *origin, fleet []*process) {
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

func TestServer_DynamoDB_StartsWithoutIt(t *testing.T) {
	withDynamoDB(t, func(t *testing.T, dynamo *testserver.Server, flags []string) {
		own(t, dynamo)
		dynamo.Kill()
		o := newOrigin(t, "max-age=60", 0)
		flags = append(flags, "-upstream", o.URL)
		fleet := []*process{start(t, flags...), start(t, flags...)}
		fleet[0].says(t, `msg="engine unreachable`)
		for _, p := range fleet {
			path := fmt.Sprint(unique, "/alone/", p.addr)
			if got := p.get(path); got.status != http.StatusOK || got.took > 5*time.Second {
				t.Errorf("without DynamoDB: %v after %v", got, got.took)
			}
			if got := do(http.MethodGet, "http://"+p.admin+"/healthz"); got.status != http.StatusOK {
				t.Errorf("/healthz without DynamoDB: %v", got)
			}
		}

		dynamo.Start()
		for _, p := range fleet {
			p.says(t, `msg="engine answers again"`)
		}
		oneCallForAll(t, o, fleet)

		// It loses its tables, which are missed at the next rebuild.
		dynamo.Restart()
		oneCallForAll(t, o, fleet)
	})
}

// TestServer_DynamoDB_DiesWhileItRebuilds: another process takes the page over
// when it has seen the lease for its whole length.
func TestServer_DynamoDB_DiesWhileItRebuilds(t *testing.T) {
	withDynamoDB(t, func(t *testing.T, _ *testserver.Server, flags []string) {
		o := newOrigin(t, "max-age=60", 2*time.Second)
		flags = append(flags, "-upstream", o.URL, "-lease", "1s")
		a, b, c := start(t, flags...), start(t, flags...), start(t, flags...)
		oneCallForAll(t, o, []*process{a, b, c})
		path := unique + "/takeover/dynamodb/" + flags[1]
		go a.get(path)
		eventually(t, 5*time.Second, "the upstream is asked", func() bool { return o.count(path) == 1 })
		got := make(chan map[string]int)
		go func() { got <- herd(20, path, b, c) }()
		eventually(t, 5*time.Second, "the others wait", func() bool { return b.stats(t).Waits > 0 && c.stats(t).Waits > 0 })
		a.signal(t, syscall.SIGKILL)
		want := map[string]int{fmt.Sprintf("200 %q <nil>", path+" 2"): 40}
		if got := <-got; !maps.Equal(got, want) {
			t.Errorf("the others got %v, want %v", got, want)
		}
		if n := o.count(path); n != 2 {
			t.Errorf("%d upstream calls, want 2: the dead process's and one takeover", n)
		}
	})
}

func TestCredentials(t *testing.T) {
	emulator, _ := url.Parse("http://127.0.0.1:8000")
	for _, c := range []struct {
		endpoint *url.URL
		env      map[string]string
		want     string // the key, or a part of the error
	}{
		{emulator, nil, "emulator"},
		{emulator, map[string]string{"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "s"}, "mine"},
		{nil, map[string]string{"AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "s"}, "mine"},
		{nil, nil, "AWS_ACCESS_KEY_ID"},
		{nil, map[string]string{"AWS_ACCESS_KEY_ID": "mine"}, "AWS_SECRET_ACCESS_KEY"},
	} {
		got, err := credentials(c.endpoint, func(name string) string { return c.env[name] })(t.Context())
		if err != nil && !strings.Contains(err.Error(), c.want) || err == nil && got.AccessKeyID != c.want {
			t.Errorf("%v with %v: %q, %v; want %q", c.endpoint, c.env, got.AccessKeyID, err, c.want)
		}
	}
}
