package bellwether_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file is a table of callers' answers by a flight's phase and the event in it. testdata/phases.txt
// has the cells. BELLWETHER_PHASES=update adds new cells; for changed cells remove the file first.
//
// In each cell a caller asks process p for a key, whose flight is held in the phase. The event
// happens, a second caller asks p, and the flight goes on. After the faults, p and another process
// q are asked once more. A cell, with several lines if it depends on the order of goroutines, is
//
// first caller, second caller | p, q afterwards | loads of the key
//
// Variants of a face: "alone" has no engines, "polling" a locker without Watch, "hearing" a store
// with notices, "near off" no near tier, "window" a batch window, and "stale" begins with a stale
// value v1.

type stage struct {
	face string
	err  error
	as   string // the face's variant; "": none
	// closing is the duration of p's Close in nanoseconds. tells counts the calls of OnError after it.
	closing, tells atomic.Int64
	key            string
	origin         *stageOrigin
	locker         *locallock.Locker
	p, q           *actor
}

const (
	stageSet    = "v100"
	stageWindow = 10 * time.Millisecond // the batch window
)

// A stageOrigin makes the values v1, v2, ... of each key.
type stageOrigin struct {
	mu    sync.Mutex // guards all fields
	build time.Duration
	end   func() error // ends a load without a value; nil: loads succeed
	loads map[string]int
	most  int // concurrent loads of a key, without the cancelled loads
	live  map[string]map[context.Context]bool
}

func (o *stageOrigin) load(ctx context.Context, key string) (string, error) {
	o.mu.Lock()
	o.loads[key]++
	n, build := o.loads[key], o.build
	if o.live[key] == nil {
		o.live[key] = map[context.Context]bool{}
	}
	o.live[key][ctx] = true
	running := 0
	for other := range o.live[key] {
		if other.Err() == nil {
			running++
		}
	}
	o.most = max(o.most, running)
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.live[key], ctx)
	}()
	if build > 0 {
		select {
		case <-time.After(build):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	o.mu.Lock()
	end := o.end
	o.mu.Unlock()
	if end != nil {
		if err := end(); err != nil {
			return "", err
		}
	}
	return "v" + strconv.Itoa(n), nil
}

func (o *stageOrigin) set(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

func (o *stageOrigin) count(key string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.loads[key]
}

// An actor is one process with any face.
type actor struct {
	store, locker *stageWire
	get           func(ctx context.Context, key string) string
	invalidate    func(key string) error
	set           func(key string) error // sets stageSet; nil if the face has no Set
	sweep         func(soft bool) error
	refresh       func(key string) error
	peek          func(key string) // nil if the face has no Peek
	post          func(key string) // nil if the face has no requests
	ping          func(ctx context.Context) error
	close         func() error

	mu      sync.Mutex        // guards the fields below
	reached map[string]bool   // states of the key's flights, calls of the engines, and "load"
	bad     map[string]func() // ends of the user's functions
}

// breaks ends a user's function as set by spoil.
func (a *actor) breaks(what string) {
	a.mu.Lock()
	bad := a.bad[what]
	a.mu.Unlock()
	if bad != nil {
		bad()
	}
}

func (a *actor) spoil(what string, bad func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bad[what] = bad
}

func (a *actor) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.reached)
}

func (a *actor) reach(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reached[what] = true
}

func (a *actor) hasReached(what string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return what == "" || a.reached[what]
}

// unheld is the context key of calls outside the flight, which no stageWire holds.
type unheld struct{}

// A stageWire holds an operation on its way to an engine, and then applies the event's fault.
type stageWire struct {
	reach func(op string)

	mu    sync.Mutex // guards the fields below
	held  string
	gate  chan struct{}
	fault fault
}

func (w *stageWire) call(ctx context.Context, op string) error {
	w.reach(op)
	w.mu.Lock()
	gate, held := w.gate, w.held == op
	w.mu.Unlock()
	if held && gate != nil && ctx.Value(unheld{}) == nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	w.mu.Lock()
	f := w.fault
	w.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(ctx, op)
}

// hold holds the operation until release is called.
func (w *stageWire) hold(op string) (release func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held, w.gate = op, make(chan struct{})
	gate := w.gate
	return sync.OnceFunc(func() { close(gate) })
}

