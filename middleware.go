package bellwether

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/spool"
	"github.com/go-chi/chi/v5"
	"golang.org/x/sync/semaphore"
)

// This file is the HTTP face: from the request to its key, by way of the
// engine to an item. What runs the handler is in exchange.go, the replies are in
// reply.go, and what goes past the cache is in past.go.

// HTTPOptions configure a [Middleware]. The zero HTTPOptions cache, in this
// process, what says that it may be cached. Zero and negative values are as in [Options];
// PassThrough and HeuristicFraction can be off.
type HTTPOptions struct {
	// Options are those of the engine. Here TTL is for responses that carry no
	// freshness of their own and have a status that need not (RFC 9110 section
	// 15.1: 200 and 404, for example), or any that is no error of a server's if they
	// say public; zero meaning that they are never fresh: those that say public are
	// stored for their stale windows, if they have any, and the others not. With
	// it, what a handler makes of a Cookie is everybody's, unless it says private or
	// Vary: Cookie, or Key returns false. StaleWhileRevalidate and StaleIfError are
	// for responses that name no windows and do not forbid them. NotFoundTTL, Size,
	// Codec and HedgeShare have no meaning, and Hedge must be zero.
	//
	// ErrorTTL is also how long an error response (500, 502, 503, 504) without a
	// freshness of its own is served to all clients, if TTL is set, the error says
	// public, or the key has had a response for all. If ErrorTTL is negative, such an
	// error answers only the requests that wait for it. Any other error answers only
	// the waiting requests with the same Cookie and credentials.
	//
	// The age of a response counts from when its handler wrote the header; if that
	// has a Date or an Age, which those of a proxied upstream have, by RFC 9111
	// section 4.2.3.
	Options

	// MaxBody is the largest body that is stored, in bytes. A larger one is
	// passed on to those who wait for it, at the pace of the slowest of them; but a
	// client for which the others have to wait 5 s while it takes 4 MiB is broken off.
	// Zero means 8 MiB. What is larger than NearBytes is in Store alone, if there is
	// one.
	MaxBody int64
	// MaxHeld bounds, in bytes, the bodies that clients of this process hold beside
	// the near tier: those that are being written for several, and those that are
	// being sent, each counted once however many read it, or twice if it is both.
	// Bodies of up to 64 KiB are not counted, nor those that the near tier has. Where there
	// is no room, a body that is being written is not kept: like one over MaxBody, it goes
	// on at the pace of its slowest client. For a stored body that is to be sent, the
	// clients are broken off that have taken the longest, as far as the server's
	// ResponseWriter has write deadlines. So slow clients of many URLs get no more memory
	// than one and a half times this, and what the near tier has evicted since. Zero means
	// 256 MiB, or MaxBody if that is more.
	MaxHeld int64
	// UncacheableTTL is how long it is remembered that a key's response was not
	// for sharing; requests for it go straight to the handler meanwhile, and each
	// response like that prolongs it. One cacheable response ends it. Zero means 10 s.
	UncacheableTTL time.Duration
	// PassThrough is how many requests whose wait has run out (MaxWait), or whose key's
	// rebuild has taken longer than RebuildTimeout and never had a response for all, are let
	// through to the handler at one time, in this process. The others get 503
	// with Retry-After. Zero: none is let through.
	PassThrough int

	// IgnoreRequestDirectives has requests answered whatever their Cache-Control says, as
	// most caches in front of a site do: else a client may have the handler asked
	// by no-cache, and choose the moment of a rebuild. Default: RFC 9111 section 5.2.1
	// holds, but of the requests that go past the cache for a page that may be served
	// (no-store, an upgrade, an event stream, a body) eight at a time.
	IgnoreRequestDirectives bool
	// MaxStreams bounds the requests for upgrades and event streams that run at a time.
	// Further ones get 503. Zero means 65,536.
	MaxStreams int

	// Key names the URL under which the response to a request is kept, and by which
	// it is invalidated, in the place of the request's own; or returns false, and
	// the request goes past the cache. The handler sees the key's host and query, so a
	// parameter that Key leaves out gets into no shared response. The handler sees the
	// request's path: a part of it that Key leaves out must not change the response.
	// For a request with an unsafe method, Key returns the URL that the request has
	// changed; false means that it has changed none. What is no such URL, such as a path
	// without a host, counts as false, and OnError is told of it. Key is called for each
	// request, on the request's goroutine.
	//
	// Nil: the Host field in lower case and without a default port, the path in one
	// form for all its encodings, the query as it was sent, and https for requests that
	// came over TLS. "%2F", "%3B" and "%2B" in a path are not "/", ";" and "+".
	// Behind a proxy that
	// ends TLS all requests come in plain; if it tells the scheme by
	// X-Forwarded-Proto, Forwarded or the like, responses to the two are variants of
	// one URL, and nothing need be done. If it tells it otherwise and handlers mind,
	// Key is the place to say so.
	Key func(r *http.Request) (key Key, ok bool)

	// CredentialFields are more request fields that say who a client is, as
	// Authorization and a client certificate do. A request with credentials gets only
	// responses that say that they are for all (public, s-maxage, must-revalidate). It
	// waits for no other request until a response to credentials has said so. Name
	// Cookie if the handlers answer by it and do not say private. Nil: none.
	CredentialFields []string

	// TargetedFields are the response fields that take the place of
	// Cache-Control for this cache, the first that is there wins, unless it is
	// malformed (RFC 9213): put a name of your own in front. Nil means
	// CDN-Cache-Control; empty: none.
	TargetedFields []string
	// RetargetingFields are more request fields from which the handler, or a server
	// behind it, takes another scheme, host, port or path. Some 140 such fields are
	// known, X-Forwarded-Host among them. A response to a request with any of these
	// fields is a variant for requests with the same fields. Nil: none.
	RetargetingFields []string
	// HiddenFields are response fields that the cache reads and clients do not get, such
	// as Surrogate-Control, Surrogate-Key and Cache-Tag. Stored responses keep them, and
	// tags in them invalidate. With HiddenFields no handler gets the real
	// ResponseWriter, but one that flushes and hijacks as that does. Nil: none.
	HiddenFields []string
	// HideStatusKey leaves the cache key out of Cache-Status, where all clients can read
	// it (RFC 9211 section 6). Default: the reply to a request that has reached the
	// handler by way of the cache has the key.
	HideStatusKey bool
	// UnsafeInvalidation is what happens to the stored responses of a URL after an unsafe
	// request for it, such as POST, has succeeded. Default: HardInvalidation, as RFC 9111
	// section 4.4 requires. Where the handlers take unsafe requests of anybody for any
	// URL, anybody can choose the moment of a rebuild: set NoInvalidation then, and
	// invalidate by [Middleware.Invalidate].
	UnsafeInvalidation Invalidation
	// InvalidateLocations extends UnsafeInvalidation to the URLs that the response to an
	// unsafe request names in Location and Content-Location, on the same host. Default:
	// they stay, since many handlers redirect to a URL that the client has chosen.
	InvalidateLocations bool

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
	// matcher among them. The handler gets the languages sorted. Default: the order
	// tells variants apart.
	AnyLanguageOrder bool
}

