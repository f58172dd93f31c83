package page

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/go-chi/chi/v5"
)

// This file prepares a load: the key's items, and the handler's request.

// A load is a run of the handler for a flight, with the initial state. All fields are immutable.
type load struct {
	m       *Middleware
	owner   *call // the call that began the flight
	attempt Attempt
	ctx     context.Context // the attempt's
	sent    time.Time

	fwd    httpcache.Forward // why the handler is asked
	before *Item             // the key's response, however old; nil if there is none
	asks   *condition        // the subject of the request's conditions; nil if there are no conditions
}

// newLoad returns a load without conditions.
func (c *call) newLoad(ctx context.Context, a Attempt) load {
	l := load{m: c.m, owner: c, attempt: a, ctx: ctx, sent: time.Now(), fwd: httpcache.FwdURIMiss}
	if c.signpost != nil {
		l.fwd = httpcache.FwdVaryMiss
	}
	before := a.Present
	if before == nil || before.Kind != driver.KindValue || responseOf(before).kind != plain {
		return l
	}
	l.before = before
	if !c.unanswerable() {
		l.fwd = forwardDespite(before, c.m.cache.Now())
	}
	return l
}

// spare returns the response to serve if the load fails now, nil if there is none.
func (l *load) spare() *Item {
	if !l.servable() || l.owner.unanswerable() || httpcache.IsServerError(responseOf(l.before).status) {
		return nil
	}
	return l.before
}

// servable reports whether the cache may still serve the key's response, at least when loads fail.
func (l *load) servable() bool {
	return l.before != nil && l.m.cache.Now() < max(l.before.StaleUntil, l.before.ErrorUntil)
}

// failures is the number of the key's failures in a row, if the handler fails now. A failure in the pause after the
// last failure is not counted: clients that decline the stored error must not prolong the pauses.
func (l *load) failures(now instant) uint32 {
	it := l.attempt.Present // unlike before, also a failure without a response
	if it == nil || l.owner.unanswerable() {
		return 1
	}
	var n uint32
	var due instant
	if it.RemembersFailures() {
		n, due = it.Failures, it.RetryAt
	}
	if it.Kind == driver.KindValue && responseOf(it).failures > 0 {
		n, due = max(n, responseOf(it).failures), max(due, it.FreshUntil)
	}
	if now < due {
		return n
	}
	return n + 1
}

// sharesByDefault: the key's responses are for everyone, by TTL or because one was.
func (l *load) sharesByDefault() bool {
	return l.m.options.Rules.DefaultLifetime > 0 || l.before != nil
}

// open reports whether the load is for a request with credentials, and the key's responses answer such requests. If
// an error has replaced the response, the answer is learntOpenToAll's.
func (l *load) open() bool {
	if !l.owner.target.Credentials || l.before == nil {
		return false
	}
	was := responseOf(l.before)
	if !was.openToAll && httpcache.IsServerError(was.status) {
		open, _ := l.m.learntOpenToAll(l.owner.key)
		return open
	}
	return was.openToAll
}

// A condition asks a handler whether a stored response is still valid.
type condition struct {
	about  *Response
	header http.Header // about's header, decoded once
}

// condition returns the condition that a request may put on res, nil if there is none, as for a record. A request
// with credentials asks only about a response that is also for requests with credentials.
func (m *Middleware) condition(res *Response, req httpcache.Request) *condition {
	h := res.fields.header()
	switch {
	case !httpcache.Validatable(res.status, h),
		(res.kind == checked || res.freshness.Lifetime == 0 && httpcache.StatesZero(h, m.options.Rules)) && !httpcache.ValidatedFor(req, h, m.options.Rules),
		req.Credentials && !res.openToAll:
		return nil
	}
	return &condition{res, h}
}

// freshened returns the stored header with the fields of a 304, and the judgement of the stored response after the
// 304 (RFC 9111 section 4.3.4). The 304 has the canonical header said, and answers a request sent at sent. personal is
// the header for the client whose request the 304 answers: it also has the fields that the 304 keeps from others.
func (c *condition) freshened(req httpcache.Request, said http.Header, sent, now time.Time, rules httpcache.Options) (fresh, personal http.Header, j httpcache.Judgement) {
	d := httpcache.ResponseDirectives(said, rules.Targets...)
	fresh = httpcache.Freshen(c.header, httpcache.StoredHeader(said, d, now))
	own, kept := maps.Clone(said), http.Header{}
	httpcache.RemoveConnectionFields(own)
	for _, name := range d.QualifiedFields() {
		if lines, has := own[name]; has {
			kept[name] = lines
		}
	}
	return fresh, httpcache.Freshen(fresh, kept), httpcache.JudgeAged(req, c.about.status, fresh, httpcache.InitialAge(said, sent, now), now, rules)
}

