package page

import (
	"context"
	"maps"
	"net/http"
	"sync"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/spool"
	"github.com/go-chi/chi/v5"
)

// This file is the client's side of an exchange: its place in the body, what its
// own goroutine has to do, and that it may leave.

// A call is one request that waits for a key.
type call struct {
	query   *query
	route   *chi.Context // the request's, asked for before the locks under which Bind is called
	request httpcache.Request
	client  string // see query.client
	// base is the key of the request's URL, and signpost the item there whose names
	// have led to the key that the call waits for; nil if that is base itself.
	base     string
	signpost *Item
	// excluded tells that a response under the URL's own key is not for the request, which
	// needs a variant. There is no signpost to that yet.
	excluded bool
	aside    chan func() // what the call's own goroutine is to do while it waits
	waiting  Waiting
	earlier  *call // of the same query

	mu     sync.Mutex // guards what follows
	ran    *exchange  // the latest run of the handler for this call
	left   bool
	reader *spool.Reader
	alone  *exchange // whose only reader the call is
}

// maxHints is how many interim responses wait for the first client at most. One
// more is dropped, as any intermediary may (RFC 9110 section 15.2).
const maxHints = 8

// personal reports whether a failure of the call's load may be about its request: others
// for the key do not have the Cookie, the credentials, or the fields that need a variant.
func (c *call) personal() bool {
	return c.request.Credentials || c.request.Header["Cookie"] != nil || c.excluded
}

// names are the request fields by which the call's key tells responses apart.
func (c *call) names() []string {
	if c.signpost == nil {
		return nil
	}
	return c.signpost.Value.names
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

// began reports whether the handler was run for this call.
func (c *call) began() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ran != nil
}

// attach takes the call's place at the start of a body, if it is still there.
func (c *call) attach(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ran != x {
		return // given up on, and late: the call reads what a later run makes
	}
	if c.reader != nil {
		c.reader.Close() // of a run that an invalidation has made void
		c.reader = nil
	}
	if !c.left {
		c.reader, _ = x.body.NewReader()
	}
}

// follow binds the end of the handler to the end of its only client.
func (c *call) follow(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alone = x
	if c.left {
		x.cancel(context.Canceled)
	}
}

// takeReader returns the call's place in the body of x: the one that was taken
// for it, or a new one if the body's start is still there.
func (c *call) takeReader(x *exchange) (*spool.Reader, bool) {
	if x.owner != c {
		return x.body.NewReader()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reader, c.reader != nil
}

// leave gives the call's place up, so that a body does not wait for it.
func (c *call) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
	if c.reader != nil {
		c.reader.Close()
	}
	if c.alone != nil {
		c.alone.cancel(context.Canceled)
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
