package bellwether

import "sync"

// This file queues the calls to observers of breakers and evictions, since both happen under locks.

// maxTellings is the most calls that wait. One large value usually displaces fewer values.
const maxTellings = 1 << 16

// tellings is the queue. One goroutine makes the calls, in their order. The zero value is ready for
// use, and safe for concurrent use.
type tellings struct {
	running sync.WaitGroup // the goroutine of drain

	mu      sync.Mutex // guards the fields below
	waiting []func()   // the first call runs; drain ends when the queue is empty
	closed  bool
}

// add queues f, unless the queue is full or closed. It waits for nothing, and may be called under any
// lock.
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

func (t *tellings) drain() {
	exits := true
	defer func() {
		if exits && t.advance() { // after an observer's Goexit another goroutine drains the queue
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

// advance drops the first call, which has returned, and reports whether another call waits.
func (t *tellings) advance() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[0] = nil
	t.waiting = t.waiting[1:]
	return len(t.waiting) > 0
}

// close ends add, and returns when the queued calls have returned.
func (t *tellings) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.running.Wait()
}
