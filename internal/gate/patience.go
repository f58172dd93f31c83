package gate

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// This file is the time limit of a call to an engine.

// A patience is the context of a call. It ends with its parent, with the call, or when the engine has been
// silent for the limit. Each piece of an answer begins the limit anew, so the deadline moves.
//
// The limit is counted in steps, and only a quarter of a step that ends very late counts. A process without a
// processor hears no answer: while it is stopped, or on a crowded machine. By the clock alone, the calls of all
// such processes would end together, and each process would take the engine for silent and load for itself. A
// process that is always late gives an engine four times the limit. A single stop ends no call, however long.
type patience struct {
	context.Context // the parent's, with an end by cancel
	cancel          context.CancelCauseFunc
	limit           time.Duration
	opens           <-chan struct{} // closed when the gate opens, which ends the call; nil: the opening does not end it

	mu    sync.Mutex // guards the fields below
	left  time.Duration
	began time.Time // when the present step began
	next  *time.Timer
}

const (
	step = 10 * time.Millisecond
	// late is above the delays in a process that has a processor: other goroutines run for 10 ms at most.
	late = 2 * step
)

func newPatience(ctx context.Context, limit time.Duration, opens <-chan struct{}) *patience {
	p := &patience{limit: limit, opens: opens, left: max(limit, 1), began: time.Now()}
	p.Context, p.cancel = context.WithCancelCause(ctx)
	p.mu.Lock() // the first step may end before p.next is set
	defer p.mu.Unlock()
	p.next = time.AfterFunc(min(p.left, step), p.endStep)
	return p
}

func (p *patience) endStep() {
	if why := p.count(); why != nil {
		p.cancel(why) // without the lock: the parent may be of a foreign type
	}
}

// count counts the present step, and begins the next. It returns the reason for the call's end, if it ends now.
func (p *patience) count() error {
	ended := p.Context.Err() != nil
	p.mu.Lock()
	defer p.mu.Unlock()
	if ended {
		return nil
	}
	select {
	case <-p.opens:
		return ErrSilent
	default:
	}
	now := time.Now()
	passed := now.Sub(p.began)
	if passed > late {
		passed = min(max(passed/4, step), max(p.limit/2, 1))
	}
	p.left -= passed
	p.began = now
	if p.left <= 0 {
		return context.DeadlineExceeded
	}
	p.next.Reset(min(p.left, step))
	return nil
}

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
	p.cancel(nil)
	p.next.Stop()
}

func (p *patience) usedUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left <= 0
}

// Err is DeadlineExceeded after the limit. A context below p, such as a client's own, ends with Canceled, and
// with DeadlineExceeded as its cause.
func (p *patience) Err() error {
	err := p.Context.Err()
	if err != nil && p.usedUp() {
		return context.DeadlineExceeded
	}
	return err
}

// Deadline is the earliest end of the limit. A client that goes by it alone gives up by the clock.
func (p *patience) Deadline() (time.Time, bool) {
	of, ok := p.Context.Deadline()
	p.mu.Lock()
	defer p.mu.Unlock()
	due := p.began.Add(p.left)
	if ok && of.Before(due) {
		return of, true
	}
	return due, true
}

// String keeps fmt from reading the fields.
func (p *patience) String() string { return fmt.Sprintf("%v.patience(%v)", p.Context, p.limit) }
