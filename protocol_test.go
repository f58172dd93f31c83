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
	"unicode/utf8"

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
	if s.limit != nil {
		if err := s.limit(e); err != nil {
			return err
		}
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
	for by, name := range []string{"push", "poll", "notices"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, way(by)) })
		})
	}
}

// A sixteenth of the build time, with the quarter of jitter on top.
func pollLag(build time.Duration) time.Duration { return max(build/16*5/4, 3*time.Millisecond) }

func TestFleet_OneLoadForAll(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		const n, m, build = 5, 400, 2 * time.Second
		f := newFleet(t, n, by, bellwether.Options{})
		f.origin.build = build
		got := f.get(m, "k")
		f.wantLoads(t, 1)
		if by == poll {
			if len(got.failed) > 0 || got.values["v1"] != n*m || got.slowest > build+pollLag(build) {
				t.Errorf("%v, slowest %v", got.count, got.slowest)
			}
		} else {
			got.want(t, n*m, "v1", nil, build)
		}
		calls := 0
		f.each(func(p *process) { calls += p.store.count() + p.locker.count() })
		if most := map[way]int{push: 40, poll: n * 180, notices: 40}[by]; calls > most {
			t.Errorf("%d calls of engines, want at most %d", calls, most)
		}
		f.get(m, "k").want(t, n*m, "v1", nil, 0)
	})
}

func TestFleet_SlowLoadIsRenewed(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 3, by, bellwether.Options{LeaseTTL: time.Second, RebuildTimeout: time.Minute})
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
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 5, by, bellwether.Options{LeaseTTL: 2 * time.Second, RebuildTimeout: time.Minute, MaxWait: time.Minute})
		a, others := f.processes[0], f.processes[1:]
		f.origin.set(func(o *source) { o.build, o.deaf = 30*time.Second, true })
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
		f.origin.set(func(o *source) { o.build, o.deaf = time.Second, false })
		got := callAll(others, 100, "k")
		if got.values["v2"] != 400 || len(got.failed) != 0 {
			t.Fatalf("answers %v, want the takeover's", got.count)
		}
		if most := 2*time.Second + 2*time.Second/64 + time.Second + pollLag(3*time.Second); got.slowest > most {
			t.Errorf("slowest %v, want at most %v", got.slowest, most)
		}
		f.wantLoads(t, 2)
		time.Sleep(20 * time.Second)
		resume()
		if v := <-first; v != "v2" {
			t.Errorf("the paused holder's caller got %s, want the newer value", v)
		}
		time.Sleep(2 * time.Second)
		if got := f.get(10, "k"); got.values["v2"] != 50 {
			t.Errorf("afterwards %v, want v2", got.count)
		}
		f.wantLoads(t, 2)
		time.Sleep(10 * time.Second) // the first load is deaf to the end of its cache
	})
}

// The late commit reaches the store and is refused.
func TestFleet_LateCommitIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{LeaseTTL: 2 * time.Second})
		a, b := f.processes[0], f.processes[1]
		a.locker.set(on(refuse, "renew"))
		f.origin.set(func(o *source) { o.build = 10 * time.Second })
		first := make(chan string)
		go func() {
			v, _ := a.Get(t.Context(), "k")
			first <- v
		}()
		synctest.Wait()
		f.origin.set(func(o *source) { o.build = time.Second })
		if v, err := b.Get(t.Context(), "k"); v != "v2" || err != nil {
			t.Fatalf("b's Get = %q, %v", v, err)
		}
		if v := <-first; v != "v2" || a.Stats().Fenced != 1 {
			t.Errorf("a's Get = %q with %d commits fenced; want v2 and 1", v, a.Stats().Fenced)
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
			everyWay(t, func(t *testing.T, by way) {
				const n, m = 5, 50
				f := newFleet(t, n, by, bellwether.Options{ErrorTTL: 4 * time.Second, MaxErrorTTL: time.Hour})
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
					time.Sleep(200 * time.Millisecond)
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
				f.origin.set(func(o *source) { o.fail = nil })
				time.Sleep(5 * time.Minute)
				if got := f.get(2, "k"); len(got.failed) > 0 || len(got.values) != 1 {
					t.Errorf("after the failures %v", got.count)
				}
				f.wantLoads(t, last+1)
			})
		})
	}
}

// The end of a context may answer those who wait for it; it is remembered by
// nobody.
func TestFleet_ContextErrorIsNotRemembered(t *testing.T) {
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
		everyWay(t, func(t *testing.T, by way) {
			f := newFleet(t, 3, by, bellwether.Options{ErrorTTL: time.Hour})
			f.origin.fail = func(n int) error {
				if n == 1 {
					return fmt.Errorf("query: %w", cause)
				}
				return nil
			}
			got := f.get(10, "k")
			if len(got.failed)+got.values["v2"] != 30 || len(got.failed) < 10 || got.slowest > 4*time.Second {
				t.Errorf("answers %v, want the failure or the next value", got.count)
			}
			if got := f.get(10, "k"); got.values["v2"] != 30 || got.slowest > 2*time.Second {
				t.Errorf("then %v", got.count)
			}
			f.wantLoads(t, 2)
		})
	}
}

