// Package gate makes the calls of an engine that may be down, with a time limit. A run of failures stops
// all calls for a while, then one call probes the engine. A [Budget] bounds a flight's lost time.
//
// An engine may be several servers with one of them down: the failures of that server's keys stop the
// calls for these keys only. turns.go bounds how many calls run at a time.
package gate

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/observe"
)

const (
	// Trips is how many keys fail in a row until the engine counts as down, and how often one key fails
	// until its server does. With 1, a single lost packet would switch collapsing across processes off.
	Trips = 3
	// silenceTimeouts is the silence, in timeouts, after which failures of a single key open the gate:
	// a dead server's key among many is asked again and again, with few answers for other keys between.
	silenceTimeouts = 10
	// maxTroubled bounds the remembered keys with failures.
	maxTroubled = 4096
	// Pause is the time from the last failure to the next probe.
	Pause = time.Second
	// memory is how long failures keep the gate from being closed without a later call: a cache without calls
	// knows nothing of its engine.
	memory = 30 * time.Second
)

// A Gate stands before one engine. All methods are safe for concurrent use.
type Gate struct {
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]
	turns   *turns
	tripped atomic.Bool // the circuit is not closed

	mu       sync.Mutex         // guards the fields below
	opens    chan struct{}      // closed when the gate opens the next time
	closes   chan struct{}      // closed at the gate's next change to closed
	why      string             // the latest failure
	failed   time.Time          // the time of the latest failure
	heard    time.Time          // the time of the latest answer; zero: none yet
	failing  []string           // up to Trips keys whose failures began after heard
	troubled map[string]trouble // keys with failures since their last answer
}

var states = [...]observe.BreakerState{
	gobreaker.StateClosed: observe.BreakerClosed, gobreaker.StateHalfOpen: observe.BreakerHalfOpen, gobreaker.StateOpen: observe.BreakerOpen,
}

type trouble struct {
	since    time.Time // the first failure
	failures int       // in a row
	until    time.Time // the key's next probe, after Trips failures
}

// New returns the closed gate of an engine. A flight's whole budget for engines is timeout. changed
// runs at each change of state, in order and under a lock: it must not wait and must not use the gate.
func New(timeout time.Duration, changed func(from, to observe.BreakerState)) *Gate {
	return newGate(newTurns(timeout), changed)
}

// Beside returns a second gate of the engine, with the same turns, for calls that may fail alone: writes.
func (g *Gate) Beside(changed func(from, to observe.BreakerState)) *Gate {
	return newGate(g.turns, changed)
}

func newGate(t *turns, changed func(from, to observe.BreakerState)) *Gate {
	g := &Gate{turns: t, opens: make(chan struct{}), closes: make(chan struct{})}
	settings := gobreaker.Settings{
		Timeout:     Pause,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= Trips && g.silent() },
		// The end of the caller's context says nothing about the engine. The comparison is
		// by identity: this runs behind the last recover, and an adapter's Is method may panic.
		IsExcluded: func(err error) bool { return err == context.Canceled },
	}
	settings.OnStateChange = func(_ string, from, to gobreaker.State) {
		changed(states[from], states[to])
		g.tripped.Store(to != gobreaker.StateClosed)
		g.mu.Lock()
		defer g.mu.Unlock()
		switch to {
		case gobreaker.StateOpen: // ends the calls of AskInTurn: each would wait out the silence that the first ones found
			close(g.opens)
			g.opens = make(chan struct{})
		case gobreaker.StateClosed:
			close(g.closes)
			g.closes = make(chan struct{})
			clear(g.troubled) // each key would find out by itself that the engine is back, and go on without it until then
		}
	}
	g.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](settings)
	return g
}

// Retries reports whether to call again after a silence: not once the engine seems silent for all keys.
func (g *Gate) Retries() bool {
	if g.circuit.State() == gobreaker.StateOpen {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.failing) < Trips
}

// Closed reports whether the gate lets all calls through. A half-open gate counts as open: it is half-open while a
// probe waits, and from one Pause after it opened until the next call.
func (g *Gate) Closed() bool { return !g.tripped.Load() || g.quiet() }

// quiet reports whether no call has failed for so long that the failures which opened the gate prove nothing: under
// traffic a probe fails in each pause. Otherwise the first herd after a quiet night would be a probe and a thousand
// loads without the engine.
func (g *Gate) quiet() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Since(g.failed) >= memory
}

// Crowded reports whether a call would have to wait for its turn now.
func (g *Gate) Crowded() bool { return g.turns.taken() }

// Open reports whether the gate lets no call through. One Pause after it opened, it lets one through.
func (g *Gate) Open() bool { return g.circuit.State() == gobreaker.StateOpen }

// Closing returns a channel that is closed at the gate's next change to closed.
func (g *Gate) Closing() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closes
}

