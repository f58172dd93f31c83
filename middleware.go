package bellwether

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file is the HTTP face: from the request to its key, by way of the
// engine to an item, and from the item to the reply. What runs the handler is
// in exchange.go.

// HTTPOptions configure a [Middleware]. The zero HTTPOptions cache, in this
// process, what says that it may be cached.
type HTTPOptions struct {
	// Options are those of the engine. Here TTL is for responses that carry no
	// freshness of their own, zero meaning that they are not stored, and
	// StaleWhileRevalidate and StaleIfError are for responses that name no
	// windows and do not forbid them. NotFoundTTL, Size and Codec have no
	// meaning. ErrorTTL is also how long an error response (500, 502, 503,
	// 504) without a freshness of its own is served.
	Options

	// MaxBody is the largest body that is stored, in bytes. A larger one is
	// passed on to those who wait for it, at the pace of the slowest of them.
	// Zero means 8 MiB.
	MaxBody int64
	// UncacheableTTL is how long it is remembered that a key's response was not
	// for sharing; requests for it go straight to the handler meanwhile. Zero
	// means 10 s.
	UncacheableTTL time.Duration
}

// A Middleware caches the responses of the handlers that it wraps, as a shared
// cache by RFC 9111, and sees to it that a response is made once for all who
// wait for it. It is safe for concurrent use.
type Middleware struct {
	engine  *engine[*response]
	options HTTPOptions
	rules   httpcache.Options
}

// NewMiddleware returns a Middleware. It panics if the options cannot be meant;
// the message names the field.
func NewMiddleware(o HTTPOptions) *Middleware {
	if o.MaxBody < 0 || o.UncacheableTTL < 0 {
		panic(fmt.Errorf("bellwether: HTTPOptions.MaxBody is %d and UncacheableTTL %v; neither may be negative", o.MaxBody, o.UncacheableTTL))
	}
	if o.MaxBody == 0 {
		o.MaxBody = 8 << 20
	}
	if o.UncacheableTTL == 0 {
		o.UncacheableTTL = 10 * time.Second
	}
	s := o.Options.settings()
	o.Options = s.Options
	return &Middleware{
		engine: newEngine(s, func(_ string, r *response) int { return r.size() }, marshalResponse, unmarshalResponse),
		rules: httpcache.Options{
			DefaultLifetime:      o.TTL,
			HeuristicFraction:    -1, // a lifetime that nobody has named is TTL's
			StaleWhileRevalidate: o.StaleWhileRevalidate,
			StaleIfError:         o.StaleIfError,
		},
		options: o,
	}
}

// Stats returns what the middleware has counted since it was made.
func (m *Middleware) Stats() Stats { return m.engine.snapshot() }

// Close ends the middleware: rebuilds under way are cancelled, and requests
// that wait for one get 503. It does not close Store and Locker.
func (m *Middleware) Close() error {
	m.engine.close()
	return nil
}

// Invalidate drops what is kept for the URLs, all variants included, as
// [Cache.Invalidate] does. A URL is "http://host/path?query"; the scheme has no
// meaning.
func (m *Middleware) Invalidate(ctx context.Context, urls ...string) error {
	var errs []error
	for _, u := range urls {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
		if err != nil {
			errs = append(errs, fmt.Errorf("bellwether: invalidating: %w", err))
			continue
		}
		key, ok := httpcache.Key(r)
		if !ok {
			errs = append(errs, fmt.Errorf("bellwether: invalidating %q: not a URL with a host and a path that is cached", u))
			continue
		}
		errs = append(errs, m.engine.invalidate(ctx, key))
	}
	return errors.Join(errs...)
}

// Handler wraps next. It has the type of a chi or net/http middleware.
//
// Only GET and HEAD are cached. The handler runs detached: on a goroutine and
// with a context that are not the first client's, with that client's conditions
// and ranges left out, and as GET. A handler that needs the client itself (to
// hijack the connection, to stream events) is reached by requests that ask for
// an upgrade or for text/event-stream, and by all other methods, with the real
// ResponseWriter.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !httpcache.Safe(r.Method) {
			m.passUnsafe(w, r, next)
			return
		}
		key, ok := httpcache.Key(r)
		if why := bypassReason(r); why != "" || !ok {
			m.pass(w, r, next, httpcache.Status{Fwd: httpcache.FwdBypass, Detail: why})
			return
		}
		m.serve(w, r, next, key)
	})
}

// eventStream is the media type of server-sent events, which do not end.
const eventStream = "text/event-stream"

// bypassReason says why a safe request goes past the cache, "" if it does not.
func bypassReason(r *http.Request) string {
	h := r.Header
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return "method"
	case h["Authorization"] != nil:
		return "authorization"
	case h["Upgrade"] != nil:
		return "upgrade"
	case strings.Contains(strings.ToLower(strings.Join(h["Accept"], ",")), eventStream):
		return "event-stream"
	case r.ContentLength != 0:
		// A body that the key does not tell apart would answer others.
		return "request body"
	case httpcache.ParseRequest(h).NoStore:
		return "request no-store"
	case httpcache.OverridesMethod(h):
		return "method override"
	}
	return ""
}

