package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file runs the handler for a key: detached from the request that began
// it, writing into a spool that everybody reads, with the decision who may read
// it made when the header is written.

// errShortBody is the failure of a handler that wrote less than the
// Content-Length it announced.
var errShortBody = errors.New("bellwether: handler wrote less than its Content-Length")

// A serverError is the failure of a handler that answered with this error status
// while there is a stale response to serve in its place.
type serverError int

func (e serverError) Error() string {
	return fmt.Sprintf("bellwether: handler answered with a server error: %d", int(e))
}

// privateWindow is how much of a response that nobody shares is kept in memory
// between the handler and its one client.
const privateWindow = 64 << 10

// An exchange is one run of the handler. Its methods are the handler's goroutine's, which is the load's; other
// goroutines have what is set before decided and finished are closed.
type exchange struct {
	m       *Middleware
	owner   *call // the call that began it
	attempt Attempt
	load    context.Context // the attempt's
	sent    time.Time
	cancel  context.CancelCauseFunc // has the handler end
	running context.Context         // the handler's
	// unlink makes the end of load no longer the handler's. It returns false if
	// one of the two has ended before.
	unlink func() bool
	// told is set when the load has its result although the handler goes on, and
	// telling is what is still to be done for that.
	told    bool
	telling sync.WaitGroup

	fwd    httpcache.Forward // why the handler was asked
	before *Item             // the response that the key has, however old; nil if it has none
	backed bool              // there is something to serve if this fails
	spare  *Item             // what some clients would rather have than an error; nil if there is nothing
	asks   *condition        // what the request's conditions ask about; nil if there are none

	writer  writer // the handler's
	limit   int64  // of the body, beyond which it is not kept
	why     string // what the clients are told of that
	over    bool   // the body has passed limit
	account account
	body    *spool.Spool
	trailer http.Header // set before the body ends

	validated bool          // the response is what was stored: the handler has answered 304
	decided   chan struct{} // closed when the decision is set
	decision
	finished chan struct{} // closed when err is set
	err      error
}

// A decision is what the exchange has come to when the handler has written its header.
type decision struct {
	decidedAt time.Time
	response  *Response
	private   http.Header       // what the first client gets
	trailers  []string          // the names of fields that come behind the body
	qualified []string          // the names of those that are the first client's
	audience  audience.Audience // who may read it; only what everyone may is kept
	checked   bool              // it is kept for validation
}

// run runs the handler to its end.
func (x *exchange) run(next http.Handler, r *http.Request) {
	returned := false
	defer func() {
		if !returned {
			x.err = fault.ErrGoexit
			if p := recover(); p != nil {
				x.err = fault.Panicked(p)
			}
		}
		if x.err == nil && x.writer.announced >= 0 && x.writer.written < x.writer.announced {
			x.err = fmt.Errorf("%w: %d of %d bytes", errShortBody, x.writer.written, x.writer.announced)
		}
		if x.body != nil {
			x.trailer = trailerOf(x.writer.header, x.trailers)
			if x.err == nil {
				x.err = x.body.Close()
			} else {
				x.body.CloseWithError(x.err)
			}
		}
		close(x.finished)
	}()
	next.ServeHTTP(&x.writer, r)
	x.writer.settle()
	returned = true
}

