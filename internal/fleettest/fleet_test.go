package fleettest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/memcachelock"
	"github.com/bellwether-go/bellwether/lockers/redislock"
	"github.com/bellwether-go/bellwether/stores/memcachestore"
	"github.com/bellwether-go/bellwether/stores/redisstore"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/go-redis/v9"
)

// A fleet is real processes (this test binary, executed again) around a real
// engine, with one origin, which the test is.

// fleetConfig is what a worker process is told at its start.
type fleetConfig struct {
	Engine, Addr, Origin string
	ID                   int
	fleetOptions
}

// fleetOptions are the bellwether.Options that the tests vary.
type fleetOptions struct {
	TTL, LeaseTTL, NearTTL, EngineTimeout time.Duration
}

// An order is one line to a worker; a report is its one line back.
type order struct {
	Do      string // herd, get, invalidate, drive, fanout, stats
	Key     string
	Callers int
	For     time.Duration // of drive: how long; of fanout: what the load takes
	At      time.Time     // of herd and fanout: when to begin; processes of one machine share a clock
	Spoil   time.Duration // of herd: how long after At this process invalidates the key, if not 0
}

type report struct {
	Values map[string]int  // what callers got: value or error -> callers
	Took   []time.Duration // their waits
	Load   time.Duration   // how long this process's last load took, 0 if none ran since the last order
	Stats  bellwether.Stats
	Err    string
}

const fleetEnv = "BELLWETHER_FLEET_WORKER"