// errBroken is what callers get of a response that broke off before they had
// any of it.
var errBroken = errors.New("bellwether: response broken off")

// maxHops bounds the way from a key to a variant: names that lead to names.
const maxHops = 4

// serve answers from the cache.
func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler, key string) {
	var path []string
	var under *response // the names that led to key
	broken := false
	for range maxHops {
		s, ok := m.engine.hit(key)
		if !ok {
			if under != nil && !under.built.admit(key, m.engine.clock.now()) {
				break
			}
			c := &call{path: path}
			defer c.leave()
			var err error
			s, err = m.engine.wait(r.Context(), key, s.item, func() loader[*response] {
				d := detach(r)
				c.request = r.Header.Clone()
				return func(ctx context.Context, f *flight[*response]) (*response, error) {
					return m.fetch(ctx, f, c, next, d)
				}
			})
			if err != nil {
				m.replyError(w, r, c, err)
				return
			}
			if res := s.item.value; res.of != nil || res.variant != nil {
				switch m.replyLive(w, r, next, c, s, key) {
				case liveDone:
					return
				case liveBroken:
					// Before this client had any of it: it is served what is
					// there in its place, such as a stale copy, or fails with
					// all the others. Once; the retries of a herd must not add
					// up.
					if !broken {
						broken = true
						err = m.engine.landing(r.Context(), key, s.item)
					} else {
						err = errBroken
					}
					if err != nil {
						m.replyError(w, r, c, err)
						return
					}
					continue
				}
			}
		}
		switch res := s.item.value; res.kind {
		case plain:
			m.reply(w, r, s)
			return
		case uncacheable:
			m.pass(w, r, next, httpcache.Status{Fwd: httpcache.FwdBypass, Detail: res.reason})
			return
		case varying:
			key, under = res.variantKey(key, r.Header), res
			path = append(path, res.names...)
		}
	}
	m.pass(w, r, next, httpcache.Status{Fwd: httpcache.FwdVaryMiss, Detail: "too many variants"})
}

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
func (m *Middleware) replyLive(w http.ResponseWriter, r *http.Request, next http.Handler, c *call, s served[*response], key string) liveOutcome {
	res := s.item.value
	if res.kind == varying {
		if res.variantKey(key, r.Header) != res.id {
			s.live.callers.left()
			return liveOther
		}
		res = res.variant
	}
	x := res.of
	own := x.owner == c
	if !own && !x.shared {
		s.live.callers.left()
		m.pass(w, r, next, httpcache.Status{Fwd: httpcache.FwdBypass, Detail: res.reason})
		return liveDone
	}
	body, ok := c.takeReader(x)
	s.live.callers.left() // behind takeReader: the body waits for that before it drops its start
	if !ok && !x.body.Overflowed() {
		return liveBroken
	}
	if !ok {
		m.pass(w, r, next, httpcache.Status{Fwd: httpcache.FwdBypass, Detail: "too large to share"})
		return liveDone
	}
	defer body.Close()

	status := httpcache.Status{Fwd: httpcache.FwdURIMiss, FwdStatus: res.status, Stored: x.shared, Collapsed: !own}
	if x.stale {
		status.Fwd = httpcache.FwdStale
	}
	if !x.shared {
		status.Detail = res.reason
	}
	if x.shared && httpcache.NotModified(r.Method, r.Header, res.status, res.header, x.decidedAt) {
		replyNotModified(w, res, res.age, status)
		return liveDone
	}
	h := w.Header()
	if own {
		copyHeader(h, x.private)
	} else {
		copyHeader(h, res.header)
	}
	if x.shared {
		setAge(h, res.age)
	}
	if x.announced >= 0 {
		h.Set("Content-Length", strconv.FormatInt(x.announced, 10))
	}
	status.AppendTo(h)
	w.WriteHeader(res.status)
	if r.Method == http.MethodHead {
		return liveDone
	}
	rc := http.NewResponseController(w)
	var to io.Writer = w
	if x.shared {
		to = &pacedWriter{w: w, drop: func() { body.Close() }}
	}
	if _, err := body.CopyTo(r.Context(), to, rc.Flush); err != nil {
		// Broken off must look broken off: net/http closes the connection, or
		// resets the stream, without the end that a complete body has. A panic
		// of the handler's own reaches its own client's server as it was.
		reset(w, r)
		if p, ok := errors.AsType[*PanicError](err); ok && own {
			panic(p.Value)
		}
		panic(http.ErrAbortHandler)
	}
	return liveDone
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

// reply answers with a complete response.
func (m *Middleware) reply(w http.ResponseWriter, r *http.Request, s served[*response]) {
	res := s.item.value
	now := m.engine.clock.now()
	age := now - s.item.born
	status := httpcache.Status{Hit: true, TTL: httpcache.Delta{Set: true, Duration: s.item.freshUntil - now}}
	if s.flown {
		status.Collapsed = s.collapsed
	}
	if httpcache.NotModified(r.Method, r.Header, res.status, res.header, time.Now().Add(-age)) {
		replyNotModified(w, res, age, status)
		return
	}
	h := w.Header()
	copyHeader(h, res.header)
	setAge(h, age)
	status.AppendTo(h)
	if res.status == http.StatusOK && r.Header["Range"] != nil {
		// net/http's own ranges, multipart and If-Range included.
		modified, _ := http.ParseTime(res.header.Get("Last-Modified"))
		h.Del("Content-Length")
		http.ServeContent(w, r, "", modified, res.body.Reader())
		return
	}
	if res.status != http.StatusNoContent && res.status != http.StatusNotModified {
		h.Set("Content-Length", strconv.FormatInt(res.body.Len(), 10))
	}
	w.WriteHeader(res.status)
	if r.Method != http.MethodHead {
		var to io.Writer = w
		if res.body.Len() > writePart {
			to = &pacedWriter{w: w}
		}
		// An error here is the client's end, or that of our patience. The server
		// sees by the Content-Length that there is more to come, and ends the
		// connection.
		res.body.WriteTo(to)
	}
}

func replyNotModified(w http.ResponseWriter, res *response, age time.Duration, status httpcache.Status) {
	h := w.Header()
	copyHeader(h, httpcache.NotModifiedHeader(res.header))
	setAge(h, age)
	status.AppendTo(h)
	w.WriteHeader(http.StatusNotModified)
}

// replyError answers a request whose rebuild failed, or that waited in vain.
func (m *Middleware) replyError(w http.ResponseWriter, r *http.Request, c *call, err error) {
	if p, ok := errors.AsType[*PanicError](err); ok && c.began() {
		panic(p.Value) // to its own client's server, as if nothing stood between
	}
	code := http.StatusBadGateway
	switch {
	case r.Context().Err() != nil && errors.Is(err, context.Canceled):
		return // nobody is there
	case errors.Is(err, ErrWaitTimeout), errors.Is(err, ErrClosed):
		code = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	case errors.Is(err, context.DeadlineExceeded):
		code = http.StatusGatewayTimeout
	}
	httpcache.Status{Fwd: httpcache.FwdURIMiss, Collapsed: !c.began()}.AppendTo(w.Header())
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, http.StatusText(code), code)
}

