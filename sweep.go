package bellwether

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file invalidates many keys at once: all that begin alike, or bear one
// tag. Nobody knows which those are, so they are not looked for. What was swept
// is written into a log in the store, of which every process has a copy; an item
// knows up to where the log had come when its load began, and what was swept
// after that is held against it whenever it is read.

// A sweep is one line of the log.
type sweep struct {
	Epoch uint64    `json:"epoch"` // of the commit that wrote it
	Kind  sweepKind `json:"kind"`
	What  exact     `json:"what"`
	Soft  bool      `json:"soft,omitempty"`  // what it hits is stale, not gone
	Plain bool      `json:"plain,omitempty"` // it hits no key of TLS

	heard instant // when this process learnt of it
}

// exact is a string that JSON keeps byte for byte. In a string of JSON's own,
// bytes that are no UTF-8 turn into others, and a tag is whatever a handler has
// sent.
type exact string

func (x exact) MarshalJSON() ([]byte, error) { return json.Marshal([]byte(x)) }

func (x *exact) UnmarshalJSON(data []byte) error {
	var b []byte
	err := json.Unmarshal(data, &b)
	*x = exact(b)
	return err
}

type sweepKind string

const (
	sweepKey    sweepKind = "key" // and its variants
	sweepPrefix sweepKind = "prefix"
	sweepTag    sweepKind = "tag"
)

// variantMark is what stands between a key and what tells its variants apart. No
// key of the HTTP face has it.
const variantMark = "\x00"

func (s *sweep) hits(key string, tags []string) bool {
	key, secure := strings.CutPrefix(key, httpcache.Secure) // keys and prefixes mean both schemes
	if secure && s.Plain {
		return false
	}
	switch s.Kind {
	case sweepKey:
		rest, ok := strings.CutPrefix(key, string(s.What))
		return ok && (rest == "" || strings.HasPrefix(rest, variantMark))
	case sweepPrefix:
		return strings.HasPrefix(key, string(s.What))
	case sweepTag:
		return slices.Contains(tags, string(s.What))
	}
	return true // a later version's: who knows what it hits
}

// A sweepLog is one state of the log. It never changes.
type sweepLog struct {
	// Since is the epoch up to which the log has forgotten: what was loaded with
	// no more than that in view may have been swept, and counts as swept.
	Since  uint64  `json:"since"`
	Sweeps []sweep `json:"sweeps"` // the oldest first

	epoch uint64 // of the entry that it was read from
}

const (
	// maxSweeps is how many sweeps the log remembers. Its readers fetch it whole.
	maxSweeps = 500
	// maxLog is how many bytes it has at most, about: a log that a store did not
	// take could not be written again.
	maxLog = 256 << 10
)

// weight is what the sweep takes in the log's bytes, at most.
func (s *sweep) weight() int { return 100 + 2*len(s.What) }

// repeats reports whether whatever an earlier sweep hits s hits too.
func (s *sweep) repeats(earlier sweep) bool {
	return !s.Soft && s.Kind == earlier.Kind && s.What == earlier.What
}

// and returns the log with more sweeps at its end, as of epoch. What there is no
// room for is forgotten, from the oldest on; of more too, if they are many.
func (l *sweepLog) and(epoch uint64, more []sweep) *sweepLog {
	next := &sweepLog{Since: l.Since, Sweeps: slices.Clone(l.Sweeps), epoch: epoch}
	if len(more) > maxSweeps { // or to look for repetitions would take for ever
		next.Since, next.Sweeps = epoch, nil
		return next
	}
	for _, s := range more {
		s.Epoch = epoch
		next.Sweeps = append(slices.DeleteFunc(next.Sweeps, s.repeats), s)
	}
	first, size := len(next.Sweeps), 0
	for first > 0 && len(next.Sweeps)-first < maxSweeps {
		if size += next.Sweeps[first-1].weight(); size > maxLog {
			break
		}
		first--
	}
	if first > 0 {
		next.Since = next.Sweeps[first-1].Epoch
		next.Sweeps = slices.Clone(next.Sweeps[first:])
	}
	return next
}

