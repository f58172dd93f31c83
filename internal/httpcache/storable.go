package httpcache

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// This file decides whether a response is shared, and which of its fields are.

// ReasonStatusNoLifetime is storable's reason for a response without a lifetime whose status needs
// a lifetime (RFC 9111 section 3, last item). The response is otherwise storable.
const ReasonStatusNoLifetime = "status-without-lifetime"

// storable reports whether a shared cache may store the response and give it to other clients (RFC 9111
// section 3). If not, reason is the cause in a word or two, for Cache-Status. A response that is never
// fresh is also storable: it may answer waiting requests, see [Freshness.shareable]. f is freshnessOf's.
func storable(req Request, status int, resp http.Header, d Directives, f Freshness, opt Options) (ok bool, reason string) {
	switch {
	case status < 200 || status > 599:
		// Section 3: the status is final; RFC 9110 section 15: and valid.
		return false, "status"
	case status == http.StatusPartialContent:
		// Section 3: 206 only if understood; section 3.3: a part is not stored as the whole.
		return false, "partial"
	case status == http.StatusNotModified:
		// Section 3: a 304 updates a stored response, and is no response itself.
		return false, "not-modified"
	case status == http.StatusPreconditionRequired, status == http.StatusTooManyRequests,
		status == http.StatusRequestHeaderFieldsTooLarge, status == http.StatusNetworkAuthenticationRequired:
		// RFC 6585 sections 3 to 6: no cache stores them, whatever their directives.
		return false, "status"
	case status == http.StatusPreconditionFailed, status == http.StatusRequestedRangeNotSatisfiable:
		// Stricter than section 3: they answer one request's If-* or Range, which is not in the key.
		return false, "status"
	}
	// Section 5.2.2.3: must-understand limits storing to known statuses, and then overrides no-store.
	if d.MustUnderstand && !understood(status) {
		return false, "must-understand"
	}
	if d.NoStore && !d.MustUnderstand {
		return false, "no-store" // section 5.2.2.5
	}
	if d.Private {
		return false, "private" // section 5.2.2.7
	}
	if req.NoStore {
		return false, "request-no-store" // section 5.2.1.5
	}
	if req.Credentials && !d.OpenToAll() {
		return false, "authorization"
	}
	// Section 4.1: "*" matches no request, also no waiting caller's.
	if _, ok := VaryNames(resp); !ok {
		return false, "vary"
	}
	explicit := f.Source >= SourceExpires
	for _, name := range [...]string{"Set-Cookie", "Set-Cookie2"} {
		// Section 7.3. A qualified private or no-cache removes the cookie, and the rest is shared. A lifetime of
		// zero does not permit to share it: a handler that begins a session often says max-age=0.
		if len(resp[name]) > 0 && !slices.Contains(d.PrivateFields, name) &&
			!slices.Contains(d.NoCacheFields, name) && !(opt.SetCookie && explicit && f.Lifetime > 0) {
			return false, "set-cookie"
		}
	}
	// Section 3, last item.
	if !explicit && !d.Public && !heuristicallyCacheable(status) {
		return false, ReasonStatusNoLifetime
	}
	return true, ""
}

// heuristicallyCacheable reports whether RFC 9110 section 15.1 allows to store a response of this
// status without a lifetime. 206 is in the RFC's list, but storable refuses it.
func heuristicallyCacheable(status int) bool {
	switch status {
	case 200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501:
		return true
	}
	return false
}

// understood reports whether we do all that a status needs (RFC 9110 section 15, RFC 9111 section 3).
func understood(status int) bool {
	switch {
	case 200 <= status && status <= 205, 300 <= status && status <= 303:
		return true
	case status == 307, status == 308, status == 421, status == 422, status == 426:
		return true
	case 400 <= status && status <= 417:
		return true
	case 500 <= status && status <= 505:
		return true
	}
	return false
}

// connectionFields are for the next hop or a proxy (RFC 9110 section 7.6.1, RFC 9111 section 3.1).
var connectionFields = []string{
	"Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"Proxy-Connection", "Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization",
	"Http2-Settings", // RFC 7540 section 3.2.1
}

// CanonicalHeader returns h with all names in canonical form, h itself if they already are. This package
// looks names up in that form, but a handler may write any spelling into the map, and net/http sends it.
// So each response passes through here before it is judged: otherwise its "set-cookie" goes unseen.
func CanonicalHeader(h http.Header) http.Header {
	canonical := true
	for name := range h {
		canonical = canonical && name == http.CanonicalHeaderKey(name)
	}
	if canonical {
		return h
	}
	c := make(http.Header, len(h))
	for _, name := range slices.Sorted(maps.Keys(h)) {
		key := http.CanonicalHeaderKey(name)
		c[key] = append(c[key], h[name]...)
	}
	return c
}

// CanonicalNames returns the canonical form of names of fields.
func CanonicalNames(names []string) []string {
	canonical := make([]string, len(names))
	for i, name := range names {
		canonical[i] = http.CanonicalHeaderKey(name)
	}
	return canonical
}

// remove removes fields in canonical form: Del's canonicalisation was a twentieth of a rebuild's time.
func remove(h http.Header, names []string) {
	for _, name := range names {
		delete(h, name)
	}
}

// RemoveConnectionFields removes connectionFields from h, and the fields that Connection names.
func RemoveConnectionFields(h http.Header) {
	for name := range Members(h["Connection"]) {
		h.Del(name)
	}
	remove(h, connectionFields)
}

// EndToEnd returns a request's header for a forwarder: without the fields that only Connection
// makes fields of one connection (RFC 9110 section 7.6.1). Without such fields it is h itself.
func EndToEnd(h http.Header) http.Header {
	rest := h
	for name := range Members(h["Connection"]) {
		name = http.CanonicalHeaderKey(name)
		if rest[name] == nil || slices.Contains(connectionFields, name) {
			continue
		}
		if len(rest) == len(h) {
			rest = maps.Clone(h)
		}
		delete(rest, name)
	}
	return rest
}

// StoredHeader returns a copy of h with the shared fields:
//
//   - without the fields of one connection (RFC 9111 section 3.1) and trailers (section 3.1);
//   - without the fields of a qualified no-cache or private (sections 5.2.2.4 and 5.2.2.7);
//   - without Age, which the cache counts itself (section 4.2.3);
//   - with a Date, which is received if h has no readable one (RFC 9110 section 6.6.1).
func StoredHeader(h http.Header, d Directives, received time.Time) http.Header {
	c := h.Clone()
	if c == nil {
		c = http.Header{}
	}
	// net/http sends a field with a prefix that no field can have as a trailer. A field that Trailer announces is in
	// the header too if it is set this early.
	maps.DeleteFunc(c, func(name string, _ []string) bool {
		return strings.HasPrefix(name, http.TrailerPrefix)
	})
	RemoveConnectionFields(c)
	remove(c, d.NoCacheFields)
	remove(c, d.PrivateFields)
	delete(c, "Age")
	if _, ok := onlyDate(c["Date"], received); !ok {
		c.Set("Date", received.UTC().Format(http.TimeFormat))
	}
	return c
}
