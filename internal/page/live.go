package page

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
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
)

// This file answers with a response that is still being written.

// errBroken is what callers get of a response that broke off before they had
// any of it.
var errBroken = errors.New("bellwether: response broken off")

// A liveOutcome is what came of the try to answer with a response that is being
// written.
type liveOutcome uint8

const (
	liveDone   liveOutcome = iota // answered
	liveOther                     // it is another variant; the served response tells the names
	liveBroken                    // it broke off before this client had any of it
)

// replyLive answers with a response that is being written, if that is this
// request's and not another variant.
func (q *query) replyLive(c *call, s Answer, key string) liveOutcome {
	r, m := q.r, q.m
	res := s.Item.Value
	excluded := q.excludedFrom(key)
	if res.kind == varying {
		if !q.selects(res) {
			s.Live.Left()
			return liveOther
		}
		res, excluded = res.variant, false
	}
	x := res.of
	own := x.owner == c
	// What the flight comes to tells what is left of a stale copy.
	sparing := q.directives.StaleIfError.Set && httpcache.IsServerError(res.status)
	switch {
	case !x.audience.Admits(own, x.owner.client == c.client):
		s.Live.Left()
		if sparing {
			m.cache.Landing(r.Context(), key, s.Item)
		}
		q.passUncacheable(key, &Item{Kind: driver.KindValue, Value: res})
		return liveDone
	case res.failure != nil:
		s.Live.Left()
		if res.instead != nil && q.mayHave(res.instead.Value) {
			status := failedForward(res.instead, m.cache.Now(), res.failure)
			status.Collapsed = s.Collapsed
			q.replySpare(key, res.instead, status)
			return liveDone
		}
		q.replyError(c, key, s, res.failure)
		return liveDone
	case own:
	case !q.mayHave(res):
		s.Live.Left()
		q.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization})
		return liveDone
	case excluded:
		s.Live.Left()
		q.pass(httpcache.Status{Fwd: httpcache.FwdVaryMiss})
		return liveDone
	}
	body, ok := c.takeReader(x)
	s.Live.Left() // behind takeReader: the body waits for that before it drops its start
	if sparing && m.cache.Landing(r.Context(), key, s.Item) == nil {
		if spare := q.spared(key); spare != nil {
			if ok {
				body.Close()
			}
			q.replySpare(key, spare, httpcache.Status{Fwd: res.fwd, FwdStatus: res.status, Collapsed: !own})
			return liveDone
		}
	}
	if !ok && !x.body.Overflowed() {
		return liveBroken
	}
	if !ok {
		q.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: x.why})
		return liveDone
	}
	defer body.Close()
	if own {
		c.settleAside() // interim responses come before the response
	}
	q.writeLive(c, res, body, key)
	return liveDone
}