// A sweeper is what an engine knows of the log. The zero sweeper knows nothing.
type sweeper[V any] struct {
	// traits tells the tags of a value, and whether it is only a signpost to
	// others, which nothing makes stale. Nil: the engine has no log.
	traits func(V) (tags []string, signpost bool)

	applying sync.Mutex               // held while a log takes effect
	log      atomic.Pointer[sweepLog] // written with engine.mu held
	// asked is when the log was last read, as of then; 0 if it is to be read
	// again at the next occasion.
	asked atomic.Int64
	// silent is when a read last ended that the store did not answer; 0 if the
	// latest was answered.
	silent atomic.Int64
	// reading has room for the one who reads it.
	reading chan struct{}
}

func (w *sweeper[V]) on() bool { return w.traits != nil }

// position is up to where this process knows the log.
func (w *sweeper[V]) position() uint64 {
	if l := w.log.Load(); l != nil {
		return l.epoch
	}
	return 0
}

// against returns what a log has against it: whether it is gone, and since when
// it is stale, forever if it is not.
func (w *sweeper[V]) against(l *sweepLog, key string, it *item[V]) (gone bool, stale instant) {
	if l == nil || it.position >= l.epoch {
		return false, forever
	}
	if it.position < l.Since {
		return true, forever
	}
	var (
		tags     []string
		signpost bool
	)
	if it.kind == KindValue {
		tags, signpost = w.traits(it.value)
	}
	stale = forever
	for i := range l.Sweeps {
		s := &l.Sweeps[i]
		switch {
		case s.Epoch <= it.position || !s.hits(key, tags):
		case !s.Soft:
			return true, forever
		case !signpost:
			stale = min(stale, s.heard)
		}
	}
	return false, stale
}

// spare returns it as the sweeps since its load have left it, nil if it is gone.
// What is left bears the log's position: what has been held against the log
// once need not be found in it for ever.
func (w *sweeper[V]) spare(key string, it *item[V]) *item[V] {
	l := w.log.Load()
	if it == nil || l == nil || it.position >= l.epoch {
		return it
	}
	gone, stale := w.against(l, key, it)
	if gone {
		return nil
	}
	spared := *it
	spared.position, spared.lifetime = l.epoch, it.staleFrom(stale)
	return &spared
}

// logKey is the log's key in the store. Keys of the HTTP face begin with a host.
const logKey = "\x00sweeps"

// logTTL is how long the log lives at most, where its store does not forget
// sooner. A log that is lost is begun anew, and takes everything with it.
const logTTL = 10 * 365 * 24 * time.Hour

// meetLog reads the log before anybody asks for anything: the first requests of a
// process do not wait for it then, and those of a fleet do not all begin it. It is
// called once the engine is complete.
func (e *engine[V]) meetLog() {
	if e.Store == nil {
		return
	}
	e.behind(func() {
		if e.followLog(e.open, &gate.Budget{Left: e.EngineTimeout}, e.NearTTL/2); e.sweeper.log.Load() == nil {
			e.sweeper.asked.Store(0) // the first who needs the store asks it himself
		}
	})
}

// followLog reads the log, where there is one, if what is known of it is older than
// age.
func (e *engine[V]) followLog(ctx context.Context, budget *gate.Budget, age time.Duration) {
	turn := e.logTurn(ctx, budget, age)
	if turn == nil {
		return
	}
	defer turn.end()
	entry, err := e.readLog(ctx, budget)
	turn.took(ctx, budget, entry, err)
}

func (e *engine[V]) readLog(ctx context.Context, budget *gate.Budget) (Entry, error) {
	return gate.Ask(ctx, e.store, logKey, budget, func(ctx context.Context) (Entry, error) {
		return e.Store.Get(ctx, e.engineKey(logKey))
	})
}

// A logTurn is held by the one who reads the log.
type logTurn[V any] struct {
	engine *engine[V]
	asked  instant
	over   bool
}

