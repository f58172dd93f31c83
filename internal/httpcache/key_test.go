package httpcache

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// read parses a request as a server does.
func read(t testing.TB, method, target, host string) (*http.Request, bool) {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")))
	return r, err == nil
}

func TestKey(t *testing.T) {
	for _, tt := range []struct {
		name, target, host string
		want               string // empty: none
	}{
		{"RFC 9110 4.2.3: plain", "/a/b?x=1&y=2", "my-shop_1.z9.example.com", "my-shop_1.z9.example.com/a/b?x=1&y=2"},
		{"RFC 9110 4.2.3: host's case, port 80", "/A", "EXAMPLE.com:80", "example.com/A"},
		{"RFC 9110 4.2.3: port 443", "/", "example.com:443", "example.com/"},
		{"RFC 9110 4.2.3: another port", "/", "example.com:8080", "example.com:8080/"},
		{"RFC 3986 6.2.3: empty port, trailing dot", "/", "example.com.:", "example.com/"},
		{"RFC 3986 3.2.2: IPv4", "/", "127.0.0.1:80", "127.0.0.1/"},
		{"RFC 3986 3.2.2: IPv6", "/", "[2001:DB8:0:0::1]:080", "[2001:db8::1]/"},
		{"RFC 3986 3.2.2: IPv6 and port", "/", "[::1]:81", "[::1]:81/"},
		{"RFC 3986 2.2: %2F is not /", "/a%2Fb", "h", "h/a%2Fb"},
		{"RFC 3986 2.2: nor beside a bare byte that is not allowed", "/a|b%2Fc", "h", "h/a%7Cb%2Fc"},
		{"RFC 3986 2.1: digits without a percent sign", "/%7Ea/beef", "h", "h/~a/beef"},
		{"RFC 3986 6.2.2.1: mixed case", "/%c3%A4", "h", "h/%C3%A4"},
		{"RFC 3986 6.2.2.1: an a alone", "/%aF", "h", "h/%AF"},
		{"RFC 3986 6.2.2.1: an a at the end", "/%Fa", "h", "h/%FA"},
		{"RFC 3986 2.2: nor %3B ; nor %2B +", "/a%3bb;c%2bd+e%2f", "h", "h/a%3Bb;c%2Bd+e%2F"},
		{"RFC 3986 6.2.2: encoded or not", "/%7ea|ä%C3%a4", "h", "h/~a%7C%C3%A4%C3%A4"},
		{"RFC 3986 6.2.2.2: unreserved", "/people/%61%6E%2d%5f%30", "h", "h/people/an-_0"},
		{"RFC 3986 3.3: what may be bare", "/a%28b%29(c)%21'%2A%2c%3d%3A%40", "h", "h/a(b)(c)!'*,=:@"},
		{"RFC 3986 3.3: what may not", "/[%5d%20%25%32%3f%23%00%ff", "h", "h/%5B%5D%20%252%3F%23%00%FF"},
		{"RFC 3986 2.4: decoded once", "/%2561", "h", "h/%2561"},
		{"RFC 3986 3.4: the query as sent", "/%61?%61%2f", "h", "h/a?%61%2f"},
		{"RFC 9112 3.2.2: absolute-form, encoded", "http://h/%61", "other", "h/a"},
		{"RFC 3986 6.2.2.3: dots as sent", "/a/../b//c", "h", "h/a/../b//c"},
		{"RFC 3986 3.3: two slashes", "//other/b", "h", "h//other/b"},
		{"RFC 3986 3.4: order", "/?b=1&a=2&b=3", "h", "h/?b=1&a=2&b=3"},
		{"RFC 3986 6.2.3: empty query", "/a?", "h", "h/a?"},
		{"RFC 3986 3.4: question mark in the query", "/a??b?", "h", "h/a??b?"},
		{"RFC 3986 3.4: question mark in the path", "/a%3Fb", "h", "h/a%3Fb"},
		{"RFC 9112 3.2.2: absolute-form", "http://Example.com:80/a?b", "other", "example.com/a?b"},
		{"RFC 9112 3.2.2: absolute-form without a path", "http://example.com", "other", "example.com/"},
		{"RFC 9112 3.2.2: absolute-form, query only", "http://example.com?a", "other", "example.com/?a"},
		{"RFC 9110 4.2.1: absolute-form without a host", "http:///a", "h", "h/a"},
		{"RFC 9110 4.2.4: user information", "http://me@example.com/", "other", ""},
		{"RFC 9112 3.2: user information in Host", "/", "me@example.com", ""},
		{"RFC 9112 3.2: empty host", "/", "", ""},
		{"RFC 9112 3.2.2: another scheme", "ftp://example.com/", "example.com", ""},
		{"RFC 9112 3.2.2: only a scheme", "a:", "example.com", ""},
		{"RFC 9112 3.2.4: asterisk-form", "*", "h", ""},
		{"RFC 9110 4.2.5: fragment", "/a#b", "h", ""},
		{"RFC 9110 4.2.5: fragment in the query", "/a?#b", "h", ""},
		{"RFC 3986 3.2.3: no port", "/", "h:http", ""},
		{"RFC 3986 3.2.3: port out of range", "/", "h:65536", ""},
		{"RFC 3986 3.2.2: bare IPv6", "/", "::1", ""},
		{"RFC 3986 3.2.3: a sign", "/", "h:+81", ""},
		{"RFC 3986 3.2.2: a bracket alone", "/", "[::1", ""},
		{"RFC 3986 3.2.2: a port without a colon", "/", "[::1]81", ""},
		{"RFC 3986 3.2.2: brackets around IPv4", "/", "[127.0.0.1]", ""},
		{"RFC 6874 2: zone", "/", "[fe80::1%25eth0]", ""},
		{"RFC 3986 3.2.2: brackets around a name", "/", "[h]", ""},
		{"RFC 3986 3.2.2: a slash", "/", "h/a", ""},
		{"RFC 3986 3.2.2: a brace", "/", "h{a", ""},
		{"RFC 3986 3.2.2: an empty label", "/", "a..b", ""},
		{"RFC 3986 3.2.2: only a dot", "/", ".", ""},
		{"RFC 9110 4.1: as long as it may be", "/" + strings.Repeat("a", maxKey-2), "h", "h/" + strings.Repeat("a", maxKey-2)},
		{"RFC 9110 4.1: too long", "/" + strings.Repeat("a", maxKey-1), "h", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, ok := read(t, "GET", tt.target, tt.host)
			if !ok {
				if tt.want != "" {
					t.Fatal("net/http does not read the request")
				}
				return
			}
			r.Header.Set("X-Forwarded-Host", "evil")
			if got, ok := Key(r); got != tt.want || ok != (tt.want != "") {
				t.Errorf("Key = %q, %v, want %q", got, ok, tt.want)
			}
			if _, ok := Locate(r); ok != (tt.want != "") {
				t.Errorf("Locate = %v, unlike Key", ok)
			}
			r.TLS = new(tls.ConnectionState)
			secure := ""
			if tt.want != "" {
				secure = Secure + tt.want
			}
			if got, ok := Key(r); got != secure || ok != (tt.want != "") {
				t.Errorf("over TLS Key = %q, %v, want %q", got, ok, secure)
			}
		})
	}
}

