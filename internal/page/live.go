package page

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
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

// This file answers a request that waits: with a response that is still being written, or because
// there is none.

// A liveOutcome is what came of the try to answer with a response that is being
// written.
type liveOutcome uint8

const (
	liveDone   liveOutcome = iota // answered
	liveOther                     // it is another variant; the served response tells the names
	liveBroken                    // it broke off before this client had any of it
)

// A reading is what one client gets of a response that is being written.
type reading struct {
	*query
	call   *call
	key    string
	answer Answer
	res    *Response
	live   *stream // res's
	own    bool    // the handler runs for this client's request
}

// replyLive answers with a response that is being written, if that is this
// request's and not another variant.
func (q *query) replyLive(c *call, s Answer, key string) liveOutcome {
	res := s.Item.Value
	excluded := q.excludedFrom(key)
	if res.kind == varying {
		if !q.selects(res.vary) {
			s.Live.Left()
			return liveOther
		}
		res, excluded = res.content(), false
	}
	r := &reading{q, c, key, s, res, res.live, res.live.owner == &c.place}
	if refuse := r.refusal(excluded); refuse != nil {
		s.Live.Left()
		refuse()
		return liveDone
	}
	body, ok := r.live.reader(&c.place)
	s.Live.Left() // behind reader: the body waits for that before it drops its start
	if r.landsOnError() {
		if spare := q.spared(key); spare != nil {
			if ok {
				body.Close()
			}
			q.replySpare(key, spare, httpcache.Status{Fwd: res.fwd, FwdStatus: res.status, Collapsed: !r.own})
			return liveDone
		}
	}
	switch {
	case ok:
		defer body.Close()
		r.write(body)
	case r.live.body.Overflowed():
		q.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: r.live.excess})
	default:
		return liveBroken
	}
	return liveDone
}

// landsOnError waits for the end of the flight if the response is an error in whose place the client
// would take something stale: that tells what is left of a stale copy. It returns false if the
// response is no such error, or is no answer in the end.
func (r *reading) landsOnError() bool {
	return r.directives.StaleIfError.Set && httpcache.IsServerError(r.res.status) && r.m.cache.Landing(r.r.Context(), r.key, r.answer.Item) == nil
}

// refusal answers a client that the response is not for, nil if it is.
func (r *reading) refusal(excluded bool) (reply func()) {
	switch {
	case !r.live.admits(&r.call.place):
		return func() {
			r.landsOnError()
			r.passUncacheable(r.key, &Item{Kind: driver.KindValue, Value: r.res})
		}
	case r.live.failure != nil:
		return r.replyFailed
	case r.own:
		return nil
	case !r.mayHave(r.res):
		return func() { r.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization}) }
	case excluded:
		return func() { r.pass(httpcache.Status{Fwd: httpcache.FwdVaryMiss}) }
	}
	return nil
}

// replyFailed answers where the handler has failed before it has written a header.
func (r *reading) replyFailed() {
	spare, err := r.res.instead, r.live.failure
	if spare == nil || !r.mayHave(spare.Value) {
		r.replyError(r.call, r.key, r.answer, err)
		return
	}
	status := failedForward(spare, r.m.cache.Now(), err)
	status.Collapsed = r.answer.Collapsed
	r.replySpare(r.key, spare, status)
}

