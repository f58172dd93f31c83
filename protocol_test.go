package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
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

// This file attacks the protocol between processes. A process is a Cache of
// its own with its own way to one store and one locker, all in one bubble: what
// goes wrong goes wrong for one process or for all, at a chosen moment, and
// bubble time tells exactly how long anybody waited.

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
	return s.store.Commit(ctx, key, e)
}

func (s *wiredStore) Invalidate(ctx context.Context, key string) error {
	if err := s.call(ctx, "invalidate"); err != nil {
		return err
	}
	return s.store.Invalidate(ctx, key)
}

type wiredLocker struct {
	*wire
	locker *locallock.Locker
	watch  atomic.Pointer[func() (<-chan struct{}, error)] // in the place of the engine's Watch
	held   atomic.Pointer[func(*bellwether.HeldError) error]
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

// An origin makes values v1, v2, ... in the order in which their loads begin.
type origin struct {
	mu      sync.Mutex // guards all
	build   time.Duration
	fail    func(n int) error // nil for a load that succeeds
	deaf    bool              // loads do not heed their context
	loads   int
	running map[string]int // by key, the cancelled ones not counted
	most    int            // loads of one key at a time
	all     int            // running, the cancelled ones counted
	mostAll int
	began   map[int]time.Time
}

func (o *origin) load(ctx context.Context, key string) (string, error) {
	o.mu.Lock()
	o.loads++
	n := o.loads
	if o.running == nil {
		o.running, o.began = map[string]int{}, map[int]time.Time{}
	}
	o.began[n] = time.Now()
	o.running[key]++
	o.all++
	o.most, o.mostAll = max(o.most, o.running[key]), max(o.mostAll, o.all)
	build, fail, deaf := o.build, o.fail, o.deaf
	o.mu.Unlock()
	leave := sync.OnceFunc(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.running[key]--
	})
	// A load whose context has ended is nobody's any more.
	defer context.AfterFunc(ctx, leave)()
	defer func() {
		leave()
		o.mu.Lock()
		defer o.mu.Unlock()
		o.all--
	}()
	if n > spinning {
		time.Sleep(50 * time.Millisecond)
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

func (o *origin) set(f func(o *origin)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(o)
}

// count returns how many loads there were, and how many of one key at a time.
func (o *origin) count() (loads, most int) {
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
	origin    *origin
	store     *memstore.Store
	locker    *locallock.Locker
	processes []*process
}

// newFleet starts n processes. With polling their lockers' Watch is hidden.
func newFleet(t *testing.T, n int, polling bool, o bellwether.Options) *fleet {
	t.Helper()
	f := &fleet{origin: &origin{build: time.Second}, store: memstore.New(), locker: locallock.New()}
	for range n {
		p := &process{
			store:  &wiredStore{wire: &wire{}, store: f.store},
			locker: &wiredLocker{wire: &wire{}, locker: f.locker},
		}
		o.Store, o.Locker = p.store, p.locker
		if polling {
			o.Locker = struct{ bellwether.Locker }{p.locker}
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

func both(t *testing.T, test func(t *testing.T, polling bool)) {
	for name, polling := range map[string]bool{"push": false, "poll": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, polling) })
		})
	}
}

// A sixteenth of the build time, with the quarter of jitter on top.
func pollLag(build time.Duration) time.Duration { return max(build/16*5/4, 3*time.Millisecond) }

func TestFleet_OneLoadForAll(t *testing.T) {
	both(t, func(t *testing.T, polling bool) {
		const n, m, build = 5, 400, 2 * time.Second
		f := newFleet(t, n, polling, bellwether.Options{})
		f.origin.build = build
		got := f.get(m, "k")
		f.wantLoads(t, 1)
		if polling {
			if len(got.failed) > 0 || got.values["v1"] != n*m || got.slowest > build+pollLag(build) {
				t.Errorf("%v, slowest %v", got.count, got.slowest)
			}
		} else {
			got.want(t, n*m, "v1", nil, build)
		}
		calls := 0
		f.each(func(p *process) { calls += p.store.count() + p.locker.count() })
		if most := map[bool]int{false: 40, true: n * 90}[polling]; calls > most {
			t.Errorf("%d calls of engines, want at most %d", calls, most)
		}
		f.get(m, "k").want(t, n*m, "v1", nil, 0)
	})
}