// An Invalidation is what an unsafe request does to stored responses.
type Invalidation uint8

const (
	// HardInvalidation drops the responses.
	HardInvalidation Invalidation = iota
	// SoftInvalidation makes the responses stale: they may be served in their stale
	// windows, which begin then, and be validated. It goes by the log of invalidations,
	// see [Middleware.InvalidateMatching]. An unsafe request is a HardInvalidation beyond
	// 50 in a minute, so that the log remembers other invalidations for ten minutes, and
	// with a Store without a Locker that answers.
	SoftInvalidation
	// NoInvalidation leaves the responses as they are.
	NoInvalidation
)

// A Key is what the response to a request is kept under.
type Key struct {
	// URL is "http://host/path?query", or with https, which is kept apart.
	URL string
	// Variant tells responses to one URL apart by a part of the request that the URL
	// does not have, such as a cookie's value. Invalidating the URL invalidates all its
	// variants. Requests with an empty Variant share a variant too.
	Variant string
}

// A Middleware caches the responses of the handlers that it wraps, as a shared
// cache by RFC 9111, and sees to it that a response is made once for all who
// wait for it. Create one with NewMiddleware. It is safe for concurrent use, and
// may wrap several handlers as long as they serve different URLs.
type Middleware struct {
	engine      *engine[*response]
	options     HTTPOptions
	rules       httpcache.Options
	credentials []string // the names of request fields
	hidden      httpcache.Hidden
	through     *semaphore.Weighted // PassThrough
	streams     *semaphore.Weighted // MaxStreams
	bypasses    bypasses
	replacing   sync.Map            // the keys whose record is being replaced, see replace
	drafting    sync.Map            // the keys of which a response to credentials is being kept, see passCredentials
	soft        *semaphore.Weighted // the SoftInvalidations that are being written into the log
	bodies      bodies              // MaxHeld
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
		refuse("HTTPOptions.Hedge", o.Hedge, "be zero: clients read a response while the handler writes it, so another response cannot replace it")
	case o.UncacheableTTL < 0:
		refuse("HTTPOptions.UncacheableTTL", o.UncacheableTTL, "not be negative; zero means the default")
	case o.MaxStreams < 0:
		refuse("HTTPOptions.MaxStreams", o.MaxStreams, "not be negative; zero means the default")
	case o.UnsafeInvalidation > NoInvalidation:
		refuse("HTTPOptions.UnsafeInvalidation", o.UnsafeInvalidation, "be HardInvalidation, SoftInvalidation or NoInvalidation")
	case !(o.HeuristicFraction <= 1):
		refuse("HTTPOptions.HeuristicFraction", o.HeuristicFraction, "be from 0 to 1, such as 0.1")
	}
	checkFields("TargetedFields", o.TargetedFields, "CDN-Cache-Control")
	checkFields("CredentialFields", o.CredentialFields, "Cookie")
	checkFields("HiddenFields", o.HiddenFields, "Surrogate-Key")
	checkFields("RetargetingFields", o.RetargetingFields, "X-Forwarded-Host")
	o.PassThrough, o.HeuristicFraction = max(0, o.PassThrough), max(0, o.HeuristicFraction)
	o.MaxBody = cmp.Or(o.MaxBody, 8<<20)
	o.MaxHeld = cmp.Or(o.MaxHeld, max(256<<20, o.MaxBody))
	o.UncacheableTTL = cmp.Or(o.UncacheableTTL, 10*time.Second)
	o.MaxStreams = cmp.Or(o.MaxStreams, 1<<16)
	if o.TargetedFields == nil {
		o.TargetedFields = []string{"CDN-Cache-Control"}
	}
	// A page may fetch a part of its own site over HTTP. No context leads from the one to
	// the other, so each needs a slot while the page waits for the part.
	o.MaxRebuilds = cmp.Or(o.MaxRebuilds, 4096)
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
			AnyLanguageOrder:     o.AnyLanguageOrder,
			Retargeting:          httpcache.NewRetargeting(o.RetargetingFields...),
		},
		options:     o,
		credentials: []string{"Authorization"},
		hidden:      httpcache.NewHidden(o.HiddenFields),
		bodies:      bodies{limit: o.MaxHeld},
		through:     semaphore.NewWeighted(int64(o.PassThrough)),
		soft:        semaphore.NewWeighted(maxSoftWrites),
		streams:     semaphore.NewWeighted(int64(o.MaxStreams)),
	}
	for _, name := range o.CredentialFields {
		m.credentials = append(m.credentials, http.CanonicalHeaderKey(name))
	}
	m.engine.answers = func(r *response) bool { return r != nil && r.kind == plain }
	m.engine.fails = func(r *response) bool { return r != nil && httpcache.IsServerError(r.status) }
	m.engine.keepLog(traitsOf)
	m.bodies.near = func(key string, body spool.Body) bool {
		it, _ := m.engine.near.Get(key)
		if it == nil || it.Kind != KindValue || !m.engine.near.Fits(it.Weight()) { // what is too heavy is on its way out
			return false
		}
		return len(it.Value.body) > 0 && &it.Value.body[0][0] == &body[0][0]
	}
	m.engine.listen()
	m.engine.meetLog()
	return m
}

