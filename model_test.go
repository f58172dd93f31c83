package bellwether_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is the model: it calls, invalidates, cuts off, stops, kills and replaces a fleet of real
// caches in an order that a seed or a shrinker chooses, and checks each answer against the promises.
// TestModel plays scenarios with the race detector. sim/ plays many more, and can repeat each exactly.

// A scenario is the drawn part of one play. Seed determines the rest.
type scenario struct {
	Seed    uint64
	Face    string // one of modelFaces
	Trouble string // one of modelTroubles

	Processes, Keys int
	Delay           time.Duration // maximum delay of a message
	Store           string        // "plain", "telling", "together", "all", "one engine"
	Watches         bool          // the locker is a Watcher
	Users           bool          // some clients have credentials; HTTP only
	Sweeps          bool          // Options.Sweeps; loader only

	TTL, StaleWhileRevalidate, StaleIfError time.Duration
	ErrorTTL, Patience                      time.Duration
	NearTTL                                 time.Duration
	Window                                  time.Duration // Options.BatchWindow; batch only
	Hedge                                   float64
	Early                                   float64
	MaxRebuilds                             int
	Load                                    time.Duration // initial duration of loads

	Steps []modelStep
}

type modelStep struct {
	Do      string        // one of modelActions
	Process int           // index of the process
	Key     int           // index of the key
	N       int           // number of callers, or a kind
	For     time.Duration // duration of the callers' waits or of loads
	Pause   time.Duration // pause after the step
}

const (
	modelMaxWait        = 12 * time.Second
	modelRebuildTimeout = 5 * time.Second
	modelLease          = 2 * time.Second
	modelEngineTimeout  = 500 * time.Millisecond
)

var (
	modelFaces = []string{"loader", "batch", "HTTP"}
	// In "healthy" scenarios all promises hold. In "noise", messages are late, repeated and
	// reordered, and half of the pushes are lost. In "stops", processes are stopped, killed and
	// replaced. In "outages", engines are cut off, refuse, and lose their data.
	modelTroubles = []string{"healthy", "noise", "stops", "outages"}
	modelActions  = map[string][]string{
		"":        {"get", "get", "get", "get", "get", "many", "leave", "invalidate", "set", "sweep", "refresh", "peek", "origin", "fail"},
		"healthy": {"close"},
		"noise":   {"close", "noise", "heal"},
		"stops":   {"stop", "go on", "kill", "close"},
		"outages": {"cut", "refuse", "lose", "restart store", "restart locker", "heal"},
	}
)

func scenarios(least int) *rapid.Generator[scenario] {
	return rapid.Custom(func(t *rapid.T) scenario { return drawScenario(t, least) })
}

func drawScenario(t *rapid.T, least int) scenario {
	span := func(name string, values ...time.Duration) time.Duration {
		return rapid.SampledFrom(values).Draw(t, name)
	}
	const ms, s = time.Millisecond, time.Second
	sc := scenario{
		Seed:                 rapid.Uint64().Draw(t, "seed"),
		Face:                 rapid.SampledFrom(modelFaces).Draw(t, "face"),
		Trouble:              rapid.SampledFrom(modelTroubles).Draw(t, "trouble"),
		Processes:            rapid.IntRange(1, 5).Draw(t, "processes"),
		Keys:                 rapid.IntRange(1, 4).Draw(t, "keys"),
		Delay:                span("delay", 0, ms, 20*ms),
		Store:                rapid.SampledFrom([]string{"plain", "telling", "together", "all", "one engine"}).Draw(t, "store"),
		Watches:              rapid.Bool().Draw(t, "watches"),
		Users:                rapid.Bool().Draw(t, "users"),
		Sweeps:               rapid.Bool().Draw(t, "sweeps"),
		TTL:                  span("TTL", s, 3*s, 8*s, 60*s),
		StaleWhileRevalidate: span("stale-while-revalidate", 0, 2*s, 20*s),
		StaleIfError:         span("stale-if-error", 0, 0, 20*s),
		ErrorTTL:             span("ErrorTTL", -1, 0, s, 3*s),
		Patience:             span("patience", 0, 100*ms),
		NearTTL:              span("NearTTL", s, s, -1),
		Window:               span("window", 0, 0, 5*ms, 200*ms),
		Hedge:                rapid.SampledFrom([]float64{0, 0, 2}).Draw(t, "hedge"),
		Early:                rapid.SampledFrom([]float64{0, 0, 1}).Draw(t, "early"),
		MaxRebuilds:          rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "rebuilds"),
		Load:                 span("load", 0, 10*ms, 300*ms, s, 3*s),
	}
	if sc.Face == "HTTP" {
		sc.Hedge = 0
	}
	if sc.Face != "batch" {
		sc.Window = 0
	}
	actions := append(slices.Clone(modelActions[""]), modelActions[sc.Trouble]...)
	sc.Steps = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) modelStep {
		return modelStep{
			Do:      rapid.SampledFrom(actions).Draw(t, "do"),
			Process: rapid.IntRange(0, sc.Processes-1).Draw(t, "process"),
			Key:     rapid.IntRange(0, sc.Keys-1).Draw(t, "key"),
			N:       rapid.SampledFrom([]int{1, 2, 3, 5, 20, 60}).Draw(t, "n"),
			For:     span("for", 0, 10*ms, 300*ms, s, 3*s),
			Pause:   span("pause", -1, 0, ms, 100*ms, 900*ms, 3*s, 10*s),
		}
	}), least, 200).Draw(t, "steps")
	return sc
}

type dice struct {
	mu  sync.Mutex // guards rng
	rng *rand.Rand
}

func (d *dice) roll(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

func (d *dice) upTo(most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Duration(d.rng.Int64N(int64(most)))
}

type world struct {
	scenario
	room    *engineRoom
	dice    *dice
	origin  *modelOrigin
	started time.Time
	callers sync.WaitGroup
	setting []chan struct{} // by key, see alone; channels, because a bubble's time does not wait for a mutex

	mu         sync.Mutex   // guards the fields below
	now        []*modelNode // by process: the current node
	all        []*modelNode // all nodes, with the former ones
	trace      io.Writer    // records all events
	operations int          // calls of caches
	found      []string     // violations
	latest     [][]int      // by process and key: the highest version returned
	graves     []graveyard  // by key
	swept      time.Time    // when the latest sweep began
}

func (w *world) note(what string, process int, about string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintln(w.trace, time.Since(w.started).Nanoseconds(), what, process, about)
}

func (w *world) violated(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.found) < 5 {
		w.found = append(w.found, fmt.Sprintf("%v: ", time.Since(w.started))+fmt.Sprintf(format, args...))
	}
}

