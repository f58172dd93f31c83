package bellwether

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/go-chi/chi/v5"
	"golang.org/x/sync/semaphore"
)

// This file is the HTTP face: from the request to its key, by way of the
// engine to an item. What runs the handler is in exchange.go, the replies are in
// reply.go, and what goes past the cache is in past.go.

// HTTPOptions configure a [Middleware]. The zero HTTPOptions cache, in this
// process, what says that it may be cached.
type HTTPOptions struct {
	// Options are those of the engine. Here TTL is for responses that carry no
	// freshness of their own and have a status that need not (RFC 9110 section
	// 15.1: 200 and 404, for example), or any that is no error of a server's if they
	// say public; zero meaning that they are never fresh: those that say public are
	// stored for their stale windows, if they have any, and the others not. With
	// it, what a handler makes of a Cookie is everybody's, unless it says private or
	// Vary: Cookie, or Key returns false. StaleWhileRevalidate and StaleIfError are
	// for responses that name no windows and do not forbid them. NotFoundTTL, Size,
	// Codec and HedgeShare have no meaning, and Hedge must be zero. ErrorTTL is also
	// how long an error response (500, 502, 503, 504) without a freshness of its own
	// is served; negative: it answers only those who waited for it, as RFC 9111 has
	// it.
	//
	// The age of a response counts from when its handler wrote the header; if that
	// has a Date or an Age, which those of a proxied upstream have, by RFC 9111
	// section 4.2.3.
	Options

	// MaxBody is the largest body that is stored, in bytes. A larger one is
	// passed on to those who wait for it, at the pace of the slowest of them.
	// Zero means 8 MiB. What is larger than NearBytes is in Store alone, if there is
	// one.
	MaxBody int64
	// MaxHeld bounds, in bytes, the bodies that clients of this process hold beside
	// the near tier: those that are being written for several, and those that are
	// being sent, each counted once however many read it, or twice if it is both.
	// Bodies of up to 64 KiB are not counted. Where there is no room, the handler is
	// asked for a stored body that is not being sent to anybody yet, and a body that
	// is being written is no longer kept: like one over MaxBody, it goes on at the
	// pace of its slowest client. So slow clients of many URLs get no more memory than
	// this. Zero means 256 MiB, or MaxBody if that is more.
	MaxHeld int64
	// UncacheableTTL is how long it is remembered that a key's response was not
	// for sharing; requests for it go straight to the handler meanwhile. One
	// cacheable response ends that. Zero means 10 s.
	UncacheableTTL time.Duration
	// PassThrough is how many requests whose wait has run out (MaxWait) are let
	// through to the handler at one time, in this process. The others get 503
	// with Retry-After. Zero: none is let through.
	PassThrough int

	// Key names the URL under which the response to a request is kept, and by which
	// it is invalidated, in the place of the request's own; or returns false, and
	// the request goes past the cache. It is "http://host/path?query", or with
	// https, which is kept apart. Whatever it leaves out of the request's URL must
	// not change the response (one that says Vary: Host is then its client's alone).
	// It is also asked which URL a request has changed
	// whose method is not safe; a false there means the request's own. What is no
	// such URL counts as a false. It is called for each request, on its goroutine.
	//
	// Nil: the Host field in lower case and without a default port, path and query
	// as they were sent, https for requests that came over TLS. Behind a proxy that
	// ends TLS all requests come in plain; if it tells the scheme by
	// X-Forwarded-Proto, Forwarded or the like, responses to the two are variants of
	// one URL, and nothing need be done. If it tells it otherwise and handlers mind,
	// Key is the place to say so.
	Key func(r *http.Request) (url string, ok bool)

	// TargetedFields are the response fields that take the place of
	// Cache-Control for this cache, the first that is there wins, unless it is
	// malformed (RFC 9213): put a name of your own in front. Nil means
	// CDN-Cache-Control; empty: none.
	TargetedFields []string
	// HeuristicFraction makes a response fresh that says nothing about it, where
	// TTL is zero, for this part of the time since its Last-Modified, up to 24 h
	// (RFC 9111 section 4.2.2; 0.1 is customary). Zero: not at all.
	HeuristicFraction float64
	// SetCookie lets responses with Set-Cookie be stored if they say how long
	// they are fresh; each client gets the cookie then. Default: they are not
	// shared.
	SetCookie bool
	// AnyLanguageOrder takes Accept-Language for the same in any order. RFC 9110
	// section 12.5.4 gives the order no meaning; many servers do, Go's language
	// matcher among them. Default: the order tells variants apart.
	AnyLanguageOrder bool
}