func TestFleet_SlowLoadIsRenewed(t *testing.T) {
	both(t, func(t *testing.T, polling bool) {
		f := newFleet(t, 3, polling, bellwether.Options{LeaseTTL: time.Second, RebuildTimeout: time.Minute})
		f.origin.build = 20 * time.Second
		got := f.get(10, "k")
		if got.values["v1"] != 30 || got.slowest > 21*time.Second {
			t.Errorf("%v, slowest %v", got.count, got.slowest)
		}
		f.wantLoads(t, 1)
		f.each(func(p *process) {
			if n := p.store.count() + p.locker.count(); n > 2500 {
				t.Errorf("%d calls of engines in 20 s", n)
			}
		})
	})
}

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

func TestFleet_HolderIsPausedPastItsLease(t *testing.T) {
	both(t, func(t *testing.T, polling bool) {
		f := newFleet(t, 5, polling, bellwether.Options{LeaseTTL: 2 * time.Second, RebuildTimeout: time.Minute, MaxWait: time.Minute})
		a, others := f.processes[0], f.processes[1:]
		f.origin.set(func(o *origin) { o.build, o.deaf = 10*time.Second, true })
		first := make(chan string)
		go func() {
			v, err := a.Get(t.Context(), "k")
			if err != nil {
				t.Error(err)
			}
			first <- v
		}()
		synctest.Wait() // a's load v1 runs
		resume := pause(a)
		f.origin.set(func(o *origin) { o.build, o.deaf = time.Second, false })
		got := callAll(others, 100, "k")
		if got.values["v2"] != 400 || len(got.failed) != 0 {
			t.Fatalf("answers %v, want the takeover's", got.count)
		}
		if most := 2*time.Second + 2*time.Second/64 + time.Second + pollLag(3*time.Second); got.slowest > most {
			t.Errorf("slowest %v, want at most %v", got.slowest, most)
		}
		f.wantLoads(t, 2)
		time.Sleep(20 * time.Second) // v1 is done, and cannot be committed yet
		resume()
		if v := <-first; v != "v2" {
			t.Errorf("the paused holder's caller got %s, want the newer value", v)
		}
		time.Sleep(2 * time.Second)
		if got := f.get(10, "k"); got.values["v2"] != 50 {
			t.Errorf("afterwards %v, want v2", got.count)
		}
		f.wantLoads(t, 2)
	})
}

// The late commit reaches the store and is refused.
func TestFleet_LateCommitIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, false, bellwether.Options{LeaseTTL: 2 * time.Second})
		a, b := f.processes[0], f.processes[1]
		late := make(chan struct{})
		a.locker.set(on(refuse, "renew"))
		a.store.set(on(func(context.Context, string) error { <-late; return nil }, "commit"))
		first := make(chan string)
		go func() {
			v, _ := a.Get(t.Context(), "k")
			first <- v
		}()
		time.Sleep(time.Second)
		if v, err := b.Get(t.Context(), "k"); v != "v2" || err != nil {
			t.Fatalf("b's Get = %q, %v", v, err)
		}
		close(late)
		if v := <-first; v != "v2" || a.Stats().Fenced != 1 {
			t.Errorf("a's Get = %q with %d commits fenced; want v2 and 1", v, a.Stats().Fenced)
		}
		f.wantLoads(t, 2)
	})
}

func TestFleet_HangingHolderIsReplacedByOne(t *testing.T) {
	both(t, func(t *testing.T, polling bool) {
		f := newFleet(t, 6, polling, bellwether.Options{LeaseTTL: 2 * time.Second, MaxWait: time.Minute})
		a, others := f.processes[0], f.processes[1:]
		f.origin.set(func(o *origin) { o.build = time.Hour })
		go a.Get(context.Background(), "k")
		synctest.Wait()
		a.locker.set(blackHole) // dead to the world
		a.store.set(blackHole)
		f.origin.set(func(o *origin) { o.build = time.Second })
		got := callAll(others, 50, "k")
		if got.values["v2"] != 250 {
			t.Errorf("answers %v", got.count)
		}
		f.wantLoads(t, 2)
	})
}

