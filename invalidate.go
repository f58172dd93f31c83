package bellwether

import (
	"context"

	"github.com/bellwether-go/bellwether/internal/page"
)

// This file is invalidation by the HTTP face. internal/page turns URLs into keys.

// Invalidate drops the responses of the URLs, with all variants, as [Cache.Invalidate] does. A URL
// "http://host/path?query" also means https. A response that another process is writing may be joined
// for NearTTL.
func (m *Middleware) Invalidate(ctx context.Context, urls ...string) error {
	return m.InvalidateMatching(ctx, Match{Keys: urls})
}

// A Match selects the values of a [Cache], or the responses of a [Middleware], that match any of its
// fields. The zero Match selects nothing.
type Match struct {
	// Keys are the keys of a Cache, or URLs for a Middleware: both schemes, with all variants.
	Keys []string
	// Prefixes match the keys that begin with them. "http://host/a" matches "/a", "/a/b", "/ab" and
	// "/a?q" on that host, and "http://host" matches the whole host.
	Prefixes []string
	// Tags match values by [Result].Tags, and responses by [HTTPOptions].TagFields. Case counts.
	Tags []string
	// All matches everything in the fleet, for one place in the log of [Middleware.InvalidateMatching].
	All bool
	// Soft makes matches stale from now on instead of dropping them. The next load can start from them.
	Soft bool
}

// InvalidateMatching drops the matching responses. After it has returned nil, no matching response made
// before the call is served in this process, nor in others after NearTTL. An error names each failed
// part; the other parts are done.
//
// Soft matches, Prefixes, Tags and All go into a log of 500 places. A response older than the log
// counts as invalidated. Without a locker that answers, one of two simultaneous calls may be lost.
func (m *Middleware) InvalidateMatching(ctx context.Context, match Match) error {
	return m.pages.Invalidate(ctx, page.Match(match))
}
