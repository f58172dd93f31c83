package bellwether

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"
)

// This file is the protocol: what one flight does, in the order of the
// picture in docs/design.md. It looks into the store; if there is nothing
// fresh it stands for election; elected, it claims an epoch, loads, commits and
// releases; not elected, it waits for the value of whoever was.

// A run is one flight's way through the protocol. It is used by the flight's
// goroutine alone.
type run[V any] struct {
	*flight[V]
	outage outage
	// storeDown is set when the store does not answer. The flight then goes on
	// without store and locker: a lease is of no use to those who cannot see
	// the value it protects.
	storeDown bool
	// slot is set while the flight has one of the MaxRebuilds. A load that
	// begins takes it over.
	slot bool
	// lease is the flight's own while it rebuilds with one.
	lease Lease
	// unshared is the epoch of the KindUnshared entry that the last look or
	// claim found, 0 if it found none.
	unshared uint64

	waits   bool    // the flight has found another holder
	waiting instant // when it first did
	elected instant // when it last stood for election
	known   uint64  // the epoch of the store's entry when the flight began to wait
	losses  int     // how often the flight's own lease was lost
	refused int     // how often the store has refused its commit
}

const (
	// electPause is how often a waiter whose locker cannot push stands for
	// election while the holder's announced time lasts: a holder may have
	// given up without a word.
	electPause = 500 * time.Millisecond
	// maxRefused is after how many refused commits a flight's value goes to
	// those callers who asked before its load began, and to nobody else. A store
	// that refuses everything is none; and a key that is invalidated again during
	// each load would never answer.
	maxRefused = 5
)

// fly runs the flight to its end, whatever the engines' adapters do.
func (f *flight[V]) fly(ctx context.Context) {
	err := ErrGoexit
	r := &run[V]{flight: f, outage: outage{f.engine.EngineTimeout}}
	defer func() {
		r.freeSlot()
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
			f.engine.OnError(f.key, err)
		}
		f.end(err)
	}()
	err = r.rebuild(ctx)
}

func (r *run[V]) freeSlot() {
	if r.slot {
		r.slot = false
		r.engine.slots.Release(1)
	}
}