// Nor is the time-out of a client that a load uses queued for: one load tells all,
// in every process, and the next calls try again at once.
func TestFleet_ClientTimeoutIsTold(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 5, by, bellwether.Options{ErrorTTL: time.Hour, MaxWait: time.Minute})
		f.origin.set(func(o *source) { o.build = 3 * time.Second })
		f.origin.fail = func(int) error { return fmt.Errorf("query: %w", context.DeadlineExceeded) }
		for round := range 2 {
			got := f.get(10, "k")
			if len(got.failed) != 50 || got.slowest > 3*time.Second+pollLag(3*time.Second) {
				t.Errorf("%d calls have failed, the slowest after %v: %v", len(got.failed), got.slowest, got.count)
			}
			f.wantLoads(t, round+1)
		}
	})
}

// A load that runs into RebuildTimeout has failed for everybody. Otherwise each
// process takes its turn to hang.
func TestFleet_HangingOriginIsNotQueuedFor(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 5, by, bellwether.Options{RebuildTimeout: 3 * time.Second, ErrorTTL: 10 * time.Second, MaxWait: time.Minute})
		f.origin.set(func(o *source) { o.build = time.Hour })
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
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 4, by, bellwether.Options{TTL: 10 * time.Second, StaleWhileRevalidate: time.Hour})
		f.get(1, "k")
		time.Sleep(10 * time.Second)
		f.each(func(p *process) { p.store.reset(); p.locker.reset() })
		f.origin.set(func(o *source) { o.build = 20 * time.Second })
		for range 200 { // for 10 s
			f.get(5, "k").want(t, 20, "v1", nil, 0)
			time.Sleep(50 * time.Millisecond)
		}
		f.wantLoads(t, 2)
		f.each(func(p *process) {
			most := 30 // a flight, a look a second, renewals
			if by == poll {
				most = 260
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
				t.Fatalf("a process serves %s, loaded before the invalidation", v)
			}
		})
		time.Sleep(100 * time.Millisecond)
	}
}

func TestFleet_InvalidationReachesTheOthers(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 3, by, bellwether.Options{TTL: time.Hour, NearTTL: time.Second})
		f.origin.build = 10 * time.Millisecond
		f.get(1, "k")
		time.Sleep(time.Minute)
		f.get(1, "k") // trusted again
		if err := f.processes[0].Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := f.get(10, "k"); got.values["v2"] != 30 || got.slowest > f.origin.build+pollLag(f.origin.build) {
			t.Errorf("NearTTL after the invalidation %v", got.count)
		}
	})
}

// The trust in an entry begins when it was asked for. Counted from the reply,
// a slow store would stretch the time in which an invalidation gets round.
func TestFleet_InvalidationWhileAReplyIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{TTL: time.Hour, NearTTL: time.Second})
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

// An entry is read, and invalidated in this process before the reply is here:
// callers of afterwards get it neither as fresh nor as stale.
func TestInvalidate_WhileAReplyIsUnderWay(t *testing.T) {
	for name, age := range map[string]time.Duration{"fresh": 5 * time.Second, "stale": 20 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1, push, bellwether.Options{TTL: 10 * time.Second, StaleWhileRevalidate: time.Hour, NearTTL: time.Second})
				p := f.processes[0]
				p.Get(t.Context(), "k")
				time.Sleep(age)
				p.store.reply.Store(int64(400 * time.Millisecond))
				go p.Get(t.Context(), "k")
				time.Sleep(time.Millisecond)
				if err := p.Invalidate(t.Context(), "k"); err != nil {
					t.Fatal(err)
				}
				if v, err := p.Get(t.Context(), "k"); v == "v1" || err != nil {
					t.Errorf("Get = %q, %v after the invalidation", v, err)
				}
			})
		})
	}
}

// A key that is invalidated elsewhere during each of its loads: what those have
// made is not for callers who came after the invalidation that it was made
// before.
func TestFleet_InvalidatedDuringEachLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{MaxWait: 2 * time.Minute, NearTTL: time.Second})
		f.origin.build = 5 * time.Second
		a, b := f.processes[0], f.processes[1]
		go b.Get(t.Context(), "k")
		synctest.Wait()
		began := time.Now()
		for round := range 12 { // loads begin every 5 s
			time.Sleep(time.Duration(5*round+1)*time.Second - time.Since(began))
			a.Invalidate(t.Context(), "k")
			stale, _ := f.origin.count()
			time.Sleep(2 * time.Second)
			go func() {
				if v, err := b.Get(t.Context(), "k"); err == nil && version(v) <= stale {
					t.Errorf("round %d: Get = %q, which began to be loaded before the key was invalidated, 2s before the call", round, v)
				}
			}()
		}
		time.Sleep(time.Minute)
	})
}

