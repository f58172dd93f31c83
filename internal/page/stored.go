package page

import (
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file writes a response that is there, whole or in parts.

// A stored response is what a reply is made of.
type stored struct {
	m        *Middleware
	key      string
	status   int
	header   http.Header
	guessed  bool // its Content-Type is
	body     spool.Body
	age      time.Duration
	received time.Time
}

// storedOf is the response of a complete item.
func (m *Middleware) storedOf(key string, it *Item, now instant) stored {
	age := now - it.Born
	return stored{m, key, it.Value.status, it.Value.head(), it.Value.guessed, it.Value.body, age, time.Now().Add(-age)}
}

// hitStatus is the word about a reply that needed no other than the item.
func hitStatus(it *Item, now instant) httpcache.Status {
	return httpcache.Status{Hit: true, TTL: ttl(it, now)}
}

// ttl is how much longer the item is fresh, as Cache-Status has it.
func ttl(it *Item, now instant) httpcache.Delta {
	return httpcache.Delta{Set: true, Duration: it.FreshUntil - now}
}

// notModified is the reply to who has s already.
func (s stored) notModified() stored {
	h, tagged := maps.Clone(s.header), s.header.Get("ETag") != ""
	maps.DeleteFunc(h, func(name string, _ []string) bool { return !httpcache.InNotModified(name, tagged) })
	s.status, s.header, s.body = http.StatusNotModified, h, nil
	return s
}

// setHeader makes h the header of a reply with the whole of s.
func (s stored) setHeader(h http.Header, status httpcache.Status) {
	copyHeader(h, s.header, s.guessed)
	s.m.hidden.Remove(h)
	if s.status != http.StatusNotModified {
		setType(h)
	}
	setAge(h, s.age)
	status.AppendTo(h)
	if s.status != http.StatusNoContent && s.status != http.StatusNotModified {
		h.Set("Content-Length", strconv.FormatInt(s.body.Len(), 10))
	}
}

// write answers the request with the whole of s.
func (s stored) write(w http.ResponseWriter, r *http.Request, status httpcache.Status) {
	s.setHeader(w.Header(), status)
	if s.body.Len() <= smallBody || r.Method == http.MethodHead {
		send(w, r, s.status, s.body)
		return
	}
	w.WriteHeader(s.status)
	p, end := s.pacedTo(w)
	defer end()
	s.body.WriteTo(p) // an error is the client's end, or that of our patience: the server sees that more was to come
}

// pacedTo is what sends a large body, or parts of it, to a client.
func (s stored) pacedTo(w http.ResponseWriter) (p *pacedWriter, end func()) {
	p = paced(w, storedParts, nil)
	return p, s.m.bodies.send(s.key, s.body, p)
}

// send sends what comes behind a header that is set, at one go.
func send(w http.ResponseWriter, r *http.Request, status int, body spool.Body) {
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		body.WriteTo(w)
	}
}

// writeStored answers the request with s, or with that part of it, or that word
// about it, that the request asks for.
func writeStored(w http.ResponseWriter, r *http.Request, s stored, status httpcache.Status) {
	switch {
	case httpcache.NotModified(r.Method, r.Header, s.status, s.header.Values, s.received):
		s.notModified().write(w, r, status)
	case s.status == http.StatusOK && len(s.body) > 0 && r.Method == http.MethodGet && httpcache.AsksForRanges(r):
		// net/http's own ranges, multipart and If-Range included. What is empty has none.
		h := w.Header()
		s.setHeader(h, status)
		h.Del("Content-Length") // what is sent may be less, or nothing
		modified, _ := http.ParseTime(s.header.Get("Last-Modified"))
		p, end := s.pacedTo(w)
		defer end()
		http.ServeContent(pacedResponse{w, p}, httpcache.ForRange(r, s.header, s.received), "", modified, s.body.Reader())
	default:
		s.write(w, r, status)
	}
}

// forwardDespite is why the handler is asked although it is stored.
func forwardDespite(it *Item, now instant) httpcache.Forward {
	if now < it.FreshUntil {
		return httpcache.FwdRequest
	}
	return httpcache.FwdStale
}