func (g *Gate) opening() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opens
}

// Sound is Closed for the calls about one key. Two pauses after a key's failures they prove nothing.
func (g *Gate) Sound(key string) bool {
	if !g.Closed() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Since(g.troubled[key].until) >= Pause // zero below Trips failures
}

// Fails reports whether the key's calls get no answer. Two pauses later a failure proves nothing.
func (g *Gate) Fails(key string) bool {
	if g.Sound(key) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Since(g.failed) < 2*Pause
}

// silent reports whether the whole engine is silent, and not a single server.
func (g *Gate) silent() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	timeout, silence := g.turns.timeout, time.Since(g.heard)
	return silence/silenceTimeouts >= timeout || len(g.failing) >= Trips && silence >= timeout
}

// blocks reports whether the key's server counts as down. Once in each Pause it lets one call through.
func (g *Gate) blocks(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.troubled[key]
	if t.failures < Trips {
		return false
	}
	now := time.Now()
	if now.Before(t.until) {
		return true
	}
	t.until = now.Add(Pause)
	g.troubled[key] = t
	return false
}

// ErrSilent is part of the error of a call that ended because the gate opened.
var ErrSilent = errors.New("the engine answers no call")

// note records the outcome of a call, nil for an answer. The end of the caller's context is no outcome.
func (g *Gate) note(key string, failure error) {
	if failure == context.Canceled {
		return
	}
	why := ""
	if failure != nil {
		why = fmt.Sprint(failure) // outside the lock: it is the adapter's code, and may panic
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if failure == nil {
		g.heard, g.failing = now, g.failing[:0]
		delete(g.troubled, key)
		return
	}
	g.why, g.failed = why, now
	t, known := g.troubled[key]
	if !known {
		t.since = now
		if len(g.troubled) >= maxTroubled {
			clear(g.troubled) // the next failures find these keys again
		}
	}
	// A key that failed while the engine answered for other keys proves nothing about the others.
	if !t.since.Before(g.heard) && len(g.failing) < Trips && !slices.Contains(g.failing, key) {
		g.failing = append(g.failing, key)
	}
	if t.failures++; t.failures >= Trips {
		t.until = now.Add(Pause)
	}
	if g.troubled == nil {
		g.troubled = make(map[string]trouble)
	}
	g.troubled[key] = t
}

// hear records a piece of an answer: the engine is not silent.
func (g *Gate) hear() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.heard, g.failing = time.Now(), g.failing[:0]
}

func (g *Gate) latest() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why
}

// A Budget is the time that a call may still lose to all silent engines in sum: a wait for a dead locker
// leaves less for a dead store. It is safe for concurrent use. Concurrent calls each take their time from it.
type Budget struct {
	left atomic.Int64 // in nanoseconds
	of   *Budget      // the budget of which it is a part; nil if there is none
}

func NewBudget(left time.Duration) *Budget {
	b := &Budget{}
	b.Begin(left)
	return b
}

// Begin sets the time of an unused budget.
func (b *Budget) Begin(left time.Duration) { b.left.Store(int64(left)) }

// Half is a part of the budget for a call: half of the remaining time.
func (b *Budget) Half() *Budget {
	half := NewBudget(b.Left() / 2)
	half.of = b
	return half
}

// Left is the remaining time. Zero or less: the budget is used up.
func (b *Budget) Left() time.Duration { return time.Duration(b.left.Load()) }

func (b *Budget) Spend(lost time.Duration) {
	for ; b != nil; b = b.of {
		b.left.Add(-int64(lost))
	}
}

// ErrNotAsked is part of the error of a call that the gate did not make, after calls without an answer.
var ErrNotAsked = errors.New("no call is made")

// Ask calls an engine about a key, for a call on which others wait: of a flight with a lease or an
// epoch, of a user's write, of the log of sweeps. These calls go before the calls of AskInTurn.
//
// An answer by the engine's contract is returned unchanged, even as an error. Other errors and a panic of
// call are wrapped in fault.ErrUnavailable and cost budget. A Goexit is a failure, and ends the goroutine.
func Ask[T any](ctx context.Context, g *Gate, key string, budget *Budget, call func(context.Context) (T, error)) (v T, err error) {
	return askFrom(ctx, g, &g.turns.holders, key, budget, call)
}