// An Invalidate in one process while a rebuild runs in this or another: what
// that rebuild makes is nobody's.
func TestFleet_InvalidateDuringARebuild(t *testing.T) {
	for name, rebuilder := range map[string]int{"here": 0, "there": 1} {
		for _, deaf := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s deaf=%t", name, deaf), func(t *testing.T) {
				everyWay(t, func(t *testing.T, by way) {
					f := newFleet(t, 3, by, bellwether.Options{NearTTL: time.Second})
					f.origin.set(func(o *source) { o.build, o.deaf = 4*time.Second, deaf })
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
					if f.origin.mostAll > 1 {
						t.Errorf("%d loads ran at one time, want one after the other", f.origin.mostAll)
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
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 3, by, bellwether.Options{TTL: 10 * time.Second, StaleWhileRevalidate: time.Hour, NearTTL: time.Second})
		f.get(1, "k")
		time.Sleep(10 * time.Second)
		f.origin.set(func(o *source) { o.build = 20 * time.Second })
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
				f := newFleet(t, 2, push, bellwether.Options{TTL: 10 * time.Second, StaleIfError: time.Hour, ErrorTTL: test.ttl, RebuildTimeout: 6 * time.Second})
				f.get(1, "k")
				time.Sleep(10 * time.Second)
				f.origin.set(func(o *source) {
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
		f := newFleet(t, 1, push, bellwether.Options{TTL: 10 * time.Second, StaleWhileRevalidate: time.Hour})
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

// engineFaults are what engines do to a rebuild in all processes.
var engineFaults = map[string]func(p *process){
	"store is a black hole":          func(p *process) { p.store.set(blackHole) },
	"store refuses":                  func(p *process) { p.store.set(refuse) },
	"store panics":                   func(p *process) { p.store.set(func(context.Context, string) error { panic("adapter") }) },
	"store's Get is a black hole":    func(p *process) { p.store.set(on(blackHole, "get")) },
	"store's Claim is a black hole":  func(p *process) { p.store.set(on(blackHole, "claim")) },
	"store's Claim refuses":          func(p *process) { p.store.set(on(refuse, "claim")) },
	"store's Claim panics":           func(p *process) { p.store.set(on(func(context.Context, string) error { panic("adapter") }, "claim")) },
	"store says corrupt":             func(p *process) { p.store.set(on(answer(bellwether.ErrCorrupt), "get")) },
	"store's answers mean nothing":   func(p *process) { p.store.set(on(answer(bellwether.ErrLeaseLost), "get", "claim")) },
	"locker is a black hole":         func(p *process) { p.locker.set(blackHole) },
	"locker refuses":                 func(p *process) { p.locker.set(refuse) },
	"locker panics":                  func(p *process) { p.locker.set(func(context.Context, string) error { panic("adapter") }) },
	"locker's answers mean nothing":  func(p *process) { p.locker.set(on(answer(bellwether.ErrNotFound), "acquire")) },
	"both are black holes":           func(p *process) { p.store.set(blackHole); p.locker.set(blackHole) },
	"both refuse":                    func(p *process) { p.store.set(refuse); p.locker.set(refuse) },
	"locker hangs, then store hangs": func(p *process) { p.locker.set(blackHole); p.store.set(on(blackHole, "claim", "commit")) },
}

// Coordination that is down is no outage: nobody fails, nobody waits longer
// than one EngineTimeout beyond the load, and when the engines are back there
// is one load for the fleet again.
func TestFleet_EngineFaults(t *testing.T) {
	const n, m, build, timeout = 3, 20, time.Second, 500 * time.Millisecond
	for name, inject := range engineFaults {
		t.Run(name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, by way) {
				f := newFleet(t, n, by, bellwether.Options{TTL: 30 * time.Second, EngineTimeout: timeout})
				f.each(inject)
				for round := range 3 {
					before, _ := f.origin.count()
					got := f.get(m, fmt.Sprint("k", round))
					if len(got.failed) > 0 {
						t.Fatalf("answers %v", got.count)
					}
					most := build + timeout + pollLag(build)
					if by == poll {
						most += n * time.Second / 2 // until it is seen that a lease was released without a value
					}
					if strings.Contains(name, "Claim is") || strings.Contains(name, "then store") {
						most += (n - 1) * timeout // each waits out its own claim, as holder
					}
					if got.slowest > most {
						t.Errorf("the slowest caller waited %v, want at most %v: %v", got.slowest, most, got.count)
					}
					if loads, _ := f.origin.count(); loads-before > n {
						t.Errorf("%d loads in %d processes", loads-before, n)
					}
				}
				f.recovers(t)
			})
		})
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

// A push that does not work costs no more than the push: the store can still be
// polled, and the holder is at work.
func TestFleet_WatchFaults(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	for name, inject := range map[string]func(p *process){
		"hangs":   func(p *process) { p.locker.set(on(blackHole, "watch")) },
		"refuses": func(p *process) { p.locker.set(on(refuse, "watch")) },
		"panics":  func(p *process) { p.locker.set(on(func(context.Context, string) error { panic("adapter") }, "watch")) },
		"closes at once": func(p *process) {
			p.locker.watch.Store(new(func() (<-chan struct{}, error) { return closed, nil }))
		},
		"never closes": func(p *process) {
			p.locker.watch.Store(new(func() (<-chan struct{}, error) { return make(chan struct{}), nil }))
		},
		"gives nothing": func(p *process) {
			p.locker.watch.Store(new(func() (<-chan struct{}, error) { return nil, nil }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const build = 4 * time.Second
				f := newFleet(t, 4, push, bellwether.Options{})
				f.origin.build = build
				f.each(inject)
				got := f.get(20, "k")
				f.wantLoads(t, 1)
				if len(got.failed) > 0 || got.slowest > build+time.Second {
					t.Errorf("slowest %v: %v", got.slowest, got.count)
				}
				f.each(func(p *process) {
					if n := p.store.count() + p.locker.count(); n > 1000 {
						t.Errorf("%d calls of engines in %v: a loop without a pause", n, build)
					}
				})
			})
		})
	}
}

// A push may come early, at each renewal for one. It says nothing about the
// holder, which is at work.
func TestFleet_WatchThatClosesAtRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4, push, bellwether.Options{LeaseTTL: time.Second})
		f.origin.build = 20 * time.Second
		early := func() (<-chan struct{}, error) {
			c := make(chan struct{})
			time.AfterFunc(time.Second/3, func() { close(c) })
			return c, nil
		}
		f.each(func(p *process) { p.locker.watch.Store(&early) })
		got := f.get(10, "k")
		if got.values["v1"] != 40 || got.slowest > 21*time.Second {
			t.Errorf("slowest %v: %v", got.slowest, got.count)
		}
		f.wantLoads(t, 1)
	})
}

