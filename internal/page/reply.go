package page

import (
	"context"
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
	"github.com/bellwether-go/bellwether/observe"
)

// This file makes replies: of what is stored, of what is being written, and of
// failures.

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

// maxUnsent is how much of a body a handler may write for a client that gets none of it. A
// handler that answers one client alone is cut short when that has gone, and not because
// the client gets no body; but it is not to make a gigabyte for nobody.
const maxUnsent = 64 << 10

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

// inform sends an interim response to the client (RFC 9110 section 15.2). It is
// called on the client's own goroutine.
func (q *query) inform(status int, interim http.Header) {
	if status == http.StatusContinue || !q.r.ProtoAtLeast(1, 1) {
		return // the server's own affair; not for HTTP/1.0
	}
	h := q.w.Header()
	final := maps.Clone(h)
	copyHeader(h, interim, false)
	q.m.hidden.Remove(h)
	q.w.WriteHeader(status)
	clear(h)
	maps.Copy(h, final)
}

// reply answers with a complete response: from the near tier, or from a flight
// that has ended.
func (q *query) reply(key string, s Answer) {
	res, now := s.Item.Value, q.m.cache.Now()
	q.add(observe.Serve{Way: s.Item.Way(now)})
	here := loadedHere(s)
	failed := s.Flown && s.Item.Failures > 0
	status := httpcache.Status{Hit: true}
	switch {
	case here && failed:
		status = failedForward(s.Item, now, s.Item.Err)
		status.Collapsed = s.Collapsed
	case here:
		status = httpcache.Status{Fwd: res.fwd, FwdStatus: res.fwdStatus, Stored: true, Collapsed: s.Collapsed, Key: q.m.statusKey(key)}
	}
	if failed {
		status.Detail = staleIfError
	}
	status.TTL = ttl(s.Item, now)
	writeStored(q.w, q.r, q.m.storedOf(key, s.Item, now), status)
}

// statusKey is the key as Cache-Status tells it, if it does.
func (m *Middleware) statusKey(key string) string {
	if m.options.HideStatusKey {
		return ""
	}
	return key
}

// loadedHere reports whether the answer, or its failure, is of a load here: it was
// not found in the store, and not refused.
func loadedHere(s Answer) bool {
	return s.Flown && s.Item.Made > 0 && !errors.Is(s.Item.Err, fault.ErrOverloaded)
}

// staleIfError is the detail where something stale is served in the place of an
// error (RFC 5861 section 4).
const staleIfError = "stale-if-error"

// failedForward is the word about a request that has gone to the handler although
// it was stored, and that failed with err.
func failedForward(it *Item, now instant, err error) httpcache.Status {
	status := httpcache.Status{Fwd: forwardDespite(it, now)}
	if e, ok := errors.AsType[serverError](err); ok {
		status.FwdStatus = int(e)
	}
	return status
}

// replySpare answers with something stale in the place of an error. status tells of
// the way to the error.
func (q *query) replySpare(key string, it *Item, status httpcache.Status) {
	q.add(observe.Serve{Way: observe.WayStale})
	q.m.cache.CountStale()
	now := q.m.cache.Now()
	status.TTL, status.Detail = ttl(it, now), staleIfError
	writeStored(q.w, q.r, q.m.storedOf(key, it, now), status)
}

// A stored response is what a reply is made of.
type stored struct {
	m        *Middleware
	key      string
	status   int
	header   http.Header
	guessed  bool // its Content-Type is
	body     spool.Body
	age      time.Duration
	received time.Time
}

// storedOf is the response of a complete item.
func (m *Middleware) storedOf(key string, it *Item, now instant) stored {
	age := now - it.Born
	return stored{m, key, it.Value.status, it.Value.head(), it.Value.guessed, it.Value.body, age, time.Now().Add(-age)}
}

// hitStatus is the word about a reply that needed no other than the item.
func hitStatus(it *Item, now instant) httpcache.Status {
	return httpcache.Status{Hit: true, TTL: ttl(it, now)}
}

