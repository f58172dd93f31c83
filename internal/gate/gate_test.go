package gate

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/observe"
)

const timeout = 500 * time.Millisecond

// An engine answers, refuses each call at once, or is silent.
type engine struct {
	refuses func(key string) bool
	silent  bool
}

func (e *engine) ask(g *Gate, key string) error {
	return AskErr(context.Background(), g, key, NewBudget(timeout), func(ctx context.Context) error {
		if e.silent {
			<-ctx.Done()
			return ctx.Err()
		}
		if e.refuses != nil && e.refuses(key) {
			return errors.New("refused")
		}
		return nil
	})
}

func inBubble(t *testing.T, f func(t *testing.T, g *Gate, e *engine, changes *[]observe.BreakerState)) {
	synctest.Test(t, func(t *testing.T) {
		var changes []observe.BreakerState
		g := New(timeout, func(_, to observe.BreakerState) { changes = append(changes, to) })
		f(t, g, &engine{}, &changes)
	})
}

// A key with three failures in a row is not sound while the engine answers for other keys. Two pauses later the
// failures prove nothing.
func TestSound(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate, e *engine, changes *[]observe.BreakerState) {
		e.refuses = func(key string) bool { return key == "bad" }
		for n := range Trips {
			if !g.Sound("bad") {
				t.Errorf("not sound after %d failures", n)
			}
			if err := e.ask(g, "bad"); !errors.Is(err, fault.ErrUnavailable) {
				t.Errorf("Ask: %v", err)
			}
			e.ask(g, "good")
		}
		if g.Sound("bad") || !g.Sound("good") || !g.Closed() {
			t.Errorf("sound: bad %t, good %t; closed: %t", g.Sound("bad"), g.Sound("good"), g.Closed())
		}
		if !g.Fails("bad") || g.Fails("good") {
			t.Errorf("fails: bad %t, good %t", g.Fails("bad"), g.Fails("good"))
		}
		if err := e.ask(g, "bad"); !errors.Is(err, ErrNotAsked) {
			t.Errorf("Ask within a pause: %v, want no call", err)
		}
		time.Sleep(2*Pause - time.Nanosecond)
		if g.Sound("bad") {
			t.Error("sound before two pauses")
		}
		time.Sleep(time.Nanosecond)
		if !g.Sound("bad") {
			t.Error("not sound after two pauses")
		}
		if e.refuses = nil; e.ask(g, "bad") != nil || !g.Sound("bad") {
			t.Error("not sound after an answer")
		}
	})
}

// In each pause one call for a key without answers is made. Others do not wait for it.
func TestAsk_ProbeOfAKey(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate, e *engine, _ *[]observe.BreakerState) {
		e.refuses = func(key string) bool { return key == "bad" }
		for range Trips {
			e.ask(g, "bad")
			e.ask(g, "good")
		}
		time.Sleep(Pause)
		e.silent = true
		var probe sync.WaitGroup
		probe.Go(func() { e.ask(g, "bad") })
		synctest.Wait()
		began := time.Now()
		if err := e.ask(g, "bad"); !errors.Is(err, ErrNotAsked) || time.Since(began) > 0 {
			t.Errorf("beside the probe: %v after %v, want no call", err, time.Since(began))
		}
		probe.Wait()
	})
}

// The failures of a single key open the gate only after ten timeouts without any answer. The failures of keys that
// began before an answer for another key do not either.
func TestAsk_SilenceOfSomeKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate, e *engine, _ *[]observe.BreakerState) {
		fail := func(keys ...string) {
			e.silent = true
			for _, key := range keys {
				e.ask(g, key)
			}
			e.silent = false
		}
		for _, key := range []string{"a", "b", "c"} {
			fail(key)
			e.ask(g, "good")
		}
		if fail("a", "b", "c"); !g.Closed() {
			t.Error("open after failures of keys that began before an answer")
		}
		e.ask(g, "good")
		if fail("d", "d", "d"); !g.Closed() {
			t.Error("open after three failures of one key")
		}
		for range silenceTimeouts {
			time.Sleep(Pause)
			fail("d")
		}
		if g.Closed() {
			t.Error("not open after the silence of the only key")
		}
	})
}

