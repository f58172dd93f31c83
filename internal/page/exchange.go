package page

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/spool"
	"github.com/go-chi/chi/v5"
)

// This file runs the handler for a key, detached from the request that began the flight. The
// handler writes into a spool for all callers, and its header decides their audience.

// errUnselected: the handler's 304 is not about the stored response (RFC 9111 section 4.3.4).
var errUnselected = errors.New("bellwether: handler's 304 is not about the stored response")

// fetch is the load: it runs the handler, with validation.
func (c *call) fetch(ctx context.Context, a Attempt, r *http.Request) (items.Product, error) {
	l := c.newLoad(ctx, a)
	switch it := a.Present; {
	case it == nil && c.signpost != nil:
		responseOf(c.signpost).vary.built.of(c.target.needsVariant).add(c.key, c.m.cache.Now())
	case it != nil && it.Kind == driver.KindValue && !c.unanswerable():
		l.asks = c.m.condition(responseOf(it), c.target.Request)
	}
	p, err := l.carry(r)
	if !errors.Is(err, errUnselected) {
		return p, err
	}
	return c.newLoad(ctx, a).carry(r)
}

// An exchange is a run of the handler. It belongs to the goroutine of the handler and the load. Functions that run on
// another goroutine, such as at the end of the load's context, read body, and fields that no longer change.
type exchange struct {
	load
	run     int           // the number of the owner's run
	own     *http.Request // the handler's
	writer  writer
	cancel  context.CancelCauseFunc // ends the handler's context
	running context.Context         // the handler's
	// unlink separates the handler from the load's end. The result is false if one of them has ended.
	unlink   func() bool
	decision *decision                   // nil before the handler has written its header
	body     atomic.Pointer[spool.Spool] // the decision's
	ended    bool                        // the load has its result, and the handler goes on
	records  sync.WaitGroup              // see endWithRecord
	err      error                       // the handler's
}

// carry runs the handler in an exchange, and returns the product.
func (l load) carry(r *http.Request) (items.Product, error) {
	x := &exchange{load: l}
	x.writer = writer{m: l.m, to: x, header: make(http.Header)}
	x.link(r)
	defer x.records.Wait()
	defer x.cancel(nil)
	x.own = x.m.forEverybody(x.running, r)
	if x.asks != nil {
		httpcache.SetConditions(x.own.Header, x.asks.header)
	}
	returned := false
	defer func() {
		if !returned && !x.ended { // a Goexit: only this place can report whose failure it is
			x.end(x.publishFailure(x.err))
		}
	}()
	x.serve()
	returned = true
	x.unlink()
	switch {
	case x.ended:
		if p, ok := errors.AsType[*fault.PanicError](x.err); ok && p.Value != http.ErrAbortHandler {
			x.m.cache.OnError(x.owner.key, x.err) // the rebuild has ended without this error
		}
		return items.Product{}, &fault.NoResult{}
	case x.err != nil:
		return items.Product{}, x.publishFailure(x.err)
	case x.decision == nil:
		return items.Product{}, errUnselected
	case !x.decision.outcome.keeps():
		return items.Product{}, &fault.NoResult{} // the flight has given up the load
	}
	return x.keep(x.decision)
}

// link gives the handler a context, which ends with the load unless the response is one client's.
func (x *exchange) link(r *http.Request) {
	// The parent is the request's context: the rebuild's still has the values that detach has replaced.
	// Within adds the load: a call of the same cache lends the slot, and learns if it asks for this response.
	x.running, x.cancel = context.WithCancelCause(x.m.cache.Within(r.Context(), x.ctx, chi.RouteCtxKey))
	x.run = x.owner.begin()
	// The load's end ends the body, even if the handler ignores its context. The body ends first, and
	// without readers ends the handler: a handler that heeds its context has not made a complete body.
	x.unlink = context.AfterFunc(x.ctx, func() {
		cause := context.Cause(x.ctx)
		if body := x.body.Load(); body != nil { // a later body is not published
			body.CloseWithError(cause)
		}
		if cause == fault.ErrRebuildTimeout && x.owner.personal() {
			x.pauseOwner() // its next requests may hang as well
		}
		x.cancel(cause)
	})
}

// pauseOwner begins the pause of the owner's client if a stale page can answer its requests meanwhile.
func (x *exchange) pauseOwner() {
	if x.fwd == httpcache.FwdStale && x.spare() != nil {
		x.m.pauseRefresh(x.owner.key, x.owner.place.client)
	}
}