// A Middleware caches the responses of the handlers that it wraps, as a shared
// cache by RFC 9111, and sees to it that a response is made once for all who
// wait for it. Create one with NewMiddleware. It is safe for concurrent use, and
// may wrap several handlers as long as they serve different URLs.
type Middleware struct {
	engine  *engine[*response]
	options HTTPOptions
	rules   httpcache.Options
	through *semaphore.Weighted // PassThrough
	bodies  bodies              // MaxHeld
}

// NewMiddleware returns a Middleware. It panics if the options cannot be meant;
// the message names the field.
func NewMiddleware(o HTTPOptions) *Middleware {
	switch {
	case o.MaxBody < 0:
		refuse("HTTPOptions.MaxBody", o.MaxBody, "not be negative; zero means the default")
	case o.MaxHeld < 0:
		refuse("HTTPOptions.MaxHeld", o.MaxHeld, "not be negative; zero means the default")
	case o.Hedge != 0:
		refuse("HTTPOptions.Hedge", o.Hedge, "be zero: clients read a response while it is made, and what they have read of one cannot be replaced by another")
	case o.UncacheableTTL < 0:
		refuse("HTTPOptions.UncacheableTTL", o.UncacheableTTL, "not be negative; zero means the default")
	case o.PassThrough < 0:
		refuse("HTTPOptions.PassThrough", o.PassThrough, "not be negative; zero lets none through")
	case !(o.HeuristicFraction >= 0 && o.HeuristicFraction <= 1):
		refuse("HTTPOptions.HeuristicFraction", o.HeuristicFraction, "be from 0 to 1, such as 0.1")
	}
	for i, name := range o.TargetedFields {
		if !httpcache.FieldName(name) {
			refuse(fmt.Sprintf("HTTPOptions.TargetedFields[%d]", i), strconv.Quote(name), "be the name of a field, such as CDN-Cache-Control")
		}
	}
	o.MaxBody = cmp.Or(o.MaxBody, 8<<20)
	o.MaxHeld = cmp.Or(o.MaxHeld, max(256<<20, o.MaxBody))
	o.UncacheableTTL = cmp.Or(o.UncacheableTTL, 10*time.Second)
	if o.TargetedFields == nil {
		o.TargetedFields = []string{"CDN-Cache-Control"}
	}
	s := o.Options.settings()
	o.Options = s.Options
	m := &Middleware{
		engine: newEngine(s, func(_ string, r *response) int { return r.size() }, marshalResponse, unmarshalResponse),
		rules: httpcache.Options{
			DefaultLifetime:      o.TTL,
			Targets:              slices.Clone(o.TargetedFields),
			SetCookie:            o.SetCookie,
			HeuristicFraction:    o.HeuristicFraction,
			StaleWhileRevalidate: o.StaleWhileRevalidate,
			StaleIfError:         o.StaleIfError,
		},
		options: o,
		bodies:  bodies{limit: o.MaxHeld},
		through: semaphore.NewWeighted(int64(o.PassThrough)),
	}
	m.engine.answers = func(r *response) bool { return r != nil && r.kind == plain }
	m.engine.sweeper.traits = traitsOf
	m.engine.listen()
	m.engine.meetLog()
	return m
}

// Stats returns what the middleware has counted since it was made.
func (m *Middleware) Stats() Stats { return m.engine.snapshot() }