// checkFields refuses names in an option that are those of no fields.
func checkFields(option string, names []string, example string) {
	for i, name := range names {
		if !httpcache.FieldName(name) {
			refuse(fmt.Sprintf("HTTPOptions.%s[%d]", option, i), strconv.Quote(name), "be the name of a field, such as "+example)
		}
	}
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
// cache, or past a page that may be served, with one that flushes and hijacks as that
// does. With the real one, our member of Cache-Status stands before the handler's own,
// and is lost if the handler sets the field; else it is the last.
//
// As it runs detached, no router or middleware around it may recycle, when the request
// ends, what the handler still uses: chi's route context is copied, those of gin and echo
// are not, so these engines are wrapped whole. A router around it has to route all
// encodings of a path alike, as net/http's does. chi's does not: if chi has routed a path
// in another form than the key's, the request goes past the cache.
//
// A field that a middleware around this one puts into the response's header is for its
// own client, and does not decide who may share the response. There is one exception: if
// Cache-Control, or one of TargetedFields, is no-store or private when a request reaches
// the cache, the request goes past it, and a POST's response is not kept. A
// handler that uses what such a middleware has left in the request's context, a session
// or a CSRF token, has to say private or Vary itself. A middleware that compresses
// belongs inside: the part that is sent for a Range is of what is stored.
// A client whose request's context ends gets no more of a response that is still being
// made, also if it would go on reading, as behind chi's Timeout.
//
// A handler that panics does so to its first client's server too, unless that one
// gets something stale; the others who wait get that or 502, and an Observer's
// Rebuild gets the stack; its Error, where the response was not for others and the
// rebuild has ended with its header. If the request has a Cookie or credentials, or if
// responses to the key are not for all (see ErrorTTL in [HTTPOptions]), the panic answers
// only requests with the same Cookie and credentials. The others wait for one more run.
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
		panic(errors.New("bellwether: Handler needs a handler to wrap"))
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
		t, ok := m.target(r)
		var d httpcache.RequestDirectives
		if !m.options.IgnoreRequestDirectives {
			d = httpcache.ParseRequest(r.Header)
		}
		why := m.bypassReason(w.Header(), r, d)
		switch {
		case (why != "" || !ok) && d.OnlyIfCached:
			replyNotCached(w) // RFC 9111 section 5.2.1.7
			return
		case !ok:
			m.passReal(w, r, next, httpcache.Status{Fwd: httpcache.FwdBypass, Detail: cmp.Or(why, "key")})
			return
		case why != "":
			if m.bypass(w, r, next, t, why) {
				return
			}
			d = httpcache.RequestDirectives{NoStore: d.NoStore}
		}
		if !m.hot(w, r, t, d) {
			m.serve(w, r, next, t, d)
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

// A target is the URL that a request asks for, and the part of the request that selects a
// variant there.
type target struct {
	url    *http.Request // the request, or one for the URL that HTTPOptions.Key has returned
	key    string        // of the URL
	header http.Header   // the request's, with Key.Variant
}

// target returns the request's target. It returns false if the URL has no key, or if
// HTTPOptions.Key has refused the request.
func (m *Middleware) target(r *http.Request) (t target, ok bool) {
	t = target{url: r, header: httpcache.EndToEnd(r.Header)}
	if m.options.Key != nil {
		if !httpcache.Ordinary(r) {
			return t, false // Key may not see what the handler would
		}
		named, ok := m.options.Key(r)
		if !ok {
			return t, false
		}
		u, err := url.Parse(named.URL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			own, _ := httpcache.Key(r)
			m.engine.OnError(own, fmt.Errorf("bellwether: HTTPOptions.Key has returned %.200q; it must return a URL with a host, such as \"http://shop.example/users/42\", or false", named.URL))
			return t, false
		}
		t.url = &http.Request{Method: r.Method, URL: u, Host: u.Host, Header: r.Header}
		t.header = httpcache.WithVariant(t.header, named.Variant)
	}
	t.key, ok = httpcache.Key(t.url)
	return t, ok
}

// hasCredentials reports whether a request says who its client is.
func (m *Middleware) hasCredentials(r *http.Request) bool {
	for _, name := range m.credentials {
		if r.Header[name] != nil {
			return true
		}
	}
	return clientCertificate(r) != nil
}

// clientCertificate returns the certificate that a request's client has shown, nil if it
// has shown none.
func clientCertificate(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	return r.TLS.PeerCertificates[0]
}

// request returns what the rules ask of a request, whose target is t.
func (m *Middleware) request(r *http.Request, t target, d httpcache.RequestDirectives) httpcache.Request {
	return httpcache.Request{Header: t.header, Credentials: m.hasCredentials(r), NoStore: d.NoStore}
}

// eventStream is the media type of server-sent events, which do not end.
const eventStream = "text/event-stream"

// The reasons to go past the cache that are bounded, see bypass: the first two want the
// real ResponseWriter.
const (
	reasonUpgrade     = "upgrade"
	reasonEventStream = "event-stream"
	reasonNoStore     = "request no-store"
	reasonBody        = "request body"
)

// bypassReason says why a safe request goes past the cache, "" if it does not. outer is
// the response's header as the middlewares around this one have left it.
func (m *Middleware) bypassReason(outer http.Header, r *http.Request, d httpcache.RequestDirectives) string {
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
		return reasonBody
	case d.NoStore:
		return reasonNoStore
	case httpcache.OverridesMethod(r.Method, r.Header):
		return "method override"
	case httpcache.Respelled(r.URL) && routed(r):
		return "path spelling"
	case m.forbids(outer):
		return "outer cache-control"
	}
	return ""
}

// routed reports whether chi has routed the request, or a part of its path, before the
// cache. chi routes by the path as it was sent: "/%61nna" may have another handler than
// "/anna", which has the same key.
func routed(r *http.Request) bool {
	rc := chi.RouteContext(r.Context())
	return rc != nil && (rc.RoutePath != "" || len(rc.RoutePatterns) > 0)
}

// forbids reports whether a middleware around this one forbids shared caches to keep the
// response. Neither the handler nor TTL knows of that.
func (m *Middleware) forbids(outer http.Header) bool {
	if len(outer) == 0 {
		return false
	}
	d := httpcache.ResponseDirectives(httpcache.CanonicalHeader(outer), m.rules.Targets...)
	return d.NoStore || d.Private
}

// maxHops bounds the steps from a URL's key to a response: a signpost, the newer one behind
// it, the variant, and one step more for a response that breaks off.
const maxHops = 4

// serve answers from the cache, by way of the handler if need be.
func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler, t target, d httpcache.RequestDirectives) {
	q := &query{m: m, w: w, r: r, next: next, target: t, directives: d, request: m.request(r, t, d), needsVariant: m.needsVariant(t.header), lose: m.engine.EngineTimeout, began: m.engine.clock.Now()}
	if o := &m.engine.observers; o.hit != nil || o.serve != nil {
		q.told = &Serve{Key: t.key}
		defer q.tell()
	}
	key := t.key
	var signpost *items.Item[*response] // that led to key
	broken := false
	for range maxHops {
		it, early, ok := q.atHand(key)
		if !ok && d.OnlyIfCached {
			q.notCached()
			return
		}
		if early && !d.OnlyIfCached { // that is to cost the handler nothing
			q.refresh(key, it, signpost)
		}
		s := served[*response]{item: it}
		if ok && signpost != nil {
			signpost.Value.built.of(q.needsVariant).touch(key, m.engine.clock.Now())
		}
		if !ok {
			if q.request.Credentials && q.passCredentials(key) {
				return
			}
			if signpost != nil && !signpost.Value.built.of(q.needsVariant).admit(key, m.engine.clock.Now()) {
				break
			}
			c := q.call(signpost)
			defer c.leave()
			var err error
			if s, err = q.wait(c, key, it); err != nil {
				q.replyError(c, key, s, err)
				return
			}
			if res := s.item.Value; res.of != nil || res.variant != nil {
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
						q.replyError(c, key, s, err)
						return
					}
					continue
				}
			}
		}
		if k := s.item.Value.kind; d.OnlyIfCached && k != plain && k != varying {
			q.notCached()
			return
		}
		switch res := s.item.Value; res.kind {
		case plain:
			if !q.mayHave(res) {
				q.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization})
				return
			}
			if q.excludedFrom(key) {
				q.pass(httpcache.Status{Fwd: httpcache.FwdVaryMiss})
				return
			}
			if httpcache.IsServerError(res.status) {
				if spare := q.spared(key); spare != nil {
					status := httpcache.Status{Hit: true}
					if loadedHere(s) {
						status = httpcache.Status{Fwd: res.fwd, FwdStatus: res.status, Collapsed: s.collapsed}
					}
					q.replySpare(key, spare, status)
					return
				}
			}
			q.reply(key, s)
			return
		case checked:
			q.passChecked(key, s.item)
			return
		case varying:
			key, signpost = m.variantKey(res, t.key, t.header), s.item
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
	target     target
	began      instant
	directives httpcache.RequestDirectives
	request    httpcache.Request
	// needsVariant is Middleware.needsVariant of the request.
	needsVariant bool
	told         *Serve // what those who watch are told, nil if nobody does
	// lose is what it may lose to engines, on all its way: the flight of a page's
	// names may have waited for a store that the variant's is not to wait for again.
	lose time.Duration
}