func (x *exchange) serve() {
	fault.Run(func() error {
		x.owner.next.ServeHTTP(&x.writer, x.own)
		x.writer.settle()
		return nil
	}, func(err error) {
		if x.err = err; err == nil {
			x.err = x.writer.shortfall()
		}
		if x.decision == nil {
			return
		}
		s := x.stream()
		s.trailer = trailerOf(x.writer.header, s.trailers)
		if x.err == nil {
			x.err = s.body.Close()
		} else {
			s.body.CloseWithError(x.err)
		}
	})
}

func (x *exchange) stream() *stream { return x.decision.response.live }

// interim hands an interim response to the call's goroutine, which alone may use its ResponseWriter.
func (x *exchange) interim(status int, h http.Header) {
	h = h.Clone() // the handler goes on with its own map
	select {
	case x.owner.aside <- func() { x.owner.inform(status, h) }:
	default:
	}
}

// begin decides about the answer, and offers the response to its audience.
func (x *exchange) begin(h heading) {
	now := time.Now()
	a, ok := x.answer(h, now)
	if !ok {
		return // a 304 about another response: fetch asks again, without conditions
	}
	x.decision = x.decide(a, now)
	body := &x.stream().body
	body.OnIdle(func() {
		body.account.close()
		// The handler has no reader; or its load has ended, which is the cause then.
		x.cancel(context.Cause(x.ctx))
	})
	// The owner's place comes before the first byte: it must not lose the start of an unkept body.
	x.owner.attach(x.run, body.Spool)
	x.body.Store(body.Spool)
	x.offer()
	if a.validated {
		for _, piece := range x.asks.about.body {
			x.take(piece)
		}
	}
}

// answer judges the handler's response, or after a 304 the stored response with the fields of the 304. The result is
// false if the 304 is not about the stored response.
func (x *exchange) answer(h heading, now time.Time) (a answer, ok bool) {
	asked := x.owner.target.Request
	asked.Asked = x.own
	said, rules := httpcache.CanonicalHeader(h.header), x.m.options.Rules
	a = answer{heading: h, personal: said, trailers: trailerNames(said)}
	a.header = said
	if h.status != http.StatusNotModified || x.asks == nil {
		a.judged = httpcache.Judge(asked, h.status, said, x.sent, now, rules)
		return a, true
	}
	if !httpcache.Selects(x.asks.header, said) {
		return a, false
	}
	about := x.asks.about
	a.validated, a.fwdStatus = true, h.status
	a.status, a.guessed, a.announced = about.status, about.guessed, about.body.Len()
	a.header, a.personal, a.judged = x.asks.freshened(asked, said, x.sent, now, rules)
	return a, true
}

func (x *exchange) take(p []byte) (int, error) {
	body := &x.stream().body
	if body.passes(len(p)) {
		x.overflow()
	}
	return body.Write(p)
}

func (x *exchange) flush() {
	if x.decision != nil { // nil: a 304 for no client
		x.stream().body.Flush()
	}
}

func (x *exchange) afterRun(f func()) { context.AfterFunc(x.running, f) }

// overflow ends the load of a body over the limit. The body leaves the load first: the wait for a client's place
// must not become the end of all bodies by RebuildTimeout.
func (x *exchange) overflow() {
	s := x.stream()
	if !x.ended && !x.unlink() {
		// The load has already ended. A handler that ignores this decides nothing more about the
		// key, and keeps its slot of MaxRebuilds until it returns.
		s.body.CloseWithError(context.Cause(x.ctx))
		return
	}
	if s.audience != audience.Owner {
		// A handler can write faster than a herd wakes up. Without its place before the spool drops
		// the start, each waiting caller would need a call of its own. A client that does not even take
		// its interim response delays the others here, and once more as a reader.
		placed, cancel := context.WithTimeout(x.running, spool.Patience)
		x.attempt.AwaitReaders(placed.Done())
		cancel()
	}
	switch {
	case x.ended:
	case x.ctx.Err() != nil:
		x.ended = true // during the wait: the load has its result, and the body its readers
	case s.body.excess == reasonMemory:
		// From here on the body belongs to its readers, and ends with the last reader.
		x.end(&fault.NoResult{Err: failureOf(x.decision.response.status)}) // the limit proves nothing about the key
	default:
		x.endWithRecord(s.body.excess)
	}
}