// Lockers that say less, or other things, than they should.
func TestFleet_HeldFaults(t *testing.T) {
	for name, held := range map[string]func(*bellwether.HeldError) error{
		"without Until":      func(h *bellwether.HeldError) error { h.Until = time.Time{}; return h },
		"wrapped":            func(h *bellwether.HeldError) error { return fmt.Errorf("engine: %w", h) },
		"bare ErrHeld":       func(*bellwether.HeldError) error { return bellwether.ErrHeld },
		"Until long ago":     func(h *bellwether.HeldError) error { h.Until = time.Now().Add(-time.Hour); return h },
		"Until now":          func(h *bellwether.HeldError) error { h.Until = time.Now(); return h },
		"Until never":        func(h *bellwether.HeldError) error { h.Until = time.Unix(1<<40, 0); return h },
		"nothing to be seen": func(h *bellwether.HeldError) error { h.Seen = nil; return h },
	} {
		t.Run(name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, by way) {
				const build = 4 * time.Second
				f := newFleet(t, 4, by, bellwether.Options{})
				f.origin.build = build
				f.each(func(p *process) { p.locker.held.Store(&held) })
				got := f.get(20, "k")
				f.wantLoads(t, 1)
				if len(got.failed) > 0 || got.slowest > build+time.Second {
					t.Errorf("slowest %v: %v", got.slowest, got.count)
				}
				f.each(func(p *process) {
					if n := p.store.count() + p.locker.count(); n > 1000 {
						t.Errorf("%d calls of engines in %v: a loop without a pause", n, build)
					}
				})
			})
		})
	}
}

// One call that fails is a lost packet, not an outage of the fleet's election.
func TestFleet_OneLostPacketWhileWaiting(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 3, by, bellwether.Options{})
		f.origin.build = 4 * time.Second
		go f.get(1, "k")
		time.Sleep(time.Second / 2)
		f.each(func(p *process) {
			var once atomic.Bool
			p.store.set(on(func(context.Context, string) error {
				if once.Swap(true) {
					return nil
				}
				return errRefused
			}, "get"))
		})
		time.Sleep(4 * time.Second)
		f.wantLoads(t, 1)
	})
}

// A store that refuses each commit as too late, because it forgets claims
// sooner than they are redeemed: callers get what was made while they waited,
// and a flight that nobody waits for ends.
func TestFleet_StoreForgetsClaims(t *testing.T) {
	for _, build := range []time.Duration{0, time.Second} {
		t.Run(build.String(), func(t *testing.T) {
			everyWay(t, func(t *testing.T, by way) {
				const n, m = 3, 20
				f := newFleet(t, n, by, bellwether.Options{MaxWait: 30 * time.Second})
				f.origin.build = build
				f.each(func(p *process) { p.store.set(on(answer(bellwether.ErrFenced), "commit")) })
				if got := f.get(m, "k"); len(got.failed) > 0 {
					t.Errorf("answers %v", got.count)
				}
				time.Sleep(time.Minute) // nobody asks any more
				most := 5 * n
				if build == 0 {
					most *= m // they hardly meet
				}
				if loads, _ := f.origin.count(); loads > most {
					t.Errorf("%d loads for one herd in %d processes", loads, n)
				}
			})
		})
	}
}

// A waiter whose locker does not answer one question goes on waiting for the holder
// that it knows of; if the locker answers none, it is not waited for.
func TestFleet_LockerMissesAnAnswer(t *testing.T) {
	for asked, want := range map[int]int{1: 1, 2: 1, 100: 5} {
		t.Run(fmt.Sprint(asked), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 5, poll, bellwether.Options{}) // nobody else asks the locker during a load
				f.origin.build = 3 * time.Second
				var refused atomic.Int32
				time.AfterFunc(1200*time.Millisecond, func() {
					f.each(func(p *process) {
						var n atomic.Int32
						p.locker.set(func(_ context.Context, op string) error {
							if op == "acquire" && n.Add(1) <= int32(asked) {
								refused.Add(1)
								return errRefused
							}
							return nil
						})
					})
				})
				got := f.get(20, "k")
				if loads, _ := f.origin.count(); loads != want || len(got.failed) > 0 || refused.Load() == 0 || got.slowest > 6*time.Second {
					t.Errorf("%d loads, want %d; %d calls refused; %v", loads, want, refused.Load(), got.count)
				}
			})
		})
	}
}

// A failure is told to the others however much it says.
func TestFleet_FailuresOfManyWords(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 5, by, bellwether.Options{})
		f.origin.fail = func(int) error { return errors.New(strings.Repeat("é", 1<<20)) }
		f.each(func(p *process) {
			p.store.limit = func(e bellwether.Entry) error {
				if len(e.Failure) > 1<<20 {
					return bellwether.ErrTooLarge
				}
				return nil
			}
		})
		got := f.get(20, "k")
		if loads, _ := f.origin.count(); loads != 1 || got.slowest > 1100*time.Millisecond {
			t.Errorf("%d loads, and the slowest caller waited %v for that of a second", loads, got.slowest)
		}
		for _, err := range got.failed {
			if text := err.Error(); len(text) < 1000 || !utf8.ValidString(text) {
				t.Fatalf("a failure of %d bytes, valid: %v", len(text), utf8.ValidString(text))
			}
		}
	})
}