// Close ends the middleware: rebuilds under way are cancelled, and GET and HEAD get
// 503 from then on (504 for only-if-cached), but for those that go past the cache. It
// does not close Store and Locker. It may be called again; the error is always nil.
func (m *Middleware) Close() error {
	m.engine.close()
	return nil
}

// Handler wraps next. It has the type of a chi or net/http middleware.
//
// Only GET and HEAD are answered from the cache. The handler runs detached: on a
// goroutine and with a context that are not the first client's. It sees that
// client's header, cookies and address, but as a GET, and without conditions and
// ranges; if a response is stored that has to be validated, with conditions of ours.
// A handler that needs the client itself (to hijack the connection, to stream
// events) is reached by requests that ask for an upgrade or for text/event-stream,
// or that Key refuses, with the real ResponseWriter, and by all else that goes past the
// cache with one that flushes and hijacks as that does. With the real one, our member of
// Cache-Status stands before the handler's own, and is lost if the handler sets the
// field; else it is the last.
//
// As it runs detached, no router or middleware around it may recycle, when the request
// ends, what the handler still uses: chi's route context is copied, those of gin and echo are not, so these
// engines are wrapped whole. And what a middleware around this one puts into the
// response's header is for its own client, and says nothing of who may share the
// response: a handler that uses what such a middleware has left in the request's
// context, a session or a CSRF token, has to say private or Vary itself. One that
// compresses belongs inside: the part that is sent for a Range is of what is stored.
// A client whose request's context ends gets no more of a response that is still being
// made, also if it would go on reading, as behind chi's Timeout.
//
// A handler that panics does so to its first client's server too, unless that one
// gets something stale; the others who wait get that or 502, and an Observer's
// Rebuild gets the stack; its Error, where the response was not for others and the
// rebuild has ended with its header.
//
// An interim response (1xx) goes to the client whose request runs the handler.
// Trailers go to all who read the response as it is made, and are not stored.
//
// Within a run of next, the middleware lets requests through: used on a router and
// again on a part of it, it caches once. It knows that by the ResponseWriter, so one
// in between needs an Unwrap, as [http.ResponseController] wants it: behind
// [http.TimeoutHandler], which has none, the second waits for the first.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	if next == nil {
		panic(errors.New("bellwether: Handler needs the handler that it is to wrap"))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m.runs(w) {
			next.ServeHTTP(w, r)
			return
		}
		if !httpcache.Safe(r.Method) {
			m.passUnsafe(w, r, next)
			return
		}
		key, ok := m.key(r)
		d := httpcache.ParseRequest(r.Header)
		if why := bypassReason(r, d); why != "" || !ok {
			if d.OnlyIfCached {
				replyNotCached(w) // RFC 9111 section 5.2.1.7
				return
			}
			past := m.pass
			if !ok || why == reasonUpgrade || why == reasonEventStream {
				past = passReal
			}
			past(w, r, next, httpcache.Status{Fwd: httpcache.FwdBypass, Detail: cmp.Or(why, "key")})
			return
		}
		if !m.hot(w, r, key, d) {
			m.serve(w, r, next, key, d)
		}
	})
}

// runs reports whether w belongs to a run of the handler for m. The response that
// is being made there is what a second pass would wait for, or what a request that
// went past the cache was not to wait for.
func (m *Middleware) runs(w http.ResponseWriter) bool {
	for {
		switch writer := w.(type) {
		case *exchange:
			return writer.m == m
		case interface{ past(*Middleware) bool }:
			if writer.past(m) {
				return true
			}
		}
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = outer.Unwrap()
	}
}

// key is the request's cache key; false if it has none, or is refused one.
func (m *Middleware) key(r *http.Request) (key string, ok bool) {
	target, ok := m.target(r)
	if !ok {
		return "", false
	}
	return httpcache.Key(target)
}

// target is the request by which the key of r is made: r itself, or what it is
// by HTTPOptions.Key. It returns false if that refuses it.
func (m *Middleware) target(r *http.Request) (*http.Request, bool) {
	if m.options.Key == nil {
		return r, true
	}
	named, ok := m.options.Key(r)
	if !ok {
		return nil, false
	}
	u, err := url.Parse(named)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return nil, false
	}
	target := &http.Request{Method: r.Method, URL: u, Host: u.Host, Header: r.Header}
	_, ok = httpcache.Key(target)
	return target, ok
}

