// Package tellings queues calls to observers of events that happen under locks.
package tellings

import "sync"

// Most is the most calls that wait. One large value usually displaces fewer values.
const Most = 1 << 16

// A Queue makes calls one after another, in their order, on a goroutine of its own. The zero Queue is
// ready for use, and safe for concurrent use.
type Queue struct {
	running sync.WaitGroup // the goroutine of drain

	mu      sync.Mutex // guards the fields below
	waiting []func()   // the first call runs; drain ends when the queue is empty
	closed  bool
}

// Add queues f, unless the queue is full or closed. It does not wait, and may be called under any lock.
func (t *Queue) Add(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.waiting) >= Most {
		return
	}
	t.waiting = append(t.waiting, f)
	if len(t.waiting) == 1 {
		t.running.Go(t.drain)
	}
}

func (t *Queue) drain() {
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

func (t *Queue) first() func() {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting[0]
}

// advance drops the first call, which has returned, and reports whether another call waits.
func (t *Queue) advance() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[0] = nil
	t.waiting = t.waiting[1:]
	return len(t.waiting) > 0
}

// Close ends add, and returns when the queued calls have returned.
func (t *Queue) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.running.Wait()
}
