package page

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"time"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file has the writers of bypassing requests, which watch, copy or hold back a response.

// A watchedWriter is the real writer with a callback on the final header. Then our member of
// Cache-Status comes after the members of the caches that the handler has asked (RFC 9211 section 2).
// It hides HiddenFields: with such fields, one is around all that answers a request, see Handler.
type watchedWriter struct {
	http.ResponseWriter
	m      *Middleware                       // whose request it is
	before func(status int) httpcache.Status // returns our member of Cache-Status; nil: there is none
	// invalidate is called before the client can see the response, and again when the handler has returned; may be nil.
	invalidate func()
	taken      func()      // called when the handler has taken over the connection; may be nil
	cut        func()      // ends the handler of a HEAD that writes more than maxUnsent; nil: the client gets a body
	sent       time.Time   // when the handler began
	outer      http.Header // a copy of the real writer's header then: the handler may change its values in place
	done       bool
	early      bool // the client may have seen the response before the end
	size       int  // bytes written
}

// judge judges the response to req by the handler's part of the header, which it also returns.
func (u *watchedWriter) judge(req httpcache.Request, status int) (own http.Header, j httpcache.Judgement, now time.Time) {
	own, now = handlerFields(u.Header(), u.outer), time.Now()
	return own, httpcache.Judge(req, status, own, u.sent, now, u.m.options.Rules), now
}

// unseen is how much of a response net/http buffers at least until the handler returns.
const unseen = 2 << 10

// Hijack is the real writer's. Later bytes are not watched.
func (u *watchedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err != nil {
		return conn, rw, err // the handler answers in another way
	}
	handed := false
	defer func() {
		if !handed { // Freshness or OnError has panicked or exited: neither handler nor server would close it
			conn.Close()
		}
	}()
	u.look(http.StatusOK)
	u.invalidateEarly()
	if u.taken != nil {
		u.taken()
	}
	handed = true
	return conn, rw, nil
}

func (u *watchedWriter) belongsTo(m *Middleware) bool { return u.m == m }

// CloseNotify is the real writer's, or that of a writer that it wraps. Without any the channel is nil. net/http has
// deprecated the method, but gin's Context.Stream fails without it.
func (u *watchedWriter) CloseNotify() <-chan bool {
	for w := range wrapped(u.ResponseWriter) {
		if notifier, ok := w.(interface{ CloseNotify() <-chan bool }); ok {
			return notifier.CloseNotify()
		}
	}
	return nil
}

// Unwrap lets http.ResponseController through to the real writer.
func (u *watchedWriter) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (u *watchedWriter) look(status int) {
	if u.done || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	u.done = true
	if u.before != nil {
		u.before(status).AppendTo(u.Header())
	}
	u.m.options.Hidden.Remove(u.ResponseWriter.Header())
}

// run runs the handler with the writer as, which is u or is around u, and completes the response.
func (u *watchedWriter) run(as http.ResponseWriter, next http.Handler, r *http.Request) {
	if r.Method == http.MethodHead {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		r, u.cut = r.WithContext(ctx), cancel
	}
	u.sent, u.outer = time.Now(), u.Header().Clone()
	returned := false
	defer func() {
		if returned || u.done { // a handler that does not return may have written before
			u.end()
		} else {
			u.m.options.Hidden.Remove(u.ResponseWriter.Header()) // an outer middleware may answer instead
		}
	}()
	next.ServeHTTP(as, r)
	returned = true
}

// end completes the response. Without a header, net/http sends 200. It invalidates also after invalidateEarly, because
// another client may have read old data since then, and after a panic or Goexit of Freshness: the handler has done its work.
func (u *watchedWriter) end() {
	if u.invalidate != nil {
		defer u.invalidate()
	}
	u.look(http.StatusOK)
	u.m.options.Hidden.Remove(u.ResponseWriter.Header()) // trailers
}

