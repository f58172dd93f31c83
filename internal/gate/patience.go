package gate

import (
	"context"
	"sync"
	"time"
)

// This file is the time limit of a call that an engine answers piece by piece.

// A patience is a context that ends when the engine has been silent for the limit, or with its
// parent. Each piece of the answer begins the limit anew, so the deadline moves.
type patience struct {
	context.Context // the parent, whose Deadline, Done and Err are overridden
	limit           time.Duration
	done            chan struct{}

	mu      sync.Mutex // guards the fields below
	silence *time.Timer
	due     time.Time
	err     error
}

// withPatience is the limiter with contexts of type *patience.
func withPatience(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	p := &patience{Context: ctx, limit: limit, done: make(chan struct{}), due: time.Now().Add(limit)}
	p.mu.Lock() // a short limit may end before p.silence is set
	p.silence = time.AfterFunc(limit, func() { p.end(context.DeadlineExceeded) })
	p.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { p.end(ctx.Err()) })
	return p, func() {
		stop()
		p.end(context.Canceled)
	}
}

func (p *patience) heard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && p.silence.Stop() { // else the limit has just ended
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

func (p *patience) Deadline() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if due, ok := p.Context.Deadline(); ok && due.Before(p.due) {
		return due, true
	}
	return p.due, true
}

func (p *patience) Done() <-chan struct{} { return p.done }

func (p *patience) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
