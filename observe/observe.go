// Package observe is what a cache tells those who watch it: who was served and how, what
// a rebuild came to, how a herd fared, how the engines do. The cache is a Cache or a
// Middleware of package bellwether, whose Options take the observers.
package observe

import (
	"context"
	"fmt"
	"time"
)

// An Observer is told what a cache does, by those of its functions that are not
// nil. They are called on the goroutines that do it, without a lock held, so
// they have to be quick, and safe for concurrent use. Breaker and Evict are called one
// after another on one goroutine of the cache's, which Close waits for. They may call the cache, but
// not Close, nor, where a rebuild of a key waits for them, Get for that key: they
// would wait for themselves. A panic of theirs ends nothing but their own call;
// Options.OnError hears of it, unless it was Error's. A runtime.Goexit of theirs,
// as of a test's FailNow, ends the goroutine that it is called on: a caller's own,
// or a flight, whose callers get ErrGoexit.
// Durations are by this process's monotonic clock.
type Observer struct {
	// Attach is called once, when the cache is made, before all other functions of the
	// Observer. It gets the function that reads the cache's Stats, which may be called at
	// any time, also after Close. It returns the function that Close calls at its end, when
	// the Observer has been told everything; this function may be nil. Other caches may call
	// Attach of the same Observer too, at the same time.
	//
	// With an error, a panic or a Goexit of Attach there is no cache: the Observers before
	// it are detached, and New or NewMiddleware panics with an error that wraps Attach's.
	Attach func(stats func() Stats) (detach func(), err error)

	// Hit is told of each call that a fresh value of the near tier has answered
	// at once. It is on the path of all of them. For counting them alone there is
	// Stats, which costs nothing.
	Hit func(ctx context.Context, key string)
	// Serve is told of each other call when it has its answer, or ends without.
	// With a Middleware that is the end of the request, and the requests that
	// never come to the cache (other methods, upgrades, no-store) are not among
	// them.
	Serve func(ctx context.Context, s Serve)

	// Rebuild is told that a load begins, and returns the context that it gets
	// in the place of ctx, derived from that, and who is to be told of its end.
	// Either may be nil. A Middleware's handler sees that context's values.
	Rebuild func(ctx context.Context, key string) (context.Context, func(Rebuild))
	// Caller returns what a rebuild is to know of a call that has come to wait
	// for it, such as its span: [Rebuild.Callers]. It is called on that call's
	// goroutine, while its context is still its own.
	Caller func(ctx context.Context) any
	// Herd is told of each flight that has answered anybody, once: when the last
	// of its callers goes, on that one's goroutine or the flight's.
	Herd func(h Herd)

	// Breaker is told when the breaker before an engine changes its state.
	Breaker func(engine Engine, from, to BreakerState)
	// Evict is told of each value that had to leave the near tier for others,
	// and of its size there. Those that expire are none. While 65,536 evictions wait
	// for it, it is not told of more.
	Evict func(key string, bytes int)
	// Error is told what Options.OnError is told, but for loads that fail: Rebuild is
	// told of these.
	Error func(key string, err error)
}

// A Serve is one call's end.
type Serve struct {
	// Key is the call's; with a Middleware that of its URL.
	Key string
	// Way is how the call was served.
	Way Way
	// Waited is how long it took, without the time to write a response.
	Waited time.Duration
	// Err is why there was no value, or nil.
	Err error
}

// A Way is how a call was served, in the words of RFC 9211.
type Way uint8

const (
	// WayHit is by a fresh value that this process had.
	WayHit Way = iota
	// WayStale is by a stale value.
	WayStale
	// WayCollapsed is by a flight that another call had begun.
	WayCollapsed
	// WayMiss is by a flight of the call's own; or not at all, if it found
	// neither a value nor a flight.
	WayMiss
	// WayBypass is by the handler, for its request alone, because the response
	// was not for sharing.
	WayBypass
)

