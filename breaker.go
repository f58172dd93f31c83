package bellwether

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
)

// This file is the way to an engine that may be down: each call has a limit,
// a run of failures stops the calls for a while, and no flight loses more than
// one time-out to engines, whichever of them it is that does not answer. How
// calls wait for each other is in turns.go.

// ErrUnavailable means that a lock engine or a store did not answer, or was
// not asked because it did not answer lately. The engine's own error is
// wrapped beside it if that was asked.
var ErrUnavailable = errors.New("bellwether: engine unavailable")

const (
	// breakerTrips is how many failures in a row open an engine's breaker. One
	// would let a single lost packet switch collapsing across processes off.
	breakerTrips = 3
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
	changes breakerChanges

	mu     sync.Mutex // guards what follows
	asking map[*context.CancelCauseFunc]struct{}
	why    string    // the latest failure, for those who are not let through
	failed time.Time // when that was
}

// newBreaker returns a closed breaker, for an engine of which a flight waits for
// timeout. tell, if it is not nil, is told of its changes, in their order, by way
// of behind.
func newBreaker(timeout time.Duration, behind func(func()), tell func(from, to BreakerState)) *breaker {
	b := &breaker{turns: newTurns(timeout), changes: breakerChanges{behind: behind, tell: tell}}
	settings := gobreaker.Settings{
		Timeout:     breakerPause,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakerTrips },
		// A cache that is being closed says nothing about its engine. It is asked
		// after the last recover, so not what an adapter's error wraps.
		IsExcluded: func(err error) bool { return err == context.Canceled },
	}
	settings.OnStateChange = func(_ string, from, to gobreaker.State) {
		if tell != nil {
			b.changes.note(from, to)
		}
		if to == gobreaker.StateOpen {
			b.giveUp()
		}
	}
	b.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](settings)
	return b
}

// up reports whether calls are let through.
func (b *breaker) up() bool {
	defer b.changes.pass()
	return b.circuit.State() != gobreaker.StateOpen
}

// sound reports whether calls are let through, and not only to find out whether
// an outage is over.
func (b *breaker) sound() bool {
	defer b.changes.pass()
	return b.circuit.State() == gobreaker.StateClosed
}

// answers reports whether the engine is taken for one that answers, for those who
// watch. A breaker that is half-open does not: it is so while a probe waits in vain,
// and from a second after it has opened until somebody probes.
func (b *breaker) answers() bool {
	if b.sound() {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.failed) >= breakerMemory
}

// errSilent ends calls of an engine that has been found not to answer.
var errSilent = errors.New("it answers nobody")

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

// note keeps what a call has failed with. The caller's own end is nobody's failure.
func (b *breaker) note(failure error) {
	if failure == nil || failure == context.Canceled {
		return
	}
	why := fmt.Sprint(failure) // outside the lock: it is the adapter's code, and may panic
	b.mu.Lock()
	defer b.mu.Unlock()
	b.why, b.failed = why, time.Now()
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

// ask makes one call of an engine, for a flight that holds a lease or has an
// epoch to commit, or for many at one time: a batch, or all whom the log is for.
// Every error that is not one of the contract's answers comes back wrapped in
// ErrUnavailable.
func ask[T any](ctx context.Context, b *breaker, o *outage, call func(context.Context) (T, error)) (v T, err error) {
	return askFrom(ctx, b, &b.turns.holders, o, call)
}

// askErr is ask for a call that answers with its error alone.
func askErr(ctx context.Context, b *breaker, o *outage, call func(context.Context) error) error {
	_, err := ask(ctx, b, o, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

// askInTurn is ask for all others. Their calls wait for those of holders, whose
// leases run, and for whose values others wait.
func askInTurn[T any](ctx context.Context, b *breaker, o *outage, call func(context.Context) (T, error)) (v T, err error) {
	return askFrom(ctx, b, &b.turns.others, o, call)
}

// askFrom makes a call when its turn has come in that queue.
func askFrom[T any](ctx context.Context, b *breaker, queue *list.List, o *outage, call func(context.Context) (T, error)) (v T, err error) {
	var zero T
	if o.left <= 0 {
		return zero, fmt.Errorf("%w: the time for outages is used up", ErrUnavailable)
	}
	defer b.changes.pass() // after the report
	if err := b.turns.take(ctx, queue); err != nil {
		return zero, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	start, answered := time.Now(), false
	defer func() { b.turns.done(start, answered) }()
	// With the turn, and not before: those who queued while an engine went down
	// are not to wait for it one after another.
	report, err := b.circuit.Allow()
	if err != nil {
		return zero, fmt.Errorf("%w: %w, since: %s", ErrUnavailable, err, b.latest())
	}
	// A panic or Goexit of an adapter counts as no answer: without the report a
	// half-open breaker would wait for this probe for ever.
	failure := errors.New("the call did not return")
	defer func() {
		if p := recover(); p != nil {
			failure = panicked(p)
			err = fmt.Errorf("%w: %w", ErrUnavailable, failure)
		}
		b.note(failure)
		report(failure)
	}()

	limited, cancel := context.WithTimeout(ctx, o.left)
	defer cancel()
	v, err = call(limited)
	if err == nil || isAnswer(err) {
		failure = nil
		// These two an adapter may give without asking its engine.
		answered = !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrLeaseLost)
		return v, err
	}
	if failure = err; ctx.Err() != nil || errors.Is(err, context.Canceled) {
		failure = context.Canceled // the caller's own end says nothing about the engine
	}
	o.left -= time.Since(start)
	return zero, fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// noAnswer counts and reports the silence of the store or the locker.
func (e *engine[V]) noAnswer(key string, err error) {
	e.count.engineErrors.Add(1)
	e.OnError(key, err)
}

// isAnswer tells what an engine has said from the engine's silence.
func isAnswer(err error) bool {
	for _, answer := range [...]error{ErrNotFound, ErrHeld, ErrLeaseLost, ErrFenced, ErrCorrupt, ErrTooLarge} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}