// copyHeader gives the reply the stored fields. The values are shared, and
// clipped by how they were made: who appends to one copies it.
func copyHeader(dst, src http.Header) {
	for name, values := range src {
		dst[name] = values[:len(values):len(values)]
	}
}

func setAge(h http.Header, age time.Duration) {
	h["Age"] = []string{httpcache.FormatAge(age)}
}

// pass hands the request to the handler, with the real ResponseWriter.
func (m *Middleware) pass(w http.ResponseWriter, r *http.Request, next http.Handler, why httpcache.Status) {
	why.AppendTo(w.Header())
	next.ServeHTTP(w, r)
}

// passUnsafe hands a request that may change things to the handler, and drops
// what it has made out of date (RFC 9111 section 4.4) before its client hears of
// the success: a request that the client makes after that sees the change.
func (m *Middleware) passUnsafe(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.Method == http.MethodConnect || r.Header["Upgrade"] != nil {
		m.pass(w, r, next, httpcache.Status{Fwd: httpcache.FwdMethod})
		return
	}
	httpcache.Status{Fwd: httpcache.FwdMethod}.AppendTo(w.Header())
	u := &unsafeWriter{ResponseWriter: w, m: m, request: r}
	next.ServeHTTP(u, r)
	u.before(http.StatusOK)
}

// An unsafeWriter invalidates when the final header is written.
type unsafeWriter struct {
	http.ResponseWriter
	m       *Middleware
	request *http.Request
	done    bool
}

// Unwrap lets http.ResponseController through to the real writer.
func (u *unsafeWriter) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (u *unsafeWriter) before(status int) {
	if u.done || status < 200 {
		return
	}
	u.done = true
	// The client may leave; what it has changed has changed.
	ctx := context.WithoutCancel(u.request.Context())
	for _, key := range httpcache.InvalidatedKeys(u.request, status, u.Header()) {
		if err := u.m.engine.invalidate(ctx, key); err != nil {
			u.m.engine.OnError(key, err)
		}
	}
}

func (u *unsafeWriter) WriteHeader(status int) {
	u.before(status)
	u.ResponseWriter.WriteHeader(status)
}

func (u *unsafeWriter) Write(p []byte) (int, error) {
	u.before(http.StatusOK)
	return u.ResponseWriter.Write(p)
}

// ReadFrom keeps the real writer's: a proxied body need not be copied through
// here.
func (u *unsafeWriter) ReadFrom(r io.Reader) (int64, error) {
	u.before(http.StatusOK)
	return io.Copy(u.ResponseWriter, r)
}

// Flush sends the header on, if the real writer can.
func (u *unsafeWriter) Flush() { u.FlushError() }

// FlushError is what http.ResponseController looks for first: it tells a
// handler whether the real writer can flush.
func (u *unsafeWriter) FlushError() error {
	u.before(http.StatusOK)
	return http.NewResponseController(u.ResponseWriter).Flush()
}

// newMark makes the keys of a key's variants new.
func newMark() string { return adapter.Token() }
