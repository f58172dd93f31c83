package bellwether

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/stack"
)

// This file is the protocol: the states of a rebuild, and the table that leads from each state and its
// outcome to the next state. A flight looks into the store. If the store has nothing fresh, the flight
// takes one of the MaxRebuilds and stands for election. Elected, it leads: it claims an epoch, loads,
// commits and releases. Otherwise it waits for the value of the process that was elected.

// A rebuildState is one part of a rebuild. Its method does its work and returns an outcome.
type rebuildState uint8

const (
	stateLooking  rebuildState = iota + 1 // reads the store
	stateQueueing                         // takes one of the MaxRebuilds
	stateStanding                         // stands for election
	stateLeading                          // claims, loads, commits and releases
	stateAlone                            // loads a value that the store does not take
	stateWaiting                          // waits for another process
	stateLanded                           // the callers have their answer
	stateGivenUp                          // the callers begin anew, if they have time
	stateCount
)

// String returns the state's word.
func (s rebuildState) String() string {
	return [...]string{"", "looking", "queueing", "standing", "leading", "alone", "waiting", "landed", "given up"}[s]
}

// A rebuildOutcome is the result of a state.
type rebuildOutcome uint8

const (
	outcomeAnswered rebuildOutcome = iota + 1 // the flight has ended with an answer
	outcomeNothing                            // the store has no answer for the flight
	outcomePlace                              // the flight has one of the MaxRebuilds
	outcomeElected                            // it has the lease, or there is no election
	outcomeUnshared                           // the store has said that it does not take the key's value
	outcomeHeld                               // another process has the lease
	outcomeOutdated                           // the last look no longer counts, or the state came to nothing
	outcomeTimeIsUp                           // the flight has waited for MaxWait
	outcomeCount
)

// String returns the outcome's words.
func (o rebuildOutcome) String() string {
	return [...]string{"", "answered", "nothing", "a place", "elected", "unshared", "held", "outdated", "time is up"}[o]
}

// transitions lead from a state and its outcome to the next state. docs/design.md has the same table.
var transitions = [stateCount][outcomeCount]rebuildState{
	stateLooking:  {outcomeAnswered: stateLanded, outcomeNothing: stateQueueing},
	stateQueueing: {outcomeAnswered: stateLanded, outcomePlace: stateStanding, outcomeOutdated: stateLooking},
	stateStanding: {outcomeAnswered: stateLanded, outcomeElected: stateLeading, outcomeUnshared: stateAlone, outcomeHeld: stateWaiting, outcomeOutdated: stateLooking},
	stateLeading:  {outcomeAnswered: stateLanded, outcomeOutdated: stateLooking},
	stateAlone:    {outcomeAnswered: stateLanded, outcomeOutdated: stateLooking},
	stateWaiting:  {outcomeAnswered: stateLanded, outcomeOutdated: stateLooking, outcomeTimeIsUp: stateGivenUp},
}

