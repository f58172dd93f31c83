package bellwether_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file is the fleet of the tests. A process is a Cache of its own with its own way to
// one store and one locker, all in one bubble: what goes wrong goes wrong for one process or
// for all, at a chosen moment, and bubble time tells how long each caller waited.

// A fault is what happens to an engine's call before the engine gets it. An
// error comes back in the place of the engine's answer.
type fault func(ctx context.Context, op string) error

var errRefused = errors.New("connection refused")

func refuse(context.Context, string) error { return errRefused }

func blackHole(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// on is f for some of the operations.
func on(f fault, ops ...string) fault {
	return func(ctx context.Context, op string) error {
		for _, o := range ops {
			if o == op {
				return f(ctx, op)
			}
		}
		return nil
	}
}

func answer(err error) fault { return func(context.Context, string) error { return err } }

// A wire is one process's way to one engine.
type wire struct {
	mu    sync.Mutex // guards all
	f     fault
	calls map[string]int
	total int
}

func (w *wire) set(f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.f = f
}

// spinning is how many calls of one process no test comes near. Whoever makes
// more is slowed down, so that a loop without a pause ends in a failed test and
// not in a bubble whose time stands still.
const spinning = 5000

func (w *wire) call(ctx context.Context, op string) error {
	w.mu.Lock()
	if w.calls == nil {
		w.calls = map[string]int{}
	}
	w.calls[op]++
	w.total++
	n, f := w.total, w.f
	w.mu.Unlock()
	if n > spinning {
		time.Sleep(50 * time.Millisecond)
	}
	if f == nil {
		return nil
	}
	return f(ctx, op)
}

// faults makes the calls of ops without counting them.
func (w *wire) faults(ctx context.Context, ops []string) error {
	w.mu.Lock()
	f := w.f
	w.mu.Unlock()
	for _, op := range ops {
		if f == nil {
			return nil
		}
		if err := f(ctx, op); err != nil {
			return err
		}
	}
	return nil
}

// count returns how many calls there were of ops, of all if none are given.
func (w *wire) count(ops ...string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(ops) == 0 {
		return w.total
	}
	n := 0
	for _, op := range ops {
		n += w.calls[op]
	}
	return n
}

func (w *wire) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.calls)
	w.total = 0
}

type wiredStore struct {
	*wire
	store  bellwether.Store
	limit  func(bellwether.Entry) error            // refuses entries; set before use
	tamper atomic.Pointer[func(*bellwether.Entry)] // changes what Get and Claim return
	reply  atomic.Int64                            // nanoseconds that a reply of Get is under way
}

func (s *wiredStore) tampered(e bellwether.Entry) bellwether.Entry {
	if f := s.tamper.Load(); f != nil {
		(*f)(&e)
	}
	return e
}

func (s *wiredStore) Get(ctx context.Context, key string) (bellwether.Entry, error) {
	if err := s.call(ctx, "get"); err != nil {
		return bellwether.Entry{}, err
	}
	e, err := s.store.Get(ctx, key)
	time.Sleep(time.Duration(s.reply.Load()))
	return s.tampered(e), err
}

func (s *wiredStore) Claim(ctx context.Context, key string) (bellwether.Entry, uint64, error) {
	if err := s.call(ctx, "claim"); err != nil {
		return bellwether.Entry{}, 0, err
	}
	e, epoch, err := s.store.Claim(ctx, key)
	return s.tampered(e), epoch, err
}

func (s *wiredStore) Commit(ctx context.Context, key string, e bellwether.Entry) error {
	if err := s.call(ctx, "commit"); err != nil {
		return err
	}
	if err := s.refused(e); err != nil {
		return err
	}
	return s.store.Commit(ctx, key, e)
}

// refused is why an entry is not taken, nil if it is.
func (s *wiredStore) refused(e bellwether.Entry) error {
	if s.limit == nil {
		return nil
	}
	return s.limit(e)
}

func (s *wiredStore) Invalidate(ctx context.Context, key string) error {
	if err := s.call(ctx, "invalidate"); err != nil {
		return err
	}
	return s.store.Invalidate(ctx, key)
}