// A NearTTL of next to nothing asks the store at each call, and not in between.
func TestFleet_NothingIsTrusted(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, bellwether.Options{TTL: time.Minute, StaleWhileRevalidate: time.Hour, NearTTL: 1})
		f.get(1, "k")
		time.Sleep(2 * time.Minute)
		f.each(func(p *process) { p.store.reset() })
		f.get(1, "k") // stale, and one rebuilds
		time.Sleep(time.Second)
		f.each(func(p *process) {
			if n := p.store.count(); n > 1000 {
				t.Errorf("%d calls of the store during a load of a second", n)
			}
		})
	})
}

// A value that the store does not take is made by each process, not by one
// after another.
func TestFleet_ValuesTheStoreDoesNotTake(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		const n, m, build = 5, 20, time.Second
		f := newFleet(t, n, by, bellwether.Options{})
		f.each(func(p *process) {
			p.store.limit = func(e bellwether.Entry) error {
				if len(e.Value) > 0 {
					return bellwether.ErrTooLarge
				}
				return nil
			}
		})
		for round := range 3 {
			f.origin.set(func(o *source) { o.loads = 0 })
			got := f.get(m, "k")
			if len(got.failed) > 0 || got.slowest > 2*build+time.Second {
				t.Errorf("round %d: the slowest caller waited %v for a load of %v: %v", round, got.slowest, build, got.count)
			}
			if loads, _ := f.origin.count(); loads != n {
				t.Errorf("round %d: %d loads in %d processes", round, loads, n)
			}
			// Within their TTL the values hold, each in its process, also when
			// the store has been asked about them.
			for range 5 {
				time.Sleep(2 * time.Second)
				f.get(m, "k")
			}
			if loads, _ := f.origin.count(); loads != n {
				t.Errorf("round %d: %d loads in %d processes within one TTL", round, loads, n)
			}
			if err := f.processes[0].Invalidate(context.Background(), "k"); err != nil {
				t.Error(err)
			}
			time.Sleep(2 * time.Second) // all have seen it
		}
	})
}

// Nobody waits for a value that lives no longer than its load.
func TestFleet_ValuesWithoutALife(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		const n, m, build = 5, 20, time.Second
		f := newFleet(t, n, by, bellwether.Options{})
		f.origin.lifeless = true
		got := f.get(m, "k")
		if len(got.failed) > 0 || got.slowest > 2*build+time.Second {
			t.Errorf("the slowest caller waited %v for a load of %v: %v", got.slowest, build, got.count)
		}
		if loads, _ := f.origin.count(); loads > n {
			t.Errorf("%d loads in %d processes", loads, n)
		}
	})
}

// A flight that waits for one of the MaxRebuilds takes the value that another
// process has made meanwhile.
func TestFleet_WaitingForASlot(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, bellwether.Options{MaxRebuilds: 1})
		f.origin.build = 20 * time.Second
		var wg sync.WaitGroup
		wg.Go(func() { f.processes[0].Get(context.Background(), "blocks the slot") })
		time.Sleep(time.Millisecond)
		f.origin.set(func(o *source) { o.build = time.Second })
		wg.Go(func() {
			start := time.Now()
			got := callAll(f.processes[:1], 1, "k")
			if took := time.Since(start); len(got.failed) > 0 || took > 3*time.Second {
				t.Errorf("answered after %v, want soon after the other process's load: %v", took, got.failed)
			}
		})
		time.Sleep(time.Millisecond)
		wg.Go(func() { callAll(f.processes[1:], 1, "k") })
		wg.Wait()
		f.wantLoads(t, 2)
	})
}

// A push that is down, while the locker's calls get through, is not a locker
// that is down.
func TestFleet_ManyWatchesRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 20
		f := newFleet(t, 3, push, bellwether.Options{})
		f.origin.build = 2 * time.Second
		late := func(context.Context, string) error {
			time.Sleep(100 * time.Millisecond) // so that nothing else is answered in between
			return errRefused
		}
		f.each(func(p *process) { p.locker.set(on(late, "watch")) })
		for range 3 {
			var wg sync.WaitGroup
			for i := range keys {
				wg.Go(func() { f.get(2, fmt.Sprint(i)) })
			}
			wg.Wait()
			time.Sleep(time.Minute)
		}
		f.wantLoads(t, 3*keys)
	})
}

func TestFleet_CorruptEntries(t *testing.T) {
	undecodable := map[string]bool{"another codec's bytes": true, "no bytes": true, "unknown kind": true}
	for name, tamper := range map[string]func(*bellwether.Entry){
		"another codec's bytes": func(e *bellwether.Entry) { e.Value = []byte("\x00\x01not JSON") },
		"no bytes":              func(e *bellwether.Entry) { e.Value = nil },
		"unknown kind":          func(e *bellwether.Entry) { e.Kind = 77 },
		"nothing, but an epoch": func(e *bellwether.Entry) { *e = bellwether.Entry{Epoch: e.Epoch} },
		"older than time":       func(e *bellwether.Entry) { e.Age = 1<<63 - 1 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				type pair struct{ A, B int }
				store := memstore.New()
				var loads atomic.Int32
				load := func(ctx context.Context, key string) (pair, error) {
					loads.Add(1)
					return pair{1, 2}, nil
				}
				good := cacheOf(t, load, bellwether.Options{Store: store, Locker: locallock.New()})
				good.Get(t.Context(), "k")
				wired := &wiredStore{wire: &wire{}, store: store}
				wired.tamper.Store(&tamper)
				var told []error
				c := cacheOf(t, load, bellwether.Options{Store: wired, Locker: locallock.New(), OnError: func(_ string, err error) {
					told = append(told, err)
				}})
				if v, err := c.Get(t.Context(), "k"); v != (pair{1, 2}) || err != nil {
					t.Errorf("Get = %v, %v", v, err)
				}
				for _, err := range told {
					if !errors.Is(err, bellwether.ErrCorrupt) {
						t.Errorf("OnError is told %v, want an ErrCorrupt", err)
					}
				}
				if (len(told) > 0) != undecodable[name] {
					t.Errorf("OnError is told %v", told)
				}
				if loads.Load() != 2 {
					t.Errorf("%d loads, want another one", loads.Load())
				}
				wired.tamper.Store(nil)
				time.Sleep(2 * time.Second)
				for _, c := range []*bellwether.Cache[pair]{good, c} {
					if v, err := c.Get(t.Context(), "k"); v != (pair{1, 2}) || err != nil || loads.Load() != 2 {
						t.Errorf("with the right bytes: Get = %v, %v after %d loads", v, err, loads.Load())
					}
				}
			})
		})
	}
}