func (w *stageWire) set(f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = f
}

// answerOf returns a caller's answer in a word.
func answerOf(v string, err error) string {
	var panicked *bellwether.PanicError
	var remote *bellwether.RemoteError
	switch {
	case err == nil:
		return v
	case errors.Is(err, bellwether.ErrClosed):
		return "closed"
	case errors.Is(err, bellwether.ErrWaitTimeout):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "left"
	case errors.As(err, &panicked):
		return "panic"
	case errors.Is(err, bellwether.ErrGoexit):
		return "goexit"
	case errors.As(err, &remote):
		return "remote"
	case errors.Is(err, errFailed):
		return "failed"
	}
	return err.Error()
}

var errFailed = errors.New("origin failed")

func (s *stage) newActor(t *testing.T, store *memstore.Store) *actor {
	a := &actor{reached: map[string]bool{}, bad: map[string]func(){}}
	a.store, a.locker = &stageWire{reach: a.reach}, &stageWire{reach: a.reach}
	load := func(ctx context.Context, key string) (string, error) {
		if key == s.key {
			a.reach("load")
		}
		return s.origin.load(ctx, key)
	}
	wiredS := wiredTo(store)
	wiredL := wiredLocks(s.locker)
	wiredS.set(a.store.call)
	wiredL.set(a.locker.call)
	o := bellwether.Options{
		TTL: time.Hour, Limits: bellwether.Limits{MaxRebuilds: 1}, Fleet: bellwether.Fleet{LeaseTTL: 3 * time.Second, Namespace: "n", Store: wiredS, Locker: wiredL},
		OnError: func(string, error) { a.breaks("OnError") },
		Observers: []observe.Observer{{Rebuild: func(ctx context.Context, _ string) (context.Context, func(observe.Rebuild)) {
			a.breaks("observer")
			return ctx, func(observe.Rebuild) { a.breaks("observer") }
		}}},
	}
	switch s.as {
	case "alone":
		o.Fleet.Namespace, o.Fleet.Store, o.Fleet.Locker = "", nil, nil
	case "polling":
		o.Fleet.Locker = polling(wiredL)
	case "hearing":
		o.Fleet.Store = wiredS.hearing()
	case "near off":
		o.Fleet.NearTTL = -1
	case "sweeping":
		o.Sweeps = true
	case "stale":
		o.TTL, o.StaleWhileRevalidate = 2*time.Minute, 24*time.Hour
	case "window":
		o.BatchWindow = stageWindow
	}
	enter := func(key, state string) {
		if strings.HasSuffix(key, s.key) {
			a.reach(state)
		}
	}
	switch s.face {
	case "HTTP":
		m := bellwether.NewMiddleware(pageOptions(o))
		m.OnState(enter)
		h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				return
			}
			if r.URL.Path == "/streaming/k" {
				w.(http.Flusher).Flush() // the header is sent before the load
			}
			v, err := load(r.Context(), r.URL.Path[1:])
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			fmt.Fprint(w, v)
		}))
		a.get = func(ctx context.Context, key string) string {
			w := httptest.NewRecorder()
			var broken any
			func() {
				defer func() { broken = recover() }()
				h.ServeHTTP(w, httptest.NewRequest("GET", "http://h/"+key, nil).WithContext(ctx))
			}()
			switch {
			case broken == http.ErrAbortHandler:
				return "aborted"
			case broken != nil:
				return "broken"
			case w.Code != 200:
				return strconv.Itoa(w.Code)
			}
			return w.Body.String()
		}
		a.invalidate = func(key string) error { return m.Invalidate(t.Context(), "http://h/"+key) }
		a.sweep = func(soft bool) error {
			return m.InvalidateMatching(t.Context(), bellwether.Match{Prefixes: []string{"http://h/"}, Soft: soft})
		}
		a.post = func(key string) {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "http://h/"+key, nil))
		}
		a.refresh = func(key string) error {
			return m.Refresh(h, httptest.NewRequest("GET", "http://h/"+key, nil))
		}
		a.ping, a.close = m.Ping, m.Close
	default:
		o.Size = func(string, any) int { a.breaks("Size"); return 10 }
		o.Codec = bellwether.Codec{
			Marshal:   func(v any) ([]byte, error) { a.breaks("Codec"); return json.Marshal(v) },
			Unmarshal: func(data []byte, v any) error { a.breaks("Unmarshal"); return json.Unmarshal(data, v) },
		}
		var c *bellwether.Cache[string]
		if s.face == "Get" && s.as != "window" {
			c = bellwether.New(load, o)
		} else {
			c = bellwether.NewBatch(func(ctx context.Context, keys []string) (map[string]string, error) {
				values := map[string]string{}
				for _, key := range keys {
					v, err := load(ctx, key)
					if err != nil {
						return values, err
					}
					values[key] = v
				}
				return values, nil
			}, o)
		}
		a.get = func(ctx context.Context, key string) string { return answerOf(c.Get(ctx, key)) }
		if s.face == "GetMany" {
			a.get = func(ctx context.Context, key string) string {
				values, err := c.GetMany(ctx, []string{key})
				if batch, ok := errors.AsType[*bellwether.BatchError](err); ok {
					err = batch.Errors[key]
				}
				return answerOf(values[key], err)
			}
		}
		c.OnState(enter)
		a.invalidate = func(key string) error { return c.Invalidate(t.Context(), key) }
		a.set = func(key string) error { return c.Set(context.WithValue(t.Context(), unheld{}, true), key, stageSet) }
		a.refresh = func(key string) error { return c.Refresh(t.Context(), key) }
		a.peek = func(key string) {
			c.Peek(key)
			c.HotKeys(1)
		}
		a.sweep = func(soft bool) error {
			return c.InvalidateMatching(context.WithValue(t.Context(), unheld{}, true), bellwether.Match{Prefixes: []string{s.key}, Soft: soft})
		}
		a.ping, a.close = c.Ping, c.Close
	}
	t.Cleanup(func() { a.close() })
	return a
}

