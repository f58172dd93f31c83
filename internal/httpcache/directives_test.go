package httpcache

import (
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

const s = time.Second

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func set(d time.Duration) Delta { return Delta{Set: true, Duration: d} }

func TestParseCacheControl(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lines []string
		want  Directives
	}{
		{"RFC 9111 5.2: empty", nil, Directives{}},
		{"RFC 9111 5.2: empty members", []string{",, ,", ""}, Directives{}},
		{"RFC 9111 5.2: case", []string{"MaX-aGe=60, No-StOrE"}, Directives{MaxAge: set(60 * s), NoStore: true}},
		{"RFC 9111 5.2: all flags", []string{"public,must-revalidate\t,  proxy-revalidate, must-understand, no-transform, no-cache, private"},
			Directives{Public: true, MustRevalidate: true, ProxyRevalidate: true, MustUnderstand: true, NoCache: true, Private: true}},
		{"RFC 9110 5.3: lines", []string{"max-age=60", "s-maxage=1"}, Directives{MaxAge: set(60 * s), SMaxAge: set(s)}},
		{"RFC 9111 5.2.3: unknown", []string{`foobar, foo=bar, baz="a, no-store", max-age=60`}, Directives{MaxAge: set(60 * s)}},
		{"RFC 9111 5.2: quoted argument", []string{`max-age="3600"`}, Directives{MaxAge: set(3600 * s)}},
		{"RFC 9110 5.6.4: directive inside a string", []string{`x="max-age=3600", max-age=1`}, Directives{MaxAge: set(s)}},
		{"RFC 9110 5.6.4: escapes", []string{`x="a\", no-store", max-age=1`}, Directives{MaxAge: set(s)}},
		{"RFC 9110 5.6.4: unterminated", []string{`x="a, no-store`}, Directives{NoStore: true}},
		{"RFC 9110 5.6.4: unterminated escape", []string{`x="a, private\`}, Directives{Private: true}},
		{"RFC 9111 5.2: a string for a name", []string{`"no-store", max-age=1`}, Directives{MaxAge: set(s)}},
		{"RFC 9111 5.2: a string before a permission", []string{`"x" public, max-age=1`}, Directives{MaxAge: set(s)}},
		{"RFC 9110 5.6.3: white space around a comma", []string{"max-age=60 ,\tpublic,  must-revalidate"}, Directives{MaxAge: set(60 * s), Public: true, MustRevalidate: true}},
		{"RFC 9111 5.2: single quotes are no quotes", []string{"max-age='3600'"}, Directives{MaxAge: set(0)}},
		{"RFC 9111 5.2: space before =", []string{"max-age =3600"}, Directives{MaxAge: set(0)}},
		{"RFC 9111 5.2: space after =", []string{"max-age= 3600"}, Directives{MaxAge: set(0)}},
		{"RFC 9111 5.2: semicolons forbid but do not permit", []string{"max-age=60; private; public"}, Directives{MaxAge: set(0), Private: true}},
		{"RFC 9111 5.2: permission with an argument", []string{"public=1, must-understand=1"}, Directives{}},
		{"RFC 9111 5.2: permission with and without", []string{"public, public=1, must-understand, must-understand=1"}, Directives{Public: true, MustUnderstand: true}},
		{"RFC 9111 5.2: prohibition with an argument", []string{"no-store=0, must-revalidate=x"}, Directives{NoStore: true, MustRevalidate: true}},
		{"RFC 9111 1.2.2: leading zeros", []string{"max-age=003600"}, Directives{MaxAge: set(3600 * s)}},
		{"RFC 9111 1.2.2: 2^31", []string{"max-age=2147483648"}, Directives{MaxAge: set(maxDelta)}},
		{"RFC 9111 1.2.2: overflow", []string{"max-age=99999999999999999999999999"}, Directives{MaxAge: set(maxDelta)}},
		{"RFC 9111 4.2.1: negative", []string{"max-age=-3600"}, Directives{MaxAge: set(0)}},
		{"RFC 9111 4.2.1: decimal", []string{"max-age=3600.0"}, Directives{MaxAge: set(0)}},
		{"RFC 9111 4.2.1: junk before", []string{"max-age=a100"}, Directives{MaxAge: set(0)}},
		{"RFC 9111 4.2.1: junk behind", []string{"max-age=100a"}, Directives{MaxAge: set(0)}},
		{"RFC 9111 4.2.1: no argument", []string{"max-age, s-maxage="}, Directives{MaxAge: set(0), SMaxAge: set(0)}},
		{"RFC 9111 4.2.1: two values", []string{"max-age=1800, max-age=1"}, Directives{MaxAge: set(s)}},
		{"RFC 9111 4.2.1: two values on two lines", []string{"max-age=1", "max-age=1800"}, Directives{MaxAge: set(s)}},
		{"RFC 9111 4.2.1: one of two values malformed", []string{"max-age=60, max-age=x"}, Directives{MaxAge: set(0)}},
		{"RFC 5861 3: window", []string{"max-age=1, stale-while-revalidate=60, stale-if-error=70"},
			Directives{MaxAge: set(s), StaleWhileRevalidate: set(60 * s), StaleIfError: set(70 * s)}},
		{"RFC 5861 3: malformed window", []string{"stale-while-revalidate"}, Directives{StaleWhileRevalidate: set(0)}},
		{"RFC 9111 5.2.2.4: fields", []string{`no-cache="set-cookie, x-a , ,x-a"`}, Directives{NoCacheFields: []string{"Set-Cookie", "X-A"}}},
		{"RFC 9111 5.2.2.4: field as a token", []string{"no-cache=set-cookie"}, Directives{NoCacheFields: []string{"Set-Cookie"}}},
		{"RFC 9111 5.2.2.4: fields and unqualified", []string{`no-cache="a", no-cache`}, Directives{NoCache: true}},
		{"RFC 9111 5.2.2.4: unqualified and fields", []string{`no-cache, no-cache="a"`}, Directives{NoCache: true}},
		{"RFC 9111 5.2.2.4: no fields", []string{`no-cache=""`}, Directives{NoCache: true}},
		{"RFC 9111 5.2.2.7: fields", []string{`private="b", private="a"`}, Directives{PrivateFields: []string{"A", "B"}}},
		{"RFC 9111 5.2.2.7: unqualified and fields", []string{`private, private="a"`}, Directives{Private: true}},
		{"RFC 9111 5.2.2.7: junk behind fields", []string{`private="a" b`}, Directives{Private: true}},
		{"RFC 9111 5.2.2.7: no field names", []string{`private="a b"`}, Directives{Private: true}},
		{"RFC 9111 5.2.2.7: single quotes", []string{"private='a, b'"}, Directives{Private: true}},
		{"RFC 9111 5.2.2.7: unterminated", []string{`private="a, max-age=60`}, Directives{Private: true, MaxAge: set(60 * s)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := http.Header{"Cache-Control": tt.lines, "Pragma": {"no-cache"}} // RFC 9111 section 5.4: ignored
			if got := ResponseDirectives(h); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("ResponseDirectives(%q) = %+v, want %+v", tt.lines, got, tt.want)
			}
		})
	}
}

