package bellwether

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/bellwether-go/bellwether/internal/fault"
)

// This file is the way to an engine that may be down: each call has a limit,
// a run of failures stops the calls for a while, and no flight loses more than
// one time-out to engines, whichever of them it is that does not answer. An engine
// may be several servers, of which one is down: that stops the calls for its keys,
// and no others. How calls wait for each other is in turns.go.

const (
	// breakerTrips is how many keys in a row fail before an engine is taken for down,
	// and how many calls for one key before that key's server is. One would let a
	// single lost packet switch collapsing across processes off.
	breakerTrips = 3
	// breakerSilence is for how many EngineTimeouts an engine has to have been silent
	// that is taken for down because of one key. One dead server of many has a key
	// asked again and again, between answers for the others that may be seldom.
	breakerSilence = 10
	// maxTroubled bounds the keys of which it is remembered that their server is down.
	maxTroubled = 4096
	// breakerPause is how long an open breaker stays so before one call probes.
	breakerPause = time.Second
	// breakerMemory is for how long a failure counts, for those who watch, that no
	// call has followed: who asks nothing any more knows nothing.
	breakerMemory = 30 * time.Second
)

// A breaker stands before one engine.
type breaker struct {
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]
	turns   *turns

	mu       sync.Mutex // guards what follows
	asking   map[*context.CancelCauseFunc]struct{}
	closes   chan struct{}      // closed when the breaker closes next
	why      string             // the latest failure, for those who are not let through
	failed   time.Time          // when that was
	heard    time.Time          // when the engine last answered; zero: never
	failing  []string           // the keys that have begun to fail since, breakerTrips of them at most
	troubled map[string]trouble // those that have, and were not answered since
}

// breakerStates are the states of the circuit as observers are told of them.
var breakerStates = [...]BreakerState{
	gobreaker.StateClosed: BreakerClosed, gobreaker.StateHalfOpen: BreakerHalfOpen, gobreaker.StateOpen: BreakerOpen,
}

// A trouble is what is known of a key whose calls fail.
type trouble struct {
	since    time.Time // the first of them
	failures int       // in a row
	until    time.Time // if there are breakerTrips: before that the key is not asked for
}

// newBreaker returns a closed breaker, for an engine of which a flight waits for
// timeout. changed is called with its changes, in their order and under its lock.
func newBreaker(timeout time.Duration, changed func(from, to BreakerState)) *breaker {
	b := &breaker{turns: newTurns(timeout), closes: make(chan struct{})}
	settings := gobreaker.Settings{
		Timeout: breakerPause,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= breakerTrips && b.silent(timeout)
		},
		// A cache that is being closed says nothing about its engine. It is asked
		// after the last recover, so not what an adapter's error wraps.
		IsExcluded: func(err error) bool { return err == context.Canceled },
	}
	settings.OnStateChange = func(_ string, from, to gobreaker.State) {
		changed(breakerStates[from], breakerStates[to])
		switch to {
		case gobreaker.StateOpen:
			b.giveUp()
		case gobreaker.StateClosed:
			b.resume()
		}
	}
	b.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](settings)
	return b
}

// retries reports whether a call that had no answer is worth another: not if the
// engine seems to answer for no key.
func (b *breaker) retries() bool {
	if b.circuit.State() == gobreaker.StateOpen {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.failing) < breakerTrips
}

// closed reports whether calls are let through, and not only to find out whether
// an outage is over.
func (b *breaker) closed() bool {
	return b.circuit.State() == gobreaker.StateClosed
}

// closing is closed when the breaker closes next.
func (b *breaker) closing() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closes
}

// resume ends what waits for closing.
func (b *breaker) resume() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.closes)
	b.closes = make(chan struct{})
}

// sound is closed for calls that are about the key.
func (b *breaker) sound(key string) bool {
	if !b.closed() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.troubled[key].failures < breakerTrips
}

// fails reports whether calls about the key have had no answer, the last of them within
// two pauses. An older failure says nothing about now: nobody has asked since.
func (b *breaker) fails(key string) bool {
	if b.sound(key) {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.failed) < 2*breakerPause
}

// silent reports whether the latest failures are the engine's, and not one server's.
func (b *breaker) silent(timeout time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	silence := time.Since(b.heard)
	return silence >= breakerSilence*timeout || len(b.failing) >= breakerTrips && silence >= timeout
}

// spares reports whether the key is not to be asked for now. Once in breakerPause it
// lets one call through.
func (b *breaker) spares(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.troubled[key]
	if t.failures < breakerTrips {
		return false
	}
	now := time.Now()
	if now.Before(t.until) {
		return true
	}
	t.until = now.Add(breakerPause)
	b.troubled[key] = t
	return false
}

// answers reports whether the engine is taken for one that answers, for those who
// watch. A breaker that is half-open does not: it is so while a probe waits in vain,
// and from a second after it has opened until somebody probes.
func (b *breaker) answers() bool {
	if b.closed() {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.failed) >= breakerMemory
}

// errSilent ends calls of an engine that has been found not to answer.
var errSilent = errors.New("the engine answers no call")

// whileUp is a context for calls that are of no use if the breaker opens, begun
// before they are: its cause is errSilent then. Without it, each would wait out
// what the first of them have found. end ends it.
func (b *breaker) whileUp(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asking == nil {
		b.asking = make(map[*context.CancelCauseFunc]struct{})
	}
	b.asking[&cancel] = struct{}{}
	return ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.asking, &cancel)
		cancel(nil)
	}
}

// giveUp ends what whileUp has begun. It waits for nobody: the circuit is locked.
func (b *breaker) giveUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	silence := fmt.Errorf("%w: %s", errSilent, b.why)
	for cancel := range b.asking {
		(*cancel)(silence)
	}
	clear(b.asking)
}

