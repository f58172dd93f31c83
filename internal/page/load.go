package page

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/go-chi/chi/v5"
)

// This file is a load before its handler runs: what the key has, and what the handler is asked.

// A load is one run of the handler for a flight, with what it starts from. It does not change.
type load struct {
	m       *Middleware
	owner   *call // the call that began the flight
	attempt Attempt
	ctx     context.Context // the attempt's
	sent    time.Time

	fwd    httpcache.Forward // why the handler is asked
	before *Item             // the response that the key has, however old; nil if it has none
	backed bool              // there is something to serve if this fails
	spare  *Item             // what some clients would rather have than an error; nil if there is nothing
	asks   *condition        // what the request's conditions ask about; nil if there are none
}

// newLoad returns a load that asks without conditions. before is what the key has, nil if it has
// nothing.
func (m *Middleware) newLoad(ctx context.Context, a Attempt, c *call, before *Item) load {
	l := load{m: m, owner: c, attempt: a, ctx: ctx, sent: time.Now(), fwd: httpcache.FwdURIMiss}
	if c.signpost != nil {
		l.fwd = httpcache.FwdVaryMiss
	}
	if before == nil || before.Value.kind != plain || !before.Held {
		return l
	}
	now := m.cache.Now()
	l.before = before
	if c.excluded {
		return l
	}
	l.fwd = forwardDespite(before, now)
	if !httpcache.IsServerError(before.Value.status) {
		l.spare, l.backed = before, l.servable()
	}
	return l
}

// request is the client's.
func (l *load) request() httpcache.Request { return l.owner.query.request }

// base is the key of the request's URL.
func (l *load) base() string { return l.owner.query.target.key }

// servable reports whether the key has a response that may still be served, if only
// because loads fail.
func (l *load) servable() bool {
	return l.before != nil && l.m.cache.Now() < max(l.before.StaleUntil, l.before.ErrorUntil)
}

// sharesByDefault reports whether responses to the key are for all unless they say
// otherwise: by TTL, or because the key has had a response for all.
func (l *load) sharesByDefault() bool { return l.m.options.TTL > 0 || l.before != nil }

// A condition asks a handler whether a stored response still holds.
type condition struct {
	about  *Response
	header http.Header // of about, which is decoded once
}

// condition returns what a request may ask about res, nil if nothing. A request with
// credentials asks only about a response that is for it too.
func (m *Middleware) condition(res *Response, req httpcache.Request) *condition {
	if res.kind != plain && res.kind != checked {
		return nil
	}
	h := res.head()
	switch {
	case !httpcache.Validatable(res.status, h),
		res.kind == checked && !httpcache.ValidatedFor(req, h, m.options.Rules),
		res.kind == plain && req.Credentials && !res.forAll:
		return nil
	}
	return &condition{res, h}
}

// ownRoute is ctx with a routing context of its own, if it has chi's: chi takes that
// back into a pool when the request ends, and gives it to another request while our
// handler still reads its parameters; and routers go on from where the handler's
// last run has left it.
func ownRoute(ctx context.Context) context.Context { return withRoute(ctx, chi.RouteContext(ctx)) }

// withRoute is ctx with a copy of rc, if there is one.
func withRoute(ctx context.Context, rc *chi.Context) context.Context {
	if rc != nil {
		return context.WithValue(ctx, chi.RouteCtxKey, rc.Clone())
	}
	return ctx
}

// detach returns a copy of a client's request that outlives it: its context has lost
// its end but not its values, and it has no body. route is the context's: to ask that is
// not for who holds a lock, since it may be anybody's code.
func detach(r *http.Request, route *chi.Context) *http.Request {
	d := r.Clone(withRoute(context.WithoutCancel(r.Context()), route))
	d.Body, d.ContentLength, d.TransferEncoding = http.NoBody, 0, nil
	d.Trailer, d.GetBody = nil, nil
	// A middleware before, or Key, may have parsed the query that the client has sent.
	d.Form, d.PostForm, d.MultipartForm = nil, nil, nil
	return d
}

// withServer returns ctx with a server, ctx itself if it has one. Where an upstream's body
// breaks off, ReverseProxy panics only below a server. Elsewhere it returns, and the part
// of the body would be taken for the whole.
func withServer(ctx context.Context) context.Context {
	if ctx.Value(http.ServerContextKey) != nil {
		return ctx
	}
	return context.WithValue(ctx, http.ServerContextKey, new(http.Server))
}

// contentFields are about a request's content, of which the handler gets none.
var contentFields = []string{"Content-Length", "Content-Type", "Content-Encoding", "Expect"}

// forEverybody makes of a client's request one for the key's representation: whatever
// would make the answer that of one client is left out. Each run of the handler has
// its own, or would find what the routers and middlewares of the run before have left
// in path, header and route.
func (m *Middleware) forEverybody(ctx context.Context, r *http.Request) *http.Request {
	ctx = withServer(ownRoute(ctx))
	if rc := chi.RouteContext(ctx); rc != nil && rc.RouteMethod == http.MethodHead {
		rc.RouteMethod = http.MethodGet
	}
	d := r.Clone(ctx)
	d.Method = http.MethodGet // a HEAD is answered from the GET's response
	for _, name := range contentFields {
		delete(d.Header, name)
	}
	httpcache.RemoveConditions(d.Header)
	m.options.Rules.RemoveAliases(d.Header)
	httpcache.RemoveConnectionFields(d.Header)
	// What the key does not tell apart must not reach the handler. net/http leaves a Host
	// in the header that HTTP/2 has beside ":authority" (RFC 9113 section 8.3.1).
	delete(d.Header, "Host")
	httpcache.Normalise(d.Header, m.options.Rules)
	httpcache.Canonicalise(d)
	return d
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