// logTurn waits for the turn to read the log. It returns nil if that need not be
// read, or not any more: if no store has one, or what is known of it was, when the wait
// began, no older than age.
func (e *engine[V]) logTurn(ctx context.Context, budget *gate.Budget, age time.Duration) *logTurn[V] {
	w := &e.sweeper
	began := e.clock.now()
	old := func() bool {
		asked := instant(w.asked.Load())
		return asked == 0 || began > durations.Add(asked, age)
	}
	if !w.on() || e.Store == nil || !old() || budget.Left <= 0 {
		return nil
	}
	// One reads, and who comes meanwhile waits for that: with a log that is too
	// old, what they read of the store would be trusted for no time at all.
	select {
	case w.reading <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	turn := &logTurn[V]{engine: e, asked: e.clock.now()}
	switch silent := instant(w.silent.Load()); {
	case silent > 0 && (silent > began || !old()):
		// It was the store's silence that was waited for. That is as old as it is
		// long: who asked again would be silent to the next, one after another.
		budget.Left -= turn.asked - began
	case old():
		return turn
	}
	turn.end()
	return nil
}

// end gives the turn back. To do so again does nothing.
func (t *logTurn[V]) end() {
	if !t.over {
		t.over = true
		<-t.engine.sweeper.reading
	}
}

// took takes in what the store has said of the log, and ends the turn. Only if
// there was none it asks the store for more.
func (t *logTurn[V]) took(ctx context.Context, budget *gate.Budget, entry Entry, err error) {
	defer t.end()
	e, w := t.engine, &t.engine.sweeper
	switch {
	case err == nil:
		e.learn(entry)
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrCorrupt):
		if err = e.beginLog(ctx, budget); !errors.Is(err, ErrFenced) {
			break
		}
		if entry, err = e.readLog(ctx, budget); err == nil { // another has begun it
			e.learn(entry)
		}
	}
	if ctx.Err() != nil {
		return // who asked has left, and knows nothing
	}
	silent := instant(0)
	if err != nil {
		silent = e.clock.now()
		e.noAnswer(logKey, fmt.Errorf("reading the log of invalidations: %w", err))
	}
	// A store that does not answer cannot say that anything was swept.
	w.silent.Store(int64(silent))
	w.asked.Store(int64(max(1, t.asked)))
}

// followLogAhead is followLog for a flight that is about to read its key too: that
// comes in one call with the log where the store answers for both.
func (r *run[V]) followLogAhead(ctx context.Context, age time.Duration) {
	e := r.engine
	store, ok := e.Store.(BatchGetter)
	if !ok {
		e.followLog(ctx, &r.budget, age)
		return
	}
	turn := e.logTurn(ctx, &r.budget, age)
	if turn == nil {
		return
	}
	defer turn.end()
	var log, key *storeReply
	_, err := e.readMany(ctx, store, []string{logKey, r.key}, &r.budget, func(i int, reply *storeReply) {
		switch {
		case i == 1:
			key = reply
		case reply.err == nil:
			// At once: nobody else's key waits for this one's server.
			turn.took(ctx, &r.budget, reply.entry, nil)
		default:
			log = reply
		}
	})
	if !turn.over {
		if log == nil {
			// What the key's server says is not believed without the log's.
			log, key = &storeReply{err: err}, nil
		}
		turn.took(ctx, &r.budget, log.entry, log.err)
	}
	r.ahead = key
}

// learn takes the log in as the store has it.
func (e *engine[V]) learn(entry Entry) {
	l, ok := logOf(entry)
	if !ok {
		l = &sweepLog{Since: entry.Epoch, epoch: entry.Epoch}
	}
	e.apply(l)
}

// logOf decodes an entry. It returns false for what is no log: nobody knows
// what was in its place, and nothing that was loaded before is to be trusted.
func logOf(entry Entry) (*sweepLog, bool) {
	l := &sweepLog{epoch: entry.Epoch}
	err := json.Unmarshal(entry.Value, l)
	return l, err == nil && entry.Kind == KindValue && l.Since > 0
}

// apply makes l the log that this process knows, and holds what is new in it
// against the near tier.
func (e *engine[V]) apply(l *sweepLog) {
	// Two may bring one log at a time, the process's own sweep and the store's
	// notice of it. Neither returns before the log has taken its effect.
	e.sweeper.applying.Lock()
	defer e.sweeper.applying.Unlock()
	e.adopt(l)
}

