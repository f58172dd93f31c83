// Package observe has the events and counts that a cache reports to its observers.
//
// The cache is a Cache or a Middleware of package bellwether. Options.Observers takes the observers.
package observe

import (
	"context"
	"fmt"
	"time"
)

// An Observer is a set of functions called by a cache. Nil functions are skipped.
//
// The cache calls them on its callers' goroutines and its own, without a lock held. They have to be
// quick and safe for concurrent use. Calls of Breaker and Evict do not overlap: they run on one
// goroutine of the cache, and Close waits for it. While 65,536 of them wait, further ones are left out.
//
// The functions may call the cache, with exceptions that would wait for themselves: Close, Get for a key
// whose rebuild waits for the function, and, from Rebuild and Error, a Get that loads while its rebuild
// holds the last slot of MaxRebuilds. A panic ends only the function's call, and Options.OnError gets
// it, except a panic of Error. A runtime.Goexit, as of a test's FailNow, ends the goroutine of the call: a
// caller's own, or a flight, whose callers get ErrGoexit. Durations are by this process's monotonic clock.
type Observer struct {
	// Attach is called once, when the cache is made, before all other functions of the Observer. stats
	// returns the cache's Stats, also after Close. Close calls detach, if not nil, at its end. Serve and Herd
	// may follow, for calls that end later.
	// Several caches may call Attach of the same Observer at the same time. An error, a panic or a Goexit of
	// Attach prevents the cache: earlier Observers are detached, and New or NewMiddleware panics with an
	// error that wraps Attach's.
	Attach func(stats func() Stats) (detach func(), err error)

	// Hit is called for each call answered at once by a fresh value of the near tier. It runs in
	// every near hit; Stats counts hits at no cost.
	Hit func(ctx context.Context, key string)
	// Serve is called at the end of each other call, with or without an answer. With a Middleware
	// this is the end of the request. Requests outside the cache (other methods, upgrades,
	// no-store) are not reported.
	Serve func(ctx context.Context, s Serve)

	// Rebuild is called when a load begins, and returns a context for the load, derived from ctx,
	// and a function to call at the load's end. Either may be nil. A Middleware's handler sees the
	// values of the context.
	Rebuild func(ctx context.Context, key string) (context.Context, func(Rebuild))
	// Caller returns a record of a call that joins a rebuild, such as its span, for [Rebuild.Callers]. It runs
	// on the goroutine of the call, while the call's context is valid. Without Rebuild it is not called.
	Caller func(ctx context.Context) any
	// Herd is called once for each flight with an answered caller, when the flight's last caller
	// leaves. It runs on the goroutine of that caller or of the flight.
	Herd func(h Herd)

	// Breaker is called when the breaker of an engine changes its state.
	Breaker func(engine Engine, from, to BreakerState)
	// Evict is called with the key of each value that leaves the near tier for other values, or is larger than
	// the near tier, and with the value's size there. Expired values are not reported.
	Evict func(key string, bytes int)
	// Error is called with the errors of Options.OnError, except failed loads, which Rebuild reports.
	Error func(key string, err error)
}

// A Serve is the end of one call.
type Serve struct {
	// Key is the key of the call. With a Middleware it is the key of the URL.
	Key string
	// Way is the way of the answer.
	Way Way
	// Waited is the duration of the call, without the time to write a response. For WayBypass
	// it is only the wait before the handler's run, usually 0.
	Waited time.Duration
	// Err is the reason for a missing value, or nil.
	Err error
}

// A Way is the way a call was served, in the words of RFC 9211.
type Way uint8

const (
	// WayHit is a fresh value in this process.
	WayHit Way = iota
	// WayStale is a stale value.
	WayStale
	// WayCollapsed is a flight begun by another call.
	WayCollapsed
	// WayMiss is a flight begun by the call, or no answer if the call found neither value nor flight.
	WayMiss
	// WayBypass is the handler's answer to this request alone, such as an unshareable response.
	WayBypass
)

