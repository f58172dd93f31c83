package bellwether

import (
	"net/http"
	"strconv"
	"time"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file is the HTTP face's shortest way: a fresh response of the near tier,
// for a request that asks for nothing special. It answers as the long way would,
// from header fields that are made once in a second and shared by all replies.

// hot answers the request if the near tier can; if not, it has done nothing.
func (m *Middleware) hot(w http.ResponseWriter, r *http.Request, key string, d httpcache.RequestDirectives) bool {
	if d != (httpcache.RequestDirectives{}) || r.Header["Authorization"] != nil {
		return false
	}
	e, url := m.engine, key
	for range maxHops {
		it, now := e.near.get(key)
		if it == nil || now >= it.trusted || it.kind != KindValue || it.judge(now) != serve || e.EarlyRefresh > 0 {
			return false
		}
		switch res := it.value; res.kind {
		case plain:
			if res.body.Len() > smallBody {
				return false // what it takes to send it is counted
			}
			e.count.hits.add()
			if e.observers.hit != nil {
				e.tellHit(r.Context(), url, it.way(now))
			}
			writeHit(w, r, it, now)
			return true
		case varying:
			e.count.hits.add()
			key = m.variantKey(res, key, r.Header)
		default:
			return false
		}
	}
	return false
}

// A headerField is a field as a header map has it.
type headerField struct {
	name   string
	values []string
}

// hitHeader is the header of a hit, as of a second of the response's life.
type hitHeader struct {
	age, ttl int64 // seconds
	fields   []headerField
}

// hitHeader returns the header of a hit: the one that was made last, if it is of
// this second. 304 tells whether it is that of a reply without the content.
func (r *response) hitHeader(it *item[*response], now instant, notModified bool) *hitHeader {
	age, ttl := now-it.born, it.freshUntil-now
	slot := &r.hit
	if notModified {
		slot = &r.hit304
	}
	seconds := int64(ttl / time.Second)
	if made := slot.Load(); made != nil && made.age == int64(age/time.Second) && made.ttl == seconds {
		return made
	}
	header := r.header
	if notModified {
		header = httpcache.NotModifiedHeader(header)
	}
	h := &hitHeader{age: int64(age / time.Second), ttl: seconds, fields: make([]headerField, 0, len(header)+3)}
	status := httpcache.Status{Hit: true, TTL: httpcache.Delta{Set: true, Duration: ttl}}
	members := append([]string(nil), header["Cache-Status"]...)
	members = append(members, status.String())
	for name, values := range header {
		if name != "Cache-Status" && name != "Age" && name != "Content-Length" {
			h.fields = append(h.fields, headerField{name, values[:len(values):len(values)]})
		}
	}
	h.fields = append(h.fields,
		headerField{"Age", []string{httpcache.FormatAge(age)}},
		headerField{"Cache-Status", members[:len(members):len(members)]})
	if !notModified && r.status != http.StatusNoContent {
		h.fields = append(h.fields, headerField{"Content-Length", []string{strconv.FormatInt(r.body.Len(), 10)}})
	}
	slot.Store(h) // whoever stores last: both are of about this second
	return h
}

// writeHit answers the request from a fresh item.
func writeHit(w http.ResponseWriter, r *http.Request, it *item[*response], now instant) {
	res := it.value
	h := w.Header()
	if r.Header["Range"] != nil || len(h["Cache-Status"]) > 0 || res.status == http.StatusNotModified {
		age := now - it.born
		writeStored(w, r, stored{res.status, res.header, res.body, age, time.Now().Add(-age)},
			httpcache.Status{Hit: true, TTL: httpcache.Delta{Set: true, Duration: it.freshUntil - now}})
		return
	}
	conditional := r.Header["If-None-Match"] != nil || r.Header["If-Modified-Since"] != nil
	notModified := conditional && httpcache.NotModified(r.Method, r.Header, res.status, res.header, time.Now().Add(it.born-now))
	for _, f := range res.hitHeader(it, now, notModified).fields {
		h[f.name] = f.values
	}
	if notModified {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.WriteHeader(res.status)
	if r.Method != http.MethodHead {
		writeBody(w, res.body)
	}
}

// writeBody sends a body that is complete. An error is the client's end, or that
// of our patience: the server sees by the Content-Length that there is more to
// come, and ends the connection.
func writeBody(w http.ResponseWriter, body spool.Body) {
	if body.Len() > writePart {
		body.WriteTo(&pacedWriter{w: w})
		return
	}
	body.WriteTo(w)
}
