package page

import (
	"context"
	"net/http"
	"time"

	"github.com/bellwether-go/bellwether/internal/httpcache"
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
