package bellwether

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/page"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is the HTTP face for its users. What it does with a request is in internal/page, and
// what that asks of the cache in below.go.

// HTTPOptions configure a [Middleware]. The zero HTTPOptions cache, in this
// process, what says that it may be cached. Zero and negative values are as in [Options];
// MaxPassThrough and HeuristicFraction can be off.
type HTTPOptions struct {
	// TTL is how long a response is fresh that carries no freshness of its own and has a
	// status that need not (RFC 9110 section 15.1: 200 and 404, for example), or any that is
	// no error of a server's if it says public. With a TTL, what a handler makes of a Cookie
	// is everybody's, unless it says private or Vary: Cookie, or Key returns false. Zero:
	// such a response is never fresh; if it says public it is stored for its stale windows,
	// if it has any.
	//
	// The age of a response counts from when its handler wrote the header; if that
	// has a Date or an Age, which those of a proxied upstream have, by RFC 9111
	// section 4.2.3.
	TTL time.Duration
	// StaleWhileRevalidate is the window of responses that name none and do not forbid one,
	// see [Options]. Zero: none.
	StaleWhileRevalidate time.Duration
	// StaleIfError is the window of responses that name none and do not forbid one, see
	// [Options]. Zero: none.
	StaleIfError time.Duration
	// Freshness returns the freshness of a response in this cache, in the place of said: by
	// status, by path or by header, with a bound or without. It gets the handler's own
	// request, and said has what the response says, or else these options. A TTL counts from
	// Age zero, as max-age does; set TTL to said.Age+d for a time of d from now. An Age that
	// Freshness returns does not count. Negative durations are zero, and a zero Freshness
	// shares the response between the waiting clients only. Nil: said holds.
	//
	// Freshness is called for responses that may be shared, so that no-store, private,
	// no-cache, a Set-Cookie and credentials count as before; a status such as 302, which
	// needs a lifetime, gets it here. A status from 400 that needs one, such as 403, has to
	// say it itself, and for 500, 502, 503 and 504 ErrorTTL counts. With must-revalidate,
	// proxy-revalidate or s-maxage a response is not served stale. Clients get the response's
	// own header and its true Age: beyond its own max-age their caches ask again.
	//
	// Freshness is called while the handler writes its header, and must change neither
	// request nor header. A panic is the handler's.
	Freshness func(r *http.Request, status int, header http.Header, said Freshness) Freshness
	// ErrorTTL is how long a failure answers, see [Options], and how long an error response
	// (500, 502, 503, 504) without a freshness of its own is served to all clients, if TTL
	// is set, the error says public, or the key has had a response for all. Any other error
	// answers only the waiting requests with the same Cookie and credentials. Zero means
	// 1 s; negative: such an error answers only the requests that wait for it.
	ErrorTTL time.Duration
	// MaxErrorTTL bounds the pauses after failures, see [Options]. Zero means 5 s, or
	// ErrorTTL if that is longer.
	MaxErrorTTL time.Duration
	// EarlyRefresh is the beta of XFetch, see [Options]. Zero: not at all.
	EarlyRefresh float64
	// TTLJitter is the part of a TTL that may be taken off, see [Options]. Zero: nothing.
	TTLJitter float64

	// Patience is how long a request that has a stale response waits for the rebuild before
	// it takes the stale one. Zero: not at all.
	Patience time.Duration
	// MaxWait is how long a request waits that has nothing stale. Zero means RebuildTimeout
	// plus Fleet.LeaseTTL.
	MaxWait time.Duration
	// RebuildTimeout bounds a run of the handler. Zero means 30 s.
	RebuildTimeout time.Duration

	// Fleet joins the middlewares of several processes. Zero: this process is alone.
	Fleet Fleet
	// Limits bound what the middleware takes.
	Limits Limits

	// OnError is told of the errors that no client gets, see [Options]. Nil: nobody is told.
	OnError func(key string, err error)
	// Observers are told what the middleware does, see [Options]. None: nobody is told.
	Observers []observe.Observer

	// MaxBodyBytes is the largest body that is stored, in bytes. A larger one is
	// passed on to those who wait for it, at the pace of the slowest of them; but a
	// client for which the others have to wait 5 s while it takes 4 MiB is broken off.
	// Zero means 8 MiB. What is larger than NearBytes is in Store alone, if there is
	// one.
	MaxBodyBytes int64
	// MaxHeldBytes bounds, in bytes, the bodies that clients of this process hold beside
	// the near tier: those that are being written for several, and those that are
	// being sent, each counted once however many read it, or twice if it is both.
	// Bodies of up to 64 KiB are not counted, nor those that the near tier has. Where there
	// is no room, a body that is being written is not kept: like one over MaxBodyBytes, it goes
	// on at the pace of its slowest client. For a stored body that is to be sent, the
	// clients are broken off that have taken the longest, as far as the server's
	// ResponseWriter has write deadlines. So slow clients of many URLs get no more memory
	// than one and a half times this, and what the near tier has evicted since. Zero means
	// 256 MiB, or MaxBodyBytes if that is more.
	MaxHeldBytes int64
	// HitForMissTTL is how long it is remembered that a key's response was not
	// for sharing; requests for it go straight to the handler meanwhile, and each
	// response like that prolongs it. One cacheable response ends it. Zero means 10 s.
	HitForMissTTL time.Duration
	// MaxPassThrough is how many requests whose wait has run out (MaxWait), or whose key's
	// rebuild has taken longer than RebuildTimeout and never had a response for all, are let
	// through to the handler at one time, in this process. The others get 503
	// with Retry-After. Zero: none is let through.
	MaxPassThrough int

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
	// the request goes past the cache. [Keys] makes a Key of rules.
	//
	// The handler sees the key's host and query, so a parameter that Key leaves out gets
	// into no shared response. The handler sees the request's path, fields and cookies: a
	// part of them that Key leaves out must not change the response, unless the response
	// says private or names the field in Vary.
	//
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
	// TagFields are the response fields with the tags of [Match].Tags, such as xkey or a field
	// of your own. Spaces and commas both separate tags, but for Surrogate-Key, which has
	// words, and Cache-Tag, which is a list with commas. Processes of
	// one fleet need the same names. Nil means Surrogate-Key and Cache-Tag; empty: none.
	TagFields []string
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
	// StoreSetCookie lets responses with Set-Cookie be stored if they say how long
	// they are fresh; each client gets the cookie then. Default: they are not
	// shared.
	StoreSetCookie bool
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
	// URL is "http://host/path?query", or with https, which is kept apart. Empty: the
	// request's own URL.
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
	engine *engine[*page.Response]
	pages  *page.Middleware
}

