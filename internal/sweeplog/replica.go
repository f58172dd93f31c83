// Package sweeplog invalidates many keys together: all keys with a common beginning, or with values
// of a common tag. No process knows all these keys, so they cannot be invalidated one by one. A sweep
// is a line in a log in the store, and each process has a replica of the log. An item records the
// position of the log that its load saw. When the item is read, each later sweep is applied to it.
//
// log.go has the log itself, replica.go the exchange between the store's log and this process's.
package sweeplog

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/leases"
	"github.com/bellwether-go/bellwether/internal/polls"
)

// Key is the log's key. Keys of the HTTP face begin with a host.
const Key = "\x00sweeps"

const (
	// ttl is the life of the log in a store that supports so long a life. A lost log is begun anew, and
	// all values that were loaded before count as swept. After a clock that was set back, a store may begin the new
	// log below the old one. Then the values above the new log are spared, unless a process still knows the old one.
	ttl = 10 * 365 * 24 * time.Hour
	// tries bounds the attempts to write a log whose lease is lost, or whose commit is fenced.
	tries = 5
)

// Config is a replica's way to the engines and to the cache.
type Config struct {
	// Store has the log. If it is nil, the log is this process's alone.
	Store driver.Store
	// Locker orders the writers of the log. It may be nil.
	Locker driver.Locker
	// Reads and Writes stand before Store, and Locks before Locker.
	Reads, Writes, Locks *gate.Gate
	// Name is Key as the engines know it.
	Name string
	// EngineTimeout bounds each call of a writer, LeaseTTL its lease, and MaxWait the wait for the lease.
	EngineTimeout, LeaseTTL, MaxWait time.Duration
	// Now is the cache's clock.
	Now func() durations.Instant
	// Release gives the lease of the log back. Silent reports an engine without an answer.
	Release func(ctx context.Context, budget *gate.Budget, lease driver.Lease) error
	Silent  func(err error)
	// Behind runs a function on a goroutine of the cache, with a context until the cache's close.
	Behind func(f func(ctx context.Context))
	// Take makes a new log take effect. It calls publish, which makes next the replica's log, under
	// the lock under which all loads begin, and applies next to the present items.
	Take func(next *Log, publish func())
}

// A Replica is a process's copy of the log, nil in a cache without one. It is safe for concurrent use.
type Replica struct {
	Config

	applying sync.Mutex // held while a log takes its effect
	log      atomic.Pointer[Log]
	// asked is the instant of the latest read of the log; 0: read it at the next occasion.
	asked atomic.Int64
	// silent is the end of the latest read if the store did not answer. 0: it answered.
	silent atomic.Int64
	// reading has room for one reader, and writing for one writer.
	reading, writing chan struct{}
}

// New returns a replica without a log.
func New(c Config) *Replica {
	return &Replica{Config: c, reading: make(chan struct{}, 1), writing: make(chan struct{}, 1)}
}

// Log returns the log in this process, nil if there is none.
func (r *Replica) Log() *Log {
	if r == nil {
		return nil
	}
	return r.log.Load()
}

// Asked limits an item's instant by the latest read of the log: no item is more certain than the log.
func (r *Replica) Asked(item durations.Instant) durations.Instant {
	if r == nil {
		return item
	}
	return min(item, durations.Instant(r.asked.Load()))
}

// Doubt lets the log be read again at the next occasion.
func (r *Replica) Doubt() { r.asked.Store(0) }

// Follow reads the log if the replica is older than age.
func (r *Replica) Follow(ctx context.Context, budget *gate.Budget, age time.Duration) {
	if turn := r.Turn(ctx, budget, age); turn != nil {
		turn.read(ctx, budget)
	}
}

func (t *Turn) read(ctx context.Context, budget *gate.Budget) {
	defer t.End()
	entry, err := t.replica.read(ctx, budget)
	t.Took(ctx, budget, entry, err)
}

// probe reads the log for no caller, unless it is being read. Until the answer the log counts as read, as after a silence.
func (r *Replica) probe() {
	r.asked.Store(int64(max(1, r.Now())))
	r.Behind(func(ctx context.Context) {
		select {
		case r.reading <- struct{}{}:
			r.turn().read(ctx, gate.NewBudget(r.EngineTimeout))
		default:
		}
	})
}