// stagePhases hold the first caller's flight in a phase until release is called.
var stagePhases = []struct {
	name  string
	by    string // the state, the engine's call or the load that begins the phase; "": the caller's Get
	faces string // "": all
	setup func(s *stage) (release func())
}{
	{"gathering", "", "window", func(s *stage) func() { return func() {} }},
	{"looking", "looking", "", func(s *stage) func() { return s.p.store.hold("get") }},
	{"queueing", "queueing", "", func(s *stage) func() {
		s.origin.build = 2 * time.Second
		go s.p.get(context.Background(), "another")
		s.windowEnds()
		return func() {}
	}},
	{"standing", "standing", "", func(s *stage) func() { return s.p.locker.hold("acquire") }},
	{"watching", "watch", "", func(s *stage) func() { s.holdElsewhere(); return s.p.locker.hold("watch") }},
	{"waiting", "waiting", "", func(s *stage) func() { s.holdElsewhere(); return func() {} }},
	{"claiming", "claim", "", func(s *stage) func() { return s.p.store.hold("claim") }},
	{"loading", "load", "", func(s *stage) func() { s.origin.build = 2 * time.Second; return func() {} }},
	{"streaming", "load", "HTTP", func(s *stage) func() { s.origin.build = 2 * time.Second; return func() {} }},
	{"renewing", "renew", "", func(s *stage) func() { s.origin.build = 2 * time.Second; return s.p.locker.hold("renew") }},
	{"committing", "commit", "", func(s *stage) func() { return s.p.store.hold("commit") }},
	{"releasing", "release", "", func(s *stage) func() { return s.p.locker.hold("release") }},
}

// holdElsewhere has q load the key for two seconds.
func (s *stage) holdElsewhere() {
	s.origin.build = 2 * time.Second
	go s.q.get(context.Background(), s.key)
	s.windowEnds()
}

// windowEnds waits until the flights of earlier calls are no longer gathered.
func (s *stage) windowEnds() {
	if s.as == "window" {
		time.Sleep(stageWindow)
	}
	synctest.Wait()
}

func panics() { panic("broken") }

// ending is a fault of an adapter that does not return.
func ending(by func()) fault { return func(context.Context, string) error { by(); return nil } }