// want is what the request asks of an answer under key; nothing is the usual case.
func (q *query) want(key string) want[*response] {
	d := q.directives
	if !q.request.Credentials && !q.needsVariant && !d.NoCache && !d.MaxAge.Set && !d.MinFresh.Set && !d.MaxStale.Set {
		return want[*response]{}
	}
	var w want[*response]
	if q.excludedFrom(key) {
		w.fits = func(it *items.Item[*response]) bool {
			return it.Kind != KindValue || it.Value.kind != plain && it.Value.kind != checked
		}
	}
	w.accept = func(it *items.Item[*response], now instant) bool {
		if it.Kind != KindValue {
			return true
		}
		res := it.Value
		if res.variant != nil && q.selects(res) {
			res = res.variant // still being written, and found with what it varies by
		}
		if res.kind != plain {
			return true // it says where to go, and no more
		}
		if !q.mayHave(res) {
			return false
		}
		return reuse(it, res, now, d)
	}
	return w
}

// mayHave reports whether a stored response may answer the request: with credentials only
// one that is for all (RFC 9111 section 3.5), also in the place of an error.
func (q *query) mayHave(res *response) bool { return !q.request.Credentials || res.forAll }

// excludedFrom reports whether no response that is kept under the key is for the request,
// see needsVariant.
func (q *query) excludedFrom(key string) bool { return q.needsVariant && key == q.target.key }