// String returns the word for it: hit, stale, collapsed, miss or bypass.
func (w Way) String() string {
	return word(w, "hit", "stale", "collapsed", "miss", "bypass")
}

// A Rebuild is one load with what came of it.
type Rebuild struct {
	Key string
	// Outcome is what came of it.
	Outcome Outcome
	// Took is the time from the load's beginning until its value was in the
	// store.
	Took time.Duration
	// Err is the load's failure, or nil. That there is no such thing
	// (ErrNotFound) is none.
	Err error
	// Takeover tells that it was begun in the place of another holder whose
	// lease has run out.
	Takeover bool
	// LeaseLost tells that another took its own lease meanwhile.
	LeaseLost bool
	// Callers are what this observer's Caller has returned for the calls that
	// have collapsed on the flight so far, for the first [MaxCallers] of them.
	Callers []any
}

// MaxCallers is how many calls of a flight are remembered by what
// [Observer.Caller] returns. The others are counted only.
const MaxCallers = 32

// An Outcome is what came of a rebuild.
type Outcome uint8

const (
	// OutcomeValue is a value, or that there is none, for all who waited.
	OutcomeValue Outcome = iota
	// OutcomeFailed is a failure of the load.
	OutcomeFailed
	// OutcomeFenced is a commit that the store refused: something later is
	// there, or the key was invalidated.
	OutcomeFenced
	// OutcomeAbandoned is a load that was given up on: its key was invalidated,
	// or its lease lost, or another process's value came first (Options.Hedge), or
	// the cache was closed.
	OutcomeAbandoned
)

// String returns the word for it: value, failed, fenced or abandoned.
func (o Outcome) String() string { return word(o, "value", "failed", "fenced", "abandoned") }

// A Herd is the calls that one flight has answered in this process.
type Herd struct {
	Key string
	// Callers is how many they are, at least 1.
	Callers int
	// Waited is their waiting time, all added up.
	Waited time.Duration
	// WakeLag is the time from the commit until the last of them had its answer;
	// 0 if there was no commit while they waited. Of this process's own commit
	// it counts from the store's reply. Of another's it counts from the moment
	// that the store's notice names (Notice.Made), or, if the value was found by
	// looking, from its age as the store tells it, which begins with the load's
	// end. Both are before the commit, so that it is rather too long than too
	// short; and it is as exact as the adapter's knowledge of its engine's
	// clock. A lag that would have begun before the flight waited counts from
	// there.
	WakeLag time.Duration
	// Loaded tells that the flight's own load made the answer. Else it came from
	// the store.
	Loaded bool
	// Err is the failure that they were answered with, or nil.
	Err error
}

// An Engine names what is behind a breaker.
type Engine uint8

const (
	// EngineStore is Options.Fleet.Store.
	EngineStore Engine = iota
	// EngineLocker is Options.Fleet.Locker.
	EngineLocker
	// EngineWatch is Options.Fleet.Locker's Watch. While it is down, waiters poll.
	EngineWatch
	// EngineWrites is what Options.Fleet.Store is given to write: claims, commits and
	// invalidations. While it alone is down, each process loads for itself.
	EngineWrites
)

// String returns the word for it: store, locker, watch or writes.
func (e Engine) String() string { return word(e, "store", "locker", "watch", "writes") }

// A BreakerState is how the breaker before an engine stands.
type BreakerState uint8

const (
	// BreakerClosed lets all calls through.
	BreakerClosed BreakerState = iota
	// BreakerHalfOpen lets one through, to see whether the engine is back.
	BreakerHalfOpen
	// BreakerOpen lets none through.
	BreakerOpen
)

// String returns the word for it: closed, half-open or open.
func (s BreakerState) String() string { return word(s, "closed", "half-open", "open") }

// word is a small number's word.
func word[N ~uint8](n N, words ...string) string {
	if int(n) < len(words) {
		return words[n]
	}
	return fmt.Sprint(uint8(n))
}