var stageEvents = []struct {
	name  string
	faces string
	do    func(s *stage, leave func())
}{
	{"nothing", "", func(*stage, func()) {}},
	{"invalidated here", "", func(s *stage, _ func()) { s.p.invalidate(s.key) }},
	{"invalidated elsewhere", "", func(s *stage, _ func()) { s.q.invalidate(s.key) }},
	{"set here", "Get GetMany", func(s *stage, _ func()) { s.err = s.p.set(s.key) }},
	{"set elsewhere", "Get GetMany", func(s *stage, _ func()) { s.err = s.q.set(s.key) }},
	{"refreshed here", "", func(s *stage, _ func()) { go s.p.refresh(s.key) }},
	{"refreshed elsewhere", "", func(s *stage, _ func()) { go s.q.refresh(s.key) }},
	{"peeked at here", "Get GetMany", func(s *stage, _ func()) { s.p.peek(s.key) }},
	{"pinged here", "", func(s *stage, _ func()) { s.err = s.p.ping(context.WithValue(context.Background(), unheld{}, true)) }},
	{"invalidated by a POST", "HTTP", func(s *stage, _ func()) { s.p.post(s.key) }},
	{"invalidated by a POST elsewhere", "HTTP", func(s *stage, _ func()) { s.q.post(s.key) }},
	{"swept here", "HTTP sweeping", func(s *stage, _ func()) { s.err = s.p.sweep(false) }},
	{"swept elsewhere", "HTTP sweeping", func(s *stage, _ func()) { s.q.sweep(false) }},
	{"softly swept here", "HTTP sweeping", func(s *stage, _ func()) { s.p.sweep(true) }},
	{"softly swept elsewhere", "HTTP sweeping", func(s *stage, _ func()) { s.q.sweep(true) }},
	{"closed", "", func(s *stage, _ func()) {
		s.p.spoil("OnError", func() { s.tells.Add(1) })
		go func() {
			began := time.Now()
			s.p.close()
			s.closing.Store(int64(time.Since(began)))
		}()
	}},
	{"caller leaves", "", func(_ *stage, leave func()) { leave() }},
	{"all leave", "", func(_ *stage, leave func()) { leave() }}, // the second caller comes with an expired context
	{"lease lost", "", func(s *stage, _ func()) { s.p.locker.set(on(answer(driver.ErrLeaseLost), "renew", "release")) }},
	{"store silent", "", func(s *stage, _ func()) { s.p.store.set(blackHole) }},
	{"store down", "", func(s *stage, _ func()) { s.p.store.set(refuse) }},
	{"store takes no writes", "", func(s *stage, _ func()) { s.p.store.set(on(blackHole, "claim", "commit", "invalidate")) }},
	{"store panics", "", func(s *stage, _ func()) { s.p.store.set(ending(panics)) }},
	{"store exits", "", func(s *stage, _ func()) { s.p.store.set(ending(runtime.Goexit)) }},
	{"value too large", "", func(s *stage, _ func()) { s.p.store.set(on(answer(driver.ErrTooLarge), "commit")) }},
	{"locker silent", "", func(s *stage, _ func()) { s.p.locker.set(blackHole) }},
	{"locker down", "", func(s *stage, _ func()) { s.p.locker.set(refuse) }},
	{"locker panics", "", func(s *stage, _ func()) { s.p.locker.set(ending(panics)) }},
	{"locker exits", "", func(s *stage, _ func()) { s.p.locker.set(ending(runtime.Goexit)) }},
	{"load fails", "", func(s *stage, _ func()) { s.origin.set(func() { s.origin.end = func() error { return errFailed } }) }},
	{"load cancelled", "Get GetMany", func(s *stage, _ func()) {
		s.origin.set(func() { s.origin.end = func() error { return context.Canceled } })
	}},
	{"load panics", "", func(s *stage, _ func()) { s.origin.set(func() { s.origin.end = func() error { panic("load") } }) }},
	{"load exits", "", func(s *stage, _ func()) {
		s.origin.set(func() { s.origin.end = func() error { runtime.Goexit(); return nil } })
	}},
	{"Size panics", "Get GetMany", func(s *stage, _ func()) { s.p.spoil("Size", panics) }},
	{"Size exits", "Get GetMany", func(s *stage, _ func()) { s.p.spoil("Size", runtime.Goexit) }},
	{"Codec panics", "Get GetMany", func(s *stage, _ func()) { s.p.spoil("Codec", panics) }},
	{"Unmarshal panics", "Get GetMany", func(s *stage, _ func()) { s.p.spoil("Unmarshal", panics) }},
	{"Size panics, OnError exits", "Get GetMany", func(s *stage, _ func()) {
		s.p.spoil("Size", panics)
		s.p.spoil("OnError", runtime.Goexit)
	}},
	{"observer panics", "", func(s *stage, _ func()) { s.p.spoil("observer", panics) }},
	{"observer exits", "", func(s *stage, _ func()) { s.p.spoil("observer", runtime.Goexit) }},
	{"OnError exits", "", func(s *stage, _ func()) { s.p.spoil("OnError", runtime.Goexit); s.p.store.set(refuse) }},
	{"OnError panics", "", func(s *stage, _ func()) { s.p.spoil("OnError", panics); s.p.store.set(refuse) }},
}

