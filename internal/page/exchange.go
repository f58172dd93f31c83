package page

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file runs the handler for a key: detached from the request that began
// it, writing into a spool that everybody reads, with the decision who may read
// it made when the header is written.

// errUnselected is the end of an exchange whose handler has answered 304 about
// something else than what is stored (RFC 9111 section 4.3.4).
var errUnselected = errors.New("bellwether: handler's 304 is not about the stored response")

// fetch is the HTTP face's load: it runs the handler and returns what is to be
// kept under the key. What is there already is validated.
func (m *Middleware) fetch(ctx context.Context, a Attempt, c *call, next http.Handler, r *http.Request) (*Response, error) {
	before := m.fallback(a.Key(), a.Present())
	l := m.newLoad(ctx, a, c, before)
	if before != nil && !c.excluded {
		l.asks = m.condition(before.Value, l.request())
	}
	res, err := newExchange(l).carry(next, r)
	if !errors.Is(err, errUnselected) {
		return res, err
	}
	return newExchange(m.newLoad(ctx, a, c, before)).carry(next, r)
}

// An exchange is a run of the handler. It is the handler's goroutine's, which is the load's; the
// end of the load meets it on another, which has the decision when decided is closed.
type exchange struct {
	load
	run     int           // of the owner's
	own     *http.Request // the handler's
	writer  writer
	cancel  context.CancelCauseFunc // has the handler end
	running context.Context         // the handler's
	// unlink makes the end of the load no longer the handler's. It returns false if
	// one of the two has ended before.
	unlink   func() bool
	decided  chan struct{} // closed when decision is set
	decision *decision     // nil before the handler has written its header
	// told is set when the load has its result although the handler goes on, and
	// telling is what is still to be done for that.
	told    bool
	telling sync.WaitGroup
	err     error // the handler's
}

// newExchange returns an exchange that has not begun.
func newExchange(l load) *exchange {
	x := &exchange{load: l, decided: make(chan struct{})}
	x.writer = writer{m: l.m, to: x, header: make(http.Header)}
	return x
}

// carry runs the handler and returns what is to be kept of the exchange.
func (x *exchange) carry(next http.Handler, r *http.Request) (*Response, error) {
	x.link(r)
	defer x.telling.Wait()
	defer x.cancel(nil)
	x.own = x.m.forEverybody(x.running, r)
	if x.asks != nil {
		httpcache.SetConditions(x.own.Header, x.asks.header)
	}
	returned := false
	defer func() {
		if !returned { // a Goexit, of which nobody else tells whose failure it is
			x.attempt.Tell(nil, x.failure(x.err))
		}
	}()
	x.serve(next, x.own)
	returned = true
	x.unlink()
	if x.failed() {
		x.m.cache.CountLoadFailure()
	}
	switch {
	case x.err != nil:
		if p, ok := errors.AsType[*fault.PanicError](x.err); ok && x.told && p.Value != http.ErrAbortHandler {
			x.m.cache.OnError(x.attempt.Key(), x.err) // the rebuild has ended well before
		}
		return nil, x.failure(x.err)
	case x.decision == nil:
		return nil, errUnselected
	case x.told, !x.decision.keeps():
		return nil, fault.ErrNothing // its audience has it
	}
	return x.keep(x.decision)
}

// link gives the handler its context, which ends with the load until it is known that the
// response is one client's alone.
func (x *exchange) link(r *http.Request) {
	// Of the request's own context, not of the rebuild's: that one still has
	// what detach has replaced. But it is the load's: who asks the same cache from
	// within lends its slot, and is told that it asks for what it makes.
	x.running, x.cancel = context.WithCancelCause(x.m.cache.Within(r.Context(), x.ctx, chi.RouteCtxKey))
	x.run = x.owner.begin()
	// The load's end is the body's too, also if the handler is deaf to its
	// context. The body's comes first, and ends the handler by itself where nobody
	// reads: a handler that heeds its context, and returns, has not made a
	// complete one.
	x.unlink = context.AfterFunc(x.ctx, func() {
		cause := context.Cause(x.ctx)
		select {
		case <-x.decided:
			x.spool().CloseWithError(cause)
		default: // what is decided from here on is not published
		}
		x.cancel(cause)
	})
}

