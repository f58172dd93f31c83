package page

import (
	"maps"
	"net/http"

	"github.com/go-chi/chi/v5"
)

// This file is the waiting request's side of an exchange, and the work of its goroutine meanwhile.

// A hop is a step of a query from the URL's key to the response's key.
type hop struct {
	key      string
	signpost *Item // the signpost that has led to the key; nil at the URL's own key
}

// A call is a request that waits for a key.
type call struct {
	*query
	hop
	route   *chi.Context // read before the locks under which Bind is called
	aside   chan func()  // work for the call's own goroutine while it waits, nil in a refresh
	waiting Waiting
	place   // the client's place in the body
}

// maxHints interim responses wait for the first client. Others are dropped (RFC 9110 section 15.2).
const maxHints = 8

// unanswerable is query.unanswerable for the call's key.
func (c *call) unanswerable() bool { return c.query.unanswerable(c.key) }

// personal reports whether a failure of the call's load may be about its request. Other requests
// for the key do not have the Cookie, the credentials, or the fields that need a variant.
func (c *call) personal() bool {
	return c.target.Credentials || c.target.Header["Cookie"] != nil || c.unanswerable()
}

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

// inform sends an interim response (RFC 9110 section 15.2), on the client's own goroutine.
func (q *query) inform(status int, interim http.Header) {
	if status == http.StatusContinue || !q.r.ProtoAtLeast(1, 1) {
		return // 100 is the server's task; HTTP/1.0 has no interim responses
	}
	h := q.w.Header()
	final := maps.Clone(h)
	copyHeader(h, interim, false)
	q.m.options.Hidden.Remove(h) // here, because a watchedWriter would put the fields back into the map
	if q.r.ProtoMajor == 2 {
		// If the client leaves, net/http's HTTP/2 server returns while it still reads the header, and its context may end
		// only later. A write to that map would end the process. A header with a length, which is not sent, is copied first.
		h["Content-Length"] = []string{"0"}
	}
	q.w.WriteHeader(status)
	clear(h)
	maps.Copy(h, final)
}