func runCell(t *testing.T, face, as, phase, by, event string, setup func(*stage) func(), do func(*stage, func())) string {
	s := &stage{face: face, as: as, key: "k", locker: locallock.New(), origin: &stageOrigin{loads: map[string]int{}, live: map[string]map[context.Context]bool{}}}
	if phase == "streaming" {
		s.key = "streaming/k"
	}
	store := memstore.New()
	s.p, s.q = s.newActor(t, store), s.newActor(t, store)
	time.Sleep(5 * time.Second) // reads at the start have ended
	if as == "stale" {
		s.p.get(context.Background(), s.key)
		s.q.get(context.Background(), s.key)
		time.Sleep(3 * time.Minute)
		s.p.forget()
	}
	release := setup(s)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	leaving := ctx
	var first, second string
	var callers sync.WaitGroup
	callers.Go(func() { first = s.p.get(leaving, s.key) })
	for range 100 {
		if synctest.Wait(); s.p.hasReached(by) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if !s.p.hasReached(by) {
		t.Fatalf("the flight has not come to %q", phase)
	}
	before := s.origin.count(s.key)
	do(s, leave)
	synctest.Wait()
	time.Sleep(time.Nanosecond) // a change and a call of one instant have no order
	began := time.Now()
	callers.Go(func() {
		if event != "all leave" {
			ctx = context.Background()
		}
		second = s.p.get(ctx, s.key)
	})
	synctest.Wait()
	release()
	callers.Wait()
	synctest.Wait() // background work meets the fault too
	if took := time.Since(began); took > 12*time.Second {
		t.Errorf("the callers waited for %v", took)
	}
	for _, a := range []*actor{s.p, s.q} {
		a.store.set(nil)
		a.locker.set(nil)
		a.mu.Lock()
		clear(a.bad)
		a.mu.Unlock()
	}
	s.origin.set(func() { s.origin.end, s.origin.build = nil, 0 })
	time.Sleep(time.Minute)
	during := s.origin.count(s.key)
	again := func() string {
		return s.p.get(context.Background(), s.key) + " " + s.q.get(context.Background(), s.key)
	}
	after := again()
	s.check(t, event, before, second, after)
	if as == "stale" { // both may have been answered with the stale value, with a rebuild in the background
		time.Sleep(5 * time.Second)
		after = again()
		s.check(t, event, before, second, after)
	}
	cell := fmt.Sprintf("%s %s | %s | %d", first, second, after, during)
	if n := s.origin.count(s.key) - during; n > 0 {
		cell += fmt.Sprintf("+%d", n)
	}
	return cell
}

func (s *stage) check(t *testing.T, event string, before int, second, after string) {
	t.Helper()
	// After an invalidation or a Set no earlier value is served, except a softly swept value as stale.
	if softly := strings.HasPrefix(event, "softly") && s.as == "stale"; !softly && s.err == nil && (strings.HasPrefix(event, "invalidated") || strings.HasPrefix(event, "set ") || strings.Contains(event, "swept")) {
		served := strings.Fields(after)
		if !strings.HasSuffix(event, "elsewhere") || s.as == "near off" { // else within NearTTL
			served = append(served, second)
		}
		for _, v := range served {
			if n, err := strconv.Atoi(strings.TrimPrefix(v, "v")); err == nil && n <= before {
				t.Errorf("%s, of before the invalidation, was served after it", v)
			}
		}
	}
	if event == "pinged here" && s.err != nil {
		t.Errorf("Ping returned %v", s.err)
	}
	if event == "closed" {
		if took := time.Duration(s.closing.Load()); took > 500*time.Millisecond || s.tells.Load() > 0 {
			t.Errorf("Close took %v, more than EngineTimeout, or OnError was told %d times", took, s.tells.Load())
		}
	} else {
		for _, v := range strings.Fields(after) {
			if !strings.HasPrefix(v, "v") {
				t.Errorf("when all is well again a caller gets %q", v)
			}
		}
		if got := s.p.get(context.Background(), "more"); got != "v1" {
			t.Errorf("another key afterwards: %q; is the slot free?", got)
		}
	}
	synctest.Wait() // the last flights release their leases after their answers
	lease, err := s.locker.TryAcquire(context.Background(), "n:"+s.key, time.Second)
	if s.face == "HTTP" {
		lease, err = s.locker.TryAcquire(context.Background(), "n:h/"+s.key, time.Second)
	}
	if err != nil {
		t.Errorf("the lease afterwards: %v", err)
	} else {
		lease.Release(context.Background())
	}
	s.origin.mu.Lock()
	defer s.origin.mu.Unlock()
	alone := strings.Contains(event, "store") || strings.Contains(event, "locker") || strings.HasPrefix(event, "OnError") ||
		event == "lease lost" || event == "value too large" || s.as == "alone"
	if s.origin.most > 1 && !alone {
		t.Errorf("%d loads of the key at one time", s.origin.most)
	}
}

var stageFaces = []string{"Get", "Get alone", "Get polling", "Get hearing", "Get stale", "Get near off", "Get window", "GetMany", "Get sweeping", "HTTP", "HTTP alone"}

// missing reports whether a variant has no such cell.
func missing(as, phase, event string) bool {
	switch as {
	case "alone":
		return phase != "queueing" && phase != "loading" && phase != "streaming" ||
			strings.Contains(event, "elsewhere") || strings.Contains(event, "locker") || strings.Contains(event, "store") ||
			event == "lease lost" || event == "value too large" || strings.HasPrefix(event, "Codec") || strings.HasPrefix(event, "OnError")
	case "polling":
		return phase == "watching"
	case "sweeping":
		return !strings.Contains(event, "swept")
	case "stale":
		return phase == "looking" // the later answers depend on too much
	}
	return false
}

// outcomes is how often a cell is played to find all its lines.
const outcomes = 30

func TestPhases(t *testing.T) {
	const file = "testdata/phases.txt"
	update := os.Getenv("BELLWETHER_PHASES") == "update"
	kept, err := os.ReadFile(file)
	if err != nil && !update {
		t.Fatal(err)
	}
	known := strings.Split(string(kept), "\n")
	table := []string{"# first caller, second caller | p, q afterwards | loads: see phases_test.go"}
	is := func(faces, face string) bool { return faces == "" || slices.Contains(strings.Fields(faces), face) }
	for _, faceAs := range stageFaces {
		face, as, _ := strings.Cut(faceAs, " ")
		for _, phase := range stagePhases {
			for _, event := range stageEvents {
				if !is(phase.faces, face) && !is(phase.faces, as) || !is(event.faces, face) && !is(event.faces, as) || missing(as, phase.name, event.name) {
					continue
				}
				name := fmt.Sprintf("%s %s: %s", faceAs, phase.name, event.name)
				play := func(t *testing.T) string {
					return fmt.Sprintf("%-45s %s", name, runCell(t, face, as, phase.name, phase.by, event.name, phase.setup, event.do))
				}
				if !update {
					inBubbleBeside(t, name, func(t *testing.T) {
						if line := play(t); !slices.Contains(known, line) {
							t.Errorf("not in %s:\n%s", file, line)
						}
					})
					continue
				}
				lines := slices.DeleteFunc(slices.Clone(known), func(line string) bool { return !strings.HasPrefix(line, name+" ") })
				for range outcomes {
					inBubble(t, name, func(t *testing.T) { lines = append(lines, play(t)) })
				}
				slices.Sort(lines)
				table = append(table, slices.Compact(lines)...)
			}
		}
	}
	if update {
		if err := os.WriteFile(file, []byte(strings.Join(table, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