// NewMiddleware returns a Middleware. It panics if the options cannot be meant;
// the message names the field.
func NewMiddleware(o HTTPOptions) *Middleware {
	o.check()
	o.fill()
	s := o.options().settings("HTTPOptions")
	m := &Middleware{engine: newEngine(s, func(_ string, r *page.Response) int { return r.Size() }, page.Marshal, page.Unmarshal)}
	m.engine.answers, m.engine.fails = (*page.Response).IsAnswer, (*page.Response).IsFailure
	traits := page.Traits(o.tagFields())
	m.engine.keepLog(func(it *page.Item) (tags []string, signpost bool) { return traits(it.Value) })
	m.pages = page.New(below{m.engine}, o.pages(s))
	m.engine.listen()
	m.engine.meetLog()
	return m
}

// check panics on options of this face alone that cannot be meant.
func (o *HTTPOptions) check() {
	checkRules("HTTPOptions", []rule{
		{"MaxBodyBytes", o.MaxBodyBytes, o.MaxBodyBytes < 0, notNegative},
		{"MaxHeldBytes", o.MaxHeldBytes, o.MaxHeldBytes < 0, notNegative},
		{"HitForMissTTL", o.HitForMissTTL, o.HitForMissTTL < 0, notNegative},
		{"MaxStreams", o.MaxStreams, o.MaxStreams < 0, notNegative},
		{"UnsafeInvalidation", o.UnsafeInvalidation, o.UnsafeInvalidation > NoInvalidation, "be HardInvalidation, SoftInvalidation or NoInvalidation"},
		{"HeuristicFraction", o.HeuristicFraction, !(o.HeuristicFraction <= 1), "be from 0 to 1, such as 0.1"},
	})
	checkFields("TargetedFields", o.TargetedFields, "CDN-Cache-Control")
	checkFields("CredentialFields", o.CredentialFields, "Cookie")
	checkFields("HiddenFields", o.HiddenFields, "Surrogate-Key")
	checkFields("TagFields", o.TagFields, "Surrogate-Key")
	checkFields("RetargetingFields", o.RetargetingFields, "X-Forwarded-Host")
}

// fill fills in the defaults of the options of this face, and those that are different here.
func (o *HTTPOptions) fill() {
	o.MaxPassThrough, o.HeuristicFraction = max(0, o.MaxPassThrough), max(0, o.HeuristicFraction)
	o.MaxBodyBytes = cmp.Or(o.MaxBodyBytes, 8<<20)
	o.MaxHeldBytes = cmp.Or(o.MaxHeldBytes, max(256<<20, o.MaxBodyBytes))
	o.HitForMissTTL = cmp.Or(o.HitForMissTTL, 10*time.Second)
	o.MaxStreams = cmp.Or(o.MaxStreams, 1<<16)
	if o.TargetedFields == nil {
		o.TargetedFields = []string{"CDN-Cache-Control"}
	}
	// A page may fetch a part of its own site over HTTP. No context leads from the one to
	// the other, so each needs a slot while the page waits for the part.
	o.Limits.MaxRebuilds = cmp.Or(o.Limits.MaxRebuilds, 4096)
}

