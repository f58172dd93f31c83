package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
	"go.uber.org/goleak"
)

// The tests here run processes with flags and real engines, in front of an upstream that counts.

// TestMain is also the program: the test binary, perhaps with the race detector, starts itself.
func TestMain(m *testing.M) {
	if program := os.Getenv("BELLWETHER_TEST_SERVER"); program != "" {
		go func() {
			io.Copy(io.Discard, os.Stdin) // ends with the test in any case
			os.Exit(99)
		}()
		os.Exit(programs[program](os.Args[1:], os.Stdout, os.Stderr))
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		f.Value.Set("4") // the tests mostly wait for processes
	}
	status := m.Run()
	client.CloseIdleConnections()
	if status == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	os.Exit(status)
}

// programs are the programs in the test binary: the server, and one for HTTP/2 without TLS too.
var programs = map[string]func(args []string, stdout, stderr io.Writer) int{
	"server": command, "both protocols": serveBothProtocols,
}

// client is the client of all tests. A request that hangs is a failure.
var client = &http.Client{
	Timeout:   20 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true},
}

// A process is a running server.
type process struct {
	addr, admin string
	cmd         *exec.Cmd
	ended       chan struct{} // closed when it has ended
	err         error         // of its end, set before ended is closed

	mu  sync.Mutex // guards log
	log bytes.Buffer
}

// start runs a server on free ports and waits until it listens.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startProgram(t, "server", args...)
}

// startProgram is start for any of the programs.
func startProgram(t *testing.T, program string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{ended: make(chan struct{})}
	p.cmd = exec.Command(self, append([]string{"-addr", "127.0.0.1:0", "-admin", "127.0.0.1:0"}, args...)...)
	p.cmd.Env = append(os.Environ(), "BELLWETHER_TEST_SERVER="+program,
		"GORACE=atexit_sleep_ms=0") // by default the race detector delays every exit by a second
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening := make(chan struct{})
	go func() {
		defer close(p.ended)
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			p.mu.Lock()
			fmt.Fprintln(&p.log, lines.Text())
			p.mu.Unlock()
			if addr, ok := field(lines.Text(), "msg=listening addr="); ok {
				p.addr = addr
			}
			if addr, ok := field(lines.Text(), `msg="admin listening" addr=`); ok {
				p.admin = addr
				close(listening) // the second of the two
			}
		}
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.ended
		stdin.Close()
		if strings.Contains(p.logged(), "DATA RACE") {
			t.Error("a race in the server")
		}
		if t.Failed() {
			t.Logf("log of process %d:\n%s", p.cmd.Process.Pid, p.logged())
		}
	})
	select {
	case <-listening:
	case <-p.ended:
		t.Fatalf("the server ended: %v\n%s", p.err, p.logged())
	case <-time.After(20 * time.Second):
		t.Fatalf("the server does not listen\n%s", p.logged())
	}
	return p
}

// field returns the word after prefix in a line.
func field(line, prefix string) (string, bool) {
	_, rest, ok := strings.Cut(line, prefix)
	word, _, _ := strings.Cut(rest, " ")
	return word, ok
}

func (p *process) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// says waits until the log has text.
func (p *process) says(t *testing.T, text string) {
	t.Helper()
	eventually(t, 10*time.Second, "the log says "+text, func() bool { return strings.Contains(p.logged(), text) })
}

func (p *process) end(t *testing.T) (status int, at time.Time) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the process does not end")
	}
	return p.cmd.ProcessState.ExitCode(), time.Now()
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func (p *process) stats(t *testing.T) report {
	t.Helper()
	a := do(http.MethodGet, "http://"+p.admin+"/stats")
	var r report
	if err := json.Unmarshal([]byte(a.body), &r); err != nil || a.status != http.StatusOK {
		t.Fatalf("/stats: %v, %v", a, err)
	}
	return r
}

type answer struct {
	status int
	header http.Header
	body   string
	took   time.Duration
	err    error
}

func (a answer) String() string { return fmt.Sprintf("%d %q %v", a.status, a.body, a.err) }

func do(method, url string, fields ...string) answer {
	began := time.Now()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		return answer{err: err}
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	r.Host = r.Header.Get("Host")
	resp, err := client.Do(r)
	if err != nil {
		return answer{err: err, took: time.Since(began)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body), time.Since(began), err}
}