func (w *world) sweptSince(then time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.swept.After(then)
}

func (w *world) node(i int) *modelNode {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now[i]
}

type modelNode struct {
	world        *world
	process      int
	store, locks *link
	dies         context.CancelFunc // ends its callers too
	life         context.Context

	get        func(ctx context.Context, key int, who string) modelAnswer
	many       func(ctx context.Context, keys []int) []modelAnswer // nil if the face has no GetMany
	invalidate func(keys ...int) error
	refresh    func(key int) error                                      // HTTP: the end of the refresh, else its beginning
	set        func(key int, value string) error                        // nil if the face has no Set
	peek       func(key int) (value string, age time.Duration, ok bool) // nil if the face has no Peek
	sweep      func(kind, key int) (hard bool, keys []int, err error)   // nil if InvalidateMatching does not reach the fleet
	ping       func(ctx context.Context) error
	close      func() error
	stats      func() observe.Stats

	mu      sync.Mutex // guards the fields below
	dead    bool
	stopped chan struct{} // nil if it is not stopped
	resumed time.Time     // end of its last stop
	stops   int           // number of its stops
}

type modelAnswer struct {
	version int // 0: no value
	body    string
	err     error
}

func (n *modelNode) links(f func(l *link)) {
	n.store.set(f)
	n.locks.set(f)
}

// heal ends all troubles of the links except a stop of the process.
func (n *modelNode) heal() {
	n.links(func(l *link) {
		l.delay, l.repeat, l.deaf, l.cut, l.refused, l.lost = n.world.Delay, false, false, false, false, ""
	})
}

// stop stops the process until goOn: its messages in both directions, and its loads.
func (n *modelNode) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped == nil && !n.dead {
		n.stopped = make(chan struct{})
		n.stops++
		n.links(func(l *link) { l.stopped = n.stopped })
	}
}

func (n *modelNode) goOn() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped != nil {
		n.links(func(l *link) { l.stopped = nil })
		close(n.stopped)
		n.stopped, n.resumed = nil, time.Now()
	}
}

// alone reports whether a load that began then may have run without the engines, which a stopped
// process takes for silent until its next call.
func (n *modelNode) alone(began time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stopped != nil || began.Sub(n.resumed).Abs() < 2*time.Second
}

func (n *modelNode) runs() { n.store.runs() }

// stood reports how often the process was stopped, and whether it is stopped now.
func (n *modelNode) stood() (times int, stopped bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stops, n.stopped != nil
}

// kill ends the process, without further messages.
func (n *modelNode) kill() {
	n.mu.Lock()
	n.dead = true
	n.mu.Unlock()
	n.goOn()
	n.links(func(l *link) { l.cut = true })
	n.dies()
	n.world.callers.Go(func() { n.close() })
}

func (n *modelNode) isDead() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dead
}

func (w *world) start(t *testing.T, i int) {
	n := &modelNode{world: w, process: i}
	n.store, n.locks = &link{dice: w.dice, delay: w.Delay}, &link{dice: w.dice, delay: w.Delay}
	n.life, n.dies = context.WithCancel(context.Background())
	store := &linkStore{n.store, w.room}
	locker := &linkLocker{n.locks, w.room}
	o := bellwether.Options{
		TTL: w.TTL, StaleWhileRevalidate: w.StaleWhileRevalidate, StaleIfError: w.StaleIfError,
		ErrorTTL: w.ErrorTTL, Patience: w.Patience, Fleet: bellwether.Fleet{NearTTL: w.NearTTL, LeaseTTL: modelLease, EngineTimeout: modelEngineTimeout, Locker: locker, Namespace: "model"}, Hedge: w.Hedge, HedgeShare: 1, EarlyRefresh: w.Early, Limits: bellwether.Limits{MaxRebuilds: w.MaxRebuilds},
		MaxWait: modelMaxWait, RebuildTimeout: modelRebuildTimeout,
		OnError: func(string, error) {},
	}
	if w.Hedge == 0 {
		o.HedgeShare = 0
	}
	if w.Face == "loader" {
		o.Sweeps = w.Sweeps
	}
	if w.Watches {
		o.Fleet.Locker = struct {
			*linkLocker
			watches
		}{locker, locker.watchEnd}
	}
	switch w.Store {
	case "plain":
		o.Fleet.Store = store
	case "telling":
		o.Fleet.Store = struct {
			*linkStore
			notifies
			fences
		}{store, store.notify, store.fenced}
	case "together":
		o.Fleet.Store = batchesBy(store, store.getMany)
	case "all":
		o.Fleet.Store = struct {
			*linkStore
			getsMany
			notifies
			fences
			touches
		}{store, store.getMany, store.notify, store.fenced, store.touch}
	}
	if w.Store == "one engine" {
		o.Fleet.Store, o.Fleet.Locker, o.Fleet.Engine = nil, nil, w.oneEngine(&linkEngine{store, store.touch, locker})
	}
	states := func(key, state string) { w.note(state, i, key) }
	if w.Face == "HTTP" {
		n.serve(t, o, states)
	} else {
		n.load(t, o, states)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.now) <= i {
		w.now = append(w.now, nil)
	}
	w.now[i] = n
	w.all = append(w.all, n)
	w.latest[i] = make([]int, w.Keys) // a new process has seen no version
}

func (w *world) oneEngine(e *linkEngine) driver.Elector {
	if w.Watches {
		return watchedEngine{e}
	}
	return e
}

func keyName(k int) string { return "k" + strconv.Itoa(k) }