// adopt is apply for who holds applying.
func (e *engine[V]) adopt(l *sweepLog) {
	w := &e.sweeper
	now := e.clock.now()
	known := w.log.Load()
	if known != nil && known.epoch >= l.epoch {
		return
	}
	heard := map[uint64]instant{}
	if known != nil {
		for _, s := range known.Sweeps {
			heard[s.Epoch] = s.heard
		}
	}
	for i := range l.Sweeps {
		if at, ok := heard[l.Sweeps[i].Epoch]; ok {
			l.Sweeps[i].heard = at
		} else {
			l.Sweeps[i].heard = now
		}
	}
	e.mu.Lock()
	w.log.Store(l)
	for key, f := range e.flights {
		e.sweepFlight(w, key, f)
	}
	e.mu.Unlock()
	if known != nil && l.Since <= known.epoch && len(l.Sweeps) == 0 {
		return
	}
	// What is put from here on has been held against the new log, under the
	// lock; what was put before is met here.
	e.near.Revise(w.spare)
}

// sweepFlight holds the log of w against what a flight is loading. e.mu is held.
func (e *engine[V]) sweepFlight(w *sweeper[V], key string, f *flight[V]) {
	if f.abort == nil {
		return // it loads nothing, and what it has read is looked at again
	}
	published := f.state.Load().published
	it := published
	if it == nil {
		it = &item[V]{position: f.position} // its tags are not known yet: see publish
	}
	gone, stale := w.against(w.log.Load(), key, it)
	switch {
	case !gone && stale == forever:
	case published != nil:
		delete(e.flights, key) // its readers have it, and nobody joins them
		f.disowned = f.disowned || gone
		f.unlisted, f.invalidations = true, e.invalidations
	default:
		// Softly or not: it is nobody's yet, and who has asked since the sweep
		// waits here too.
		if f.disowned = true; !f.last {
			f.abort(errInvalidated)
		}
	}
}

// beginLog writes a log where there is none. There must be one before the first
// load, so that the first sweep knows what was loaded before it from what was
// loaded before a log was lost.
//
// The lease is for one of those who find none at one time. It is not worth a
// long wait: a log that has nothing in it counts all that was loaded before as
// swept, and so loses nothing that it is written over.
func (e *engine[V]) beginLog(ctx context.Context, budget *gate.Budget) error {
	lease, _, err := e.leaseLog(ctx, budget, durations.Add(e.clock.now(), budget.Left/2))
	if err != nil && !errors.Is(err, ErrHeld) {
		return err
	}
	l, err := e.commitLog(ctx, budget, nil)
	if lease != nil {
		e.giveBack(ctx, logKey, budget, lease)
	}
	if err == nil {
		e.apply(l)
	}
	return err
}

// writeLog adds sweeps to the log in the store, and takes it in.
//
// A store has no compare-and-swap, so this is done under the log's lease: a
// commit is worth something only if the lease has held until after it, or
// somebody who has read the log before it may write over it after it. Without a
// Locker, or with one that does not answer, that may happen when two processes
// sweep at the same moment.
func (e *engine[V]) writeLog(ctx context.Context, budget *gate.Budget, more []sweep) error {
	until := durations.Add(e.clock.now(), e.MaxWait)
	for try := 1; ; try++ {
		lease, asked, err := e.leaseLog(ctx, budget, until)
		if err != nil {
			return err
		}
		l, err := e.commitLog(ctx, budget, more)
		if lease != nil {
			held := e.clock.now() < durations.Add(asked, e.LeaseTTL)
			// The locker's word counts; where there is none, the clock's.
			lost := e.giveBack(ctx, logKey, budget, lease)
			if err == nil && (errors.Is(lost, ErrLeaseLost) || lost != nil && !held) {
				err = ErrLeaseLost
			}
		}
		switch {
		case err == nil:
			e.apply(l)
			return nil
		case try == maxRefused, !errors.Is(err, ErrFenced) && !errors.Is(err, ErrLeaseLost):
			return err
		}
	}
}