// eventStream is the media type of server-sent events, which do not end.
const eventStream = "text/event-stream"

// The reasons to go past the cache that want the real ResponseWriter.
const (
	reasonUpgrade     = "upgrade"
	reasonEventStream = "event-stream"
)

// bypassReason says why a safe request goes past the cache, "" if it does not.
func bypassReason(r *http.Request, d httpcache.RequestDirectives) string {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return "method"
	case r.Header["Upgrade"] != nil && !strings.EqualFold(strings.Join(r.Header["Upgrade"], ","), "h2c"):
		// An offer of h2c is one that net/http never takes (RFC 9113 section 3.1 has
		// dropped it), and that some clients make with each request.
		return reasonUpgrade
	case strings.Contains(strings.ToLower(strings.Join(r.Header["Accept"], ",")), eventStream):
		return reasonEventStream
	case r.ContentLength != 0:
		// A body that the key does not tell apart would answer others.
		return "request body"
	case d.NoStore:
		return "request no-store"
	case httpcache.OverridesMethod(r.Header):
		return "method override"
	case httpcache.NamesEndToEnd(r.Header):
		return "connection"
	}
	return ""
}

// maxHops bounds the way from a key to a variant: names that lead to names.
const maxHops = 4

// serve answers from the cache, by way of the handler if need be.
func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler, key string, d httpcache.RequestDirectives) {
	q := &query{m: m, w: w, r: r, next: next, directives: d, authorized: r.Header["Authorization"] != nil, retargeted: httpcache.Retargeted(r.Header), lose: m.engine.EngineTimeout}
	if o := &m.engine.observers; o.hit != nil || o.serve != nil {
		q.told = &Serve{Key: key}
		defer q.tell()
	}
	var path []string
	var under *response // the names that led to key
	broken := false
	for range maxHops {
		it, early, ok := q.atHand(key)
		if !ok && d.OnlyIfCached {
			q.notCached()
			return
		}
		if early && !d.OnlyIfCached { // that is to cost the handler nothing
			q.refresh(key, it, path)
		}
		s := served[*response]{item: it}
		if ok && under != nil {
			under.built.touch(key, m.engine.clock.now())
		}
		if !ok {
			if under != nil && !under.built.admit(key, m.engine.clock.now()) {
				break
			}
			c := &call{path: path}
			defer c.leave()
			var err error
			if s, err = q.wait(c, key, it); err != nil {
				q.replyError(c, key, s.collapsed, err)
				return
			}
			if res := s.item.value; res.of != nil || res.variant != nil {
				switch q.replyLive(c, s, key) {
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
						q.replyError(c, key, s.collapsed, err)
						return
					}
					continue
				}
			}
		}
		if k := s.item.value.kind; d.OnlyIfCached && k != plain && k != varying {
			q.notCached()
			return
		}
		switch res := s.item.value; res.kind {
		case plain:
			if q.authorized && !httpcache.OpenToAll(res.head(), m.rules) {
				q.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization})
				return
			}
			if q.retargeted {
				q.pass(httpcache.Status{Fwd: httpcache.FwdVaryMiss})
				return
			}
			if httpcache.IsServerError(res.status) {
				if spare := q.spared(key); spare != nil {
					status := httpcache.Status{Hit: true}
					if loadedHere(s) {
						status = httpcache.Status{Fwd: res.fwd, FwdStatus: res.status, Collapsed: s.collapsed}
					}
					q.replySpare(spare, status)
					return
				}
			}
			q.reply(key, s)
			return
		case checked:
			q.passChecked(key, s.item)
			return
		case varying:
			key, under = m.variantKey(res, key, r.Header), res
			path = append(path, res.names...)
			q.retargeted = q.retargeted && !res.retargets()
		default:
			q.passUncacheable(key, s.item)
			return
		}
	}
	q.pass(httpcache.Status{Fwd: httpcache.FwdVaryMiss, Detail: "too many variants"})
}