// decide makes the response, says whether it is shared, and lets everybody know.
func (x *exchange) decide(status int) {
	now := time.Now()
	x.decidedAt = now
	header := httpcache.CanonicalHeader(x.writer.final)
	x.trailers = trailerNames(header)
	fwdStatus := 0
	var j httpcache.Judgement
	if x.validated {
		fwdStatus = status
		d := httpcache.ResponseDirectives(header, x.m.options.Rules.Targets...)
		age := httpcache.InitialAge(header, x.sent, now)
		status, header = x.asks.about.status, httpcache.Freshen(x.asks.header, httpcache.StoredHeader(header, d, now))
		j = httpcache.JudgeAged(x.owner.request, status, header, age, now, x.m.options.Rules)
	} else {
		j = httpcache.Judge(x.owner.request, status, header, x.sent, now, x.m.options.Rules)
	}
	signpost, found := x.signpost(header)
	v := facts{
		request: x.owner.request, status: status, header: header, judged: j,
		had: x.before != nil, servable: x.servable(), lost: !found, ttl: x.m.options.TTL, errorTTL: x.m.options.ErrorTTL,
	}.verdict()
	x.audience, x.checked, x.qualified = v.audience, v.checked, j.Directives.QualifiedFields()
	limit := x.m.options.MaxBody
	if x.ownersAlone() {
		limit = min(limit, privateWindow)
	}
	x.body = spool.New(limit)
	x.body.Expect(x.writer.announced)
	x.body.OnIdle(func() {
		x.account.close()
		// Nobody is there for whom the handler could go on; or its load has ended,
		// which is the cause then.
		x.cancel(context.Cause(x.load))
	})
	x.response = &Response{
		status:    status,
		header:    httpcache.StoredHeader(header, j.Directives, now),
		freshness: v.freshness,
		age:       j.Age,
		reason:    v.reason,
		fwd:       x.fwd,
		fwdStatus: fwdStatus,
		guessed:   x.writer.guessed || x.validated && x.asks.about.guessed,
		forAll:    httpcache.OpenToAll(header, x.m.options.Rules),
		of:        x,
	}
	switch {
	case x.audience == audience.Owner: // it is between the handler and its client
		x.response.kind = uncacheable
		x.private = header.Clone()
		if x.validated { // the stored header has none, and nobody else sets it
			x.private["Age"] = []string{httpcache.FormatAge(j.Age)}
		}
	case hasAll(x.response.header, header): // nothing is for the first client alone
		x.private = x.response.header
	default:
		x.private = header.Clone()
		httpcache.RemoveConnectionFields(x.private)
	}
	// An unshareable response makes only its own variant uncacheable: one user's
	// page must not keep the other variants out of the cache.
	if signpost != nil {
		signpost.variant = x.response
		x.response = signpost
	}
	// The owner's place is taken before a byte is written: it must not lose the
	// start of a body that nobody keeps.
	x.owner.attach(x)
	close(x.decided)
	x.offer()
}

// offer gives the response that is decided to those who may have it, while it is
// being made. If the log of invalidations has to be read for that, the handler
// waits for it as they do, within its WriteHeader.
func (x *exchange) offer() {
	if x.backed && !x.validated && httpcache.IsServerError(x.content().status) {
		x.refuse(x.failure(serverError(x.content().status)))
		return
	}
	if x.failsForAll() {
		// The error's text may be about the client. That the handler fails is for all.
		if !x.attempt.Publish(x.load, x.response, x.joinableUntil(), audience.Owner) {
			x.refuse(fault.ErrInvalidated)
			return
		}
		x.unlink()
		x.owner.follow(x)
		x.fail(serverError(x.content().status))
		return
	}
	if x.owner.request.Credentials && tellsAudience(x.content().status) {
		x.m.learnAuthorized(x.attempt.Key(), x.audience == audience.Everyone)
	}
	to, remembered := x.audience, x.provesUncacheable()
	if x.checked || remembered || to != audience.Everyone && x.attempt.Second() {
		// All callers get the response, and those outside its audience go on to the
		// handler. A first private page or error does not send them there: it may be
		// about one client, and the key's next response for all.
		to = audience.Everyone
	}
	if !x.attempt.Publish(x.load, x.response, x.joinableUntil(), to) {
		x.refuse(fault.ErrInvalidated)
		return
	}
	if x.keeps() {
		return
	}
	x.unlink()
	if x.audience == audience.Owner {
		x.owner.follow(x)
	} else {
		// The load has its result below, and no longer bounds what its audience reads.
		late := time.AfterFunc(x.m.options.RebuildTimeout, func() {
			x.body.CloseWithError(fault.ErrRebuildTimeout)
			x.cancel(fault.ErrRebuildTimeout)
		})
		context.AfterFunc(x.running, func() { late.Stop() })
	}
	if remembered {
		x.forgo(x.content().reason)
	} else {
		x.fail(fault.ErrNothing)
	}
}

