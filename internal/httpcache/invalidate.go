package httpcache

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// This file finds the responses to invalidate: by an unsafe request, by the beginning of a URL, or by a tag.

// Safe reports whether a method is known to be safe (RFC 9110 section 9.2.1, RFC 9111 section 4.4).
func Safe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace,
		"PROPFIND", "REPORT", "SEARCH", "QUERY": // safe in IANA's registry
		return true
	}
	return false
}

// KeysOf returns both keys of r's URL, plain and over TLS. A change concerns both: a proxy hides the scheme.
func KeysOf(r *http.Request) (keys [2]string, ok bool) {
	key, ok := keyBehind("", r)
	return [2]string{key, Secure + key}, ok
}

// Changed is the set of URLs that an unsafe request has changed.
type Changed struct {
	URLs    []string // their plain keys, each once
	OverTLS bool     // the request came over TLS
}

// ChangedBy returns the URLs that a request with this answer has changed (RFC 9111 section 4.4).
// There are none if the method is safe or the status is an error. Otherwise they are page's, which is r or
// the request for another URL that r changes, and, if pageOf is not nil, the URLs of Location and
// Content-Location on the host of r or page. pageOf returns the page of a client's GET to such a URL.
func ChangedBy(r, page *http.Request, status int, resp http.Header, pageOf func(get *http.Request) (page *http.Request, ok bool)) Changed {
	c := Changed{OverTLS: secure(page)}
	if Safe(r.Method) || status < 200 || status > 399 {
		return c
	}
	add := func(page *http.Request) {
		if key, ok := keyBehind("", page); ok && !slices.Contains(c.URLs, key) {
			c.URLs = append(c.URLs, key)
		}
	}
	add(page)
	if pageOf == nil {
		return c
	}
	for _, name := range [...]string{"Location", "Content-Location"} {
		// Several lines are no single reference, and have no defined meaning.
		if lines := resp.Values(name); len(lines) == 1 {
			if get, ok := referenced(r, page, lines[0]); ok {
				if located, ok := pageOf(get); ok {
					add(located)
				}
			}
		}
	}
	return c
}

// Keys returns the keys of the URLs. A request over TLS has also changed the plain responses. A
// plain request has changed nothing over TLS, because any node on the way can send it.
func (c Changed) Keys() []string {
	keys := slices.Clone(c.URLs)
	if c.OverTLS {
		for _, key := range c.URLs {
			keys = append(keys, Secure+key)
		}
	}
	return keys
}

// referenced returns a client's GET to a reference in the answer to r (RFC 9110 section 10.2.2). The result is
// false for a host that is neither r's nor page's (RFC 9111 section 4.4): otherwise any response could invalidate
// any URL. http and https of one host are one origin: behind a proxy that ends TLS, a handler answers plain
// requests with https.
func referenced(r, page *http.Request, reference string) (get *http.Request, ok bool) {
	if reference == "" {
		return nil, false
	}
	ref, err := url.Parse(reference)
	if err != nil {
		return nil, false
	}
	base := *r.URL
	if sent, ok := originForm(r.RequestURI); ok { // the client's own, also behind http.StripPrefix
		own, err := url.ParseRequestURI(sent)
		if err != nil {
			return nil, false
		}
		base = *own
	}
	base.Scheme, base.Host = "http", hostOf(r)
	u := base.ResolveReference(ref)
	if u.Scheme != "http" && u.Scheme != "https" || !sameHost(u.Host, hostOf(r)) && !sameHost(u.Host, hostOf(page)) {
		return nil, false
	}
	u.Fragment, u.RawFragment = "", "" // not part of a request
	// Nothing of r's route and form: they are of r's own URL.
	get = (&http.Request{
		Method: http.MethodGet, URL: u, Host: u.Host, Header: r.Header, Body: http.NoBody,
		Proto: r.Proto, ProtoMajor: r.ProtoMajor, ProtoMinor: r.ProtoMinor, RemoteAddr: r.RemoteAddr, TLS: r.TLS,
	}).WithContext(r.Context())
	u.Scheme, u.Host = r.URL.Scheme, "" // as in r
	if r.RequestURI != "" {
		get.RequestURI = u.RequestURI()
	}
	return get, true
}

func sameHost(a, b string) bool {
	a, _ = CanonicalHost(a)
	b, ok := CanonicalHost(b)
	return ok && a == b
}

// KeyPrefix returns the common prefix of the plain keys of all URLs that begin with u. u has a
// host, and may end anywhere after it. If u ends within an encoded byte, the prefix ends before
// that byte. The keys over TLS have [Secure] before the prefix.
func KeyPrefix(u string) (prefix string, ok bool) {
	scheme, rest, _ := strings.Cut(u, "://")
	if !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
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

// TagFields are the tag fields of delivery networks: Surrogate-Key has words, Cache-Tag list members.
var TagFields = []string{"Surrogate-Key", "Cache-Tag"}

// Tags returns a response's tags in the fields, for invalidation. Fields other than TagFields may
// have words and lists. values returns the values of a field of the response.
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

// separatesTags reports whether no tag can contain r.
func separatesTags(r rune) bool { return r <= ' ' || r == ',' || r == 0x7f }

// ValidTag reports whether a field can contain the tag.
func ValidTag(tag string) bool { return tag != "" && !strings.ContainsFunc(tag, separatesTags) }