func TestResponseDirectives_Targeted(t *testing.T) {
	fallback := Directives{MaxAge: set(s)}
	for _, tt := range []struct {
		name  string
		lines []string
		want  Directives
	}{
		{"RFC 9213 2.2: absent", nil, fallback},
		{"RFC 9213 2.2: empty", []string{""}, fallback},
		{"RFC 9213 2.2: applies", []string{"max-age=60"}, Directives{MaxAge: set(60 * s), Targeted: true}},
		{"RFC 9213 2.2: replaces all", []string{"none"}, Directives{Targeted: true}},
		{"RFC 9651 4.2: lines", []string{"max-age=60", "no-cache"}, Directives{MaxAge: set(60 * s), NoCache: true, Targeted: true}},
		{"RFC 9651 4.2: malformed", []string{"max-age=60, &&&"}, fallback},
		{"RFC 9651 4.2: upper case", []string{"MaX-aGe=60"}, fallback},
		{"RFC 9651 4.2: space before =", []string{"max-age =60"}, fallback},
		{"RFC 9651 4.2: space after =", []string{"max-age= 60"}, fallback},
		{"RFC 9651 4.2: the last of two holds", []string{"max-age=60, max-age=70"}, Directives{MaxAge: set(70 * s), Targeted: true}},
		{"RFC 9213 2.1: parameters", []string{"max-age=60;x=1, no-store;y"}, Directives{MaxAge: set(60 * s), NoStore: true, Targeted: true}},
		{"RFC 9213 2.1: wrong type", []string{`max-age="60"`}, Directives{MaxAge: set(0), Targeted: true}},
		{"RFC 9213 2.1: decimal", []string{"max-age=60.0"}, Directives{MaxAge: set(0), Targeted: true}},
		{"RFC 9213 2.1: negative", []string{"max-age=-60"}, Directives{MaxAge: set(0), Targeted: true}},
		{"RFC 9213 2.1: inner list", []string{"max-age=(1 2), private=(a)"}, Directives{MaxAge: set(0), Private: true, Targeted: true}},
		{"RFC 9213 2.1: true", []string{"public, must-understand=?1"}, Directives{Public: true, MustUnderstand: true, Targeted: true}},
		{"RFC 9213 2.1: false", []string{"public=?0, no-store=?0"}, Directives{NoStore: true, Targeted: true}},
		{"RFC 9213 2.1: fields", []string{`private="b, a", no-cache=c`}, Directives{PrivateFields: []string{"A", "B"}, NoCacheFields: []string{"C"}, Targeted: true}},
		{"RFC 9111 1.2.2: overflow", []string{"max-age=99999999999"}, Directives{MaxAge: set(maxDelta), Targeted: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := http.Header{"Cache-Control": {"max-age=1"}, "Cdn-Cache-Control": tt.lines}
			if got := ResponseDirectives(h, "CDN-Cache-Control"); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("ResponseDirectives(%q) = %+v, want %+v", tt.lines, got, tt.want)
			}
		})
	}
	t.Run("RFC 9213 2.2: order of the list", func(t *testing.T) {
		h := header("B-Cache-Control", "max-age=2", "A-Cache-Control", "max-age=3", "Cache-Control", "no-store")
		if got := ResponseDirectives(h, "A-Cache-Control", "B-Cache-Control"); got.MaxAge != set(3*s) || got.NoStore {
			t.Errorf("got %+v, want A-Cache-Control's", got)
		}
	})
}