// failsForAll reports whether the response is an error to a request with credentials, for a
// key whose responses are for such requests too.
func (x *exchange) failsForAll() bool {
	return x.ownersAlone() && x.owner.request.Credentials && httpcache.IsServerError(x.content().status) && x.before != nil && x.before.Value.forAll
}

// provesUncacheable reports whether the key is remembered as uncacheable because of the
// response. An error, and a response to credentials, say nothing about the responses to
// other clients. A response for all that the key has had stays while it may be served, and
// after that until a second load has brought a response for its client alone.
func (x *exchange) provesUncacheable() bool {
	if !x.ownersAlone() || x.owner.request.Credentials || httpcache.IsServerError(x.content().status) {
		return false
	}
	return x.before == nil || !x.servable() && x.attempt.Second()
}

// ownersAlone reports whether the response is for the owner alone, and nothing of it is
// kept.
func (x *exchange) ownersAlone() bool { return x.audience == audience.Owner && !x.checked }

// servable reports whether the key has a response that may still be served, if only
// because loads fail.
func (x *exchange) servable() bool {
	return x.before != nil && x.m.cache.Now() < max(x.before.StaleUntil, x.before.ErrorUntil)
}

// sharesByDefault reports whether responses to the key are for all unless they say
// otherwise: by TTL, or because the key has had a response for all.
func (x *exchange) sharesByDefault() bool { return x.m.options.TTL > 0 || x.before != nil }

// joinableUntil is when new callers can no longer join the response. A response that may
// be served stale takes callers to its end, however long that takes. One that must not be
// (RFC 9111 section 4.2.4) takes them while it is fresh: later callers wait for it to end,
// and for the next. An error for one client takes only the callers that wait already.
func (x *exchange) joinableUntil() instant {
	now := x.m.cache.Now()
	switch {
	case x.audience == audience.Alike:
		return now + 1
	case x.audience == audience.Everyone && x.content().freshness.NoStale:
		return durations.Add(now+1, max(0, x.content().freshness.Lifetime-x.content().age))
	}
	return forever
}

// refuse breaks the body off, and fails the load at once: how long the handler
// goes on is no matter to those who wait. Of a load that has been given up on they
// know that already, and a handler that is deaf to its end keeps its place among
// MaxRebuilds.
func (x *exchange) refuse(err error) {
	x.body.CloseWithError(err)
	if cause := context.Cause(x.load); cause == nil || errors.Is(cause, fault.ErrInvalidated) {
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
		err := fault.ErrGoexit // of an adapter, or of OnError, unless this returns
		defer func() { x.attempt.Tell(res, err) }()
		err = fault.Guard(func() error { res = x.remember(reason); return nil })
	})
}

// fail ends the load with err, while its handler goes on.
func (x *exchange) fail(err error) {
	x.told = true
	x.attempt.Tell(nil, err)
}

// take adds to the body, and tells when that passes the limit.
func (x *exchange) take(p []byte) (int, error) {
	end := x.writer.written + int64(len(p))
	if !x.ownersAlone() && x.writer.written <= x.limit && end > smallBody && !x.account.reach(min(end, x.limit)) {
		x.limit, x.why = x.writer.written, reasonMemory
		x.body.Narrow(max(x.writer.written, smallBody))
	}
	if !x.over && end > x.limit {
		x.over = true // once: a Write that finds no reader takes nothing
		if x.audience != audience.Owner {
			// A handler can write faster than a herd wakes up. Whoever waited for
			// this response has a place at its start before that is dropped:
			// else each of them would need a call of its own.
			x.attempt.AwaitReaders(x.running.Done())
		}
		switch {
		case x.told:
		case x.unlink():
			// From here on the body is its readers'; it ends with the last of them.
			if x.why == reasonMemory {
				x.fail(fault.ErrNothing) // it says nothing about the key
				break
			}
			x.forgo(x.why)
		default:
			// The load has ended before. A handler that is deaf to that, or has
			// returned and writes all the same, says nothing more of the key; the
			// former keeps its place among MaxRebuilds until it returns.
			x.body.CloseWithError(context.Cause(x.load))
		}
	}
	n, err := x.body.Write(p)
	x.writer.written += int64(n)
	return n, err
}