// silence is a logger for go-redis, which logs by itself.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// work is a worker process: orders in, reports out, until its input ends.
func work(config string) error {
	var c fleetConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	o := bellwether.Options{TTL: c.TTL, LeaseTTL: c.LeaseTTL, NearTTL: c.NearTTL, EngineTimeout: c.EngineTimeout}
	switch c.Engine {
	case "redis":
		redis.SetLogger(silence{}) // its dials fail in the tests that kill the server
		rdb := redis.NewClient(&redis.Options{Addr: c.Addr, ContextTimeoutEnabled: true})
		o.Store, o.Locker = redisstore.New(rdb), redislock.New(rdb)
	case "memcached":
		mc := memcache.New(c.Addr)
		mc.MaxIdleConns = 64
		o.Store, o.Locker = memcachestore.New(mc), memcachelock.New(mc)
	}
	if os.Getenv("BELLWETHER_FLEET_VERBOSE") != "" {
		o.OnError = func(key string, err error) { fmt.Fprintf(os.Stderr, "worker %d: %s: %v\n", c.ID, key, err) }
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	var load atomic.Int64
	cache := bellwether.New(func(ctx context.Context, key string) (string, error) {
		start := time.Now()
		defer func() { load.Store(int64(time.Since(start))) }()
		req, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("%s/%s?worker=%d", c.Origin, key, c.ID), nil)
		if err != nil {
			return "", err
		}
		res, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return string(b), err
	}, o)
	defer cache.Close()

	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	out.Encode(report{}) // ready
	for in.Scan() {
		var do order
		if err := json.Unmarshal(in.Bytes(), &do); err != nil {
			return err
		}
		load.Store(0)
		r := obey(cache, do)
		r.Load = time.Duration(load.Load())
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	return in.Err()
}

func obey(cache *bellwether.Cache[string], do order) report {
	ctx := context.Background()
	var mu sync.Mutex
	r := report{Values: map[string]int{}}
	get := func(key string) {
		start := time.Now()
		v, err := cache.Get(ctx, key)
		took := time.Since(start)
		if err != nil {
			v = "error: " + err.Error()
		}
		mu.Lock()
		defer mu.Unlock()
		r.Values[v]++
		r.Took = append(r.Took, took)
	}
	var wg sync.WaitGroup
	switch do.Do {
	case "herd":
		// Each caller writes to a place of its own: a lock here would be part
		// of what is measured.
		values, took := make([]string, do.Callers), make([]time.Duration, do.Callers)
		gate := make(chan struct{})
		for i := range do.Callers {
			wg.Go(func() {
				<-gate
				start := time.Now()
				v, err := cache.Get(ctx, do.Key)
				took[i] = time.Since(start)
				if values[i] = v; err != nil {
					values[i] = "error: " + err.Error()
				}
			})
		}
		time.Sleep(time.Until(do.At))
		close(gate)
		if do.Spoil > 0 {
			time.Sleep(do.Spoil)
			if err := cache.Invalidate(ctx, do.Key); err != nil {
				r.Err = err.Error()
			}
		}
		wg.Wait()
		for _, v := range values {
			r.Values[v]++
		}
		r.Took = took
	case "drive": // callers that come one after another, each on a few keys
		end := time.Now().Add(do.For)
		for range do.Callers {
			wg.Go(func() {
				for i := 0; time.Now().Before(end); i++ {
					get(do.Key + strconv.Itoa(i%4))
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
	case "fanout":
		// The same herd in memory alone: the first caller begins a load of
		// do.For, and all are handed its one value by a channel.
		took := make([]time.Duration, do.Callers)
		gate, done := make(chan struct{}), make(chan struct{})
		load := sync.OnceFunc(func() { time.AfterFunc(do.For, func() { close(done) }) })
		for i := range do.Callers {
			wg.Go(func() {
				<-gate
				start := time.Now()
				load()
				<-done
				took[i] = time.Since(start)
			})
		}
		time.Sleep(time.Until(do.At))
		close(gate)
		wg.Wait()
		r.Took = took
	case "get":
		get(do.Key)
	case "invalidate":
		if err := cache.Invalidate(ctx, do.Key); err != nil {
			r.Err = err.Error()
		}
	}
	wg.Wait()
	r.Stats = cache.Stats()
	return r
}

// A worker is one process as the test sees it.
type worker struct {
	t     *testing.T
	cmd   *exec.Cmd
	mu    sync.Mutex // one order at a time
	in    *json.Encoder
	stdin io.Closer
	out   *json.Decoder
	dead  atomic.Bool
}

func (w *worker) do(o order) report {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.in.Encode(o); err != nil {
		w.t.Errorf("order %s: %v", o.Do, err)
		return report{}
	}
	var r report
	if err := w.out.Decode(&r); err != nil && !w.dead.Load() {
		w.t.Errorf("report on %s: %v", o.Do, err)
	}
	return r
}

func (w *worker) signal(sig syscall.Signal) { syscall.Kill(w.cmd.Process.Pid, sig) }

func (w *worker) kill() {
	w.dead.Store(true)
	w.signal(syscall.SIGKILL)
}

// An origin counts and answers the loads of a fleet: the nth load of a key gets
// "key#n" after delay.
type origin struct {
	*httptest.Server
	delay  atomic.Int64
	onLoad atomic.Pointer[func(worker, n int)] // called when a load has begun

	mu      sync.Mutex
	loads   map[string]int // by key
	running map[string]int // by worker and key
	doubled []string       // workers that loaded a key twice at one time
}

func newOrigin(t *testing.T) *origin {
	o := &origin{loads: map[string]int{}, running: map[string]int{}}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, _ := strconv.Atoi(r.URL.Query().Get("worker"))
		key := strings.TrimPrefix(r.URL.Path, "/")
		who := fmt.Sprint(key, " by worker ", id)
		o.mu.Lock()
		o.loads[key]++
		n := o.loads[key]
		if o.running[who]++; o.running[who] > 1 {
			o.doubled = append(o.doubled, who)
		}
		o.mu.Unlock()
		if f := o.onLoad.Load(); f != nil {
			(*f)(id, n)
		}
		select {
		case <-time.After(time.Duration(o.delay.Load())):
		case <-r.Context().Done():
		}
		o.mu.Lock()
		o.running[who]--
		o.mu.Unlock()
		fmt.Fprintf(w, "%s#%d", key, n)
	}))
	t.Cleanup(o.Close)
	return o
}

func (o *origin) count(key string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.loads[key]
}

type fleet struct {
	t       *testing.T
	origin  *origin
	server  *testserver.Server
	workers []*worker
}

var engines = map[string]func(testing.TB, ...string) *testserver.Server{
	"redis":     testserver.Redis,
	"memcached": testserver.Memcached,
}

func newFleet(t *testing.T, engine string, n int, o fleetOptions) *fleet {
	t.Helper()
	f := &fleet{t: t, origin: newOrigin(t), server: engines[engine](t)}
	if o.TTL == 0 {
		o.TTL = time.Minute
	}
	for id := range n {
		config, err := json.Marshal(fleetConfig{Engine: engine, Addr: f.server.Addr, Origin: f.origin.URL, ID: id, fleetOptions: o})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fleetEnv+"="+string(config))
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w := &worker{t: t, cmd: cmd, in: json.NewEncoder(stdin), stdin: stdin, out: json.NewDecoder(stdout)}
		var ready report
		if err := w.out.Decode(&ready); err != nil {
			t.Fatalf("worker %d did not start: %v", id, err)
		}
		f.workers = append(f.workers, w)
		t.Cleanup(func() {
			w.dead.Store(true)
			stdin.Close() // the worker ends with its input
			w.signal(syscall.SIGCONT)
			if !waitFor(10*time.Second, func() bool { return w.cmd.ProcessState != nil || exited(w.cmd) }) {
				w.signal(syscall.SIGKILL)
			}
			w.cmd.Wait()
		})
	}
	// Connections, scripts and the subscription are set up before anything is
	// measured: everybody waits once on a key of its own kind.
	f.all(order{Do: "herd", Key: "warm-up", Callers: 2, At: time.Now().Add(50 * time.Millisecond)})
	time.Sleep(200 * time.Millisecond) // real subscriptions come up
	return f
}

// exited reports whether the process has ended, without reaping it.
func exited(cmd *exec.Cmd) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	return err != nil || strings.Contains(string(b), ") Z ")
}