func (n *modelNode) load(t *testing.T, o bellwether.Options, states func(key, state string)) {
	var c *bellwether.Cache[string]
	if n.world.Face == "loader" {
		c = bellwether.New(func(ctx context.Context, key string) (string, error) {
			return n.world.origin.load(ctx, n, key, "")
		}, o)
	} else {
		o.BatchWindow = n.world.Window
		c = bellwether.NewBatch(func(ctx context.Context, keys []string) (map[string]string, error) {
			return n.world.origin.loadMany(ctx, n, keys)
		}, o)
	}
	c.OnState(states)
	answer := func(v string, err error) modelAnswer {
		return modelAnswer{version: versionIn(v), body: v, err: err}
	}
	n.get = func(ctx context.Context, key int, _ string) modelAnswer { return answer(c.Get(ctx, keyName(key))) }
	n.many = func(ctx context.Context, keys []int) []modelAnswer {
		names := make([]string, len(keys))
		for i, key := range keys {
			names[i] = keyName(key)
		}
		values, err := c.GetMany(ctx, names)
		batch, partly := errors.AsType[*bellwether.BatchError](err)
		answers := make([]modelAnswer, len(keys))
		for i, name := range names {
			v, ok := values[name]
			switch {
			case ok:
				answers[i] = answer(v, nil)
			case partly:
				answers[i].err = batch.Errors[name]
			default:
				answers[i].err = err
			}
			if !ok && answers[i].err == nil {
				n.world.violated("process %d: GetMany has neither value nor error for %s", n.process, name)
				answers[i].err = errOrigin
			}
		}
		return answers
	}
	n.invalidate = func(keys ...int) error {
		names := make([]string, len(keys))
		for i, key := range keys {
			names[i] = keyName(key)
		}
		return c.Invalidate(n.life, names...)
	}
	if o.Sweeps {
		n.sweep = func(kind, key int) (hard bool, keys []int, err error) {
			match := bellwether.Match{Soft: kind%2 == 1}
			keys = n.world.keys()
			switch kind % 3 {
			case 0:
				match.Keys, keys = []string{keyName(key)}, []int{key}
			case 1:
				match.Prefixes = []string{"k"}
			case 2:
				match.All = true
			}
			return !match.Soft, keys, c.InvalidateMatching(n.life, match)
		}
	}
	n.refresh = func(key int) error { return c.Refresh(n.life, keyName(key)) }
	n.set = func(key int, value string) error { return c.Set(n.life, keyName(key), value) }
	n.peek = func(key int) (string, time.Duration, bool) {
		c.HotKeys(1)
		return c.Peek(keyName(key))
	}
	n.ping, n.close, n.stats = c.Ping, c.Close, c.Stats
}

// pageOptions returns the part of o that HTTPOptions has.
func pageOptions(o bellwether.Options) bellwether.HTTPOptions {
	return bellwether.HTTPOptions{
		TTL: o.TTL, StaleWhileRevalidate: o.StaleWhileRevalidate, StaleIfError: o.StaleIfError,
		ErrorTTL: o.ErrorTTL, MaxErrorTTL: o.MaxErrorTTL, EarlyRefresh: o.EarlyRefresh, TTLJitter: o.TTLJitter,
		Patience: o.Patience, MaxWait: o.MaxWait, RebuildTimeout: o.RebuildTimeout,
		Fleet: o.Fleet, Limits: o.Limits, OnError: o.OnError, Observers: o.Observers,
	}
}

// serve gives the process a Middleware. Key 0 is a page for all, key 1 has variants, key 2 is
// private at times, and key 3 does not mention credentials.
func (n *modelNode) serve(t *testing.T, o bellwether.Options, states func(key, state string)) {
	w := n.world
	po := pageOptions(o)
	po.HitForMissTTL = 3 * time.Second
	m := bellwether.NewMiddleware(po)
	m.OnState(states)
	h := m.Handler(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		key, who := r.URL.Path[1:], r.Header.Get("Authorization")
		run := w.origin.begin(r.Context(), n, key, who)
		defer w.origin.end(run)
		open := map[string]string{"k0": "public", "k1": "public", "k2": "public"}[key]
		if key == "k2" && run.version%3 == 0 {
			open = "private"
		}
		if run.version%2 == 0 { // before the header
			if err := w.origin.build(run); err != nil {
				http.Error(rw, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		cc := fmt.Sprintf("max-age=%d", int(w.TTL/time.Second))
		if open != "" {
			cc += ", " + open
		}
		if w.StaleWhileRevalidate > 0 {
			cc += fmt.Sprintf(", stale-while-revalidate=%d", int(w.StaleWhileRevalidate/time.Second))
		}
		if w.StaleIfError > 0 {
			cc += fmt.Sprintf(", stale-if-error=%d", int(w.StaleIfError/time.Second))
		}
		rw.Header().Set("Cache-Control", cc)
		rw.Header().Set("Surrogate-Key", "all "+key)
		if key == "k1" {
			rw.Header().Set("Vary", "Accept-Language")
		}
		if run.version%5 == 0 {
			rw.Header().Set("ETag", fmt.Sprintf(`"%d"`, run.version))
		}
		fmt.Fprintf(rw, "%s v%d for=%q %s ", key, run.version, who, open)
		if run.version%2 == 1 {
			rw.(http.Flusher).Flush()
			if err := w.origin.build(run); err != nil {
				panic(http.ErrAbortHandler)
			}
		}
		io.WriteString(rw, "end")
	}))
	request := func(ctx context.Context, key int, who string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "http://h/"+keyName(key), nil).WithContext(ctx)
		if who != "" {
			r.Header.Set("Authorization", who)
		}
		if key == 1 {
			r.Header.Set("Accept-Language", []string{"de", "fr"}[w.dice.roll(2)])
		}
		return r
	}
	n.refresh = func(key int) error { return m.Refresh(h, request(n.life, key, "")) }
	n.get = func(ctx context.Context, key int, who string) modelAnswer {
		r := request(ctx, key, who)
		rec := httptest.NewRecorder()
		broken := true
		func() {
			defer func() { recover() }()
			h.ServeHTTP(rec, r)
			broken = false
		}()
		a := modelAnswer{body: rec.Body.String()}
		if broken || rec.Code != http.StatusOK {
			a.err = fmt.Errorf("status %d, broken off %t: %w", rec.Code, broken, errOrigin)
		} else {
			a.version = versionIn(a.body)
		}
		return a
	}
	url := func(key int) string { return "http://h/" + keyName(key) }
	n.invalidate = func(keys ...int) error {
		urls := make([]string, len(keys))
		for i, key := range keys {
			urls[i] = url(key)
		}
		return m.Invalidate(n.life, urls...)
	}
	n.sweep = func(kind, key int) (hard bool, keys []int, err error) {
		match := bellwether.Match{Soft: kind%2 == 1}
		keys = []int{key}
		switch kind % 3 {
		case 0:
			match.Tags = []string{keyName(key)}
		case 1:
			match.Tags, keys = []string{"all"}, w.keys()
		case 2:
			match.Prefixes, keys = []string{"http://h/"}, w.keys()
		}
		return !match.Soft, keys, m.InvalidateMatching(n.life, match)
	}
	n.ping, n.close, n.stats = m.Ping, m.Close, m.Stats
}