// content is the response itself, also where what it varies by was found first.
func (x *exchange) content() *Response {
	if x.response.variant != nil {
		return x.response.variant
	}
	return x.response
}

// errUnselected is the end of an exchange whose handler has answered 304 about
// something else than what is stored (RFC 9111 section 4.3.4).
var errUnselected = errors.New("bellwether: handler's 304 is not about the stored response")

// fetch is the HTTP face's load: it runs the handler and returns what is to be
// kept under the key. What is there already is validated.
func (m *Middleware) fetch(ctx context.Context, a Attempt, c *call, next http.Handler, r *http.Request) (*Response, error) {
	before := m.fallback(a.Key(), a.Present())
	x := m.newExchange(ctx, a, c, before)
	if before != nil && !c.excluded {
		x.asks = m.condition(before.Value, c.request)
	}
	res, err := x.carry(next, r)
	if !errors.Is(err, errUnselected) {
		return res, err
	}
	return m.newExchange(ctx, a, c, before).carry(next, r)
}

// A condition asks a handler whether a stored response still holds.
type condition struct {
	about  *Response
	header http.Header // of about, which is decoded once
}

// condition returns what a request may ask about res, nil if nothing. A request with
// credentials asks only about a response that is for it too.
func (m *Middleware) condition(res *Response, req httpcache.Request) *condition {
	if res.kind != plain && res.kind != checked {
		return nil
	}
	h := res.head()
	switch {
	case !httpcache.Validatable(res.status, h),
		res.kind == checked && !httpcache.ValidatedFor(req, h, m.options.Rules),
		res.kind == plain && req.Credentials && !res.forAll:
		return nil
	}
	return &condition{res, h}
}

// newExchange returns an exchange that has not begun. before is what the key has, nil
// if it has nothing.
func (m *Middleware) newExchange(ctx context.Context, a Attempt, c *call, before *Item) *exchange {
	x := &exchange{
		m: m, owner: c, attempt: a, load: ctx, sent: time.Now(),
		fwd:   httpcache.FwdURIMiss,
		limit: m.options.MaxBody, why: reasonTooLarge, account: account{of: &m.bodies},
		decided: make(chan struct{}), finished: make(chan struct{}),
	}
	x.writer = writer{run: x, header: make(http.Header), announced: -1}
	if c.signpost != nil {
		x.fwd = httpcache.FwdVaryMiss
	}
	if before != nil && before.Value.kind == plain && before.Held {
		now := m.cache.Now()
		x.before = before
		if !c.excluded {
			x.fwd = forwardDespite(before, now)
			if !httpcache.IsServerError(before.Value.status) {
				x.spare, x.backed = before, x.servable()
			}
		}
	}
	return x
}

// carry runs the handler and returns what is to be kept of the exchange.
func (x *exchange) carry(next http.Handler, r *http.Request) (*Response, error) {
	c := x.owner
	// Of the request's own context, not of the rebuild's: that one still has
	// what detach has replaced. But it is the load's: who asks the same cache from
	// within lends its slot, and is told that it asks for what it makes.
	within := x.m.cache.Within(r.Context(), x.load, chi.RouteCtxKey)
	running, cancel := context.WithCancelCause(within)
	x.cancel, x.running = cancel, running
	c.mu.Lock()
	c.ran = x
	c.mu.Unlock()
	// Until it is known that the response is one client's alone, the rebuild's
	// end is the handler's end; and the body's, also if the handler is deaf to its
	// context. The body's comes first, and ends the handler by itself where nobody
	// reads: a handler that heeds its context, and returns, has not made a
	// complete one.
	x.unlink = context.AfterFunc(x.load, func() {
		cause := context.Cause(x.load)
		select {
		case <-x.decided:
			x.body.CloseWithError(cause)
		default: // what is decided from here on is not published
		}
		cancel(cause)
	})
	defer x.telling.Wait()
	defer cancel(nil)
	own := x.m.forEverybody(running, r)
	if x.asks != nil {
		httpcache.SetConditions(own.Header, x.asks.header)
	}
	returned := false
	defer func() {
		if !returned { // a Goexit, of which nobody else tells whose failure it is
			x.attempt.Tell(nil, x.failure(x.err))
		}
	}()
	x.run(next, own)
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
	case x.response == nil:
		return nil, errUnselected
	case x.told, !x.keeps():
		return nil, fault.ErrNothing // its audience has it
	}
	return x.keep()
}