// The context of a call ends with the call: nothing stays in a parent that lives on.
func TestAsk_EndsItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate, _ *engine, _ *[]observe.BreakerState) {
		var of context.Context
		AskErr(t.Context(), g, "k", NewBudget(timeout), func(ctx context.Context) error {
			of = ctx
			return nil
		})
		if of.Err() == nil || len(g.turns.patiences.running) != 0 {
			t.Errorf("after the call: error %v, %d calls under way", of.Err(), len(g.turns.patiences.running))
		}
	})
}

// The calls of holders come first, in order, and the latest of the others next.
func TestTurns_Order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTurns(timeout)
		for range firstTurns {
			tr.take(t.Context(), &tr.holders, nil)
		}
		var order []int
		for i, queue := range []*list.List{&tr.others, &tr.others, &tr.holders, &tr.holders} {
			go func() {
				tr.take(t.Context(), queue, nil)
				order = append(order, i)
			}()
			synctest.Wait()
		}
		for range 4 {
			tr.done(time.Now(), false)
			synctest.Wait()
		}
		if want := []int{2, 3, 1, 0}; !slices.Equal(order, want) {
			t.Errorf("turns in the order %v, want %v", order, want)
		}
	})
}

// A turn that comes together with the end of a call's wait goes to the next call.
func TestTurns_ComesWithTheEnd(t *testing.T) {
	tr := newTurns(timeout)
	for range firstTurns {
		tr.take(t.Context(), &tr.holders, nil)
	}
	ended, next := tr.holders.PushBack(make(chan struct{})), make(chan struct{})
	tr.holders.PushBack(next)
	tr.done(time.Now(), false)
	tr.giveUp(&tr.holders, ended)
	select {
	case <-next:
	default:
		t.Error("the next call has no turn")
	}
	if tr.running != firstTurns {
		t.Errorf("%d calls under way, want %d", tr.running, firstTurns)
	}
}

// Half a minute after the last failure, a gate without calls lets all calls through. If the engine is still silent, the
// first failures stop the others again.
func TestAsk_QuietGate(t *testing.T) {
	for _, silent := range []bool{false, true} {
		inBubble(t, func(t *testing.T, g *Gate, e *engine, _ *[]observe.BreakerState) {
			hang := func(ctx context.Context) (struct{}, error) {
				if silent {
					<-ctx.Done()
					return struct{}{}, ctx.Err()
				}
				time.Sleep(time.Millisecond)
				return struct{}{}, nil
			}
			e.silent = true
			for _, key := range []string{"a", "b", "c"} {
				e.ask(g, key)
			}
			time.Sleep(memory - time.Nanosecond)
			if g.Closed() {
				t.Error("closed too early")
			}
			time.Sleep(time.Nanosecond)
			if !g.Closed() {
				t.Error("not closed after half a minute")
			}
			began := time.Now()
			var calls sync.WaitGroup
			for i := range 10 {
				calls.Go(func() {
					_, err := AskInTurn(t.Context(), g, fmt.Sprint(i), NewBudget(timeout), hang)
					if silent == (err == nil) {
						t.Errorf("call %d: %v", i, err)
					}
				})
			}
			calls.Wait()
			if took := time.Since(began); took > timeout+step {
				t.Errorf("the calls took %v", took)
			}
			if g.Closed() == silent {
				t.Errorf("closed %t, want %t", g.Closed(), !silent)
			}
		})
	}
}

// A gate opens and closes any number of times. When it closes, the keys' own failures prove nothing any more.
func TestAsk_SilenceAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate, e *engine, _ *[]observe.BreakerState) {
		for range 2 {
			e.silent = true
			for _, key := range []string{"a", "a", "b", "a", "c"} {
				e.ask(g, key)
			}
			if g.Closed() {
				t.Error("closed while the engine is silent")
			}
			closing := g.Closing()
			time.Sleep(Pause + time.Nanosecond)
			e.silent = false
			if err := e.ask(g, "d"); err != nil {
				t.Errorf("Ask: %v", err)
			}
			<-closing
			if !g.Sound("a") {
				t.Error("not sound when the gate has closed")
			}
		}
	})
}

