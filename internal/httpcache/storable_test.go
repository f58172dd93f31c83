package httpcache

import (
	"net/http"
	"reflect"
	"testing"
	"time"
)

func TestStorable(t *testing.T) {
	auth := header("Authorization", "Basic Zm9v")
	for _, tt := range []struct {
		name   string
		req    http.Header
		status int
		resp   http.Header
		opt    Options
		want   string // the reason, empty if storable
	}{
		{name: "RFC 9111 3: explicit", resp: header("Cache-Control", "max-age=60")},
		{name: "RFC 9111 3: Expires", status: 201, resp: header("Expires", "0")},
		{name: "RFC 9111 3: nothing said, 200"},
		{name: "RFC 9111 3: nothing said, 404", status: 404},
		{name: "RFC 9111 3: nothing said, 201", status: 201, want: "status-without-lifetime"},
		{name: "RFC 9111 3: nothing said, 503", status: 503, want: "status-without-lifetime"},
		{name: "RFC 9111 3: public, 599", status: 599, resp: header("Cache-Control", "public")},
		{name: "RFC 9111 3: explicit, 599", status: 599, resp: header("Cache-Control", "max-age=60")},
		{name: "RFC 9111 3: explicit, 500", status: 500, resp: header("Cache-Control", "s-maxage=60")},
		{name: "RFC 9111 3: explicit but malformed", status: 500, resp: header("Cache-Control", "max-age=x")},
		{name: "RFC 9111 3: interim", status: 103, resp: header("Cache-Control", "max-age=60"), want: "status"},
		{name: "RFC 9110 15: no status", status: 600, resp: header("Cache-Control", "max-age=60"), want: "status"},
		{name: "RFC 9111 3: 206", status: 206, resp: header("Cache-Control", "max-age=60"), want: "partial"},
		{name: "RFC 9111 3: 304", status: 304, resp: header("Cache-Control", "max-age=60"), want: "not-modified"},
		{name: "RFC 9110 15.5.13: 412", status: 412, resp: header("Cache-Control", "max-age=60"), want: "status"},
		{name: "RFC 9110 15.5.17: 416", status: 416, resp: header("Cache-Control", "max-age=60"), want: "status"},
		{name: "RFC 6585 3: 428", status: 428, resp: header("Cache-Control", "public, max-age=60"), want: "status"},
		{name: "RFC 6585 4: 429", status: 429, resp: header("Cache-Control", "public, max-age=60"), want: "status"},
		{name: "RFC 6585 5: 431", status: 431, resp: header("Cache-Control", "public, max-age=60"), want: "status"},
		{name: "RFC 6585 6: 511", status: 511, resp: header("Cache-Control", "public, max-age=60"), want: "status"},
		{name: "RFC 9111 5.2.2.5: no-store", resp: header("Cache-Control", "max-age=60, no-store"), want: "no-store"},
		{name: "RFC 9111 5.2.2.3: must-understand, 200", resp: header("Cache-Control", "max-age=60, no-store, must-understand")},
		{name: "RFC 9111 5.2.2.3: must-understand, 308", status: 308, resp: header("Cache-Control", "max-age=60, must-understand")},
		{name: "RFC 9111 5.2.2.3: must-understand, 417", status: 417, resp: header("Cache-Control", "max-age=60, must-understand")},
		{name: "RFC 9111 5.2.2.3: must-understand, 505", status: 505, resp: header("Cache-Control", "max-age=60, must-understand")},
		{name: "RFC 9111 5.2.2.3: must-understand, 418", status: 418, resp: header("Cache-Control", "max-age=60, must-understand"), want: "must-understand"},
		{name: "RFC 9111 5.2.2.3: must-understand, 599", status: 599, resp: header("Cache-Control", "max-age=60, no-store, must-understand"), want: "must-understand"},
		{name: "RFC 9111 5.2.2.3: must-understand alone, 599", status: 599, resp: header("Cache-Control", "max-age=60, must-understand"), want: "must-understand"},
		{name: "RFC 9111 5.2.2.7: private", resp: header("Cache-Control", "max-age=60, private"), want: "private"},
		{name: "RFC 9111 5.2.2.7: private and public", resp: header("Cache-Control", "public, private"), want: "private"},
		{name: "RFC 9111 5.2.2.7: private fields", resp: header("Cache-Control", `max-age=60, private="x"`)},
		{name: "RFC 9111 5.2.2.4: no-cache", resp: header("Cache-Control", "no-cache")},
		{name: "RFC 9111 5.2.1.5: request no-store", req: header("Cache-Control", "no-store"), want: "request-no-store"},
		{name: "RFC 9111 3.5: Authorization", req: auth, resp: header("Cache-Control", "max-age=60"), want: "authorization"},
		{name: "RFC 9111 3.5: Authorization, proxy-revalidate", req: auth, resp: header("Cache-Control", "max-age=60, proxy-revalidate"), want: "authorization"},
		{name: "RFC 9111 3.5: Authorization, public", req: auth, resp: header("Cache-Control", "max-age=60, public")},
		{name: "RFC 9111 3.5: Authorization, s-maxage", req: auth, resp: header("Cache-Control", "s-maxage=60")},
		{name: "RFC 9111 3.5: Authorization, must-revalidate", req: auth, resp: header("Cache-Control", "max-age=60, must-revalidate")},
		{name: "RFC 9111 4.1: Vary *", resp: header("Vary", "Foo, *"), want: "vary"},
		{name: "RFC 9111 7.3: Set-Cookie", resp: header("Set-Cookie", "a=b", "Cache-Control", "max-age=60"), want: "set-cookie"},
		{name: "RFC 9111 7.3: Set-Cookie taken out", resp: header("Set-Cookie", "a=b", "Cache-Control", `max-age=60, no-cache="set-cookie"`)},
		{name: "RFC 9111 7.3: Set-Cookie for its client", resp: header("Set-Cookie", "a=b", "Cache-Control", `max-age=60, private="set-cookie"`)},
		{name: "RFC 9111 7.3: Set-Cookie allowed", resp: header("Set-Cookie", "a=b", "Cache-Control", "max-age=60"), opt: Options{SetCookie: true}},
		{name: "RFC 9111 7.3: Set-Cookie allowed, nothing said", resp: header("Set-Cookie", "a=b"), opt: Options{SetCookie: true}, want: "set-cookie"},
		{name: "RFC 9111 7.3: Set-Cookie allowed, TTL", resp: header("Set-Cookie", "a=b"), opt: Options{SetCookie: true, DefaultLifetime: time.Minute}, want: "set-cookie"},
		{name: "RFC 9111 7.3: Set-Cookie allowed, no time", resp: header("Set-Cookie", "a=b", "Cache-Control", "max-age=0"), opt: Options{SetCookie: true}, want: "set-cookie"},
		{name: "RFC 9111 7.3: Set-Cookie allowed, no time by Expires", resp: header("Set-Cookie", "a=b", "Expires", "0"), opt: Options{SetCookie: true}, want: "set-cookie"},
		{name: "RFC 9111 7.3: Set-Cookie allowed, never fresh", resp: header("Set-Cookie", "a=b", "Cache-Control", "no-cache, max-age=60", "ETag", `"e"`), opt: Options{SetCookie: true}, want: "set-cookie"},
		{name: "RFC 9213 2.2: Expires does not count", status: 201, resp: header("Expires", "0", "CDN-Cache-Control", "none"), opt: Options{Targets: []string{"CDN-Cache-Control"}}, want: "status-without-lifetime"},
		{name: "RFC 9213 2.2: no-store overruled", resp: header("Cache-Control", "no-store", "CDN-Cache-Control", "max-age=60"), opt: Options{Targets: []string{"CDN-Cache-Control"}}},
		{name: "RFC 9213 2.2: not on the list", resp: header("Cache-Control", "no-store", "CDN-Cache-Control", "max-age=60"), want: "no-store"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status := tt.status
			if status == 0 {
				status = 200
			}
			d := ResponseDirectives(tt.resp, tt.opt.Targets...)
			ok, reason := storable(Request{Header: tt.req, Credentials: tt.req["Authorization"] != nil, NoStore: ParseRequest(tt.req).NoStore}, status, tt.resp, d, freshnessOf(status, tt.resp, d, now, tt.opt), tt.opt)
			if ok != (tt.want == "") || reason != tt.want {
				t.Errorf("storable = %v, %q, want reason %q", ok, reason, tt.want)
			}
		})
	}
}

