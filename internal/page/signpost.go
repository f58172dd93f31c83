package page

import (
	"net/http"

	"github.com/bellwether-go/bellwether/internal/httpcache"
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
func (m *Middleware) variantKey(signpost *variance, base string, req http.Header) string {
	return base + sweeplog.VariantMark + signpost.mark + httpcache.VariantKey(signpost.names, req, m.options.Rules)
}
