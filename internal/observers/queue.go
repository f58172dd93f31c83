package observers

import "sync"

// maxQueued is the most calls that wait. One large value usually displaces fewer values.
const maxQueued = 1 << 16

// A queue makes the calls for events that happen under locks, one after another, in their order, on a goroutine
// of its own. The zero queue is ready for use, and safe for concurrent use.
type queue struct {
	running sync.WaitGroup // the goroutine of drain

	mu      sync.Mutex // guards the fields below
	waiting []func()   // the first call runs; drain ends when the queue is empty
	closed  bool
}

// add queues f, unless the queue is full or closed. It does not wait, and may be called under any lock.
func (q *queue) add(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.waiting) >= maxQueued {
		return
	}
	q.waiting = append(q.waiting, f)
	if len(q.waiting) == 1 {
		q.running.Go(q.drain)
	}
}

func (q *queue) drain() {
	exits := true
	defer func() {
		if exits && q.advance() { // after an observer's Goexit another goroutine drains the queue
			q.running.Go(q.drain)
		}
	}()
	for more := true; more; more = q.advance() {
		q.first()()
	}
	exits = false
}

func (q *queue) first() func() {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting[0]
}

// advance drops the first call, which has returned, and reports whether another call waits.
func (q *queue) advance() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	return len(q.waiting) > 0
}

// close ends add, and returns when the queued calls have returned.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.running.Wait()
}