// get asks for a page at the server's own address. The processes of a fleet share the page.
func (p *process) get(path string) answer {
	return do(http.MethodGet, "http://"+p.addr+path)
}

// herd makes n requests to each process at the same time, and counts each answer.
func herd(n int, path string, fleet ...*process) map[string]int {
	var (
		mu  sync.Mutex
		out = map[string]int{}
		wg  sync.WaitGroup
	)
	for _, p := range fleet {
		for range n {
			wg.Go(func() {
				a := p.get(path)
				mu.Lock()
				defer mu.Unlock()
				out[a.String()]++
			})
		}
	}
	wg.Wait()
	return out
}

// An origin is the upstream. It numbers the answers of each path.
type origin struct {
	*httptest.Server
	delay  atomic.Int64 // of an answer
	cached atomic.Value // the Cache-Control of the answers, a string

	mu    sync.Mutex // guards calls
	calls map[string]int
}

func newOrigin(t *testing.T, cacheControl string, delay time.Duration) *origin {
	o := &origin{calls: map[string]int{}}
	o.cached.Store(cacheControl)
	o.delay.Store(int64(delay))
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		o.calls[r.URL.Path]++
		n := o.calls[r.URL.Path]
		o.mu.Unlock()
		select {
		case <-time.After(time.Duration(o.delay.Load())):
		case <-r.Context().Done():
		}
		w.Header().Set("Cache-Control", o.cached.Load().(string))
		fmt.Fprintf(w, "%s %d", r.URL.Path, n)
	}))
	t.Cleanup(o.Close)
	return o
}

func (o *origin) count(path string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls[path]
}

// eventually waits for an effect of other processes.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// eachEngine runs a test with redis and with memcached as store and locker.
func eachEngine(t *testing.T, test func(t *testing.T, engine *testserver.Server, flags []string)) {
	for name, run := range map[string]func(testing.TB, ...string) *testserver.Server{
		"redis": testserver.Redis, "memcached": testserver.Memcached,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine := run(t)
			test(t, engine, []string{"-store", name, "-" + name, engine.Addr})
		})
	}
}

// unique separates the paths of this run from earlier runs', for engines that outlive a run.
var unique = fmt.Sprint("/", time.Now().UnixNano())

// Servers of different upstreams keep their pages apart on one engine, each under its namespace.
func TestServer_Namespace(t *testing.T) {
	eachEngine(t, func(t *testing.T, _ *testserver.Server, flags []string) {
		path := unique + "/namespace/" + flags[1]
		for _, want := range []int{1, 0} { // the second time each finds its own page
			for _, name := range []string{"one", "two"} {
				o := newOrigin(t, "max-age=3600", 0)
				p := start(t, slices.Concat(flags, []string{"-upstream", o.URL, "-namespace", name})...)
				if got := p.get(path); got.body != path+" 1" || o.count(path) != want {
					t.Errorf("%s: %v by %d calls of its upstream, want %d", name, got, o.count(path), want)
				}
			}
		}
	})
}

func TestServer_InvalidateReachesTheFleet(t *testing.T) {
	eachEngine(t, func(t *testing.T, _ *testserver.Server, flags []string) {
		o := newOrigin(t, "max-age=3600", 0)
		flags = append(flags, "-upstream", o.URL)
		a, b := start(t, flags...), start(t, flags...)
		path := unique + "/invalidate/" + flags[1]
		for _, p := range []*process{a, b, a, b} {
			if got := p.get(path); got.body != path+" 1" {
				t.Fatalf("before: %v", got)
			}
		}
		reply := do(http.MethodPost, "http://"+a.admin+"/invalidate?url="+path)
		if want := "http://localhost" + path; reply.status != http.StatusOK || !strings.Contains(reply.body, want) {
			t.Fatalf("POST /invalidate: %v, want %s in it", reply, want)
		}
		done := time.Now()
		if got := a.get(path); got.body != path+" 2" {
			t.Errorf("the process that was told: %v, want the second answer", got)
		}
		// The other process asks the store again after NearTTL, 1 s.
		eventually(t, 5*time.Second, "the other process serves the new answer", func() bool { return b.get(path).body == path+" 2" })
		if took := time.Since(done); took > 2*time.Second {
			t.Errorf("the other process followed after %v, want within about a second", took)
		}
		if n := o.count(path); n != 2 {
			t.Errorf("%d upstream calls, want 2", n)
		}
	})
}