// AskErr is Ask for a call with an error as its only result.
func AskErr(ctx context.Context, g *Gate, key string, budget *Budget, call func(context.Context) error) error {
	_, err := Ask(ctx, g, key, budget, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

// AskInTurn is Ask for calls on which no others wait. A call ends when the gate opens, with ErrSilent.
func AskInTurn[T any](ctx context.Context, g *Gate, key string, budget *Budget, call func(context.Context) (T, error)) (v T, err error) {
	return askFrom(ctx, g, &g.turns.others, key, budget, call)
}

// AskInPieces is AskInTurn for a call that the engine answers piece by piece. The limit bounds the
// silence before each piece: call calls heard for each piece.
func AskInPieces(ctx context.Context, g *Gate, key string, budget *Budget, call func(ctx context.Context, heard func()) error) error {
	_, err := askFrom(ctx, g, &g.turns.others, key, budget, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, call(ctx, func() {
			ctx.(*patience).heard()
			g.hear()
		})
	})
	return err
}

// AskAnyway makes a call whatever the gate's state: a user's write that Ask has refused, a repeated invalidation,
// or Ping's. It takes no turn: a call of a silent engine would keep the calls of lease holders waiting. Its answer
// does not close the gate.
func AskAnyway(ctx context.Context, g *Gate, key string, limit time.Duration, call func(context.Context) error) error {
	only := func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) }
	_, _, err := askWithin(ctx, g, key, g.turns.patiences.begin(ctx, limit, nil), only, func(error) {})
	return err
}

// askFrom makes a call when the call's turn has come in queue.
func askFrom[T any](ctx context.Context, g *Gate, queue *list.List, key string, budget *Budget, call func(context.Context) (T, error)) (v T, err error) {
	var zero T
	if budget.Left() <= 0 {
		return zero, fmt.Errorf("%w: not asked: earlier requests have used up EngineTimeout", fault.ErrUnavailable)
	}
	if g.blocks(key) {
		return zero, fmt.Errorf("%w: %w for this key, since: %s", fault.ErrUnavailable, ErrNotAsked, g.latest())
	}
	var opens <-chan struct{}
	if queue == &g.turns.others {
		opens = g.opening()
	}
	if err := g.turns.take(ctx, queue, opens); err != nil {
		return zero, fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
	}
	start, answered := time.Now(), false
	defer func() { g.turns.done(start, answered) }()
	limit := budget.Left()
	// Before Allow, which counts on a report: the methods of ctx may be user code.
	limited := g.turns.patiences.begin(ctx, limit, opens)
	// Asked after the turn: queued calls must not find out one by one that the engine is down.
	report, err := g.circuit.Allow()
	if errors.Is(err, gobreaker.ErrTooManyRequests) {
		err = errors.New("another call tests the engine")
		if g.quiet() {
			report, err = func(error) {}, nil // the probe's outcome alone changes the circuit
		}
	}
	if err != nil {
		limited.end()
		return zero, fmt.Errorf("%w: %w: %w, since: %s", fault.ErrUnavailable, ErrNotAsked, err, g.latest())
	}
	v, failure, err := askWithin(ctx, g, key, limited, call, report)
	// An adapter may return these two errors without a call to its engine.
	answered = failure == nil && !errors.Is(err, driver.ErrTooLarge) && !errors.Is(err, driver.ErrLeaseLost)
	if failure != nil {
		budget.Spend(min(time.Since(start), max(limit, 0)))
	}
	return v, err
}

// Ended reports whether a caller's context has ended. A client that sets ctx's deadline on its connection may return
// just before ctx's own timer has fired, so the deadline counts too.
func Ended(ctx context.Context) bool {
	if ctx.Err() != nil {
		return true
	}
	due, ok := ctx.Deadline()
	return ok && !time.Now().Before(due)
}

var errNoReturn = errors.New("the call did not return")

// askWithin makes a call with a time limit, and reports and returns its failure, nil for an answer.
func askWithin[T any](ctx context.Context, g *Gate, key string, limited *patience, call func(context.Context) (T, error), report func(error)) (v T, failure, err error) {
	// The adapter may panic or exit. Without the report a half-open gate would wait for ever.
	failure = errNoReturn
	defer func() {
		if p := recover(); p != nil {
			failure = fault.Panicked(p)
			err = fmt.Errorf("%w: %w", fault.ErrUnavailable, failure)
		}
		defer report(failure) // after note, whose text of the failure is user code and may call Goexit
		g.note(key, failure)
	}()
	defer limited.end()
	v, err = call(limited)
	if err == nil || fault.IsAnswer(err) {
		failure = nil
		return v, failure, err
	}
	switch {
	case Ended(ctx):
		failure = context.Canceled // the caller's own end proves nothing about the engine
	case context.Cause(limited) == ErrSilent:
		failure, err = context.Canceled, fmt.Errorf("%w: %s", ErrSilent, g.latest())
	case limited.usedUp():
		if !errors.Is(err, context.DeadlineExceeded) { // of a context below
			err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
		}
		err = fmt.Errorf("no answer in time (see EngineTimeout): %w", err) // not the deadline of a caller's own context
		failure = err
	case errors.Is(err, context.Canceled):
		failure = context.Canceled
	default:
		failure = err
	}
	var zero T
	return zero, failure, fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
}