func TestUnderstood(t *testing.T) {
	for status, want := range map[int]bool{
		205: true, 206: false, 299: false, 300: true, 303: true, 304: false, 309: false, 399: false, 400: true, 499: false, 500: true, 506: false,
	} {
		if understood(status) != want {
			t.Errorf("RFC 9111 5.2.2.3: %d: want %v", status, want)
		}
	}
}

func TestCanonicalHeader(t *testing.T) {
	h := http.Header{"Set-Cookie": {"a=b"}, "set-cookie": {"c=d"}, "ETag": {`"x"`}}
	want := http.Header{"Set-Cookie": {"a=b", "c=d"}, "Etag": {`"x"`}}
	if got := CanonicalHeader(h); !reflect.DeepEqual(got, want) {
		t.Errorf("CanonicalHeader(%v) = %v, want %v", h, got, want)
	}
	if len(h["Set-Cookie"]) != 1 {
		t.Errorf("CanonicalHeader changed its argument: %v", h)
	}
	if got := CanonicalHeader(want); reflect.ValueOf(got).Pointer() != reflect.ValueOf(want).Pointer() {
		t.Error("CanonicalHeader copies a header that is canonical")
	}
}

// A field that each connection has stays, also if Connection names it.
func TestEndToEnd(t *testing.T) {
	h := header("Connection", "te, x-hop", "Te", "trailers", "X-Hop", "1", "Foo", "2")
	if got, want := EndToEnd(h), header("Connection", "te, x-hop", "Te", "trailers", "Foo", "2"); !reflect.DeepEqual(got, want) || len(h) != 4 {
		t.Errorf("EndToEnd = %v of %v, want %v", got, h, want)
	}
}