// selects reports whether the request asks for the variant whose response has made the
// signpost, and is still being written.
func (q *query) selects(signpost *response) bool {
	return q.m.variantKey(signpost, q.target.key, q.target.header) == signpost.id
}

// client is equal for requests with the same Cookie and credentials: the response to one of
// them could be the response to another.
func (q *query) client() string {
	if !q.request.Credentials {
		return strings.Join(q.r.Header["Cookie"], "; ")
	}
	var b strings.Builder
	b.WriteByte(0) // which no Cookie has
	fmt.Fprintf(&b, "%q", q.r.Header["Cookie"])
	for _, name := range q.m.credentials {
		fmt.Fprintf(&b, "%q", q.r.Header[name])
	}
	if c := clientCertificate(q.r); c != nil {
		b.Write(c.Raw)
	}
	return b.String()
}

// reuse reports whether RFC 9111 lets res, the response of it, answer a request.
func reuse(it *items.Item[*response], res *response, now instant, d httpcache.RequestDirectives) bool {
	f := res.freshness
	if x := res.of; x != nil { // it is still being written, and the item's life has not begun
		return f.Reuse(res.age+time.Since(x.decidedAt), d)
	}
	// The item's: the response knows nothing of a jitter or a sweep, nor, from a store, of windows.
	f.Lifetime, f.StaleWhileRevalidate = it.FreshUntil-it.Born, it.StaleUntil-it.FreshUntil
	return f.Reuse(now-it.Born, d)
}

