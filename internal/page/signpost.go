package page

import (
	"net/http"
	"slices"

	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
)

// This file tells the responses to one URL apart. A response that depends on request
// fields leaves a signpost under the URL's key: the names of the fields. The names and a
// request lead to the key of a variant. A response that names more fields replaces the
// signpost by one with all names. So every variant is one step away, however many fields
// a handler names one by one.

// pseudonyms are on each signpost. Each stands for a part of a request that no URL's key
// and no Vary has, and is no field's name.
var pseudonyms = []string{httpcache.KeyVariant, httpcache.RetargetingFields}

// needsVariant reports whether a request with the header req has any part that a pseudonym
// stands for. A response that is kept under the URL's own key is not for such a request.
func (m *Middleware) needsVariant(req http.Header) bool {
	return req[httpcache.KeyVariant] != nil || m.options.Rules.Retargeted(req)
}

// variantKey is the key of the variant that a request with the header req asks for. base
// is the key of its URL.
func (m *Middleware) variantKey(signpost *Response, base string, req http.Header) string {
	return base + sweeplog.VariantMark + signpost.mark + httpcache.VariantKey(signpost.names, req, m.options.Rules)
}

// signpost returns the signpost to a response with that header, nil if the call's key
// tells the response apart already. It returns false if the response must not have one:
// it varies by too many names, or it has a Vary and a needsVariant request, and the URL has
// a response that may still be served. No variant's key is known for that response.
func (x *exchange) signpost(header http.Header) (*Response, bool) {
	vary, _ := httpcache.VaryNames(header)
	req, known := x.owner.request.Header, x.owner.names()
	needed := x.m.needsVariant(req)
	if len(vary) == 0 && !needed {
		return nil, true
	}
	names, ok := httpcache.JoinNames(known, vary, pseudonyms)
	switch {
	case !ok:
		return nil, false
	case slices.Equal(names, known):
		return nil, true
	case len(vary) > 0 && needed && known == nil && x.servable():
		return nil, false
	}
	post := &Response{kind: varying, names: names, mark: adapter.Token(), built: new(variants)}
	post.id = x.m.variantKey(post, x.owner.base, req)
	post.built.of(needed).touch(post.id, x.m.cache.Now())
	return post, true
}

// pointTo keeps a signpost under the key of the URL, and returns what the load keeps under
// the exchange's own key: the same signpost. The two keys may be one.
func (x *exchange) pointTo(post *Response) *Response {
	cache, base, f := x.m.cache, x.owner.base, items.Windows{TTL: varyingTTL}
	kept := &Response{kind: varying, names: post.names, mark: post.mark, built: post.built}
	now := cache.Now()
	switch old := x.owner.signpost; {
	case old != nil:
		// The new signpost takes the old one's place only if the old one is still there:
		// after an invalidation it would lead to responses from before. It is also kept
		// under the old variant's key, for processes that have the old one for NearTTL.
		cache.Put(x.load, base, kept, f, x.attempt.Position(), old)
		f.TTL = x.m.options.UncacheableTTL
	case x.before != nil && x.before.End() > now && len(post.names) == len(pseudonyms):
		// The signpost displaces a response to a request without any of its names. The
		// response moves to the key to which the signpost leads such requests.
		cache.Put(x.load, x.m.variantKey(post, base, nil), x.before.Value, x.before.Windows(now), x.before.Position, nil)
	}
	x.attempt.SetWindows(f)
	return kept
}