// Over HTTP/2 net/http takes the host from ":authority" or Host alone. Without both the handler sees no host, and the host
// of an absolute target is no part of a key.
func TestKey_AbsoluteTargetWithoutHost(t *testing.T) {
	u, err := url.Parse("https://h/a")
	if err != nil {
		t.Fatal(err)
	}
	r := &http.Request{Method: "GET", URL: u, RequestURI: "https://h/a", TLS: new(tls.ConnectionState)}
	if key, ok := Key(r); ok {
		t.Errorf("Key = %q", key)
	}
	if l, ok := Locate(r); ok {
		t.Errorf("Locate = %+v", l)
	}
}

func TestKey_RewrittenURL(t *testing.T) {
	keyOf := func(prefix, target string) (key string) {
		h := http.StripPrefix(prefix, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			var ok bool
			if key, ok = Key(r); !ok {
				t.Errorf("no key for %s below %s", target, prefix)
			}
		}))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", target, nil))
		return key
	}
	if a, b := keyOf("/v1", "/v1/x"), keyOf("/v2", "/v2/x"); a == b {
		t.Errorf("two prefixes share the key %q", a)
	}
	if got, want := keyOf("", "http://h/x?y"), "h/x?y"; got != want {
		t.Errorf("key without a rewrite = %q, want %q", got, want)
	}
}