// versionIn returns the version in a value or a failure, or 0.
func versionIn(text string) int {
	_, after, found := strings.Cut(text, " v")
	if !found {
		return 0
	}
	digits := after
	for i, r := range after {
		if r < '0' || r > '9' {
			digits = after[:i]
			break
		}
	}
	v, _ := strconv.Atoi(digits)
	return v
}

// A modelOrigin makes versions 1, 2, ... in the order in which their loads begin.
type modelOrigin struct {
	world *world

	mu      sync.Mutex // guards the fields below
	took    time.Duration
	ending  int // index in endings of unsuccessful loads
	every   int // every nth load is unsuccessful; 0: none
	loads   int
	failed  bool                 // a load was unsuccessful, or its value had expired at its end
	began   []time.Time          // by version
	ended   []time.Time          // by version: end of a successful load, or zero
	broke   []time.Time          // by version: end of a failed load, or zero
	last    map[string]*modelRun // by key: the last load to end
	good    time.Time            // end of the last successful load
	running map[*modelRun]bool
	runs    []*modelRun       // by version; nil for a Set
	voiding map[string]int    // by key: running invalidations
	doubted map[string]int    // by key: versions up to this may precede the end of an invalidation
	sets    map[int]time.Time // by version: end of its successful Set, or zero
}

type modelRun struct {
	ctx     context.Context
	node    *modelNode
	key     string
	who     string
	version int
	took    time.Duration
	fails   func() error // nil if the load succeeds
	ending  int          // index in endings
}

var endings = []func(text string) error{
	func(text string) error { return fmt.Errorf("%s failed: %w", text, errOrigin) },
	func(text string) error { panic(text + " panicked") },
	func(string) error { runtime.Goexit(); return nil },
	func(text string) error { return fmt.Errorf("%s gave up: %w", text, context.Canceled) },
	func(text string) error { return fmt.Errorf("%s: %w", text, bellwether.ErrNotFound) },
}

// remembered is the number of endings, from the first, whose failures are remembered.
const remembered = 3

// begin counts a load, and checks the number of concurrent loads.
func (o *modelOrigin) begin(ctx context.Context, n *modelNode, key, who string) *modelRun {
	w := o.world
	n.runs()
	o.mu.Lock()
	o.loads++
	run := &modelRun{ctx: ctx, node: n, key: key, who: who, version: o.loads, took: o.took}
	o.runs = append(o.runs, run)
	o.began = append(o.began, time.Now())
	o.ended = append(o.ended, time.Time{})
	o.broke = append(o.broke, time.Time{})
	if o.every > 0 && run.version%o.every == 0 {
		end := endings[o.ending]
		run.ending = o.ending
		run.fails = func() error { return end(fmt.Sprintf("%s v%d", key, run.version)) }
	}
	// One load of the key in the fleet, and MaxRebuilds in the process. With HTTP this holds for
	// pages that are and were for all.
	most, here, elsewhere := 1, 0, 0
	if w.Hedge > 0 {
		most = 2
	}
	for other := range o.running {
		if other.ctx.Err() != nil || other.node.isDead() {
			continue // a load without callers
		}
		// A load of many keys goes on when one of its keys is invalidated, and the key's lease may end meanwhile.
		if other.key == key && (w.Face != "batch" || other.node == n || o.voiding[key] == 0 && other.version > o.doubted[key]) {
			elsewhere++
		}
		if other.node == n {
			here++
		}
	}
	o.running[run] = true
	failed := o.failed
	o.failed = failed || run.fails != nil || run.took >= w.TTL
	needless, last := o.needless(key)
	o.mu.Unlock()
	w.note("loads", n.process, key)
	// An error response, or one that has expired at its end, answers only its own process.
	shared := w.Face != "HTTP" || !w.Users && key == "k0" && !failed
	if w.Trouble == "healthy" || w.Trouble == "noise" {
		if elsewhere >= most && shared {
			w.violated("%d loads of %s at one time", elsewhere+1, key)
		}
	}
	if needless != "" && last.node == w.node(last.node.process) { // the value of a closed process may be lost
		w.violated("process %d: load v%d of %s, but %s", n.process, run.version, key, needless)
	}
	if w.MaxRebuilds > 0 && w.Face == "loader" && here >= w.MaxRebuilds {
		w.violated("process %d: %d loads at one time, with MaxRebuilds %d", n.process, here+1, w.MaxRebuilds)
	}
	return run
}

// needless returns why a healthy fleet needs no load of the key, or "", and its last load. o.mu is held.
func (o *modelOrigin) needless(key string) (why string, last *modelRun) {
	w := o.world
	last = o.last[key]
	if w.Trouble != "healthy" || w.Face != "loader" || w.Hedge > 0 || w.Early > 0 || last == nil || o.voiding[key] > 0 || last.version <= o.doubted[key] {
		return "", nil
	}
	ended, broke := o.ended[last.version-1], o.broke[last.version-1]
	pause := w.ErrorTTL
	if pause == 0 {
		pause = time.Second // the default
	}
	switch {
	case !ended.IsZero() && time.Since(ended) < w.TTL:
		return fmt.Sprintf("v%d was made %v before", last.version, time.Since(ended)), last
	case !broke.IsZero() && last.ending < remembered && o.good.Before(broke) && time.Since(broke) < pause/2: // see Options.ErrorTTL
		return fmt.Sprintf("v%d failed %v before", last.version, time.Since(broke)), last
	}
	return "", nil
}