// write answers with the response, whose body is being written, or with that part of
// it, or that word about it, that the request asks for.
func (r *reading) write(body *spool.Reader) {
	if r.own {
		r.call.settleAside() // interim responses come before the response
	}
	s, header, age := r.live, r.live.headerFor(&r.call.place), r.live.age+time.Since(r.live.decidedAt)
	status := httpcache.Status{
		Fwd: r.res.fwd, FwdStatus: cmp.Or(r.res.fwdStatus, r.res.status), Stored: s.kept && s.announced <= r.m.options.MaxBody, Collapsed: !r.own,
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
	if r.unmodified(header) {
		r.replyNotModified(body, header, age, status)
		return
	}
	r.replyWhole(body, header, age, status)
}

// unmodified reports whether the client has the response already.
func (r *reading) unmodified(header http.Header) bool {
	s := r.live
	// The time at which it came is the date of a stored one only (RFC 9111 section
	// 4.3.2); by itself a response without a date is modified (RFC 9110 section 13.1.3).
	dated := s.shared() || r.r.Header["If-None-Match"] != nil || header["Last-Modified"] != nil
	return (s.shared() || r.own) && dated && httpcache.NotModified(r.r.Method, r.r.Header, r.res.status, header.Values, s.decidedAt)
}

// replyNotModified answers a client that has the response already.
func (r *reading) replyNotModified(body *spool.Reader, header http.Header, age time.Duration, status httpcache.Status) {
	word, h := stored{m: r.m, header: header, guessed: r.res.guessed, age: age}.notModified(), r.w.Header()
	word.setHeader(h, status)
	if !r.live.shared() { // it is the handler's own answer, with its Age or none
		h["Age"] = header["Age"]
	}
	send(r.w, r.r, word.status, word.body)
	if !r.live.kept {
		r.relay(body, r.unsent())
	}
}

// replyWhole answers with the response, or with one range of it where nothing of it is stored.
func (r *reading) replyWhole(body *spool.Reader, header http.Header, age time.Duration, status httpcache.Status) {
	s, h := r.live, r.w.Header()
	copyHeader(h, header, r.res.guessed)
	if s.shared() {
		setAge(h, age)
	}
	to, code, trailers := r.delivery(body), r.res.status, s.trailersFor(&r.call.place)
	if s.announced >= 0 {
		h.Set("Content-Length", strconv.FormatInt(s.announced, 10))
	}
	if !status.Stored && code == http.StatusOK {
		// There will be no whole to take a range from. To ask the handler again would be a
		// second run, and a link that holds once would be gone.
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
	r.m.hidden.Remove(h)
	status.AppendTo(h)
	r.w.WriteHeader(code)
	switch {
	case r.r.Method != http.MethodHead:
		r.relay(body, to)
	case !s.kept:
		r.relay(body, r.unsent())
	}
}

// A delivery is the way of a growing body to its client.
type delivery struct {
	w     io.Writer
	flush func() error
}

// delivery is the way of what body reads to the client.
func (r *reading) delivery(body *spool.Reader) delivery {
	flush := flusher(r.w)
	if r.live.audience == audience.Owner {
		return delivery{r.w, flush}
	}
	p := paced(r.w, 1, func() { body.Close() })
	body.OnLoss(p.hurry)
	return delivery{p, func() error { return p.within(flush) }}
}

// errPartSent ends the copy of a body of which the client has had its part.
var errPartSent = errors.New("bellwether: part sent")

// A partWriter passes one part of what is written to it on.
type partWriter struct {
	w          io.Writer
	skip, left int64
}

func (p *partWriter) Write(b []byte) (int, error) {
	n := len(b)
	skip := min(p.skip, int64(n))
	p.skip -= skip
	b = b[skip:]
	if p.skip == 0 && len(b) > 0 {
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

// unsent is the way of a body of which the client gets nothing but the header.
func (q *query) unsent() delivery {
	return delivery{&partWriter{io.Discard, 0, maxUnsent}, flusher(q.w)}
}

// flusher flushes w. A writer that cannot flush sends everything in its own time, which is no
// reason to break a response off.
func flusher(w http.ResponseWriter) func() error {
	rc := http.NewResponseController(w)
	return func() error {
		if err := rc.Flush(); !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		return nil
	}
}

// relay sends the body on while it is being written, and the trailers behind it.
// It does not return if the body breaks off.
func (r *reading) relay(body *spool.Reader, to delivery) {
	_, err := body.CopyTo(r.r.Context(), to.w, to.flush)
	if errors.Is(err, errPartSent) {
		return
	}
	if err != nil {
		// Broken off must look broken off: net/http closes the connection, or
		// resets the stream, without the end that a complete body has. A panic
		// of the handler's own reaches its own client's server as it was.
		reset(r.w, r.r)
		if p, ok := errors.AsType[*fault.PanicError](err); ok && r.own {
			panic(p.Value)
		}
		panic(http.ErrAbortHandler)
	}
	if trailer := r.live.trailerFor(&r.call.place); len(trailer) > 0 {
		to.flush() // a body sent at once, with its length, has no place behind it
		copyHeader(r.w.Header(), trailer, false)
		r.m.hidden.Remove(r.w.Header())
	}
}

// reset ends the connection of a client of HTTP/1.0 by a reset, if it has no
// other way to tell a body that broke off from a complete one: to it, the end
// of the connection is the end of a body without a Content-Length.
func reset(w http.ResponseWriter, r *http.Request) {
	if r.ProtoAtLeast(1, 1) || w.Header().Get("Content-Length") != "" {
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if c, ok := conn.(*tls.Conn); ok {
		conn = c.NetConn()
	}
	if c, ok := conn.(*net.TCPConn); ok {
		c.SetLinger(0)
	}
	conn.Close()
}

const (
	waitedTooLong = "waited too long" // MaxWait has run out
	tooLate       = "timeout"         // RebuildTimeout has
)

// statusOf is the status and the detail for the client of a failed rebuild.
func statusOf(client context.Context, err error) (code int, detail string) {
	switch {
	case client.Err() != nil && errors.Is(err, context.Canceled):
		// Nobody is there; or the server is being shut down under its clients.
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
	return http.StatusBadGateway, "failed"
}

// replyError answers a request whose rebuild failed, or that waited in vain. s is its
// answer as far as it has one.
func (q *query) replyError(c *call, key string, s Answer, err error) {
	w, r := q.w, q.r
	if spare := q.spared(key); spare != nil {
		status := httpcache.Status{Hit: true} // as far as is known: others may have failed before
		if c.began() {
			status = failedForward(spare, q.m.cache.Now(), err)
		}
		q.replySpare(key, spare, status)
		return
	}
	q.add(observe.Serve{Err: err})
	p, panicked := errors.AsType[*fault.PanicError](err)
	if panicked && c.began() && !s.Collapsed { // and not of a later flight, which another has begun
		panic(p.Value) // to its own client's server, as if nothing stood between
	}
	code, detail := http.StatusBadGateway, "failed"
	if !panicked { // whatever error with
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
		q.m.tooSlow(key, s.Item, err)
	}
	status := httpcache.Status{Fwd: httpcache.FwdURIMiss, Collapsed: s.Collapsed, Detail: detail}
	if it, now := q.m.cache.Near(key); it != nil && it.BackingOff(now) {
		replyRetry(w, status, code, it.RetryAt-now)
		return
	}
	replyFailure(w, status, code)
}

// tooSlow remembers of a key that its rebuild took longer than RebuildTimeout, if it has
// never had a response for all: its handler may answer whoever waits for longer. They count
// against PassThrough, since an origin that has become slow must not get them all.
func (m *Middleware) tooSlow(key string, failed *Item, err error) {
	if m.options.PassThrough > 0 && errors.Is(err, fault.ErrRebuildTimeout) && failed != nil && failed.Failures > 0 && !failed.Held {
		m.replace(key, failed, &Response{kind: uncacheable, reason: reasonSlow}, m.uncacheableFor(m.options.RebuildTimeout))
	}
}