// rebuild goes from state to state until the flight has ended with an item, or returns the error that
// ends it. Close, and the end of all callers before the election, end it between any two states.
func (r *run[V]) rebuild(ctx context.Context) error {
	r.began = r.engine.clock.Now()
	defer r.looked()
	defer func() {
		r.declineElection(ctx)
		r.releaseBehind(ctx) // Close may come between the election and leading
	}()
	for s := stateLooking; ; {
		switch {
		case s == stateLanded:
			return nil
		case s == stateGivenUp:
			return errAgain
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		s = transitions[s][r.in(ctx, s)]
	}
}

// in does the work of a state.
func (r *run[V]) in(ctx context.Context, s rebuildState) rebuildOutcome {
	switch s {
	case stateLooking:
		return r.lookOnce(ctx)
	case stateQueueing:
		return r.queue(ctx)
	case stateStanding:
		return r.stand(ctx)
	case stateLeading:
		return r.lead(ctx)
	case stateAlone:
		return r.loadAlone(ctx)
	case stateWaiting:
		return r.awaitHolder(ctx)
	}
	panic(fmt.Sprintf("bellwether: a flight has come to the state %q", s)) // transitions lacks a row
}

// ending is the outcome of a state that has ended the flight, or else of one that came to nothing.
func ending(ended bool) rebuildOutcome {
	if ended {
		return outcomeAnswered
	}
	return outcomeOutdated
}

// A run is one flight's way through the protocol. It is used by the flight's
// goroutine alone.
type run[V any] struct {
	*flight[V]
	// storeDown is set when the store does not answer. The flight then goes on
	// without store and locker: a lease is of no use to those who cannot see
	// the value it protects.
	storeDown bool
	// slot gives one of the MaxRebuilds back; it is nil while the flight has
	// none. A load that begins takes it over. While takeSlot waits for it, it
	// is not the flight's goroutine's.
	slot func()
	// ahead is what was read for the flight's next look together with others: by
	// its batch, or with the log; nil otherwise.
	ahead *storeReply
	// lease is the flight's own while it rebuilds with one.
	lease Lease
	// began is when the rebuild began.
	began instant
	// hasLooked tells that the flight's first look has come to nothing.
	hasLooked bool
	// ballot is what the last look has brought of an election, with an elector. It is nil if
	// that was a look alone or has found a fresh entry, and once the flight has acted on it.
	ballot *ballot
	// past is the epoch of the latest fresh entry that was no answer for the flight.
	past uint64
	// made is the item.made of what the latest load makes.
	made instant
	// epochAsked is when the store was last asked for an epoch, or found to have
	// that of unshared.
	epochAsked instant
	// before is when the store was asked before that, or told.
	before instant
	// unshared is the epoch of the KindUnshared entry that the last look or
	// claim found, 0 if it found none.
	unshared uint64

	waits         bool          // the flight has found another holder
	waiting       instant       // when it first did
	stood         instant       // when it last stood for election
	length        time.Duration // of the lease that it asked for then
	known         uint64        // the epoch of the store's entry when the flight began to wait
	first         uint64        // the epoch of the first value that it has seen since, 0: none yet
	missing       instant       // when it was not there yet
	holder        *HeldError    // whose lease it waits for, or last did
	leaseEnd      instant       // when that was to run out
	freed         bool          // it was released before
	hedgeAt       instant       // when the holder that it waits for has taken too long; 0: never
	hedged        bool          // the flight has tried to begin a second rebuild
	hedging       Lease         // the lease under which it has begun one
	led           bool          // the flight has been elected before, and has to begin anew
	losses        int           // how often the flight's own lease was lost
	fenced        bool          // the last of its commits was refused
	refused       int           // how often its loads came to nothing, see maxRefused
	refusedBefore int           // refused at the last look

	// For those who watch, see observe.go.
	watched   *rebuildWatch
	loaded    bool    // the flight's last word is a load's of its own
	failure   error   // of that
	committed instant // when what the flight ends with was committed, 0 if that was not while it waited
}

const (
	// electPause is how often a waiter whose locker cannot push stands for
	// election while the holder's announced time lasts: a holder may have
	// given up without a word.
	electPause = 500 * time.Millisecond
	// maxRefused is after how many loads that came to nothing, their commits
	// refused or their keys invalidated, a flight's value goes to those callers
	// who asked before its load began, and to nobody else. A store that refuses
	// everything is none; and a key that is invalidated again during each load
	// would never answer.
	maxRefused = 5
)

// fly runs the flight to its end, whatever the engines' adapters do.
func (f *flight[V]) fly(ctx context.Context) {
	stack.Grow()
	err := ErrGoexit
	r := &run[V]{flight: f}
	defer func() {
		r.freeSlot()
		defer r.freeHedge(ctx)
		defer f.member.end()
		f.end(err)
		if f.herd != nil {
			f.herd.loaded, f.herd.since = r.loaded, r.committed
			f.gone() // an observer's Goexit may end it here
		}
	}()
	if f.doubts != nil {
		f.engine.running.Go(func() { f.answerDoubts(ctx) })
	}
	defer func() { // of its own: the flight ends also if OnError does not return
		if p := recover(); p != nil {
			err = fault.Panicked(p)
			f.engine.OnError(f.key, err)
		}
	}()
	f.member.begin(r)
	err = r.rebuild(ctx)
}

func (r *run[V]) freeSlot() {
	if free := r.slot; free != nil {
		r.slot = nil
		free()
	}
}

// lookOnce is the state looking.
func (r *run[V]) lookOnce(ctx context.Context) rebuildOutcome {
	if r.fenced || r.refused > max(r.refusedBefore, 1) {
		r.fenced = false
		// Whatever fences commits off, or invalidates the key in each load, may go
		// on; and callers gather meanwhile, who are answered by a load that begins
		// after them. A load that invalidates its own key and takes no time would
		// answer nobody without that: no caller has come before it.
		select {
		case <-time.After(minPoll << r.refused):
		case <-ctx.Done():
		}
	}
	r.refusedBefore = r.refused
	r.declineElection(ctx)
	if r.ahead == nil { // a batch has read it since the flight began
		r.lookAgain()
	}
	if r.lookAndStand(ctx) {
		return outcomeAnswered
	}
	r.looked()
	return outcomeNothing
}

// looked takes the flight off the flights that have not looked yet.
func (r *run[V]) looked() {
	if r.queues && !r.hasLooked {
		r.hasLooked = true
		r.engine.unlooked.Add(-1)
	}
}

// queue is the state queueing.
func (r *run[V]) queue(ctx context.Context) rebuildOutcome {
	switch {
	case r.takeSlot(ctx):
		return outcomeAnswered
	case r.slot == nil:
		return outcomeOutdated // closed; or too many wait, and the stale value was invalidated
	}
	return outcomePlace
}

// stand is the state standing. With an elector the look has been the election already.
func (r *run[V]) stand(ctx context.Context) rebuildOutcome {
	if r.unshared != 0 {
		r.declineElection(ctx)
		return outcomeUnshared
	}
	if r.ballot == nil && r.electsAtOnce() {
		return outcomeOutdated // the look was without an election; the next one has a place
	}
	lease, held, overtaken := r.elect(ctx)
	switch {
	case ctx.Err() != nil:
		if lease != nil {
			r.release(ctx, lease)
		}
		return outcomeOutdated
	case overtaken:
		r.freeSlot()
		select {
		case n := <-r.notices:
			return ending(r.told(ctx, n))
		default: // the watch for a rival, that of an earlier load, has taken it
		}
		return outcomeOutdated
	case held != nil:
		r.holder = held
		return outcomeHeld
	}
	r.lease = lease
	return outcomeElected
}

// loadAlone is the state alone: the store has the mark of a holder whose value it has not taken.
func (r *run[V]) loadAlone(ctx context.Context) rebuildOutcome {
	defer r.freeSlot() // the load may not have begun
	return ending(r.build(ctx, r.unshared, nil, r.finish))
}

// awaitHolder is the state waiting. The flight waits without a place among MaxRebuilds.
func (r *run[V]) awaitHolder(ctx context.Context) rebuildOutcome {
	r.freeSlot()
	r.member.held()
	if r.engine.clock.Now()-r.began > r.engine.MaxWait {
		return outcomeTimeIsUp
	}
	return ending(r.await(ctx))
}

// takeFreeSlot takes one of the MaxRebuilds if one is free, and reports whether the flight has
// one.
func (r *run[V]) takeFreeSlot() bool {
	if r.slot == nil {
		r.slot = r.slots().Try()
	}
	return r.slot != nil
}

// electsAtOnce reports whether one request can look, elect and claim. That is a write.
func (r *run[V]) electsAtOnce() bool {
	e := r.engine
	return e.elector != nil && !r.storeDown && e.writes.Sound(r.key)
}

// lookAndStand is look, which stands for election at the same time if one request can do both
// and a slot is free: whoever is elected has to load.
func (r *run[V]) lookAndStand(ctx context.Context) bool {
	if r.ahead == nil && r.electsAtOnce() && r.takeFreeSlot() {
		if r.present == nil {
			r.present, _ = r.engine.near.Get(r.key) // for the length of the lease
		}
		return r.lookBy(ctx, r.readAndStand)
	}
	return r.look(ctx)
}

// declineElection gives a lease back that a look has brought and the flight has no use for: it has
// ended, or has to look again.
func (r *run[V]) declineElection(ctx context.Context) {
	b := r.ballot
	r.ballot = nil
	if b != nil && b.lease != nil {
		r.lease = b.lease
		r.releaseBehind(ctx)
	}
}

// takeSlot takes one of the MaxRebuilds. While it waits for one it hears of the
// store, and looks into it: another process may have a slot, and so the value,
// sooner. It reports whether the flight has ended.
func (r *run[V]) takeSlot(ctx context.Context) bool {
	e, source := r.engine, r.slots()
	if r.takeFreeSlot() {
		return false
	}
	defer source.Unqueue()
	e.enter(r.key, phaseQueueing)
	demand := r.demanded()
	if !source.Queue() && !r.led && !demand.ByLoad() {
		// More waiting would end in nothing but time-outs. Who has had a slot
		// already, and lost its lease since, was let in, and so was a load that waits
		// for this one. The failure is of now: no sweep that was before is against it.
		e.mu.Lock()
		r.witness.position = e.sweeps.Log().Position()
		e.mu.Unlock()
		// Made now, it answers whatever a call wants: one that did not take it would
		// begin flight after flight.
		now := e.clock.Now()
		r.made = now + 1
		return r.finishFailed(ctx, now, ErrOverloaded, 0)
	}
	// One request for as long as it takes: asked anew after each look, the
	// flight would lose its place in the queue.
	waiting, leave := context.WithCancel(ctx)
	taken := make(chan struct{})
	e.running.Go(func() {
		defer close(taken)
		r.slot = source.Wait(waiting, demand)
	})
	// However this ends, also by a panic of user code in a look, the slot may
	// have come at the same time.
	defer func() {
		leave()
		<-taken
	}()
	if r.engine.Store != nil && r.state.Load().offered != nil {
		r.engine.running.Go(func() { r.confirm(waiting) })
	}
	tick := time.NewTimer(e.slots.LookPause())
	defer tick.Stop()
	for {
		select {
		case <-taken:
			return false
		case n := <-r.notices:
			if !r.storeDown && r.told(ctx, n) {
				return true
			}
		case <-tick.C:
			tick.Reset(e.slots.LookPause())
			if r.storeDown {
				continue
			}
			r.lookAgain()
			if r.look(ctx) {
				return true
			}
		}
	}
}

// look reads the store, and ends the flight if what is there answers.
func (r *run[V]) look(ctx context.Context) bool { return r.lookBy(ctx, r.readWithLog) }

func (r *run[V]) lookBy(ctx context.Context, read func(context.Context) storeReply) bool {
	e := r.engine
	e.enter(r.key, phaseLooking)
	r.unshared = 0
	known, now := e.near.Get(r.key)
	if e.Store == nil {
		r.present = known
		return false
	}
	var held *items.Item[V]
	if known != nil && judge(&known.Lifetime, now) != rebuild {
		// If the store does not answer, nobody can say that it does not hold. It
		// answers for as long as it would have if the store had confirmed it.
		held = known.Found(durations.Add(now, e.NearTTL))
		// Who finds out whether the store is back does not wait for that. After a lull
		// the store is asked first: an invalidation may have come meanwhile.
		if held.Held && e.store.Fails(r.key) {
			r.offerStale(held)
		}
	}
	asking, end := e.store.WhileUp(ctx)
	defer end()
	there := read(asking)
	// One lost packet is no outage: an engine that is gone fails again, and
	// opens its breaker, or has used the time up.
	for try := 1; try < gate.Trips && errors.Is(there.err, ErrUnavailable) && ctx.Err() == nil && r.budget.Left > 0 && e.store.Retries(); try++ {
		r.noAnswer(ctx, "reading", there.err)
		there = r.read(asking, &r.budget)
	}
	r.before, r.epochAsked = r.epochAsked, there.asked
	if there.entry.Fresh() {
		r.past = there.entry.Epoch
	}
	switch err := there.err; {
	case err == nil:
		return r.consider(r.decode(there.entry, known, there.asked), true)
	case ctx.Err() != nil:
		return false // closed, or deserted: that is not the store's silence, and nobody says that what is at hand holds
	case errors.Is(err, ErrUnavailable):
		if cause := context.Cause(asking); errors.Is(cause, gate.ErrSilent) {
			err = fmt.Errorf("%w: %w", ErrUnavailable, cause)
		}
		r.noAnswer(ctx, "reading", err)
		r.storeDown = true
		if held != nil {
			// It answers those, too, who came while the store was silent.
			return r.consider(held.Found(max(held.Trusted, e.clock.Now()+1)), false)
		}
		r.present = known
	default:
		if !errors.Is(err, ErrNotFound) {
			e.OnError(r.key, &keyError{"reading", r.key, err})
		}
		r.present = nil
		if r.state.Load().offered != nil {
			r.offerStale(nil) // it has been invalidated
		}
	}
	return false
}

// consider ends the flight with it if it answers, and offers it to callers if
// it does so for the time being. fromStore tells a hit of the store from what
// was at hand.
func (r *run[V]) consider(it *items.Item[V], fromStore bool) bool {
	r.present = it
	r.loaded, r.committed, r.enough = false, 0, 0
	if it == nil {
		return false
	}
	if fromStore && r.waits && it.Epoch > r.known {
		r.committed = max(it.Born, r.waiting)
	}
	if r.want.Fits != nil && !r.want.Fits(it) {
		return false // it answers others, and is no answer to the call that wants one
	}
	verdict := judge(&it.Lifetime, r.engine.clock.Now())
	if verdict == rebuild && r.waits && it.Failures > 0 && it.Epoch > r.known {
		// It failed while this flight waited for it. Nobody is to be told
		// later, but those who wait are: else they would fail one after another,
		// each after a rebuild of its own.
		verdict = fail
	}
	if (verdict == serve || verdict == serveStale) && r.want.Accept != nil && !r.want.Accept(it, r.engine.clock.Now()) &&
		!it.BackingOff(r.engine.clock.Now()) && // what one client wants is no reason to try sooner, see want.takes
		!(fromStore && r.newEnough(it)) {
		// The call that began this flight has refused it, or would. Who else
		// comes may have it.
		if !r.offerStale(it) {
			r.present = nil // invalidated since it was read
		}
		verdict = rebuild
	}
	switch verdict {
	case serve, serveOnly, fail:
		if r.waits && it.Failures == 0 && it.Epoch > r.known && it.Build > 0 {
			if r.hedged {
				r.engine.builds.note(it.Build) // that it was slow is noted
			} else {
				r.built(it.Build)
			}
		}
		if r.settle(it) {
			if fromStore {
				r.engine.count.storeHits.Add(1)
			}
			return true
		}
		r.present = nil // invalidated since it was read
	case serveStale:
		if !r.offerStale(it) {
			r.present = nil // likewise
		}
	}
	return false
}

// newEnough reports whether it is of a load that began, in another process, after the
// flight had begun to wait: then it answers who waits whatever they want, as the
// flight's own load would. Without that, as many processes as have a client that
// wants what is new would load one after another.
//
// The load that the flight found under way began before. It commits first, so the
// next to commit has claimed its epoch after that: where leases hold. Where one was
// lost two loads may have run at a time; so the age that the store knows has to say
// the same. Both are taken as early as they can have been. What no flight has made
// says nothing of its load.
func (r *run[V]) newEnough(it *items.Item[V]) bool {
	if !r.waits || it.Epoch <= r.known {
		return false
	}
	if r.first == 0 {
		r.first, r.missing = it.Epoch, r.before
	}
	underWay := r.engine.clock.Now() - r.epochAsked // the reply, at most
	began := it.Born - it.Build - underWay
	if it.Epoch == r.first || it.Build == 0 || began < r.waiting {
		return false
	}
	r.enough = min(began, r.missing) + 1 // as item.made
	return true
}

// elect stands for election. With neither a lease nor another holder there is
// nobody to elect: no locker, or none that answers. overtaken is that a notice
// has come before it was the flight's turn to ask: where a thousand keys expire at
// one time, most of the leases would be of keys that others have rebuilt by then.
func (r *run[V]) elect(ctx context.Context) (_ Lease, _ *HeldError, overtaken bool) {
	e := r.engine
	if b := r.ballot; b != nil {
		if lease := b.lease; lease != nil {
			b.lease = nil // the epoch is for claim
			return lease, nil, false
		}
		if r.ballot = nil; b.held != nil {
			return nil, b.held, false
		}
		return nil, r.knownHolder(), false
	}
	if e.Locker == nil || r.storeDown || !e.writes.Sound(r.key) {
		return nil, nil, false // or those elected would take turns to find out that the store takes nothing
	}
	e.enter(r.key, phaseStanding)
	r.stood, r.length = e.clock.Now(), r.leaseLength()
	lease, err := gate.AskInTurn(ctx, e.locker, r.key, &r.budget, func(ctx context.Context) (Lease, error) {
		if overtaken = len(r.notices) > 0; overtaken {
			return nil, context.Canceled // which says nothing about the engine
		}
		return e.Locker.TryAcquire(ctx, e.engineKey(r.key), r.length)
	})
	if err == nil {
		return lease, nil, false
	}
	if overtaken {
		return nil, nil, true
	}
	if held, ok := errors.AsType[*HeldError](err); ok {
		return nil, held, false
	}
	if errors.Is(err, ErrHeld) {
		return nil, &HeldError{Key: r.key}, false
	}
	if ctx.Err() != nil {
		return nil, nil, false
	}
	r.noAnswer(ctx, "acquiring the lease of", err)
	return nil, r.knownHolder(), false
}

// knownHolder is the holder that the flight waits for, when an election has had no answer: one
// lost answer says nothing about that holder, and a fleet that polls would begin a load in
// each process. It is nil once the lease has ended, or the engine is taken for down.
func (r *run[V]) knownHolder() *HeldError {
	e := r.engine
	if r.waits && !r.freed && e.locker.Sound(r.key) && e.clock.Now() < r.leaseEnd {
		return r.holder
	}
	return nil
}

const (
	// lookPause is how often a waiter looks into the store although its locker
	// pushes: a push may be lost with the engine that sends it.
	lookPause = time.Second
	// noticeLag is how long a waiter whose lease is free waits for its store's
	// notice. The two come on connections of their own, and the later word may
	// be the first: a look for what is on its way would cost a command.
	noticeLag = 10 * time.Millisecond
)

// await waits for the value of the holder: until the locker pushes, until the
// time is over that the holder has announced, or, with a locker that cannot
// push, by polling the store. It reports whether the flight has ended; if not,
// it is time to stand for election again.
func (r *run[V]) await(ctx context.Context) bool {
	e, held := r.engine, r.holder
	began := e.clock.Now()
	if !r.waits {
		e.count.waits.Add(1)
		r.waits, r.waiting = true, began
		if r.present != nil {
			r.known = r.present.Epoch
		}
		if after := r.hedgeAfter(); after > 0 {
			r.hedgeAt = durations.Add(began, after)
		}
	}

	watching, endWatch := context.WithCancel(ctx)
	defer endWatch()
	e.enter(r.key, phaseWatching)
	wake := r.watch(ctx, watching, endWatch, held)
	e.enter(r.key, phaseWaiting)

	until := durations.Add(began, e.LeaseTTL)
	if !held.Until.IsZero() {
		until = min(until, e.clock.Instant(held.Until))
	}
	r.leaseEnd, r.freed = until, false
	if wake == nil {
		until = min(until, durations.Add(began, electPause))
	}
	// All waiters of a dead holder get here at one time. One of them wins
	// anyway; the jitter spares the engine the rest.
	until = durations.Add(until, time.Duration(rand.Int64N(int64(max(0, until-began))/64+1)))
	// A locker that says "free" and "held" in one breath must not make a loop
	// without a pause.
	earliest := r.stood + pollInterval(began-r.waiting)
	deadline := time.NewTimer(max(until, earliest) - began)
	var late <-chan time.Time
	if r.hedgeAt > 0 && !r.hedged {
		late = time.After(max(0, r.hedgeAt-began))
	}

	for {
		pause := lookPause
		// The locker pushes when the holder is done; a hedge may be before it.
		if wake == nil || r.hedgeAt > 0 && e.clock.Now() >= r.hedgeAt && !e.notified {
			pause = pollInterval(e.clock.Now() - r.waiting)
		}
		if r.state.Load().offered != nil {
			pause = min(pause, e.confirmEvery()) // what is offered has to be confirmed
		}
		select {
		case n := <-r.notices:
			if r.told(ctx, n) {
				return true
			}
			if r.storeDown || r.unshared != 0 {
				return false
			}
		case <-wake:
			r.freed = true
			if e.notified {
				earliest = max(earliest, e.clock.Now()+noticeLag)
			}
			if early := earliest - e.clock.Now(); early > 0 {
				wake, earliest = nil, 0
				deadline.Reset(early)
				continue
			}
			return false
		case <-late:
			late = nil
			if r.hedge(ctx) {
				return true
			}
			if r.hedging != nil || r.storeDown || r.unshared != 0 {
				return false
			}
		case <-deadline.C:
			return false
		case <-ctx.Done():
			return false
		case <-time.After(pause):
			r.lookAgain()
			if r.look(ctx) {
				return true
			}
			if r.storeDown || r.unshared != 0 {
				return false // the value could not be seen when it is there
			}
		}
	}
}

// watch returns the channel on which the locker pushes, nil if it does not. A
// push that fails costs no more than the push: the holder is at work, and the
// store can be polled, so it does not count as this flight's outage.
func (r *run[V]) watch(ctx, watching context.Context, endWatch func(), held *HeldError) <-chan struct{} {
	e := r.engine
	w, ok := e.Locker.(Watcher)
	if !ok {
		return nil
	}
	wake, err := gate.AskInTurn(ctx, e.push, r.key, &gate.Budget{Left: e.EngineTimeout}, func(ctx context.Context) (<-chan struct{}, error) {
		// The watch outlives this call, so it gets the longer context; but a
		// call that hangs must end with the shorter one.
		defer context.AfterFunc(ctx, endWatch)()
		return w.Watch(watching, held)
	})
	if err != nil {
		if ctx.Err() == nil {
			r.noAnswer(ctx, "watching the lease of", err)
		}
		return nil
	}
	return wake
}

// lead is the state leading: it rebuilds the key as the holder of r.lease, which is nil if there is no
// election. The flight has a place among MaxRebuilds, which goes to the load: the load may outlast
// the flight.
func (r *run[V]) lead(ctx context.Context) (o rebuildOutcome) {
	e, lease := r.engine, r.lease
	r.flight.lead()
	defer func() {
		if r.lease != nil {
			r.release(ctx, r.lease)
			r.lease = nil
		}
		if o == outcomeOutdated {
			r.led = true
			r.freeSlot()
		}
	}()

	epoch, ended := r.claim(ctx)
	if ended {
		return outcomeAnswered
	}
	if ctx.Err() != nil || r.unshared != 0 {
		return outcomeOutdated
	}
	if epoch == 0 || e.commits.fails(e.clock.Now()) && !r.probe(ctx) {
		// Nobody will find this load's value in the store. Who waited for it
		// would wait in vain, and the next after that one.
		r.releaseBehind(ctx)
	}
	if epoch == 0 || e.Locker != nil && lease == nil {
		e.count.degraded.Add(1)
	}
	var rival <-chan struct{}
	if e.Hedge > 0 && lease != nil && epoch != 0 {
		watching, end := context.WithCancel(ctx)
		defer end()
		rival = r.rival(watching, epoch, e.clock.Now())
	}
	e.hedges.earn(e.HedgeShare)
	return ending(r.build(ctx, epoch, rival, r.finish))
}

// build loads the value, under the lease if the flight has one, and ends the
// flight with it by finish. It gives up when rival is closed: another process has
// committed its value. It reports whether the flight has ended.
func (r *run[V]) build(ctx context.Context, epoch uint64, rival <-chan struct{}, finish func(context.Context, loaded[V], uint64) bool) (ended bool) {
	e := r.engine
	limited, cancel := context.WithTimeoutCause(ctx, e.RebuildTimeout, ErrRebuildTimeout)
	defer cancel()
	loading, abort := context.WithCancelCause(limited)
	defer abort(nil)
	// An election in the same request as the look, and a claim that has found another entry, may
	// have asked for a longer lease than the key's builds need: its first renewal shortens it.
	term := leaseTerm{began: r.stood, asked: r.stood, length: min(r.length, r.leaseLength())}
	l := &currentLoad{abort: abort, last: r.refused+1 >= maxRefused, storeless: r.storeDown, asked: r.epochAsked, heldUntil: forever}
	if r.lease != nil {
		l.heldUntil = term.end()
	}
	if !r.beginLoading(epoch, l) {
		r.refused++
		return false // invalidated since it was claimed, or closed
	}
	var lost chan struct{}
	if lease := r.lease; lease != nil {
		lost = make(chan struct{})
		e.running.Go(func() { r.keep(loading, lease, term, lost) })
	}

	if e.Store != nil && r.state.Load().offered != nil {
		e.running.Go(func() { r.confirm(loading) })
	}

	r.made = e.clock.Now() + 1
	if r.lease != nil {
		e.trips.note(r.made - r.stood)
	}
	a := attempt[V]{flight: r.flight, present: r.present, made: r.made, position: r.witness.position}
	r.loaded = false
	defer func() { r.unwatchLoad(ended) }()
	watched := r.watchLoad(loading) // it may not return
	e.count.loads.Add(1)
	free := r.slot
	r.slot = nil
	result := a.start(watched, free)
	e.enter(r.key, phaseLoading)

	for {
		select {
		case l := <-result:
			if errors.Is(context.Cause(loading), fault.ErrInvalidated) {
				r.refused++
				return false
			}
			if l.err != nil && limited.Err() != nil {
				l.err = context.Cause(limited) // what else it says is the echo of that
			}
			abort(nil) // ends the keeper: it must not renew what is being released
			return finish(ctx, l, epoch)
		case <-rival:
			rival = nil
			if r.giveUp(errRival) {
				r.releaseBehind(ctx)
				return false
			}
		case <-lost:
			// Another holds the lease by now, and its value is the one to wait
			// for, whether or not our load heeds its context. A response that
			// clients are reading goes on; the fenced commit decides. So it
			// does when a lease is lost once more: a locker that loses each is
			// no reason not to finish any load.
			lost = nil
			if r.losses++; r.losses == 1 && r.giveUp(ErrLeaseLost) {
				return false
			}
		case <-limited.Done():
			if len(result) > 0 {
				continue // both at once: the load was in time
			}
			return finish(ctx, loaded[V]{err: context.Cause(limited)}, epoch)
		}
	}
}

// confirm asks the store, until ctx ends, whether the stale item that callers
// are offered during the load still holds. Without it, a key that another
// process invalidates would be served stale for as long as its rebuild takes.
func (f *flight[V]) confirm(ctx context.Context) {
	tick := time.NewTicker(f.engine.confirmEvery())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !f.confirmOffer(ctx) {
			return
		}
	}
}