// A query is one request on its way through the cache.
type query struct {
	m          *Middleware
	w          http.ResponseWriter
	r          *http.Request
	next       http.Handler
	directives httpcache.RequestDirectives
	authorized bool // has Authorization
	// retargeted tells that it has fields that may choose another target, and that
	// nothing on its way has told responses apart by them yet: what is found there was
	// made for a request without them.
	retargeted bool
	told       *Serve // what those who watch are told, nil if nobody does
	// lose is what it may lose to engines, on all its way: the flight of a page's
	// names may have waited for a store that the variant's is not to wait for again.
	lose time.Duration
}

// want is what the request asks of an answer under key; nothing is the usual case.
func (q *query) want(key string) want[*response] {
	d := q.directives
	if !q.authorized && !q.retargeted && !d.NoCache && !d.MaxAge.Set && !d.MinFresh.Set && !d.MaxStale.Set {
		return want[*response]{}
	}
	return want[*response]{accept: func(it *item[*response], now instant) bool {
		if it.kind != KindValue {
			return true
		}
		res := it.value
		retargeted := q.retargeted && !res.retargets()
		if res.variant != nil && q.m.variantKey(res, key, q.r.Header) == res.id {
			res = res.variant // still being written, and found with what it varies by
		}
		if res.kind != plain {
			return true // it says where to go, and no more
		}
		if retargeted || q.authorized && !httpcache.OpenToAll(res.head(), q.m.rules) {
			return false
		}
		return reuse(it, res, now, d)
	}}
}

// reuse reports whether RFC 9111 lets res, the response of it, answer a request.
func reuse(it *item[*response], res *response, now instant, d httpcache.RequestDirectives) bool {
	f := res.freshness
	if x := res.of; x != nil { // it is still being written, and the item's life has not begun
		return f.Reuse(res.age+time.Since(x.decidedAt), d)
	}
	// The item's: the response knows nothing of a jitter or a sweep, nor, from a store, of windows.
	f.Lifetime, f.StaleWhileRevalidate = it.freshUntil-it.born, it.staleUntil-it.freshUntil
	return f.Reuse(now-it.born, d)
}

// atHand answers without the handler if it can. If it cannot, the item is what
// may be served when patience ends, or nil.
func (q *query) atHand(key string) (it *item[*response], early, ok bool) {
	e, want := q.m.engine, q.want(key)
	if it, early, ok = e.hitFor(key, want); ok {
		return it, early, true
	}
	if q.directives.MaxStale.Set {
		// A client that takes what is staler than we would serve gets it if this
		// process has it.
		it, now := e.near.get(key)
		if it != nil && it.held && now < it.trusted && it.value.kind == plain && want.accept(it, now) {
			e.count.stale.Add(1)
			return it, false, true
		}
	}
	if q.directives.OnlyIfCached {
		if it := e.peek(q.r.Context(), key); it != nil && want.takes(it, e.clock.now(), forever) {
			return it, false, true
		}
	}
	return it, false, false
}

// spared returns what the request takes in the place of an error by its own
// stale-if-error (RFC 5861 section 4); nil if it takes none, or there is nothing
// in this process that may be served so.
func (q *query) spared(key string) *item[*response] {
	if !q.directives.StaleIfError.Set || q.retargeted {
		return nil
	}
	e := q.m.engine
	it, now := e.near.get(key)
	if it == nil || now >= it.trusted {
		return nil
	}
	it = q.m.fallback(key, it)
	if it == nil || !it.held || it.value.kind != plain || httpcache.IsServerError(it.value.status) ||
		q.authorized && !httpcache.OpenToAll(it.value.head(), q.m.rules) {
		return nil
	}
	f := it.value.freshness
	f.Lifetime, f.StaleIfError = it.freshUntil-it.born, it.errorUntil-it.freshUntil // as in reuse
	if !f.ReuseOnError(now-it.born, q.directives) {
		return nil
	}
	return it
}