type wiredLocker struct {
	*wire
	locker interface {
		bellwether.Locker
		bellwether.Watcher
	}
	watch atomic.Pointer[func() (<-chan struct{}, error)] // in the place of the engine's Watch
	held  atomic.Pointer[func(*bellwether.HeldError) error]
}

func (l *wiredLocker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (bellwether.Lease, error) {
	if err := l.call(ctx, "acquire"); err != nil {
		return nil, err
	}
	lease, err := l.locker.TryAcquire(ctx, key, ttl)
	if err != nil {
		if f := l.held.Load(); f != nil {
			if held, ok := errors.AsType[*bellwether.HeldError](err); ok {
				return nil, (*f)(held)
			}
		}
		return nil, err
	}
	return &wiredLease{l.wire, lease}, nil
}

func (l *wiredLocker) Watch(ctx context.Context, held *bellwether.HeldError) (<-chan struct{}, error) {
	if err := l.call(ctx, "watch"); err != nil {
		return nil, err
	}
	if f := l.watch.Load(); f != nil {
		return (*f)()
	}
	return l.locker.Watch(ctx, held)
}

// A wiredEngine is a store that is the locker too. A fault of any of the requests that it
// makes in one is a fault of the one.
type wiredEngine struct {
	*wiredStore
	locker *wiredLocker
}

func (e wiredEngine) TryAcquire(ctx context.Context, key string, ttl time.Duration) (bellwether.Lease, error) {
	return e.locker.TryAcquire(ctx, key, ttl)
}

func (e wiredEngine) Watch(ctx context.Context, held *bellwether.HeldError) (<-chan struct{}, error) {
	return e.locker.Watch(ctx, held)
}

// call is one request that stands for a reading or writing of the store and one of the locker.
func (e wiredEngine) call(ctx context.Context, op string, ofStore, ofLocker []string) error {
	if err := e.wiredStore.call(ctx, op); err != nil {
		return err
	}
	if err := e.wiredStore.faults(ctx, ofStore); err != nil {
		return err
	}
	return e.locker.faults(ctx, ofLocker)
}

func (e wiredEngine) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (bellwether.Election, error) {
	if err := e.call(ctx, "elect", []string{"get", "claim"}, []string{"acquire"}); err != nil {
		return bellwether.Election{}, err
	}
	won, err := e.store.(bellwether.Elector).Elect(ctx, key, past, ttl)
	won.Entry = e.tampered(won.Entry)
	if won.Lease != nil {
		won.Lease = &wiredLease{e.locker.wire, won.Lease}
	}
	return won, err
}

func (e wiredEngine) CommitAndRelease(ctx context.Context, key string, entry bellwether.Entry, lease bellwether.Lease) error {
	if err := e.call(ctx, "commit and release", []string{"commit"}, []string{"release"}); err != nil {
		return err
	}
	if err := e.refused(entry); err != nil {
		return err
	}
	return e.store.(bellwether.Elector).CommitAndRelease(ctx, key, entry, lease.(*wiredLease).lease)
}

type wiredLease struct {
	*wire
	lease bellwether.Lease
}

func (l *wiredLease) Renew(ctx context.Context, ttl time.Duration) error {
	if err := l.call(ctx, "renew"); err != nil {
		return err
	}
	return l.lease.Renew(ctx, ttl)
}

func (l *wiredLease) Release(ctx context.Context) error {
	if err := l.call(ctx, "release"); err != nil {
		return err
	}
	return l.lease.Release(ctx)
}

// A source makes values v1, v2, ... in the order in which their loads begin.
type source struct {
	mu    sync.Mutex // guards all
	build time.Duration
	fail  func(n int) error // nil for a load that succeeds
	deaf  bool              // loads do not heed their context
	// lifeless values are over when they are made. Set before use.
	lifeless bool
	loads    int
	running  map[string]map[int]context.Context // by key and load
	most     int                                // loads of one key at a time, the cancelled ones not counted
	all      int                                // running, the cancelled ones counted
	mostAll  int
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
		if other.Err() == nil { // else it is nobody's any more
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
	if o.lifeless {
		bellwether.SetFreshness(ctx, bellwether.Freshness{})
	}
	return "v" + strconv.Itoa(n), nil
}

func (o *source) set(f func(o *source)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(o)
}

// count returns how many loads there were, and how many of one key at a time.
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

// A way is how a process learns of what others do.
type way int

const (
	push    way = iota // its locker pushes
	poll               // it does not
	notices            // it does, and so does its store
	atOnce             // its store is its locker too, and pushes leases' ends
)

// A notifyingStore is a store whose notices go over the same wire.
type notifyingStore struct{ *wiredStore }

func (s notifyingStore) Notify(ctx context.Context, f func(bellwether.Notice)) {
	s.store.(bellwether.Notifier).Notify(ctx, func(n bellwether.Notice) {
		sent := time.Now()
		s.mu.Lock()
		fault := s.f
		s.mu.Unlock()
		if fault != nil && fault(ctx, "notice") != nil {
			return // lost
		}
		if n.Entry.Epoch != 0 {
			n.Entry.Age += time.Since(sent)
			n.Entry = s.tampered(n.Entry)
		}
		f(n)
	})
}

// newFleet starts n processes.
func newFleet(t *testing.T, n int, by way, o bellwether.Options) *fleet {
	t.Helper()
	f := &fleet{origin: &source{build: time.Second}, store: memstore.New(), locker: locallock.New()}
	for range n {
		p := &process{
			store:  &wiredStore{wire: &wire{}, store: f.store},
			locker: &wiredLocker{wire: &wire{}, locker: f.locker},
		}
		o.Store, o.Locker = p.store, p.locker
		switch by {
		case poll:
			o.Locker = struct{ bellwether.Locker }{p.locker}
		case notices:
			o.Store = notifyingStore{p.store}
		case atOnce:
			p.locker.locker = f.store
			engine := wiredEngine{p.store, p.locker}
			o.Store, o.Locker = engine, engine
		}
		p.Cache = cacheOf(t, f.origin.load, o)
		f.processes = append(f.processes, p)
	}
	return f
}

func (f *fleet) each(do func(p *process)) {
	for _, p := range f.processes {
		do(p)
	}
}

// get asks every process for key, by m callers each, and returns when all have
// their answers.
func (f *fleet) get(m int, key string) *outcome {
	return callAll(f.processes, m, key)
}

// An outcome is what the callers of one moment got.
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

// wantLoads checks how many loads there have been.
func (f *fleet) wantLoads(t *testing.T, want int) {
	t.Helper()
	if got, _ := f.origin.count(); got != want {
		t.Errorf("%d loads, want %d", got, want)
	}
}

func everyWay(t *testing.T, test func(t *testing.T, by way)) {
	for by, name := range []string{"push", "poll", "notices", "at once"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, way(by)) })
		})
	}
}

// A sixteenth of the build time, with the quarter of jitter on top.
func pollLag(build time.Duration) time.Duration { return max(build/16*5/4, 3*time.Millisecond) }

// pause stops a process: its load stands still, and its lease is not renewed,
// until resume is called.
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

// gone checks that no process serves v any more, for a while.
func (f *fleet) gone(t *testing.T, key, v string) {
	t.Helper()
	for range 40 {
		f.each(func(p *process) {
			// A caller takes what is there, or does not wait.
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if got, err := p.Get(ctx, key); err == nil && got == v {
				t.Fatalf("a process serves %s, loaded before the invalidation", v)
			}
		})
		time.Sleep(100 * time.Millisecond)
	}
}

// recovers checks that two seconds after the faults have ended, one load is
// enough for the fleet.
func (f *fleet) recovers(t *testing.T) {
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
		t.Errorf("with the engines back: %v", got.count)
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

// survives runs the calling test again in a process of its own, and fails if
// that does. It returns true in that process.
func survives(t *testing.T) bool {
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
