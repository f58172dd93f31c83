package httpcache

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
)

func TestSetConditions(t *testing.T) {
	client := header("If-Match", "a", "If-None-Match", "b", "If-Modified-Since", "c", "If-Unmodified-Since", "d", "If-Range", "e", "Range", "f", "Foo", "1")
	for _, tt := range []struct {
		name         string
		stored, want http.Header
	}{
		{"RFC 9111 4.3.1: no validator", header(), header("Foo", "1")},
		{"RFC 9111 4.3.1: ETag", header("ETag", `W/"x"`), header("Foo", "1", "If-None-Match", `W/"x"`)},
		{"RFC 9111 4.3.1: both", header("ETag", `"x"`, "Last-Modified", "y"), header("Foo", "1", "If-None-Match", `"x"`, "If-Modified-Since", "y")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := client.Clone()
			if SetConditions(req, tt.stored); !reflect.DeepEqual(req, tt.want) {
				t.Errorf("SetConditions made %v, want %v", req, tt.want)
			}
		})
	}
}

func TestSelects(t *testing.T) {
	for _, tt := range []struct {
		name                string
		stored, notModified http.Header
		want                bool
	}{
		{"RFC 9111 4.3.4: same strong tag", header("ETag", `"a"`), header("ETag", `"a"`), true},
		{"RFC 9111 4.3.4: other strong tag", header("ETag", `"a"`), header("ETag", `"b"`), false},
		{"RFC 9111 4.3.4: other strong tag, same date", header("ETag", `"a"`, "Last-Modified", "x"), header("ETag", `"b"`, "Last-Modified", "x"), false},
		{"RFC 9111 4.3.4: strong tag, weak one stored", header("ETag", `W/"a"`), header("ETag", `"a"`), false},
		{"RFC 9111 4.3.4: strong tag, none stored", header("Last-Modified", "x"), header("ETag", `"a"`), false},
		{"RFC 9111 4.3.4: weak tag", header("ETag", `"a"`), header("ETag", `W/"a"`), true},
		{"RFC 9111 4.3.4: other weak tag", header("ETag", `W/"a"`), header("ETag", `W/"b"`), false},
		{"RFC 9111 4.3.4: same date", header("Last-Modified", "x"), header("Last-Modified", "x"), true},
		{"RFC 9111 4.3.4: other date", header("Last-Modified", "x"), header("Last-Modified", "y"), false},
		{"RFC 9111 4.3.4: none", header("ETag", `"a"`), header(), true},
		{"RFC 9111 4.3.4: none, a date stored", header("Last-Modified", "x"), header(), true},
		{"RFC 9111 4.3.4: date, none stored", header("ETag", `"a"`), header("Last-Modified", "x"), true},
		{"RFC 9111 4.3.4: weak tag, none stored", header("Last-Modified", "x"), header("ETag", `W/"a"`), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Selects(tt.stored, tt.notModified); got != tt.want {
				t.Errorf("Selects(%v, %v) = %v, want %v", tt.stored, tt.notModified, got, tt.want)
			}
		})
	}
}

func TestFreshen(t *testing.T) {
	stored := header("A", "1", "A", "2", "B", "3", "Content-Length", "36", "Content-Encoding", "gzip", "Content-Digest", "7", "Repr-Digest", "8", "Cache-Control", "max-age=1", "Date", httpDate(-5*s))
	before := stored.Clone()
	nm := StoredHeader(header("A", "4", "C", "5", "Content-Length", "0", "Content-Encoding", "br", "Content-Digest", "9", "Repr-Digest", "9", "Digest", "9", "Content-Type", "x/y", "Cache-Control", "max-age=9", "Connection", "d", "D", "6"), Directives{}, now)
	want := header("A", "4", "B", "3", "C", "5", "Content-Length", "36", "Content-Encoding", "gzip", "Content-Digest", "7", "Repr-Digest", "8", "Content-Type", "x/y", "Cache-Control", "max-age=9", "Date", httpDate(0))
	if got := Freshen(stored, nm); !reflect.DeepEqual(got, want) {
		t.Errorf("RFC 9111 3.2: Freshen = %v, want %v", got, want)
	}
	if !reflect.DeepEqual(stored, before) {
		t.Error("Freshen changed its argument")
	}
}

