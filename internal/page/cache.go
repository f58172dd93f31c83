// Package page is the HTTP face of a cache by RFC 9111: it answers requests with the responses of the
// handlers that it wraps. The tiers, flights and invalidations below are a [Cache] to it.
//
// A request: serve.go routes it, request.go reads it, hot.go or serve.go finds its item, and reply.go or
// live.go writes the reply. exchange.go runs the handler for a key: load.go prepares the run, writer.go
// and stream.go carry the response, decision.go makes the result, and verdict.go decides its audience.
// bypass.go has the bypassing requests, unsafe.go and credentials.go two kinds of them, and response.go the values
// under the keys.
package page

import (
	"context"

	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
	"github.com/bellwether-go/bellwether/observe"
)

// A Cache is the part of the cache below that the HTTP face uses.
type Cache interface {
	// Now is the present moment on the cache's clock.
	Now() durations.Instant

	// Near returns the near tier's item for a key, nil if there is none, and the present moment.
	Near(key string) (*Item, durations.Instant)
	// HoldsNear reports whether the near tier has the item, by its epoch, or has none in place of an item
	// whose life has ended.
	HoldsNear(key string, it *Item) bool
	// Remember keeps a response in the near tier, and in no store.
	Remember(key string, res *Response, w items.Windows)

	// Hit answers from the near tier if the answer needs no flight. If ok is false, it may be served
	// when the client's patience ends, or is nil. early: the item is fresh, and its rebuild is due.
	Hit(key string, w Want) (it *Item, early, ok bool)
	// Wait answers the call by way of the key's flight, and begins a flight if there is none.
	Wait(w *Waiting, b Binder)
	// Refresh begins a flight for a key with a fresh item, unless there is one, and does not wait.
	Refresh(ctx context.Context, key string, it *Item, client string, b Binder)
	// Within returns the request's context with its rebuild's values, except the value of own.
	Within(request, rebuild context.Context, own any) context.Context

	// Access begins work on a key without a flight.
	Access(key string, budget *gate.Budget) Access
	// Put keeps a response that no flight of its key has made. position is the position of the log
	// that was known when the response was made. With over, Put only replaces that item.
	Put(ctx context.Context, key string, res *Response, w items.Windows, position uint64, over *Item)
	// Replace is Put over an item, in the background. It calls done at the end.
	Replace(key string, over *Item, res *Response, w items.Windows, done func())

	// InvalidateAll drops keys, and returns an error or nil for each.
	InvalidateAll(ctx context.Context, keys []string) []error
	// Sweep writes sweeps into the log.
	Sweep(ctx context.Context, sweeps []sweeplog.Sweep) error
	// LogKeepsLines reports whether no process can overwrite another process's line of the log.
	LogKeepsLines() bool
	// SweptSince is the number of sweeps that this process has heard of since then.
	SweptSince(then durations.Instant) int

	// CountHit counts a hit, and reports it to the observers.
	CountHit(ctx context.Context, key string)
	CountStale()
	// Watched reports whether there is an observer of requests.
	Watched() bool
	// Tell reports a request's end to the observers.
	Tell(ctx context.Context, s observe.Serve)
	// OnError reports a failure that no client sees.
	OnError(key string, err error)
}

// A Waiting is a request's wait for a key, and then the answer.
type Waiting struct {
	Ctx   context.Context
	Key   string
	Stale *Item // served when the request's patience ends; nil: nothing to serve
	Want  Want
	// Began is when the request began its first wait. MaxWait and Patience are for all its waits.
	Began instant
	// Budget is the request's, and then the joined flight's.
	Budget *gate.Budget

	Answer Answer
	Err    error // why there is no answer
	Early  bool  // the answer is fresh, and its rebuild is due
	Served observe.Serve
}

// An Answer is an item with the way it came.
type Answer struct {
	Item      *Item
	Flown     bool // it came from a flight
	Collapsed bool // the request joined another request's flight
	// Live is the flight of an item in progress. The request, once it is a reader, calls Leave.
	Live Live
}

// Live is a flight whose load has published a response and still makes it.
type Live interface {
	// Leave takes the request off the flight's callers.
	Leave()
	// Landing waits for the flight's end, unless the flight takes no more callers. It returns the
	// flight's result, nil if there is none, or ctx's error.
	Landing(ctx context.Context) (*Item, error)
}

// A Binder gives the load of a flight. The flight calls Bind only for the request that begins it,
// while that request's client is still there.
type Binder interface{ Bind() Loader }

// A Loader is a load: it may publish a response on the flight before the return.
type Loader func(ctx context.Context, a Attempt) (items.Product, error)

// An Attempt is a load of a flight, with its initial state.
type Attempt struct {
	Present  *Item  // the latest known item of the key, nil if there is none
	Position uint64 // the position of the log of sweeps that was known when the load began
	Excluded bool   // the first caller was outside the audience of an earlier load
	Flight
}

// A Flight is the flight of a load. It may give up the load and go on.
type Flight interface {
	// Publish answers the flight's callers with a response that the load is still making: the callers
	// of the audience that come before until. The result is false if the flight has given up the load.
	Publish(ctx context.Context, response any, until durations.Instant, to audience.Audience) bool
	// Tell ends the load with its result before the load returns.
	Tell(p items.Product, err error)
	// AwaitReaders waits until all callers have their places among the readers, or for done.
	AwaitReaders(done <-chan struct{})
}

// An Access is work on a key without a flight. It asks a silent engine only once.
type Access interface {
	// Find returns the item of the key in the near tier or the store, nil if there is none.
	Find(ctx context.Context) *Item
	// Draft begins a response. The epoch is claimed now, so an invalidation fences the response off.
	Draft(ctx context.Context) Draft
}

// A Draft is a response that is made without a flight.
type Draft interface {
	// Keep keeps the response, unless the key has something later.
	Keep(res *Response, w items.Windows)
	// Forgive lets Keep ignore one invalidation in a cache without a store: the draft's own request has made it.
	Forgive()
	// End ends the draft, kept or not.
	End()
}