// invalidateEarly invalidates before the first bytes that the client may see.
func (u *watchedWriter) invalidateEarly() {
	if u.invalidate != nil && !u.early {
		u.early = true
		u.invalidate()
	}
}

func (u *watchedWriter) WriteHeader(status int) {
	u.look(status)
	if status >= 200 {
		u.ResponseWriter.WriteHeader(status)
		return
	}
	// The header goes out as it is, and the handler continues with the same map.
	h := u.ResponseWriter.Header()
	removed := u.m.options.Hidden.Remove(h)
	u.ResponseWriter.WriteHeader(status)
	maps.Copy(h, removed)
}

func (u *watchedWriter) Write(p []byte) (int, error) {
	u.look(http.StatusOK)
	if u.size += len(p); u.size > unseen {
		u.invalidateEarly()
	}
	if u.cut != nil && u.size-len(p) > maxUnsent {
		return 0, http.ErrBodyNotAllowed
	}
	// net/http drops the body of a HEAD. After so many bytes the header is out, without a length, when the handler fails.
	n, err := u.ResponseWriter.Write(p)
	if u.cut != nil && u.size > maxUnsent {
		u.cut()
		err = http.ErrBodyNotAllowed
	}
	return n, err
}

// ReadFrom uses the real writer's, so a proxied body is not copied through this writer.
func (u *watchedWriter) ReadFrom(r io.Reader) (int64, error) {
	if u.cut != nil {
		return io.Copy(struct{ io.Writer }{u}, r)
	}
	n, more, err := u.begin(u, r)
	if !more {
		return n, err
	}
	u.invalidateEarly()
	rest, err := io.Copy(u.ResponseWriter, r)
	return n + rest, err
}

// begin copies the first bytes by w's Write, unless the header is out, and reports whether there may be
// more. A copy that fails before them leaves the handler free to answer with an error, as with net/http.
func (u *watchedWriter) begin(w io.Writer, r io.Reader) (n int64, more bool, err error) {
	if u.done {
		return 0, true, nil
	}
	n, err = io.Copy(struct{ io.Writer }{w}, io.LimitReader(r, guessLen))
	return n, err == nil && n == guessLen, err
}

func (u *watchedWriter) Flush() { u.FlushError() }

// FlushError is for http.ResponseController: it tells whether the writer can flush.
func (u *watchedWriter) FlushError() error {
	u.look(http.StatusOK)
	u.invalidateEarly()
	return http.NewResponseController(u.ResponseWriter).Flush()
}

// maxUnsent is how much of a body a handler may write for a client of the header alone: a gigabyte for no
// reader is too much. Otherwise a single client's handler ends only when its client leaves.
const maxUnsent = 64 << 10

// maxKept is the largest copy of a keptWriter, which lives as long as its client reads, outside MaxHeldBytes.
func (m *Middleware) maxKept() int64 { return min(smallBody, m.options.MaxBodyBytes) }

// A keptWriter is a watchedWriter that, after keepAs, keeps a copy of the response up to maxKept.
type keptWriter struct {
	watchedWriter
	client context.Context                // the request's, which the handler may replace in its request
	copied *responseCopy                  // nil: the response is not to be kept
	keep   func(*Response, items.Windows) // nil: the response is not complete before the handler has returned
}

type responseCopy struct {
	response  *Response // without its body
	header    http.Header
	announced int64     // the Content-Length as sent, -1 if there is none: a handler may change its header later
	born      time.Time // by the response's Age
	body      bytes.Buffer
}

func (m *Middleware) newKeptWriter(w http.ResponseWriter, r *http.Request) *keptWriter {
	return &keptWriter{watchedWriter: watchedWriter{ResponseWriter: w, m: m}, client: r.Context()}
}

