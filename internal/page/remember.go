package page

import (
	"net/http"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is what is remembered of a key, and for how long: its response, and what its
// responses have said about its next ones.

// varyingTTL is how long it is remembered by which fields a key varies. It is
// long because nothing goes wrong when it is out of date: a handler that names
// others is heard when the next variant is rebuilt.
const varyingTTL = 24 * time.Hour

// keepFor is how long a response that has a validator is kept for the next
// rebuild to ask whether it still holds. Where there is no store, one without is
// kept as long, for requests that take it stale, unless the near tier needs the
// room.
const keepFor = time.Hour

// lifeOf is how long a response of that header and age is kept, and served.
func (m *Middleware) lifeOf(res *Response, header http.Header, age time.Duration) items.Windows {
	f := items.Windows{
		Age: age, TTL: res.freshness.Lifetime, StaleWhileRevalidate: res.freshness.StaleWhileRevalidate, StaleIfError: res.freshness.StaleIfError,
	}
	// Where a fleet shares a store, what was never to be served from it is not
	// kept there for its validator alone: the processes that wait for it would
	// find it, could not use it, and would take turns.
	served := items.NewLifetime(0, f)
	switch shared := m.options.Shared; {
	case shared && served.End() <= 0:
	case httpcache.Validatable(res.status, header), !shared && !res.freshness.NoStale && !httpcache.IsServerError(res.status):
		f.Keep = keepFor
	default:
		// The next response may be an error, or for one client: sharesByDefault and
		// provesUncacheable judge it by this one.
		f.Keep = m.options.UncacheableTTL
	}
	return f
}

// uncacheableFor is how long it is remembered that a key's response was not for sharing,
// which took so long: at least until the next response can say so.
func (m *Middleware) uncacheableFor(took time.Duration) items.Windows {
	return items.Windows{TTL: max(m.options.UncacheableTTL, durations.Add(took, took))}
}

// authorizedKey is where it is written, in this process alone, what is known of
// a key's responses to requests with Authorization.
func authorizedKey(key string) string { return key + "\x00\x00authorization" }

// tellsAudience reports whether a response of that status tells for whom a key's responses
// are. An error is about the client, and a part or a 304 about what the client has asked.
func tellsAudience(status int) bool {
	return status < 400 && status != http.StatusPartialContent && status != http.StatusNotModified
}

// learnAuthorized remembers whether a response to a request with Authorization
// was for all.
func (m *Middleware) learnAuthorized(key string, shared bool) {
	if shared {
		m.cache.Remember(authorizedKey(key), &Response{kind: open}, items.Windows{TTL: varyingTTL})
		return
	}
	m.cache.Remember(authorizedKey(key), &Response{kind: uncacheable}, items.Windows{TTL: m.options.UncacheableTTL})
}

// learntAuthorized returns what learnAuthorized remembers: open, uncacheable,
// or plain if it is not known.
func (m *Middleware) learntAuthorized(key string) responseKind {
	if it, now := m.cache.Near(authorizedKey(key)); it != nil && now < it.FreshUntil {
		return it.Value.kind
	}
	return plain
}

// replace puts res in the place of old, behind the client's back: it does not wait
// for the store. Of a herd whose responses all say the same, one does so.
func (m *Middleware) replace(key string, old *Item, res *Response, f items.Windows) {
	if !m.cache.HoldsNear(key, old) {
		return
	}
	if _, others := m.replacing.LoadOrStore(key, nil); others {
		return
	}
	m.cache.Replace(key, old, res, f, func() { m.replacing.Delete(key) })
}

// prolong says once more that a key's responses are not for sharing, before that is
// forgotten: where such responses go on, nobody queues to find that out. The present
// response took so long.
func (m *Middleware) prolong(key string, it *Item, reason string, took time.Duration) {
	if took > m.options.RebuildTimeout {
		reason = reasonSlow
	}
	f := m.uncacheableFor(took)
	if it.FreshUntil-m.cache.Now() < f.TTL/2 {
		m.replace(key, it, &Response{kind: uncacheable, reason: reason}, f)
	}
}

// reasonSlow is why a page goes past the cache that takes longer than RebuildTimeout.
const reasonSlow = "slow"