func TestFleet_FailureIsShared(t *testing.T) {
	for name, test := range map[string]struct {
		fail func(int) error
		text string
	}{
		"error":  {func(int) error { return errOrigin }, errOrigin.Error()},
		"panic":  {func(int) error { panic("oh no") }, "oh no"},
		"goexit": {func(int) error { runtime.Goexit(); return nil }, bellwether.ErrGoexit.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, polling bool) {
				const n, m = 5, 50
				f := newFleet(t, n, polling, bellwether.Options{ErrorTTL: 4 * time.Second})
				f.origin.fail = test.fail
				begin := time.Now()
				got := f.get(m, "k")
				if len(got.failed) != n*m || got.slowest > time.Second+pollLag(time.Second) {
					t.Fatalf("answers %v", got.count)
				}
				remote := 0
				for _, err := range got.failed {
					if r, ok := errors.AsType[*bellwether.RemoteError](err); ok && strings.Contains(r.Message, test.text) {
						remote++
					} else if !strings.Contains(err.Error(), test.text) {
						t.Fatalf("err = %v", err)
					}
				}
				if remote != (n-1)*m {
					t.Errorf("%d callers got a RemoteError, want those of %d processes", remote, n-1)
				}
				f.wantLoads(t, 1)

				// One try after each back-off in the whole fleet, and the
				// back-off doubles.
				last := 1
				var ends []time.Duration
				for len(ends) < 5 {
					f.get(2, "k")
					if loads, _ := f.origin.count(); loads > last {
						if loads != last+1 {
							t.Fatalf("%d loads at one time", loads-last)
						}
						last = loads
						ends = append(ends, time.Since(begin))
					}
					time.Sleep(50 * time.Millisecond)
				}
				from := time.Second
				for i, at := range ends {
					full := 4 * time.Second << i
					// The load itself takes a second more.
					if gap := at - from - time.Second; gap < full/2 || gap > full+time.Second {
						t.Errorf("pause %d was %v, want %v to %v", i, gap, full/2, full)
					}
					from = at
				}
				// What is remembered is forgotten by a success.
				f.origin.set(func(o *origin) { o.fail = nil })
				time.Sleep(2 * time.Minute)
				if got := f.get(2, "k"); len(got.failed) > 0 || len(got.values) != 1 {
					t.Errorf("after the failures %v", got.count)
				}
				f.wantLoads(t, last+1)
			})
		})
	}
}

func TestFleet_ContextErrorIsNotShared(t *testing.T) {
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
		both(t, func(t *testing.T, polling bool) {
			f := newFleet(t, 3, polling, bellwether.Options{ErrorTTL: time.Hour})
			f.origin.fail = func(n int) error {
				if n == 1 {
					return fmt.Errorf("query: %w", cause)
				}
				return nil
			}
			got := f.get(10, "k")
			if len(got.failed) != 10 || got.values["v2"] != 20 {
				t.Errorf("answers %v, want the one process's failure and the next one's value", got.count)
			}
			f.wantLoads(t, 2)
			if got := f.get(10, "k"); got.values["v2"] != 30 {
				t.Errorf("then %v", got.count)
			}
		})
	}
}

// A load that runs into RebuildTimeout has failed for everybody. Otherwise each
// process takes its turn to hang.
func TestFleet_HangingOriginIsNotQueuedFor(t *testing.T) {
	both(t, func(t *testing.T, polling bool) {
		f := newFleet(t, 5, polling, bellwether.Options{RebuildTimeout: 3 * time.Second, ErrorTTL: 10 * time.Second, MaxWait: time.Minute})
		f.origin.set(func(o *origin) { o.build = time.Hour })
		got := f.get(10, "k")
		if got.slowest > 3*time.Second+pollLag(3*time.Second) {
			t.Errorf("the slowest caller waited %v for a rebuild of 3s: %v", got.slowest, got.count)
		}
		f.wantLoads(t, 1)
	})
}

