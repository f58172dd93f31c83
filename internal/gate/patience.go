package gate

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// This file is the time limit of a call to an engine.

// A patience is the context of a call. It ends with its parent, with the call, or when the engine has been
// silent for the limit. Each piece of an answer begins the limit anew, so the deadline moves.
//
// The limit is counted in steps, and a step that ends late counts as one step. A process without a processor
// is not told of an answer: while it is stopped, on a crowded machine, or behind the thousands of goroutines
// that wake up in a herd. By the clock alone, the calls of all such processes would end together, and each
// process would take the engine for silent and load for itself.
type patience struct {
	context.Context // the parent's, with an end by cancel
	cancel          context.CancelFunc
	limit           time.Duration

	mu    sync.Mutex // guards the fields below
	left  time.Duration
	began time.Time // when the present step began
	step  *time.Timer
}

// longestStep is well below a limit, and above the pauses of a process that has the processor it needs.
const longestStep = 10 * time.Millisecond

func newPatience(ctx context.Context, limit time.Duration) *patience {
	p := &patience{limit: limit, left: limit, began: time.Now()}
	p.Context, p.cancel = context.WithCancel(ctx)
	p.mu.Lock() // the first step may end before p.step is set
	defer p.mu.Unlock()
	p.step = time.AfterFunc(min(limit, longestStep), p.endStep)
	return p
}

func (p *patience) endStep() {
	runtime.Gosched() // the goroutines that are ready now go first: one of them may have the answer
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Context.Err() != nil {
		return
	}
	p.left -= p.passed()
	p.began = time.Now()
	if p.left <= 0 {
		p.cancel()
		return
	}
	p.step.Reset(min(p.left, longestStep))
}

// passed is what the present step counts by now. p.mu is held.
func (p *patience) passed() time.Duration { return min(time.Since(p.began), p.left, longestStep) }

// heard begins the limit anew.
func (p *patience) heard() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left > 0 {
		p.left, p.began = p.limit, time.Now()
	}
}

// end ends the call.
func (p *patience) end() {
	p.cancel()
	p.step.Stop()
}

// spent is the part of the limit that has passed since the last piece of the answer.
func (p *patience) spent() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limit - p.left + p.passed()
}

func (p *patience) usedUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left <= 0
}

// Err is DeadlineExceeded after the limit. A context below p, such as a client's own, ends with Canceled.
func (p *patience) Err() error {
	err := p.Context.Err()
	if err != nil && p.usedUp() {
		return context.DeadlineExceeded
	}
	return err
}

// Deadline is the earliest end of the limit. A client that goes by it alone gives up by the clock.
func (p *patience) Deadline() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := p.began.Add(p.left)
	if of, ok := p.Context.Deadline(); ok && of.Before(due) {
		return of, true
	}
	return due, true
}