func (o *modelOrigin) build(run *modelRun) error {
	select {
	case <-time.After(run.took):
	case <-run.ctx.Done():
		return context.Cause(run.ctx)
	}
	run.node.runs()
	if run.fails != nil {
		o.set(func(o *modelOrigin) { o.broke[run.version-1], o.last[run.key] = time.Now(), run })
		return run.fails()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended[run.version-1], o.good, o.last[run.key] = time.Now(), time.Now(), run
	return nil
}

func (o *modelOrigin) end(run *modelRun) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.running, run)
}

func (o *modelOrigin) load(ctx context.Context, n *modelNode, key, who string) (string, error) {
	run := o.begin(ctx, n, key, who)
	defer o.end(run)
	if err := o.build(run); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s v%d", key, run.version), nil
}

// loadMany fails only the keys whose loads fail, except by a panic or Goexit.
func (o *modelOrigin) loadMany(ctx context.Context, n *modelNode, keys []string) (map[string]string, error) {
	values, failed := map[string]string{}, map[string]error{}
	runs := make([]*modelRun, len(keys))
	for i, key := range keys {
		runs[i] = o.begin(ctx, n, key, "")
		defer o.end(runs[i])
	}
	for i, key := range keys {
		if i > 0 {
			runs[i].took = 0 // the keys are loaded together
		}
		if err := o.build(runs[i]); err != nil {
			failed[key] = err
			continue
		}
		values[key] = fmt.Sprintf("%s v%d", key, runs[i].version)
	}
	if len(failed) > 0 {
		return values, &bellwether.BatchError{Errors: failed}
	}
	return values, nil
}

func (o *modelOrigin) set(f func(o *modelOrigin)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f(o)
}

// failedSince reports whether a load of the key has failed since then. A Set may be lost beside a load
// that fails meanwhile, see Set in docs/design.md: the failure is committed with the value from before.
func (o *modelOrigin) failedSince(key string, then time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.runs, func(r *modelRun) bool {
		return r != nil && r.key == key && !o.broke[r.version-1].Before(then)
	})
}

// times returns the begin and end of a version's load; ok is false if the load did not succeed.
func (o *modelOrigin) times(version int) (began, ended time.Time, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if version < 1 || version > o.loads {
		return began, ended, false
	}
	return o.began[version-1], o.ended[version-1], !o.ended[version-1].IsZero()
}

// failedAt returns when a version's load failed, or zero.
func (o *modelOrigin) failedAt(version int) (broke time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if version >= 1 && version <= o.loads {
		broke = o.broke[version-1]
	}
	return broke
}

// void begins an invalidation of the key, and returns the number of loads begun.
func (o *modelOrigin) void(key string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.voiding[key]++
	return o.loads
}

// over ends an invalidation of the key. Loads that begin later come after it.
func (o *modelOrigin) over(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.voiding[key]--
	o.doubted[key] = o.loads
}

func (o *modelOrigin) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.loads
}

// beginSet counts a Set as a load that begins now.
func (o *modelOrigin) beginSet() (version int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.loads++
	o.began, o.ended, o.broke, o.runs = append(o.began, time.Now()), append(o.ended, time.Time{}), append(o.broke, time.Time{}), append(o.runs, nil)
	o.sets[o.loads] = time.Time{}
	return o.loads
}

// since returns the first version whose load began at then or later, or 0. Loads of an instant have no order.
func (o *modelOrigin) since(then time.Time) (version int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := slices.IndexFunc(o.began, func(began time.Time) bool { return !began.Before(then) })
	return i + 1
}

// busy returns how long after then the process's own loads of the key go on that are under way then.
func (o *modelOrigin) busy(n *modelNode, key string, then time.Time) (busy time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, run := range o.runs {
		if run == nil || run.node != n || run.key != key || o.began[i].After(then) {
			continue
		}
		end := time.Now()
		for _, at := range []time.Time{o.ended[i], o.broke[i]} {
			if !at.IsZero() {
				end = at
			}
		}
		busy = max(busy, end.Sub(then))
	}
	return busy
}

// setBeside reports whether a Set made the version, and whether it may have been running at the time then.
func (o *modelOrigin) setBeside(version int, then time.Time) (isSet, beside bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	end, isSet := o.sets[version]
	return isSet, isSet && (end.IsZero() || !end.Before(then))
}

type modelCall struct {
	node   *modelNode
	key    int
	who    string
	start  time.Time
	gone   graves
	least  int
	stops  int
	leaves bool // the caller has its own deadline
	many   bool // part of a GetMany, which waits for its slowest key
}

func (w *world) call(n *modelNode, key int, who string, leaves bool) modelCall {
	stops, _ := n.stood()
	start := time.Now()
	gone := w.graves[key].gravesAt(n.process, start)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.operations++
	return modelCall{node: n, key: key, who: who, start: start, gone: gone, least: w.latest[n.process][key], stops: stops, leaves: leaves}
}