// atHand answers without the handler if it can. If it cannot, the item is what
// may be served when patience ends, or nil.
func (q *query) atHand(key string) (it *items.Item[*response], early, ok bool) {
	e, want := q.m.engine, q.want(key)
	if it, early, ok = e.hitFor(key, want); ok {
		return it, early, true
	}
	if q.directives.MaxStale.Set {
		// A client that takes what is staler than we would serve gets it if this
		// process has it.
		it, now := e.near.Get(key)
		if it != nil && it.Held && now < it.Trusted && it.Value.kind == plain && (want.fits == nil || want.fits(it)) && want.accept(it, now) {
			e.count.stale.Add(1)
			return it, false, true
		}
	}
	if q.directives.OnlyIfCached {
		if it := e.apart(key, e.EngineTimeout).peek(q.r.Context()); it != nil && want.takes(it, e.clock.Now(), forever) {
			return it, false, true
		}
	}
	return it, false, false
}

// spared returns what the request takes in the place of an error by its own
// stale-if-error (RFC 5861 section 4); nil if it takes none, or there is nothing
// in this process that may be served so.
func (q *query) spared(key string) *items.Item[*response] {
	if !q.directives.StaleIfError.Set || q.excludedFrom(key) {
		return nil
	}
	e := q.m.engine
	it, now := e.near.Get(key)
	if it == nil || q.began >= it.Trusted {
		return nil
	}
	it = q.m.fallback(key, it)
	if it == nil || !it.Held || it.Value.kind != plain || httpcache.IsServerError(it.Value.status) || !q.mayHave(it.Value) {
		return nil
	}
	f := it.Value.freshness
	f.Lifetime, f.StaleIfError = it.FreshUntil-it.Born, it.ErrorUntil-it.FreshUntil // as in reuse
	if !f.ReuseOnError(now-it.Born, q.directives) {
		return nil
	}
	return it
}