// turn is the turn of the caller that has filled reading.
func (r *Replica) turn() *Turn { return &Turn{replica: r, asked: r.Now(), known: r.Log().Position()} }

func (r *Replica) read(ctx context.Context, budget *gate.Budget) (driver.Entry, error) {
	return gate.Ask(ctx, r.Reads, Key, budget, func(ctx context.Context) (driver.Entry, error) {
		return r.Store.Get(ctx, r.Name)
	})
}

// A Turn is held by the reader of the log.
type Turn struct {
	replica *Replica
	asked   durations.Instant
	known   uint64 // the replica's position at asked
	over    bool
}

// Turn waits for the turn to read the log. It returns nil if no read is needed: there is no store, or
// the replica was no older than age when the wait began. After a silence of the store a caller with a log does not wait
// either: the log may be on a server that hangs, and the caller's key on another. This holds for twice the age, and as
// long again after each probe. Later a caller waits: it has to hear of a sweep after the silence.
func (r *Replica) Turn(ctx context.Context, budget *gate.Budget, age time.Duration) *Turn {
	if r == nil || r.Store == nil || budget.Left() <= 0 {
		return nil
	}
	began := r.Now()
	old := func() bool {
		asked := durations.Instant(r.asked.Load())
		return asked == 0 || began > durations.Add(asked, age)
	}
	if !old() {
		return nil
	}
	if silent := r.silent.Load(); silent > 0 && r.Log() != nil {
		if latest := durations.Instant(max(silent, r.asked.Load())); began < durations.Add(latest, 2*age) {
			r.probe()
			return nil
		}
	}
	// Callers that come during a read wait for it: with a log that is too old, an item from the store
	// would count as certain for no time at all.
	select {
	case r.reading <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	turn := r.turn()
	switch silent := durations.Instant(r.silent.Load()); {
	case silent > 0 && (silent > began || !old()):
		// The caller has waited out the store's silence. A second read would last as long for the next.
		budget.Spend(turn.asked - began)
	case old():
		return turn
	}
	turn.End()
	return nil
}

// End gives the turn back. A second call does nothing.
func (t *Turn) End() {
	if !t.over {
		t.over = true
		<-t.replica.reading
	}
}

// Took takes the store's answer in and ends the turn. If the store has no log, or has lost the log that the replica
// knows, Took begins one.
func (t *Turn) Took(ctx context.Context, budget *gate.Budget, entry driver.Entry, err error) {
	r := t.replica
	var told []error
	defer func() {
		t.End() // before Silent: an observer may call the cache, which may need the turn
		for _, err := range told {
			r.Silent(err)
		}
	}()
	tell := func(err error) { told = append(told, err) }
	switch {
	case err == nil && (logOf(entry).At >= t.known || !r.lost(ctx, budget, t.known)):
		r.Learn(entry)
	case err == nil, errors.Is(err, driver.ErrNotFound), errors.Is(err, driver.ErrCorrupt):
		if err = r.begin(ctx, budget, tell); !errors.Is(err, driver.ErrFenced) {
			break
		}
		if entry, err = r.read(ctx, budget); err == nil { // another process has begun the log
			r.Learn(entry)
		}
	}
	if gate.Ended(ctx) {
		return // the caller has left without an answer
	}
	silent := durations.Instant(0)
	if err != nil {
		silent = r.Now()
		tell(fmt.Errorf("reading the log of invalidations: %w", err))
	}
	// A store that does not answer cannot report sweeps.
	r.silent.Store(int64(silent))
	r.asked.Store(int64(max(1, t.asked)))
}

// Learn takes in the log of a store's entry.
func (r *Replica) Learn(entry driver.Entry) { r.apply(logOf(entry)) }

// logOf returns the log of a store's entry. An entry with other content counts as a log of unknown sweeps.
func logOf(entry driver.Entry) *Log {
	l, ok := decode(entry)
	if !ok {
		l = &Log{Since: entry.Epoch, At: entry.Epoch}
	}
	return l
}

// apply makes l the replica's log. Two callers may bring the same log: the process's own sweep and
// the store's notice of it. Both return only after the log has taken effect.
func (r *Replica) apply(l *Log) {
	r.applying.Lock()
	defer r.applying.Unlock()
	r.adopt(l)
}

// adopt is apply for a caller that holds applying.
func (r *Replica) adopt(l *Log) {
	known := r.log.Load()
	if known != nil && known.At >= l.At {
		return
	}
	l.hear(known, r.Now())
	r.Take(l, func() { r.log.Store(l) })
}

// Append adds sweeps to a log without a store. next returns a position above the positions of all loads.
func (r *Replica) Append(next func() uint64, sweeps []Sweep) {
	// The lock is held from the reading of the log on: two sweeps on one log would lose one.
	r.applying.Lock()
	defer r.applying.Unlock()
	l := r.log.Load()
	if l == nil {
		l = &Log{}
	}
	r.adopt(l.and(next(), sweeps))
}

// begin writes a log if there is none. With a log before the first load, the first sweep separates the loads
// before it from the loads before a log was lost. The lease selects a writer, and is not worth a long wait: a
// log without sweeps counts all earlier values as swept, so writing over another such log is harmless.
func (r *Replica) begin(ctx context.Context, budget *gate.Budget, tell func(error)) error {
	lease, _, err := r.lease(ctx, budget, durations.Add(r.Now(), budget.Left()/2), r.leaseLength(0), tell)
	if err != nil && !errors.Is(err, driver.ErrHeld) {
		return err
	}
	l, err := r.commit(ctx, budget, nil, durations.Forever)
	if lease != nil {
		r.Release(ctx, budget, lease)
	}
	if err == nil {
		r.apply(l)
	}
	return err
}

// Write adds sweeps to the log in the store, and then to the replica. A store has no compare-and-swap, so the
// log is written under its lease, which has to hold until after the commit. A process that has read the log
// before might write over it. Without a Locker's answer, two processes that sweep at one moment may do so. The calls of
// one process write in turn, see commitInTurn.
//
// The lease is not renewed. A write that has outlasted its lease is repeated: another process may have read the log
// before the commit. The late commit loses no line of that process, whose claim came later: after the process's commit
// it is fenced, and before it, it is written over. So a claim that may have come after the lease is not committed.
func (r *Replica) Write(ctx context.Context, budget *gate.Budget, sweeps []Sweep) error {
	until := durations.Add(r.Now(), r.MaxWait)
	slowest := time.Duration(0) // try so far
	for try := 1; ; try++ {
		length := r.leaseLength(slowest)
		lease, asked, err := r.lease(ctx, budget, until, length, r.Silent)
		if err != nil {
			return unwritten(err)
		}
		end := durations.Forever // without a lease
		if lease != nil {
			end = durations.Add(asked, length)
		}
		l, err := r.commitInTurn(ctx, budget, sweeps, end)
		if lease != nil {
			held := r.Now() < end
			// The locker's answer counts. Without an answer the clock counts.
			lost := r.Release(ctx, budget, lease)
			if err == nil && (errors.Is(lost, driver.ErrLeaseLost) || lost != nil && !held) {
				err = driver.ErrLeaseLost
			}
		}
		switch {
		case err == nil:
			r.apply(l)
			return nil
		case try == tries, !errors.Is(err, driver.ErrFenced) && !errors.Is(err, driver.ErrLeaseLost):
			return unwritten(err)
		}
		slowest = max(slowest, r.Now()-asked)
	}
}

// leaseLength is the length of a writer's lease. taken is the duration of the slowest try so far, 0 before the first.
// All sweeps of the fleet wait for a dead writer's lease, so the first lease is for a write of one EngineTimeout. With
// slow answers to all its calls a write takes longer. Its next try has a lease for a write of that duration.
func (r *Replica) leaseLength(taken time.Duration) time.Duration {
	return leases.Length(max(taken, r.EngineTimeout), r.EngineTimeout, r.LeaseTTL)
}

// unwritten is the error of a Write for err. If other writers got in the way, a later call may succeed.
func unwritten(err error) error {
	for _, other := range []error{driver.ErrHeld, driver.ErrFenced, driver.ErrLeaseLost} {
		if errors.Is(err, other) {
			return fmt.Errorf("%w: other processes write the log, or a writer has died while it wrote (%w); invalidate again", fault.ErrUnavailable, other)
		}
	}
	return err
}

// lease waits for the log's lease, counted from asked. It is nil without a locker or its answer.
func (r *Replica) lease(ctx context.Context, budget *gate.Budget, until durations.Instant, length time.Duration, tell func(error)) (lease driver.Lease, asked durations.Instant, err error) {
	began := r.Now()
	if r.Locker == nil {
		return nil, began, nil
	}
	for {
		asked = r.Now()
		lease, err := gate.Ask(ctx, r.Locks, Key, budget, func(ctx context.Context) (driver.Lease, error) {
			return r.Locker.TryAcquire(ctx, r.Name, length)
		})
		switch now := r.Now(); {
		case err == nil:
			return lease, asked, nil
		case gate.Ended(ctx):
			return nil, 0, fmt.Errorf("%w: %w", fault.ErrUnavailable, cmp.Or(ctx.Err(), context.DeadlineExceeded))
		case !errors.Is(err, driver.ErrHeld):
			tell(fmt.Errorf("acquiring the lease of the log of invalidations: %w", err))
			return nil, asked, nil // without a lease
		case now >= until:
			return nil, 0, err
		default:
			select {
			case <-time.After(min(until-now, polls.Interval(now-began))):
			case <-ctx.Done():
			}
		}
	}
}

// lost reports whether the store has lost the log at a known position. A claim, unlike a read, reaches no lagging copy
// of the store.
func (r *Replica) lost(ctx context.Context, budget *gate.Budget, known uint64) bool {
	entry, _, err := r.claim(ctx, budget)
	return err == nil && logOf(entry).At < known
}

func (r *Replica) claim(ctx context.Context, budget *gate.Budget) (entry driver.Entry, epoch uint64, err error) {
	entry, err = gate.Ask(ctx, r.Writes, Key, budget, func(ctx context.Context) (entry driver.Entry, err error) {
		entry, epoch, err = r.Store.Claim(ctx, r.Name)
		return entry, err
	})
	return entry, epoch, err
}

// commit writes the store's log with more sweeps; without more, only if there is no log. A log before the one that
// the replica knows is none: the store has lost its data, and with it sweeps of other processes. After a claim at
// until or later it writes nothing, and the error is ErrLeaseLost.
func (r *Replica) commit(ctx context.Context, budget *gate.Budget, more []Sweep, until durations.Instant) (*Log, error) {
	known := r.Log().Position() // before the claim: a later log is not lost
	entry, epoch, err := r.claim(ctx, budget)
	switch {
	case err != nil:
		return nil, err
	case r.Now() >= until:
		return nil, driver.ErrLeaseLost
	}
	l, ok := decode(entry)
	at := epoch
	if latest := max(l.At, known); at <= latest {
		at = latest + 1 + rand.Uint64N(1<<20) // another writer may have claimed beside this one, and needs another position
	}
	switch {
	case !ok, l.At < known:
		l = &Log{Since: at}
	case len(more) == 0:
		return l, nil // another process has begun the log
	}
	l = l.and(at, more)
	for {
		err := r.put(ctx, budget, l, epoch)
		if !errors.Is(err, driver.ErrTooLarge) || len(l.Sweeps) == 0 {
			return l, err
		}
		l = l.without((len(l.Sweeps) + 1) / 2) // or the store would refuse all later sweeps too
	}
}

// commitInTurn is commit when no other call of this process adds sweeps. It waits for the turn for an EngineTimeout at
// most: the other call may wait for a silent store.
func (r *Replica) commitInTurn(ctx context.Context, budget *gate.Budget, sweeps []Sweep, until durations.Instant) (*Log, error) {
	select {
	case r.writing <- struct{}{}:
		defer func() { <-r.writing }()
	case <-time.After(r.EngineTimeout):
	case <-ctx.Done():
	}
	return r.commit(ctx, budget, sweeps, until)
}

func (r *Replica) put(ctx context.Context, budget *gate.Budget, l *Log, epoch uint64) error {
	value, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return gate.AskErr(ctx, r.Writes, Key, budget, func(ctx context.Context) error {
		return r.Store.Commit(ctx, r.Name, driver.Entry{Kind: driver.KindValue, Value: value, Epoch: epoch, TTL: ttl})
	})
}