// serve runs the handler to its end.
func (x *exchange) serve(next http.Handler, r *http.Request) {
	fault.Run(func() error {
		next.ServeHTTP(&x.writer, r)
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

// stream is the response that is decided, as its readers have it.
func (x *exchange) stream() *stream { return x.decision.recording.stream }

// spool is the body of the response that is decided.
func (x *exchange) spool() *spool.Spool { return x.stream().body }

// interim hands an interim response to the owner's goroutine.
func (x *exchange) interim(status int, h http.Header) { x.owner.hint(status, h) }

// begin makes the response, says whether it is shared, and lets everybody know.
func (x *exchange) begin(h heading) {
	now := time.Now()
	if h.status != http.StatusNotModified || x.asks == nil {
		x.settle(x.answered(h, now), now)
		return
	}
	if !httpcache.Selects(x.asks.header, httpcache.CanonicalHeader(h.header)) {
		return // about something else: fetch asks again, without conditions
	}
	x.settle(x.confirmed(h, now), now)
	for _, piece := range x.asks.about.body {
		x.take(piece)
	}
}

// settle decides about an answer, and shows it to those who may have it.
func (x *exchange) settle(a answer, now time.Time) {
	x.decision = x.decide(a, now)
	x.spool().OnIdle(func() {
		x.decision.recording.account.close()
		// Nobody is there for whom the handler could go on; or its load has ended,
		// which is the cause then.
		x.cancel(context.Cause(x.ctx))
	})
	// The owner's place is taken before a byte is written: it must not lose the
	// start of a body that nobody keeps.
	x.owner.attach(x.run, x.spool())
	close(x.decided)
	x.offer()
}

// take adds to the body.
func (x *exchange) take(p []byte) (int, error) {
	if x.decision.recording.passes(len(p)) {
		x.overflow()
	}
	return x.decision.recording.Write(p)
}

// flush sends the header on.
func (x *exchange) flush() {
	if x.decision != nil { // else it is a 304 that nobody gets
		x.spool().Flush()
	}
}

// overflow ends the load of a body that passes its limit.
func (x *exchange) overflow() {
	s := x.stream()
	if s.audience != audience.Owner {
		// A handler can write faster than a herd wakes up. Whoever waited for
		// this response has a place at its start before that is dropped:
		// else each of them would need a call of its own.
		x.attempt.AwaitReaders(x.running.Done())
	}
	switch {
	case x.told:
	case !x.unlink():
		// The load has ended before. A handler that is deaf to that, or has
		// returned and writes all the same, says nothing more of the key; the
		// former keeps its place among MaxRebuilds until it returns.
		s.body.CloseWithError(context.Cause(x.ctx))
	case s.excess == reasonMemory:
		// From here on the body is its readers'; it ends with the last of them.
		x.fail(fault.ErrNothing) // it says nothing about the key
	default:
		x.forgo(s.excess)
	}
}

// offer gives the response that is decided to those who may have it, while it is
// being made. If the log of invalidations has to be read for that, the handler
// waits for it as they do, within its WriteHeader.
func (x *exchange) offer() {
	d := x.decision
	failure := serverError(d.content().status)
	switch {
	case x.backed && !d.validated && httpcache.IsServerError(int(failure)):
		x.refuse(x.failure(failure))
	case !x.failsForAll(d):
		x.share()
	case x.publish(audience.Owner):
		// The error's text may be about the client. That the handler fails is for all.
		x.unlink()
		x.owner.follow(x.cancel)
		x.fail(failure)
	}
}

// share publishes a response to its audience. If nothing of it is kept, that ends the load.
func (x *exchange) share() {
	d := x.decision
	res := d.content()
	if x.request().Credentials && tellsAudience(res.status) {
		x.m.learnAuthorized(x.attempt.Key(), d.audience == audience.Everyone)
	}
	to, remembered := d.audience, x.provesUncacheable(d)
	if d.checked || remembered || to != audience.Everyone && x.attempt.Second() {
		// All callers get the response, and those outside its audience go on to the
		// handler. A first private page or error does not send them there: it may be
		// about one client, and the key's next response for all.
		to = audience.Everyone
	}
	if !x.publish(to) || d.keeps() {
		return
	}
	x.unlink()
	if d.audience == audience.Owner {
		x.owner.follow(x.cancel)
	} else {
		// The load has its result below, and no longer bounds what its audience reads.
		late := time.AfterFunc(x.m.options.RebuildTimeout, func() {
			x.spool().CloseWithError(fault.ErrRebuildTimeout)
			x.cancel(fault.ErrRebuildTimeout)
		})
		context.AfterFunc(x.running, func() { late.Stop() })
	}
	if remembered {
		x.forgo(res.reason)
	} else {
		x.fail(fault.ErrNothing)
	}
}

// publish shows the response to the callers of an audience. It returns false if the flight has
// given up on the load.
func (x *exchange) publish(to audience.Audience) bool {
	d := x.decision
	ok := x.attempt.Publish(x.ctx, d.response, d.joinableUntil(x.m.cache.Now()), to)
	if !ok {
		x.refuse(fault.ErrInvalidated)
	}
	return ok
}

// refuse breaks the body off, and fails the load at once: how long the handler
// goes on is no matter to those who wait. Of a load that has been given up on they
// know that already, and a handler that is deaf to its end keeps its place among
// MaxRebuilds.
func (x *exchange) refuse(err error) {
	x.spool().CloseWithError(err)
	if cause := context.Cause(x.ctx); cause == nil || errors.Is(cause, fault.ErrInvalidated) {
		x.fail(err)
	}
}

// forgo ends the load with a response that is not kept, while its handler goes on
// for those who read it. That is written into the store, which the handler does
// not wait for before it returns.
func (x *exchange) forgo(reason string) {
	x.told = true
	x.telling.Go(func() {
		var res *Response
		fault.Run(func() error { // an adapter, or OnError, may not return
			res = x.remember(x.decision, reason)
			return nil
		}, func(err error) { x.attempt.Tell(res, err) })
	})
}

// fail ends the load with err, while its handler goes on.
func (x *exchange) fail(err error) {
	x.told = true
	x.attempt.Tell(nil, err)
}

// failure returns the load's failure, by what the handler has failed with. If that may be
// about the client, calls of the same client get it here, and the others ask again: the
// call is personal, or responses to the key are not for all by default. Where there is
// something to serve in the place of an error, the client gets that.
func (x *exchange) failure(err error) error {
	_, unread := err.(serverError) // nobody has anything of the response
	switch {
	case x.told:
		return err // the load has its result
	case x.decision != nil && !unread: // it has broken off, for all its readers
		if x.owner.personal() {
			return &fault.Own{Err: err}
		}
		return err
	case !x.owner.personal() && x.sharesByDefault():
		return err
	case x.backed && x.fwd == httpcache.FwdStale:
		return err // all get what is stale, and one of them tries again after a pause
	}
	to := audience.Alike
	if x.attempt.Second() {
		to = audience.Everyone
	}
	failed := &Response{kind: uncacheable, live: &stream{owner: &x.owner.place, audience: audience.Alike, failure: err}}
	if x.backed {
		failed.instead = x.spare
	}
	if x.attempt.Publish(x.ctx, failed, x.m.cache.Now()+1, to) {
		return &fault.Own{Err: err}
	}
	return err
}

// failed reports whether the load has brought an error of the handler's, in a
// response, to those who wait for it. To the rebuild this is an answer like others;
// where it has ended as a failure, it is counted there.
func (x *exchange) failed() bool {
	d := x.decision
	return d != nil && !x.backed && !d.validated && httpcache.IsServerError(d.content().status) &&
		(x.told || x.err == nil && x.ctx.Err() == nil)
}
