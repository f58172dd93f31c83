package bellwether

import (
	"container/list"
	"context"
	"math"
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
	timeout time.Duration // after which calls are given up

	mu      sync.Mutex // guards what follows
	bound   float64
	running int
	base    time.Duration // what a call takes that others do not slow down; 0: not known
	learned time.Time     // when base was last found by a call that ran beside few
	crowded time.Time     // when more than few last ran
	probing time.Time     // until then few run, for base to be found
	lowered time.Time     // when bound was last lowered
	holders list.List     // of chan struct{}: the calls of those who hold a lease; they go first
	others  list.List     // of chan struct{}: the latest goes first
}

// The bound follows what our own calls do to the engine, as in TCP Vegas
// (Brakmo, O'Malley, Peterson, SIGCOMM 1994): it falls while calls take longer
// than they do beside few others, since more of them at a time would only take
// longer still, and rises while they do not. An engine that is far away is as far
// for one call as for many, and gets as many as it has need of.
const (
	fewestTurns = 8
	firstTurns  = 16
	mostTurns   = 256
	// fewTurns run beside each other without slowing each other down. It is below
	// fewestTurns, so that under a load that never ends the base is not taken
	// from calls that waited in the engine for each other.
	fewTurns = 2
	// slowPart is the part of EngineTimeout by which calls may take longer than
	// the base, and of which they stay below EngineTimeout itself: the bound is
	// to fall before they are given up.
	slowPart = 4
	// baseLife is for how long the base holds against calls that take longer.
	baseLife = 10 * time.Second
)

func newTurns(timeout time.Duration) *turns {
	return &turns{timeout: timeout, bound: firstTurns}
}

// take waits for a turn in one of t's queues; the error is ctx's.
func (t *turns) take(ctx context.Context, queue *list.List) error {
	turn := make(chan struct{})
	t.mu.Lock()
	// Under more load than the engine carries, those who have waited longest are those
	// whose callers leave next: served in their order, each would be served in vain.
	place := queue.PushFront(turn)
	if queue == &t.holders {
		queue.MoveToBack(place)
	}
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
	if t.running > fewTurns {
		t.crowded = now
	}
	if answered {
		t.learn(began, now)
	}
	slow := max(1, min(t.base+t.timeout/slowPart, t.timeout-t.timeout/slowPart)) // unfill divides by it
	quick := (t.base + slow) / 2
	switch {
	case took >= slow:
		// Once for all that ran at one time: they were slow for one reason.
		if began.After(t.lowered) {
			t.bound, t.lowered = max(fewestTurns, t.bound*3/4), now
		}
	case answered && took < quick && t.holders.Len()+t.others.Len() > 0:
		// When as many as run have come back, their number's root more: a few
		// calls for an engine that is busy, and a few round trips to all of them
		// for one that is far away.
		t.bound = min(mostTurns, t.bound+1/math.Sqrt(t.bound))
	}
	if answered && took >= quick && now.Sub(t.learned) > baseLife && now.Sub(t.probing) > baseLife {
		// It may be the engine that has changed. Under a load that never ends no
		// call runs beside few, unless the others wait for it: for the time of two
		// calls, and no longer than one may take, if those before it never end.
		t.unfill(slow)
		t.probing = now.Add(t.timeout)
		time.AfterFunc(t.timeout, t.resume)
	}
	if t.running--; t.running == 0 {
		t.unfill(slow)
	}
	t.next()
}

// unfill lowers the bound for calls that come all at once while none is under
// way. Of those that take so long, a part is in the engine and the rest on the way,
// and now all of them would come to be in the engine.
func (t *turns) unfill(slow time.Duration) {
	part := float64(max(0, slow-t.base)) / float64(slow)
	t.bound = min(t.bound, max(firstTurns, t.bound*part))
}

// learn takes the base from a call that was answered now. A quicker one is always
// right; a slower one may be if none of ours can have slowed it down, and the
// last word is old. t.mu is held, and the call still runs.
func (t *turns) learn(began, now time.Time) {
	took, alone := max(now.Sub(began), 1), !t.crowded.After(began)
	if t.base == 0 || took < t.base || alone && now.Sub(t.learned) > baseLife {
		t.base = took
	} else if took > t.base {
		return
	}
	if alone {
		t.learned = now
		if now.Before(t.probing) {
			t.probing = now
		}
	}
}

// resume lets those go on that a probe has held up to its last moment.
func (t *turns) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next()
}

// next lets those go on whose turn it is. t.mu is held.
func (t *turns) next() {
	most := int(t.bound)
	if !t.probing.IsZero() && time.Now().Before(t.probing) {
		most = fewTurns
	}
	for t.running < most {
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