// fallback is the response under a key beside errors: it, or what it, an error, has
// taken the place of; nil if there is none. What an error stands in front of was not
// held against the log meanwhile.
func (m *Middleware) fallback(key string, it *item[*response]) *item[*response] {
	switch {
	case it == nil || it.kind != KindValue:
		return nil
	case it.value.instead == nil:
		return it
	}
	return m.engine.sweeper.spare(key, it.value.instead)
}

// wait answers by way of the handler.
func (q *query) wait(c *call, key string, stale *item[*response]) (served[*response], error) {
	m := q.m
	c.aside = make(chan func(), maxHints)
	c.inform = q.inform
	w := q.want(key)
	w.aside = c.aside
	if q.authorized {
		// Nobody waits for what is another user's until it is known to be for
		// all.
		w.solo = true
		switch m.learntAuthorized(key) {
		case uncacheable:
			return notShared(), nil
		case plain:
			w.first = true
		}
	}
	waiter := m.engine.waiter(q.r.Context(), key, stale)
	waiter.want, waiter.lose = w, q.lose
	waiter.wait(requested{q, c, chi.RouteContext(q.r.Context())})
	q.lose = waiter.lose
	if waiter.dueEarly() {
		q.refresh(key, waiter.answer.item, c.path)
	}
	if errors.Is(waiter.err, errTaken) {
		return notShared(), nil
	}
	if q.told != nil {
		q.add(waiter.served())
	}
	waiter.answer.collapsed = waiter.collapsed // also for who has got none
	return waiter.answer, waiter.err
}

// requested binds the handler's load for a flight that the call begins.
type requested struct {
	*query
	call  *call
	route *chi.Context // the request's
}

func (q requested) bind() loader[*response] {
	r := detach(q.r, q.route)
	q.call.request = r.Header
	return func(ctx context.Context, a attempt[*response]) (*response, error) {
		return q.m.fetch(ctx, a, q.call, q.next, r)
	}
}

// refresh has a fresh response rebuilt behind the client's back: it has no reader
// that would have to keep up with it, nor one for interim responses.
func (q *query) refresh(key string, it *item[*response], path []string) {
	c := &call{path: path, aside: make(chan func())}
	c.leave()
	q.m.engine.refresh(q.r.Context(), key, it, requested{q, c, chi.RouteContext(q.r.Context())})
}

// reasonAuthorization is why a request with Authorization goes past the cache.
const reasonAuthorization = "authorization"

// notShared is the answer that there is none to be shared.
func notShared() served[*response] {
	return served[*response]{item: &item[*response]{kind: KindValue, value: &response{kind: uncacheable, reason: reasonAuthorization}}}
}

// authorizedKey is where it is written, in this process alone, what is known of
// a key's responses to requests with Authorization.
func authorizedKey(key string) string { return key + "\x00\x00authorization" }

// learnAuthorized remembers whether a response to a request with Authorization
// was for all.
func (m *Middleware) learnAuthorized(key string, shared bool) {
	now := m.engine.clock.now()
	it := &item[*response]{kind: KindValue, value: &response{kind: uncacheable}, trusted: forever}
	it.lifetime = newLifetime(now, Freshness{TTL: m.options.UncacheableTTL})
	if shared {
		it.value = &response{kind: open}
		it.lifetime = newLifetime(now, Freshness{TTL: varyingTTL})
	}
	m.engine.near.put(authorizedKey(key), it, 1)
}

// learntAuthorized returns what learnAuthorized remembers: open, uncacheable,
// or plain if it is not known.
func (m *Middleware) learntAuthorized(key string) responseKind {
	if it, now := m.engine.near.get(authorizedKey(key)); it != nil && now < it.freshUntil {
		return it.value.kind
	}
	return plain
}

// variantKey is the key of the variant that a request with the header req asks
// for, below key.
func (m *Middleware) variantKey(v *response, key string, req http.Header) string {
	if m.options.AnyLanguageOrder {
		req = httpcache.UnorderedLanguages(req)
	}
	return v.variantKey(key, req)
}