func (w *world) judge(c modelCall, a modelAnswer) {
	n, name := c.node, keyName(c.key)
	w.note("answers", n.process, fmt.Sprint(name, " ", a.version, " ", a.err))
	if n.isDead() {
		return // a dead caller
	}
	stops, stopped := n.stood()
	stood := stopped || stops != c.stops
	took := time.Since(c.start)
	most := modelMaxWait + 2*w.Delay
	if w.Face == "HTTP" {
		most += time.Second
		if c.who != "" || w.Users || c.key == 2 || c.key == 3 {
			most += modelRebuildTimeout + 3*time.Second // with the handler's own time
		}
	}
	if took > most && !stood {
		w.violated("process %d: a caller of %s waited for %v", n.process, name, took)
	}
	told := a.body
	if a.err != nil {
		told = a.err.Error()
	}
	version := versionIn(told)
	if w.Face == "batch" && strings.Contains(told, " panicked") {
		return // a panic fails all keys of a load, and names one
	}
	if version > 0 && !strings.Contains(told, name+" v") {
		w.violated("process %d: a caller of %s got %q", n.process, name, told)
		return
	}
	if at, dead := c.gone.of(version); dead && version > 0 {
		w.violated("process %d: a caller of %v got %q, %v after that was invalidated", n.process, c.start.Sub(w.started), told, c.start.Sub(at))
	}
	if a.err != nil {
		// A context's error is not remembered.
		if broke := w.origin.failedAt(version); w.Trouble == "healthy" && w.Face != "HTTP" && errors.Is(a.err, context.Canceled) && !broke.IsZero() && c.start.Sub(broke) > modelEngineTimeout {
			w.violated("process %d: a caller of %v got %q, of %v before", n.process, c.start.Sub(w.started), told, c.start.Sub(broke))
		}
		w.judgeError(c, a.err)
		return
	}
	if w.Face == "HTTP" {
		w.judgePage(c, a)
	}
	if version == 0 {
		w.violated("process %d: a caller of %s got %q", n.process, name, told)
		return
	}
	began, ended, _ := w.origin.times(version)
	// Stale beats slow, where no rule lets a caller wait for a failure first.
	most = w.Window + w.Patience + 500*time.Millisecond + 20*w.Delay
	isSet, _ := w.origin.setBeside(version, time.Time{})
	if isSet {
		most += 500 * time.Millisecond
	}
	if isSet || w.Face == "HTTP" && w.Users {
		// A Set elsewhere, or a public response to credentials, is stored without a lease. A flight that
		// waits for another process's load sees it at the next look, after a second. A load does not
		// hear of it, and the load's callers wait for its end.
		most += 500*time.Millisecond + w.origin.busy(n, name, c.start)
	}
	// After a soft sweep a value's windows begin when the process hears of the sweep. So here they may be
	// over, and another process's failure then has the value within its windows.
	if !c.many && w.Trouble == "healthy" && w.StaleIfError == 0 && !ended.IsZero() && ended.Before(c.start) && !w.sweptSince(ended) && took > most {
		w.violated("process %d: a caller of %s waited %v for %q, which was made %v before", n.process, name, took, told, c.start.Sub(ended))
	}
	// Values move forward. A process in an outage or after a stop is on its own for a while, responses
	// to credentials bypass the cache, and loads of one instant claim their epochs in any order.
	if w.Trouble != "outages" && (w.Face != "HTTP" || c.key == 0 && !w.Users) {
		least, end, _ := w.origin.times(c.least)
		_, beside := w.origin.setBeside(version, least)
		// Readers of a response may have its end before its commit. A call that begins in between gets the
		// stale response if the claim is NearTTL ago, unless a Fencer has vouched for the new one.
		uncommitted := w.Face == "HTTP" && !c.start.After(end.Add(2*w.Delay))
		if version < c.least && !began.Equal(least) && !beside && !uncommitted {
			w.violated("process %d: a caller of %v got %q after v%d", n.process, c.start.Sub(w.started), told, c.least)
		}
		if !n.alone(began) {
			w.atLeast(n, c.key, version)
		}
	}
}

// judgeError checks that a failure is that of a load or a limit.
func (w *world) judgeError(c modelCall, err error) {
	if w.Face == "HTTP" {
		return // a status
	}
	panicked, isPanic := errors.AsType[*bellwether.PanicError](err)
	switch text := err.Error(); {
	case isPanic && versionIn(fmt.Sprint(panicked.Value)) > 0:
	case errors.Is(err, errOrigin), errors.Is(err, bellwether.ErrNotFound), errors.Is(err, bellwether.ErrGoexit):
	case errors.Is(err, bellwether.ErrWaitTimeout), errors.Is(err, bellwether.ErrRebuildTimeout), errors.Is(err, bellwether.ErrOverloaded):
	case errors.Is(err, bellwether.ErrClosed) && c.node != w.node(c.node.process): // replaced by now
	case c.leaves && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)):
	case errors.Is(err, context.Canceled) && versionIn(text) > 0: // the load's own error
	case isRemote(err) && (versionIn(text) > 0 || strings.Contains(text, "Goexit") || strings.Contains(text, "RebuildTimeout") || strings.Contains(text, "closed")):
	default:
		w.violated("process %d: a caller of %s got %v", c.node.process, keyName(c.key), err)
	}
}

func isRemote(err error) bool {
	_, ok := errors.AsType[*bellwether.RemoteError](err)
	return ok
}

// judgePage checks that a page is whole, and for its client.
func (w *world) judgePage(c modelCall, a modelAnswer) {
	if !strings.HasSuffix(a.body, " end") {
		w.violated("process %d: a client of %s got %q for a whole page", c.node.process, keyName(c.key), a.body)
	}
	_, after, _ := strings.Cut(a.body, "for=")
	who, rest, _ := strings.Cut(after, " ")
	who, _ = strconv.Unquote(who)
	open := strings.HasPrefix(rest, "public")
	if strings.HasPrefix(rest, "private") && who == "" && c.who == "" {
		return // two anonymous clients
	}
	if !open && who != c.who {
		w.violated("process %d: the client %q got %q", c.node.process, c.who, a.body)
	}
}

func (w *world) keys() []int {
	keys := make([]int, w.Keys)
	for i := range keys {
		keys[i] = i
	}
	return keys
}

func (w *world) invalidate(n *modelNode, keys ...int) {
	defer w.alone(keys...)()
	n.runs()
	before := 0
	for _, key := range keys {
		before = w.origin.void(keyName(key))
		defer w.origin.over(keyName(key))
	}
	if n.invalidate(keys...) == nil && !n.isDead() {
		w.invalidated(n, keys, before, true)
	}
	time.Sleep(2*w.Delay + 1) // a load with an earlier claim has begun by then
}

// alone waits until none of the keys is being set or invalidated, and blocks others until end is
// called, because a Set beside them has no order.
func (w *world) alone(keys ...int) (end func()) {
	for _, key := range keys { // in a fixed order
		w.setting[key] <- struct{}{}
	}
	return func() {
		for _, key := range keys {
			<-w.setting[key]
		}
	}
}