// String returns hit, stale, collapsed, miss or bypass.
func (w Way) String() string {
	return word(w, "hit", "stale", "collapsed", "miss", "bypass")
}

// A Rebuild is one load with its outcome.
type Rebuild struct {
	Key string
	// Outcome is the result of the rebuild.
	Outcome Outcome
	// Took is the time from the start of the load to its value in the store.
	Took time.Duration
	// Err is the failure of the load, or nil. ErrNotFound is no failure.
	Err error
	// Takeover reports that the rebuild replaced another holder after the end of its lease.
	Takeover bool
	// LeaseLost reports that the lease of this rebuild ended meanwhile, or that another holder took it.
	LeaseLost bool
	// Callers are the results of this observer's Caller for the calls collapsed on the flight so
	// far, at most [MaxCallers].
	Callers []any
}

// MaxCallers is the number of calls per flight for which the cache keeps the result of
// [Observer.Caller]. Further calls are only counted.
const MaxCallers = 32

// An Outcome is the result of a rebuild.
type Outcome uint8

const (
	// OutcomeValue is a value, or ErrNotFound, for all waiting callers.
	OutcomeValue Outcome = iota
	// OutcomeFailed is a failure of the load.
	OutcomeFailed
	// OutcomeFenced is a commit refused by the store, after a later epoch or an invalidation of the key.
	OutcomeFenced
	// OutcomeAbandoned is an abandoned load: its key was invalidated, its lease was lost, another
	// process's value came first (Options.Hedge), or the cache was closed.
	OutcomeAbandoned
)

// String returns value, failed, fenced or abandoned.
func (o Outcome) String() string { return word(o, "value", "failed", "fenced", "abandoned") }

// A Herd is the calls answered by one flight in this process.
type Herd struct {
	Key string
	// Callers is the number of calls, at least 1.
	Callers int
	// Waited is the sum of the calls' waiting times. A request that waits for the run that names its variant, and then
	// for its variant, has its first wait in both herds.
	Waited time.Duration
	// WakeLag is the time from the commit to the last caller's answer. It is 0 if there was no commit while
	// callers waited. After this process's own commit it counts from the store's reply. After another's
	// commit it counts from Made of the store's notice, or, if a look found the value, from the end of the
	// load, by the value's age. Both moments are before the commit and as exact as the adapter knows its
	// engine's clock, so WakeLag is too long rather than too short. It never begins before the flight's wait.
	WakeLag time.Duration
	// Loaded reports that the answer came from the flight's own load, and not from the store.
	Loaded bool
	// Err is the failure given to the callers, or nil.
	Err error
}

// An Engine names the engine behind a breaker.
type Engine uint8

const (
	// EngineStore is Options.Fleet.Store.
	EngineStore Engine = iota
	// EngineLocker is Options.Fleet.Locker. An Options.Fleet.Engine never changes it: its elections are
	// EngineWrites.
	EngineLocker
	// EngineWatch is Watch of Options.Fleet.Locker. While it is down, waiters poll.
	EngineWatch
	// EngineWrites is the writes to Options.Fleet.Store: claims, commits and invalidations. While
	// only writes are down, each process loads for itself.
	EngineWrites
)

// String returns store, locker, watch or writes.
func (e Engine) String() string { return word(e, "store", "locker", "watch", "writes") }

// A BreakerState is the state of an engine's breaker.
type BreakerState uint8

const (
	// BreakerClosed lets all calls through.
	BreakerClosed BreakerState = iota
	// BreakerHalfOpen lets one call through, to test the engine.
	BreakerHalfOpen
	// BreakerOpen lets no call through.
	BreakerOpen
)

// String returns closed, half-open or open.
func (s BreakerState) String() string { return word(s, "closed", "half-open", "open") }

func word[N ~uint8](n N, words ...string) string {
	if int(n) < len(words) {
		return words[n]
	}
	return fmt.Sprint(uint8(n))
}
