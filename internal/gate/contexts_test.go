package gate

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/observe"
)

// A failingContext is user code that fails in one of its methods.
type failingContext struct {
	context.Context
	done, err func()
}

func (c failingContext) Done() <-chan struct{} {
	if c.done != nil {
		c.done()
	}
	return c.Context.Done()
}

func (c failingContext) Err() error {
	if c.err != nil {
		c.err()
	}
	return c.Context.Err()
}

func fails() { panic("a method of the context") }

// A call whose context panics while the call waits for its turn takes no turn from later calls.
func TestAsk_ContextPanicsInTheQueue(t *testing.T) {
	for name, ctx := range map[string]func(context.Context) context.Context{
		"Done": func(ctx context.Context) context.Context { return failingContext{Context: ctx, done: fails} },
		"Err":  func(ctx context.Context) context.Context { return failingContext{Context: ctx, err: fails} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := New(timeout, func(_, _ observe.BreakerState) {})
				release := make(chan struct{})
				wait := func(context.Context) error { <-release; return nil }
				for range firstTurns {
					go AskErr(t.Context(), g, "k", NewBudget(timeout), wait)
				}
				synctest.Wait()
				leaving, leave := context.WithCancel(t.Context())
				leave()
				err := fault.Guard(func() error {
					return AskErr(ctx(leaving), g, "k", NewBudget(timeout), wait)
				})
				if _, panicked := errors.AsType[*fault.PanicError](err); !panicked {
					t.Errorf("Ask: %v, want the context's panic", err)
				}
				close(release)
				synctest.Wait()
				if g.turns.running != 0 || g.turns.holders.Len() != 0 {
					t.Errorf("%d calls have turns and %d wait, want none", g.turns.running, g.turns.holders.Len())
				}
			})
		})
	}
}

// A context that closes Done before it sets Err gives its call no turn.
func TestAsk_ContextEndsWithoutAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(timeout, func(_, _ observe.BreakerState) {})
		release := make(chan struct{})
		for range firstTurns {
			go AskErr(t.Context(), g, "k", NewBudget(timeout), func(context.Context) error { <-release; return nil })
		}
		synctest.Wait()
		if err := g.turns.take(endedWithoutError{t.Context()}, &g.turns.others, nil); err != context.Canceled {
			t.Errorf("take: %v, want %v", err, context.Canceled)
		}
		close(release)
	})
}

type endedWithoutError struct{ context.Context }

func (endedWithoutError) Done() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// A probe whose context panics leaves the next call the probe.
func TestAsk_ContextOfTheProbePanics(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate, e *engine, changes *[]observe.BreakerState) {
		e.silent = true
		for _, key := range []string{"a", "b", "c"} {
			e.ask(g, key)
		}
		if e.silent = false; !g.Open() {
			t.Fatal("the gate is not open")
		}
		time.Sleep(Pause + time.Nanosecond)
		calls := 0 // the first is take's, and the second the time limit's
		ctx := failingContext{Context: t.Context(), done: func() {
			if calls++; calls == 2 {
				fails()
			}
		}}
		err := fault.Guard(func() error {
			return AskErr(ctx, g, "d", NewBudget(timeout), func(context.Context) error { return nil })
		})
		if _, panicked := errors.AsType[*fault.PanicError](err); !panicked {
			t.Errorf("Ask: %v, want the context's panic", err)
		}
		if err := e.ask(g, "e"); err != nil {
			t.Errorf("the next probe: %v", err)
		}
		if !g.Closed() {
			t.Error("the gate is not closed after an answer")
		}
	})
}

// lateContext has a deadline that has passed, and a timer that has not fired yet.
type lateContext struct{ context.Context }

func (lateContext) Deadline() (time.Time, bool) { return time.Now(), true }

// A client that goes by its caller's deadline, and returns before the context's timer has fired, is no silent engine.
func TestAsk_CallersDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate, e *engine, changes *[]observe.BreakerState) {
		time.Sleep(timeout)
		for _, key := range []string{"a", "b", "c"} {
			err := AskErr(lateContext{t.Context()}, g, key, NewBudget(timeout), func(context.Context) error { return os.ErrDeadlineExceeded })
			if !errors.Is(err, fault.ErrUnavailable) || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Ask: %v, want the client's error, without an answer", err)
			}
		}
		if !g.Closed() || !g.Sound("a") {
			t.Errorf("closed: %t, sound for a key: %t", g.Closed(), g.Sound("a"))
		}
		for range Trips { // without a caller's deadline the same error is the engine's
			AskErr(t.Context(), g, "d", NewBudget(timeout), func(context.Context) error { return os.ErrDeadlineExceeded })
		}
		if g.Sound("d") {
			t.Error("sound after failures")
		}
	})
}
