package bellwether

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// This file is the queue before an engine. When a thousand keys expire at one
// time, a thousand flights call at one time, and their calls would wait for each
// other in the engine's client, on its few connections, and in the engine. That
// is no outage: calls wait here, before their time for outages counts, and go on
// as fast as the engine answers those before them.

// turns bounds the calls of one engine that run at one time.
type turns struct {
	slow time.Duration // what is too long for a call

	mu      sync.Mutex // guards what follows
	bound   float64
	running int
	lowered time.Time // when bound was last lowered
	holders list.List // of chan struct{}: the calls of those who hold a lease; they go first
	others  list.List // of chan struct{}
}

// The bound follows the engine: it falls while calls take long, since more of
// them at a time would only take longer, and rises while they do not, so that an
// engine that is far away gets as many as it has need of.
const (
	fewestTurns = 8
	firstTurns  = 16
	mostTurns   = 256
	// slowPart is the part of EngineTimeout that is slow: far enough from all of
	// it that the bound falls before calls are given up.
	slowPart = 4
)

func newTurns(timeout time.Duration) *turns {
	return &turns{slow: timeout / slowPart, bound: firstTurns}
}

// take waits for a turn in one of t's queues; the error is ctx's.
func (t *turns) take(ctx context.Context, queue *list.List) error {
	turn := make(chan struct{})
	t.mu.Lock()
	place := queue.PushBack(turn)
	t.next()
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	default:
	}
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-turn: // at the same time: another may have it
		t.running--
		t.next()
	default:
		queue.Remove(place)
	}
	return ctx.Err()
}

// done gives a turn back that was taken at began. answered tells whether the
// engine has said anything.
func (t *turns) done(began time.Time, answered bool) {
	now := time.Now()
	took := now.Sub(began)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case took >= t.slow:
		// Once for all that ran at one time: they were slow for one reason.
		if began.After(t.lowered) {
			t.bound, t.lowered = max(fewestTurns, t.bound*3/4), now
		}
	case answered && took < t.slow/2 && t.holders.Len()+t.others.Len() > 0:
		// One more when as many as run have come back.
		t.bound = min(mostTurns, t.bound+1/t.bound)
	}
	t.running--
	t.next()
}

// next lets those go on whose turn it is. t.mu is held.
func (t *turns) next() {
	for t.running < int(t.bound) {
		queue := &t.holders
		if queue.Len() == 0 {
			queue = &t.others
		}
		if queue.Len() == 0 {
			return
		}
		t.running++
		close(queue.Remove(queue.Front()).(chan struct{}))
	}
}