func TestServer_EngineKilledUnderLoad(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine *testserver.Server, flags []string) {
		engine.OwnOrSkip(t)
		o := newOrigin(t, "max-age=1", 50*time.Millisecond)
		flags = append(flags, "-upstream", o.URL)
		fleet := []*process{start(t, flags...), start(t, flags...)}

		stop := make(chan struct{})
		var wg sync.WaitGroup
		var requests atomic.Int64
		for _, p := range fleet {
			for i := range 8 {
				wg.Go(func() {
					for n := i; ; n++ {
						select {
						case <-stop:
							return
						default:
						}
						a := p.get(fmt.Sprint("/load/", n%5))
						if a.status != http.StatusOK || a.err != nil || a.took > 3*time.Second {
							t.Errorf("%v after %v", a, a.took)
							return
						}
						requests.Add(1)
						time.Sleep(2 * time.Millisecond)
					}
				})
			}
		}
		time.Sleep(time.Second)
		engine.Kill()
		for _, p := range fleet {
			p.says(t, `msg="engine unreachable`)
		}
		time.Sleep(time.Second)
		engine.Start()
		for _, p := range fleet {
			p.says(t, `msg="engine answers again"`)
		}
		close(stop)
		wg.Wait()
		for _, p := range fleet {
			if lines := strings.Count(p.logged(), "\n"); lines > 12 {
				t.Errorf("%d lines of log for one outage and %d requests, want a handful", lines, requests.Load())
			}
			if s := p.stats(t); s.Degraded == 0 {
				t.Error("no rebuild ran without the engine: the outage did not happen")
			}
		}
		t.Logf("%d requests, none failed", requests.Load())
	})
}

func TestServer_TermDrains(t *testing.T) {
	p := start(t)
	slow := make(chan answer)
	go func() { slow <- p.get("/slow?delay=2s") }()
	eventually(t, 5*time.Second, "the slow page is being built", func() bool { return p.stats(t).Flights == 1 })
	if a := do(http.MethodGet, "http://"+p.admin+"/healthz"); a.status != http.StatusOK || a.body != "ok\n" {
		t.Errorf("/healthz while serving: %v, want 200 ok", a)
	}

	began := time.Now()
	p.signal(t, syscall.SIGTERM)
	eventually(t, time.Second, "/healthz is 503", func() bool {
		return do(http.MethodGet, "http://"+p.admin+"/healthz").status == http.StatusServiceUnavailable
	})
	if a := p.get("/fast"); a.err == nil {
		t.Errorf("a new connection while draining: %v, want none", a)
	}
	p.signal(t, syscall.SIGTERM) // changes nothing
	if a := <-slow; a.status != http.StatusOK || a.err != nil {
		t.Errorf("the running request: %v, want 200", a)
	}
	status, at := p.end(t)
	if took := at.Sub(began); status != 0 || took > 5*time.Second {
		t.Errorf("ended with status %d after %v, want 0 within 5s", status, took)
	}
}

func TestServer_TermCutsOffWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	p := start(t)
	slow := make(chan answer)
	go func() { slow <- p.get("/slow?delay=10s") }()
	eventually(t, 5*time.Second, "the slow page is being built", func() bool { return p.stats(t).Flights == 1 })
	began := time.Now()
	p.signal(t, syscall.SIGINT)
	status, at := p.end(t)
	if took := at.Sub(began); status != 0 || took > 5*time.Second {
		t.Errorf("ended with status %d after %v, want 0 within 5s", status, took)
	}
	if a := <-slow; a.err == nil && a.status == http.StatusOK {
		t.Errorf("the request that was cut off: %v", a)
	}
}

func TestServer_PortTaken(t *testing.T) {
	p := start(t)
	var stderr bytes.Buffer
	if status := command([]string{"-addr", p.addr}, io.Discard, &stderr); status != 1 || !strings.Contains(stderr.String(), "-addr") {
		t.Errorf("status %d, %q; want 1 and the flag's name", status, &stderr)
	}
}

