package bellwether

import (
	"context"
	"sync"
	"time"
)

// This file is the limit of a call that an engine answers bit by bit.

// A patience is a context that ends when its engine has been silent for some time,
// or with the context that it was made from. Each word of the engine's begins the
// time anew, so its deadline moves: an adapter that asks in pieces has the whole time
// for each.
type patience struct {
	context.Context // what it was made from; Deadline, Done and Err are not its own
	limit           time.Duration
	done            chan struct{}

	mu      sync.Mutex // guards what follows
	silence *time.Timer
	due     time.Time
	err     error
}

// withPatience is the limiter whose contexts are of type *patience.
func withPatience(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	p := &patience{Context: ctx, limit: limit, done: make(chan struct{}), due: time.Now().Add(limit)}
	p.mu.Lock() // a short limit may be over before the timer has its place
	p.silence = time.AfterFunc(limit, func() { p.end(context.DeadlineExceeded) })
	p.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { p.end(ctx.Err()) })
	return p, func() {
		stop()
		p.end(context.Canceled)
	}
}

// heard says that the engine has answered something.
func (p *patience) heard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && p.silence.Stop() { // else it is over just now
		p.silence.Reset(p.limit)
		p.due = time.Now().Add(p.limit)
	}
}

func (p *patience) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return
	}
	p.silence.Stop()
	p.err = err
	close(p.done)
}

// Deadline implements [context.Context]. It is the present one.
func (p *patience) Deadline() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if due, ok := p.Context.Deadline(); ok && due.Before(p.due) {
		return due, true
	}
	return p.due, true
}

// Done implements [context.Context].
func (p *patience) Done() <-chan struct{} { return p.done }

// Err implements [context.Context].
func (p *patience) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
