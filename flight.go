package bellwether

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/chain"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/observers"
	"github.com/bellwether-go/bellwether/internal/slots"
)

// This file is the collapse: the callers of one key in one process share a flight. x/sync/singleflight cannot
// carry the promises. Its callers wait without a context, a panic ends the process, and no answer (a stale
// item, a response that is being written) comes before the end.

type loader func(ctx context.Context, a *attempt) (items.Product, error)

// A binder returns the loader of a new flight. Only the call that begins the flight calls bind, while
// its request is still there: bind copies the request's data, and joining calls copy nothing.
type binder interface{ bind() loader }

// A flight is one rebuild of one key with its callers in this process. No caller owns the flight.
type flight struct {
	storeKey // its budget is that of the call that began the flight
	load     loader
	shard    *shard                  // the key's shard
	ctx      context.Context         // the flight's, with the values of the call that began it
	cancel   context.CancelCauseFunc // ends ctx: by Close, by desertion, and at the flight's end
	member   *member                 // the flight's place in its batch, nil without a batch

	beginning
	callerSide
	progress

	notices chan timedNotice // the latest notice of the key; has room for one, senders hold shard.mu; nil without a Notifier
	demand  slots.Demand     // see demanded
	askers  chain.Flight     // the loads that wait for the flight

	offerCheck, streamCheck check // of the offer and of the published value
}

// A beginning is the call that began a flight. The fields do not change.
type beginning struct {
	want     items.Want
	excluded bool // another load published to an audience without the call
	queues   bool // counters.awaitingFirstLook counts the flight until its first look
}

// A callerSide is the part of a flight that its callers see.
type callerSide struct {
	// Writers of state hold shard.mu. Readers need no lock: ten thousand callers wake up together when a
	// flight lands.
	state   atomic.Pointer[flightState]
	callers atomic.Int64    // the calls that wait for the flight, without the readers of its published value
	joins   atomic.Int64    // all calls that have ever been callers
	herd    *observers.Herd // nil if no observer needs it
	due     instant         // when the first caller has waited for MaxWait
	alarm   *time.Timer     // runs fallDue at due
}

// A progress is a flight's work up to now. shard.mu guards the fields.
type progress struct {
	witness        witness
	lookGeneration uint64   // witness.generation at the last look, see outdated
	current        *attempt // the load since the last look, nil if none
	validSince     instant  // when the flight began, or the key was last invalidated
	// The flight goes on without callers: it has been elected or has begun a load, or the call that began it only
	// refreshes, or has a stale item with which it may leave soon.
	goesOn    bool
	lostLease bool          // the flight has lost a lease
	confirms  bool          // a goroutine confirms the offers
	deserted  chan struct{} // closed when no caller is left, for AwaitReaders; nil: not awaited
	refresh   *nextRefresh  // the latest since the flight's last load returned, or ran out of time; nil if none
}

// A nextRefresh is a Refresh that has met a flight, to begin another flight when that takes no more callers.
type nextRefresh struct {
	since instant
	begin func()
}

// A check is the confirmation of an item that callers may get while the flight goes on, see confirm.
type check struct {
	asked atomic.Int64 // the instant at which the store was last asked, or the item was shown
	// Requests to confirm the item for later calls, see doubt. It has room for one, and is nil with the near tier on.
	doubts chan struct{}
}

// A flightState is one state of a flight, as callers see it. It is immutable; change replaces it.
type flightState struct {
	news chan struct{} // closed when the next state is there

	offered         *items.Item       // a stale item for callers whose patience ends
	published       *items.Item       // the value that the load is still writing
	audience        audience.Audience // the audience of published
	publishedBefore instant           // published is for callers that began before then
	confirmedBefore instant           // such callers may have published now if they began before then
	invalidated     bool              // the key was invalidated: callers' own stale items are void
	overdue         bool              // due has passed

	landed       bool
	result       *items.Item
	resultBefore instant // result is for callers that began before then
	suitsBefore  instant // such callers take result, whatever they want, if they began before then
	err          error   // landed without err and result: callers with time left begin a new flight
}

// loadFailure is the failure of the flight, or of the load whose result is a stale item.
func (s *flightState) loadFailure() error {
	if s.result != nil {
		return s.result.Err
	}
	return s.err
}

// masksFailure reports whether callers get a value in spite of the load's failure.
func (s *flightState) masksFailure(now instant) bool {
	return s.result != nil && (s.result.Fresh(now) || s.result.Stale(now))
}

// change replaces the flight's state, and wakes the callers. shard.mu is held.
func (f *flight) change(to func(*flightState)) {
	was := f.state.Load()
	is := *was
	is.news = make(chan struct{})
	to(&is)
	f.state.Store(&is)
	close(was.news)
	f.endIfDeserted() // the offer may have been all that kept it
}

// errDeserted ends a flight whose callers have all left before its election.
var errDeserted = errors.New("bellwether: no caller waits for the flight")

func (f *flight) fallDue() {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if !f.state.Load().landed {
		f.change(func(s *flightState) { s.overdue = true })
	}
}

func (f *flight) streaming() bool { return f.state.Load().published != nil }

// unlist removes the flight from the map: no more callers join. A Refresh that waits for this begins. shard.mu is held.
func (f *flight) unlist() {
	if !f.listed() {
		return
	}
	delete(f.shard.flights, f.key)
	if f.refresh != nil {
		f.engine.start(f.refresh.begin)
	}
}

// listed reports whether callers may join the flight. shard.mu is held.
func (f *flight) listed() bool { return f.shard.flights[f.key] == f }

func (f *flight) addCaller() {
	f.callers.Add(1)
	f.joins.Add(1)
}

// Leave takes a caller off the flight.
func (f *flight) Leave() {
	if f.callers.Add(-1) > 0 {
		return
	}
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if f.deserted != nil && f.callers.Load() == 0 { // otherwise another caller has joined
		close(f.deserted)
		f.deserted = nil
	}
	f.endIfDeserted()
}

// endIfDeserted ends a flight without callers before its election, since its requests would be for no caller. A flight
// that goes on without callers, or offers a stale item, stays. shard.mu is held: no caller can join.
func (f *flight) endIfDeserted() {
	if state := f.state.Load(); f.callers.Load() > 0 || f.goesOn || state.landed || state.offered != nil {
		return
	}
	f.unlist()
	f.cancel(errDeserted)
	f.member.callersLeft()
}

// noteReturn notes that the flight's load has returned, after all Refreshes so far.
func (f *flight) noteReturn() {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	f.refresh = nil
}

// goesToOthers reports whether callers of other clients begin a new flight when the flight lands with the failure: its
// own client's request may be what is slow. Otherwise a client could keep a page stale for all.
func (f *flight) goesToOthers(failure error) bool {
	return f.want.Personal && fault.Says(failure, ErrRebuildTimeout)
}

func (f *flight) setElected() {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	f.goesOn = true
}
