package httpcache

import (
	"crypto/tls"
	"net/http"
	"testing"
	"time"
)

func TestJudge(t *testing.T) {
	rule := func(lifetime time.Duration) Options {
		return Options{Freshness: func(*http.Request, int, http.Header, time.Duration, Freshness) Freshness {
			return Freshness{Lifetime: lifetime}
		}}
	}
	etag := func(cc string) http.Header { return header("Cache-Control", cc, "ETag", `"e"`) }
	for _, tt := range []struct {
		name     string
		req      http.Header
		status   int
		resp     http.Header
		opt      Options
		lifetime time.Duration
		reason   string // empty if shared
		checked  bool
	}{
		{name: "explicit", resp: etag("max-age=60"), lifetime: 60 * time.Second},
		{name: "arrives stale", resp: header("Cache-Control", "max-age=60", "Age", "70"), lifetime: 60 * time.Second},
		{name: "arrives stale, must not be stale", resp: header("Cache-Control", "max-age=60, must-revalidate", "Age", "70"), lifetime: 60 * time.Second, reason: "not-fresh"},
		{name: "the same with a validator", resp: header("Cache-Control", "max-age=60, must-revalidate", "Age", "70", "Last-Modified", "x"), lifetime: 60 * time.Second, reason: "not-fresh", checked: true},
		{name: "zero", resp: header("Cache-Control", "max-age=0")},
		{name: "zero, a request's cookie", req: header("Cookie", "u=1"), resp: header("Cache-Control", "max-age=0"), reason: "not-fresh"},
		{name: "zero, a request's cookie, a validator", req: header("Cookie", "u=1"), resp: etag("max-age=0"), reason: "not-fresh"},
		{name: "zero by Expires, a request's cookie", req: header("Cookie", "u=1"), resp: header("Expires", "0"), reason: "not-fresh"},
		{name: "zero, a request's cookie, an option's window", req: header("Cookie", "u=1"), resp: header("Cache-Control", "max-age=0"), opt: Options{StaleIfError: time.Minute}, reason: "not-fresh"},
		{name: "zero, a request's cookie, its own window", req: header("Cookie", "u=1"), resp: header("Cache-Control", "max-age=0, stale-while-revalidate=9")},
		{name: "zero, a request's cookie, public", req: header("Cookie", "u=1"), resp: header("Cache-Control", "public, max-age=0")},
		{name: "stale on arrival, a request's cookie", req: header("Cookie", "u=1"), resp: header("Cache-Control", "max-age=60", "Age", "70"), lifetime: 60 * time.Second},
		{name: "no-cache", resp: header("Cache-Control", "no-cache"), reason: "not-fresh"},
		{name: "no-cache with a validator", resp: etag("no-cache, max-age=60"), reason: "not-fresh", checked: true},
		{name: "no-cache with a validator, private", resp: etag("no-cache, private"), reason: "private"},
		{name: "no-cache with a validator, no-store", resp: etag("no-cache, no-store"), reason: "no-store"},
		{name: "no-cache with a validator, authorized", req: header("Authorization", "u"), resp: etag("no-cache"), reason: "authorization"},
		{name: "no-cache with a validator, a cookie", resp: header("Cache-Control", "no-cache", "ETag", `"e"`, "Set-Cookie", "a=b"), reason: "set-cookie"},
		{name: "no-cache with a validator, vary *", resp: header("Cache-Control", "no-cache", "ETag", `"e"`, "Vary", "*"), reason: "vary"},
		{name: "no-cache with a validator, a request's cookie", req: header("Cookie", "u=1"), resp: etag("no-cache"), reason: "not-fresh"},
		{name: "the same for shared caches", req: header("Cookie", "u=1"), resp: etag("no-cache, s-maxage=0"), reason: "not-fresh", checked: true},
		{name: "nobody has said anything", resp: header("ETag", `"e"`), reason: "no-lifetime"},
		{name: "public, and nothing else", resp: header("Cache-Control", "public")},
		{name: "heuristic", resp: header("Last-Modified", httpDate(-100*time.Second)), opt: Options{HeuristicFraction: 0.1}, lifetime: 10 * time.Second},
		{name: "targeted", resp: header("Cache-Control", "no-store", "CDN-Cache-Control", "max-age=60"), opt: Options{Targets: []string{"CDN-Cache-Control"}}, lifetime: 60 * time.Second},
		{name: "not targeted", resp: header("Cache-Control", "no-store", "CDN-Cache-Control", "max-age=60"), reason: "no-store"},
		{name: "no-cache with a validator, no success", status: 300, resp: etag("no-cache"), reason: "not-fresh"},
		{name: "a rule without a lifetime", resp: header(), opt: rule(0), reason: "no-lifetime"},
		{name: "a rule about a redirect", status: 302, resp: header(), opt: rule(time.Minute), lifetime: time.Minute},
		{name: "a rule about a client's error", status: 400, resp: header(), opt: rule(time.Minute), reason: ReasonStatusNoLifetime},
		{name: "a rule about a zero, a request's cookie", req: header("Cookie", "u=1"), resp: header("Cache-Control", "max-age=0"), opt: rule(time.Minute), lifetime: time.Minute},
		{name: "an error without a lifetime", status: 503, resp: etag("no-cache"), reason: ReasonStatusNoLifetime},
	} {
		if tt.status == 0 {
			tt.status = 200
		}
		j := Judge(Request{Header: tt.req, Credentials: tt.req["Authorization"] != nil}, tt.status, tt.resp, now, now, tt.opt)
		if j.Shared != (tt.reason == "") || j.Reason != tt.reason || j.Checked != tt.checked || j.Freshness.Lifetime != tt.lifetime {
			t.Errorf("%s: %+v, want reason %q, checked %v, lifetime %v", tt.name, j, tt.reason, tt.checked, tt.lifetime)
		}
	}
}

