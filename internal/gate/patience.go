package gate

import (
	"context"
	"fmt"
	"runtime"
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
// process that is always late gives an engine four times the limit. A single stop, however long, counts as half of the
// limit at most.
type patience struct {
	context.Context // the parent's, with an end by cancel
	cancel          context.CancelCauseFunc
	limit           time.Duration
	opens           <-chan struct{} // closed when the gate opens, which ends the call; nil: the opening does not end it
	among           *patiences

	// among.mu guards the fields below.
	left  time.Duration
	began time.Time // when the time began that is not yet counted
}

// The patiences of an engine's calls share a timer. A burst has hundreds of calls, and with a timer each it would start
// a goroutine per call and step. The zero value is ready.
type patiences struct {
	mu      sync.Mutex // guards the fields below
	running map[*patience]struct{}
	next    *time.Timer // nil if no call runs
	due     time.Time   // when next fires
}

const (
	step = 10 * time.Millisecond
	// late is above the delays in a process that has a processor: other goroutines run for 10 ms at most.
	late = 2 * step
)

func (s *patiences) begin(ctx context.Context, limit time.Duration, opens <-chan struct{}) *patience {
	p := &patience{limit: limit, opens: opens, among: s, left: max(limit, 1), began: time.Now()}
	p.Context, p.cancel = context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		s.running = make(map[*patience]struct{})
	}
	s.running[p] = struct{}{}
	if due := p.began.Add(min(p.left, step)); s.next == nil || due.Before(s.due) {
		s.fireAt(due)
	}
	return p
}

// fireAt sets the timer. s.mu is held.
func (s *patiences) fireAt(due time.Time) {
	s.forget()
	s.due, s.next = due, time.AfterFunc(time.Until(due), s.fire)
}

// fire counts a step of all calls.
func (s *patiences) fire() {
	runtime.Gosched() // a timer's goroutine goes before all others: here it waits as long as one that brings an answer
	s.mu.Lock()
	defer s.mu.Unlock()
	now, next := time.Now(), step
	for p := range s.running {
		if p.Context.Err() != nil {
			delete(s.running, p)
		} else if why := p.count(now); why != nil {
			delete(s.running, p)
			go p.cancel(why) // without the lock: the parent may be of a foreign type
		} else {
			next = min(next, p.left)
		}
	}
	if len(s.running) == 0 {
		s.forget()
	} else {
		s.fireAt(now.Add(next))
	}
}

// forget ends the timer. The next call may run in another bubble of testing/synctest. s.mu is held.
func (s *patiences) forget() {
	if s.next != nil {
		s.next.Stop()
		s.next, s.due = nil, time.Time{}
	}
}

// count counts the time that has passed. It returns the reason for the call's end, if it ends now. among.mu is held.
func (p *patience) count(now time.Time) error {
	select {
	case <-p.opens:
		return ErrSilent
	default:
	}
	passed := now.Sub(p.began)
	if passed > late {
		passed = min(max(passed/4, step), max(p.limit/2, 1))
	}
	p.left -= passed
	p.began = now
	if p.left <= 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// heard begins the limit anew.
func (p *patience) heard() {
	p.among.mu.Lock()
	defer p.among.mu.Unlock()
	if p.left > 0 {
		p.left, p.began = p.limit, time.Now()
	}
}

// end ends the call.
func (p *patience) end() {
	p.cancel(nil)
	p.among.mu.Lock()
	defer p.among.mu.Unlock()
	if delete(p.among.running, p); len(p.among.running) == 0 {
		p.among.forget()
	}
}

func (p *patience) usedUp() bool {
	p.among.mu.Lock()
	defer p.among.mu.Unlock()
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
	p.among.mu.Lock()
	defer p.among.mu.Unlock()
	due := p.began.Add(p.left)
	if ok && of.Before(due) {
		return of, true
	}
	return due, true
}

// String keeps fmt from reading the fields.
func (p *patience) String() string { return fmt.Sprintf("%v.patience(%v)", p.Context, p.limit) }