func waitFor(limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return ok()
}

// all gives every living worker the order at one time and adds their reports up.
func (f *fleet) all(o order) report {
	var mu sync.Mutex
	sum := report{Values: map[string]int{}}
	var wg sync.WaitGroup
	for _, w := range f.workers {
		if w.dead.Load() {
			continue
		}
		wg.Go(func() {
			r := w.do(o)
			mu.Lock()
			defer mu.Unlock()
			for v, n := range r.Values {
				sum.Values[v] += n
			}
			sum.Took = append(sum.Took, r.Took...)
			sum.Load = max(sum.Load, r.Load)
			sum.Stats.Fenced += r.Stats.Fenced
			sum.Stats.LeasesLost += r.Stats.LeasesLost
			sum.Stats.Degraded += r.Stats.Degraded
		})
	}
	wg.Wait()
	return sum
}

func (f *fleet) herd(key string, callers int) report {
	return f.all(order{Do: "herd", Key: key, Callers: callers, At: time.Now().Add(100 * time.Millisecond)})
}

func percentile(took []time.Duration, p float64) time.Duration {
	if len(took) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(took))
	return s[min(len(s)-1, int(p*float64(len(s))))]
}

func eachEngine(t *testing.T, test func(t *testing.T, engine string)) {
	for engine := range engines {
		t.Run(engine, func(t *testing.T) { test(t, engine) })
	}
}

func TestFleet_ColdKey(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		f := newFleet(t, engine, 3, fleetOptions{})
		f.origin.delay.Store(int64(300 * time.Millisecond))
		for round := range 3 {
			key := fmt.Sprint("cold", round)
			r := f.herd(key, 200)
			if r.Values[key+"#1"] != 600 || f.origin.count(key) != 1 {
				t.Errorf("%d loads, answers %v; want 1 load for 600 callers", f.origin.count(key), r.Values)
			}
			t.Logf("p50 %v, p99 %v", percentile(r.Took, .5), percentile(r.Took, .99))
		}
	})
}