// writeLive answers with res, whose body is being written, or with that part of
// it, or that word about it, that the request asks for.
func (q *query) writeLive(c *call, res *Response, body *spool.Reader, key string) {
	w, r, x := q.w, q.r, res.of
	own := x.owner == c
	status := httpcache.Status{
		Fwd: res.fwd, FwdStatus: res.fwdStatus, Stored: x.keeps() && x.writer.announced <= q.m.options.MaxBody, Collapsed: !own,
		Key: q.m.statusKey(key), Detail: res.reason,
	}
	if status.FwdStatus == 0 {
		status.FwdStatus = res.status
	}
	header, age := res.header, res.age+time.Since(x.decidedAt)
	if own {
		header = x.private
	}
	if x.audience == audience.Everyone {
		status.TTL = httpcache.Delta{Set: true, Duration: res.freshness.Lifetime - age}
		status.Detail = ""
		if whole, ok := x.complete(); ok && r.Header["Range"] != nil {
			header, guessed := typed(header, whole)
			writeStored(w, r, stored{q.m, key, res.status, header, res.guessed || guessed, whole, age, x.decidedAt}, status)
			return
		}
	}
	// The time at which it came is the date of a stored one only (RFC 9111 section
	// 4.3.2); by itself a response without a date is modified (RFC 9110 section 13.1.3).
	dated := x.audience == audience.Everyone || r.Header["If-None-Match"] != nil || header["Last-Modified"] != nil
	if (x.audience == audience.Everyone || own) && dated && httpcache.NotModified(r.Method, r.Header, res.status, header.Values, x.decidedAt) {
		s := stored{m: q.m, header: header, guessed: res.guessed, age: age}.notModified()
		h := w.Header()
		s.setHeader(h, status)
		if x.audience != audience.Everyone { // it is the handler's own answer, with its Age or none
			h["Age"] = header["Age"]
		}
		send(w, r, s.status, s.body)
		if !x.keeps() {
			q.relay(x, body, own, q.unsent())
		}
		return
	}
	h := w.Header()
	copyHeader(h, header, res.guessed)
	if x.audience == audience.Everyone {
		setAge(h, age)
	}
	to, code, trailers := q.delivery(x, body), res.status, x.trailers
	if x.writer.announced >= 0 {
		h.Set("Content-Length", strconv.FormatInt(x.writer.announced, 10))
	}
	if !status.Stored && res.status == http.StatusOK {
		// There will be no whole to take a range from. To ask the handler again would be a
		// second run, and a link that holds once would be gone.
		if first, length, ok := httpcache.SingleRange(r, header, x.writer.announced); ok {
			code = http.StatusPartialContent
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, first+length-1, x.writer.announced))
			h.Set("Content-Length", strconv.FormatInt(length, 10))
			httpcache.TrimToRange(h, code)
			to.w, trailers = &partWriter{to.w, first, length}, nil
		}
	}
	if !own {
		trailers = slices.DeleteFunc(slices.Clone(trailers), x.ownTrailer)
	}
	if len(trailers) > 0 {
		h["Trailer"] = slices.Clip(trailers)
	}
	q.m.hidden.Remove(h)
	status.AppendTo(h)
	w.WriteHeader(code)
	switch {
	case r.Method != http.MethodHead:
		q.relay(x, body, own, to)
	case !x.keeps():
		q.relay(x, body, own, q.unsent())
	}
}

// A delivery is the way of a growing body to its client.
type delivery struct {
	w     io.Writer
	flush func() error
}

// delivery is the way of x's body, which is read by body, to the query's client.
func (q *query) delivery(x *exchange, body *spool.Reader) delivery {
	flush := flusher(q.w)
	if x.audience == audience.Owner {
		return delivery{q.w, flush}
	}
	p := paced(q.w, 1, func() { body.Close() })
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
func (q *query) relay(x *exchange, body *spool.Reader, own bool, to delivery) {
	w, r := q.w, q.r
	_, err := body.CopyTo(r.Context(), to.w, to.flush)
	if errors.Is(err, errPartSent) {
		return
	}
	if err != nil {
		// Broken off must look broken off: net/http closes the connection, or
		// resets the stream, without the end that a complete body has. A panic
		// of the handler's own reaches its own client's server as it was.
		reset(w, r)
		if p, ok := errors.AsType[*fault.PanicError](err); ok && own {
			panic(p.Value)
		}
		panic(http.ErrAbortHandler)
	}
	trailer := x.trailer
	if !own {
		trailer = maps.Clone(trailer)
		maps.DeleteFunc(trailer, func(name string, _ []string) bool { return x.ownTrailer(name) })
	}
	if len(trailer) > 0 {
		to.flush() // a body sent at once, with its length, has no place behind it
		copyHeader(w.Header(), trailer, false)
		q.m.hidden.Remove(w.Header())
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

// complete returns the body if it is there already, whole.
func (x *exchange) complete() (spool.Body, bool) {
	select {
	case <-x.finished:
		return x.body.Body()
	default:
		return nil, false
	}
}
