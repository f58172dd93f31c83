package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/spool"
	"github.com/bellwether-go/bellwether/observe"
)

// This file answers a request that waits: with a response in progress, or with an error.

// A reading is one client's share of a response in progress.
type reading struct {
	*call
	answer Answer
	res    *Response
	live   *stream // res's
	own    bool    // the handler runs for this client's request
}

// replyLive answers with a response in progress, unless it is another variant. The error is errBroken.
func (q *query) replyLive(c *call, s Answer) (other bool, err error) {
	res := responseOf(s.Item)
	unanswerable := c.unanswerable()
	if res.vary != nil {
		if !q.selects(res.vary) {
			s.Live.Leave()
			return true, nil
		}
		unanswerable = false
	}
	r := &reading{c, s, res, res.live, res.live.owner == &c.place}
	if refuse := r.refusal(unanswerable); refuse != nil {
		s.Live.Leave()
		refuse()
		return false, nil
	}
	join := r.live.body.NewReader // if the start of the body is still there
	if r.own {
		join = c.attached
	}
	body, ok := join()
	s.Live.Leave() // after join: the body waits for Leave before dropping the start
	switch {
	case ok:
		defer body.Close()
		r.write(body)
	case r.live.body.Overflowed():
		q.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: r.live.body.excess})
	default:
		return false, errBroken
	}
	return false, nil
}

// refusal returns the reply to a client outside the response's audience, nil to a client inside.
func (r *reading) refusal(unanswerable bool) (reply func()) {
	switch {
	case !r.live.audience.Admits(r.own, r.live.owner.client == r.place.client):
		return func() { r.passUncacheable(r.key, &Item{Kind: driver.KindValue, Value: r.res}) }
	case r.live.failure != nil:
		return r.replyFailed
	case r.own:
		return nil
	case !r.mayHave(r.res):
		return func() { r.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization}) }
	case unanswerable:
		return func() { r.pass(httpcache.Status{Fwd: httpcache.FwdVaryMiss}) }
	}
	return nil
}

// replyFailed answers if the handler has failed before its header: with the stale response, or the error.
func (r *reading) replyFailed() {
	spare, err := r.res.spare, r.live.failure
	if spare == nil || r.unanswerable() || !r.mayHave(responseOf(spare)) {
		r.replyError(r.call, r.answer, err)
		return
	}
	r.add(observe.Serve{Way: observe.WayStale})
	r.m.cache.CountStale()
	now := r.m.cache.Now()
	status := failedForward(spare, now, err)
	status.Collapsed, status.TTL, status.Detail = r.answer.Collapsed, ttl(spare, now), staleIfError
	writeStored(r.w, r.r, r.m.storedOf(r.key, spare, now), status)
}

// write answers with the response, with the requested range, or with 304.
func (r *reading) write(body *spool.Reader) {
	if r.own {
		r.settleAside() // interim responses come before the response
	}
	s, header, age := r.live, r.live.header, r.live.ageNow()
	if r.own {
		header = s.private
	}
	status := httpcache.Status{
		Fwd: r.res.fwd, FwdStatus: cmp.Or(r.res.fwdStatus, r.res.status), Stored: s.kept && s.announced <= r.m.options.MaxBodyBytes, Collapsed: !r.own,
		Key: r.m.statusKey(r.key), Detail: r.res.reason,
	}
	if s.shared() {
		status.Detail, status.TTL = "", httpcache.Delta{Set: true, Duration: r.res.freshness.Lifetime - age}
		if r.r.Header["Range"] != nil {
			if whole, ok := s.body.Body(); ok {
				header, guessed := typed(header, whole)
				writeStored(r.w, r.r, stored{r.m, r.key, r.res.status, header, r.res.guessed || guessed, whole, age, s.decidedAt}, status)
				return
			}
		}
	}
	// Only a stored response may use its reception as its date (RFC 9111 section 4.3.2). Otherwise
	// a response without a date is modified (RFC 9110 section 13.1.3).
	dated := s.shared() || r.r.Header["If-None-Match"] != nil || header["Last-Modified"] != nil
	if dated && httpcache.NotModified(r.r.Method, r.r.Header, r.res.status, header.Values, s.decidedAt) {
		r.replyNotModified(body, header, age, status)
		return
	}
	r.replyWhole(body, header, age, status)
}