// fallback is the response under a key beside errors: it, or what it, an error, has
// taken the place of; nil if there is none. What an error stands in front of was not
// held against the log meanwhile.
func (m *Middleware) fallback(key string, it *items.Item[*response]) *items.Item[*response] {
	switch {
	case it == nil || it.Kind != KindValue:
		return nil
	case it.Value.instead == nil:
		return it
	}
	return m.engine.spare(key, it.Value.instead)
}

// wait answers by way of the handler.
func (q *query) wait(c *call, key string, stale *items.Item[*response]) (served[*response], error) {
	m := q.m
	c.aside = make(chan func(), maxHints)
	c.inform = q.inform
	w := q.want(key)
	w.aside, w.client, w.personal = c.aside, c.client, c.personal()
	waiter := m.engine.waiter(q.r.Context(), key, stale)
	waiter.want, waiter.lose = w, q.lose
	waiter.wait(requested{q, c, chi.RouteContext(q.r.Context())})
	q.lose = waiter.lose
	if waiter.dueEarly() {
		q.refresh(key, waiter.answer.item, c.signpost)
	}
	if q.told != nil {
		q.add(waiter.served())
	}
	waiter.answer.collapsed = waiter.collapsed // also for who has got none
	return waiter.answer, waiter.err
}

// call is the request's wait for the key that the signpost has led to.
func (q *query) call(signpost *items.Item[*response]) *call {
	return &call{
		request: q.request, client: q.client(), base: q.target.key, signpost: signpost,
		excluded: q.needsVariant && signpost == nil,
	}
}

