package bellwether

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/near"
	"github.com/bellwether-go/bellwether/internal/records"
	"github.com/bellwether-go/bellwether/internal/slots"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
	"github.com/bellwether-go/bellwether/internal/tellings"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is the cache below both faces, from its making to its end, with its tiers, engines and keys.

type engine[V any] struct {
	settings
	clock     items.Clock
	near      *near.Tier[*items.Item[V]]
	size      func(key string, value V) int // bytes of a value in the near tier
	answers   func(V) bool                  // whether a value is an answer, and not a record on the way to an answer
	fails     func(V) bool                  // whether a value says that its load has failed
	marshal   func(V) ([]byte, error)
	unmarshal func([]byte) (V, error)
	store     *gate.Gate // of Store's reads
	writes    *gate.Gate // of Store's writes: reads may succeed while writes fail
	locker    *gate.Gate // of Locker
	push      *gate.Gate // of Locker's Watch: the rest of Locker may answer without it
	commits   records.Commits
	builds    records.Times // builds of this process, and of others that it waited for
	trips     records.Times // from standing for election to the load
	hedges    records.Hedges
	origin    records.Origin
	slots     *slots.Slots
	lookout   lookout
	count     counters
	running   sync.WaitGroup // all goroutines, except loads and calls of observers
	notified  bool           // Store is a Notifier
	observers observers
	entered   func(key string, p phase) // of a test, see enter; set before the first use
	tellings  tellings.Queue
	pending   pendingSet
	sweeps    *sweeplog.Replica                                   // nil: no log of sweeps
	traits    func(*items.Item[V]) (tags []string, signpost bool) // for sweeps
	unlooked  atomic.Int64                                        // flights and batches before their first look
	open      context.Context                                     // for work without a caller; ends before closed is set
	shut      context.CancelFunc
	fencer    driver.Fencer // Store, if it is one

	shards *shards[V]
	epoch  atomic.Uint64 // the last epoch, without a store

	mu     sync.Mutex // guards closed; no shard's lock is taken with it
	closed bool
}

func newEngine[V any](s settings, size func(string, V) int, marshal func(V) ([]byte, error), unmarshal func([]byte) (V, error)) *engine[V] {
	c := items.Clock{Base: time.Now()}
	e := &engine[V]{
		settings:  s,
		clock:     c,
		marshal:   marshal,
		unmarshal: unmarshal,
		observers: newObservers(s.Observers),
		slots:     slots.New(s.MaxRebuilds, s.MaxQueued),
		shards:    newShards[V](),
	}
	e.open, e.shut = context.WithCancel(context.Background())
	e.store, e.locker, e.push = e.newGate(observe.EngineStore), e.newGate(observe.EngineLocker), e.newGate(observe.EngineWatch)
	e.writes = e.store.Beside(e.tellBreaker(observe.EngineWrites))
	e.fencer, _ = s.Store.(driver.Fencer)
	e.lookout.store, _ = s.Store.(driver.BatchGetter)
	if s.Engine != nil {
		e.locker = e.writes // one engine, whose elections are writes
	}
	e.near, e.size = near.New(c.Base, s.NearBytes, e.evicted()), size
	e.answers = func(V) bool { return true }
	e.fails = func(V) bool { return false }
	e.attach()
	return e
}

func (e *engine[V]) newGate(kind observe.Engine) *gate.Gate {
	return gate.New(e.EngineTimeout, e.tellBreaker(kind))
}

var breakerStates = [...]observe.BreakerState{gate.Closed: observe.BreakerClosed, gate.HalfOpen: observe.BreakerHalfOpen, gate.Open: observe.BreakerOpen}

func (e *engine[V]) tellBreaker(kind observe.Engine) func(from, to gate.State) {
	return func(from, to gate.State) {
		if len(e.observers.breaker) == 0 {
			return
		}
		e.tellings.Add(func() {
			for _, f := range e.observers.breaker {
				e.tell("", func() { f(kind, breakerStates[from], breakerStates[to]) })
			}
		})
	}
}

func (e *engine[V]) evicted() func(string, *items.Item[V]) {
	if len(e.observers.evict) == 0 {
		return nil
	}
	return func(key string, it *items.Item[V]) {
		bytes := int(it.Weight())
		e.tellings.Add(func() {
			for _, f := range e.observers.evict {
				e.tell(key, func() { f(key, bytes) })
			}
		})
	}
}

// behind runs f on a goroutine of the engine, unless the engine is closed.
func (e *engine[V]) behind(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.running.Go(f)
	}
}

func (e *engine[V]) engineKey(key string) string {
	if e.Namespace == "" {
		return key
	}
	return e.Namespace + ":" + key
}

// ownName is the name, in the engines, of a key of the cache's own, such as the log of sweeps. The keys
// begin with a zero byte, where a caller's key has the namespace's colon, or a host.
func (e *engine[V]) ownName(key string) string { return e.Namespace + key }

// ownKey is the reverse of engineKey. It returns false for a key of another namespace.
func (e *engine[V]) ownKey(engineKey string) (key string, ok bool) {
	if e.Namespace == "" {
		return engineKey, true
	}
	return strings.CutPrefix(engineKey, e.Namespace+":")
}

func (e *engine[V]) snapshot() observe.Stats {
	c := &e.count
	return observe.Stats{
		Hits: c.hits.sum(), Stale: c.stale.Load(), Misses: c.misses.Load(),
		Collapsed: c.collapsed.Load(), WaitTimeouts: c.waitTimeouts.Load(),
		Loads: c.loads.Load(), LoadFailures: c.loadFailures.Load(), StoreHits: c.storeHits.Load(),
		Waits: c.waits.Load(), Fenced: c.fenced.Load(), LeasesLost: c.leasesLost.Load(),
		Hedges: c.hedges.Load(), Degraded: c.degraded.Load(), EngineErrors: c.engineErrors.Load(),
		Flights: int(c.flights.Load()), NearBytes: e.near.Bytes(),
		StoreUp: e.store.Answers() && e.writes.Answers(), LockerUp: e.locker.Answers(),
	}
}

func (e *engine[V]) close() {
	// The flights end first, so that no engine's silence is reported for them, see run.noAnswer. And while
	// a key can get a flight, behind runs the flight's batch.
	e.shards.whole(e.shut, func(s *shard[V]) {
		s.closed = true
		for _, w := range s.witnesses {
			for ; w != nil; w = w.next {
				if w.flight != nil {
					w.flight.cancel(ErrClosed)
				}
			}
		}
	})
	e.mu.Lock()
	first := !e.closed
	e.closed = true
	e.mu.Unlock()
	e.running.Wait()
	if first {
		e.near.Close()
	}
	e.tellings.Close()
	if first {
		e.detach()
	}
}

func (e *engine[V]) noAnswer(key string, err error) {
	e.count.engineErrors.Add(1)
	e.OnError(key, err)
}