func (r *reading) replyNotModified(body *spool.Reader, header http.Header, age time.Duration, status httpcache.Status) {
	word, h := stored{m: r.m, header: header, guessed: r.res.guessed, age: age}.notModified(), r.w.Header()
	word.setHeader(h, status)
	if !r.live.shared() { // the handler's own answer, with or without its Age
		h["Age"] = header["Age"]
	}
	send(r.w, r.r, word.status, word.body)
	if !r.live.kept {
		r.relay(body, r.unsent())
	}
}

// replyWhole answers with the response, or with one range if the cache does not store it.
func (r *reading) replyWhole(body *spool.Reader, header http.Header, age time.Duration, status httpcache.Status) {
	s, h := r.live, r.w.Header()
	copyHeader(h, header, r.res.guessed)
	if s.shared() {
		setAge(h, age)
	}
	to, code, trailers := r.delivery(body), r.res.status, s.trailers
	if !r.own {
		trailers = slices.DeleteFunc(slices.Clone(trailers), s.isOwners)
	}
	h.Del("Content-Length") // the handler's may be no length (RFC 9110 section 8.6)
	if s.announced >= 0 {
		h.Set("Content-Length", strconv.FormatInt(s.announced, 10))
	}
	if !status.Stored && code == http.StatusOK {
		// There will be no whole body to take a range from. A second request would run the handler
		// again, and a link that is valid once would be used up.
		if first, length, ok := httpcache.SingleRange(r.r, header, s.announced); ok {
			code = http.StatusPartialContent
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, first+length-1, s.announced))
			h.Set("Content-Length", strconv.FormatInt(length, 10))
			httpcache.TrimToRange(h, code)
			to.w, trailers = &partWriter{to.w, first, length}, nil
		}
	}
	if len(trailers) > 0 {
		h["Trailer"] = slices.Clip(trailers)
	}
	status.AppendTo(h)
	r.w.WriteHeader(code)
	switch {
	case r.r.Method != http.MethodHead:
		r.relay(body, to)
	case !s.kept:
		r.relay(body, r.unsent())
	}
}

// A delivery carries a growing body to its client.
type delivery struct {
	w     io.Writer
	flush func() error
}

func (r *reading) delivery(body *spool.Reader) delivery {
	flush := flusher(r.w)
	if r.live.audience == audience.Owner {
		return delivery{r.w, flush}
	}
	p := paced(r.w, 1, func() { body.Close() })
	body.OnLoss(p.hurry)
	return delivery{p, func() error { return p.within(flush) }}
}

// errPartSent ends the copy of a body when the client has its range.
var errPartSent = errors.New("bellwether: part sent")

type partWriter struct {
	w          io.Writer
	skip, left int64
}

func (p *partWriter) Write(b []byte) (int, error) {
	n := len(b)
	skip := min(p.skip, int64(n))
	p.skip -= skip
	b = b[skip:]
	if len(b) > 0 {
		sent, err := p.w.Write(b[:min(p.left, int64(len(b)))])
		if p.left -= int64(sent); err != nil {
			return int(skip) + sent, err
		}
	}
	if p.left == 0 {
		return n, errPartSent
	}
	return n, nil
}

// unsent is the delivery of a body to a client that gets the header alone.
func (q *query) unsent() delivery {
	return delivery{&partWriter{io.Discard, 0, maxUnsent}, flusher(q.w)}
}