func TestFleet_HolderKilled(t *testing.T) {
	const lease, build = time.Second, 300 * time.Millisecond
	eachEngine(t, func(t *testing.T, engine string) {
		f := newFleet(t, engine, 3, fleetOptions{LeaseTTL: lease})
		f.origin.delay.Store(int64(build))
		var killed atomic.Int64
		kill := func(id, n int) {
			if n == 1 {
				killed.Store(time.Now().UnixNano())
				f.workers[id].kill()
			}
		}
		f.origin.onLoad.Store(&kill)
		r := f.herd("k", 200)
		took := time.Since(time.Unix(0, killed.Load()))
		// Everybody who is alive gets the value of the one takeover.
		if r.Values["k#2"] != 400 || f.origin.count("k") != 2 {
			t.Errorf("%d loads, answers %v; want 1 takeover that answers 400", f.origin.count("k"), r.Values)
		}
		if limit := lease + build + time.Second; took > limit {
			t.Errorf("takeover took %v, want at most %v", took, limit)
		}
		t.Logf("value %v after the kill", took)
	})
}

func TestFleet_HolderPausedPastItsLease(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		f := newFleet(t, engine, 3, fleetOptions{LeaseTTL: time.Second, NearTTL: 50 * time.Millisecond})
		f.origin.delay.Store(int64(200 * time.Millisecond))
		paused := make(chan int, 1)
		pause := func(id, n int) {
			if n == 1 {
				f.workers[id].signal(syscall.SIGSTOP)
				paused <- id
			}
		}
		f.origin.onLoad.Store(&pause)

		var wg sync.WaitGroup
		got := make([]report, 3)
		at := time.Now().Add(100 * time.Millisecond)
		for i, w := range f.workers {
			wg.Go(func() { got[i] = w.do(order{Do: "herd", Key: "k", Callers: 50, At: at}) })
		}
		holder := <-paused
		// The others take over and have the newer value; then the holder wakes
		// up with the older one in its hands.
		if !waitFor(10*time.Second, func() bool { return f.origin.count("k") == 2 }) {
			t.Fatal("nobody took over")
		}
		time.Sleep(time.Second)
		f.workers[holder].signal(syscall.SIGCONT)
		wg.Wait()
		for i, r := range got {
			if r.Values["k#2"] != 50 {
				t.Errorf("worker %d (holder %d) answered %v, want only the newer value", i, holder, r.Values)
			}
		}
		for range 20 {
			if r := f.all(order{Do: "get", Key: "k"}); r.Values["k#2"] != 3 {
				t.Fatalf("after the newer value: %v", r.Values)
			}
		}
		if n := f.origin.count("k"); n != 2 {
			t.Errorf("%d loads, want 2", n)
		}
		r := f.all(order{Do: "stats"})
		if r.Stats.Fenced+r.Stats.LeasesLost == 0 {
			t.Error("neither a fenced commit nor a lost lease: the pause did not happen")
		}
		t.Logf("fenced %d, leases lost %d", r.Stats.Fenced, r.Stats.LeasesLost)
	})
}

func TestFleet_InvalidateDuringRebuild(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		f := newFleet(t, engine, 3, fleetOptions{NearTTL: 50 * time.Millisecond})
		f.origin.delay.Store(int64(500 * time.Millisecond))
		for _, where := range []string{"elsewhere", "in the rebuilding process"} {
			key := strings.ReplaceAll(where, " ", "-")
			asking := f.workers[:2]
			o := order{Do: "herd", Key: key, Callers: 50, At: time.Now().Add(50 * time.Millisecond)}
			if where != "elsewhere" {
				asking, o.Spoil = f.workers[:1], 200*time.Millisecond
			}
			var wg sync.WaitGroup
			got := make([]report, len(asking))
			for i, w := range asking {
				wg.Go(func() { got[i] = w.do(o) })
			}
			if where == "elsewhere" {
				if !waitFor(5*time.Second, func() bool { return f.origin.count(key) == 1 }) {
					t.Fatal("no load")
				}
				time.Sleep(100 * time.Millisecond)
				if r := f.workers[2].do(order{Do: "invalidate", Key: key}); r.Err != "" {
					t.Fatal(r.Err)
				}
			}
			wg.Wait()
			for i, r := range got {
				if r.Values[key+"#2"] != 50 || r.Err != "" {
					t.Errorf("invalidated %s: worker %d answered %v, %s; want only what was loaded after it", where, i, r.Values, r.Err)
				}
			}
			for range 10 {
				if r := f.all(order{Do: "get", Key: key}); r.Values[key+"#2"] != 3 {
					t.Fatalf("served after the invalidation: %v", r.Values)
				}
			}
			if n := f.origin.count(key); n != 2 {
				t.Errorf("invalidated %s: %d loads, want 2", where, n)
			}
		}
	})
}

