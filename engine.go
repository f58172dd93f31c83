package bellwether

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/later"
	"github.com/bellwether-go/bellwether/internal/lookout"
	"github.com/bellwether-go/bellwether/internal/near"
	"github.com/bellwether-go/bellwether/internal/observers"
	"github.com/bellwether-go/bellwether/internal/records"
	"github.com/bellwether-go/bellwether/internal/slots"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is the data of a cache below both faces, and its keys in the engines. lifecycle.go makes and ends it.

type engine struct {
	settings
	face
	engines
	history
	life
	near       *near.Tier
	shards     *shards // the flights, by key
	slots      *slots.Slots
	sweeps     *sweeplog.Replica // nil: no log of sweeps
	lookout    *lookout.Lookout
	unanswered *later.Keys // whose invalidation is repeated
	count      counters
	observers  observers.Set
	onState    func(key, state string) // tells a test that the key's flight enters a state; set before the first use
}

// A face is what the face above knows of the values. The functions are safe for concurrent use.
type face struct {
	size      func(key string, value any) int // bytes of a value in the near tier
	answers   func(any) bool                  // whether a value is an answer, and not a record on the way to one; nil: each is
	marshal   func(any) ([]byte, error)
	unmarshal func([]byte) (any, error)
	// traits are the tags of an item with a value, and whether the value only leads to other values. Nil: no log of sweeps.
	traits func(*items.Item) (tags []string, signpost bool)
	lossy  error // what the codec changes of the values, for OnError; nil: nothing
}

func (f *face) isAnswer(value any) bool { return f.answers == nil || f.answers(value) }

// The engines are Store and Locker behind their gates.
type engines struct {
	store    *gate.Gate    // of Store's reads
	writes   *gate.Gate    // of Store's writes: reads may succeed while writes fail
	locker   *gate.Gate    // of Locker
	watches  *gate.Gate    // of Locker's Watch: the rest of Locker may answer without it
	fencer   driver.Fencer // Store, if it is one
	notified bool          // Store is a Notifier
	epoch    atomic.Uint64 // the last epoch, without a store
}

// A history is what this process knows of past commits and loads.
type history struct {
	commits records.Commits
	builds  records.Times // builds of this process, and of others that it waited for
	trips   records.Times // from standing for election to the load
	hedges  records.Hedges
	origin  records.Origin
}

// A life is the time of a cache between its making and its end, and the goroutines in it.
type life struct {
	clock   items.Clock     // begins with the cache
	running sync.WaitGroup  // all goroutines, except loads and calls of observers
	open    context.Context // for work without a caller; ends under all shards' locks, before ended is set
	shut    context.CancelFunc

	mu    sync.Mutex    // guards ended; no shard's lock is taken with it
	ended chan struct{} // nil until the first close, which closes it at its end; a wait in a sync.Once hangs in synctest
}

// start runs f on a goroutine of the cache. A panic there is of user code, such as a method of an engine's error, and
// has no caller to reach.
func (e *engine) start(f func()) {
	e.running.Go(func() {
		if err := fault.Guard(func() error { f(); return nil }); err != nil {
			e.OnError("", err)
		}
	})
}

// behind runs f on a goroutine of the cache, unless the cache is closed.
func (e *engine) behind(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended == nil {
		e.start(f)
	}
}

func (e *engine) engineKey(key string) string {
	if e.Namespace == "" {
		return key
	}
	return e.Namespace + ":" + key
}

// ownName is the name, in the engines, of a key of the cache's own, such as the log of sweeps. The keys
// begin with a zero byte, where a caller's key has the namespace's colon, or a host.
func (e *engine) ownName(key string) string { return e.Namespace + key }

// ownKey is the reverse of engineKey. It returns false for a key of another namespace.
func (e *engine) ownKey(engineKey string) (key string, ok bool) {
	if e.Namespace == "" {
		return engineKey, true
	}
	return strings.CutPrefix(engineKey, e.Namespace+":")
}

// A storeKey makes the requests about a key to the store, within a budget: see reading.go, entry.go and commit.go.
type storeKey struct {
	key    string
	engine *engine
	budget *gate.Budget // the time that the requests may lose to silent engines
}

// noAnswer reports an engine's silence. The end of the call by Close or desertion is not silence.
func (k *storeKey) noAnswer(ctx context.Context, doing string, err error) {
	if k.engine.open.Err() == nil && !gate.Ended(ctx) {
		k.engine.countNoAnswer(k.key, &keyError{doing, k.key, err})
	}
}

func (e *engines) nextEpoch() uint64 { return e.epoch.Add(1) }

func (e *engine) snapshot() observe.Stats {
	c := &e.count
	return observe.Stats{
		Hits: c.hits.sum(), Stale: c.stale.Load(), Misses: c.misses.Load(),
		Collapsed: c.collapsed.Load(), WaitTimeouts: c.waitTimeouts.Load(),
		Loads: c.loads.Load(), LoadFailures: c.loadFailures.Load(), StoreHits: c.storeHits.Load(),
		Waits: c.waits.Load(), Fenced: c.fenced.Load(), LeasesLost: c.leasesLost.Load(),
		Hedges: c.hedges.Load(), Degraded: c.degraded.Load(), EngineErrors: c.engineErrors.Load(),
		Flights: int(c.flights.Load()), NearBytes: e.near.Bytes(),
		StoreUp: e.store.Closed() && e.writes.Closed(), LockerUp: e.locker.Closed(),
	}
}

// countNoAnswer reports a call without an answer. A call that the breaker has not made, or has ended, is no news: the
// calls that opened the breaker and its probes are reported.
func (e *engine) countNoAnswer(key string, err error) {
	e.count.engineErrors.Add(1)
	if !errors.Is(err, gate.ErrNotAsked) && !errors.Is(err, gate.ErrSilent) {
		e.OnError(key, err)
	}
}