// offer gives the decided response to its audience while the handler writes it. If Publish has to
// read the log of invalidations, the handler waits within its WriteHeader.
func (x *exchange) offer() {
	d, key := x.decision, x.owner.key
	res := d.response
	if x.owner.target.Credentials && tellsAudience(res.status) {
		x.m.learnOpenToAll(key, d.audience == audience.Everyone)
	}
	if d.outcome == yieldsToStale {
		x.breakOff(x.publishFailure(serverError(res.status)))
		return
	}
	if !x.attempt.Publish(x.ctx, res, d.joinableUntil(x.m.cache.Now()), d.answers) {
		x.breakOff(fault.ErrInvalidated) // the flight has given up the load
		return
	}
	if d.outcome.keeps() {
		return
	}
	x.outliveLoad()
	switch d.outcome {
	case keepsRecord:
		x.endWithRecord(res.reason)
	case failsForAll:
		x.end(serverError(res.status))
	default:
		x.pauseOwner()
		nothing := &fault.NoResult{Failed: d.audience == audience.Alike, Err: failureOf(res.status)}
		if spare := x.spare(); spare != nil && spare.Failures > 0 && x.recovers(res.status) {
			x.endFailures(spare, nothing)
			return
		}
		x.end(nothing)
	}
}

// recovers reports whether a response with that status, which the cache does not keep, ends the failures of the key's
// response: only an error permits the stale-if-error window. A 4xx may be about the request, and an answer to a personal
// request about the client, while the handler fails for all others.
func (x *exchange) recovers(status int) bool {
	return !x.owner.personal() && (status < 400 || status == http.StatusNotFound || status == http.StatusGone)
}

// outliveLoad separates the body from the load, which ends now: the body ends with its audience.
func (x *exchange) outliveLoad() {
	x.unlink()
	if x.decision.audience == audience.Owner {
		x.owner.follow(x.cancel)
		return
	}
	late := time.AfterFunc(x.m.options.RebuildTimeout, func() {
		x.stream().body.CloseWithError(fault.ErrRebuildTimeout)
		x.cancel(fault.ErrRebuildTimeout)
	})
	context.AfterFunc(x.running, func() { late.Stop() })
}

// breakOff breaks the body off, and ends the load at once: the callers do not wait for the handler.
// A handler whose load the flight has given up keeps its slot of MaxRebuilds.
func (x *exchange) breakOff(err error) {
	x.stream().body.CloseWithError(err)
	if cause := context.Cause(x.ctx); cause == nil || errors.Is(cause, fault.ErrInvalidated) {
		x.end(err)
	}
}

// end ends the load without a value, while the handler goes on for its readers.
func (x *exchange) end(err error) {
	x.ended = true
	x.attempt.Tell(items.Product{}, err)
}

// endWithRecord ends the load with the record of a response that the cache does not keep.
func (x *exchange) endWithRecord(reason string) {
	x.endBeside(func() (items.Product, error) {
		took := x.stream().decidedAt.Sub(x.sent)
		return x.record(x.decision, &Response{kind: uncacheable, reason: reason}, x.m.uncacheableFor(took)), nil
	})
}

// endFailures ends the load with nothing, and takes the failures from the key's response, here and in the store.
func (x *exchange) endFailures(spare *Item, nothing error) {
	x.endBeside(func() (items.Product, error) {
		cache := x.m.cache
		cache.Put(x.ctx, x.owner.key, responseOf(spare), spare.Windows(cache.Now()), spare.Position, spare)
		return items.Product{}, nothing
	})
}

// endBeside ends the load with write's result. Its requests to the store run beside the handler.
func (x *exchange) endBeside(write func() (items.Product, error)) {
	x.ended = true
	x.records.Go(func() {
		var p items.Product
		fault.Run(func() (err error) { // an adapter, or OnError, may panic or exit
			p, err = write()
			return err
		}, func(err error) { x.attempt.Tell(p, err) })
	})
}

// publishFailure publishes the handler's failure to its audience, and returns the load's error. The failure may be
// about the client if the call is personal, or if the key's responses are not for everyone by default. Then it answers
// only calls of the same client, and the others ask again. A response to serve in place of the error goes to the client.
func (x *exchange) publishFailure(err error) error {
	_, unread := err.(serverError) // no reader has any of the response
	personal, spare := x.owner.personal(), x.spare()
	switch {
	case x.decision != nil && !unread: // broken off, for all its readers
		if personal {
			return &fault.NoResult{Failed: true, Err: err}
		}
		return err
	case !personal && x.sharesByDefault():
		return err
	case spare != nil && x.fwd == httpcache.FwdStale:
		return err // all callers get the stale response, and one of them tries again after a pause
	}
	to := audience.Alike
	if x.attempt.Excluded {
		to = audience.Everyone
	}
	failed := &Response{kind: uncacheable, live: &stream{owner: &x.owner.place, audience: audience.Alike, failure: err}, spare: spare}
	if x.attempt.Publish(x.ctx, failed, x.m.cache.Now()+1, to) {
		return &fault.NoResult{Failed: true, Err: err}
	}
	return err
}
