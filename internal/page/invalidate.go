package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
)

// This file invalidates responses by URL, prefix and tag, through calls and unsafe requests.

// A Match selects responses to invalidate: each response that matches any of the fields.
type Match struct {
	Keys     []string // URLs
	Prefixes []string // prefixes of URLs
	Tags     []string
	All      bool // matches all responses
	Soft     bool // makes the matching responses stale instead of dropping them
}

// Invalidate ensures that no matching response computed before the call is served.
func (m *Middleware) Invalidate(ctx context.Context, match Match) error {
	var (
		errs   []error
		gone   []string
		sweeps []sweeplog.Sweep
	)
	for _, u := range match.Keys {
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
	if match.All {
		// The empty prefix hits every key, see sweeplog's repeats.
		sweeps = append(sweeps, sweeplog.Sweep{Kind: sweeplog.ByPrefix, Soft: match.Soft})
	}
	errs = append(errs, m.cache.InvalidateAll(ctx, gone)...)
	return errors.Join(append(errs, m.cache.Sweep(ctx, sweeps))...)
}

// noteChanged sets changed to the URLs that an unsafe request with this answer has changed.
func (m *Middleware) noteChanged(changed *httpcache.Changed, r *http.Request, t target, status int, h http.Header) {
	*changed = httpcache.ChangedBy(r, t.url, status, h, nil) // at first, since Key may call Goexit for a location
	if !m.options.InvalidateLocations {
		return
	}
	*changed = httpcache.ChangedBy(r, t.url, status, h, func(get *http.Request) (page *http.Request, ok bool) {
		// The handler has done its work, and its own URL is still to be invalidated: a panic of Key for a
		// location must not prevent this.
		err := fault.Guard(func() error {
			var located target
			located, ok = m.target(get)
			page = located.url
			return nil
		})
		if err != nil {
			m.cache.OnError(t.key, fmt.Errorf("bellwether: HTTPOptions.Key for a location of the response: %w", err))
		}
		return page, ok
	})
}

// invalidateChanged invalidates an unsafe request's URLs, even for a client that has left.
func (m *Middleware) invalidateChanged(ctx context.Context, c httpcache.Changed) (dropped bool) {
	if len(c.URLs) == 0 || m.options.Unsafe == UnsafeNothing {
		return false
	}
	ctx = context.WithoutCancel(ctx)
	if m.options.Unsafe == UnsafeStales && m.makeStale(ctx, c) {
		return false
	}
	keys := c.Keys()
	for i, err := range m.cache.InvalidateAll(ctx, keys) {
		if err != nil {
			m.cache.OnError(keys[i], err) // user code, which may call Goexit
		}
	}
	return true
}

// makeStale makes the responses stale. It returns false if the log has no room for it, or does not take it. The
// responses are dropped then: the cache repeats that until the store answers, and no client repeats its request.
func (m *Middleware) makeStale(ctx context.Context, c httpcache.Changed) bool {
	if !m.softly() {
		return false
	}
	defer m.soft.Release(1)
	sweeps := make([]sweeplog.Sweep, len(c.URLs))
	for i, key := range c.URLs {
		sweeps[i] = sweeplog.Sweep{Kind: sweeplog.ByKey, What: sweeplog.Exact(key), Soft: true, Plain: !c.OverTLS}
	}
	return m.cache.Sweep(ctx, sweeps) == nil
}

// maxSoftUnsafe is the invalidations a minute up to which unsafe requests write to the log: a tenth of
// its sweeps. Any client can send them, and must not make the log forget, which invalidates everything.
const maxSoftUnsafe = sweeplog.MaxSweeps / 10

// softly takes a place for an unsafe request's invalidation in the log. The result is false if the log has no
// room or may lose the line: without a Locker's answer, two processes may overwrite each other's.
func (m *Middleware) softly() bool {
	if !m.cache.LogKeepsLines() || !m.soft.TryAcquire(1) {
		return false
	}
	if m.cache.SweptSince(m.cache.Now()-time.Minute) >= maxSoftUnsafe {
		m.soft.Release(1)
		return false
	}
	return true
}

// Traits returns a function of a response's traits for sweeps. fields are the canonical names of tag fields.
func Traits(fields []string) func(*Item) (tags []string, signpost bool) {
	return func(it *Item) ([]string, bool) {
		r := responseOf(it)
		tags := r.tags(fields)
		if r.spare != nil {
			tags = append(tags, responseOf(r.spare).tags(fields)...)
		}
		return tags, r.kind == varying
	}
}