// options is what the options say to the engine.
func (o *HTTPOptions) options() Options {
	return Options{
		TTL: o.TTL, StaleWhileRevalidate: o.StaleWhileRevalidate, StaleIfError: o.StaleIfError,
		ErrorTTL: o.ErrorTTL, MaxErrorTTL: o.MaxErrorTTL, EarlyRefresh: o.EarlyRefresh, TTLJitter: o.TTLJitter,
		Patience: o.Patience, MaxWait: o.MaxWait, RebuildTimeout: o.RebuildTimeout,
		Fleet: o.Fleet, Limits: o.Limits, OnError: o.OnError, Observers: o.Observers,
	}
}

// pages is what the options, and the engine's settings by them, say to the HTTP face.
func (o *HTTPOptions) pages(s settings) page.Options {
	po := page.Options{
		Shared: s.Store != nil, EarlyRefresh: s.EarlyRefresh > 0,
		TTL: s.TTL, ErrorTTL: s.ErrorTTL, EngineTimeout: s.EngineTimeout, RebuildTimeout: s.RebuildTimeout,
		MaxBody: o.MaxBodyBytes, MaxHeld: o.MaxHeldBytes, MaxStreams: o.MaxStreams, PassThrough: o.MaxPassThrough, UncacheableTTL: o.HitForMissTTL,
		IgnoreRequestDirectives: o.IgnoreRequestDirectives, HideStatusKey: o.HideStatusKey,
		Unsafe: page.Unsafe(o.UnsafeInvalidation), InvalidateLocations: o.InvalidateLocations,
		Rules: httpcache.Options{
			DefaultLifetime:      s.TTL,
			Targets:              slices.Clone(o.TargetedFields),
			SetCookie:            o.StoreSetCookie,
			HeuristicFraction:    o.HeuristicFraction,
			StaleWhileRevalidate: s.StaleWhileRevalidate,
			StaleIfError:         s.StaleIfError,
			AnyLanguageOrder:     o.AnyLanguageOrder,
			Retargeting:          httpcache.NewRetargeting(o.RetargetingFields...),
		},
		Credentials: []string{"Authorization"}, Hidden: o.HiddenFields,
	}
	if rule := o.Freshness; rule != nil {
		po.Rules.Freshness = func(r *http.Request, status int, header http.Header, age time.Duration, f httpcache.Freshness) httpcache.Freshness {
			ruled := rule(r, status, header, Freshness{Age: age, TTL: f.Lifetime, StaleWhileRevalidate: f.StaleWhileRevalidate, StaleIfError: f.StaleIfError})
			f.Lifetime, f.StaleWhileRevalidate, f.StaleIfError = ruled.TTL, ruled.StaleWhileRevalidate, ruled.StaleIfError
			return f
		}
	}
	for _, name := range o.CredentialFields {
		po.Credentials = append(po.Credentials, http.CanonicalHeaderKey(name))
	}
	if o.Key != nil {
		po.Key = func(r *http.Request) (url, variant string, ok bool) {
			key, ok := o.Key(r)
			return key.URL, key.Variant, ok
		}
	}
	return po
}

// tagFields are the canonical names of the fields with tags.
func (o *HTTPOptions) tagFields() []string {
	if o.TagFields == nil {
		return httpcache.TagFields
	}
	names := make([]string, len(o.TagFields))
	for i, name := range o.TagFields {
		names[i] = http.CanonicalHeaderKey(name)
	}
	return names
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
func (m *Middleware) Stats() observe.Stats { return m.engine.snapshot() }

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
	return m.pages.Handler(next)
}

// Refresh has the response to r made again by h, and returns when the new response is stored. h is the
// handler that Handler has returned, or a router or middleware around it. r is a GET, as a client would
// send it, such as [http.NewRequestWithContext] makes; its header selects the variant.
//
// Refresh asks as a client does that sends Cache-Control: no-cache, also where the cache ignores such
// directives: a response whose run began before the call does not answer, and the runs of several calls
// are one. Other clients get the stored response meanwhile. Refresh is safe for concurrent use.
//
// The end of r's context ends the wait, not the run. An error says why the stored response was not
// replaced: the handler has failed or panicked, the response may not be stored, or h has answered
// without the cache.
func (m *Middleware) Refresh(h http.Handler, r *http.Request) error {
	return m.pages.Refresh(h, r)
}