func TestStatesZero(t *testing.T) {
	for cc, want := range map[string]bool{
		"max-age=0": true, "": false, "max-age=60": false, "max-age=0, stale-while-revalidate=9": false, "max-age=0, stale-if-error=9": false,
	} {
		if got := StatesZero(header("Cache-Control", cc), Options{}); got != want {
			t.Errorf("%q: %v, want %v", cc, got, want)
		}
	}
}

func TestOpenToAll(t *testing.T) {
	for cc, want := range map[string]bool{
		"max-age=60": false, "public": true, "s-maxage=0": true, "must-revalidate": true, "proxy-revalidate": false, "": false,
	} {
		if d := ResponseDirectives(header("Cache-Control", cc)); d.OpenToAll() != want {
			t.Errorf("%q: want %v", cc, want)
		}
	}
}

func TestPostStorable(t *testing.T) {
	for _, tt := range []struct {
		name   string
		method string
		status int
		resp   http.Header
		want   bool
	}{
		{"RFC 9110 9.3.3", "POST", 200, header("Cache-Control", "max-age=60", "Content-Location", "/a?b"), true},
		{"Expires", "POST", 200, header("Expires", httpDate(time.Minute), "Content-Location", "http://h/a?b"), true},
		{"another method", "PUT", 200, header("Cache-Control", "max-age=60", "Content-Location", "/a?b"), false},
		{"created, elsewhere described", "POST", 201, header("Cache-Control", "max-age=60", "Content-Location", "/a?b"), false},
		{"heuristic freshness only", "POST", 200, header("Last-Modified", httpDate(-time.Hour), "Content-Location", "/a?b"), false},
		{"private", "POST", 200, header("Cache-Control", "private, max-age=60", "Content-Location", "/a?b"), false},
		{"no location", "POST", 200, header("Cache-Control", "max-age=60"), false},
		{"another location", "POST", 200, header("Cache-Control", "max-age=60", "Content-Location", "/a"), false},
		{"two locations", "POST", 200, header("Cache-Control", "max-age=60", "Content-Location", "/a?b", "Content-Location", "/a?b"), false},
		{"another host", "POST", 200, header("Cache-Control", "max-age=60", "Content-Location", "http://i/a?b"), false},
		{"a cookie", "POST", 200, header("Cache-Control", "max-age=60", "Content-Location", "/a?b", "Set-Cookie", "a=b"), false},
		{"Vary", "POST", 200, header("Cache-Control", "max-age=60", "Content-Location", "/a?b", "Vary", "Accept"), false},
	} {
		r, ok := read(t, tt.method, "/a?b", "h")
		if !ok {
			t.Fatal("no request")
		}
		opt := Options{SetCookie: true, HeuristicFraction: 0.1}
		if got := PostStorable(r, r, tt.status, tt.resp, Judge(Request{Header: r.Header}, tt.status, tt.resp, now, now, opt)); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	r, _ := read(t, "POST", "/a?b", "h")
	r.TLS = new(tls.ConnectionState)
	for location, want := range map[string]bool{"/a?b": true, "https://h/a?b": true, "http://h/a?b": false} {
		resp := header("Cache-Control", "max-age=60", "Content-Location", location)
		if got := PostStorable(r, r, 200, resp, Judge(Request{Header: r.Header}, 200, resp, now, now, Options{})); got != want {
			t.Errorf("over TLS, %s: %v, want %v", location, got, want)
		}
	}
}
