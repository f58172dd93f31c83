package page

import (
	"net/http"
	"slices"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file is the shortest way: a fresh response of the near tier for a plain request. The reply
// is the same as on the long way, with header fields that are made once a second for all replies.

// hot answers the request from the near tier. If the result is false, nothing is written.
func (m *Middleware) hot(w http.ResponseWriter, r *http.Request, t target) bool {
	if m.options.EarlyRefresh || t.directives != (httpcache.RequestDirectives{}) || t.Credentials {
		return false
	}
	var now instant
	it, key := m.follow(t, func(key string) (it *Item) {
		it, now = m.cache.Near(key)
		if it == nil || now >= it.TrustedUntil || it.Kind != driver.KindValue || !it.Fresh(now) {
			return nil // follow looks at the kind of the response
		}
		return it
	})
	if it == nil || responseOf(it).body.Len() > smallBody { // a large body is counted while it is sent
		return false
	}
	m.cache.CountHit(r.Context(), t.key)
	m.writeHit(w, r, key, it, now)
	return true
}

// hitHeader returns the header of a hit: the last one, unless it is of another second.
func (m *Middleware) hitHeader(it *Item, now instant) *hitHeader {
	r, age, left := responseOf(it), int64((now-it.Born)/time.Second), int64((it.FreshUntil-now)/time.Second)
	if made := r.hit.Load(); made != nil && made.age == age && made.ttl == left {
		return made
	}
	s, h := m.storedOf("", it, now), &hitHeader{age: age, ttl: left}
	header := make(http.Header, len(s.header)+3)
	s.setHeader(header, hitStatus(it, now))
	m.options.Hidden.Remove(header) // once, and not for each hit
	h.fields = make([]headerField, 0, len(header))
	_, named := s.header["Content-Type"]
	tagged := header.Get("ETag") != ""
	for name, values := range header {
		h.fields = append(h.fields, headerField{
			name: name, values: slices.Clip(values),
			yields:  name == "Content-Type" && (!named || r.guessed),
			content: !httpcache.InNotModified(name, tagged),
		})
	}
	r.hit.Store(h) // a race is harmless: both headers are of about this second
	return h
}

// writeHit is writeStored for a fresh item, with the shared header unless the reply needs its own.
func (m *Middleware) writeHit(w http.ResponseWriter, r *http.Request, key string, it *Item, now instant) {
	h := w.Header()
	if r.Header["Range"] != nil || len(h) > 0 && hasAny(h, addedFields) {
		writeStored(w, r, m.storedOf(key, it, now), hitStatus(it, now))
		return
	}
	res := responseOf(it)
	status, body := res.status, res.body
	made := m.hitHeader(it, now)
	notModified := false
	if r.Header["If-None-Match"] != nil || r.Header["If-Modified-Since"] != nil {
		notModified = httpcache.NotModified(r.Method, r.Header, status, made.values, time.Now().Add(it.Born-now))
	}
	if notModified {
		status, body = http.StatusNotModified, nil
	}
	for _, f := range made.fields {
		if notModified && f.content || f.yields && h[f.name] != nil {
			continue
		}
		h[f.name] = f.values
	}
	send(w, r, status, body)
}