func TestCommand_Refuses(t *testing.T) {
	for _, test := range []struct {
		args string
		want []string // in the one line
	}{
		{"-ttl soon", []string{`"soon"`, "-ttl", "duration"}},
		{"-ttl 10", []string{`"10"`, "-ttl", "unit"}},
		{"-ttl -1s", []string{`"-1s"`, "-ttl", "at least 0s"}},
		{"-stale-while-revalidate -1s", []string{"-stale-while-revalidate", "at least 0s"}},
		{"-stale-if-error x", []string{"-stale-if-error", "duration"}},
		{"-patience -1ms", []string{"-patience", "at least 0s"}},
		{"-max-wait 0s", []string{"-max-wait", "at least 1ms"}},
		{"-lease 0s", []string{"-lease", "at least 10ms"}},
		{"-rebuild-timeout 0", []string{"-rebuild-timeout", "at least 1ms"}},
		{"-engine-timeout 0s", []string{"-engine-timeout", "at least 1ms"}},
		{"-near-ttl 1", []string{"-near-ttl", "unit"}},
		{"-namespace a:b", []string{"-namespace", "a:b", "colon"}},
		{"-max-body 0", []string{"-max-body", "whole number", "at least 1"}},
		{"-max-body 8MB", []string{"-max-body", "8MB", "whole number"}},
		{"-max-rebuilds 1.5", []string{"-max-rebuilds", "whole number"}},
		{"-near-bytes -1", []string{"-near-bytes", "at least 1"}},
		{"-store disk", []string{"-store", "disk", "memory, memcached, redis"}},
		{"-locker zk", []string{"-locker", "zk", "zookeeper"}},
		{"-locker etcd", []string{"-locker etcd", "-store memory"}},
		{"-locker zookeeper", []string{"-locker zookeeper", "-store memory"}},
		{"-store redis -locker zookeeper -zookeeper nowhere", []string{"-zookeeper", "host:port"}},
		{"-locker dynamodb", []string{"-locker dynamodb", "-store memory"}},
		{"-locker redis", []string{"-locker redis", "-store memory"}},
		{"-redis localhost", []string{"-redis", "localhost", "host:port"}},
		{"-redis 127.0.0.1:6379,", []string{"-redis", "host:port"}},
		{"-memcached 127.0.0.1:99999", []string{"-memcached", "65535"}},
		{"-etcd x", []string{"-etcd", "host:port"}},
		{"-zookeeper x", []string{"-zookeeper", "host:port"}},
		{"-dynamodb x", []string{"-dynamodb", "http://"}},
		{"-dynamodb-table no/name", []string{"-dynamodb-table", "no/name", "3 to 255"}},
		{"-dynamodb-table ab", []string{"-dynamodb-table", "3 to 255"}},
		{"-upstream 127.0.0.1:80", []string{"-upstream", "127.0.0.1:80", "http://"}},
		{"-upstream ftp://host", []string{"-upstream", "ftp://host", "http://"}},
		{"-upstream http://user:word@host", []string{"-upstream", "without a user"}},
		{"-upstream http://host:99999", []string{"-upstream", "http://host:99999", "from 1 to 65535"}},
		{"-upstream https://[::1]:0/path", []string{"-upstream", "from 1 to 65535"}},
		{"-upstream http://host/?q=1", []string{"-upstream", "http://host/?q=1", "without a user, a query"}},
		{"-dynamodb http://host:65536", []string{"-dynamodb", "from 1 to 65535"}},
		{"-addr 8080", []string{"-addr", "8080", "host:port"}},
		{"-admin host:http", []string{"-admin", "host:port"}},
		{"-colour blue", []string{"-colour", "-h"}},
		{"-lease", []string{"-lease", "argument"}},
		{"serve", []string{`"serve"`, "unexpected argument"}},
	} {
		t.Run(test.args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := command(strings.Fields(test.args), &stdout, &stderr); got != 2 {
				t.Errorf("exit status %d, want 2", got)
			}
			line := stderr.String()
			for _, want := range test.want {
				if !strings.Contains(line, want) {
					t.Errorf("%q says nothing of %q", line, want)
				}
			}
			if strings.Count(line, "\n") != 1 || stdout.Len() > 0 {
				t.Errorf("stderr %q, stdout %q; want one line and nothing", line, &stdout)
			}
		})
	}
}