// Failing at random, the engines cost loads but no answers.
func TestFleet_RandomEngineErrors(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 3, way(seed%3), bellwether.Options{TTL: 5 * time.Second, LeaseTTL: 2 * time.Second})
			f.each(func(p *process) {
				for i, w := range []*wire{p.store.wire, p.locker.wire} {
					var mu sync.Mutex
					rng := rand.New(rand.NewPCG(seed, uint64(i)))
					w.set(func(ctx context.Context, op string) error {
						mu.Lock()
						n := rng.IntN(10)
						mu.Unlock()
						switch {
						case n < 2:
							return errRefused
						case n == 2:
							return blackHole(ctx, op)
						}
						return nil
					})
				}
			})
			for range 30 {
				got := f.get(5, "k")
				// A lost commit and a lost release make a dead holder of a live
				// one: each but the last is waited for.
				if len(got.failed) > 0 || got.slowest > 3*time.Second+2*2*time.Second+time.Second {
					t.Fatalf("seed %d: slowest %v: %v", seed, got.slowest, got.count)
				}
				time.Sleep(time.Second)
			}
			f.recovers(t)
		})
	}
}

// In an outage nobody pays for the engine's silence request by request.
func TestFleet_BreakersInAnOutage(t *testing.T) {
	for name, f := range map[string]fault{"black hole": blackHole, "refuse": refuse} {
		for _, keys := range []int{1, 50} {
			t.Run(fmt.Sprintf("%s, %d keys", name, keys), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					fl := newFleet(t, 1, push, bellwether.Options{TTL: 2 * time.Second})
					p := fl.processes[0]
					fl.origin.build = 10 * time.Millisecond
					fl.get(1, "0")
					p.store.set(f)
					p.locker.set(f)
					p.store.reset()
					p.locker.reset()
					var late, calls atomic.Int32
					var wg sync.WaitGroup
					for i := range 6000 { // 100 a second for a minute
						wg.Go(func() {
							start := time.Now()
							if _, err := p.Get(t.Context(), fmt.Sprint(i%keys)); err != nil {
								t.Error(err)
							}
							calls.Add(1)
							if time.Since(start) > 100*time.Millisecond {
								late.Add(1)
							}
						})
						time.Sleep(10 * time.Millisecond)
					}
					wg.Wait()
					// The first half second is everybody's, then a probe every
					// 1.5 s that its key's callers wait for.
					if n := p.store.count() + p.locker.count(); n > 150 {
						t.Errorf("%d calls of dead engines for %d requests", n, calls.Load())
					}
					if keys > 1 && late.Load() > 300 || keys == 1 && late.Load() > 2500 {
						t.Errorf("%d of %d callers waited for dead engines", late.Load(), calls.Load())
					}
					// Nobody waits for a probe that is under way.
					for p.Stats().Flights > 0 {
						time.Sleep(10 * time.Millisecond)
					}
					if s := p.Stats(); s.StoreUp {
						t.Error("the store's breaker is closed in an outage")
					}
					fl.recovers(t)
				})
			})
		}
	}
}

// An outage is told for as long as it lasts to those who look now and then: also
// while a call finds out whether it is over, and between the calls of a process
// that makes few.
func TestStats_ThroughAnOutage(t *testing.T) {
	for name, f := range map[string]fault{"black hole": blackHole, "refuse": refuse} {
		for _, engine := range []string{"store", "locker"} {
			for _, pause := range []time.Duration{10 * time.Millisecond, 10 * time.Second} {
				t.Run(fmt.Sprintf("%s, %s, a call in %v", name, engine, pause), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						// Some 25 probes, or 12 calls.
						outage := max(40*time.Second, 12*pause)
						fl := newFleet(t, 1, push, bellwether.Options{TTL: time.Second})
						p := fl.processes[0]
						w := p.store.wire
						up := func() bool { return p.Stats().StoreUp }
						if engine == "locker" {
							w, up = p.locker.wire, func() bool { return p.Stats().LockerUp }
						}
						fl.get(1, "k")
						w.set(f)
						began := time.Now()
						var wg sync.WaitGroup
						wg.Go(func() {
							for time.Since(began) < outage {
								p.Get(t.Context(), "k")
								time.Sleep(pause)
							}
						})
						for up() && time.Since(began) < time.Minute {
							time.Sleep(time.Millisecond)
						}
						for time.Since(began) < outage {
							if up() {
								t.Fatalf("%v after the beginning of the outage the %s is told to be up", time.Since(began), engine)
							}
							time.Sleep(10 * time.Millisecond)
						}
						wg.Wait()
						time.Sleep(time.Minute) // nobody asks
						if !up() {
							t.Errorf("the %s is told to be down when nobody has asked for a minute", engine)
						}
						fl.recovers(t)
					})
				})
			}
		}
	}
}

