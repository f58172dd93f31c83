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

	"go.uber.org/goleak"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/observe"
)

// A fleet is real processes (the test binary, executed again) around real engines, with the test as
// the one origin. This file is both sides of it.

// Main is the TestMain of a package with fleet tests, and the program of the worker processes. It needs
// the kinds of all fleets. In the test's process it also checks for leaked goroutines.
func Main(m *testing.M, kinds ...Kind) {
	if config := os.Getenv(fleetEnv); config != "" {
		if err := work(config, kinds); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

type fleetConfig struct {
	Kind, Origin string
	Addrs        []string
	ID           int
	fleetOptions
}

// fleetOptions are the bellwether.Options that the tests vary.
type fleetOptions struct {
	TTL, LeaseTTL, NearTTL, EngineTimeout time.Duration
	EarlyRefresh, Hedge, HedgeShare       float64
	MaxRebuilds, MaxQueued                int

	// Observed gives each worker an observer, for the order "told".
	Observed bool

	// metered gives each worker's servers meters, proxied each server one proxy for all workers.
	metered, proxied bool
}

// An order is one line to a worker; a report is its one line back.
type order struct {
	Do      string // herd, get, many, invalidate, drive, follow, fanout, stats, told
	Key     string
	Keys    []string // of many, and of herd instead of Key, one for each caller
	Callers int
	Each    bool          // of herd: each caller has its own key, which begins with Key
	For     time.Duration // of drive and follow: how long; of fanout: the duration of the load
	Every   time.Duration // of follow: how often
	At      time.Time     // of herd, many and fanout: the start; processes of one machine share a clock
	Spoil   time.Duration // of herd: how long after At this process invalidates the key, if not 0
}

type report struct {
	Values map[string]int  // answers of callers: value or error -> callers
	Took   []time.Duration // their waits
	Seen   []sighting      // by follow, in the order of the reads
	Load   time.Duration   // duration of this process's last load, 0 without a load since the last order
	Loaded time.Time       // its return
	AtOnce int             // the most concurrent loads since the last order
	Last   time.Time       // of herd: the last caller's answer
	Cut    string          // the cause of the last cancelled load's cancellation
	Told   told            // of told: the observer's records of the key
	Stats  observe.Stats
	Err    string
}

// A sighting is a run of one caller's reads with the same result.
type sighting struct {
	Value   string        // or error
	Last    time.Time     // start of the last read
	Longest time.Duration // the longest read; the first may have waited for the value
	Reads   int
}

// namespace is the workers', before every key in store and locker.
const namespace = "fleet"

func engineKey(key string) string { return namespace + ":" + key }

const fleetEnv = "BELLWETHER_FLEET_WORKER"

// work is a worker process: orders in, reports out, until its input ends.
func work(config string, kinds []Kind) error {
	var c fleetConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == c.Kind })
	if i < 0 {
		return fmt.Errorf("TestMain has not told Main of the kind %q", c.Kind)
	}
	store, locker, err := kinds[i].Open(c.Addrs, c.EngineTimeout)
	if err != nil {
		return err
	}
	o := bellwether.Options{
		TTL: c.TTL, Fleet: bellwether.Fleet{LeaseTTL: c.LeaseTTL, NearTTL: c.NearTTL, EngineTimeout: c.EngineTimeout, Store: store, Locker: locker, Namespace: namespace},
		EarlyRefresh: c.EarlyRefresh, Hedge: c.Hedge, HedgeShare: c.HedgeShare,
		Limits: bellwether.Limits{MaxRebuilds: c.MaxRebuilds, MaxQueued: c.MaxQueued},
	}
	if eng, ok := store.(driver.Elector); ok && any(locker) == any(store) {
		o.Fleet.Store, o.Fleet.Locker, o.Fleet.Engine = nil, nil, eng
	}
	var heard listener
	if c.Observed {
		o.Observers = []observe.Observer{heard.observer()}
	}
	if os.Getenv("BELLWETHER_FLEET_VERBOSE") != "" {
		o.OnError = func(key string, err error) { fmt.Fprintf(os.Stderr, "worker %d: %s: %v\n", c.ID, key, err) }
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	var load, running, most atomic.Int64
	var loaded atomic.Pointer[time.Time]
	var cut atomic.Pointer[string]
	one := func(ctx context.Context, key string) (bellwether.Result[string], error) {
		start, n := time.Now(), running.Add(1)
		for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
		}
		defer func() {
			end := time.Now()
			running.Add(-1)
			load.Store(int64(end.Sub(start)))
			loaded.Store(&end)
			if cause := context.Cause(ctx); cause != nil {
				text := cause.Error()
				cut.Store(&text)
			}
		}()
		req, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("%s/%s?worker=%d", c.Origin, key, c.ID), nil)
		if err != nil {
			return bellwether.Result[string]{}, err
		}
		res, err := client.Do(req)
		if err != nil {
			return bellwether.Result[string]{}, err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err == nil && res.StatusCode != http.StatusOK {
			return bellwether.Result[string]{}, errors.New(string(b))
		}
		result := bellwether.Result[string]{Value: string(b)}
		if ttl, err := time.ParseDuration(res.Header.Get(ttlHeader)); err == nil {
			result.Freshness = &bellwether.Freshness{TTL: ttl, StaleIfError: staleIfError}
		}
		return result, err
	}
	cache := bellwether.NewBatchLoader(together(one), o)
	defer cache.Close()

	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	out.Encode(report{}) // ready
	for in.Scan() {
		var do order
		if err := json.Unmarshal(in.Bytes(), &do); err != nil {
			return err
		}
		load.Store(0)
		most.Store(running.Load())
		var r report
		switch do.Do {
		case "many":
			r = getMany(cache, do)
		case "told":
			r.Told = heard.of(do.Key)
		default:
			r = obey(cache, do)
		}
		if why := cut.Load(); why != nil {
			r.Cut = *why
		}
		r.AtOnce = int(most.Load())
		if r.Load = time.Duration(load.Load()); r.Load > 0 {
			r.Loaded = *loaded.Load()
		}
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	return in.Err()
}

// together makes a load of many keys from a load of one, with concurrent requests to the origin.
func together(one func(ctx context.Context, key string) (bellwether.Result[string], error)) func(ctx context.Context, requests []bellwether.Request[string]) (map[string]bellwether.Result[string], error) {
	return func(ctx context.Context, requests []bellwether.Request[string]) (map[string]bellwether.Result[string], error) {
		var mu sync.Mutex
		results, failed := map[string]bellwether.Result[string]{}, map[string]error{}
		var wg sync.WaitGroup
		for _, r := range requests {
			wg.Go(func() {
				result, err := one(ctx, r.Key)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					failed[r.Key] = err
					return
				}
				results[r.Key] = result
			})
		}
		wg.Wait()
		return results, &bellwether.BatchError{Errors: failed}
	}
}

