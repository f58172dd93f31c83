package page

import (
	"net/http"

	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file has the requests with credentials, until a response has said that the key's responses are for everyone.

// passCredentials hands a request with credentials to the handler, unless the key's responses are known to be
// for everyone, and reports whether it has. Until then such requests neither wait for others nor make others
// wait: one user's answer may be slow, and for that user alone. The first response for everyone is kept if a
// request without credentials would have got the same, if it displaces nothing, and if it is small. It stays
// in memory as long as its client reads.
func (q *query) passCredentials(key string) bool {
	m := q.m
	switch open, known := m.learntOpenToAll(key); {
	case open:
		return false
	case known:
		q.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization})
		return true
	}
	access := m.cache.Access(key, q.budget)
	it := access.Find(q.r.Context())
	switch {
	case it == nil:
	case !it.Held && it.BackingOff(m.cache.Now()):
		return false // the key has failed, and no retry is due yet
	case it.Held && (responseOf(it).kind != plain || q.mayHave(responseOf(it))):
		return false // the value leads to the response, or is for everyone
	}
	if q.r.Method != http.MethodGet {
		q.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization})
	} else {
		q.passDrafting(key, access, it == nil)
	}
	return true
}

// passDrafting hands a request with credentials to the handler, and learns from the response
// whether the key's responses are for everyone. The first response for everyone is kept.
func (q *query) passDrafting(key string, access Access, first bool) {
	m := q.m
	q.bypassed()
	u := m.newKeptWriter(q.w, q.r)
	if _, others := m.drafting.LoadOrStore(key, nil); !others {
		defer m.drafting.Delete(key)
		if first && q.draftable() {
			draft := access.Draft(q.r.Context())
			defer draft.End()
			u.keep = draft.Keep
		}
	}
	shared := false
	u.before = func(status int) httpcache.Status {
		header := httpcache.CanonicalHeader(u.Header())
		own, j, now := u.judge(q.target.Request, status)
		shared = j.Shared && !isEventStream(own) && tellsAudience(status)
		switch {
		case !shared && tellsAudience(status):
			m.learnOpenToAll(key, false)
		case shared && u.keep != nil && j.Freshness.Lifetime > j.Age && len(header["Vary"]) == 0 && headerBytes(header) <= maxHeader && contentLength(header) <= m.maxKept():
			u.keepAs(status, own, j, now)
			return httpcache.Status{
				Fwd: httpcache.FwdURIMiss, FwdStatus: status, Stored: true, Key: m.statusKey(key),
				TTL: httpcache.Delta{Set: true, Duration: j.Freshness.Lifetime - j.Age},
			}
		}
		return httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization}
	}
	u.runBelowServer(q.next, q.r)
	u.finish()
	if shared {
		m.learnOpenToAll(key, true) // after the response is kept: an earlier mark would let other requests make it again
	}
}

// draftable reports whether the response may be kept: the handler must get what the cache's own request would have.
// Otherwise Key may have taken another value from the fields than the handler, which sees them as sent.
func (q *query) draftable() bool {
	if q.m.options.Key != nil {
		if _, changed := httpcache.Normalised(q.target.Header, q.m.options.Rules); changed {
			return false
		}
	}
	return q.m.plainRequest(q.r, q.target) && !hasAny(q.r.Header, contentFields)
}