// A silent engine opens the gate. One Pause later a call tests the engine, and its answer closes the gate for all keys.
func TestAsk_Silence(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate, e *engine, changes *[]observe.BreakerState) {
		e.ask(g, "a")
		e.silent = true
		for _, key := range []string{"a", "b", "c", "a", "b", "c", "a", "b", "c"} {
			e.ask(g, key)
		}
		if !g.Open() {
			t.Fatal("the gate of a silent engine is not open")
		}
		began := time.Now()
		if err := e.ask(g, "a"); !errors.Is(err, ErrNotAsked) || time.Since(began) > 0 {
			t.Errorf("Ask: %v after %v, want no call", err, time.Since(began))
		}
		e.silent = false
		time.Sleep(Pause + time.Nanosecond)
		closed := g.Closing()
		if err := e.ask(g, "other"); err != nil {
			t.Errorf("the call that tests the engine: %v", err)
		}
		select {
		case <-closed:
		default:
			t.Error("the gate did not close")
		}
		for _, key := range []string{"a", "b", "c", "other"} {
			if !g.Sound(key) {
				t.Errorf("%q is not sound after the gate closed", key)
			}
		}
		if n := len(*changes); n != 3 || (*changes)[n-1] != observe.BreakerClosed {
			t.Errorf("changes %v, want open, half-open, closed", *changes)
		}
	})
}

// When the gate opens, the calls in turn end within a step, or in the queue at once. A holder's call goes on.
func TestAskInTurn_GateOpens(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate, _ *engine, _ *[]observe.BreakerState) {
		const patient = 5 * timeout
		hang := func(ctx context.Context) (struct{}, error) {
			<-ctx.Done()
			return struct{}{}, ctx.Err()
		}
		var calls sync.WaitGroup
		begin := func(name string, want, late time.Duration, err error, ask func(context.Context, *Gate, string, *Budget, func(context.Context) (struct{}, error)) (struct{}, error)) {
			calls.Go(func() {
				began := time.Now()
				_, got := ask(t.Context(), g, name, NewBudget(patient), hang)
				if took := time.Since(began); took < want || took > want+late || !errors.Is(got, fault.ErrUnavailable) || !errors.Is(got, err) {
					t.Errorf("%s: %v after %v, want %v after %v", name, got, took, err, want)
				}
			})
			synctest.Wait()
		}
		begin("under way", timeout, step, ErrSilent, AskInTurn[struct{}])
		begin("holder", patient, 0, context.DeadlineExceeded, Ask[struct{}])
		for _, key := range []string{"a", "b", "c"} { // their silence opens the gate
			calls.Go(func() { AskInTurn(t.Context(), g, key, NewBudget(timeout), hang) })
		}
		synctest.Wait()
		for g.turns.running < int(g.turns.bound) { // of another gate's calls
			g.turns.take(t.Context(), &g.turns.holders, nil)
		}
		begin("in the queue", timeout, 0, ErrSilent, AskInTurn[struct{}])
		calls.Wait()
	})
}

// An exiting error ends the goroutine that asks for its text.
type exiting struct{}

func (exiting) Error() string { runtime.Goexit(); return "" }

// A probe whose failure has no text is a probe: the next one comes after the pause.
func TestAsk_ProbeFailsWithoutAText(t *testing.T) {
	inBubble(t, func(t *testing.T, g *Gate, e *engine, changes *[]observe.BreakerState) {
		e.refuses = func(string) bool { return true }
		for n := range 2 * Trips {
			e.ask(g, fmt.Sprint(n))
		}
		time.Sleep(2 * Pause)
		var probe sync.WaitGroup
		probe.Go(func() {
			AskErr(t.Context(), g, "k", NewBudget(time.Minute), func(context.Context) error { return exiting{} })
		})
		probe.Wait()
		time.Sleep(2 * Pause)
		if e.refuses = nil; e.ask(g, "k") != nil || !g.Closed() {
			t.Error("no call after the pause, want a probe")
		}
	})
}