func TestStoredHeader(t *testing.T) {
	received := time.Date(2026, 5, 1, 12, 0, 0, 0, time.FixedZone("", 3600))
	h := header(
		"Connection", "close, X-Hop", "Connection", "x-other", "X-Hop", "1", "X-Other", "2",
		"Keep-Alive", "a", "Proxy-Authenticate", "a", "Proxy-Authentication-Info", "a", "Proxy-Authorization", "a",
		"Proxy-Connection", "a", "TE", "a", "Trailer", "X-Sum", "X-Sum", "5", "Transfer-Encoding", "a", "Upgrade", "a",
		"Trailer:X-Late", "6", "Age", "5", "Set-Cookie", "a=b", "X-Me", "7",
		"Cache-Control", `no-cache="set-cookie", private=x-me`, "X-Keep", "8", "Date", "yesterday",
	)
	before := h.Clone()
	got := StoredHeader(h, ResponseDirectives(h), received)
	want := header("X-Sum", "5", "Cache-Control", `no-cache="set-cookie", private=x-me`, "X-Keep", "8", "Date", "Fri, 01 May 2026 11:00:00 GMT")
	if !reflect.DeepEqual(got, want) {
		t.Errorf("StoredHeader = %v, want %v", got, want)
	}
	if !reflect.DeepEqual(h, before) {
		t.Error("StoredHeader changed its argument")
	}
	const date = "Fri, 01 May 2026 10:00:00 GMT"
	if got := StoredHeader(header("Date", date), Directives{}, received).Get("Date"); got != date {
		t.Errorf("StoredHeader made the Date %q, want it kept", got)
	}
	if got := StoredHeader(nil, Directives{}, received).Get("Date"); got == "" {
		t.Error("StoredHeader(nil) has no Date")
	}
}