// Callers whose own time is up say nothing about the store.
func TestInvalidate_CallersDeadlineIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{})
		p := f.processes[0]
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		time.Sleep(2 * time.Millisecond)
		for range 10 {
			if err := p.Invalidate(ctx, "other"); err == nil {
				t.Fatal("an Invalidate without time has succeeded")
			}
		}
		if !p.Stats().StoreUp {
			t.Error("ten callers' deadlines have opened the store's breaker")
		}
		f.get(10, "k")
		f.wantLoads(t, 1)
	})
}

func TestFleet_MaxRebuildsInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{MaxRebuilds: 20, MaxWait: time.Hour})
		p := f.processes[0]
		p.store.set(blackHole)
		p.locker.set(blackHole)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				if _, err := p.Get(t.Context(), fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			})
		}
		start := time.Now()
		wg.Wait()
		if f.origin.mostAll != 20 || time.Since(start) > 52*time.Second {
			t.Errorf("%d loads at a time for %v, want 20 for about 50s", f.origin.mostAll, time.Since(start))
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

func TestInvalidate_GoexitIsNoSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{})
		p := f.processes[0]
		p.Get(t.Context(), "k")
		p.store.set(on(func(context.Context, string) error { runtime.Goexit(); return nil }, "invalidate"))
		if err := p.Invalidate(t.Context(), "k"); err == nil {
			t.Error("Invalidate returned nil, and the store has still the value")
		}
		// The near tier has dropped it all the same.
		p.store.reset()
		if p.Get(t.Context(), "k"); p.store.count("get") != 1 {
			t.Error("the near tier answers still")
		}
	})
}

// A lateContext has something done between a call's look into the near tier and
// its look for a flight.
type lateContext struct {
	context.Context
	do func()
}

func (c lateContext) Err() error {
	c.do()
	return c.Context.Err()
}

// A halfDone is a context that has only learnt how to be done: it has no error.
type halfDone struct {
	context.Context
	done chan struct{}
}

func (c halfDone) Done() <-chan struct{} { return c.done }

func TestGet_ContextThatIsDoneWithoutAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{})
		f.origin.set(func(o *source) { o.build = time.Minute })
		ctx := halfDone{t.Context(), make(chan struct{})}
		time.AfterFunc(time.Second, func() { close(ctx.done) })
		_, err := f.processes[0].Get(ctx, "k")
		_, errs := f.processes[0].GetMany(ctx, []string{"k", "l"})
		if !errors.Is(err, context.Canceled) || !errors.Is(errs, context.Canceled) {
			t.Errorf("%v, %v", err, errs)
		}
	})
}

// A call that misses just before a flight lands, and comes to begin one just
// after, is a hit.
func TestStats_HitInTheLastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{})
		p := f.processes[0]
		for name, get := range map[string]func(ctx context.Context, key string) error{
			"Get":     func(ctx context.Context, key string) error { _, err := p.Get(ctx, key); return err },
			"GetMany": func(ctx context.Context, key string) error { _, err := p.GetMany(ctx, []string{key}); return err },
		} {
			before := p.Stats()
			ctx := lateContext{t.Context(), sync.OnceFunc(func() { p.Get(t.Context(), name) })}
			if err := get(ctx, name); err != nil {
				t.Error(err)
			}
			s := p.Stats()
			if hits, misses, loads := s.Hits-before.Hits, s.Misses-before.Misses, s.Loads-before.Loads; hits != 1 || misses != 1 || loads != 1 {
				t.Errorf("%s: %d hits, %d misses, %d loads; want 1 of each", name, hits, misses, loads)
			}
		}
	})
}

// A sizer is user code, and may use the cache: it is not called under its lock.
func TestGet_SizeMayUseTheCache(t *testing.T) {
	if !survives(t) {
		return
	}
	watchdog := time.AfterFunc(10*time.Second, func() { panic("deadlock: Size is called under the cache's lock") })
	defer watchdog.Stop()
	var c *bellwether.Cache[string]
	c = bellwether.New(func(ctx context.Context, key string) (string, error) { return "v", nil }, bellwether.Options{
		TTL:  time.Minute,
		Size: func(key string, _ any) int { return c.Stats().Flights },
	})
	defer c.Close()
	if v, err := c.Get(t.Context(), "k"); v != "v" || err != nil {
		t.Errorf("Get = %q, %v", v, err)
	}
}

func TestStats_DegradedWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, push, bellwether.Options{})
		p := f.processes[0]
		p.locker.set(refuse)
		p.Get(t.Context(), "k")
		if s := p.Stats(); s.Degraded != 1 {
			t.Errorf("Degraded = %d after a load without a lease, want 1", s.Degraded)
		}
	})
}

func TestFleet_LoadThatIgnoresItsContext(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 3, by, bellwether.Options{RebuildTimeout: 3 * time.Second, ErrorTTL: time.Minute})
		f.origin.set(func(o *source) { o.build, o.deaf = time.Minute, true })
		got := callAll(f.processes[:1], 10, "k")
		if len(got.failed) != 10 || !errors.Is(got.failed[0], bellwether.ErrRebuildTimeout) || got.slowest != 3*time.Second {
			t.Fatalf("answers %v", got.count)
		}
		f.origin.set(func(o *source) { o.build = time.Second })
		time.Sleep(5 * time.Minute) // v1 has long come, and is nobody's
		if got := f.get(5, "k"); got.values["v2"] != 15 {
			t.Errorf("then %v", got.count)
		}
	})
}