// A request that no server has read has the scheme of its URL, and KeysOf has both keys of a URL.
func TestKey_OfAURL(t *testing.T) {
	for _, u := range []string{"http://H:80/a?b", "https://h/a?b", "HTTPS://h:443/a?b"} {
		r, err := http.NewRequest("GET", u, nil)
		if err != nil {
			t.Fatal(err)
		}
		want := "h/a?b"
		if strings.HasPrefix(strings.ToLower(u), "https:") {
			want = "https://h/a?b"
		}
		if got, ok := Key(r); got != want || !ok {
			t.Errorf("%s: Key = %q, %v, want %q", u, got, ok, want)
		}
		if got, ok := KeysOf(r); got != [2]string{"h/a?b", "https://h/a?b"} || !ok {
			t.Errorf("%s: KeysOf = %q, %v", u, got, ok)
		}
	}
}

func FuzzKey(f *testing.F) {
	f.Add("h", "/a", "h", "/a?")
	f.Add("H.:80", "/a%2Fb", "h", "/a/b")
	f.Add("[::1]", "//x", "[0::1]:443", "/x")
	f.Add("h", "http://h/a|b", "h", "/a%7Cb")
	f.Add("h", "/a?b", "h", "/a%3Fb")
	f.Add("h", "a:", "h", "*")
	f.Add("h", "/people/%61nna", "h", "/people/anna")
	f.Add("h", "/%2f%3B%2b%5b%28", "h", "//;+[(")
	f.Fuzz(func(t *testing.T, host1, target1, host2, target2 string) {
		seen := map[string][]string{}
		part := func(host, target string) (key, id string, ok bool) {
			r, ok := read(t, "GET", target, host)
			if !ok {
				return "", "", false
			}
			key, ok = Key(r)
			if !ok {
				if key != "" {
					t.Fatalf("%q, %q: a refused key %q", host, target, key)
				}
				return "", "", false
			}
			if len(key) > maxKey || strings.ContainsAny(key, " \t\r\n\x00#") {
				t.Fatalf("%q, %q: key %q", host, target, key)
			}
			canonical, ok := CanonicalHost(r.Host)
			if !ok {
				t.Fatalf("%q, %q: a key without a host", host, target)
			}
			if again, ok := CanonicalHost(canonical); !ok || again != canonical {
				t.Fatalf("CanonicalHost(%q) = %q, %v: not canonical", canonical, again, ok)
			}
			sent, ok := originForm(r.RequestURI)
			if !ok {
				t.Fatalf("%q, %q: a key without a target", host, target)
			}
			own := r.Clone(t.Context())
			Canonicalise(own)
			if again, ok := Key(own); !ok || again != key || !Canonical(own) {
				t.Fatalf("%q, %q: the key %q, and canonical %q", host, target, key, again)
			}
			if own.URL.Path != r.URL.Path && r.URL.Path != "" || own.URL.RequestURI() != own.RequestURI {
				t.Fatalf("%q, %q: the handler sees the path %q of %q, %q and %q", host, target, own.URL.Path, r.URL.Path, own.URL.RequestURI(), own.RequestURI)
			}
			seen[key] = append(seen[key], own.Host+own.RequestURI)
			return key, canonical + "\x00" + decodedTarget(sent), true
		}
		key1, id1, ok1 := part(host1, target1)
		key2, id2, ok2 := part(host2, target2)
		if ok1 && ok2 && (key1 == key2) != (id1 == id2) {
			t.Fatalf("%q and %q have the keys %q and %q", id1, id2, key1, key2)
		}
		for key, targets := range seen {
			if targets[0] != targets[len(targets)-1] {
				t.Fatalf("of one key %q the handler sees %q", key, targets)
			}
		}
	})
}

