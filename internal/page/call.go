package page

import (
	"maps"
	"net/http"

	"github.com/go-chi/chi/v5"
)

// This file is the client's side of an exchange: the request that waits for it, and what the
// client's own goroutine has to do meanwhile.

// A call is one request that waits for a key.
type call struct {
	query *query
	route *chi.Context // the request's, asked for before the locks under which Bind is called
	// signpost is the item under the key of the request's URL whose names have led to the key that
	// the call waits for; nil if that is the URL's own.
	signpost *Item
	// excluded tells that a response under the URL's own key is not for the request, which
	// needs a variant. There is no signpost to that yet.
	excluded bool
	aside    chan func() // what the call's own goroutine is to do while it waits
	waiting  Waiting
	place    // the client's, in the body
}

// maxHints is how many interim responses wait for the first client at most. One
// more is dropped, as any intermediary may (RFC 9110 section 15.2).
const maxHints = 8

// personal reports whether a failure of the call's load may be about its request: others
// for the key do not have the Cookie, the credentials, or the fields that need a variant.
func (c *call) personal() bool {
	r := c.query.request
	return r.Credentials || r.Header["Cookie"] != nil || c.excluded
}

// names are the request fields by which the call's key tells responses apart.
func (c *call) names() []string {
	if c.signpost == nil {
		return nil
	}
	return c.signpost.Value.vary.names
}

// hint has an interim response sent to the call's client. Only the client's own
// goroutine may touch its ResponseWriter, so it is handed over, and the handler
// does not wait for it.
func (c *call) hint(status int, h http.Header) {
	h = h.Clone() // the handler goes on with its own
	select {
	case c.aside <- func() { c.query.inform(status, h) }:
	default:
	}
}

// settleAside does what is left to do for the call's own goroutine.
func (c *call) settleAside() {
	for {
		select {
		case do := <-c.aside:
			do()
		default:
			return
		}
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