func TestHeadAgrees(t *testing.T) {
	stored := header("ETag", `"a"`, "Content-Length", "5")
	for _, tt := range []struct {
		name string
		head http.Header
		want bool
	}{
		{"RFC 9111 4.3.5: nothing", header(), true},
		{"RFC 9111 4.3.5: all", header("ETag", `"a"`, "Content-Length", "5"), true},
		{"RFC 9111 4.3.5: other tag", header("ETag", `"b"`), false},
		{"RFC 9111 4.3.5: other length", header("Content-Length", "6"), false},
		{"RFC 9111 4.3.5: a validator more", header("Last-Modified", "x"), false},
	} {
		if got := HeadAgrees(stored, tt.head); got != tt.want {
			t.Errorf("%s: HeadAgrees = %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestAsksForRanges(t *testing.T) {
	for ranges, want := range map[string]bool{
		"bytes=0-0": true, "bytes=-1": true, "bytes=-0": false, "bytes=0-0,-00": false, "bytes=0-0,": true, "lines=1-2": false, "": false,
		"bytes=" + strings.Repeat("0-0,", maxRanges-1) + "0-0": true, "bytes=" + strings.Repeat("0-0,", maxRanges) + "0-0": false,
	} {
		if got := AsksForRanges(&http.Request{Header: header("Range", ranges)}); got != want {
			t.Errorf("RFC 9110 14.2: %q: %v, want %v", ranges, got, want)
		}
	}
}

func TestSingleRange_None(t *testing.T) {
	for _, tt := range []struct {
		method string
		req    http.Header
		size   int64
	}{
		{"GET", header("Range", "bytes=5"), 10},
		{"GET", header("Range", "bytes=-5"), 0},
		{"GET", header("Range", "bytes=5-4"), 10},
		{"GET", header("Range", "bytes=10-"), 10},
		{"GET", header("Range", "bytes=x-5"), 10},
		{"GET", header("Range", "bytes=0-x"), 10},
		{"GET", header("Range", "0-5"), 10},
		{"GET", header("Range", "bytes=0-5", "Range", "bytes=6-7"), 10},
		{"GET", header("Range", "bytes=0-5", "If-Range", `"e"`, "If-Range", `"f"`), 10},
		{"HEAD", header("Range", "bytes=0-5"), 10},
	} {
		if first, length, ok := SingleRange(&http.Request{Method: tt.method, Header: tt.req}, header("ETag", `"e"`), tt.size); ok {
			t.Errorf("%s %v of %d bytes: %d from %d", tt.method, tt.req, tt.size, length, first)
		}
	}
}

func TestForRange(t *testing.T) {
	for _, tt := range []struct{ ifRange, modified, want string }{
		{httpDate(-s), httpDate(-s), "bytes=2-4"},
		{httpDate(-2 * s), httpDate(-s), ""},
		{httpDate(0), httpDate(0), ""}, // it may have changed in the same second
	} {
		r := &http.Request{Header: header("Range", "bytes=2-4", "If-Range", tt.ifRange)}
		if got := ForRange(r, header("Date", httpDate(0), "Last-Modified", tt.modified), now).Header.Get("Range"); got != tt.want {
			t.Errorf("RFC 9110 8.8.2.2: If-Range %s, modified at %s: range %q, want %q", tt.ifRange, tt.modified, got, tt.want)
		}
	}
}

func TestNotModified(t *testing.T) {
	tag := header("ETag", `"a,b"`, "Last-Modified", httpDate(-10*s))
	for _, tt := range []struct {
		name        string
		method      string
		status      int
		req, stored http.Header
		want        bool
	}{
		{"RFC 9110 13.1.2: no condition", "GET", 200, header(), tag, false},
		{"RFC 9110 13.1.2: tag", "GET", 200, header("If-None-Match", `"a,b"`), tag, true},
		{"RFC 9110 13.1.2: HEAD", "HEAD", 200, header("If-None-Match", `"a,b"`), tag, true},
		{"RFC 9110 13.1.2: POST", "POST", 200, header("If-None-Match", `"a,b"`), tag, false},
		{"RFC 9110 13.2.1: no success", "GET", 404, header("If-None-Match", `"a,b"`), tag, false},
		{"RFC 9110 13.2.1: any success", "GET", 299, header("If-None-Match", `"a,b"`), tag, true},
		{"RFC 9110 13.1.2: weak", "GET", 200, header("If-None-Match", `W/"a,b"`), tag, true},
		{"RFC 9110 13.1.2: among several", "GET", 200, header("If-None-Match", `"x", "a,b"`, "If-None-Match", `"y"`), tag, true},
		{"RFC 9110 13.1.2: other", "GET", 200, header("If-None-Match", `"a", "b"`), tag, false},
		{"RFC 9110 8.8.3: behind one that ends in a backslash", "GET", 200, header("If-None-Match", `"x\", "a,b"`), tag, true},
		{"RFC 9110 13.1.2: any", "GET", 200, header("If-None-Match", "*"), header(), true},
		{"RFC 9110 13.1.2: no tag stored", "GET", 200, header("If-None-Match", `""`), header(), false},
		{"RFC 9110 13.1.3: ignored beside a tag", "GET", 200, header("If-None-Match", `"x"`, "If-Modified-Since", httpDate(0)), tag, false},
		{"RFC 9110 13.1.3: same date", "GET", 200, header("If-Modified-Since", httpDate(-10*s)), tag, true},
		{"RFC 9110 13.1.3: before", "GET", 200, header("If-Modified-Since", httpDate(-11*s)), tag, false},
		{"RFC 9110 13.1.3: rfc850", "GET", 200, header("If-Modified-Since", now.Format("Monday, 02-Jan-06 15:04:05 GMT")), tag, true},
		{"RFC 9110 13.1.3: no date", "GET", 200, header("If-Modified-Since", "today"), tag, false},
		{"RFC 9111 4.3.2: Date for Last-Modified", "GET", 200, header("If-Modified-Since", httpDate(-5*s)), header("Date", httpDate(-5*s)), true},
		{"RFC 9111 4.3.2: receipt for Date", "GET", 200, header("If-Modified-Since", httpDate(-5*s)), header(), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := NotModified(tt.method, tt.req, tt.status, tt.stored.Values, now); got != tt.want {
				t.Errorf("NotModified = %v, want %v", got, tt.want)
			}
		})
	}
	for name, want := range map[string]bool{
		"Etag": true, "Content-Location": true, "Vary": true, "Access-Control-Allow-Origin": true,
		"Content-Type": false, "Content-Length": false, "Last-Modified": false,
	} {
		if InNotModified(name, true) != want {
			t.Errorf("RFC 9110 15.4.5: %s of a tagged response in a 304: %v, want %v", name, !want, want)
		}
	}
	if !InNotModified("Last-Modified", false) {
		t.Error("RFC 9110 15.4.5: the only validator is gone")
	}
}

func TestMatch(t *testing.T) {
	// The table of RFC 9110 section 8.8.3.2.
	for _, tt := range []struct {
		a, b         string
		strong, weak bool
	}{
		{`W/"1"`, `W/"1"`, false, true},
		{`W/"1"`, `W/"2"`, false, false},
		{`W/"1"`, `"1"`, false, true},
		{`"1"`, `"1"`, true, true},
		{"", "", false, false},
		{`"ü"`, `"ü"`, true, true},
		{`w/"1"`, `"1"`, false, false},
	} {
		if got := strongMatch(tt.a, tt.b); got != tt.strong {
			t.Errorf("strongMatch(%s, %s) = %v, want %v", tt.a, tt.b, got, tt.strong)
		}
		if got := weakMatch(tt.a, tt.b); got != tt.weak {
			t.Errorf("weakMatch(%s, %s) = %v, want %v", tt.a, tt.b, got, tt.weak)
		}
	}
}