// leaseLog waits for the log's lease; nil if there is no locker, or none that
// answers. Its time runs from asked on.
func (e *engine[V]) leaseLog(ctx context.Context, budget *gate.Budget, until instant) (lease Lease, asked instant, err error) {
	began := e.clock.now()
	if e.Locker == nil {
		return nil, began, nil
	}
	for {
		asked = e.clock.now()
		lease, err := gate.Ask(ctx, e.locker, logKey, budget, func(ctx context.Context) (Lease, error) {
			return e.Locker.TryAcquire(ctx, e.engineKey(logKey), e.LeaseTTL)
		})
		switch now := e.clock.now(); {
		case err == nil:
			return lease, asked, nil
		case ctx.Err() != nil:
			return nil, 0, ctx.Err()
		case !errors.Is(err, ErrHeld):
			e.noAnswer(logKey, fmt.Errorf("acquiring the lease of the log of invalidations: %w", err))
			return nil, asked, nil // the store must do
		case now >= until:
			return nil, 0, err
		default:
			select {
			case <-time.After(min(until-now, pollInterval(now-began))):
			case <-ctx.Done():
				return nil, 0, ctx.Err()
			}
		}
	}
}

// commitLog writes the log as it is there with more at its end; with nothing more
// only if there is none.
func (e *engine[V]) commitLog(ctx context.Context, budget *gate.Budget, more []sweep) (*sweepLog, error) {
	var epoch uint64
	entry, err := gate.Ask(ctx, e.writes, logKey, budget, func(ctx context.Context) (entry Entry, err error) {
		entry, epoch, err = e.Store.Claim(ctx, e.engineKey(logKey))
		return entry, err
	})
	if err != nil {
		return nil, err
	}
	l, ok := logOf(entry)
	switch {
	case !ok:
		l = &sweepLog{Since: epoch}
	case len(more) == 0:
		return l, nil // another has begun it
	}
	l = l.and(epoch, more)
	value, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	return l, gate.AskErr(ctx, e.writes, logKey, budget, func(ctx context.Context) error {
		return e.Store.Commit(ctx, e.engineKey(logKey), Entry{Kind: KindValue, Value: value, Epoch: epoch, TTL: logTTL})
	})
}

// sweepsWithin returns how many sweeps this process has heard of lately.
func (e *engine[V]) sweepsWithin(d time.Duration) (n int) {
	if l := e.sweeper.log.Load(); l != nil {
		since := e.clock.now() - d
		for i := range l.Sweeps {
			if l.Sweeps[i].heard > since {
				n++
			}
		}
	}
	return n
}

// sweep invalidates, in the store and so for the fleet, and here.
func (e *engine[V]) sweep(ctx context.Context, what []sweep) error {
	if len(what) == 0 {
		return nil
	}
	if e.Store != nil {
		err := e.writeLog(ctx, &gate.Budget{Left: e.EngineTimeout}, what)
		if err == nil {
			return nil
		}
		e.count.engineErrors.Add(1)
		e.sweepHere(what)
		return fmt.Errorf("writing the log of invalidations: %w", err)
	}
	e.sweepHere(what)
	return nil
}

// sweepHere is sweep for this process alone.
func (e *engine[V]) sweepHere(what []sweep) {
	if e.Store == nil {
		// Held from the reading of the log on: of two sweeps that began with the
		// same log, one would be lost.
		e.sweeper.applying.Lock()
		defer e.sweeper.applying.Unlock()
		l := e.sweeper.log.Load()
		if l == nil {
			l = &sweepLog{}
		}
		// The positions of the loads that are under way are below this epoch.
		e.adopt(l.and(e.nextEpoch(), what))
		return
	}
	// The log's epochs are the store's. These sweeps are held against what is
	// here, and forgotten; so a load goes on whose tags are not known yet.
	for i := range what {
		what[i].Epoch, what[i].heard = 1<<64-1, e.clock.now()
	}
	now := &sweeper[V]{traits: e.sweeper.traits}
	now.log.Store(&sweepLog{Sweeps: what, epoch: 1<<64 - 1})
	e.mu.Lock()
	for key, f := range e.flights {
		e.sweepFlight(now, key, f)
		if offered := f.state.Load().offered; offered != nil && now.spare(key, offered) == nil {
			f.change(func(s *flightState[V]) { s.offered, s.recalled = nil, true })
		}
	}
	// No log will meet at their end those that are read already and in no map any
	// more, be it only now: this does.
	e.invalidations++
	for _, of := range e.witnesses {
		for _, w := range of {
			w.seen++
		}
	}
	e.mu.Unlock()
	e.near.Revise(func(key string, it *item[V]) *item[V] {
		spared := now.spare(key, it)
		if spared != nil && spared != it {
			spared.position = it.position
		}
		return spared
	})
}
