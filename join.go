package bellwether

import (
	"context"
	"time"

	"github.com/bellwether-go/bellwether/internal/chain"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is how a call joins the flight of its key, or begins it.

type callAnswer struct {
	item  *items.Item
	flown bool // the item came from a flight
	// live is the flight if its load is still writing the value, otherwise nil. The call counts among
	// the flight's callers until the call has its place among the readers, and calls Leave.
	live *flight
}

// A waiter is one call on its way to its answer. Waiters are on the heap, and the work between two
// waits is in methods, whose frames are gone during a wait. The goroutines of a herd are new and have
// stacks of 2 KB; growing the stacks would be half of the herd's cost up to here.
type waiter struct {
	engine *engine
	caller
	joining
	stale    *items.Item  // may be served when the call's patience ends
	tallied  bool         // a counter of hits, misses or collapsed calls has the call
	excluded bool         // a load has published to an audience without this call
	own      gate.Budget  // the call's time for silent engines
	budget   *gate.Budget // own, or that of an HTTP request; after the answer the joined flight's
	answer   callAnswer
	err      error
}

// A caller is what a call asks for. It does not change while the call waits.
type caller struct {
	ctx       context.Context
	key       string
	want      items.Want
	began     instant
	load      *chain.Load  // the running load that makes the call, nil if none
	refreshes bool         // no call waits: the waiter begins the rebuild that replaces an item
	next      *nextRefresh // for the flight that a Refresh meets; nil: that flight is enough
}

// A joining is a call's place in the flight for which it waits.
type joining struct {
	flight    *flight // begun by this call or, if collapsed, by another; nil before joining
	looked    bool    // the waiter has looked at flight
	joined    bool    // flight.callers, or after the answer answer.live, counts the waiter, and so does flight.herd
	collapsed bool    // another call began flight
	inChain   bool    // flight.askers has load
}

// waiter begins a call without a near hit. Inlining would enlarge the caller's frame by a waiter.
//
//go:noinline
func (e *engine) waiter(ctx context.Context, key string, stale *items.Item) *waiter {
	c := &waiter{engine: e, caller: caller{ctx: ctx, key: key, began: e.clock.Now()}, stale: stale}
	c.own.Begin(e.EngineTimeout)
	c.budget = &c.own
	return c
}

// join puts the call on the key's flight, begun now if there is none. It returns false if the call
// has its answer or error instead, or only refreshes a key that has a flight.
func (c *waiter) join(b binder) bool { return c.ready() && c.joinFlight(b) }

// ready begins join. It runs the code of ctx, which is user code, without a lock. The result is false after an error.
func (c *waiter) ready() bool {
	if c.err = c.ctx.Err(); c.err != nil {
		return false
	}
	c.load = chain.Running(c.ctx)
	if c.load != nil && c.stale == nil {
		if c.err = c.load.Full(); c.err != nil {
			return false
		}
	}
	return true
}

// joinFlight is join after ready.
func (c *waiter) joinFlight(b binder) bool {
	e := c.engine
	s := e.shards.of(c.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.open.Err() != nil {
		c.err = ErrClosed
		return false
	}
	f := s.flights[c.key]
	if c.collapsed = f != nil; !c.collapsed {
		return c.begin(s, b)
	}
	if c.refreshes {
		if c.next != nil && (f.refresh == nil || f.refresh.since <= c.began) {
			f.refresh = c.next
		}
		return false
	}
	if c.err = c.ask(f); c.err != nil {
		return false
	}
	c.joinCallers(f)
	return true
}

// joinCallers counts the call among the flight's callers. shard.mu is held.
func (c *waiter) joinCallers(f *flight) {
	f.addCaller()
	c.flight, c.looked, c.joined = f, false, true
	if f.herd != nil {
		f.herd.Join()
	}
}

// ask records that the call's load waits for the flight. It returns an error if the load would wait for
// itself. A call with a stale item is not recorded: the item answers when its patience ends. Nor is a Refresh.
func (c *waiter) ask(f *flight) error {
	if c.load == nil || c.refreshes || c.stale != nil || f.state.Load().offered != nil {
		return nil
	}
	return c.record(f)
}

func (c *waiter) record(f *flight) error {
	err := f.askers.Await(c.load)
	if c.inChain = err == nil; c.inChain {
		c.engine.slots.AskedByLoad(f.demanded())
	}
	return err
}

// begin is join for a key without a flight. shard.mu is held.
func (c *waiter) begin(s *shard, b binder) bool {
	// The near tier is read again under this lock, under which a flight fills it and leaves the map.
	// Otherwise a caller could miss just before a landing, come here just after, and begin a second rebuild.
	e := c.engine
	it, now := e.near.Get(c.key)
	if it != nil && now < it.TrustedUntil && c.answerByNear(it, now) {
		return false
	}
	m, _ := b.(*member)
	// A batch counts once: more keys than MaxQueued would otherwise turn all other callers away.
	first := e.Store != nil && (m == nil || len(m.looks) == 0)
	if first && e.count.awaitingFirstLook.Load()/queuedLooks >= int64(e.MaxQueued) {
		// More flights would wait for the store in vain.
		if c.stale == nil {
			c.err = ErrOverloaded
		} else {
			c.answer.item = c.stale
			e.count.stale.Add(1)
		}
		return false
	}
	// The values of the context stay (traces, tenants); its end does not end the flight.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.ctx))
	f := c.newFlight(s, m, now)
	f.ctx, f.cancel, f.load, f.queues = ctx, cancel, b.bind(), first && (m == nil || !e.lookout.Shares())
	c.ask(f)
	if c.flight = f; !c.refreshes { // otherwise no caller hears of a failure
		c.joinCallers(f)
	}
	f.alarm = time.AfterFunc(f.due-now, f.fallDue)
	s.flights[c.key] = f
	f.witness.flight = f
	s.addWitness(c.key, &f.witness)
	e.count.flights.Add(1)
	if f.queues {
		e.count.awaitingFirstLook.Add(1)
	}
	if m != nil {
		m.join(f)
	}
	e.running.Go(f.runToEnd)
	return true
}

// queuedLooks times MaxQueued flights may wait for their first look, which is short beside a rebuild.
const queuedLooks = 16

func (c *waiter) newFlight(s *shard, m *member, now instant) *flight {
	e := c.engine
	f := &flight{
		storeKey: storeKey{c.key, e, c.budget}, shard: s, member: m,
		beginning:  beginning{want: c.want, excluded: c.excluded},
		callerSide: callerSide{due: durations.Add(c.began, e.MaxWait), herd: e.observers.Herd(c.key)},
		progress:   progress{validSince: now, goesOn: c.refreshes || c.stale != nil},
	}
	if e.notified {
		f.notices = make(chan timedNotice, 1)
	}
	if e.eachCall {
		f.offerCheck.doubts, f.streamCheck.doubts = make(chan struct{}, 1), make(chan struct{}, 1)
	}
	f.state.Store(&flightState{news: make(chan struct{})})
	return f
}

// answerByNear answers the call with a near item, if the item needs no flight.
func (c *waiter) answerByNear(it *items.Item, now instant) bool {
	is := judge(&it.Lifetime, now)
	if is == rebuild || is == serveStale || !c.want.Takes(it, now, c.began) {
		return false
	}
	if is == serve && !c.tallied && c.engine.isAnswer(it.Value) {
		c.tallied = true
		c.engine.count.hits.add()
	}
	c.conclude(it)
	c.answer.flown = false
	return true
}

// conclude answers with the flight's result: a new value with any TTL, a failure if no stale item may.
func (c *waiter) conclude(it *items.Item) {
	if it.Failures > 0 {
		switch now := c.engine.clock.Now(); {
		case it.Fresh(now):
		case it.Stale(now):
			if !c.refreshes { // otherwise no call is answered
				c.engine.count.stale.Add(1)
			}
		default:
			c.err = it.Err // the answer has the item too, and so the value before the failure
		}
	}
	c.answer = callAnswer{item: it, flown: true}
}
