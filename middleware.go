package bellwether

import (
	"cmp"
	"context"
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

// This file is the HTTP face for its users. internal/page answers requests, on the engine through below.go.

// HTTPOptions configure a [Middleware]. The zero HTTPOptions cache, in this process, each response that
// says that it may be cached. A negative value is refused unless its field's comment mentions it, and so is a
// time of 2 to 999 ns, which lacks its unit. docs/options.md and docs/http.md have the details.
type HTTPOptions struct {
	// TTL is the freshness of responses without their own, with a cacheable status (RFC 9110 section 15.1)
	// or public. Handlers that answer by a Cookie must say private or Vary: Cookie. Zero or negative: off.
	TTL time.Duration
	// StaleWhileRevalidate is the window of responses that allow it. Zero or negative: off.
	StaleWhileRevalidate time.Duration
	// StaleIfError is the window of responses that allow it. Zero or negative: off.
	StaleIfError time.Duration
	// Freshness replaces said, the freshness of a shareable response by its header and these options. It
	// runs while the handler writes its header, and must not change r, the handler's request, or header. Its
	// panic is the handler's. Zero Freshness: only waiting clients share the response. Nil: said.
	Freshness func(r *http.Request, status int, header http.Header, said Freshness) Freshness
	// ErrorTTL is the first pause after a failure, also after a 500, 502, 503 or 504 without a freshness of
	// its own. Zero means 1 s. Negative: off, an error answers only waiting requests.
	ErrorTTL time.Duration
	// MaxErrorTTL is the longest pause after failures. Zero means 5 s, or ErrorTTL if longer.
	MaxErrorTTL time.Duration
	// EarlyRefresh is the beta of XFetch, see [Options]. Zero or negative: off.
	EarlyRefresh float64
	// TTLJitter is the largest fraction to subtract from a TTL at random. Zero or negative: off.
	TTLJitter float64

	// Patience is how long requests with a stale response wait for a fresh one. Zero or negative: off.
	Patience time.Duration
	// MaxWait is how long other requests wait. Zero means RebuildTimeout plus Fleet.LeaseTTL.
	MaxWait time.Duration
	// RebuildTimeout is the time limit of a run of the handler, for a response to one client until its
	// header. Zero means 30 s.
	RebuildTimeout time.Duration

	// Fleet joins the middlewares of several processes. Zero: this process is alone.
	Fleet Fleet
	// Limits bound the middleware in this process.
	Limits Limits

	// OnError is called for each error that no client gets, see [Options]. The key of a variant has a NUL
	// byte, and the error quotes the key. Nil: no calls.
	OnError func(key string, err error)
	// Observers are called for the middleware's events, see [Options]. None: no calls.
	Observers []observe.Observer

	// MaxBodyBytes is the largest stored body, in bytes. Larger bodies stream. Zero means 8 MiB.
	MaxBodyBytes int64
	// MaxHeldBytes bounds the bodies that clients hold beside the near tier, in bytes. Beyond it new
	// bodies stream, and clients of the eldest are cut off. Zero means 256 MiB, or a larger MaxBodyBytes.
	MaxHeldBytes int64
	// HitForMissTTL is how long an unshareable response sends its key's requests straight to the
	// handler, at least twice the time to its header. Further such responses prolong it, and a cacheable
	// response ends it. Zero means 10 s.
	HitForMissTTL time.Duration
	// MaxPassThrough is how many requests at a time ask the handler after MaxWait. Zero or negative: off.
	MaxPassThrough int

	// IgnoreRequestDirectives ignores Cache-Control in requests, by which clients choose the moments of
	// rebuilds. Default: RFC 9111 section 5.2.1 holds.
	IgnoreRequestDirectives bool
	// MaxStreams is how many GET and HEAD requests with a key ask for an upgrade or, by Accept, an event
	// stream at a time. Others get 503. Zero means 65,536.
	MaxStreams int

	// Key returns the key of a request's response, or false to send the request past the cache. [Keys]
	// makes a Key of rules. It runs for each request, on the request's goroutine, and must not change r.
	// A GET's r has the fields as the handler sees them. A handler that answers by a part that Key leaves
	// out must say private or name the field in Vary. For an unsafe method, Key returns the URL that the
	// request changes, and with InvalidateLocations it also runs for a GET to each location. Nil: the
	// request's URL.
	Key func(r *http.Request) (key Key, ok bool)

	// CredentialFields are request fields with credentials, beside Authorization and client certificates.
	// Name Cookie if handlers answer by it and say neither private nor Vary: Cookie. Nil: none.
	CredentialFields []string

	// TargetedFields are response fields that replace Cache-Control for this cache (RFC 9213). The
	// first present field counts unless it is malformed. Nil means CDN-Cache-Control. Empty: none.
	TargetedFields []string
	// RetargetingFields are request fields that choose another scheme, host, port or path, beside some
	// 140 known ones such as X-Forwarded-Host. Each set of these fields makes a variant. Nil: none.
	RetargetingFields []string
	// HiddenFields are response fields for the cache only, such as Surrogate-Control. Nil: none.
	HiddenFields []string
	// TagFields are the response fields with the tags of [Match], the same in a fleet. Spaces and
	// commas separate tags. Nil: Surrogate-Key (spaces only) and Cache-Tag (commas only). Empty: none.
	TagFields []string
	// HideStatusKey leaves the key out of Cache-Status (RFC 9211 section 6). Default: a reply from a run of the
	// handler shows it, and a hit does not.
	HideStatusKey bool
	// UnsafeInvalidation is the effect of a successful unsafe request, such as POST, on its URL (RFC 9111
	// section 4.4). Set NoInvalidation if any client may send one for any URL. Default: HardInvalidation.
	UnsafeInvalidation Invalidation
	// InvalidateLocations adds the same-host URLs in Location and Content-Location to the URL of
	// UnsafeInvalidation. Default: off.
	InvalidateLocations bool

	// HeuristicFraction is the share of the time since Last-Modified, up to 24 h, for which a response
	// without a freshness is fresh if TTL is zero (RFC 9111 section 4.2.2). Zero or negative: off.
	HeuristicFraction float64
	// StoreSetCookie shares responses with Set-Cookie and their own lifetime above zero, without no-cache. Default: not shared.
	StoreSetCookie bool
	// AnyLanguageOrder sorts Accept-Language, also for the handler. Default: each order makes a variant.
	AnyLanguageOrder bool
}

// An Invalidation is the effect of an unsafe request on stored responses.
type Invalidation uint8

const (
	// HardInvalidation drops the responses.
	HardInvalidation Invalidation = iota
	// SoftInvalidation makes the responses stale from now on. Without room in the log it drops them, see
	// docs/http.md.
	SoftInvalidation
	// NoInvalidation keeps the responses.
	NoInvalidation
)

// A Key identifies the response to a request.
type Key struct {
	// URL is "http://host/path?query", or with https as another key. Empty: the request's own URL.
	URL string
	// Variant separates responses to one URL by another part of the request, such as a cookie's value.
	// Requests with an empty Variant share one response. Invalidating the URL invalidates all its variants.
	Variant string
}

// A Middleware is a shared cache by RFC 9111 for the responses of the handlers that it wraps. It is
// safe for concurrent use, and may wrap several handlers if they serve different URLs.
type Middleware struct {
	engine *engine
	pages  *page.Middleware
}

// NewMiddleware returns a Middleware. Like [New], it panics on invalid options.
func NewMiddleware(o HTTPOptions) *Middleware {
	o.check()
	o.fill()
	s := o.options().settings("HTTPOptions")
	e := newEngine(s, face{
		size: page.Size, answers: page.IsAnswer,
		marshal: page.Marshal, unmarshal: page.Unmarshal,
		traits: page.Traits(httpcache.CanonicalNames(o.TagFields)),
	})
	return &Middleware{engine: e, pages: page.New(below{e}, o.pages(s))}
}

// check panics on options that only this face has and that cannot be meant.
func (o *HTTPOptions) check() {
	checkRules("HTTPOptions", []rule{
		{"MaxBodyBytes", o.MaxBodyBytes, o.MaxBodyBytes < 0, notNegative},
		{"MaxHeldBytes", o.MaxHeldBytes, o.MaxHeldBytes < 0, notNegative},
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

// fill fills in the defaults that only this face has.
func (o *HTTPOptions) fill() {
	o.MaxPassThrough, o.HeuristicFraction = max(0, o.MaxPassThrough), max(0, o.HeuristicFraction)
	o.MaxBodyBytes = cmp.Or(o.MaxBodyBytes, 8<<20)
	o.MaxHeldBytes = cmp.Or(o.MaxHeldBytes, max(256<<20, o.MaxBodyBytes))
	timeOption{"HitForMissTTL", &o.HitForMissTTL, 10 * time.Second, false}.fill("HTTPOptions")
	o.MaxStreams = cmp.Or(o.MaxStreams, 1<<16)
	if o.TargetedFields == nil {
		o.TargetedFields = []string{"CDN-Cache-Control"}
	}
	if o.TagFields == nil {
		o.TagFields = httpcache.TagFields
	}
	// A page may fetch a part of its own site over HTTP. The part's load cannot borrow the page's slot,
	// because no context leads from one to the other.
	o.Limits.MaxRebuilds = cmp.Or(o.Limits.MaxRebuilds, 4096)
}

func (o *HTTPOptions) options() Options {
	return Options{
		TTL: o.TTL, StaleWhileRevalidate: o.StaleWhileRevalidate, StaleIfError: o.StaleIfError,
		ErrorTTL: o.ErrorTTL, MaxErrorTTL: o.MaxErrorTTL, EarlyRefresh: o.EarlyRefresh, TTLJitter: o.TTLJitter,
		Patience: o.Patience, MaxWait: o.MaxWait, RebuildTimeout: o.RebuildTimeout,
		Fleet: o.Fleet, Limits: o.Limits, OnError: o.OnError, Observers: o.Observers,
	}
}

func (o *HTTPOptions) pages(s settings) page.Options {
	po := page.Options{
		Shared: s.Store != nil, EarlyRefresh: s.EarlyRefresh > 0,
		Patience: s.Patience > 0, ErrorTTL: s.ErrorTTL, MaxErrorTTL: s.MaxErrorTTL, EngineTimeout: s.EngineTimeout, RebuildTimeout: s.RebuildTimeout,
		MaxBodyBytes: o.MaxBodyBytes, MaxHeldBytes: o.MaxHeldBytes, MaxStreams: o.MaxStreams, MaxPassThrough: o.MaxPassThrough, HitForMissTTL: o.HitForMissTTL,
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
			Credentials:          append([]string{"Authorization"}, httpcache.CanonicalNames(o.CredentialFields)...),
		},
		Hidden: httpcache.CanonicalNames(o.HiddenFields),
	}
	if decide := o.Freshness; decide != nil {
		po.Rules.Freshness = func(r *http.Request, status int, header http.Header, age time.Duration, f httpcache.Freshness) httpcache.Freshness {
			ruled := decide(r, status, header, Freshness{Age: age, TTL: f.Lifetime, StaleWhileRevalidate: f.StaleWhileRevalidate, StaleIfError: f.StaleIfError})
			f.Lifetime, f.StaleWhileRevalidate, f.StaleIfError = ruled.TTL, ruled.StaleWhileRevalidate, ruled.StaleIfError
			return f
		}
	}
	if o.Key != nil {
		po.Key = func(r *http.Request) (url, variant string, ok bool) {
			key, ok := o.Key(r)
			return key.URL, key.Variant, ok
		}
	}
	return po
}

func checkFields(option string, names []string, example string) {
	for i, name := range names {
		if !httpcache.FieldName(name) {
			refuse(fmt.Sprintf("HTTPOptions.%s[%d]", option, i), strconv.Quote(name), "be the name of a field, such as "+example)
		}
	}
}

// Stats returns the counters of the middleware since its creation.
func (m *Middleware) Stats() observe.Stats { return m.engine.snapshot() }

// Close ends the middleware and cancels its rebuilds. Later GET and HEAD requests get 503 (504 with
// only-if-cached), unless they go past the cache. Store and Locker stay open. Close waits for all
// goroutines except handlers, so observers and OnError must not call Close. A second Close is
// harmless. The error is nil.
func (m *Middleware) Close() error {
	m.engine.close()
	return nil
}

// Handler wraps next, as a middleware of chi or net/http. Only GET and HEAD are answered from the
// cache. A second use of it within next has no effect.
//
// The handler runs detached, with a goroutine and a context of its own. It sees the first client's
// header, cookies and address, as a GET without ranges and with the cache's own conditions. A handler
// that uses a session or a CSRF token from the request's context must say private or Vary.
//
// If the handler panics, clients get a stale response. Without one, the panic reaches the server of the
// first client, and the others get 502. "Handlers behind the cache" in docs/http.md has the rules for
// routers, other middlewares, panics and upgrades.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	if f, is := next.(http.HandlerFunc); next == nil || is && f == nil {
		panic(errors.New("bellwether: Handler needs a handler to wrap"))
	}
	return m.pages.Handler(next)
}

// Refresh has the response to r made again by h, and returns when the new response is stored. h is the
// handler that Handler has returned, or a router or middleware around it. r is a GET, as a client would
// send it; its header selects the variant. Other clients get the stored response meanwhile.
//
// Refresh asks as a client with Cache-Control: no-cache does. Calls share a run that begins after them.
// The end of r's context ends the wait, not the run. An error says why the stored response stays.
func (m *Middleware) Refresh(h http.Handler, r *http.Request) error {
	return m.pages.Refresh(h, r)
}

// Invalidate drops the responses of the URLs, with all variants, as [Cache.Invalidate] does. A URL
// "http://host/path?query" also means https. A response that another process is writing may be joined
// for NearTTL.
func (m *Middleware) Invalidate(ctx context.Context, urls ...string) error {
	return m.InvalidateMatching(ctx, Match{Keys: urls})
}

// InvalidateMatching drops the matching responses. After it has returned nil, no matching response made
// before the call is served in this process, nor in others after NearTTL. An error names each invalid part,
// each URL that failed, and the log if its write failed. The other parts are done.
//
// Soft matches, Prefixes, Tags and All go into a log of 500 places. A response older than the log
// counts as invalidated. Without a locker that answers, one of two processes' simultaneous calls may be lost.
func (m *Middleware) InvalidateMatching(ctx context.Context, match Match) error {
	return m.pages.Invalidate(ctx, page.Match(match))
}

// Ping checks the engines at start-up, as [Cache.Ping] does.
func (m *Middleware) Ping(ctx context.Context) error { return m.engine.ping(ctx) }
