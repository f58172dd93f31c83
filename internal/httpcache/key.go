package httpcache

import (
	"cmp"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// This file names what a request asks for.

// MaxKey is the length in bytes above which a request has no key. RFC 9110
// section 4.1 recommends to support URIs of 8000 bytes.
const MaxKey = 8 << 10

// Secure is what the key of a request over TLS begins with. No other key does: in
// a host, a digit follows a colon. Without it a handler that sends plain requests
// on to https would send the secure ones in circles. What comes in plain has no
// scheme in its key, because behind a proxy nobody knows it.
const Secure = "https://"

// Key returns the primary cache key of a request (RFC 9111 section 2): its
// host and its target, behind [Secure] if it came over TLS, and of the header
// nothing else. It
// returns false for a request that cannot be cached: one without a usable
// host, with user information or a fragment, with a space or a control
// character, or with a target other than a path, or too long.
//
//   - The host is as [CanonicalHost] has it.
//   - The path is in its canonical form, see canonicalPath: "/%7Ea" is "/~a", but
//     "/a%2Fb" is not "/a/b".
//   - The query is as it was sent, in its order. "/a?" is not "/a": they are
//     two URIs (RFC 3986 section 6.2.3), and at worst a response is kept twice.
//   - If the URL was rewritten on its way to the cache, as
//     [http.StripPrefix] does, what was sent is in the key too: below two
//     prefixes live two handlers.
func Key(r *http.Request) (key string, ok bool) {
	scheme := ""
	if secure(r) {
		scheme = Secure
	}
	return keyBehind(scheme, r)
}

// secure tells whether a request came over TLS, or, of one that no server has
// read, whether its URL says so.
func secure(r *http.Request) bool {
	return r.TLS != nil || r.RequestURI == "" && r.URL.Scheme == "https"
}

// keyBehind returns the key of a request with that scheme, whatever its own is.
func keyBehind(scheme string, r *http.Request) (key string, ok bool) {
	target, sent, ok := targets(r)
	if !ok {
		return "", false
	}
	if sent != "" {
		target += " " + sent // neither has a space
	}
	return join(scheme, hostOf(r), target)
}

// hostOf returns the host of a request as its client has written it.
func hostOf(r *http.Request) string { return cmp.Or(r.Host, r.URL.Host) }

// targets returns the target of a request, and the target that its client has sent, both in
// the form that a key has. sent is "" if it is the same, or not known.
func targets(r *http.Request) (target, sent string, ok bool) {
	if r.Method == http.MethodConnect {
		return "", "", false
	}
	if r.RequestURI != "" { // empty in a request that no server has read
		if sent, ok = OriginForm(r.RequestURI); !ok {
			return "", "", false
		}
	}
	if target, ok = targetOf(r.URL, sent); !ok {
		return "", "", false
	}
	if sent == target || sent == "" {
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

// A Location is the parts of a request's URL, as far as a key has them.
type Location struct {
	Scheme string // "http://" or [Secure]
	Host   string // in canonical form
	Path   string // as the client has sent it, in canonical form
	Query  string // without the question mark
	// Rewritten is the path that the handler sees, in canonical form, if another one was
	// sent; "" if it is the same.
	Rewritten string
	// Own tells that the request's own key is that of the URL of these parts: nothing of
	// its URL was rewritten on its way to the cache.
	Own bool
}

// Locate returns the parts of a request's URL. It returns false if [Key] does.
func Locate(r *http.Request) (l Location, ok bool) {
	target, sent, ok := targets(r)
	if !ok {
		return l, false
	}
	if l.Host, ok = CanonicalHost(hostOf(r)); !ok || len(l.Host)+len(target)+len(sent) >= MaxKey {
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

// join makes a key of a scheme, which is [Secure] or empty, a host and a target.
func join(scheme, hostport, target string) (string, bool) {
	host, ok := CanonicalHost(hostport)
	// A canonical host has no slash and a target begins with one, so that no
	// two pairs make one key.
	if !ok || len(host)+len(target) > MaxKey {
		return "", false
	}
	return scheme + host + target, true
}

// targetOf returns the path and the query of a URL: sent itself, which spares every
// hit a copy, if they are what was sent.
func targetOf(u *url.URL, sent string) (string, bool) {
	if u.Opaque != "" || u.User != nil || u.Fragment != "" || u.RawFragment != "" {
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
	if u.RawPath == "" && isBare(u.Path) { // as most are
		return u.Path
	}
	path := u.EscapedPath()
	// EscapedPath gives up RawPath for an encoding of its own where a client
	// left a character bare that should not be, such as "|"; but what was sent
	// is what counts as long as it means Path.
	if u.RawPath != "" && u.RawPath != path {
		if p, err := url.PathUnescape(u.RawPath); err == nil && p == u.Path {
			path = u.RawPath
		}
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

// isBare tells whether a path, decoded or not, has no other bytes than these.
func isBare(path string) bool {
	for i := range len(path) {
		if !bare[path[i]] {
			return false
		}
	}
	return true
}

// canonicalPath returns the one form that all encodings of a path have in a key: a byte that
// can stand for itself does, and any other is encoded, in upper case (RFC 3986 section
// 6.2.2). Browsers send paths in that form. Three bytes are told apart from their encoding,
// because many handlers do so: "/" separates segments, ";" begins the parameters of a
// segment, and "+" is a space for some handlers.
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
		i += 2
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
		if escaped && staysEncoded(c) || !escaped && !bare[c] {
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

// staysEncoded tells whether an encoded byte stays encoded in a path: it cannot be bare, or
// the bare byte means something else.
func staysEncoded(c byte) bool { return !bare[c] || c == '/' || c == ';' || c == '+' }

// escapedByte returns the byte that s begins with, if it begins with an encoded one.
func escapedByte(s string) (c byte, ok bool) {
	if len(s) < 3 || s[0] != '%' {
		return 0, false
	}
	high, low := unhex(s[1]), unhex(s[2])
	return high<<4 | low, high < 16 && low < 16
}

// unhex returns the value of a hexadecimal digit, 16 for another byte.
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

// canonicalTarget is a target in origin-form whose path is in its canonical form.
func canonicalTarget(target string) string {
	path, _, _ := strings.Cut(target, "?")
	canonical := canonicalPath(path)
	if canonical == path {
		return target
	}
	return canonical + target[len(path):]
}

// Canonicalise gives the host and the path of r, which is the caller's own, the spelling
// that [Key] has, so that the response does not have the spelling of its first client. Path
// stays, because it is decoded.
func Canonicalise(r *http.Request) {
	if host, ok := CanonicalHost(r.Host); ok {
		r.Host = host
	}
	u := r.URL
	u.Scheme, u.Host = "", "" // of an absolute-form target
	path := pathOf(u)
	if u.Path == "" {
		u.Path = "/"
	}
	// As net/url has it: RawPath is there where it is not what Path would be encoded as.
	if u.RawPath = ""; u.EscapedPath() != path {
		u.RawPath = path
	}
	if sent, ok := OriginForm(r.RequestURI); ok {
		r.RequestURI = canonicalTarget(sent)
	}
}

// Canonical tells whether host and path of r have the spelling that Canonicalise gives them.
// A target in absolute-form may have it too.
func Canonical(r *http.Request) bool {
	c := *r
	c.URL = new(*r.URL)
	Canonicalise(&c)
	sent, _ := OriginForm(r.RequestURI)
	return c.Host == r.Host && c.URL.RawPath == r.URL.RawPath && (sent == "" || c.RequestURI == sent)
}

// Respelled tells whether the URL's path differs from its canonical form for a router that
// matches encoded paths, as chi's does.
func Respelled(u *url.URL) bool {
	if u.RawPath == "" && isBare(u.Path) {
		return false
	}
	c := http.Request{URL: new(*u)}
	Canonicalise(&c)
	return cmp.Or(u.RawPath, u.Path) != cmp.Or(c.URL.RawPath, c.URL.Path)
}

// Ordinary tells whether a request's target is a path, with or without a query, and
// nothing else: no user information, no fragment, no opaque part.
func Ordinary(r *http.Request) bool {
	ok := r.RequestURI == "" // in a request that no server has read
	if !ok {
		_, ok = OriginForm(r.RequestURI)
	}
	_, is := targetOf(r.URL, "")
	return ok && is
}

// OriginForm returns the path and the query of a request-target in origin-form
// or absolute-form (RFC 9112 section 3.2), and false for any other.
func OriginForm(uri string) (target string, ok bool) {
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

// clean tells whether a target is short enough and has nothing in it that ends
// a line, a field or the target.
func clean(target string) bool {
	for i := range len(target) {
		if c := target[i]; c <= ' ' || c == 0x7f || c == '#' {
			return false
		}
	}
	return len(target) <= MaxKey
}

// CanonicalHost returns a host in the one form it has in a key: in lower case,
// without a trailing dot, without the default port of either scheme, an IPv6
// address in brackets in its shortest form. It returns false for anything that
// is not a name or an address with or without a port.
//
// A rebuild's request carries this host, too. Else a client could have a
// response built for "example.com:443" or "example.com." that quotes this
// host, and have it handed to those who asked for "example.com".
func CanonicalHost(hostport string) (host string, ok bool) {
	if len(hostport) > 255+len(":65535") { // a DNS name, a port
		return "", false
	}
	host = strings.ToLower(hostport)
	if isName(host) { // as most are
		return host, true
	}
	port := ""
	if strings.HasPrefix(host, "[") {
		literal, rest, ok := strings.Cut(host[1:], "]")
		addr, err := netip.ParseAddr(literal)
		if !ok || err != nil || !addr.Is6() || addr.Zone() != "" || rest != "" && rest[0] != ':' {
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
	if port == "" { // RFC 3986 section 3.2.3: as if there were no colon
		return host, true
	}
	for i := range len(port) {
		if port[i] < '0' || port[i] > '9' {
			return "", false
		}
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", false
	}
	if n == 80 || n == 443 {
		return host, true
	}
	return host + ":" + strconv.FormatUint(n, 10), true
}

// isName tells whether s, in lower case, may be a host's name or an IPv4
// address.
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
