package bellwether_test

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file has the tests' fleet: processes in one bubble, with own connections to one store and one locker.

// A source makes values v1, v2, ... in the order in which their loads begin.
type source struct {
	mu    sync.Mutex // guards all fields
	build time.Duration
	fail  func(n int) error // returns the error of load n; nil if the load succeeds
	deaf  bool              // loads do not heed their context
	// nil: by the options; set before use
	freshness *bellwether.Freshness
	tags      func(key string) []string // tags of the values; nil: none. Set before use.
	loads     int
	running   map[string]map[int]context.Context // by key and load
	most      int                                // concurrent loads of one key, without the cancelled loads
	all       int                                // running loads, with the cancelled loads
	mostAll   int
}

func (o *source) load(ctx context.Context, key string) (string, error) {
	o.mu.Lock()
	o.loads++
	n := o.loads
	if o.running == nil {
		o.running = map[string]map[int]context.Context{}
	}
	if o.running[key] == nil {
		o.running[key] = map[int]context.Context{}
	}
	o.running[key][n] = ctx
	live := 0
	for _, other := range o.running[key] {
		if other.Err() == nil { // cancelled loads do not count
			live++
		}
	}
	o.all++
	o.most, o.mostAll = max(o.most, live), max(o.mostAll, o.all)
	build, fail, deaf := o.build, o.fail, o.deaf
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.running[key], n)
		o.all--
	}()
	if n > spinning {
		build = max(build, 50*time.Millisecond)
	}
	var cancelled <-chan struct{}
	if !deaf {
		cancelled = ctx.Done()
	}
	if build > 0 {
		select {
		case <-time.After(build):
		case <-cancelled:
			return "", context.Cause(ctx)
		}
	}
	if fail != nil {
		if err := fail(n); err != nil {
			return "", err
		}
	}
	return "v" + strconv.Itoa(n), nil
}

func (o *source) result(ctx context.Context, r bellwether.Request[string]) (bellwether.Result[string], error) {
	v, err := o.load(ctx, r.Key)
	result := bellwether.Result[string]{Value: v, Freshness: o.freshness}
	if o.tags != nil {
		result.Tags = o.tags(r.Key)
	}
	return result, err
}

func (o *source) set(f func(o *source)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(o)
}

// count returns the number of loads, and the most of one key at one time.
func (o *source) count() (loads, most int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.loads, o.most
}

func version(v string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(v, "v"))
	if err != nil {
		panic("not a value of the origin's: " + v)
	}
	return n
}

type process struct {
	*bellwether.Cache[string]
	store  *wiredStore
	locker *wiredLocker
}

type fleet struct {
	origin    *source
	store     *memstore.Store
	locker    *locallock.Locker
	processes []*process
}

// A way is how a process learns of other processes' commits and releases.
type way int

const (
	push    way = iota // the locker pushes
	poll               // the locker does not push
	notices            // the locker and the store push
	atOnce             // the store is the locker too, and pushes the ends of leases
)

func newFleet(t *testing.T, n int, by way, o bellwether.Options) *fleet {
	t.Helper()
	f := &fleet{origin: &source{build: time.Second}, store: memstore.New(), locker: locallock.New()}
	for range n {
		p := &process{
			store:  wiredTo(f.store),
			locker: wiredLocks(f.locker),
		}
		o.Fleet.Store, o.Fleet.Locker = p.store, p.locker
		switch by {
		case poll:
			o.Fleet.Locker = polling(p.locker)
		case notices:
			o.Fleet.Store = p.store.hearing()
		case atOnce:
			p.locker.locker = f.store
			o.Fleet.Store, o.Fleet.Locker, o.Fleet.Engine = nil, nil, wiredEngine{p.store, p.locker}
		}
		p.Cache = loaderOf(t, f.origin.result, o)
		f.processes = append(f.processes, p)
	}
	return f
}

func (f *fleet) each(do func(p *process)) {
	for _, p := range f.processes {
		do(p)
	}
}

func (f *fleet) get(m int, key string) *outcome {
	return callAll(f.processes, m, key)
}

type outcome struct {
	answers
	slowest time.Duration
	fastest time.Duration
	failed  []error
	values  map[string]int
}