// Stale values are served at once while another process rebuilds, and cost the
// engines next to nothing.
func TestFleet_StaleWhileAnotherRebuilds(t *testing.T) {
	both(t, func(t *testing.T, polling bool) {
		f := newFleet(t, 4, polling, bellwether.Options{TTL: 10 * time.Second, StaleWhileRevalidate: time.Hour})
		f.get(1, "k")
		time.Sleep(10 * time.Second)
		f.each(func(p *process) { p.store.reset(); p.locker.reset() })
		f.origin.set(func(o *origin) { o.build = 20 * time.Second })
		for range 200 { // for 10 s
			f.get(5, "k").want(t, 20, "v1", nil, 0)
			time.Sleep(50 * time.Millisecond)
		}
		f.wantLoads(t, 2)
		f.each(func(p *process) {
			most := 30 // a flight, a look a second, renewals
			if polling {
				most = 150
			}
			if n := p.store.count() + p.locker.count(); n > most {
				t.Errorf("%d calls of engines for 1000 stale hits in 10 s, want at most %d", n, most)
			}
			if s := p.Stats(); s.Misses > 12 {
				t.Errorf("%d flights", s.Misses)
			}
		})
		time.Sleep(12 * time.Second)
		f.get(5, "k").want(t, 20, "v2", nil, 0)
		f.wantLoads(t, 2)
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
				t.Fatalf("a process serves %s %v after NearTTL", v, time.Second)
			}
		})
		time.Sleep(100 * time.Millisecond)
	}
}

func TestFleet_InvalidationReachesTheOthers(t *testing.T) {
	both(t, func(t *testing.T, polling bool) {
		f := newFleet(t, 3, polling, bellwether.Options{TTL: time.Hour, NearTTL: time.Second})
		f.origin.build = 10 * time.Millisecond
		f.get(1, "k")
		time.Sleep(time.Minute)
		f.get(1, "k") // trusted again
		if err := f.processes[0].Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		f.get(10, "k").want(t, 30, "v2", nil, f.origin.build)
	})
}

// The trust in an entry begins when it was asked for. Counted from the reply,
// a slow store would stretch the time in which an invalidation gets round.
func TestFleet_InvalidationWhileAReplyIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, false, bellwether.Options{TTL: time.Hour, NearTTL: time.Second})
		a, b := f.processes[0], f.processes[1]
		a.Get(t.Context(), "k")
		b.store.reply.Store(int64(400 * time.Millisecond))
		go b.Get(t.Context(), "k") // the store has answered, the answer is on its way
		time.Sleep(time.Millisecond)
		a.Invalidate(t.Context(), "k")
		time.Sleep(time.Second)
		if v, err := b.Get(t.Context(), "k"); v != "v2" || err != nil {
			t.Errorf("Get = %q, %v NearTTL after the invalidation", v, err)
		}
	})
}

// An Invalidate in one process while a rebuild runs in this or another: what
// that rebuild makes is nobody's.
func TestFleet_InvalidateDuringARebuild(t *testing.T) {
	for name, rebuilder := range map[string]int{"here": 0, "there": 1} {
		for _, deaf := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s deaf=%t", name, deaf), func(t *testing.T) {
				both(t, func(t *testing.T, polling bool) {
					f := newFleet(t, 3, polling, bellwether.Options{NearTTL: time.Second})
					f.origin.set(func(o *origin) { o.build, o.deaf = 4*time.Second, deaf })
					done := make(chan string)
					go func() {
						v, _ := f.processes[rebuilder].Get(t.Context(), "k")
						done <- v
					}()
					time.Sleep(2 * time.Second)
					f.processes[0].Invalidate(t.Context(), "k")
					if v := <-done; v == "v1" {
						t.Errorf("the rebuild's caller got %s, loaded before the invalidation", v)
					}
					f.gone(t, "k", "v1")
					time.Sleep(10 * time.Second)
					if got := f.get(1, "k"); len(got.values) != 1 || got.values["v2"] != 3 {
						t.Errorf("afterwards %v", got.count)
					}
				})
			})
		}
	}
}

