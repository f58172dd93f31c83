package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
)

// This file invalidates responses by URL, prefix and tag.

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

// Traits returns a function of a response's traits for sweeps. tagFields are canonical names.
func Traits(tagFields []string) func(*Item) (tags []string, signpost bool) {
	return func(it *Item) ([]string, bool) {
		r := responseOf(it)
		tags := r.tags(tagFields)
		if r.spare != nil {
			tags = append(tags, responseOf(r.spare).tags(tagFields)...)
		}
		return tags, r.kind == varying
	}
}
