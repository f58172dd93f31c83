package page

import (
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/spool"
	"github.com/bellwether-go/bellwether/observe"
)

// This file writes a reply: a stored response, a stale one, or the cache's own refusal.

func (m *Middleware) statusKey(key string) string {
	if m.options.HideStatusKey {
		return ""
	}
	return key
}

// staleIfError is the detail of a stale response in place of an error (RFC 5861 section 4).
const staleIfError = "stale-if-error"

// notCached ends a request that accepts only a stored response (RFC 9111 section 5.2.1.7).
func (q *query) notCached() {
	q.add(observe.Serve{Way: observe.WayMiss})
	q.m.replyNotCached(q.w)
}

func (m *Middleware) replyNotCached(w http.ResponseWriter) {
	m.replyFailure(w, httpcache.Status{Detail: "only-if-cached"}, http.StatusGatewayTimeout, 0)
}

// replyFailure answers with the cache's own error and no-store. retry is the time after which the client may come
// again. Zero: a second for a 503, else unknown.
func (m *Middleware) replyFailure(w http.ResponseWriter, status httpcache.Status, code int, retry time.Duration) {
	if retry == 0 && code == http.StatusServiceUnavailable {
		retry = time.Second
	}
	status.AppendTo(w.Header())
	w.Header().Set("Cache-Control", "no-store")
	if retry > 0 { // whole seconds, rounded up (RFC 9110 section 10.2.3)
		w.Header().Set("Retry-After", strconv.FormatInt(int64(durations.Add(retry, time.Second-1)/time.Second), 10))
	}
	http.Error(w, http.StatusText(code), code)
}

// failedForward is the status of a request that failed with err although the response was stored.
func failedForward(it *Item, now instant, err error) httpcache.Status {
	status := httpcache.Status{Fwd: forwardDespite(it, now)}
	if code, ok := toldStatus(err); ok {
		status.FwdStatus = code
	}
	return status
}

// A stored response is the source of a reply.
type stored struct {
	m        *Middleware
	key      string
	status   int
	header   http.Header
	guessed  bool // its Content-Type is a guess
	body     spool.Body
	age      time.Duration
	received time.Time
}

func (m *Middleware) storedOf(key string, it *Item, now instant) stored {
	age := now - it.Born
	r := responseOf(it)
	return stored{m, key, r.status, r.fields.header(), r.guessed, r.body, age, time.Now().Add(-age)}
}

func hitStatus(it *Item, now instant) httpcache.Status {
	return httpcache.Status{Hit: true, TTL: ttl(it, now)}
}

// ttl is the rest of the item's freshness, for Cache-Status.
func ttl(it *Item, now instant) httpcache.Delta {
	return httpcache.Delta{Set: true, Duration: it.FreshUntil - now}
}

// notModified is the reply to a client that already has s.
func (s stored) notModified() stored {
	h, tagged := maps.Clone(s.header), s.header.Get("ETag") != ""
	maps.DeleteFunc(h, func(name string, _ []string) bool { return !httpcache.InNotModified(name, tagged) })
	s.status, s.header, s.body = http.StatusNotModified, h, nil
	return s
}

func (s stored) setHeader(h http.Header, status httpcache.Status) {
	copyHeader(h, s.header, s.guessed)
	if _, named := h["Content-Type"]; !named && s.status != http.StatusNotModified {
		h["Content-Type"] = nil // keeps net/http from guessing: the exchange has guessed, if it could
	}
	setAge(h, s.age)
	status.AppendTo(h)
	delete(h, "Content-Length") // a 204 and a 304 have none (RFC 9110 section 8.6)
	if s.status != http.StatusNoContent && s.status != http.StatusNotModified {
		h.Set("Content-Length", strconv.FormatInt(s.body.Len(), 10))
	}
}

func (s stored) write(w http.ResponseWriter, r *http.Request, status httpcache.Status) {
	s.setHeader(w.Header(), status)
	if s.body.Len() <= smallBody || r.Method == http.MethodHead {
		send(w, r, s.status, s.body)
		return
	}
	w.WriteHeader(s.status)
	p, end := s.pacedTo(w)
	defer end()
	s.body.WriteTo(p)
	p.breakOff(r)
}

func (s stored) pacedTo(w http.ResponseWriter) (p *pacedWriter, end func()) {
	p = paced(w, storedParts, nil)
	return p, s.m.bodies.send(s.key, s.body, p)
}

// send sends the status and the body at once, behind a header that is set.
func send(w http.ResponseWriter, r *http.Request, status int, body spool.Body) {
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		body.WriteTo(w)
	}
}

// writeStored answers the request with s, with the requested ranges, or with 304.
func writeStored(w http.ResponseWriter, r *http.Request, s stored, status httpcache.Status) {
	switch {
	case httpcache.NotModified(r.Method, r.Header, s.status, s.header.Values, s.received):
		s.notModified().write(w, r, status)
	case s.status == http.StatusOK && len(s.body) > 0 && r.Method == http.MethodGet && httpcache.AsksForRanges(r):
		// net/http serves the ranges, with multipart and If-Range. An empty body has no ranges.
		h := w.Header()
		s.setHeader(h, status)
		modified, _ := http.ParseTime(s.header.Get("Last-Modified"))
		p, end := s.pacedTo(w)
		defer end()
		http.ServeContent(pacedResponse{w, p, s.body.Len()}, httpcache.ForRange(r, s.header, s.received), "", modified, s.body.Reader())
		p.breakOff(r)
	default:
		s.write(w, r, status)
	}
}

// forwardDespite is why the handler is asked although the response is stored.
func forwardDespite(it *Item, now instant) httpcache.Forward {
	if now < it.FreshUntil {
		return httpcache.FwdRequest
	}
	return httpcache.FwdStale
}