// keeps reports whether something of the response is kept.
func (x *exchange) keeps() bool { return x.audience == audience.Everyone || x.checked }

// failure returns the load's failure, by what the handler has failed with. If that may be
// about the client, calls of the same client get it here, and the others ask again: the
// call is personal, or responses to the key are not for all by default. Where there is
// something to serve in the place of an error, the client gets that.
func (x *exchange) failure(err error) error {
	_, unread := err.(serverError) // nobody has anything of the response
	switch {
	case x.told:
		return err // the load has its result
	case x.response != nil && !unread: // it has broken off, for all its readers
		if x.owner.personal() {
			return &fault.Own{Err: err}
		}
		return err
	case !x.owner.personal() && x.sharesByDefault():
		return err
	case x.backed && x.fwd == httpcache.FwdStale:
		return err // all get what is stale, and one of them tries again after a pause
	}
	x.audience = audience.Alike
	to := audience.Alike
	if x.attempt.Second() {
		to = audience.Everyone
	}
	failed := &Response{kind: uncacheable, of: x, failure: err}
	if x.backed {
		failed.instead = x.spare
	}
	if x.attempt.Publish(x.load, failed, x.joinableUntil(), to) {
		return &fault.Own{Err: err}
	}
	return err
}

// failed reports whether the load has brought an error of the handler's, in a
// response, to those who wait for it. To the rebuild this is an answer like others;
// where it has ended as a failure, it is counted there.
func (x *exchange) failed() bool {
	return x.response != nil && !x.backed && !x.validated && httpcache.IsServerError(x.content().status) &&
		(x.told || x.err == nil && x.load.Err() == nil)
}

// remember returns what is to be kept under the key of an exchange whose
// response is not for sharing: that, or the names if it is so for a variant
// only.
func (x *exchange) remember(reason string) *Response {
	return x.record(&Response{kind: uncacheable, reason: reason}, x.m.uncacheableFor(x.decidedAt.Sub(x.sent)))
}

// record returns what is to be kept under the key of an exchange that has come
// to res. If that is a variant, it is written under its own key first, so that
// whoever reads the names finds the variant.
func (x *exchange) record(res *Response, f items.Windows) *Response {
	if x.spare != nil && httpcache.IsServerError(x.content().status) {
		res.instead = x.spare
		f.Keep = max(f.Keep, x.spare.KeepUntil-x.m.cache.Now())
	}
	if x.response.kind != varying || res.kind == uncacheable && x.owner.signpost != nil {
		x.attempt.SetWindows(f)
		return res
	}
	x.m.cache.Put(x.load, x.response.id, res, f, x.attempt.Position(), nil)
	return x.pointTo(x.response)
}

// keep returns what is to be kept under the key for a complete exchange.
func (x *exchange) keep() (*Response, error) {
	live := x.content()
	done := &Response{status: live.status, guessed: live.guessed, forAll: live.forAll, freshness: live.freshness, fwd: live.fwd, fwdStatus: live.fwdStatus}
	if x.validated {
		done.complete(live.header, x.asks.about.body)
	} else {
		body, ok := x.body.Body()
		if !ok {
			return nil, errors.New("bellwether: complete body without bytes")
		}
		done.complete(live.header, body)
		x.account.complete(cmp.Or(x.response.id, x.attempt.Key()), body)
	}
	f := x.m.lifeOf(done, live.header, live.age+time.Since(x.decidedAt))
	if x.checked {
		// As a record about the key it is good for as long as it is kept.
		done.kind, f = checked, items.Windows{TTL: keepFor}
	}
	return x.record(done, f), nil
}

// ownTrailer tells whether a trailer of that name is the first client's.
func (x *exchange) ownTrailer(name string) bool { return httpcache.OwnTrailer(name, x.qualified) }