// decodedTarget is a target with its path decoded, and a mark before bytes that differ when encoded.
func decodedTarget(target string) string {
	path, query, found := strings.Cut(target, "?")
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		c, escaped := path[i], false
		if c == '%' {
			n, _ := strconv.ParseUint(path[i+1:i+3], 16, 8)
			c, escaped, i = byte(n), true, i+2
		}
		if escaped && strings.IndexByte("/;+", c) >= 0 {
			b.WriteString("encoded")
		}
		fmt.Fprintf(&b, "(%d)", c)
	}
	return fmt.Sprint(b.String(), found, query)
}

func TestKeyPrefix(t *testing.T) {
	for _, tt := range []struct{ u, want string }{
		{"http://h", "h/"},
		{"https://H:443/a", "h/a"},
		{"http://h?a", "h/?a"},
		{"http://h/people/%61n", "h/people/an"},
		{"http://h/a|ä(", "h/a%7C%C3%A4("},
		{"http://h/a%2f", "h/a%2F"},
		{"http://h/a%", "h/a"},
		{"http://h/a%2", "h/a"},
		{"http://h/a%%2", ""},
		{"http://h/a%25", "h/a%25"},
		{"http://h/%61%?%61%", ""},
		{"http://h/%61?%61%", "h/a?%61%"},
		{"http://h/a%zz", ""},
		{"http://h/a b", ""},
		{"http://h/a?\x7f", ""},
		{"ftp://h/a", ""},
	} {
		if got, ok := KeyPrefix(tt.u); got != tt.want || ok != (tt.want != "") {
			t.Errorf("KeyPrefix(%q) = %q, %v, want %q", tt.u, got, ok, tt.want)
		}
	}
}

func TestCanonical(t *testing.T) {
	for _, tt := range []struct {
		target, host string
		want         bool
	}{
		{"/a?B", "h", true},
		{"/a%2Fb", "h", true},
		{"http://h/a", "h", true},
		{"/%61", "h", false},
		{"/a%2fb", "h", false},
		{"http://h/%61", "h", false},
		{"/a", "H", false},
		{"/a", "h:80", false},
	} {
		r, ok := read(t, "GET", tt.target, tt.host)
		if !ok {
			t.Fatal("net/http does not read the request")
		}
		before := *r.URL
		if got := Canonical(r); got != tt.want {
			t.Errorf("Canonical(%q of %q) = %v, want %v", tt.target, tt.host, got, tt.want)
		}
		if *r.URL != before {
			t.Errorf("Canonical changed %v to %v", &before, r.URL)
		}
	}
	for target, rewritten := range map[string]url.URL{"/%61/b": {Path: "/b"}, "/a": {Path: "/a", RawPath: "/%61"}} {
		r, _ := read(t, "GET", target, "h")
		if r.URL = &rewritten; Canonical(r) {
			t.Errorf("%s is canonical as %q", target, rewritten.RawPath)
		}
	}
}

// A path that has lost its first slash, such as below http.StripPrefix("/a/", ...), would change the host in the key.
func TestKey_RelativePath(t *testing.T) {
	r, _ := read(t, "GET", "/a/b", "h")
	r.URL.Path = "b"
	if key, ok := Key(r); ok {
		t.Errorf("Key = %q, want none", key)
	}
}

func TestRespelled(t *testing.T) {
	for target, want := range map[string]bool{
		"/a": false, "/a%20b": false, "/a(b)": false, "/a%28b%29": false, "/a%20(b)": false, "/a%2Fb": false, "/[a]": false, "/a|b": false,
		"/%61": true, "/a%2fb": true, "/a%20%28b": true, "/%2561": false, "/a%2F%61": true,
	} {
		r, ok := read(t, "GET", target, "h")
		if !ok {
			t.Fatal("net/http does not read the request")
		}
		if got := Respelled(r.URL); got != want {
			t.Errorf("Respelled(%q) = %v, want %v", target, got, want)
		}
	}
}

// itself is the page of a request whose URL is its key.
func itself(get *http.Request) (*http.Request, bool) {
	return get, get.RequestURI == get.URL.RequestURI()
}

