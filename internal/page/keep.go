package page

import (
	"cmp"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is what is kept of a load when its handler has come to an end.

// keep returns what is to be kept under the key for a response that is complete.
func (l *load) keep(d *decision) (*Response, error) {
	live := d.content()
	s := live.live
	done := &Response{status: live.status, guessed: live.guessed, forAll: live.forAll, freshness: live.freshness, fwd: live.fwd, fwdStatus: live.fwdStatus}
	if d.validated {
		done.complete(s.header, l.asks.about.body)
	} else {
		whole, ok := s.body.Body()
		if !ok {
			return nil, errors.New("bellwether: complete body without bytes")
		}
		done.complete(s.header, whole)
		d.recording.account.complete(cmp.Or(d.variantKey(), l.attempt.Key()), whole)
	}
	f := l.m.lifeOf(done, s.header, s.age+time.Since(s.decidedAt))
	if d.checked {
		// As a record about the key it is good for as long as it is kept.
		done.kind, f = checked, items.Windows{TTL: keepFor}
	}
	return l.record(d, done, f), nil
}

// remember returns what is to be kept under the key for a response that is not for sharing: that,
// or the names if it is so for a variant only.
func (l *load) remember(d *decision, reason string) *Response {
	return l.record(d, &Response{kind: uncacheable, reason: reason}, l.m.uncacheableFor(d.content().live.decidedAt.Sub(l.sent)))
}

// record returns what is to be kept under the key of a load that has come to res. If that is a
// variant, it is written under its own key first, so that whoever reads the names finds the
// variant.
func (l *load) record(d *decision, res *Response, f items.Windows) *Response {
	if l.spare != nil && httpcache.IsServerError(d.content().status) {
		res.instead = l.spare
		f.Keep = max(f.Keep, l.spare.KeepUntil-l.m.cache.Now())
	}
	if d.response.kind != varying || res.kind == uncacheable && l.owner.signpost != nil {
		l.attempt.SetWindows(f)
		return res
	}
	l.m.cache.Put(l.ctx, d.variantKey(), res, f, l.attempt.Position(), nil)
	return l.pointTo(d.response.vary)
}

// pointTo keeps a signpost under the key of the URL, and returns what the load keeps under
// its own key: the same signpost. The two keys may be one.
func (l *load) pointTo(post *variance) *Response {
	cache, base, f := l.m.cache, l.base(), items.Windows{TTL: varyingTTL}
	kept := &Response{kind: varying, vary: &variance{names: post.names, mark: post.mark, built: post.built}}
	now := cache.Now()
	switch old := l.owner.signpost; {
	case old != nil:
		// The new signpost takes the old one's place only if the old one is still there:
		// after an invalidation it would lead to responses from before. It is also kept
		// under the old variant's key, for processes that have the old one for NearTTL.
		cache.Put(l.ctx, base, kept, f, l.attempt.Position(), old)
		f.TTL = l.m.options.UncacheableTTL
	case l.before != nil && l.before.End() > now && len(post.names) == len(pseudonyms):
		// The signpost displaces a response to a request without any of its names. The
		// response moves to the key to which the signpost leads such requests.
		cache.Put(l.ctx, l.m.variantKey(post, base, nil), l.before.Value, l.before.Windows(now), l.before.Position, nil)
	}
	l.attempt.SetWindows(f)
	return kept
}