// ttl is how much longer the item is fresh, as Cache-Status has it.
func ttl(it *Item, now instant) httpcache.Delta {
	return httpcache.Delta{Set: true, Duration: it.FreshUntil - now}
}

// notModified is the reply to who has s already.
func (s stored) notModified() stored {
	h, tagged := maps.Clone(s.header), s.header.Get("ETag") != ""
	maps.DeleteFunc(h, func(name string, _ []string) bool { return !httpcache.InNotModified(name, tagged) })
	s.status, s.header, s.body = http.StatusNotModified, h, nil
	return s
}

// setHeader makes h the header of a reply with the whole of s.
func (s stored) setHeader(h http.Header, status httpcache.Status) {
	copyHeader(h, s.header, s.guessed)
	s.m.hidden.Remove(h)
	if s.status != http.StatusNotModified {
		setType(h)
	}
	setAge(h, s.age)
	status.AppendTo(h)
	if s.status != http.StatusNoContent && s.status != http.StatusNotModified {
		h.Set("Content-Length", strconv.FormatInt(s.body.Len(), 10))
	}
}

// write answers the request with the whole of s.
func (s stored) write(w http.ResponseWriter, r *http.Request, status httpcache.Status) {
	s.setHeader(w.Header(), status)
	if s.body.Len() <= smallBody || r.Method == http.MethodHead {
		send(w, r, s.status, s.body)
		return
	}
	w.WriteHeader(s.status)
	p, end := s.pacedTo(w)
	defer end()
	s.body.WriteTo(p) // an error is the client's end, or that of our patience: the server sees that more was to come
}

// pacedTo is what sends a large body, or parts of it, to a client.
func (s stored) pacedTo(w http.ResponseWriter) (p *pacedWriter, end func()) {
	p = paced(w, storedParts, nil)
	return p, s.m.bodies.send(s.key, s.body, p)
}

// send sends what comes behind a header that is set, at one go.
func send(w http.ResponseWriter, r *http.Request, status int, body spool.Body) {
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		body.WriteTo(w)
	}
}

// writeStored answers the request with s, or with that part of it, or that word
// about it, that the request asks for.
func writeStored(w http.ResponseWriter, r *http.Request, s stored, status httpcache.Status) {
	switch {
	case httpcache.NotModified(r.Method, r.Header, s.status, s.header.Values, s.received):
		s.notModified().write(w, r, status)
	case s.status == http.StatusOK && len(s.body) > 0 && r.Method == http.MethodGet && httpcache.AsksForRanges(r):
		// net/http's own ranges, multipart and If-Range included. What is empty has none.
		h := w.Header()
		s.setHeader(h, status)
		h.Del("Content-Length") // what is sent may be less, or nothing
		modified, _ := http.ParseTime(s.header.Get("Last-Modified"))
		p, end := s.pacedTo(w)
		defer end()
		http.ServeContent(pacedResponse{w, p}, httpcache.ForRange(r, s.header, s.received), "", modified, s.body.Reader())
	default:
		s.write(w, r, status)
	}
}

// notCached ends a request for what is stored alone (RFC 9111 section 5.2.1.7).
func (q *query) notCached() {
	q.add(observe.Serve{Way: observe.WayMiss})
	replyNotCached(q.w)
}

// replyNotCached answers a request that wants no other answer than a stored one.
func replyNotCached(w http.ResponseWriter) {
	replyFailure(w, httpcache.Status{Detail: "only-if-cached"}, http.StatusGatewayTimeout)
}

// replyFailure answers with an error of the cache's own, which nobody is to keep. A client
// that finds no room may come again in a second.
func replyFailure(w http.ResponseWriter, status httpcache.Status, code int) {
	retry := time.Duration(0)
	if code == http.StatusServiceUnavailable {
		retry = time.Second
	}
	replyRetry(w, status, code, retry)
}

