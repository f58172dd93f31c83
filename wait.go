package bellwether

import (
	"context"
	"time"

	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is a call's wait for the answer of its flight.

// wait waits for the answer or the error of the key's flight, begun with b's loader if there is none. A call
// that refuses the flight's item goes on to the next flight, and all such calls share it.
func (c *waiter) wait(b binder) {
	for c.flight != nil || c.join(b) {
		is, news, expiry := c.advance()
		switch {
		case is == flightLanded:
			c.flight = nil
			continue
		case is != stillWaiting:
			return
		case expiry != nil || c.want.Aside != nil || c.load != nil:
			if !c.pause(news, expiry) {
				return
			}
			continue
		}
		select { // the shortest select: a herd waits here, see waiter
		case <-news:
		case <-c.ended():
			c.giveUp()
			return
		}
	}
}

// pause waits also for expiry and Want.Aside. It reports whether the call goes on.
func (c *waiter) pause(news <-chan struct{}, expiry <-chan time.Time) bool {
	if c.load != nil {
		c.load.Slot.Wait()
		defer c.load.Slot.Resume()
	}
	select {
	case <-news:
	case <-expiry:
	case do := <-c.want.Aside:
		c.run(do)
	case <-c.ended():
		c.giveUp()
		return false
	}
	return true
}

// advance goes as far as possible without a wait. A waiting call waits for news, and expiry unless nil.
func (c *waiter) advance() (is waitState, news <-chan struct{}, expiry <-chan time.Time) {
	if !c.looked {
		c.looked = true
		c.tally()
		if c.collapsed && c.flight.herd != nil {
			c.run(func() { c.flight.herd.Introduce(c.ctx) })
		}
	}
	state := c.flight.state.Load()
	c.excluded = c.excluded || state.published != nil && !c.admitted(state.audience)
	// A published value comes before the landing: the call that began the flight may read the value while the load writes
	// it, also after the value has turned out to be for no other call.
	switch {
	case state.published != nil && c.becomeReader(state):
		is = gotAnswer
	case state.landed:
		is = c.answerLanded(state)
	default:
		is, expiry = c.answerInTime(state)
	}
	if is == stillWaiting {
		return is, state.news, expiry
	}
	if is != flightLanded {
		c.budget = c.flight.budget
	}
	if c.joined && is == gotAnswer && c.flight.herd != nil {
		c.flight.herd.Answered(c.began, c.engine.clock.Now())
	}
	c.leave()
	return is, nil, nil
}

func (c *waiter) giveUp() {
	c.leave()
	if c.err = c.ctx.Err(); c.err == nil {
		c.err = context.Canceled // a foreign context may close Done before it sets Err
	}
}

// tally counts the call once, by its first flight. An answer found in begin counts as a hit there.
func (c *waiter) tally() {
	switch {
	case c.tallied:
		return
	case c.collapsed:
		c.engine.count.collapsed.Add(1)
	default:
		c.engine.count.misses.Add(1)
	}
	c.tallied = true
}

// ended returns the channel of the end of the call's context.
func (c *waiter) ended() (done <-chan struct{}) {
	c.run(func() { done = c.ctx.Done() })
	return done
}

// run runs user code on the caller's goroutine. After a panic or Goexit the call has left its flight.
func (c *waiter) run(do func()) {
	returned := false
	defer func() {
		if !returned {
			c.leave()
		}
	}()
	do()
	returned = true
}

func (c *waiter) leave() {
	c.stopAsking()
	if !c.joined {
		return
	}
	c.joined = false
	if c.answer.live == nil { // otherwise answer.live counts the call from now on
		c.flight.Leave()
	}
	c.flight.leaveHerd()
}

func (c *waiter) stopAsking() {
	if c.inChain {
		c.inChain = false
		c.flight.askers.Leave(c.load)
	}
}

type waitState uint8

const (
	stillWaiting waitState = iota
	gotAnswer              // the flight has given the answer or the error
	leftFlight             // the call ended without the flight's answer: by time, or with its own or the offered item
	flightLanded           // the flight has landed without an answer for the call
)

// becomeReader answers the call with the value that the load still writes, if permitted.
func (c *waiter) becomeReader(state *flightState) bool {
	f := c.flight
	readable := c.began < state.publishedBefore && c.admitted(state.audience) && c.takes(state.published)
	if readable && c.began < state.confirmedBefore {
		c.answer = callAnswer{item: state.published, flown: true, live: f}
		if !c.joined {
			f.addCaller() // the call had given up on this value before
		}
		c.stopAsking()
		return true
	}
	// The call waits for the next flight, and must not count as a caller of this one. A body over its
	// limit waits until all callers have begun to read, and the call would wait for the end of the body.
	c.leave()
	if readable {
		doubt(f.streamCheck.doubts)
	}
	return false
}

func (c *waiter) answerLanded(state *flightState) waitState {
	switch {
	case c.flight.goesToOthers(state.loadFailure()) && !c.admitted(audience.Alike):
		c.stale = state.result // unless nil, it answers meanwhile
		return flightLanded
	case state.err != nil:
		c.err = state.err
		return gotAnswer
	}
	// The store's reply may have been under way for longer than the near tier trusts an item, and be
	// older than this call. A value over for new callers during the load stays over for them. A call from before
	// suitsBefore takes even a result that Want.Fits refuses: its face knows what to do with it.
	over := state.published != nil && c.began >= state.publishedBefore
	if !over && c.began < state.resultBefore && (c.began < state.suitsBefore || c.takes(state.result)) {
		c.conclude(state.result)
		return gotAnswer
	}
	return flightLanded
}

// answerInTime answers before the landing: a stale item after Patience, or ErrWaitTimeout after MaxWait. At expiry the
// call asks again.
func (c *waiter) answerInTime(state *flightState) (is waitState, expiry <-chan time.Time) {
	e, f := c.engine, c.flight
	end := durations.Add(c.began, e.MaxWait)
	if c.stale == nil && state.offered == nil && end >= f.due && !state.overdue {
		if !c.mayWait() {
			return leftFlight, nil
		}
		return stillWaiting, nil // most of a herd: no clock is read
	}
	now := e.clock.Now()
	c.stale = c.staleNow(state, now)
	if c.stale != nil {
		if c.stale.Fresh(now) {
			// A fresh item answers at once: the rebuild is for other callers.
			c.answer = callAnswer{item: c.stale}
			return leftFlight, nil
		}
		end = c.patienceEnd(now)
	} else if (state.offered == nil || !state.offered.Stale(now)) && !c.mayWait() {
		return leftFlight, nil
	}
	if now >= end {
		if c.stale == nil {
			e.count.waitTimeouts.Add(1)
			c.err = ErrWaitTimeout
			return leftFlight, nil
		}
		e.count.stale.Add(1)
		c.answer = callAnswer{item: c.stale}
		return leftFlight, nil
	}
	// The alarm wakes callers with an end from due on: timers for all would be half of the herd's cost.
	if end < f.due || state.overdue {
		expiry = time.After(end - now)
	}
	return stillWaiting, expiry
}

// patienceEnd is when the stale item answers: after Patience, or now if its window, or the call's own, ends before. A wait
// would leave the call without the item.
func (c *waiter) patienceEnd(now instant) instant {
	end := durations.Add(c.began, c.engine.Patience)
	if !c.takesStale(c.stale, end) {
		return now
	}
	return end
}

// mayWait is ask for a call that has lost its stale item. It returns false after an error.
func (c *waiter) mayWait() bool {
	if c.load != nil && !c.inChain {
		c.err = c.record(c.flight)
	}
	return c.err == nil
}

// staleNow returns the stale item that may answer now. The call's own item comes before the offer.
func (c *waiter) staleNow(state *flightState, now instant) *items.Item {
	it := c.stale
	if it == nil {
		it = state.offered
	}
	if it != nil && (state.invalidated || !c.trusts(it, now) || !it.Stale(now)) {
		// It is invalidated, perhaps elsewhere, or past its window. The offer may have been confirmed since.
		it = state.offered
		if it != nil && it.Stale(now) && !c.trusts(it, now) {
			doubt(c.flight.offerCheck.doubts)
			return nil
		}
	}
	// Sweeps are checked here and not when they come. The caller's item is older than the flight, and
	// a flight cannot tell the tags of its offer from the tags of its load.
	it = c.engine.afterSweeps(c.flight.key, it)
	if it == nil || !c.takesStale(it, now) {
		return nil
	}
	return it
}

// takesStale reports whether the item is in its window then, and in the call's own.
func (c *waiter) takesStale(it *items.Item, then instant) bool {
	return it.Stale(then) && c.want.Takes(it, then, c.began)
}

// trusts reports whether the item may answer the call now without asking the store. If the store was asked for
// it after the call began, it may: the reply may have been under way for longer than NearTTL.
func (c *waiter) trusts(it *items.Item, now instant) bool {
	if c.engine.eachCall {
		return c.began < it.TrustedUntil
	}
	return now < it.TrustedUntil || c.began <= it.TrustedUntil-instant(c.engine.NearTTL)
}

func (c *waiter) admitted(to audience.Audience) bool {
	return to.Admits(!c.collapsed, c.want.Client == c.flight.want.Client)
}

// takes is want.Takes, but reads no clock for a call without an Accept, and so without Fits: a herd.
func (c *waiter) takes(it *items.Item) bool {
	return c.want.Accept == nil || c.want.Takes(it, c.engine.clock.Now(), c.began)
}
