package httpcache

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
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

// KeysOf returns the keys of the URL that a request for it has, plain and over
// TLS. Who changes or drops what is at a URL means both: which of the two a
// request has come by is known to the listener, and behind a proxy to nobody.
func KeysOf(r *http.Request) (keys [2]string, ok bool) {
	key, ok := keyBehind("", r)
	return [2]string{key, Secure + key}, ok
}

// Changed is the URLs that an unsafe request has changed.
type Changed struct {
	URLs    []string // their plain keys, each once
	OverTLS bool     // the request came over TLS
}

// ChangedBy returns the URLs that a request has changed, once it was answered with that
// status and header (RFC 9111 section 4.4): none if the method is safe or the status is
// an error; else the request's own URL and, if locations is true, the URLs of Location
// and Content-Location on the same host.
func ChangedBy(r *http.Request, status int, resp http.Header, locations bool) Changed {
	c := Changed{OverTLS: secure(r)}
	if Safe(r.Method) || status < 200 || status > 399 {
		return c
	}
	add := func(key string, ok bool) {
		if ok && !slices.Contains(c.URLs, key) {
			c.URLs = append(c.URLs, key)
		}
	}
	add(keyBehind("", r))
	if locations {
		for _, name := range [...]string{"Location", "Content-Location"} {
			// Several lines are no single reference, and what they mean is
			// anybody's guess.
			if lines := resp.Values(name); len(lines) == 1 {
				add(referenced(r, lines[0]))
			}
		}
	}
	return c
}

// Keys returns the keys of the URLs. A request over TLS has changed what is kept for plain
// requests too. A plain request has changed nothing over TLS, since anybody on the way
// can send it.
func (c Changed) Keys() []string {
	keys := slices.Clone(c.URLs)
	if c.OverTLS {
		for _, key := range c.URLs {
			keys = append(keys, Secure+key)
		}
	}
	return keys
}

// referenced returns the plain key of what a reference in the answer to r names.
// It returns false unless that is on the same host as r (RFC 9111 section 4.4):
// never another's, or anybody could invalidate anything. The http and the https
// of one host are taken for one origin: a handler behind a proxy that ends TLS
// says https to requests that have reached it plain.
func referenced(r *http.Request, reference string) (key string, ok bool) {
	hostport := hostOf(r)
	host, ok := CanonicalHost(hostport)
	if !ok || reference == "" || len(reference) > MaxKey {
		return "", false
	}
	ref, err := url.Parse(reference)
	if err != nil {
		return "", false
	}
	base := *r.URL
	base.Scheme, base.Host = "http", hostport
	u := base.ResolveReference(ref)
	if u.Scheme != "http" && u.Scheme != "https" {
		return "", false
	}
	if other, ok := CanonicalHost(u.Host); !ok || other != host {
		return "", false
	}
	u.Fragment, u.RawFragment = "", "" // part of no request
	target, ok := targetOf(u, "")
	if !ok {
		return "", false
	}
	return join("", host, target)
}

// KeyPrefix returns what the plain keys of all URLs begin with that begin with u,
// which has a host and may end anywhere after it. A u that ends within an encoded byte
// counts without that byte, since the rest of the byte is not known. Over TLS the keys have [Secure]
// before that.
func KeyPrefix(u string) (prefix string, ok bool) {
	scheme, rest, ok := strings.Cut(u, "://")
	if !ok || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return "", false
	}
	hostport, target := rest, "/"
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		if hostport, target = rest[:i], rest[i:]; target[0] == '?' {
			target = "/" + target
		}
	}
	path, _, found := strings.Cut(target, "?")
	query := target[len(path):]
	if i := strings.LastIndexByte(path, '%'); !found && i >= max(0, len(path)-2) {
		path = path[:i]
	}
	if _, err := url.PathUnescape(path); err != nil || !clean(target) {
		return "", false
	}
	return join("", hostport, canonicalPath(path)+query)
}

// TagFields are the fields with tags by the conventions of content delivery networks: words in
// the one, and members of a list with commas in the other.
var TagFields = []string{"Surrogate-Key", "Cache-Tag"}

// Tags returns the tags of a response, by which it may be invalidated. Of the fields, other
// ones than TagFields have both words and lists. values returns the values of a field of the response.
func Tags(fields []string, values func(field string) []string) (tags []string) {
	for _, field := range fields {
		lines := values(field)
		if field == "Cache-Tag" {
			tags = slices.AppendSeq(tags, Members(lines))
			continue
		}
		for _, line := range lines {
			if field == "Surrogate-Key" {
				tags = append(tags, strings.Fields(line)...)
			} else {
				tags = append(tags, strings.FieldsFunc(line, separatesTags)...)
			}
		}
	}
	return tags
}

// separatesTags tells whether no tag can contain r.
func separatesTags(r rune) bool { return r <= ' ' || r == ',' || r == 0x7f }

// ValidTag tells whether a field can contain the tag.
func ValidTag(tag string) bool { return tag != "" && !strings.ContainsFunc(tag, separatesTags) }