func TestParseRequest(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		want       RequestDirectives
	}{
		{"RFC 9111 5.2.1: nothing known", "nothing-to-see-here", RequestDirectives{}},
		{"RFC 9111 5.2.1: all", "max-age=1, max-stale=2, min-fresh=3, no-cache, no-store, no-transform, only-if-cached",
			RequestDirectives{MaxAge: set(s), MaxStale: set(2 * s), MinFresh: set(3 * s), NoCache: true, NoStore: true, OnlyIfCached: true}},
		{"RFC 9111 5.2.1.2: no argument", "max-stale", RequestDirectives{MaxStale: set(Forever)}},
		{"RFC 9111 5.2.1.2: with and without", "max-stale, max-stale=5", RequestDirectives{MaxStale: set(5 * s)}},
		{"RFC 9111 5.2.1: malformed", "max-age=x, max-stale=y, min-fresh=-1, max-age=1;", RequestDirectives{}},
		{"RFC 9111 5.2.1: twice", "max-age=9, max-age=5, min-fresh=5, min-fresh=9", RequestDirectives{MaxAge: set(5 * s), MinFresh: set(9 * s)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ParseRequest(header("Cache-Control", tt.line, "Pragma", "no-cache"))
			if got != tt.want {
				t.Errorf("ParseRequest(%q) = %+v, want %+v", tt.line, got, tt.want)
			}
			if again := ParseRequest(header("Cache-Control", got.String())); again != got {
				t.Errorf("ParseRequest(%q) = %+v, want %+v", got.String(), again, got)
			}
		})
	}
}