// flusher returns a function that flushes w, if w can. A writer without Flush is no failure.
func flusher(w http.ResponseWriter) func() error {
	rc := http.NewResponseController(w)
	return func() error {
		if err := rc.Flush(); !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		return nil
	}
}

// relay sends the body while it is written, then the trailers. It panics if the body breaks off.
func (r *reading) relay(body *spool.Reader, to delivery) {
	_, err := body.CopyTo(r.r.Context(), to.w, to.flush)
	if errors.Is(err, errPartSent) {
		return
	}
	if err != nil {
		// The client must see the break: on a panic net/http closes the connection or resets the
		// stream. The handler's own panic reaches its own client's server unchanged.
		reset(r.w, r.r)
		if p, ok := errors.AsType[*fault.PanicError](err); ok && r.own {
			panic(p.Value)
		}
		panic(http.ErrAbortHandler)
	}
	trailer := r.live.trailer
	if !r.own {
		trailer = maps.Clone(trailer)
		maps.DeleteFunc(trailer, func(name string, _ []string) bool { return r.live.isOwners(name) })
	}
	if len(trailer) > 0 {
		to.flush() // a body sent at once with its length has no trailer
		h := r.w.Header()
		for name, values := range trailer { // in place of the header's values: no copyHeader
			h[name] = slices.Clip(values)
		}
	}
}

const (
	waitedTooLong = "waited too long" // MaxWait
	tooLate       = "timeout"         // RebuildTimeout
)

// statusOf returns the status and the detail for the client of a failed rebuild.
func statusOf(client context.Context, err error) (code int, detail string) {
	switch {
	case client.Err() != nil && errors.Is(err, context.Canceled):
		// The client has left; or the server is shutting down under its clients.
		return http.StatusServiceUnavailable, "cancelled"
	case errors.Is(err, fault.ErrWaitTimeout):
		return http.StatusServiceUnavailable, waitedTooLong
	case errors.Is(err, fault.ErrClosed):
		return http.StatusServiceUnavailable, "closed"
	case errors.Is(err, fault.ErrOverloaded):
		return http.StatusServiceUnavailable, "overloaded"
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout, tooLate
	}
	code, ok := toldStatus(err) // its page was not kept: at that time a stale response answered
	if !ok {
		code = http.StatusBadGateway
	}
	return code, "failed"
}

// replyError answers a request after a failed rebuild or a vain wait. s is the answer so far.
func (q *query) replyError(c *call, s Answer, err error) {
	w, r := q.w, q.r
	q.add(observe.Serve{Err: err})
	p, panicked := errors.AsType[*fault.PanicError](err)
	if panicked && c.began() && !s.Collapsed { // not of a later flight, which another call has begun
		panic(p.Value) // to the client's own server, as without a cache
	}
	code, detail := http.StatusBadGateway, "failed"
	if !panicked { // a panic may have any error as its value
		code, detail = statusOf(r.Context(), err)
	}
	switch detail {
	case waitedTooLong:
		if q.m.through.TryAcquire(1) {
			defer q.m.through.Release(1)
			q.pass(httpcache.Status{Fwd: httpcache.FwdMiss, Detail: detail})
			return
		}
	case tooLate:
		q.m.tooSlow(c.key, s.Item, err)
	}
	status := httpcache.Status{Fwd: c.forward(s), Collapsed: s.Collapsed, Detail: detail}
	var retry time.Duration
	if it, now := q.m.cache.Near(c.key); it != nil && it.BackingOff(now) {
		retry = it.RetryAt - now
	}
	q.m.replyFailure(w, status, code, retry)
}

// forward is why the handler has run for an answer that failed. It is empty if no handler has run.
func (c *call) forward(s Answer) httpcache.Forward {
	switch {
	case !c.began() && !s.Collapsed:
		return ""
	case s.Item != nil && s.Item.Held:
		return httpcache.FwdStale
	}
	return httpcache.FwdURIMiss
}
