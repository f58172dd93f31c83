package httpcache

import (
	"cmp"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// This file builds the key of a request.

// maxKey is the longest key, in bytes. RFC 9110 section 4.1 recommends to support URIs of 8000 bytes.
const maxKey = 8 << 10

// Secure is the prefix of the keys of requests over TLS. No other key has it: in a host, a digit follows
// a colon. Without the prefix a handler that redirects plain requests to https would redirect the secure
// requests in circles. The key of a plain request has no scheme: behind a proxy the scheme is unknown.
const Secure = "https://"

// Key returns the primary cache key of a request (RFC 9111 section 2): its host and its target,
// behind [Secure] if it came over TLS (see secure). No header field is part of it. Key returns false if the
// request cannot be cached: the host is unusable, the URL has user information, a fragment, a space
// or a control character, the target is no path, or the key is too long.
//
//   - The host has the form of [CanonicalHost].
//   - The path has the form of canonicalPath: "/%7Ea" is "/~a", and "/a%2Fb" is not "/a/b".
//   - The query is unchanged. "/a?" is not "/a": they are two URIs (RFC 3986 section 6.2.3), and at
//     worst a response is stored twice.
//   - A URL that was rewritten before the cache, as by [http.StripPrefix], adds the original
//     target: two prefixes may lead to two handlers.
func Key(r *http.Request) (key string, ok bool) {
	scheme := ""
	if secure(r) {
		scheme = Secure
	}
	return keyBehind(scheme, r)
}

// secure reports whether a request came over TLS. Without a server, or after an outer middleware, the URL's scheme
// decides.
func secure(r *http.Request) bool {
	return r.TLS != nil || r.URL.Scheme == "https" && (r.RequestURI == "" || rewritten(r))
}

// rewritten reports whether the URL's scheme and host, if any, are of an outer middleware, such as one that reads a
// proxy's fields. net/http sets them only for a target in absolute-form.
func rewritten(r *http.Request) bool { return strings.HasPrefix(r.RequestURI, "/") }

// keyBehind returns the key of a request with the given scheme in place of its own.
func keyBehind(scheme string, r *http.Request) (key string, ok bool) {
	target, sent, ok := targets(r)
	if !ok {
		return "", false
	}
	return join(scheme, hostOf(r), together(target, sent))
}

// together returns the end of a key: the target, and the client's own if it has another.
func together(target, sent string) string {
	if sent == "" {
		return target
	}
	return target + " " + sent // neither has a space
}

// hostOf returns the request's host in the client's spelling. Without a Host, the host is the URL's only
// in a request that no server has read. Over HTTP/2 a client can send a target in absolute-form without
// a Host, and the handler then sees no host.
func hostOf(r *http.Request) string {
	if r.RequestURI != "" {
		return r.Host
	}
	return cmp.Or(r.Host, r.URL.Host)
}

// targets returns, in a key's form, the target and the client's own: empty if the same or unknown.
func targets(r *http.Request) (target, sent string, ok bool) {
	if r.RequestURI != "" { // empty in a request that no server has read
		if sent, ok = originForm(r.RequestURI); !ok {
			return "", "", false
		}
	}
	if target, ok = targetOf(r.URL, sent); !ok {
		return "", "", false
	}
	if sent == target {
		return target, "", true
	}
	if !clean(sent) {
		return "", "", false
	}
	if sent = canonicalTarget(sent); sent == target {
		sent = ""
	}
	return target, sent, true
}

// A Location is the parts of a request's URL that its key contains.
type Location struct {
	Scheme string // "http://" or [Secure]
	Host   string // in canonical form
	Path   string // as sent by the client, in canonical form
	Query  string // without the question mark
	// Rewritten is the path for the handler, in canonical form. Empty: it is Path.
	Rewritten string
	// Own: the request's key is the key of this URL, which was not rewritten before the cache.
	Own bool
}

// Locate returns the parts of a request's URL. The result is false if [Key] does.
func Locate(r *http.Request) (l Location, ok bool) {
	target, sent, ok := targets(r)
	if !ok {
		return l, false
	}
	if l.Host, ok = CanonicalHost(hostOf(r)); !ok || len(l.Host)+len(together(target, sent)) > maxKey {
		return l, false
	}
	l.Scheme = "http://"
	if secure(r) {
		l.Scheme = Secure
	}
	l.Path, l.Query, _ = strings.Cut(target, "?")
	if l.Own = sent == ""; l.Own {
		return l, true
	}
	if path, _, _ := strings.Cut(sent, "?"); path != l.Path {
		l.Path, l.Rewritten = path, l.Path
	}
	return l, true
}

// join builds a key. scheme is [Secure] or empty.
func join(scheme, hostport, target string) (string, bool) {
	host, ok := CanonicalHost(hostport)
	// A canonical host has no slash, and a target begins with one, so no two pairs make one key.
	if !ok || len(host)+len(target) > maxKey {
		return "", false
	}
	return scheme + host + target, true
}

// targetOf returns the path and query of a URL. If they equal sent, it is sent itself, to save a copy.
func targetOf(u *url.URL, sent string) (string, bool) {
	if u.Opaque != "" || u.User != nil || u.Fragment != "" {
		return "", false
	}
	path := pathOf(u)
	if path[0] != '/' {
		return "", false
	}
	if u.RawQuery != "" || u.ForceQuery {
		if p, query, ok := strings.Cut(sent, "?"); ok && p == path && query == u.RawQuery {
			path = sent
		} else {
			path += "?" + u.RawQuery
		}
	}
	return path, clean(path)
}

// pathOf returns the canonical form of a URL's path.
func pathOf(u *url.URL) string {
	if u.Path == "" {
		return "/" // RFC 9110 section 4.2.3
	}
	if u.RawPath == "" && isBare(u.Path) { // the usual case
		return u.Path
	}
	// EscapedPath replaces RawPath by its own encoding if a client has left a byte such as "|"
	// unencoded. The key uses RawPath as long as it decodes to Path.
	path := u.RawPath
	if p, _ := url.PathUnescape(path); p != u.Path {
		path = u.EscapedPath()
	}
	return canonicalPath(path)
}

// bare are the bytes that stand for themselves in a path (RFC 3986 section 3.3).
var bare = func() (set [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~!$&'()*+,;=:@/") {
		set[c] = true
	}
	return set
}()

func isBare(path string) bool {
	for i := range len(path) {
		if !bare[path[i]] {
			return false
		}
	}
	return true
}

// canonicalPath returns the same form for all encodings of a path: a byte that can stand for itself
// does, and any other byte is encoded in upper case (RFC 3986 section 6.2.2). Browsers send this
// form. Three encoded bytes stay apart from the bare byte, because many handlers distinguish them:
// "/" separates segments, ";" begins a segment's parameters, and "+" is a space for some handlers.
func canonicalPath(path string) string {
	i := 0
	for ; i < len(path); i++ {
		if bare[path[i]] {
			continue
		}
		c, ok := escapedByte(path[i:])
		if !ok || !staysEncoded(c) || path[i+1] >= 'a' || path[i+2] >= 'a' {
			break
		}
	}
	if i == len(path) {
		return path
	}
	const hex = "0123456789ABCDEF"
	b := append(make([]byte, 0, len(path)+8), path[:i]...)
	for ; i < len(path); i++ {
		c, escaped := escapedByte(path[i:])
		if escaped {
			i += 2
		} else {
			c = path[i]
		}
		if escaped && staysEncoded(c) || !bare[c] {
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

// staysEncoded reports whether an encoded byte stays: it cannot be bare, or means something else.
func staysEncoded(c byte) bool { return !bare[c] || c == '/' || c == ';' || c == '+' }

func escapedByte(s string) (c byte, ok bool) {
	if len(s) < 3 || s[0] != '%' {
		return 0, false
	}
	high, low := unhex(s[1]), unhex(s[2])
	return high<<4 | low, high < 16 && low < 16
}

// unhex returns the value of a hexadecimal digit, and 16 for another byte. A hit calls it for each byte of an encoded
// path: [strconv.ParseUint] would make the key of "/%E3%81%82" half as expensive again.
func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 16
}

// canonicalTarget returns a target in origin-form with its path in canonical form.
func canonicalTarget(target string) string {
	path, _, _ := strings.Cut(target, "?")
	canonical := canonicalPath(path)
	if canonical == path {
		return target
	}
	return canonical + target[len(path):]
}

// Canonicalise gives the host and the path of r the spelling of [Key], so the response does not
// have the spelling of its first client. It changes r. Path stays, because it is decoded.
func Canonicalise(r *http.Request) {
	if host, ok := CanonicalHost(hostOf(r)); ok {
		r.Host = host
	}
	u := r.URL
	switch host, _ := CanonicalHost(u.Host); {
	case !rewritten(r):
		u.Scheme, u.Host = "", "" // of an absolute-form target: the client's choice, and no part of the key
	case host == r.Host:
		u.Host = host
	default:
		u.Host = "" // no part of the key
	}
	path := pathOf(u)
	if u.Path == "" {
		u.Path = "/"
	}
	// As in net/url: RawPath is set only if it is not the default encoding of Path.
	if u.RawPath = ""; u.EscapedPath() != path {
		u.RawPath = path
	}
	if sent, ok := originForm(r.RequestURI); ok {
		r.RequestURI = canonicalTarget(sent)
	}
}

// Canonical reports whether host and path of r have Canonicalise's spelling, also in absolute-form.
func Canonical(r *http.Request) bool {
	c := *r
	c.URL = new(*r.URL)
	Canonicalise(&c)
	sent, _ := originForm(r.RequestURI)
	return c.Host == r.Host && c.URL.RawPath == r.URL.RawPath && c.RequestURI == sent
}

// Respelled reports whether the path is not canonical for a router of encoded paths, such as chi's.
func Respelled(u *url.URL) bool {
	if u.RawPath == "" && isBare(u.Path) {
		return false
	}
	c := http.Request{URL: new(*u)}
	Canonicalise(&c)
	return cmp.Or(u.RawPath, u.Path) != cmp.Or(c.URL.RawPath, c.URL.Path)
}

// RespelledHost reports whether the host, apart from its port, is not canonical for a router of hosts,
// such as http.ServeMux.
func RespelledHost(hostport string) bool {
	canonical, ok := CanonicalHost(hostport)
	return ok && withoutPort(canonical) != withoutPort(hostport)
}

// withoutPort returns a host as http.ServeMux does: an address loses its brackets together with its port only.
func withoutPort(hostport string) string {
	if !strings.Contains(hostport, ":") {
		return hostport
	}
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return hostport
	}
	return host
}

// Ordinary reports whether a request's target is a path with or without a query, and nothing else.
func Ordinary(r *http.Request) bool {
	ok := r.RequestURI == "" // in a request that no server has read
	if !ok {
		_, ok = originForm(r.RequestURI)
	}
	_, is := targetOf(r.URL, "")
	return ok && is
}

// originForm returns the path and the query of a request-target in origin-form or absolute-form
// (RFC 9112 section 3.2), and false for any other target.
func originForm(uri string) (target string, ok bool) {
	if strings.HasPrefix(uri, "/") {
		return uri, true
	}
	scheme, rest, ok := strings.Cut(uri, "://")
	if !ok || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return "", false
	}
	i := strings.IndexAny(rest, "/?")
	switch {
	case i < 0:
		return "/", true
	case rest[i] == '?':
		return "/" + rest[i:], true
	}
	return rest[i:], true
}

// clean reports whether a target is short, and has no byte that ends a line, a field or the target.
func clean(target string) bool {
	for i := range len(target) {
		if c := target[i]; c <= ' ' || c == 0x7f || c == '#' {
			return false
		}
	}
	return len(target) <= maxKey
}

// CanonicalHost returns a host in the form of a key: in lower case, without a trailing dot, without
// the default port of either scheme, an IPv6 address in brackets in its shortest form. It returns
// false unless hostport is a name or an address, with or without a port.
//
// A rebuild's request also carries this host. Otherwise a client could have a response built for
// "example.com:443" or "example.com." that quotes this host, and clients of "example.com" would get it.
func CanonicalHost(hostport string) (host string, ok bool) {
	if len(hostport) > 255+len(":65535") { // a DNS name and a port
		return "", false
	}
	host = strings.ToLower(hostport)
	if isName(host) { // the usual case
		return host, true
	}
	port := ""
	if strings.HasPrefix(host, "[") {
		literal, rest, ok := strings.Cut(host[1:], "]")
		addr, _ := netip.ParseAddr(literal)
		if !ok || !addr.Is6() || addr.Zone() != "" || rest != "" && rest[0] != ':' {
			return "", false
		}
		host, port = "["+addr.String()+"]", strings.TrimPrefix(rest, ":")
	} else {
		host, port, _ = strings.Cut(host, ":")
		host = strings.TrimSuffix(host, ".")
		if !isName(host) {
			return "", false
		}
	}
	if port == "" { // RFC 3986 section 3.2.3: as without the colon
		return host, true
	}
	n, err := strconv.ParseUint(port, 10, 16) // digits alone
	if err != nil {
		return "", false
	}
	if n == 80 || n == 443 {
		return host, true
	}
	return host + ":" + strconv.FormatUint(n, 10), true
}

// isName reports whether s, in lower case, may be a host name or an IPv4 address.
func isName(s string) bool {
	before := byte('.')
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
		case c == '.' && before != '.': // no label is empty
		default:
			return false
		}
		before = s[i]
	}
	return before != '.'
}