// finish ends the flight with what the load came to, after the store has taken
// it. It returns false if the store, or an invalidation here, has something
// later to say: then nobody gets it, and the flight looks again.
func (r *run[V]) finish(ctx context.Context, l loaded[V], epoch uint64) bool {
	e := r.engine
	now := e.clock.Now() // its age counts from here
	if !r.storeDown {
		e.sweeps.Follow(ctx, &r.budget, e.NearTTL/2) // the load may have taken longer than the log is trusted
	}
	r.loaded, r.failure, r.committed = true, nil, 0
	it := &items.Item[V]{Epoch: epoch, Build: l.took, Made: r.made, Position: r.witness.position, Trusted: e.trustedUntil(now)}
	switch {
	case errors.Is(l.err, fault.ErrNothing):
		if failure, ok := errors.AsType[*fault.Own](l.err); ok {
			e.count.loadFailures.Add(1)
			r.failure = failure.Err
		}
		if r.present != nil { // it stays, unless it was invalidated meanwhile
			r.lookAgain()
			if r.look(ctx) {
				return true
			}
		}
		if it := r.present; it != nil {
			e.keep(r.key, it, func() bool { return !r.outdated() })
		}
		r.end(errAgain) // who has not seen what was published asks again
		return true
	case l.err == nil:
		r.built(l.took)
		e.noteLoad(!e.fails(l.value))
		it.Kind, it.Value = KindValue, l.value
		it.Lifetime = e.lifetimeOf(now, l.freshness, r.key, epoch)
	case fault.NotFound(l.err):
		r.built(l.took)
		e.noteLoad(true)
		it.Kind = KindNotFound
		it.Lifetime = e.lifetimeOf(now, l.freshness, r.key, epoch)
	case ctx.Err() != nil:
		r.loaded = false // closed: that is no failure of the load's
		r.end(context.Cause(ctx))
		return true
	default:
		e.count.loadFailures.Add(1)
		e.noteLoad(false)
		r.failure = l.err
		if r.want.Personal && errors.Is(l.err, ErrRebuildTimeout) {
			r.end(l.err) // those of other clients ask again
			return true
		}
		heard := r.callers.n.Load() > 0 || r.streaming()
		if !r.finishFailed(ctx, now, l.err, epoch) {
			return false
		}
		if !heard || r.state.Load().served(e.clock.Now()) {
			e.OnLoadError(r.key, &keyError{"refreshing", r.key, l.err})
		}
		return true
	}
	switch written := r.commit(ctx, it); {
	case written != fenced:
		if written == notTaken {
			r.keepBeside(it)
		}
		r.committed = e.clock.Now()
		// The other processes are woken first, and on their way to the store
		// while the callers here wake up.
		r.releaseBehind(ctx)
		if r.settle(it) {
			return true
		}
	case r.streaming():
		r.end(errAgain) // its readers have it already
		return true
	default:
		r.fenced = true
	}
	if r.refused++; r.refused < maxRefused {
		return false
	}
	// It is for those who asked before its load began: whatever has fenced it
	// off came after them.
	given := *it
	given.Lifetime, given.Trusted = items.NewLifetime(now, items.Windows{}), e.clock.Instant(l.began)
	r.give(&given)
	return true
}

