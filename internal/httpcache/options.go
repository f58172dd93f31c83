package httpcache

import (
	"net/http"
	"time"
)

// Options are the choices that RFC 9111 leaves to a cache. The zero value trusts only the origin.
type Options struct {
	// Targets are the targeted fields for this cache, such as "CDN-Cache-Control". The first that
	// applies counts (RFC 9213 section 2.2). Empty: Cache-Control only.
	Targets []string

	// SetCookie stores responses with a Set-Cookie field and an explicit lifetime above 0, with the cookies.
	// RFC 9111 section 7.3 allows it, but a cookie is usually for one client. Default: not stored.
	SetCookie bool

	// DefaultLifetime is the freshness of a response without a lifetime whose status is
	// heuristically cacheable (RFC 9111 section 4.2.2). 0: HeuristicFraction decides.
	DefaultLifetime time.Duration

	// HeuristicFraction is the part of the time since Last-Modified for which a response is fresh
	// by default (RFC 9111 section 4.2.2), at most a day, without DefaultLifetime. 0: no heuristic.
	HeuristicFraction float64

	// AnyLanguageOrder sorts the normal form of Accept-Language. RFC 9110 section 12.5.4 says that
	// the order cannot be relied upon, but many servers rely on it. Default: the order counts.
	AnyLanguageOrder bool

	// Retargeting is the set of request fields that choose another target. Nil: the known fields.
	Retargeting *Retargeting

	// Credentials are the names, in canonical form, of the request fields that identify a client.
	Credentials []string

	// Freshness replaces the three durations of f, a shareable response's freshness at that age. Nil: f.
	Freshness func(r *http.Request, status int, resp http.Header, age time.Duration, f Freshness) Freshness

	// StaleWhileRevalidate and StaleIfError are the windows (RFC 5861) of responses that neither
	// state a window nor forbid stale answers. 0: none.
	StaleWhileRevalidate, StaleIfError time.Duration
}