// note keeps what a call for the key has failed with, or that it has not. The
// caller's own end is nobody's failure.
func (b *breaker) note(key string, failure error) {
	if failure == context.Canceled {
		return
	}
	why := ""
	if failure != nil {
		why = fmt.Sprint(failure) // outside the lock: it is the adapter's code, and may panic
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if failure == nil {
		b.heard, b.failing = now, b.failing[:0]
		delete(b.troubled, key)
		return
	}
	b.why, b.failed = why, now
	t, known := b.troubled[key]
	if !known {
		t.since = now
		if len(b.troubled) >= maxTroubled {
			clear(b.troubled) // they are found out anew
		}
	}
	// What failed already while the engine answered for others says nothing of these.
	if !t.since.Before(b.heard) && len(b.failing) < breakerTrips && !slices.Contains(b.failing, key) {
		b.failing = append(b.failing, key)
	}
	if t.failures++; t.failures >= breakerTrips {
		t.until = now.Add(breakerPause)
	}
	if b.troubled == nil {
		b.troubled = make(map[string]trouble)
	}
	b.troubled[key] = t
}

func (b *breaker) latest() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.why
}

// An outage is what a flight may still lose to engines that do not answer. It
// is one sum for all engines: a request that has waited out a dead lock engine
// does not go on to wait out the dead store beside it. It is used by one
// goroutine at a time.
type outage struct{ left time.Duration }

// errNotAsked is for a call that is not made because others were not answered.
var errNotAsked = errors.New("no call is made")

// ask makes one call of an engine about a key, for a flight that holds a lease or has an
// epoch to commit, or for many at one time: a batch, or all whom the log is for.
// Every error that is not one of the contract's answers comes back wrapped in
// ErrUnavailable.
func ask[T any](ctx context.Context, b *breaker, key string, o *outage, call func(context.Context) (T, error)) (v T, err error) {
	return askFrom(ctx, b, &b.turns.holders, key, o, inTime, call)
}

// askErr is ask for a call that answers with its error alone.
func askErr(ctx context.Context, b *breaker, key string, o *outage, call func(context.Context) error) error {
	_, err := ask(ctx, b, key, o, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

// askInTurn is ask for all others. Their calls wait for those of holders, whose
// leases run, and for whose values others wait.
func askInTurn[T any](ctx context.Context, b *breaker, key string, o *outage, call func(context.Context) (T, error)) (v T, err error) {
	return askFrom(ctx, b, &b.turns.others, key, o, inTime, call)
}

// A limiter makes the context of a call that may take so long.
type limiter func(context.Context, time.Duration) (context.Context, context.CancelFunc)

// inTime is the limiter of a call that is answered once.
func inTime(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, limit)
}

// askFrom makes a call when its turn has come in that queue.
func askFrom[T any](ctx context.Context, b *breaker, queue *list.List, key string, o *outage, limit limiter, call func(context.Context) (T, error)) (v T, err error) {
	var zero T
	if o.left <= 0 {
		return zero, fmt.Errorf("%w: EngineTimeout is used up", ErrUnavailable)
	}
	if b.spares(key) {
		return zero, fmt.Errorf("%w: %w for this key, since: %s", ErrUnavailable, errNotAsked, b.latest())
	}
	if err := b.turns.take(ctx, queue); err != nil {
		return zero, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	start, answered := time.Now(), false
	defer func() { b.turns.done(start, answered) }()
	// With the turn, and not before: those who queued while an engine went down
	// are not to wait for it one after another.
	report, err := b.circuit.Allow()
	if err != nil {
		return zero, fmt.Errorf("%w: %w: %w, since: %s", ErrUnavailable, errNotAsked, err, b.latest())
	}
	v, failure, err := askWithin(ctx, b, key, o.left, limit, call, report)
	// These two an adapter may give without asking its engine.
	answered = failure == nil && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrLeaseLost)
	if failure != nil {
		o.left -= time.Since(start)
	}
	return v, err
}

// askWithin makes a call that takes no longer than that. It reports its failure, nil
// if the engine has answered, and returns it beside the call's own.
func askWithin[T any](ctx context.Context, b *breaker, key string, within time.Duration, limit limiter, call func(context.Context) (T, error), report func(error)) (v T, failure, err error) {
	// A panic or Goexit of an adapter counts as no answer: without the report a
	// half-open breaker would wait for this probe for ever.
	failure = errors.New("the call did not return")
	defer func() {
		if p := recover(); p != nil {
			failure = fault.Panicked(p)
			err = fmt.Errorf("%w: %w", ErrUnavailable, failure)
		}
		b.note(key, failure)
		report(failure)
	}()
	limited, cancel := limit(ctx, within)
	defer cancel()
	v, err = call(limited)
	if err == nil || fault.IsAnswer(err) {
		failure = nil
		return v, failure, err
	}
	if failure = err; ctx.Err() != nil || errors.Is(err, context.Canceled) {
		failure = context.Canceled // the caller's own end says nothing about the engine
	}
	var zero T
	return zero, failure, fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// askAllTheSame makes a call that was not made because of others. It has no turn: in a
// queue it would keep those who hold a lease waiting for a silent engine.
func askAllTheSame[T any](ctx context.Context, b *breaker, key string, within time.Duration, call func(context.Context) (T, error)) (v T, err error) {
	v, _, err = askWithin(ctx, b, key, within, inTime, call, func(error) {})
	return v, err
}

// noAnswer counts and reports the silence of the store or the locker.
func (e *engine[V]) noAnswer(key string, err error) {
	e.count.engineErrors.Add(1)
	e.OnError(key, err)
}