func callAll(ps []*process, m int, key string) *outcome {
	out := &outcome{fastest: 1<<63 - 1, values: map[string]int{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := time.Now()
	for _, p := range ps {
		for range m {
			wg.Go(func() {
				v, err := p.Get(context.Background(), key)
				out.add(start, v, err)
				mu.Lock()
				defer mu.Unlock()
				took := time.Since(start)
				out.slowest, out.fastest = max(out.slowest, took), min(out.fastest, took)
				if err != nil {
					out.failed = append(out.failed, err)
				} else {
					out.values[v]++
				}
			})
		}
	}
	wg.Wait()
	return out
}

func (f *fleet) wantLoads(t *testing.T, want int) {
	t.Helper()
	if got, _ := f.origin.count(); got != want {
		t.Errorf("%d loads, want %d", got, want)
	}
}

// eventually waits for a condition, for at most 10 s.
func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Error("the condition does not hold after 10 s")
			return
		}
	}
}

func inBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// inBubbleBeside is inBubble in parallel with the other subtests, after their test has returned.
func inBubbleBeside(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, test)
	})
}

func everyWay(t *testing.T, test func(t *testing.T, by way)) {
	for by, name := range []string{"push", "poll", "notices", "at once"} {
		inBubbleBeside(t, name, func(t *testing.T) { test(t, way(by)) })
	}
}

// aloneAndInAFleet runs the test without engines, and with a store and a locker of its own.
func aloneAndInAFleet(t *testing.T, name string, test func(t *testing.T, fleet bellwether.Fleet)) {
	t.Helper()
	inBubble(t, name+", alone", func(t *testing.T) { test(t, bellwether.Fleet{}) })
	inBubble(t, name+", in a fleet", func(t *testing.T) {
		test(t, bellwether.Fleet{Store: memstore.New(), Locker: locallock.New(), Namespace: "test"})
	})
}

// pollLag is a sixteenth of the build time with a quarter of jitter.
func pollLag(build time.Duration) time.Duration { return max(build/16*5/4, 3*time.Millisecond) }

// takesNoValues has the store refuse values as too large. Set it before use.
func takesNoValues(p *process) {
	p.store.limit = func(e driver.Entry) error {
		if len(e.Value) > 0 {
			return driver.ErrTooLarge
		}
		return nil
	}
}

// losesCommits has the process's first n commits lost on their way to the store.
func (p *process) losesCommits(n int) {
	p.store.set(func(_ context.Context, op string) error {
		if op == "commit" && p.store.count("commit") <= n {
			return errRefused
		}
		return nil
	})
}

// pause blocks a process's calls of its engines until resume is called.
func pause(p *process) (resume func()) {
	gate := make(chan struct{})
	stop := func(context.Context, string) error { <-gate; return nil }
	p.store.set(stop)
	p.locker.set(stop)
	return sync.OnceFunc(func() {
		p.store.set(nil)
		p.locker.set(nil)
		close(gate)
	})
}

// wantNotServed checks for four seconds that no process serves v.
func (f *fleet) wantNotServed(t *testing.T, key, v string) {
	t.Helper()
	for range 40 {
		f.each(func(p *process) {
			// A caller does not wait for a rebuild.
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if got, err := p.Get(ctx, key); err == nil && got == v {
				t.Fatalf("a process serves %s, loaded before the invalidation", v)
			}
		})
		time.Sleep(100 * time.Millisecond)
	}
}

// wantRecovery ends the faults, and checks that one load is then enough for the fleet.
func (f *fleet) wantRecovery(t *testing.T) {
	t.Helper()
	f.each(func(p *process) { p.store.set(nil); p.locker.set(nil) })
	time.Sleep(2 * time.Second)
	for range 2 { // a probe may be due
		f.get(1, "probe"+t.Name())
		time.Sleep(2 * time.Second)
	}
	before, _ := f.origin.count()
	got := f.get(10, "after"+t.Name())
	if len(got.failed) > 0 || len(got.values) != 1 {
		t.Errorf("answers with the engines back: %v", got.count)
	}
	if loads, _ := f.origin.count(); loads != before+1 {
		t.Errorf("%d loads with the engines back, want 1", loads-before)
	}
	f.each(func(p *process) {
		if s := p.Stats(); !s.StoreUp || !s.LockerUp {
			t.Errorf("breakers: store up %t, locker up %t", s.StoreUp, s.LockerUp)
		}
	})
}

// inOwnProcess runs the calling test in a process of its own, where it returns true.
func inOwnProcess(t *testing.T) bool {
	if os.Getenv("BELLWETHER_ALONE") == t.Name() {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	cmd.Env = append(os.Environ(), "BELLWETHER_ALONE="+t.Name(), "GORACE=atexit_sleep_ms=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%.600s", err, out)
	}
	return false
}
