// Package page is the HTTP face of a cache: it answers requests with the responses of the
// handlers that it wraps, as a shared cache by RFC 9111. What is below it, the tiers, the
// flights and the log of invalidations, it knows as a [Cache].
//
// The story of a request: serve.go sends it on its way, and request.go finds out what it asks for.
// hot.go or serve.go brings it to an item, and reply.go or live.go writes that. exchange.go runs
// the handler for a key: load.go has what it starts from, writer.go and stream.go the way of the
// response, decision.go what it comes to, and verdict.go who may have it. past.go has the requests
// that go to the handler for themselves. What is kept under a key is in response.go.
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

// A Cache is what the HTTP face asks of the cache below it.
type Cache interface {
	// Now is the present moment on the cache's clock.
	Now() durations.Instant

	// Near returns what the near tier has for a key, nil if nothing, and the moment of that.
	Near(key string) (*Item, durations.Instant)
	// Fits reports whether the near tier has room for an item. What is too heavy for the
	// whole tier is on its way out.
	Fits(it *Item) bool
	// HoldsNear reports whether the near tier has the item, as far as its epoch tells.
	HoldsNear(key string, it *Item) bool
	// Remember keeps something in the near tier that no store has.
	Remember(key string, res *Response, w items.Windows)

	// Hit answers from the near tier if that needs no flight. If it does not, the item is what
	// may be served when a client's patience ends, or nil. early is for what is fresh, and to be
	// rebuilt before it expires.
	Hit(key string, w Want) (it *Item, early, ok bool)
	// Wait answers the call by way of the key's flight, which it begins if there is none.
	Wait(w *Waiting, b Binder)
	// Refresh begins a flight for a key of which the item is fresh, unless there is one, and
	// does not wait for it.
	Refresh(ctx context.Context, key string, it *Item, client string, b Binder)
	// Landing waits for the end of the flight that has published the item, and returns why
	// there is nothing to be had of it, if there is not.
	Landing(ctx context.Context, key string, it *Item) error
	// Within is the context of a request, with the values of the rebuild that is made for it,
	// but for the value of the key own, which is the request's.
	Within(request, rebuild context.Context, own any) context.Context

	// Apart begins work on a key without a flight.
	Apart(key string, budget *gate.Budget) Apart
	// Spare is what the log of sweeps leaves of an item, nil if that is nothing.
	Spare(key string, it *Item) *Item
	// Put keeps a response that no flight of its key has made, where the log was known up to
	// position when it was made. If over is not nil, it does so only in the place of that.
	Put(ctx context.Context, key string, res *Response, w items.Windows, position uint64, over *Item)
	// Replace is Put over an item, behind the caller. It calls done when that is over.
	Replace(key string, over *Item, res *Response, w items.Windows, done func())
	// Witness begins to count the invalidations of a key in this process.
	Witness(key string) Witness

	// Invalidate drops keys, and returns an error, or nil, for each.
	Invalidate(ctx context.Context, keys []string) []error
	// Sweep writes sweeps into the log.
	Sweep(ctx context.Context, sweeps []sweeplog.Sweep) error
	// LogKeepsLines reports whether no process can write over another's line of the log.
	LogKeepsLines() bool
	// SweptSince is how many sweeps this process has heard of since then.
	SweptSince(then durations.Instant) int

	// CountHit counts a hit, and tells of it.
	CountHit(ctx context.Context, key string)
	// CountStale counts something stale that was served.
	CountStale()
	// CountLoadFailure counts a handler's error that is an answer.
	CountLoadFailure()
	// Watched reports whether anybody wants to be told of requests.
	Watched() bool
	// Tell tells of a request's end.
	Tell(ctx context.Context, s observe.Serve)
	// OnError tells of a failure that no client hears of.
	OnError(key string, err error)
}

// A Waiting is a request that waits for a key, and its answer when the wait is over.
type Waiting struct {
	Ctx   context.Context
	Key   string
	Stale *Item // what may be served when its patience ends, nil if there is nothing
	Want  Want
	// Budget is the request's, nil if it has none yet; in the end, that of the flight that it has joined.
	Budget *gate.Budget

	Answer Answer
	Err    error // why there is no answer
	Early  bool  // the answer is fresh, and to be rebuilt already
	Served observe.Serve
}

// An Answer is an item with the way it came.
type Answer struct {
	Item      *Item
	Flown     bool // it came from a flight
	Collapsed bool // the request hung on a flight that another had begun
	// Live is the flight if the item is still being made. The request counts among its callers
	// until it has its place among the readers, and says Left.
	Live interface{ Left() }
}

// A Binder gives the load of a flight that begins now. It is asked while the client is still there,
// and only for the request that begins the flight.
type Binder interface{ Bind() Loader }

// A Loader is a load: it may publish its response on the flight before it returns.
type Loader func(ctx context.Context, a Attempt) (*Response, error)

// An Attempt is one load of a flight, with what it starts from. The flight goes on while a load
// runs that it has given up on.
type Attempt interface {
	// Key is the flight's.
	Key() string
	// Present is the latest item that is known for the key, nil if there is none.
	Present() *Item
	// Position is up to where the log of sweeps was known when the load began.
	Position() uint64
	// Second tells that the first caller has waited for another load, whose audience it was
	// not of.
	Second() bool
	// Publish answers the flight's callers that are of the audience and come before until, with a
	// response that the load is still making. It returns false if the flight has given up on
	// the load.
	Publish(ctx context.Context, res *Response, until durations.Instant, to audience.Audience) bool
	// Tell ends the load with its result before it returns.
	Tell(res *Response, err error)
	// AwaitReaders waits until all callers have their places among the readers, or done.
	AwaitReaders(done <-chan struct{})
	// SetWindows says how long what the load tells or returns is served and kept. It comes
	// before that, on the same goroutine or ordered by the load.
	SetWindows(w items.Windows)
}

// An Apart is work on a key without a flight. An engine that has not answered is not asked again.
type Apart interface {
	// Find returns what the near tier or the store knows of the key, nil if that is nothing.
	Find(ctx context.Context) *Item
	// Draft begins a response. Its epoch is claimed now, so that an invalidation meanwhile
	// fences it off.
	Draft(ctx context.Context) Draft
}

// A Draft is a response that is made without a flight.
type Draft interface {
	// Keep keeps it, unless something later is known of the key.
	Keep(res *Response, w items.Windows)
	// End ends the draft, kept or not.
	End()
}

// A Witness counts the invalidations of a key while somebody works on a response that no flight
// makes, and that no store is to have.
type Witness interface {
	// Keep keeps the response unless the key was invalidated more often than times, or a flight
	// makes something newer.
	Keep(res *Response, w items.Windows, times int)
	// End ends the count.
	End()
}
