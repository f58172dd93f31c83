package httpcache

import (
	"net/http"
	"time"
)

// Options are the choices that RFC 9111 leaves to a cache. The zero value is
// a cache that trusts the origin only.
type Options struct {
	// Targets is the list of targeted fields that are meant for this cache, the
	// first that applies wins (RFC 9213 section 2.2), such as
	// "CDN-Cache-Control". Empty: Cache-Control only. It is here to be passed
	// to [ResponseDirectives]; nothing else looks at it.
	Targets []string

	// SetCookie lets responses with a Set-Cookie field be stored, the cookies
	// included, if they say explicitly how long they are fresh. RFC 9111
	// section 7.3 has no objection, but a cookie is somebody's more often than
	// everybody's. Default: they are not stored.
	SetCookie bool

	// DefaultLifetime is how long a response is fresh that says nothing about
	// it and whose status is heuristically cacheable (RFC 9111 section 4.2.2).
	// 0: as the heuristic below has it.
	DefaultLifetime time.Duration

	// HeuristicFraction is the part of a response's time since Last-Modified
	// for which it is fresh if neither it nor DefaultLifetime says (RFC 9111
	// section 4.2.2), for a day at most. 0: no heuristic.
	HeuristicFraction float64

	// AnyLanguageOrder makes the order of Accept-Language meaningless: its normal form
	// is sorted. RFC 9110 section 12.5.4 says that the order cannot be relied upon, but
	// many servers rely on it. Default: the order counts.
	AnyLanguageOrder bool

	// Retargeting is the set of request fields that choose another target. Nil: the
	// fields that are known here.
	Retargeting *Retargeting

	// Freshness returns another freshness for a response of that age that may be shared,
	// and that is fresh as f has it. Only the three durations count. Nil: f holds.
	Freshness func(r *http.Request, status int, resp http.Header, age time.Duration, f Freshness) Freshness

	// StaleWhileRevalidate and StaleIfError are the windows (RFC 5861) of
	// responses that neither state one nor forbid stale answers. 0: none.
	StaleWhileRevalidate, StaleIfError time.Duration
}