// ownRoute returns ctx with a copy of a chi routing context, if any. chi reuses the original when the
// request ends, and our handler still reads it. And a router continues where the last run left it.
func ownRoute(ctx context.Context, rc *chi.Context) context.Context {
	if rc != nil {
		return context.WithValue(ctx, chi.RouteCtxKey, rc.Clone())
	}
	return ctx
}

// detach returns a copy of a client's request that outlives it: without a body, and with an endless context.
// route, its routing context, is an argument: Value may be user code, and the caller holds a lock.
func detach(r *http.Request, route *chi.Context) *http.Request {
	d := r.Clone(ownRoute(context.WithoutCancel(r.Context()), route))
	d.Body, d.Trailer = http.NoBody, nil // the body is empty, and over HTTP/2 a trailer may be announced all the same
	// An outer middleware, or Key, may have parsed the query that the client has sent.
	d.Form, d.PostForm, d.MultipartForm = nil, nil, nil
	return d
}

// withServer returns ctx with a server, ctx itself if it has one. Only below a server ReverseProxy
// panics on a body that breaks off. Otherwise it returns, and the part would count as the whole body.
func withServer(ctx context.Context) context.Context {
	if ctx.Value(http.ServerContextKey) != nil {
		return ctx
	}
	return context.WithValue(ctx, http.ServerContextKey, new(http.Server))
}

// contentFields describe a request's content. The handler's request has no content.
var contentFields = []string{"Content-Length", "Content-Type", "Content-Encoding", "Expect"}

// forEverybody returns the client's request without the parts that would make the answer one client's. Each
// run has its own: the routers and middlewares of an earlier run have changed path, header and route.
func (m *Middleware) forEverybody(ctx context.Context, r *http.Request) *http.Request {
	ctx = withServer(ownRoute(ctx, chi.RouteContext(ctx)))
	if rc := chi.RouteContext(ctx); rc != nil && rc.RouteMethod == http.MethodHead {
		rc.RouteMethod = http.MethodGet
	}
	d := r.Clone(ctx)
	d.Method = http.MethodGet // the GET's response answers a HEAD
	for _, name := range contentFields {
		delete(d.Header, name)
	}
	if m.options.IgnoreRequestDirectives {
		delete(d.Header, "Cache-Control")
		delete(d.Header, "Pragma")
	} else {
		httpcache.RemoveAllowances(d.Header)
	}
	m.removePersonal(d.Header)
	d.Header, _ = httpcache.Normalised(d.Header, m.options.Rules)
	httpcache.Canonicalise(d)
	return d
}

// removePersonal removes the fields of a request that the key leaves out: the handler must not see them.
func (m *Middleware) removePersonal(h http.Header) {
	httpcache.RemoveConditions(h)
	httpcache.RemoveDeadlines(h)
	m.options.Rules.RemoveAliases(h)
	httpcache.RemoveConnectionFields(h)
	delete(h, "Host") // net/http leaves it beside HTTP/2's ":authority" (RFC 9113 section 8.3.1)
}

// plainRequest reports whether a bypassing request has the target of the cache's own request to the handler, and no
// field that the cache's own lacks, except Connection and the content's. See detach, retarget and forEverybody.
func (m *Middleware) plainRequest(r *http.Request, t target) bool {
	host, _ := httpcache.CanonicalHost(t.url.Host)
	if host != r.Host || t.url.URL.RawQuery != r.URL.RawQuery || t.url.URL.ForceQuery != r.URL.ForceQuery || !httpcache.Canonical(r) {
		return false
	}
	own := maps.Clone(r.Header)
	if m.removePersonal(own); r.Header["Connection"] != nil {
		own["Connection"] = nil // common clients send it
	}
	return r.Trailer == nil && !t.needsVariant && len(own) == len(r.Header)
}

// retarget gives r the host and query of t: a part outside the key must not get into the response.
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
