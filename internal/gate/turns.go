package gate

import (
	"cmp"
	"container/list"
	"context"
	"math"
	"sync"
	"time"
)

// This file is the queue before an engine. The calls for a thousand keys that expire together would wait for
// each other in the engine's client and in the engine. Such a wait is no outage: calls wait here, before
// their budget counts, and go on as fast as the engine answers.

type turns struct {
	timeout   time.Duration // of a call
	patiences patiences     // of the calls

	mu      sync.Mutex // guards the fields below
	bound   float64
	running int
	base    time.Duration // the duration of an undisturbed call; 0: unknown
	learned time.Time     // when a call beside few others last gave the base
	crowded time.Time     // when more than fewTurns calls last ran
	probing time.Time     // until then fewTurns calls run, so a call gives the base
	lowered time.Time     // when bound was last lowered
	holders list.List     // of chan struct{}: the calls of Ask; they go first, in order
	others  list.List     // of chan struct{}: all other calls; the latest goes first
}

// The bound follows the effect of our own calls, as in TCP Vegas (Brakmo, O'Malley, Peterson, SIGCOMM 1994).
// It falls while calls take longer than calls beside few others: more calls would only take longer still.
// Otherwise it rises: a distant engine is equally distant for many calls, and gets as many as it needs.
const (
	fewestTurns = 8
	firstTurns  = 16
	mostTurns   = 256
	// fewTurns calls run beside each other without slowing each other down. It is below fewestTurns:
	// under endless load the base must not come from calls that waited in the engine for each other.
	fewTurns = 2
	// A call is slow if it takes longer than the base by 1/slowPart of the timeout, or if it
	// takes all but 1/slowPart of the timeout. So the bound falls before calls time out.
	slowPart = 4
	// baseLife is the time for which slower calls do not replace the base.
	baseLife = 10 * time.Second
)

func newTurns(timeout time.Duration) *turns {
	return &turns{timeout: timeout, bound: firstTurns}
}

// take waits for a turn in queue, which is t.holders or t.others. Its error is ctx's, or ErrSilent when opens is
// closed. The methods of ctx may be user code, and run while the call has no place in the queue: after a panic or Goexit
// nobody would take it out again.
func (t *turns) take(ctx context.Context, queue *list.List, opens <-chan struct{}) error {
	ended := ctx.Done()
	t.mu.Lock()
	if t.holders.Len()+t.others.Len() == 0 && t.running < t.most() {
		t.running++
		t.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	// Under more load than the engine carries, the callers of the oldest calls leave next.
	// First in, first out would serve each of them in vain (adaptive LIFO).
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
	case <-opens:
		t.giveUp(queue, place)
		return ErrSilent
	case <-ended:
		t.giveUp(queue, place)
		return cmp.Or(ctx.Err(), context.Canceled) // a foreign context may close Done before it sets Err
	}
}

// giveUp ends the wait for a turn.
func (t *turns) giveUp(queue *list.List, place *list.Element) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-place.Value.(chan struct{}): // the turn came together with the end: the next call may have it
		t.running--
		t.next()
	default:
		queue.Remove(place)
	}
}

// done gives a turn back that began at began. answered reports whether the engine answered.
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
		// Once for all calls that ran together: they were slow for the same reason.
		if began.After(t.lowered) {
			t.bound, t.lowered = max(fewestTurns, t.bound*3/4), now
		}
	case answered && took < quick && t.holders.Len()+t.others.Len() > 0:
		// After one round of running calls the bound has grown by its square root: by a few
		// calls for a busy engine, and to mostTurns within a few round trips for a distant one.
		t.bound = min(mostTurns, t.bound+1/math.Sqrt(t.bound))
	}
	if answered && took >= quick && now.Sub(t.learned) > baseLife && now.Sub(t.probing) > baseLife {
		// The engine itself may have become slower. Under endless load calls run beside few others
		// only if the rest waits: for the time of two calls, and at most for the timeout.
		t.unfill(slow)
		t.probing = now.Add(t.timeout)
		time.AfterFunc(t.timeout, t.resume)
	}
	if t.running--; t.running == 0 {
		t.unfill(slow)
	}
	t.next()
}

// unfill lowers the bound for calls that come together while no call is under way. A part of a
// steady stream is on the way. A new burst would be in the engine as a whole.
func (t *turns) unfill(slow time.Duration) {
	part := float64(max(0, slow-t.base)) / float64(slow)
	t.bound = min(t.bound, max(firstTurns, t.bound*part))
}

// learn takes the base from an answered call: always from a quicker call, and from a slower call if few
// others ran beside it and the base is old. t.mu is held, and the call still counts as running.
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

// resume gives turns to the calls that a probe has held up.
func (t *turns) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next()
}

// next gives turns to the calls that may run now. t.mu is held.
func (t *turns) next() {
	for most := t.most(); t.running < most; {
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

// most is how many calls may run now. t.mu is held.
func (t *turns) most() int {
	if !t.probing.IsZero() && time.Now().Before(t.probing) {
		return fewTurns
	}
	return int(t.bound)
}

func (t *turns) taken() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running >= t.most()
}