func (w *world) set(n *modelNode, key int) {
	defer w.alone(key)()
	n.runs()
	w.origin.void(keyName(key))
	defer w.origin.over(keyName(key))
	version, start := w.origin.beginSet(), time.Now()
	if n.set(key, fmt.Sprintf("%s v%d", keyName(key), version)) == nil && !n.isDead() && !w.origin.failedSince(keyName(key), start) {
		w.origin.set(func(o *modelOrigin) { o.ended[version-1], o.sets[version] = time.Now(), time.Now() })
		w.invalidated(n, []int{key}, version-1, false) // a load under way elsewhere does not hear of the Set
	}
	time.Sleep(2*w.Delay + 1) // as in invalidate
}

func (w *world) sweep(n *modelNode, kind, key int) {
	defer w.alone(w.keys()...)()
	n.runs()
	w.mu.Lock()
	w.swept = time.Now()
	w.mu.Unlock()
	before := 0
	for _, key := range w.keys() {
		before = w.origin.void(keyName(key))
		defer w.origin.over(keyName(key))
	}
	if hard, keys, err := n.sweep(kind, key); hard && err == nil && !n.isDead() {
		w.invalidated(n, keys, before, true)
	}
	// As in invalidate. Also, a process that has not read the log since takes its next load for an
	// earlier one. With the near tier off it has read the log at the look before the load.
	time.Sleep(max(w.NearTTL, 10*w.Delay) + 2*w.Delay + 1)
}

// refresh begins a load that is not needless. A refresh that ends without an error replaces the served value.
func (w *world) refresh(n *modelNode, key int) {
	n.runs()
	w.origin.void(keyName(key))
	defer w.origin.over(keyName(key))
	defer time.Sleep(time.Nanosecond) // another process's load of this instant is not new enough for the refresh
	start := time.Now()
	err := n.refresh(key)
	w.note("refreshed", n.process, fmt.Sprint(keyName(key), " ", err))
	if w.Face != "HTTP" || err != nil || key != 0 || w.Users || w.Trouble != "healthy" {
		return
	}
	version := w.origin.since(start)
	if version == 0 {
		w.violated("process %d: %s is refreshed without a load", n.process, keyName(key))
	}
	w.atLeast(n, key, version)
}

// atLeast records that the process serves no earlier version any more. A closed process may lose its values.
func (w *world) atLeast(n *modelNode, key, version int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now[n.process] == n {
		w.latest[n.process][key] = max(w.latest[n.process][key], version)
	}
}

// peek checks that a value that the process has is the key's, and its age.
func (w *world) peek(n *modelNode, key int) {
	n.runs()
	value, age, ok := n.peek(key)
	w.note("peeks", n.process, fmt.Sprint(value, age, ok))
	if !ok {
		return
	}
	version := versionIn(value)
	began, ended, made := w.origin.times(version)
	isSet, _ := w.origin.setBeside(version, time.Time{})
	switch {
	case isSet && !made: // a Set whose reply was lost
	case !made || !strings.HasPrefix(value, keyName(key)+" v"):
		w.violated("process %d: Peek of %s has %q", n.process, keyName(key), value)
	case w.Trouble == "healthy" && (age > time.Since(began)+time.Millisecond || age < time.Since(ended)-4*w.Delay-time.Millisecond):
		w.violated("process %d: Peek of %s has %q of %v; its load ran from %v to %v before", n.process, keyName(key), value, age, time.Since(began), time.Since(ended))
	}
}

// ping checks that healthy engines answer.
func (w *world) ping(n *modelNode) {
	n.runs()
	err := n.ping(n.life)
	w.note("pings", n.process, fmt.Sprint(err))
	if w.Trouble == "healthy" && err != nil && n == w.node(n.process) {
		w.violated("process %d: Ping returned %v", n.process, err)
	}
}

// invalidated records that no process may serve versions up to before.
func (w *world) invalidated(n *modelNode, keys []int, before int, heard bool) {
	for _, key := range keys {
		for p := range w.Processes {
			switch {
			case w.node(p) == n: // the successor of a closed process is another process
				w.graves[key].bury(p, before, time.Now())
			case heard && w.Trouble == "healthy" && (w.Store == "telling" || w.Store == "all"):
				w.graves[key].bury(p, before, time.Now().Add(w.Delay+1)) // the notice has arrived by then
			case w.Trouble == "outages" || w.Trouble == "stops":
				// A process that is cut off or stopped does not know.
			default:
				w.graves[key].bury(p, before, time.Now().Add(max(0, w.NearTTL)+modelEngineTimeout+1))
			}
		}
	}
}

func (w *world) do(t *testing.T, s modelStep) {
	n := w.node(s.Process)
	w.note(s.Do, s.Process, keyName(s.Key))
	switch s.Do {
	case "get", "leave":
		for i := range s.N {
			w.callers.Go(func() {
				ctx := n.life
				if s.Do == "leave" {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, s.For)
					defer cancel()
				}
				who := ""
				if w.Users && i%3 == 1 {
					who = "u" + strconv.Itoa(i%5)
				}
				n.runs()
				c := w.call(n, s.Key, who, s.Do == "leave")
				w.judge(c, n.get(ctx, s.Key, who))
			})
		}
	case "many":
		if n.many == nil {
			return
		}
		keys := make([]int, 0, w.Keys)
		for k := range w.Keys {
			if k == s.Key || w.dice.roll(2) == 0 {
				keys = append(keys, k)
			}
		}
		for range min(s.N, 5) {
			w.callers.Go(func() {
				n.runs()
				calls := make([]modelCall, len(keys))
				for i, key := range keys {
					calls[i] = w.call(n, key, "", false)
					calls[i].many = true
				}
				for i, a := range n.many(n.life, keys) {
					w.judge(calls[i], a)
				}
			})
		}
	case "invalidate":
		w.callers.Go(func() { w.invalidate(n, s.Key) })
	case "set":
		if n.set != nil {
			w.callers.Go(func() { w.set(n, s.Key) })
		}
	case "sweep":
		if n.sweep == nil {
			w.callers.Go(func() { w.invalidate(n, w.keys()...) })
			break
		}
		w.callers.Go(func() { w.sweep(n, s.N, s.Key) })
	case "refresh":
		w.callers.Go(func() { w.refresh(n, s.Key) })
	case "peek":
		w.callers.Go(func() { w.ping(n) })
		if n.peek != nil {
			w.callers.Go(func() { w.peek(n, s.Key) })
		}
	case "origin":
		w.origin.set(func(o *modelOrigin) { o.took = s.For })
	case "fail":
		w.origin.set(func(o *modelOrigin) { o.every, o.ending = s.N%4, s.N%len(endings) })
	case "noise":
		n.links(func(l *link) { l.delay, l.repeat, l.deaf = min(s.For, 50*time.Millisecond), true, s.N%2 == 0 })
	case "stop":
		n.stop()
	case "go on":
		n.goOn()
	case "kill":
		n.kill()
		w.start(t, s.Process)
	case "close":
		w.start(t, s.Process)
		w.callers.Go(func() { n.close() })
	case "cut":
		w.one(n, s.N).set(func(l *link) { l.cut = true })
	case "refuse":
		w.one(n, s.N).set(func(l *link) { l.refused = true })
	case "lose":
		op := []string{"get", "claim", "commit", "invalidate", "acquire", "renew", "release", "elect"}[s.N%8]
		n.links(func(l *link) { l.lost = op })
	case "restart store":
		w.room.store.restart()
	case "restart locker":
		w.room.locker.restart()
	case "heal":
		n.heal()
	}
	switch {
	case s.Pause < 0:
		synctest.Wait()
	case s.Pause > 0:
		time.Sleep(s.Pause)
	}
}