// Who waits when the cache is closed gets nothing that nobody has said still holds.
func TestClose_NothingOldInTheEnd(t *testing.T) {
	for name, during := range map[string]fault{"a look": on(blackHole, "get"), "a load": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 2, poll, bellwether.Options{TTL: time.Hour, StaleIfError: time.Hour})
				p := f.processes[0]
				p.Get(t.Context(), "k")
				if f.origin.build = time.Hour; during == nil {
					time.Sleep(time.Hour)
				} else {
					f.processes[1].Invalidate(t.Context(), "k")
					time.Sleep(time.Minute)
				}
				p.store.set(during)
				done := make(chan struct{})
				go func() {
					defer close(done)
					if v, err := p.Get(t.Context(), "k"); !errors.Is(err, bellwether.ErrClosed) {
						t.Errorf("Get = %q, %v, want ErrClosed", v, err)
					}
				}()
				time.Sleep(50 * time.Millisecond)
				p.Close()
				<-done
			})
		})
	}
}

// The holder's process ends: the others do not wait for its lease to run out.
func TestFleet_HolderCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4, push, bellwether.Options{})
		go f.processes[0].Get(context.Background(), "k")
		synctest.Wait()
		time.AfterFunc(time.Second/2, func() { f.processes[0].Close() })
		callAll(f.processes[1:], 10, "k").want(t, 30, "v2", nil, 3*time.Second/2)
		f.wantLoads(t, 2)
	})
}

// Processes that end one after another, as when a new version is rolled out,
// are replaced by one each time.
func TestFleet_HoldersCloseInTurn(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		const n = 14
		f := newFleet(t, n, by, bellwether.Options{MaxWait: time.Minute})
		f.origin.build = 4 * time.Second
		var wg sync.WaitGroup
		for i, p := range f.processes {
			wg.Go(func() {
				if v, err := p.Get(context.Background(), "k"); err != nil && !errors.Is(err, bellwether.ErrClosed) {
					t.Errorf("process %d: %q, %v", i, v, err)
				}
			})
		}
		closed := map[*process]bool{}
		for len(closed) < n-4 {
			time.Sleep(time.Second)
			for _, p := range f.processes {
				if !closed[p] && p.Stats().Loads > 0 { // the holder
					p.Close()
					closed[p] = true
				}
			}
		}
		wg.Wait()
		if _, most := f.origin.count(); most > 1 {
			t.Errorf("%d loads at one time", most)
		}
	})
}

func TestGetFunc_FirstCallersLoadForTheFleet(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 3, by, bellwether.Options{})
		var loads atomic.Int32
		var wg sync.WaitGroup
		values := map[string]int{}
		var mu sync.Mutex
		for i, p := range f.processes {
			for j := range 20 {
				wg.Go(func() {
					v, err := p.GetFunc(t.Context(), "k", func(ctx context.Context, key string) (string, error) {
						loads.Add(1)
						time.Sleep(time.Second)
						return fmt.Sprint(key, i, j), nil
					})
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					values[v]++
				})
			}
		}
		wg.Wait()
		if loads.Load() != 1 || len(values) != 1 {
			t.Errorf("%d loads, values %v", loads.Load(), values)
		}
		f.wantLoads(t, 0)
	})
}

// A key that is invalidated more often than a flight takes to its load, through
// election and claim, is loaded all the same: by this process's own invalidations,
// and by another's.
func TestFleet_InvalidatedOnTheWayToEachLoad(t *testing.T) {
	for name, by := range map[string]int{"here": 0, "elsewhere": 1} {
		t.Run(name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, w way) {
				f := newFleet(t, 2, w, bellwether.Options{})
				f.origin.set(func(o *source) { o.build = 10 * time.Millisecond })
				slow := func(context.Context, string) error { time.Sleep(3 * time.Millisecond); return nil }
				f.processes[0].store.set(slow)
				f.processes[0].locker.set(slow)
				ctx, stop := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				defer wg.Wait()
				defer stop()
				wg.Go(func() {
					for ctx.Err() == nil {
						f.processes[by].Invalidate(context.Background(), "k")
						time.Sleep(2 * time.Millisecond)
					}
				})
				began := time.Now()
				if v, err := f.processes[0].Get(t.Context(), "k"); err != nil || time.Since(began) > 2*time.Second {
					t.Errorf("%q, %v after %v and %d elections", v, err, time.Since(began), f.processes[0].locker.count("acquire"))
				}
			})
		})
	}
}

// Nor does it lose its place among those who wait for one of the MaxRebuilds.
func TestGet_InvalidatedWhileItWaitsForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cacheOf(t, func(context.Context, string) (string, error) {
			time.Sleep(100 * time.Millisecond)
			return "v", nil
		}, bellwether.Options{MaxRebuilds: 1, MaxWait: 20 * time.Second})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		for i := range 8 { // others keep the slot busy: it is waited for for 0.8 s
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					c.Get(context.Background(), fmt.Sprint(i, " ", n))
				}
			})
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(150 * time.Millisecond)
				c.Invalidate(context.Background(), "k")
			}
		})
		time.Sleep(time.Second + time.Millisecond)
		began := time.Now()
		// Two of three loads are invalidated under way, and wait for 0.9 s again. The
		// fifth is the last.
		if v, err := c.Get(t.Context(), "k"); err != nil || time.Since(began) > 5*time.Second {
			t.Errorf("%q, %v after %v", v, err, time.Since(began))
		}
	})
}