// replyRetry is replyFailure for a client that is to come again after some time; 0: it is not
// known when.
func replyRetry(w http.ResponseWriter, status httpcache.Status, code int, retry time.Duration) {
	status.AppendTo(w.Header())
	w.Header().Set("Cache-Control", "no-store")
	if retry > 0 { // in whole seconds (RFC 9110 section 10.2.3), and not before it is time
		w.Header().Set("Retry-After", strconv.FormatInt(int64((retry+time.Second-1)/time.Second), 10))
	}
	http.Error(w, http.StatusText(code), code)
}

// waitedTooLong is the detail for those whom MaxWait has run out for.
const waitedTooLong = "waited too long"

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
	switch {
	case panicked: // whatever error with
	case r.Context().Err() != nil && errors.Is(err, context.Canceled):
		// Nobody is there; or the server is being shut down under its clients.
		code, detail = http.StatusServiceUnavailable, "cancelled"
	case errors.Is(err, fault.ErrWaitTimeout):
		if q.m.through.TryAcquire(1) {
			defer q.m.through.Release(1)
			q.pass(httpcache.Status{Fwd: httpcache.FwdMiss, Detail: waitedTooLong})
			return
		}
		code, detail = http.StatusServiceUnavailable, waitedTooLong
	case errors.Is(err, fault.ErrClosed):
		code, detail = http.StatusServiceUnavailable, "closed"
	case errors.Is(err, fault.ErrOverloaded):
		code, detail = http.StatusServiceUnavailable, "overloaded"
	case errors.Is(err, context.DeadlineExceeded):
		q.m.tooSlow(key, s.Item, err)
		code, detail = http.StatusGatewayTimeout, "timeout"
	}
	status := httpcache.Status{Fwd: httpcache.FwdURIMiss, Collapsed: s.Collapsed, Detail: detail}
	if it, now := q.m.cache.Near(key); it != nil && it.BackingOff(now) {
		replyRetry(w, status, code, it.RetryAt-now)
		return
	}
	replyFailure(w, status, code)
}

// reasonSlow is why a page goes past the cache that takes longer than RebuildTimeout.
const reasonSlow = "slow"

// tooSlow remembers of a key that its rebuild took longer than RebuildTimeout, if it has
// never had a response for all: its handler may answer whoever waits for longer. They count
// against PassThrough, since an origin that has become slow must not get them all.
func (m *Middleware) tooSlow(key string, failed *Item, err error) {
	if m.options.PassThrough > 0 && errors.Is(err, fault.ErrRebuildTimeout) && failed != nil && failed.Failures > 0 && !failed.Held {
		m.replace(key, failed, &Response{kind: uncacheable, reason: reasonSlow}, m.uncacheableFor(m.options.RebuildTimeout))
	}
}

// copyHeader gives the reply the stored fields. The values are shared, and
// clipped: who appends to one copies it.
//
// A type that is guessed yields to what a middleware around this one has set, as
// net/http's guess would.
func copyHeader(dst, src http.Header, guessed bool) {
	for name, values := range src {
		if guessed && name == "Content-Type" && dst[name] != nil {
			continue
		}
		values = values[:len(values):len(values)]
		if before := dst[name]; len(before) > 0 && slices.Contains(addedFields, name) {
			values = append(before[:len(before):len(before)], values...)
		}
		dst[name] = values
	}
}

// addedFields are those that handlers add to, rather than set them: what a
// middleware around this one has put there stays.
var addedFields = []string{"Cache-Status", "Link", "Server-Timing", "Set-Cookie", "Vary"}

// hasAdded reports whether there is something in h that has to stay.
func hasAdded(h http.Header) bool {
	return hasAny(h, addedFields)
}

// setType keeps net/http from guessing the type of a response that names none: the
// exchange has done so, where there is something to guess.
func setType(h http.Header) {
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil
	}
}

func setAge(h http.Header, age time.Duration) {
	h["Age"] = []string{httpcache.FormatAge(age)}
}