// finishFailed is finish for a load that failed: what was there stays there,
// and the failure is written beside it, so that it answers in every process
// until the next try is due.
func (r *run[V]) finishFailed(ctx context.Context, now instant, err error, epoch uint64) bool {
	e := r.engine
	if ctx.Err() != nil {
		r.end(context.Cause(ctx)) // closed: that is no failure of the load's
		return true
	}
	// A context's end says nothing about the origin: remembered, one caller's
	// impatience would be everybody's failure. But what has taken too long, the
	// rebuild or a client's call in it, is told to those who wait for it elsewhere:
	// they would take turns to wait as long.
	pause, told := e.ErrorTTL, true
	advice, advised := errors.AsType[fault.RetryAdvice](err)
	if advised {
		pause = advice.RetryAfter()
	}
	if fault.Says(err, context.Canceled, context.DeadlineExceeded, ErrClosed, ErrOverloaded) {
		pause, told = 0, errors.Is(err, context.DeadlineExceeded)
	}
	if !told && r.present != nil {
		// What is served in the place of this failure may have been
		// invalidated while the load ran, and no commit checks that.
		r.lookAgain()
		if r.look(ctx) {
			return true
		}
	}
	// A failure by itself is of now. Beside what was there it bears that one's
	// position: what has been swept since that was made is not served for it.
	it := &items.Item[V]{Position: r.witness.position}
	it.Born = now
	if r.present != nil {
		it = r.present.Unweighed()
	}
	if advised && pause > 0 {
		it.Lifetime = failedUntil(it.Lifetime, now, pause)
	} else {
		it.Lifetime = failed(it.Lifetime, now, pause, e.MaxErrorTTL)
	}
	it.Early = earlyTryAfter(r.present, !advised && pause > 0)
	it.Err, it.Trusted, it.Made = err, e.trustedUntil(now), r.made
	if !it.Stale(now) && now >= it.KeepUntil {
		var zero V
		it.Held, it.Kind, it.Value = false, KindNone, zero
	}
	if !told {
		if r.storeDown {
			r.keepBeside(it)
		}
		return r.settle(it)
	}
	it.Epoch, it.Beside = epoch, false
	written := r.commitFailure(ctx, it)
	if written == notTaken {
		r.keepBeside(it)
	}
	r.fenced = written == fenced
	r.committed = e.clock.Now()
	if !r.fenced && r.settle(it) {
		return true
	}
	if r.streaming() {
		r.end(errAgain) // its readers have seen it break off; no other load could be shown here
		return true
	}
	if r.refused++; r.refused < maxRefused {
		return false
	}
	r.giveFailure(err, r.made-1) // as in finish
	return true
}

// noAnswer is the engine's, unless Close, or the end of all callers, has ended the call.
func (r *run[V]) noAnswer(ctx context.Context, doing string, err error) {
	if r.engine.open.Err() == nil && ctx.Err() == nil {
		r.engine.noAnswer(r.key, &keyError{doing, r.key, err})
	}
}

// A keyError says what was being done to which key.
type keyError struct {
	doing string
	key   string
	err   error
}

func (e *keyError) Error() string { return fmt.Sprintf("%s %q: %v", e.doing, e.key, e.err) }
func (e *keyError) Unwrap() error { return e.err }