// requested binds the handler's load for a flight that the call begins.
type requested struct {
	*query
	call  *call
	route *chi.Context // the request's
}

func (q requested) bind() loader[*response] {
	r := detach(q.r, q.route)
	if t := q.target.url; t != q.r {
		retarget(r, t)
	}
	return func(ctx context.Context, a attempt[*response]) (*response, error) {
		return q.m.fetch(ctx, a, q.call, q.next, r)
	}
}

// retarget gives r the host and the query of t: a part of the URL that the key leaves out
// must not get into the response.
func retarget(r, t *http.Request) {
	r.Host, r.URL.RawQuery, r.URL.ForceQuery = t.Host, t.URL.RawQuery, t.URL.ForceQuery
	path, _, _ := strings.Cut(r.RequestURI, "?")
	if path == "" {
		return
	}
	r.RequestURI = path
	if t.URL.RawQuery != "" || t.URL.ForceQuery {
		r.RequestURI += "?" + t.URL.RawQuery
	}
}

// refresh has a fresh response rebuilt behind the client's back: it has no reader
// that would have to keep up with it, nor one for interim responses.
func (q *query) refresh(key string, it, signpost *items.Item[*response]) {
	c := q.call(signpost)
	c.aside = make(chan func())
	c.leave()
	q.m.engine.refresh(q.r.Context(), key, it, requested{q, c, chi.RouteContext(q.r.Context())}, c.client)
}

// reasonAuthorization is why a request with Authorization goes past the cache.
const reasonAuthorization = "authorization"

// authorizedKey is where it is written, in this process alone, what is known of
// a key's responses to requests with Authorization.
func authorizedKey(key string) string { return key + "\x00\x00authorization" }

// tellsAudience reports whether a response of that status tells for whom a key's responses
// are. An error is about the client, and a part or a 304 about what the client has asked.
func tellsAudience(status int) bool {
	return status < 400 && status != http.StatusPartialContent && status != http.StatusNotModified
}

// uncacheableFor is how long it is remembered that a key's response was not for sharing,
// which took so long: at least until the next response can say so.
func (m *Middleware) uncacheableFor(took time.Duration) items.Windows {
	return items.Windows{TTL: max(m.options.UncacheableTTL, durations.Add(took, took))}
}

// learnAuthorized remembers whether a response to a request with Authorization
// was for all.
func (m *Middleware) learnAuthorized(key string, shared bool) {
	now := m.engine.clock.Now()
	it := &items.Item[*response]{Kind: KindValue, Value: &response{kind: uncacheable}, Trusted: forever}
	it.Lifetime = items.NewLifetime(now, items.Windows{TTL: m.options.UncacheableTTL})
	if shared {
		it.Value = &response{kind: open}
		it.Lifetime = items.NewLifetime(now, items.Windows{TTL: varyingTTL})
	}
	m.engine.weigh(authorizedKey(key), it)
	m.engine.putNear(authorizedKey(key), it, 1)
}

// learntAuthorized returns what learnAuthorized remembers: open, uncacheable,
// or plain if it is not known.
func (m *Middleware) learntAuthorized(key string) responseKind {
	if it, now := m.engine.near.Get(authorizedKey(key)); it != nil && now < it.FreshUntil {
		return it.Value.kind
	}
	return plain
}