func TestParse_Upstream(t *testing.T) {
	for _, url := range []string{
		"http://host", "https://host", "http://host:", "http://host:1", "http://host:65535/", "http://host:8080/base%2Fpath",
		"http://[::1]", "http://[fe80::1%25eth0]:80", "http://host/?",
	} {
		if c, err := parse([]string{"-upstream", url}); err != nil || c.upstream.String() != url {
			t.Errorf("%s: %v, %v", url, c.upstream, err)
		}
	}
}

// An empty -addr would mean a random port on all addresses of the machine.
func TestCommand_RefusesNoAddress(t *testing.T) {
	if c, err := parse([]string{"-addr", ""}); err == nil || !strings.Contains(err.Error(), "host:port") {
		t.Errorf("%q, %v; want the error that says host:port", c.addr, err)
	}
	if c, err := parse([]string{"-admin", ""}); err != nil || c.admin != "" {
		t.Errorf("-admin: %q, %v; want none", c.admin, err)
	}
}

func TestCommand_Help(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if got := command([]string{"-h"}, &stdout, &stderr); got != 0 || stderr.Len() > 0 {
		t.Errorf("exit status %d, stderr %q; want 0 and nothing", got, &stderr)
	}
	flags := map[string]string{ // with their printed defaults
		"addr": "127.0.0.1:8080", "upstream": "empty", "store": "memory", "locker": "empty",
		"memcached": "127.0.0.1:11211", "redis": "127.0.0.1:6379", "etcd": "127.0.0.1:2379", "zookeeper": "127.0.0.1:2181",
		"dynamodb": "http://127.0.0.1:8000", "dynamodb-table": "bellwether", "ttl": "0s", "stale-while-revalidate": "0s", "stale-if-error": "0s",
		"patience": "0s", "max-wait": "35s", "lease": "5s", "rebuild-timeout": "30s", "max-body": "8388608",
		"max-rebuilds": "4096", "near-bytes": "67108864", "admin": "empty", "namespace": "empty", "engine-timeout": "500ms", "near-ttl": "1s",
		"error-ttl": "1s", "heuristic": "0", "set-cookie": "false", "any-language-order": "false", "unsafe-invalidation": "hard", "invalidate-locations": "false",
	}
	help := stdout.String()
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		_, rest, _ := strings.Cut(help, "\n  -"+name+" ")
		if text, _, _ := strings.Cut(rest, "\n  -"); !strings.Contains(text, "(default "+flags[name]+")") {
			t.Errorf("-%s: %q, want the default %s", name, text, flags[name])
		}
	}
	if n := strings.Count(help, "\n  -"); n != len(flags) {
		t.Errorf("%d flags in\n%s\nwant %d", n, help, len(flags))
	}
}

func TestParse_Defaults(t *testing.T) {
	for _, test := range []struct{ args, locker string }{
		{"", "local"}, {"-store memory", "local"}, {"-store memcached", "memcached"}, {"-store redis", "redis"},
		{"-store redis -locker memcached", "memcached"}, {"-store redis -locker local", "local"},
	} {
		c, err := parse(strings.Fields(test.args))
		if err != nil || c.locker != test.locker {
			t.Errorf("%q: locker %q, %v; want %q", test.args, c.locker, err, test.locker)
		}
	}
	c, err := parse(strings.Fields("-max-wait 3s -lease 2s -stale-while-revalidate 1m -redis a:1,b:2 -upstream https://host/base"))
	if err != nil || c.cache.MaxWait != 3*time.Second || c.cache.Fleet.LeaseTTL != 2*time.Second || c.cache.StaleWhileRevalidate != time.Minute ||
		!slices.Equal(c.redis, []string{"a:1", "b:2"}) || c.upstream.String() != "https://host/base" {
		t.Errorf("%+v, %v", c, err)
	}
	if c, _ = parse([]string{"-max-rebuilds", "128"}); c.cache.Limits.MaxRebuilds != 128 {
		t.Errorf("MaxRebuilds %d, want 128", c.cache.Limits.MaxRebuilds)
	}
	if c, _ = parse(nil); c.cache.MaxWait != 0 {
		t.Errorf("MaxWait %v without the flag; want 0, which the library adds up", c.cache.MaxWait)
	}
}