// A stale value that was invalidated elsewhere is not offered to those who come
// later, however long the rebuild behind it takes: neither by the process that
// rebuilds nor by one that waits.
func TestFleet_InvalidateWhileStaleIsServed(t *testing.T) {
	both(t, func(t *testing.T, polling bool) {
		f := newFleet(t, 3, polling, bellwether.Options{TTL: 10 * time.Second, StaleWhileRevalidate: time.Hour, NearTTL: time.Second})
		f.get(1, "k")
		time.Sleep(10 * time.Second)
		f.origin.set(func(o *origin) { o.build = 20 * time.Second })
		rebuilder, waiter := f.processes[1], f.processes[2]
		for _, p := range []*process{rebuilder, waiter} {
			if v, _ := p.Get(t.Context(), "k"); v != "v1" {
				t.Fatalf("Get = %q, want the stale value", v)
			}
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		f.processes[0].Invalidate(t.Context(), "k")
		time.Sleep(time.Second + 1)
		for i, p := range []*process{rebuilder, waiter} {
			for range 5 {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				if v, err := p.Get(ctx, "k"); err == nil {
					t.Errorf("%s: Get = %q NearTTL after its invalidation in another process", []string{"rebuilder", "waiter"}[i], v)
				}
				cancel()
				time.Sleep(time.Second)
			}
		}
	})
}

// A failure that is not remembered is not committed, so nothing checks what is
// served in the place of its value.
func TestFleet_InvalidateDuringALoadThatFails(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		ttl   time.Duration
		build time.Duration
	}{
		"error":          {errOrigin, 0, 5 * time.Second},
		"not remembered": {errOrigin, -1, 5 * time.Second},
		"context error":  {context.DeadlineExceeded, 0, 5 * time.Second},
		"timeout":        {nil, 0, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 2, false, bellwether.Options{TTL: 10 * time.Second, StaleIfError: time.Hour, ErrorTTL: test.ttl, RebuildTimeout: 6 * time.Second})
				f.get(1, "k")
				time.Sleep(10 * time.Second)
				f.origin.set(func(o *origin) {
					o.build, o.fail = test.build, func(int) error { return test.err }
				})
				a, b := f.processes[0], f.processes[1]
				go b.Get(t.Context(), "k")
				time.Sleep(time.Second)
				a.Invalidate(t.Context(), "k")
				time.Sleep(2 * time.Second)
				if v, err := b.Get(t.Context(), "k"); err == nil {
					t.Errorf("Get = %q, invalidated before the call began", v)
				}
			})
		})
	}
}

// A failed load falls back on what the fleet holds, a new value after an
// outage of the store falls back on nothing older.
func TestFleet_OlderAfterNewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, false, bellwether.Options{TTL: 10 * time.Second, StaleWhileRevalidate: time.Hour})
		p := f.processes[0]
		p.Get(t.Context(), "k")
		time.Sleep(10 * time.Second)
		p.store.set(on(refuse, "commit"))
		p.Get(t.Context(), "k") // stale, and v2 behind it, which the store does not take
		time.Sleep(time.Second + 1)
		if v, _ := p.Get(t.Context(), "k"); v != "v2" {
			t.Fatalf("Get = %q, want v2", v)
		}
		p.store.set(nil)
		for range 30 {
			time.Sleep(100 * time.Millisecond)
			if v, err := p.Get(t.Context(), "k"); err != nil || version(v) < 2 {
				t.Fatalf("Get = %q, %v after v2 was served", v, err)
			}
		}
	})
}

// A value that is not to be kept leaves nothing older to be served after it.
func TestGet_ValueWithoutALifeEndsTheStaleOne(t *testing.T) {
	for _, stored := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var loads atomic.Int32
			o := bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, Patience: time.Minute}
			if stored {
				o.Store = memstore.New()
			}
			c := cacheOf(t, func(ctx context.Context, key string) (string, error) {
				n := loads.Add(1)
				if n > 1 {
					bellwether.SetFreshness(ctx, bellwether.Freshness{})
				}
				time.Sleep(time.Duration(n) * time.Millisecond)
				return fmt.Sprint("v", n), nil
			}, o)
			last := 0
			for range 4 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				v, err := c.Get(ctx, "k")
				cancel()
				if err != nil || version(v) <= last-1 {
					t.Errorf("stored=%t: Get = %q, %v after v%d", stored, v, err, last)
					break
				}
				last = version(v)
				time.Sleep(time.Second)
			}
			// Without patience what is there is served as it is.
			o.Patience = 0
			loads.Store(0)
			d := cacheOf(t, func(ctx context.Context, key string) (string, error) {
				n := loads.Add(1)
				if n > 1 {
					bellwether.SetFreshness(ctx, bellwether.Freshness{})
				}
				return fmt.Sprint("v", n), nil
			}, o)
			d.Get(t.Context(), "k2")
			time.Sleep(time.Second)
			d.Get(t.Context(), "k2") // v1, and v2 behind it
			synctest.Wait()
			if v, _ := d.Get(t.Context(), "k2"); v == "v1" {
				t.Errorf("stored=%t: Get = v1 after its successor was made", stored)
			}
		})
	}
}