func (w *world) one(n *modelNode, i int) *link { return []*link{n.store, n.locks}[i%2] }

type played struct {
	operations int
	trace      uint64
	found      []string
}

func (s scenario) play(t *testing.T) (out played) {
	synctest.Test(t, func(t *testing.T) {
		sum := fnv.New64a()
		w := &world{scenario: s, dice: &dice{rng: rand.New(rand.NewPCG(s.Seed, 1))}, started: time.Now(), trace: sum}
		if dump := os.Getenv("BELLWETHER_TRACE"); dump != "" {
			w.trace = io.MultiWriter(sum, os.Stderr)
		}
		w.room = newEngineRoom(w.violated)
		w.origin = &modelOrigin{world: w, took: s.Load, running: map[*modelRun]bool{}, voiding: map[string]int{}, doubted: map[string]int{}, last: map[string]*modelRun{}, sets: map[int]time.Time{}}
		w.setting = make([]chan struct{}, s.Keys)
		for k := range w.setting {
			w.setting[k] = make(chan struct{}, 1)
		}
		w.latest, w.graves = make([][]int, s.Processes), make([]graveyard, s.Keys)
		for i := range s.Processes {
			w.start(t, i)
		}
		for _, step := range s.Steps {
			w.do(t, step)
		}
		w.rest(t)
		out = played{w.operations, sum.Sum64(), w.found}
	})
	return out
}

// rest ends all troubles, and checks that the fleet recovers and leaves nothing behind.
func (w *world) rest(t *testing.T) {
	for _, n := range w.all {
		if !n.isDead() {
			n.goOn()
			n.heal()
		}
	}
	w.callers.Wait()
	w.origin.set(func(o *modelOrigin) { o.took, o.every = 100*time.Millisecond, 0 })
	// Each process finds out by a load and a write that the engines are up.
	for range 3 {
		time.Sleep(2*time.Second + w.TTL)
		for i := range w.Processes {
			w.node(i).get(context.Background(), 100+i, "")
			w.node(i).invalidate(0)
		}
	}
	time.Sleep(2*time.Minute + w.TTL) // the windows, and the longest back-off
	before := w.origin.count()
	for i := range w.Processes {
		w.callers.Go(func() {
			n := w.node(i)
			c := w.call(n, 0, "", false)
			a := n.get(context.Background(), 0, "")
			w.judge(c, a)
			if a.err != nil {
				w.violated("after it all process %d answers %v", i, a.err)
			}
		})
	}
	w.callers.Wait()
	if loads := w.origin.count() - before; loads != 1 && (w.Hedge == 0 || loads != 2) {
		w.violated("after it all one key is loaded %d times", loads)
	}
	time.Sleep(time.Second)
	for i := range w.Processes {
		if s := w.node(i).stats(); s.Flights != 0 {
			w.violated("process %d: %d flights are left", i, s.Flights)
		}
	}
	for _, n := range w.now {
		n.close()
	}
}

// modelTries is the number of plays of a scenario, because goroutines run in any order.
const modelTries = 3

// TestModel plays scenarios and shrinks failures, or plays the one of BELLWETHER_SCENARIO, set by sim/.
func TestModel(t *testing.T) {
	if seed, ok := os.LookupEnv("BELLWETHER_SCENARIO"); ok {
		replayScenario(t, seed, os.Getenv("BELLWETHER_STEPS"))
		return
	}
	if seed := flag.Lookup("rapid.seed"); testing.Short() && seed.Value.String() == "0" {
		seed.Value.Set("31") // fixed scenarios; longer runs draw others
		defer seed.Value.Set("0")
	}
	rapid.Check(t, func(rt *rapid.T) {
		s := scenarios(1).Draw(rt, "scenario")
		for range modelTries {
			if found := s.play(t).found; len(found) > 0 {
				rt.Fatalf("%s", strings.Join(found, "\n"))
			}
		}
	})
}

// replayScenario plays the scenario of a seed, or only its named steps ("0,1,7"), for sim/.
func replayScenario(t *testing.T, seed, steps string) {
	n, err := strconv.Atoi(seed)
	if err != nil {
		t.Fatalf("BELLWETHER_SCENARIO is %q, want a number", seed)
	}
	s := scenarios(100).Example(n)
	all := len(s.Steps)
	if steps != "" {
		var kept []modelStep
		for _, step := range strings.Split(steps, ",") {
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= all {
				t.Fatalf("BELLWETHER_STEPS is %q, want numbers below %d with commas between them", steps, all)
			}
			kept = append(kept, s.Steps[i])
		}
		s.Steps = kept
	}
	out := s.play(t)
	fmt.Printf("scenario steps=%d operations=%d trace=%016x\n", all, out.operations, out.trace)
	for _, found := range out.found {
		t.Error(found)
	}
	if t.Failed() {
		t.Logf("%+v", s)
	}
}
