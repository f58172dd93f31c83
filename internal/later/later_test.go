package later

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// An engine is silent about the keys of silent, and records its calls with their seconds.
type engine struct {
	mu      sync.Mutex
	began   time.Time
	silent  map[string]bool
	exits   bool // the next call ends its goroutine
	calls   []string
	answers chan struct{}
}

func (e *engine) try(key string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, fmt.Sprint(key, " ", time.Since(e.began).Seconds()))
	if e.exits {
		e.exits = false
		runtime.Goexit()
	}
	return e.silent[key]
}

func (e *engine) set(silent ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.silent = map[string]bool{}
	for _, key := range silent {
		e.silent[key] = true
	}
}

// made returns the calls since the last made.
func (e *engine) made() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	calls := e.calls
	e.calls = nil
	slices.Sort(calls)
	return calls
}

// inBubble runs f with Keys whose cache is closed after f.
func inBubble(t *testing.T, name string, f func(t *testing.T, e *engine, k *Keys)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := &engine{began: time.Now(), answers: make(chan struct{})}
			open, shut := context.WithCancel(t.Context())
			var behind sync.WaitGroup
			k := New(Config{
				Try: e.try, Answers: func() <-chan struct{} { return e.answers }, Pause: time.Second, Open: open,
				Behind: func(f func()) {
					if open.Err() == nil {
						behind.Go(f)
					}
				},
			})
			f(t, e, k)
			shut()
			behind.Wait()
		})
	})
}

func TestKeys(t *testing.T) {
	want := func(t *testing.T, e *engine, want ...string) {
		t.Helper()
		synctest.Wait()
		if got := e.made(); !slices.Equal(got, want) {
			t.Errorf("calls: got %q, want %q", got, want)
		}
	}
	inBubble(t, "pauses double", func(t *testing.T, e *engine, k *Keys) {
		e.set("a")
		k.Add("a")
		k.Add("a")
		time.Sleep(50 * time.Second)
		want(t, e, "a 1", "a 15", "a 3", "a 31", "a 47", "a 7")
		e.set()
		time.Sleep(time.Minute)
		want(t, e, "a 63")
		k.Add("b") // a new first round
		time.Sleep(time.Minute)
		want(t, e, "b 111")
	})
	inBubble(t, "the engine answers again", func(t *testing.T, e *engine, k *Keys) {
		k.Add("a")
		close(e.answers)
		want(t, e, "a 0")
	})
	inBubble(t, "dropped", func(t *testing.T, e *engine, k *Keys) {
		k.Add("a")
		k.Drop("a")
		time.Sleep(time.Minute)
		want(t, e)
	})
	inBubble(t, "a call ends the goroutine", func(t *testing.T, e *engine, k *Keys) {
		e.exits = true
		k.Add("a")
		k.Add("b")
		time.Sleep(time.Minute)
		if calls := e.made(); len(calls) != 2 {
			t.Errorf("calls: %q, want one about each key", calls)
		}
	})
	inBubble(t, "a dead server", func(t *testing.T, e *engine, k *Keys) {
		var keys []string
		for i := range 2 * maxSilent {
			keys = append(keys, fmt.Sprint(i))
			k.Add(keys[i])
		}
		e.set(keys...)
		time.Sleep(2 * time.Second)
		if n := len(e.made()); n != maxSilent {
			t.Errorf("%d calls in a round without an answer, want %d", n, maxSilent)
		}
	})
	inBubble(t, "full", func(t *testing.T, e *engine, k *Keys) {
		for i := range most + 10 {
			k.Add(fmt.Sprint(i))
		}
		time.Sleep(time.Minute)
		if n := len(e.made()); n != most {
			t.Errorf("%d calls, want %d", n, most)
		}
	})
	inBubble(t, "closed", func(t *testing.T, e *engine, k *Keys) { k.Add("a") })
}