func TestChangedBy(t *testing.T) {
	self := []string{"h/a/b"}
	for _, tt := range []struct {
		name, method string
		status       int
		resp         http.Header
		want         []string
	}{
		{"RFC 9111 4.4: POST", "POST", 200, header(), self},
		{"RFC 9111 4.4: PUT, 204", "PUT", 204, header(), self},
		{"RFC 9111 4.4: DELETE, 303", "DELETE", 303, header(), self},
		{"RFC 9111 4.4: unknown method", "M-SEARCH", 200, header(), self},
		{"RFC 9110 9.2.1: GET", "GET", 200, header(), nil},
		{"RFC 9110 9.2.1: OPTIONS", "OPTIONS", 200, header(), nil},
		{"RFC 9111 4.4: error", "POST", 500, header(), nil},
		{"RFC 9111 4.4: client error", "POST", 400, header(), nil},
		{"RFC 9111 4.4: Location and Content-Location", "POST", 201, header("Location", "/c?d#e", "Content-Location", "f"), []string{"h/a/b", "h/c?d", "h/a/f"}},
		{"RFC 9111 4.4: each once", "POST", 201, header("Location", "/a/b", "Content-Location", "http://H:80/a/b"), self},
		{"RFC 9111 4.4: same host, absolute", "POST", 201, header("Location", "https://h./c"), []string{"h/a/b", "h/c"}},
		{"RFC 9111 4.4: encoded", "POST", 201, header("Location", "/%63%2f", "Content-Location", "%66"), []string{"h/a/b", "h/c%2F", "h/a/f"}},
		{"RFC 9111 4.4: other host", "POST", 201, header("Location", "http://evil/c", "Content-Location", "//evil/c"), self},
		{"RFC 9111 4.4: other port", "POST", 201, header("Location", "http://h:81/c"), self},
		{"RFC 9111 4.4: other scheme", "POST", 201, header("Location", "ftp://h/c", "Content-Location", "mailto:h"), self},
		{"RFC 9111 4.4: user information", "POST", 201, header("Location", "http://x@h/c"), self},
		{"RFC 9111 4.4: junk", "POST", 201, header("Location", "http://[", "Content-Location", ""), self},
		{"RFC 9110 10.2.2: two Locations", "POST", 201, header("Location", "/c", "Location", "/d"), self},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, ok := read(t, tt.method, "/a/b", "h")
			if !ok {
				t.Fatal("net/http does not read the request")
			}
			if got := ChangedBy(r, r, tt.status, tt.resp, itself).Keys(); !slices.Equal(got, tt.want) {
				t.Errorf("keys %q, want %q", got, tt.want)
			}
			if got := ChangedBy(r, r, tt.status, tt.resp, nil).Keys(); !slices.Equal(got, tt.want[:min(1, len(tt.want))]) {
				t.Errorf("without locations keys %q, want the first of %q", got, tt.want)
			}
			r.TLS = new(tls.ConnectionState)
			want := slices.Clone(tt.want)
			for _, key := range tt.want {
				want = append(want, "https://"+key)
			}
			if got := ChangedBy(r, r, tt.status, tt.resp, itself).Keys(); !slices.Equal(got, want) {
				t.Errorf("over TLS keys %q, want %q", got, want)
			}
		})
	}
}

// FuzzChangedBy: a response invalidates only keys of requests to its own host.
func FuzzChangedBy(f *testing.F) {
	f.Add("h", "/a", "/b?c", "http://h/d")
	f.Add("H:80", "/a/", "../x#y", "//h.:443/..")
	f.Add("[::1]", "/", "http://[0::1]/%2f", "http://h@[::1]/")
	f.Add("h", "/a", "http:b", "\\\\evil\\x")
	f.Add("h", "http://h/a", "?q", "/a|b")
	f.Fuzz(func(t *testing.T, host, target, location, contentLocation string) {
		r, ok := read(t, "POST", target, host)
		if !ok {
			return
		}
		r.TLS = new(tls.ConnectionState)
		keys := ChangedBy(r, r, 201, header("Location", location, "Content-Location", contentLocation), itself).Keys()
		own, _ := CanonicalHost(r.Host)
		for _, key := range keys {
			rest, ok := strings.CutPrefix(strings.TrimPrefix(key, Secure), own)
			if !ok || rest == "" || rest[0] != '/' || len(key) > len(Secure)+maxKey || strings.ContainsAny(strings.SplitN(rest, " ", 2)[0], "\r\n\x00#") {
				t.Fatalf("POST %q on %q, %q, %q drops the key %q", target, host, location, contentLocation, key)
			}
		}
	})
}
