package page

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file turns the handler's header, and then the complete response, into the result of a load.

type answer struct {
	heading
	personal  http.Header // the header for the run's client: it also has the fields that are for no other
	trailers  []string    // names of the trailer fields
	fwdStatus int         // the handler's status if the answer has another
	judged    httpcache.Judgement
	validated bool // the handler has answered 304: the answer is the stored response
}

// A decision is the state of a load when the handler has written its header.
type decision struct {
	verdict
	validated bool // the response is the stored response
	response  *Response
}

func (l *load) decide(a answer, now time.Time) *decision {
	post, found := l.signpost(a.header)
	failures := l.failures(l.m.cache.Now())
	v := facts{
		request: l.owner.target.Request, status: a.status, header: a.header, judged: a.judged,
		had: l.before != nil, servable: l.servable(), spare: l.spare() != nil, open: l.open(), shares: l.sharesByDefault(),
		excluded: l.attempt.Excluded, lost: !found,
		pause: items.BackOff(failures, l.m.options.ErrorTTL, l.m.options.MaxErrorTTL),
	}.verdict()
	limit := l.m.options.MaxBodyBytes
	if v.audience == audience.Owner && !v.outcome.keeps() {
		limit = min(limit, privateWindow)
	}
	s := &stream{
		owner: &l.owner.place, audience: v.audience, kept: v.outcome.keeps(), decidedAt: now, age: a.judged.Age,
		header:    httpcache.StoredHeader(a.header, a.judged.Directives, now),
		announced: a.announced, trailers: a.trailers, qualified: a.judged.Directives.QualifiedFields(),
		body: recording{Spool: spool.New(limit), limit: limit, account: account{of: &l.m.bodies}, excess: reasonTooLarge},
	}
	s.private = l.privateHeader(s, a)
	s.body.Expect(a.announced)
	d := &decision{verdict: v, validated: a.validated, response: &Response{
		status: a.status, guessed: a.guessed, openToAll: a.judged.Directives.OpenToAll(),
		freshness: v.freshness, reason: v.reason, vary: post, forwarded: forwarded{l.fwd, a.fwdStatus}, live: s,
	}}
	if v.audience == audience.Owner {
		d.response.kind = uncacheable
	}
	if v.pauses {
		d.response.failures = failures
	}
	return d
}

func (l *load) privateHeader(s *stream, a answer) http.Header {
	switch {
	case s.audience == audience.Owner: // the handler's header, unchanged
		h := a.personal.Clone()
		if a.validated { // the stored header has no Age, and the handler has set none
			h["Age"] = []string{httpcache.FormatAge(a.judged.Age)}
		}
		return h
	case hasAll(s.header, a.personal): // no field is for the owner alone
		return s.header
	}
	h := a.personal.Clone()
	httpcache.RemoveConnectionFields(h)
	return h
}

// joinableUntil is the moment from which new callers no longer join the response.
//
//   - A response for everyone takes callers while it is fresh or may be served stale (RFC 9111 section
//     4.2.4). Later callers wait for its end, and for the next response.
//   - An error for one client takes only the callers that already wait.
//   - A response for one client has no other readers.
func (d *decision) joinableUntil(now instant) instant {
	res := d.response
	switch {
	case d.audience == audience.Alike:
		return now + 1
	case d.audience == audience.Everyone:
		f := res.freshness
		return durations.Add(now+1, max(0, durations.Add(f.Lifetime, f.StaleWhileRevalidate)-res.live.age))
	}
	return forever
}

// signpost returns the signpost to a response with this header. Nil: the call's key already selects the
// response. The result is false if no request could find the response: Vary has too many names; or the
// response has a Vary, the request needs a variant, and the cache may still serve a response of the URL.
func (l *load) signpost(header http.Header) (*variance, bool) {
	vary, _ := httpcache.VaryNames(header)
	req, needed := l.owner.target.Header, l.owner.target.needsVariant
	var known []string // the request fields that the call's key contains
	if led := l.owner.signpost; led != nil {
		known = responseOf(led).vary.names
	}
	if len(vary) == 0 && !needed {
		return nil, true
	}
	names, ok := httpcache.JoinNames(known, vary, pseudonyms)
	switch {
	case !ok:
		return nil, false
	case slices.Equal(names, known):
		return nil, true
	case len(vary) > 0 && needed && known == nil && l.servable():
		return nil, false
	}
	post := &variance{names: names, mark: adapter.Token(), built: new(variants)}
	post.id = l.m.variantKey(post, l.owner.target.key, req)
	return post, true
}

// keep returns the load's product for a complete response.
func (l *load) keep(d *decision) (items.Product, error) {
	live := d.response
	s := live.live
	done := &Response{
		status: live.status, failures: live.failures, guessed: live.guessed, openToAll: live.openToAll, freshness: live.freshness,
		forwarded: live.forwarded,
	}
	if d.validated {
		done.complete(s.header, l.asks.about.body)
	} else {
		whole, ok := s.body.Body()
		if !ok {
			return items.Product{}, errors.New("bellwether: complete body without bytes")
		}
		done.complete(s.header, whole)
		key := l.owner.key
		if post := d.response.vary; post != nil {
			key = post.id
		}
		s.body.account.complete(key, whole)
	}
	f := l.m.lifeOf(done, s.header, s.ageNow())
	if d.outcome == keepsChecked {
		// The record about the key lives as long as the cache keeps the response.
		done.kind, f = checked, items.Windows{TTL: keepFor}
	}
	return l.record(d, done, f), nil
}

// record returns the load's product for the result res. A variant is written under its own key first, so a
// process that reads the signpost finds the variant. An unshareable response makes only its own variant
// uncacheable, not all other users' variants.
func (l *load) record(d *decision, res *Response, f items.Windows) items.Product {
	if post := d.response.vary; post != nil && (res.kind != uncacheable || l.owner.signpost == nil) {
		l.m.cache.Put(l.ctx, post.id, res, f, l.attempt.Position, nil)
		res, f = l.pointTo(post)
	}
	return items.Product{Value: res, Windows: &f, Failure: failureOf(d.response.status)}
}

// pointTo keeps a signpost under the URL's key, and returns it for the load's own key, maybe the same.
func (l *load) pointTo(post *variance) (kept *Response, f items.Windows) {
	cache, base, now := l.m.cache, l.owner.target.key, l.m.cache.Now()
	kept = &Response{kind: varying, vary: &variance{names: post.names, mark: post.mark, built: post.built}}
	f = items.Windows{TTL: varyingTTL}
	switch old := l.owner.signpost; {
	case old != nil:
		// The new signpost only replaces the old: after an invalidation it would lead to older responses. The
		// old variant's key gets it too, for near tiers with the old signpost. If the old one is of a response that was
		// unfinished then, the cache has another item in its place, or none after an invalidation.
		if responseOf(old).live == nil {
			cache.Put(l.ctx, base, kept, f, l.attempt.Position, old)
		}
		f.TTL = l.m.options.HitForMissTTL
	case l.before != nil && l.before.End() > now && len(post.names) == len(pseudonyms):
		// The signpost displaces a response without the names, which moves to its own variant key.
		cache.Put(l.ctx, l.m.variantKey(post, base, nil), responseOf(l.before), l.before.Windows(now), l.before.Position, nil)
	}
	return kept, f
}
