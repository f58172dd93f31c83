package bellwether

import "sync"

// This file is how observers are told of breakers and evictions: both happen under
// locks, so what there is to tell waits in a queue.

// maxTellings is how many tellings wait for observers. The values that one large value
// displaces are fewer, as a rule.
const maxTellings = 1 << 16

// tellings are what observers have still to be told of breakers and evictions. Both
// happen under locks, so that one goroutine tells of them behind these, in their order.
// The zero tellings are ready for use. They are safe for concurrent use.
type tellings struct {
	running sync.WaitGroup // of that goroutine

	mu      sync.Mutex // guards what follows
	waiting []func()   // the first of them runs; the goroutine ends when none is left
	closed  bool
}

// add has f called, unless maxTellings wait, or no more are taken. It does not wait for
// anything, and may be called under any lock.
func (t *tellings) add(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.waiting) >= maxTellings {
		return
	}
	t.waiting = append(t.waiting, f)
	if len(t.waiting) == 1 {
		t.running.Go(t.drain)
	}
}

// drain calls the functions that wait.
func (t *tellings) drain() {
	exits := true
	defer func() {
		if exits && t.advance() { // an observer's Goexit: the next tellings need another goroutine
			t.running.Go(t.drain)
		}
	}()
	for more := true; more; more = t.advance() {
		t.first()()
	}
	exits = false
}

func (t *tellings) first() func() {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting[0]
}

// advance drops the first function, which has been called, and reports whether there
// is another one.
func (t *tellings) advance() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[0] = nil
	t.waiting = t.waiting[1:]
	return len(t.waiting) > 0
}

// close takes no more tellings, and returns when the present ones have been called.
func (t *tellings) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.running.Wait()
}