func TestFleet_EngineKilledUnderLoad(t *testing.T) {
	const build, timeout = 50 * time.Millisecond, 500 * time.Millisecond
	eachEngine(t, func(t *testing.T, engine string) {
		f := newFleet(t, engine, 3, fleetOptions{TTL: 500 * time.Millisecond, EngineTimeout: timeout, LeaseTTL: time.Second})
		if !f.server.Own() {
			t.Fatal("this test kills its engine and needs one of its own: unset BELLWETHER_REDIS and BELLWETHER_MEMCACHED")
		}
		f.origin.delay.Store(int64(build))
		done := make(chan report)
		go func() { done <- f.all(order{Do: "drive", Key: "hot", Callers: 20, For: 6 * time.Second}) }()
		time.Sleep(1500 * time.Millisecond)
		f.server.Kill()
		time.Sleep(2500 * time.Millisecond)
		f.server.Start()
		r := <-done
		for v, n := range r.Values {
			if strings.HasPrefix(v, "error") {
				t.Errorf("%d callers failed: %s", n, v)
			}
		}
		f.origin.mu.Lock()
		if len(f.origin.doubled) > 0 {
			t.Errorf("loads of one key at one time in one process: %v", f.origin.doubled)
		}
		f.origin.mu.Unlock()
		// One time-out, one build, and what a busy machine adds.
		if worst := percentile(r.Took, 1); worst > timeout+build+time.Second {
			t.Errorf("the slowest of %d callers took %v", len(r.Took), worst)
		}
		if r.Stats.Degraded == 0 {
			t.Error("no load ran without the engine: the outage did not happen")
		}
		t.Logf("%d calls, slowest %v, %d loads without the engine", len(r.Took), percentile(r.Took, 1), r.Stats.Degraded)
		// Back to one load per fleet by itself, within seconds.
		recovered := false
		for round := 0; round < 10 && !recovered; round++ {
			key := fmt.Sprint("after", round)
			recovered = f.herd(key, 50).Values[key+"#1"] == 150 && f.origin.count(key) == 1
			time.Sleep(300 * time.Millisecond)
		}
		if !recovered {
			t.Error("4 s after the engine came back there is still more than one load per fleet")
		}
	})
}

func TestFleet_BlackHole(t *testing.T) {
	eachEngine(t, func(t *testing.T, engine string) {
		f := newFleet(t, engine, 2, fleetOptions{TTL: 500 * time.Millisecond, LeaseTTL: time.Second})
		if !f.server.Own() {
			t.Fatal("this test stops its engine and needs one of its own")
		}
		f.origin.delay.Store(int64(50 * time.Millisecond))
		f.server.Signal(syscall.SIGSTOP)
		r := f.all(order{Do: "drive", Key: "hot", Callers: 10, For: 4 * time.Second})
		f.server.Signal(syscall.SIGCONT)
		slow := 0
		for _, took := range r.Took {
			if took > 400*time.Millisecond {
				slow++
			}
		}
		for v := range r.Values {
			if strings.HasPrefix(v, "error") {
				t.Errorf("a caller failed: %s", v)
			}
		}
		// Only those who meet the closed or half-open breaker pay the time-out.
		if slow*5 > len(r.Took) || percentile(r.Took, 1) > 2*time.Second {
			t.Errorf("%d of %d calls paid a time-out, the slowest took %v", slow, len(r.Took), percentile(r.Took, 1))
		}
		t.Logf("%d of %d calls paid a time-out, slowest %v", slow, len(r.Took), percentile(r.Took, 1))
	})
}

var errNoStats = errors.New("no commandstats in INFO")

// commands returns how often the server has run each command, those inside
// scripts included.
func commands(t *testing.T, addr string) map[string]int {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	info, err := rdb.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		calls, _, _ := strings.Cut(rest, ",")
		counts[name], _ = strconv.Atoi(calls)
	}
	if len(counts) == 0 {
		t.Fatal(errNoStats)
	}
	return counts
}