func TestFieldName(t *testing.T) {
	const special = "!#$%&'*+-.^_`|~" // RFC 9110 section 5.6.2
	for c := range 256 {
		name := string([]byte{byte(c)})
		want := strings.Contains(special, name) || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
		if got := FieldName(name); got != want {
			t.Errorf("FieldName(%q) = %v, want %v", name, got, want)
		}
	}
	if FieldName("") || FieldName("a b") {
		t.Error("a field name is empty, or has a space")
	}
}

func FuzzCacheControl(f *testing.F) {
	for _, seed := range []string{
		"", "max-age=60", `private="a, b", no-cache=c, x="\"", max-age =1`, "no-store; private", `x="a, no-store`,
		"max-age=1, max-age=2, s-maxage='3'", `"`, `\`, "=", "a=b=c", `no-cache="`, "public must-understand",
		"stale-while-revalidate=99999999999999999999", "max-age=?1;a", `private=(a "b");c`,
	} {
		f.Add(seed, "")
		f.Add("max-age=5", seed)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		h := http.Header{"Cache-Control": {a, b}}
		d := ResponseDirectives(h)
		again := ResponseDirectives(header("Cache-Control", d.String()))
		if !reflect.DeepEqual(d, again) {
			t.Fatalf("%q, %q: %+v became %+v through %q", a, b, d, again, d.String())
		}
		r := ParseRequest(h)
		if again := ParseRequest(header("Cache-Control", r.String())); r != again {
			t.Fatalf("%q, %q: %+v became %+v through %q", a, b, r, again, r.String())
		}
		h.Add("Cache-Control", "no-store")
		if !ResponseDirectives(h).NoStore {
			t.Fatalf("%q, %q hide no-store", a, b)
		}
		if got, ok := parseTargeted([]string{a, b}); ok && !got.Targeted {
			t.Fatalf("%q, %q: targeted but not marked", a, b)
		}
	})
}

// A server reads lines up to 1 MiB: unterminated strings must not be searched for ends repeatedly.
func BenchmarkParseCacheControl(b *testing.B) {
	for name, line := range map[string]string{
		"usual":  "public, max-age=60, stale-while-revalidate=600",
		"quotes": strings.Repeat(`"\`, 1<<19),
	} {
		b.Run(name, func(b *testing.B) {
			h := header("Cache-Control", line)
			b.ReportAllocs()
			for b.Loop() {
				ResponseDirectives(h)
			}
		})
	}
}

// String returns directives that ResponseDirectives reads back, except Targeted and malformed numbers.
func (d Directives) String() string {
	var l listing
	l.flag("no-store", d.NoStore)
	l.flag("no-cache", d.NoCache)
	l.fields("no-cache", d.NoCacheFields)
	l.flag("private", d.Private)
	l.fields("private", d.PrivateFields)
	l.flag("public", d.Public)
	l.flag("must-revalidate", d.MustRevalidate)
	l.flag("proxy-revalidate", d.ProxyRevalidate)
	l.flag("must-understand", d.MustUnderstand)
	l.delta("max-age", d.MaxAge)
	l.delta("s-maxage", d.SMaxAge)
	l.delta("stale-while-revalidate", d.StaleWhileRevalidate)
	l.delta("stale-if-error", d.StaleIfError)
	return strings.Join(l, ", ")
}

// String returns the directives as ParseRequest reads them back.
func (d RequestDirectives) String() string {
	var l listing
	l.flag("no-cache", d.NoCache)
	l.flag("no-store", d.NoStore)
	l.flag("only-if-cached", d.OnlyIfCached)
	l.delta("max-age", d.MaxAge)
	l.delta("max-stale", d.MaxStale)
	l.delta("min-fresh", d.MinFresh)
	return strings.Join(l, ", ")
}

// A listing joins directives by commas.
type listing []string

func (l *listing) flag(name string, set bool) {
	if set {
		*l = append(*l, name)
	}
}

func (l *listing) fields(name string, fields []string) {
	if len(fields) > 0 {
		*l = append(*l, name+`="`+strings.Join(fields, ", ")+`"`)
	}
}

func (l *listing) delta(name string, d Delta) {
	switch {
	case d.Set && d.Duration == Forever:
		*l = append(*l, name)
	case d.Set:
		*l = append(*l, name+"="+strconv.FormatInt(int64(d.Duration/time.Second), 10))
	}
}