// rebuild ends the flight with an item, or returns the error that ends it.
func (r *run[V]) rebuild(ctx context.Context) error {
	e := r.engine
	began := e.clock.now()
	for {
		if r.refused > 0 {
			// What fences commits off may not be over; and callers gather
			// meanwhile, who are answered by a load that begins after them.
			pause := time.NewTimer(minPoll << r.refused)
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
			}
		}
		r.lookAgain()
		if r.look(ctx) {
			return nil
		}
		if r.takeSlot(ctx) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if r.unshared != 0 {
			if r.build(ctx, r.unshared) {
				return nil
			}
			continue
		}
		lease, held := r.elect(ctx)
		if ctx.Err() != nil {
			if lease != nil {
				r.release(ctx, lease)
			}
			return context.Cause(ctx)
		}
		if held == nil {
			if r.lead(ctx, lease) {
				return nil
			}
			r.freeSlot()
		} else {
			r.freeSlot()
			if e.clock.now()-began > e.MaxWait {
				return errAgain
			}
			if r.await(ctx, held) {
				return nil
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// takeSlot takes one of the MaxRebuilds. While it waits for one it looks into
// the store: another process may have a slot, and so the value, sooner. It
// reports whether the flight has ended.
func (r *run[V]) takeSlot(ctx context.Context) bool {
	slots := r.engine.slots
	if slots.TryAcquire(1) {
		r.slot = true
		return false
	}
	// One request for as long as it takes: asked anew after each look, the
	// flight would lose its place in the queue.
	waiting, leave := context.WithCancel(ctx)
	defer leave()
	taken := make(chan error, 1)
	r.engine.running.Go(func() { taken <- slots.Acquire(waiting, 1) })
	tick := time.NewTicker(lookPause)
	defer tick.Stop()
	for {
		select {
		case err := <-taken:
			r.slot = err == nil
			return false
		case <-tick.C:
		}
		if r.storeDown {
			continue
		}
		r.lookAgain()
		if r.look(ctx) {
			leave()
			r.slot = <-taken == nil // it may have come at the same time
			return true
		}
	}
}

// look reads the store, and ends the flight if what is there answers.
func (r *run[V]) look(ctx context.Context) bool {
	e := r.engine
	r.unshared = 0
	known, now := e.near.get(r.key)
	if e.Store == nil {
		r.present = known
		return false
	}
	if e.sweeper.on() {
		e.followLog(ctx)
	}
	entry, asked, err := r.read(ctx, &r.outage)
	// One lost packet is no outage: an engine that is gone fails again, and
	// opens its breaker, or has used the time up.
	for try := 1; try < breakerTrips && errors.Is(err, ErrUnavailable) && r.outage.left > 0 && e.store.up(); try++ {
		r.noAnswer("reading", err)
		entry, asked, err = r.read(ctx, &r.outage)
	}
	switch {
	case err == nil:
		return r.consider(r.decode(entry, known, asked), true)
	case errors.Is(err, ErrUnavailable):
		r.noAnswer("reading", err)
		r.storeDown = true
		if known != nil && known.judge(now) != rebuild {
			// Nobody can say that it does not hold. It answers for as long as
			// it would have if the store had confirmed it.
			held := *known
			held.trusted = addDurations(now, e.NearTTL)
			return r.consider(&held, false)
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

// read asks the store for the key's entry. What it says is as of asked.
func (r *run[V]) read(ctx context.Context, o *outage) (entry Entry, asked instant, err error) {
	e := r.engine
	asked = e.clock.now()
	entry, err = ask(ctx, e.store, o, func(ctx context.Context) (Entry, error) {
		return e.Store.Get(ctx, e.engineKey(r.key))
	})
	return entry, asked, err
}

// consider ends the flight with it if it answers, and offers it to callers if
// it does so for the time being. fromStore tells a hit of the store from what
// was at hand.
func (r *run[V]) consider(it *item[V], fromStore bool) bool {
	r.present = it
	if it == nil {
		return false
	}
	verdict := it.judge(r.engine.clock.now())
	if verdict == rebuild && r.waits && it.failures > 0 && it.epoch > r.known {
		// It failed while this flight waited for it. Nobody is to be told
		// later, but those who wait are: else they would fail one after another,
		// each after a rebuild of its own.
		verdict = fail
	}
	if (verdict == serve || verdict == serveStale) && r.accept != nil && !r.accept(it, r.engine.clock.now()) {
		// The call that began this flight has refused it, or would. Who else
		// waits here waits for what that one gets.
		verdict = rebuild
	}
	switch verdict {
	case serve, serveOnly, fail:
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

// elect stands for election. With neither a lease nor another holder there is
// nobody to elect: no locker, or none that answers.
func (r *run[V]) elect(ctx context.Context) (Lease, *HeldError) {
	e := r.engine
	if e.Locker == nil || r.storeDown {
		return nil, nil
	}
	r.elected = e.clock.now()
	lease, err := ask(ctx, e.locker, &r.outage, func(ctx context.Context) (Lease, error) {
		return e.Locker.TryAcquire(ctx, e.engineKey(r.key), e.LeaseTTL)
	})
	if err == nil {
		return lease, nil
	}
	if held, ok := errors.AsType[*HeldError](err); ok {
		return nil, held
	}
	if errors.Is(err, ErrHeld) {
		return nil, &HeldError{Key: r.key}
	}
	r.noAnswer("acquiring the lease of", err)
	return nil, nil
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
func (r *run[V]) await(ctx context.Context, held *HeldError) bool {
	e := r.engine
	began := e.clock.now()
	if !r.waits {
		e.count.waits.Add(1)
		r.waits, r.waiting = true, began
		if r.present != nil {
			r.known = r.present.epoch
		}
	}

	watching, endWatch := context.WithCancel(ctx)
	defer endWatch()
	wake := r.watch(ctx, watching, endWatch, held)

	until := addDurations(began, e.LeaseTTL)
	if !held.Until.IsZero() {
		until = min(until, e.clock.instant(held.Until))
	}
	if wake == nil {
		until = min(until, addDurations(began, electPause))
	}
	// All waiters of a dead holder get here at one time. One of them wins
	// anyway; the jitter spares the engine the rest.
	until = addDurations(until, time.Duration(rand.Int64N(int64(e.LeaseTTL)/64+1)))
	// A locker that says "free" and "held" in one breath must not make a loop
	// without a pause.
	earliest := r.elected + pollInterval(began-r.waiting)
	deadline := time.NewTimer(max(until, earliest) - began)
	defer deadline.Stop()

	for {
		pause := lookPause
		if wake == nil {
			pause = pollInterval(e.clock.now() - r.waiting)
		}
		if r.state.Load().offered != nil {
			pause = min(pause, e.NearTTL/2) // what is offered has to be confirmed
		}
		poll := time.NewTimer(pause)
		select {
		case n := <-r.notices:
			poll.Stop()
			if r.told(ctx, n) {
				return true
			}
			if r.storeDown || r.unshared != 0 {
				return false
			}
		case <-wake:
			poll.Stop()
			if e.notified {
				earliest = max(earliest, e.clock.now()+noticeLag)
			}
			if early := earliest - e.clock.now(); early > 0 {
				wake, earliest = nil, 0
				deadline.Reset(early)
				continue
			}
			return false
		case <-deadline.C:
			poll.Stop()
			return false
		case <-ctx.Done():
			poll.Stop()
			return false
		case <-poll.C:
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
	wake, err := ask(ctx, e.push, &outage{e.EngineTimeout}, func(ctx context.Context) (<-chan struct{}, error) {
		// The watch outlives this call, so it gets the longer context; but a
		// call that hangs must end with the shorter one.
		defer context.AfterFunc(ctx, endWatch)()
		return w.Watch(watching, held)
	})
	if err != nil {
		r.noAnswer("watching the lease of", err)
		return nil
	}
	return wake
}

// lead rebuilds the key as its holder; lease is nil if there is no election.
// It reports whether the flight has ended. The flight holds a slot, which goes
// to the load: that may outlast the flight.
func (r *run[V]) lead(ctx context.Context, lease Lease) bool {
	e := r.engine
	r.lease = lease
	defer func() {
		if r.lease != nil {
			r.release(ctx, r.lease)
			r.lease = nil
		}
	}()

	epoch, ended := r.claim(ctx)
	if ended {
		return true
	}
	if ctx.Err() != nil || r.unshared != 0 {
		return false
	}
	if epoch == 0 || e.commits.fails(e.clock.now()) {
		// Nobody will find this load's value in the store. Who waited for it
		// would wait in vain, and the next after that one.
		r.releaseBehind(ctx)
	}
	if epoch == 0 || e.Locker != nil && lease == nil {
		e.count.degraded.Add(1)
	}
	return r.build(ctx, epoch)
}

// build loads the value, under the lease if the flight has one, and ends the
// flight with it. It reports whether it did.
func (r *run[V]) build(ctx context.Context, epoch uint64) bool {
	e := r.engine
	limited, cancel := context.WithTimeoutCause(ctx, e.RebuildTimeout, ErrRebuildTimeout)
	defer cancel()
	loading, abort := context.WithCancelCause(limited)
	defer abort(nil)
	if !r.abortable(abort, epoch) {
		return false // invalidated since it was claimed
	}
	var lost chan struct{}
	if lease := r.lease; lease != nil {
		lost = make(chan struct{})
		e.running.Go(func() { r.keep(loading, lease, lost) })
	}

	if e.Store != nil && r.state.Load().offered != nil {
		e.running.Go(func() { r.confirm(loading) })
	}

	r.made = e.clock.now() + 1
	e.count.loads.Add(1)
	r.slot = false
	result := startLoad(loading, func(ctx context.Context) (V, error) { return r.load(ctx, r.flight) },
		&e.settings, func() { e.slots.Release(1) })

	for {
		select {
		case l := <-result:
			if errors.Is(context.Cause(loading), errInvalidated) {
				return false
			}
			if l.err != nil && limited.Err() != nil {
				l.err = context.Cause(limited) // what else it says is the echo of that
			}
			abort(nil) // ends the keeper: it must not renew what is being released
			return r.finish(ctx, l, epoch)
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
			return r.finish(ctx, loaded[V]{err: context.Cause(limited)}, epoch)
		}
	}
}

// claim reads the key again, now that nobody else may rebuild it, and takes an
// epoch for the rebuild, in one call. Who has won the lease just after another
// released it finds that one's value here, and the flight has ended.
func (r *run[V]) claim(ctx context.Context) (epoch uint64, ended bool) {
	asked := r.engine.clock.now()
	entry, epoch := r.takeEpoch(ctx)
	if epoch == 0 || r.engine.Store == nil {
		return epoch, false
	}
	known, _ := r.engine.near.get(r.key)
	return epoch, r.consider(r.decode(entry, known, asked), true)
}

// takeEpoch returns a new epoch for the key, and its present entry. The epoch
// is 0 if the store does not answer.
func (r *run[V]) takeEpoch(ctx context.Context) (entry Entry, epoch uint64) {
	e := r.engine
	if e.Store == nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.epoch++
		return Entry{}, e.epoch
	}
	if r.storeDown {
		return Entry{}, 0
	}
	entry, err := ask(ctx, e.store, &r.outage, func(ctx context.Context) (entry Entry, err error) {
		entry, epoch, err = e.Store.Claim(ctx, e.engineKey(r.key))
		return entry, err
	})
	if err != nil {
		r.noAnswer("claiming", err)
		r.storeDown = true
		return Entry{}, 0
	}
	return entry, epoch
}

// put keeps a value that was made by the rebuild of another key.
func (e *engine[V]) put(ctx context.Context, key string, v V, f Freshness, position uint64) {
	e.mu.Lock()
	before := e.invalidations
	e.mu.Unlock()
	r := &run[V]{flight: &flight[V]{key: key, engine: e}, outage: outage{e.EngineTimeout}}
	_, epoch := r.takeEpoch(ctx)
	now := e.clock.now()
	it := &item[V]{kind: KindValue, value: v, epoch: epoch, position: position, trusted: e.trustedUntil(now)}
	it.lifetime = newLifetime(now, f)
	if !r.commit(ctx, it) {
		return
	}
	e.near.weigh(key, it) // before the lock: it runs user code
	e.mu.Lock()
	defer e.mu.Unlock()
	// There is no flight here that an invalidation could disown. After one, of
	// whatever key, the store alone has the value.
	if e.invalidations == before && e.sweeper.spare(key, it) == it {
		e.near.put(key, it)
	}
}

// putUnless keeps, where there is no store, a value that was made by a request
// which has invalidated the key itself, once: if w has seen more than that, the
// value may be older than what another such request has done.
func (e *engine[V]) putUnless(key string, v V, f Freshness, w *witness) {
	now := e.clock.now()
	it := &item[V]{kind: KindValue, value: v, trusted: e.trustedUntil(now)}
	it.lifetime = newLifetime(now, f)
	e.near.weigh(key, it) // before the lock: it runs user code
	e.mu.Lock()
	defer e.mu.Unlock()
	if w.seen != 1 || e.flights[key] != nil {
		return // a flight that has begun since the invalidation has something newer
	}
	e.epoch++
	it.epoch = e.epoch
	e.near.put(key, it)
}

// peek returns what the near tier or the store has for the key that may be
// served now, without a flight; nil if there is nothing.
func (e *engine[V]) peek(ctx context.Context, key string) *item[V] {
	it, now := e.near.get(key)
	if it == nil || now >= it.trusted {
		if e.Store == nil {
			return nil
		}
		r := &run[V]{flight: &flight[V]{key: key, engine: e}, outage: outage{e.EngineTimeout}}
		entry, asked, err := r.read(ctx, &r.outage)
		if err != nil {
			return nil
		}
		if it = r.decode(entry, it, asked); it == nil {
			return nil
		}
	}
	switch it.judge(now) {
	case serve, serveStale, serveOnly:
		return it
	}
	return nil
}

// keep renews the lease at a third of its length until ctx ends. It closes lost
// when the engine says that the lease is another's, asked or by itself. An
// engine that says nothing ends nothing: if the lease runs out meanwhile and
// another rebuilds too, the store lets only the later of the two write.
func (r *run[V]) keep(ctx context.Context, lease Lease, lost chan<- struct{}) {
	e := r.engine
	tick := time.NewTicker(max(e.LeaseTTL/3, time.Millisecond))
	defer tick.Stop()
	var told <-chan struct{}
	if n, ok := lease.(LossNotifier); ok {
		if err := noPanic(func() error { told = n.Lost(); return nil }); err != nil {
			r.noAnswer("keeping the lease of", err)
		}
	}
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-told:
			err = ErrLeaseLost
		case <-tick.C:
			_, err = ask(ctx, e.locker, &outage{min(e.EngineTimeout, e.LeaseTTL/3)}, func(ctx context.Context) (struct{}, error) {
				return struct{}{}, lease.Renew(ctx, e.LeaseTTL)
			})
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrLeaseLost):
			e.count.leasesLost.Add(1)
			e.OnError(r.key, &keyError{"keeping the lease of", r.key, err})
			close(lost)
			return
		case err != nil:
			r.noAnswer("renewing the lease of", err)
		}
	}
}

// confirm asks the store, until ctx ends, whether the stale item that callers
// are offered during the load still holds. Without it, a key that another
// process invalidates would be served stale for as long as its rebuild takes.
func (r *run[V]) confirm(ctx context.Context) {
	e := r.engine
	tick := time.NewTicker(max(e.NearTTL/2, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		offered := r.state.Load().offered
		if offered == nil {
			return
		}
		entry, asked, err := r.read(ctx, &outage{e.EngineTimeout})
		if ctx.Err() != nil {
			return
		}
		// A store that does not answer cannot say that it does not hold.
		if !errors.Is(err, ErrUnavailable) && (err != nil || entry.Epoch != offered.epoch) {
			r.offerStale(nil)
			return
		}
		confirmed := *offered
		confirmed.trusted = addDurations(asked, e.NearTTL)
		r.offerStale(&confirmed)
	}
}

// releaseBehind gives the lease back, if there is one, and does not wait for it.
func (r *run[V]) releaseBehind(ctx context.Context) {
	if lease := r.lease; lease != nil {
		r.lease = nil
		r.engine.running.Go(func() { r.release(ctx, lease) })
	}
}

// release gives the lease back, also when the flight's own context has ended.
func (r *run[V]) release(ctx context.Context, lease Lease) {
	e := r.engine
	_, err := ask(context.WithoutCancel(ctx), e.locker, &outage{e.EngineTimeout}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, lease.Release(ctx)
	})
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		r.noAnswer("releasing the lease of", err)
	}
}

// finish ends the flight with what the load came to, after the store has taken
// it. It returns false if the store, or an invalidation here, has something
// later to say: then nobody gets it, and the flight looks again.
func (r *run[V]) finish(ctx context.Context, l loaded[V], epoch uint64) bool {
	e := r.engine
	if e.sweeper.on() && e.Store != nil {
		e.followLog(ctx) // the load may have taken longer than the log is trusted
	}
	now := e.clock.now()
	it := &item[V]{epoch: epoch, build: l.took, made: r.made, position: r.position, trusted: e.trustedUntil(now)}
	switch {
	case errors.Is(l.err, errNothing):
		r.end(errAgain) // who has not seen what was published asks again
		return true
	case l.err == nil:
		it.kind, it.value = KindValue, l.value
		it.lifetime = newLifetime(now, l.freshness)
	case errors.Is(l.err, ErrNotFound):
		it.kind = KindNotFound
		it.lifetime = newLifetime(now, l.freshness)
	default:
		return r.finishFailed(ctx, now, l.err, epoch)
	}
	if r.commit(ctx, it) {
		// The other processes are woken first, and on their way to the store
		// while the callers here wake up.
		r.releaseBehind(ctx)
		return r.settle(it)
	}
	if r.streaming() {
		r.end(nil) // its callers have it already
		return true
	}
	if r.refused++; r.refused < maxRefused {
		return false
	}
	// It is for those who asked before its load began: whatever has fenced it
	// off came after them.
	it.lifetime = newLifetime(now, Freshness{})
	it.trusted = r.engine.clock.instant(l.began)
	return r.settle(it)
}

// finishFailed is finish for a load that failed: what was there stays there,
// and the failure is written beside it, so that it answers in every process
// until the next try is due.
func (r *run[V]) finishFailed(ctx context.Context, now instant, err error, epoch uint64) bool {
	e := r.engine
	e.count.loadFailures.Add(1)
	// A context's end says nothing about the origin: remembered, one caller's
	// impatience would be everybody's failure. But that the rebuild has taken
	// too long is told to those who wait for it elsewhere.
	pause, told := e.ErrorTTL, true
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrClosed) {
		pause, told = 0, errors.Is(err, ErrRebuildTimeout)
	}
	if !told && r.present != nil {
		// What is served in the place of this failure may have been
		// invalidated while the load ran, and no commit checks that.
		r.lookAgain()
		if r.look(ctx) {
			return true
		}
	}
	it := &item[V]{}
	it.born = now
	if r.present != nil {
		*it = *r.present
	}
	it.lifetime = it.failed(now, pause)
	it.err, it.trusted, it.weight, it.made = err, e.trustedUntil(now), 0, r.made
	if !it.stale(now) && now >= it.keepUntil {
		var zero V
		it.held, it.kind, it.value = false, KindNone, zero
	}
	if !told {
		return r.settle(it)
	}
	it.epoch = epoch
	return r.commit(ctx, it) && r.settle(it)
}

// commit offers it to the store. It returns false if the store refuses it as
// too late. A store that does not answer, or does not take the value, leaves it
// to this process.
func (r *run[V]) commit(ctx context.Context, it *item[V]) bool {
	e := r.engine
	switch {
	case e.Store == nil || r.storeDown:
		return true
	case r.unshared != 0:
		return r.stillUnshared(ctx)
	}
	entry, err := r.encode(it)
	lives := entry.Life() > 0
	if err == nil && lives {
		if err = r.write(ctx, entry); err == nil {
			return true
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, ErrFenced):
		e.count.fenced.Add(1)
		e.OnError(r.key, &keyError{"committing", r.key, err})
		return false
	case errors.Is(err, ErrUnavailable):
		r.noAnswer("committing", err)
	default:
		e.OnError(r.key, &keyError{"committing", r.key, err})
	}
	// The processes that wait for this value are told that there is none to
	// come. Without that they would take turns, each only to find the same out.
	// An engine out of memory may have room for so little.
	entry.Kind, entry.Value = KindUnshared, nil
	if !lives {
		entry.TTL = addDurations(entry.Age, addDurations(unsharedTTL, 2*entry.BuildTime))
	}
	if !errors.Is(r.write(ctx, entry), ErrFenced) {
		return true
	}
	if errors.Is(err, ErrUnavailable) {
		return true // perhaps by the value, which was written after all
	}
	e.count.fenced.Add(1)
	return false
}

// unsharedTTL is for how long it is remembered of a value without a life that
// it was for those only who waited for it; and for two loads' time more, since
// the others make their own meanwhile.
const unsharedTTL = time.Second

func (r *run[V]) write(ctx context.Context, entry Entry) error {
	e := r.engine
	_, err := ask(ctx, e.store, &r.outage, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, e.Store.Commit(ctx, e.engineKey(r.key), entry)
	})
	if ctx.Err() == nil {
		e.commits.note(err, e.clock.now())
	}
	return err
}

// stillUnshared is the commit of a value that only this process has: the entry
// that let it be made must be there still, or it was invalidated meanwhile. A
// store that does not answer cannot say so.
func (r *run[V]) stillUnshared(ctx context.Context) bool {
	entry, _, err := r.read(ctx, &r.outage)
	return errors.Is(err, ErrUnavailable) || err == nil && entry.Kind == KindUnshared && entry.Epoch == r.unshared
}

// encode makes the store's entry of an item.
func (r *run[V]) encode(it *item[V]) (Entry, error) {
	e := Entry{
		Kind:                 it.kind,
		Epoch:                it.epoch,
		Age:                  r.engine.clock.now() - it.born,
		TTL:                  it.freshUntil - it.born,
		StaleWhileRevalidate: it.staleUntil - it.freshUntil,
		StaleIfError:         it.errorUntil - it.freshUntil,
		Keep:                 it.keepUntil - it.freshUntil,
		BuildTime:            it.build,
		Sweep:                it.position,
		Failures:             it.failures,
	}
	if it.failures > 0 {
		e.RetryAge, e.Failure = it.retryAt-it.born, it.err.Error()
	}
	if it.kind != KindValue {
		return e, nil
	}
	err := noPanic(func() (err error) {
		e.Value, err = r.engine.marshal(it.value)
		return err
	})
	return e, err
}

// decode makes an item of the store's entry as it was when the store was asked,
// nil if there is nothing in it. If known, the near tier's, is of the same
// rebuild, its value serves; if it is of a later one, which the store did not
// get, that is the item: the key has not been invalidated since, or the entry
// would be gone.
func (r *run[V]) decode(e Entry, known *item[V], asked instant) *item[V] {
	if e.Kind > KindUnshared {
		r.engine.OnError(r.key, &keyError{"decoding", r.key, fmt.Errorf("%w: unknown kind %d", ErrCorrupt, e.Kind)})
		return nil
	}
	if e.Kind == KindNone && e.Failures == 0 {
		return nil
	}
	now := r.engine.clock.now()
	if known != nil && known.epoch > e.Epoch {
		later := *known
		later.trusted = r.engine.trustedUntil(asked)
		return &later
	}
	same := known != nil && known.epoch == e.Epoch && known.failures == e.Failures
	if e.Kind == KindUnshared {
		// Its value is here or nowhere.
		if e.Kind = KindNone; same && known.kind == KindValue {
			e.Kind = KindValue
		} else if e.Failures == 0 {
			if e.Age < e.TTL {
				r.unshared = e.Epoch
			}
			return nil
		}
	}
	it := &item[V]{kind: e.Kind, epoch: e.Epoch, build: e.BuildTime, position: e.Sweep, trusted: r.engine.trustedUntil(asked)}
	it.lifetime = newLifetime(now, Freshness{e.Age, e.TTL, e.StaleWhileRevalidate, e.StaleIfError, e.Keep})
	it.held = e.Kind != KindNone
	if e.Failures > 0 {
		it.failures, it.retryAt = e.Failures, addDurations(it.born, e.RetryAge)
		it.err = &RemoteError{e.Failure}
	}
	if same && known.kind == e.Kind {
		it.value, it.err = known.value, known.err
		return r.engine.sweeper.spare(r.key, it)
	}
	if e.Kind == KindValue {
		err := noPanic(func() (err error) {
			it.value, err = r.engine.unmarshal(e.Value)
			return err
		})
		if err != nil {
			r.engine.OnError(r.key, &keyError{"decoding", r.key, err})
			return nil
		}
	}
	return r.engine.sweeper.spare(r.key, it)
}

// trustedUntil is how long the near tier may go, with what was true at the time
// now, without asking the store.
func (e *engine[V]) trustedUntil(now instant) instant {
	if e.Store == nil {
		return forever
	}
	if e.sweeper.on() {
		now = min(now, instant(e.sweeper.asked.Load()))
	}
	return addDurations(now, e.NearTTL)
}

// noAnswer counts and reports an engine's silence.
func (r *run[V]) noAnswer(doing string, err error) {
	r.engine.count.engineErrors.Add(1)
	r.engine.OnError(r.key, &keyError{doing, r.key, err})
}

// A keyError says what was being done to which key.
type keyError struct {
	doing string
	key   string
	err   error
}

func (e *keyError) Error() string { return fmt.Sprintf("%s %q: %v", e.doing, e.key, e.err) }
func (e *keyError) Unwrap() error { return e.err }
