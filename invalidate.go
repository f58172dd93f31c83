package bellwether

import (
	"context"

	"github.com/bellwether-go/bellwether/internal/page"
)

// This file is the HTTP face of invalidation: by URL, by what URLs have in
// common, by tag.

// Invalidate drops what is kept for the URLs, all variants included, as
// [Cache.Invalidate] does. A URL is "http://host/path?query"; what is kept for
// the same with https goes too, and the other way round. Where the path is
// rewritten before the middleware sees it, as by an [http.StripPrefix] around it,
// no URL names what is kept; put the middleware around that, or see
// [HTTPOptions].Key.
func (m *Middleware) Invalidate(ctx context.Context, urls ...string) error {
	return m.InvalidateMatching(ctx, Match{Keys: urls})
}

// A Match says what is to be invalidated: the values of a [Cache] or the responses of a
// [Middleware] that match any of it, so none if it is empty.
type Match struct {
	// Keys are a Cache's keys. A Middleware's are URLs, "http://host/path?query", or with
	// https: both mean both, and all variants of a URL match.
	Keys []string
	// Prefixes match the keys that begin with them. A Middleware's are URLs: with
	// "http://host/a", "/a", "/a/b", "/ab" and "/a?q" on that host match; with
	// "http://host", all that is there.
	Prefixes []string
	// Tags match values whose load has returned one of them, see [Result], and responses that
	// bear one of them in their Surrogate-Key (words) or Cache-Tag (a list with commas), or in
	// [HTTPOptions].TagFields. Case counts.
	Tags []string
	// All matches everything, in the whole fleet. It takes one place in the log, and a hard one
	// frees the places before it.
	All bool
	// Soft makes what matches stale instead of dropping it: it may be served in
	// its stale windows, which begin now, and be what its next load starts from.
	Soft bool
}

// InvalidateMatching makes sure that nothing computed before now is served for
// what matches, as [Middleware.Invalidate] does for single URLs: in this process
// once it has returned nil, in the others within NearTTL.
//
// Prefixes, tags, All and what is Soft go into a log that all processes read, which
// remembers the last 500 of them, or fewer if they have more than some 100 KiB
// together: a response that has seen more of them go by than that counts as
// invalidated. With a Store and without a Locker that answers, two processes that write
// into the log at one moment may lose one of the lines. An error names what could not be
// done, or the log, for all that goes into it; what can be done is done nevertheless.
func (m *Middleware) InvalidateMatching(ctx context.Context, match Match) error {
	return m.pages.Invalidate(ctx, page.Match(match))
}
