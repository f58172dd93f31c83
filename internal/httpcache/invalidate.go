package httpcache

import (
	"net/http"
	"net/url"
)

// This file says what a request that may change things has made invalid.

// Safe tells whether a method is defined as safe (RFC 9110 section 9.2.1), so
// that it invalidates nothing. An unknown method is not (RFC 9111 section 4.4).
func Safe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace,
		"PROPFIND", "REPORT", "SEARCH", "QUERY": // safe in IANA's registry
		return true
	}
	return false
}

// InvalidatedKeys returns the keys that are to be invalidated after the
// request was answered (RFC 9111 section 4.4): if its method is not safe and
// the answer no error, its own key and those of Location and Content-Location,
// as far as they are on the same host. Each key is there once.
func InvalidatedKeys(r *http.Request, status int, resp http.Header) []string {
	if Safe(r.Method) || status < 200 || status > 399 {
		return nil
	}
	var keys []string
	add := func(key string, ok bool) {
		for _, k := range keys {
			ok = ok && k != key
		}
		if ok {
			keys = append(keys, key)
		}
	}
	add(Key(r))
	hostport := r.Host
	if hostport == "" {
		hostport = r.URL.Host
	}
	host, ok := CanonicalHost(hostport)
	if !ok {
		return keys
	}
	base := *r.URL
	base.Scheme, base.Host = "http", hostport
	for _, name := range [...]string{"Location", "Content-Location"} {
		// Several lines are no single reference, and what they mean is
		// anybody's guess.
		lines := resp.Values(name)
		if len(lines) != 1 || lines[0] == "" || len(lines[0]) > MaxKey {
			continue
		}
		ref, err := url.Parse(lines[0])
		if err != nil {
			continue
		}
		u := base.ResolveReference(ref)
		// Section 4.4: never another origin's, or anybody could invalidate
		// anything. The key has no scheme, so http and https are one origin.
		if u.Scheme != "http" && u.Scheme != "https" {
			continue
		}
		if other, ok := CanonicalHost(u.Host); !ok || other != host {
			continue
		}
		u.Fragment, u.RawFragment = "", "" // part of no request
		if target, ok := targetOf(u); ok {
			add(join(host, target))
		}
	}
	return keys
}
