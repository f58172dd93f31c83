package bellwether

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
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
	return m.InvalidateMatching(ctx, Match{URLs: urls})
}

// A Match says which responses are to be invalidated: those that match any of
// it, so none if it is empty.
type Match struct {
	// URLs are "http://host/path?query", or with https: both mean both. All
	// variants of a URL match.
	URLs []string
	// Prefixes are URLs too, and match what begins with them: with
	// "http://host/a", "/a", "/a/b", "/ab" and "/a?q" on that host; with
	// "http://host", all that is there.
	Prefixes []string
	// Tags match responses that bear one of them in their Surrogate-Key (words)
	// or Cache-Tag (a list with commas). Case counts.
	Tags []string
	// Soft makes what matches stale instead of dropping it: it may be served in
	// its stale windows, which begin now, and be validated.
	Soft bool
}

// InvalidateMatching makes sure that nothing computed before now is served for
// what matches, as [Middleware.Invalidate] does for single URLs: in this process
// once it has returned nil, in the others within NearTTL.
//
// Prefixes, tags and what is Soft go into a log that all processes read, which
// remembers the last 500 of them, or fewer if they have more than some 100 KiB
// together: a response that has seen more of them go by than that counts as
// invalidated. With a Store and without a Locker that answers, two processes that write
// into the log at one moment may lose one of the lines. An error names what could not be
// done, or the log, for all that goes into it; what can be done is done nevertheless.
func (m *Middleware) InvalidateMatching(ctx context.Context, match Match) error {
	var (
		errs   []error
		gone   []string
		sweeps []sweeplog.Sweep
	)
	for _, u := range match.URLs {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
		if err != nil {
			errs = append(errs, fmt.Errorf("bellwether: invalidating: %w", err))
			continue
		}
		keys, ok := httpcache.KeysOf(r)
		switch {
		case !ok || r.URL.Scheme != "http" && r.URL.Scheme != "https":
			errs = append(errs, fmt.Errorf("bellwether: invalidating %q: want a URL with a host, and a path that is cached, such as http://host/path?query", u))
		case match.Soft:
			sweeps = append(sweeps, sweeplog.Sweep{Kind: sweeplog.ByKey, What: sweeplog.Exact(keys[0]), Soft: true})
		default:
			gone = append(gone, keys[:]...)
		}
	}
	for _, u := range match.Prefixes {
		prefix, ok := httpcache.KeyPrefix(u)
		if !ok {
			errs = append(errs, fmt.Errorf("bellwether: invalidating by prefix %q: want the beginning of a URL with a host, such as http://host/path", u))
			continue
		}
		sweeps = append(sweeps, sweeplog.Sweep{Kind: sweeplog.ByPrefix, What: sweeplog.Exact(prefix), Soft: match.Soft})
	}
	for _, tag := range match.Tags {
		if !httpcache.ValidTag(tag) {
			errs = append(errs, fmt.Errorf("bellwether: invalidating by tag %q: want a tag without spaces, commas and control characters", tag))
			continue
		}
		sweeps = append(sweeps, sweeplog.Sweep{Kind: sweeplog.ByTag, What: sweeplog.Exact(tag), Soft: match.Soft})
	}
	errs = append(errs, m.engine.invalidateAll(ctx, gone)...)
	return errors.Join(append(errs, m.engine.sweep(ctx, sweeps))...)
}

// changedBy returns the URLs that an unsafe request for t has changed.
func (m *Middleware) changedBy(t target, status int, h http.Header) httpcache.Changed {
	return httpcache.ChangedBy(t.url, status, h, m.options.InvalidateLocations)
}

// invalidateChanged invalidates what an unsafe request has changed, also for a client that
// has left. It reports whether it has dropped the responses.
func (m *Middleware) invalidateChanged(ctx context.Context, c httpcache.Changed) (dropped bool) {
	if len(c.URLs) == 0 || m.options.UnsafeInvalidation == NoInvalidation {
		return false
	}
	ctx = context.WithoutCancel(ctx)
	if m.options.UnsafeInvalidation == SoftInvalidation && m.softly() {
		defer m.soft.Release(1)
		sweeps := make([]sweeplog.Sweep, len(c.URLs))
		for i, key := range c.URLs {
			sweeps[i] = sweeplog.Sweep{Kind: sweeplog.ByKey, What: sweeplog.Exact(key), Soft: true, Plain: !c.OverTLS}
		}
		if err := m.engine.sweep(ctx, sweeps); err != nil {
			m.engine.OnError(c.URLs[0], err)
		}
		return false
	}
	keys := c.Keys()
	for i, err := range m.engine.invalidateAll(ctx, keys) {
		if err != nil {
			m.engine.OnError(keys[i], err)
		}
	}
	return true
}

const (
	// maxSoftUnsafe is how many invalidations in a minute leave room in the log for those of
	// unsafe requests: a tenth of what the log remembers. An unsafe request that anybody can
	// make must not have the log forget, which invalidates everything.
	maxSoftUnsafe = sweeplog.MaxSweeps / 10
	// maxSoftWrites is how many of them are on their way into the log at a time, which the
	// count of the last minute does not know yet.
	maxSoftWrites = 4
)

// softly takes a place for an unsafe request's invalidation in the log. It returns false if
// the log has no room, or if a line may be lost: without a Locker that answers, two
// processes may write at one moment, and one writes over the other's line.
func (m *Middleware) softly() bool {
	e := m.engine
	if e.Store != nil && (e.Locker == nil || !e.locker.Sound(sweeplog.Key)) || !m.soft.TryAcquire(1) {
		return false
	}
	if e.sweeps.Log().HeardSince(e.clock.Now()-time.Minute) >= maxSoftUnsafe {
		m.soft.Release(1)
		return false
	}
	return true
}

// traitsOf are the traits of a response for sweeps. One that is still being
// written and has turned out to be a variant has the variant's: who reads it
// gets that.
func traitsOf(r *response) (tags []string, signpost bool) {
	if r.variant != nil {
		return r.variant.tags(), false
	}
	tags = r.tags()
	if r.instead != nil {
		tags = append(tags, r.instead.Value.tags()...)
	}
	return tags, r.kind == varying
}
