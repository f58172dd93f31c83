package page

import (
	"errors"
	"hash/maphash"
	"net/http"
	"strconv"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file decides how long the cache remembers a key's response, and what it remembers beside the response: that the
// key is uncacheable, that its responses are open to all, and that a client pauses.

// varyingTTL is the life of a signpost. An outdated one is harmless: the next variant brings new names.
const varyingTTL = 24 * time.Hour

// keepFor is how long a response with a validator is kept for validation by the next rebuild. Without a
// store, other responses that may be stale, except server errors, are kept as long for max-stale.
const keepFor = time.Hour

// lifeOf returns the windows of a response of that age now, at the end of its body.
func (m *Middleware) lifeOf(res *Response, header http.Header, age time.Duration) items.Windows {
	f := items.Windows{
		Age: age, TTL: res.freshness.Lifetime, StaleWhileRevalidate: res.freshness.StaleWhileRevalidate, StaleIfError: res.freshness.StaleIfError,
	}
	// A shared store keeps no response for its validator alone if it was never to be served: the
	// waiting processes would find it, could not use it, and would take turns.
	served := items.NewLifetime(0, f)
	switch shared := m.options.Shared; {
	case shared && served.End() <= 0:
	case httpcache.Validatable(res.status, header), !shared && !res.freshness.NoStale && !httpcache.IsServerError(res.status):
		f.Keep = keepFor
	default:
		// The next may be an error or private: sharesByDefault and facts.outcome need this one.
		f.Keep = m.options.HitForMissTTL
	}
	return f
}

// uncacheableFor is the life of an unshareable response's record, until the next response at least.
func (m *Middleware) uncacheableFor(took time.Duration) items.Windows {
	return items.Windows{TTL: max(m.options.HitForMissTTL, durations.Add(took, took))}
}

// openToAllKey is the near tier's key for learnOpenToAll.
func openToAllKey(key string) string { return key + "\x00\x00authorization" }

// tellsAudience reports whether a response with that status proves the audience of a key's
// responses. An error is about the client, and a part or a 304 about the request.
func tellsAudience(status int) bool {
	return status < 400 && status != http.StatusPartialContent && status != http.StatusNotModified
}

// learnOpenToAll remembers whether a response to a request with credentials was for everyone.
func (m *Middleware) learnOpenToAll(key string, open bool) {
	f := items.Windows{TTL: m.options.HitForMissTTL}
	if open {
		f.TTL = varyingTTL
	}
	m.cache.Remember(openToAllKey(key), &Response{kind: uncacheable, openToAll: open}, f)
}

// learntOpenToAll returns the result of learnOpenToAll, and false if there is none.
func (m *Middleware) learntOpenToAll(key string) (open, known bool) {
	it, _ := m.cache.Near(openToAllKey(key))
	if it == nil {
		return false, false
	}
	return responseOf(it).openToAll, true
}

var clients = maphash.MakeSeed()

// pauseKey is pauseRefresh's near key, without the client's cookies: observers of evictions see the key.
func pauseKey(key, client string) string {
	return key + "\x00\x00pause\x00" + strconv.FormatUint(maphash.String(clients, client), 36)
}

// pauseRefresh begins the client's pause after a run that has replaced no stale page, as after a time-out or a
// 404 without a lifetime. Otherwise each request would run the handler while the page may be served. Other
// clients may get a response for everyone. With Patience there is no pause: requests wait for such responses.
func (m *Middleware) pauseRefresh(key, client string) {
	if m.options.ErrorTTL > 0 && !m.options.Patience {
		m.cache.Remember(pauseKey(key, client), &Response{kind: uncacheable}, items.Windows{TTL: m.options.ErrorTTL})
	}
}

// pausesRefresh reports whether the client's request begins no run behind a stale page.
func (q *query) pausesRefresh(key string) bool {
	it, _ := q.m.cache.Near(pauseKey(key, q.client()))
	return it != nil
}

// replace puts res in the place of old in the background, once for a herd with equal responses.
func (m *Middleware) replace(key string, old *Item, res *Response, f items.Windows) {
	if !m.cache.HoldsNear(key, old) {
		return
	}
	if _, others := m.replacing.LoadOrStore(key, nil); others {
		return
	}
	m.cache.Replace(key, old, res, f, func() { m.replacing.Delete(key) })
}

// prolong renews the record of unshareable responses in time, so no request queues to find out.
func (m *Middleware) prolong(key string, it *Item, reason string, took time.Duration) {
	if m.options.MaxPassThrough > 0 && took > m.options.RebuildTimeout {
		reason = reasonSlow // without MaxPassThrough no request would reach the handler
	}
	f := m.uncacheableFor(took)
	if it.FreshUntil-m.cache.Now() < f.TTL/2 {
		m.replace(key, it, &Response{kind: uncacheable, reason: reason}, f)
	}
}

// tooSlow records that a key's rebuild took longer than RebuildTimeout, if the key never had a response for
// everyone: its handler may answer a client that waits longer. These requests count against MaxPassThrough,
// because a slow origin must not get them all.
func (m *Middleware) tooSlow(key string, failed *Item, err error) {
	if m.options.MaxPassThrough > 0 && errors.Is(err, fault.ErrRebuildTimeout) && failed != nil && !failed.Held {
		m.replace(key, failed, &Response{kind: uncacheable, reason: reasonSlow}, m.uncacheableFor(m.options.RebuildTimeout))
	}
}

// reasonSlow is the detail for a page that takes longer than RebuildTimeout.
const reasonSlow = "slow"