// keepAs keeps the response with the header own and the judgement j.
func (u *keptWriter) keepAs(status int, own http.Header, j httpcache.Judgement, now time.Time) {
	u.copied = &responseCopy{
		response: &Response{status: status, freshness: j.Freshness, openToAll: j.Directives.OpenToAll()},
		header:   httpcache.StoredHeader(own, j.Directives, now), announced: contentLength(u.Header()), born: now.Add(-j.Age),
	}
}

// runBelowServer is run for a handler whose response may be kept, see withServer.
func (u *keptWriter) runBelowServer(next http.Handler, r *http.Request) {
	if u.client.Value(http.ServerContextKey) == nil {
		// Only if necessary: the server does not remove the files of the form of a request's copy.
		r = r.WithContext(withServer(u.client))
	}
	u.run(u, next, r)
}

func (u *keptWriter) Write(p []byte) (int, error) {
	u.look(http.StatusOK)
	if c := u.copied; c != nil && int64(c.body.Len()+len(p)) > u.m.maxKept() {
		u.copied = nil
	}
	if c := u.copied; c != nil {
		c.body.Write(p)
		if c.announced == int64(c.body.Len()) {
			u.finish() // before the client has the whole body, and asks again
		}
	}
	n, err := u.watchedWriter.Write(p)
	if err != nil || n < len(p) { // the handler may stop, or write the rest again
		u.copied = nil
	}
	return n, err
}

// finish keeps a complete response. Without a length, a left client's handler may have stopped midway.
func (u *keptWriter) finish() {
	c := u.copied
	if u.keep == nil || c == nil {
		return
	}
	if c.announced < 0 && u.client.Err() != nil || c.announced >= 0 && c.announced != int64(c.body.Len()) {
		return
	}
	u.copied = nil
	c.response.complete(c.header, spool.BodyOf(bytes.Clone(c.body.Bytes())))
	u.keep(c.response, u.m.lifeOf(c.response, c.header, time.Since(c.born)))
}

// Hijack is the real writer's. Later bytes are not watched, so the response is not kept.
func (u *keptWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := u.watchedWriter.Hijack()
	u.copied = nil
	return conn, rw, err
}

// ReadFrom copies through Write while the response is kept.
func (u *keptWriter) ReadFrom(r io.Reader) (int64, error) {
	n, more, err := u.begin(u, r)
	if !more {
		return n, err
	}
	var rest int64
	if u.copied != nil {
		rest, err = io.Copy(struct{ io.Writer }{u}, r)
	} else {
		rest, err = u.watchedWriter.ReadFrom(r)
	}
	return n + rest, err
}

// A heldWriter holds back a 304 to our own condition. Other responses pass through.
type heldWriter struct {
	watchedWriter
	client http.ResponseWriter
	held   *headWriter // the 304, nil if there is none
}

// WriteHeader passes the header on, or puts a headWriter in the client's place for the rest of the response.
func (u *heldWriter) WriteHeader(status int) {
	if u.done || status != http.StatusNotModified {
		u.watchedWriter.WriteHeader(status)
		return
	}
	u.done = true
	u.held = &headWriter{header: u.client.Header().Clone()}
	u.held.WriteHeader(status)
	u.ResponseWriter = u.held
	u.reset()
}

// reset restores the client's earlier header, again before the reply: a handler may still have the map.
func (u *heldWriter) reset() {
	h := u.client.Header()
	clear(h)
	maps.Copy(h, u.outer.Clone())
}

// A headWriter is the ResponseWriter of a response for no client. It keeps status and header alone.
type headWriter struct {
	header http.Header // the handler's
	status int         // 0 before the header
	sent   http.Header // the header with the status
}

func (w *headWriter) Header() http.Header { return w.header }

func (w *headWriter) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status, w.sent = status, w.header.Clone() // the handler may go on to change the other
	}
}

// Write reports success: a proxy takes an error for the end of its client.
func (w *headWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return len(b), nil
}

// FlushError has nothing to send.
func (w *headWriter) FlushError() error { return nil }