func getMany(cache *bellwether.Cache[string], do order) report {
	time.Sleep(time.Until(do.At))
	values, err := cache.GetMany(context.Background(), do.Keys)
	r := report{Values: map[string]int{}, Stats: cache.Stats()}
	for _, v := range values {
		r.Values[v]++
	}
	if failed, ok := errors.AsType[*bellwether.BatchError](err); ok {
		for key, err := range failed.Errors {
			r.Values[fmt.Sprintf("error: %s: %v", key, err)]++
		}
	}
	return r
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
		// Each caller writes to its own place: a lock here would be part of the measurement.
		values, took := make([]string, do.Callers), make([]time.Duration, do.Callers)
		gate := make(chan struct{})
		for i := range do.Callers {
			key := do.Key
			switch {
			case do.Each:
				key += strconv.Itoa(i)
			case len(do.Keys) > 0:
				key = do.Keys[i]
			}
			wg.Go(func() {
				<-gate
				start := time.Now()
				v, err := cache.Get(ctx, key)
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
		r.Last = time.Now()
		for _, v := range values {
			r.Values[v]++
		}
		r.Took = took
	case "drive": // callers one after another, each on a few keys
		end := time.Now().Add(do.For)
		for range do.Callers {
			wg.Go(func() {
				for i := 0; time.Now().Before(end); i++ {
					get(do.Key + strconv.Itoa(i%4))
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
	case "follow": // one caller, again and again
		for end := time.Now().Add(do.For); time.Now().Before(end); time.Sleep(do.Every) {
			start := time.Now()
			v, err := cache.Get(ctx, do.Key)
			took := time.Since(start)
			if err != nil {
				v = "error: " + err.Error()
			}
			last := len(r.Seen) - 1
			if last < 0 || r.Seen[last].Value != v {
				r.Seen = append(r.Seen, sighting{Value: v})
				last++
			}
			s := &r.Seen[last]
			s.Last, s.Longest = start, max(s.Longest, took)
			s.Reads++
		}
	case "fanout":
		// The same herd in memory alone: the first caller begins a load of do.For, whose channel answers all.
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

// A worker is the test's side of a process.
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

// An origin counts and answers the loads of a fleet: the nth load of a key gets "key#n" after delay.
type origin struct {
	*httptest.Server
	delay  atomic.Int64
	ttl    atomic.Int64                        // of the values; 0: as in the options
	fails  atomic.Pointer[string]              // prefix of the keys whose loads fail; nil: none
	onLoad atomic.Pointer[func(worker, n int)] // called when a load has begun

	mu       sync.Mutex
	loads    map[string]int // by key
	running  map[string]int // by worker and key
	doubled  []string       // workers with two concurrent loads of a key
	together map[string]int // running loads, by key
	most     map[string]int // their maximum
}

const (
	ttlHeader = "Bellwether-Ttl"
	// staleIfError is the window of values with a TTL of the origin.
	staleIfError = time.Minute
)

func newOrigin(t *testing.T) *origin {
	o := &origin{
		loads: map[string]int{}, running: map[string]int{},
		together: map[string]int{}, most: map[string]int{},
	}
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
		o.together[key]++
		o.most[key] = max(o.most[key], o.together[key])
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
		o.together[key]--
		o.mu.Unlock()
		if prefix := o.fails.Load(); prefix != nil && strings.HasPrefix(key, *prefix) {
			http.Error(w, "the origin fails", http.StatusServiceUnavailable)
			return
		}
		if ttl := time.Duration(o.ttl.Load()); ttl > 0 {
			w.Header().Set(ttlHeader, ttl.String())
		}
		fmt.Fprintf(w, "%s#%d", key, n)
	}))
	t.Cleanup(o.Close)
	return o
}

func (o *origin) noneDoubled(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.doubled) > 0 {
		t.Errorf("loads of one key at one time in one process: %v", o.doubled)
	}
}

func noneFailed(t *testing.T, r report) {
	t.Helper()
	for v, n := range r.Values {
		if strings.HasPrefix(v, "error") {
			t.Errorf("%d callers failed: %s", n, v)
		}
	}
}

func (o *origin) count(key string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.loads[key]
}

type fleet struct {
	t       *testing.T
	origin  *origin
	servers []*testserver.Server // in the order of Kind.Start
	workers []*worker
	meters  [][]*testserver.Meter // by worker, in front of servers; nil if not metered
	proxies []*testserver.Proxy   // in front of servers; nil if not proxied
}

// elector is the electing server. With a single server it is the store's too.
func (f *fleet) elector() *testserver.Server { return f.servers[len(f.servers)-1] }

func newFleet(t *testing.T, kind Kind, n int, o fleetOptions) *fleet {
	t.Helper()
	f := &fleet{t: t, origin: newOrigin(t), servers: kind.Start(t)}
	var addrs []string
	for _, s := range f.servers {
		addr := s.Addr
		if o.proxied {
			p := testserver.NewProxy(t, addr)
			f.proxies, addr = append(f.proxies, p), p.Addr
		}
		addrs = append(addrs, addr)
	}
	if o.TTL == 0 {
		o.TTL = time.Minute
	}
	for id := range n {
		if o.metered {
			var meters []*testserver.Meter
			for i, s := range f.servers {
				meters = append(meters, testserver.NewMeter(t, s))
				addrs[i] = meters[i].Addr
			}
			f.meters = append(f.meters, meters)
		}
		config, err := json.Marshal(fleetConfig{Kind: kind.Name, Addrs: addrs, Origin: f.origin.URL, ID: id, fleetOptions: o})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fleetEnv+"="+string(config),
			"GORACE=atexit_sleep_ms=0") // by default the race detector delays every exit by a second
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
	// Warm up connections, scripts and subscriptions: all processes wait once on a key. The load takes
	// a while, or the last processes would find the value without waiting.
	f.origin.delay.Store(int64(100 * time.Millisecond))
	f.all(order{Do: "herd", Key: "warm-up", Callers: 2, At: time.Now().Add(50 * time.Millisecond)})
	f.origin.delay.Store(0)
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

func (f *fleet) living() (n int) {
	for _, w := range f.workers {
		if !w.dead.Load() {
			n++
		}
	}
	return n
}

// each gives every living worker its own order, all at one time, and returns their reports by worker.
func (f *fleet) each(o func(id int) order) []report {
	reports := make([]report, len(f.workers))
	var wg sync.WaitGroup
	for id, w := range f.workers {
		if !w.dead.Load() {
			wg.Go(func() { reports[id] = w.do(o(id)) })
		}
	}
	wg.Wait()
	return reports
}

// all gives every living worker the order at one time and adds up their reports.
func (f *fleet) all(o order) report { return sum(f.each(func(int) order { return o })) }

func sum(reports []report) report {
	sum := report{Values: map[string]int{}}
	for _, r := range reports {
		for v, n := range r.Values {
			sum.Values[v] += n
		}
		sum.Took = append(sum.Took, r.Took...)
		sum.Seen = append(sum.Seen, r.Seen...)
		sum.Load = max(sum.Load, r.Load)
		sum.Stats.Misses += r.Stats.Misses
		sum.Stats.Collapsed += r.Stats.Collapsed
		sum.Stats.Loads += r.Stats.Loads
		sum.Stats.Waits += r.Stats.Waits
		sum.Stats.Hedges += r.Stats.Hedges
		sum.Stats.Fenced += r.Stats.Fenced
		sum.Stats.LeasesLost += r.Stats.LeasesLost
		sum.Stats.Degraded += r.Stats.Degraded
	}
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
