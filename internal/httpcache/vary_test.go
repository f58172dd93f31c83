package httpcache

import (
	"bytes"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestVaryNames(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lines []string
		want  []string
		ok    bool
	}{
		{"RFC 9110 12.5.5: none", nil, nil, true},
		{"RFC 9110 12.5.5: empty", []string{"", ", ,"}, nil, true},
		{"RFC 9110 12.5.5: sorted, lower case, once", []string{"Foo, bar ,\tFOO", "Abc"}, []string{"abc", "bar", "foo"}, true},
		{"RFC 9111 4.1: star", []string{"*"}, nil, false},
		{"RFC 9111 4.1: star star", []string{"*, *"}, nil, false},
		{"RFC 9111 4.1: empty star", []string{"", ", *"}, nil, false},
		{"RFC 9111 4.1: star foo", []string{"*, Foo"}, nil, false},
		{"RFC 9111 4.1: foo star", []string{"Foo", "*"}, nil, false},
		{"RFC 9110 5.1: no field name", []string{"Foo Bar"}, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := VaryNames(http.Header{"Vary": tt.lines})
			if ok != tt.ok || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("VaryNames(%q) = %q, %v, want %q, %v", tt.lines, got, ok, tt.want, tt.ok)
			}
		})
	}
}

func TestVaryNames_TooMany(t *testing.T) {
	long := header()
	for i := range maxVary/5 + 1 {
		long.Add("Vary", fmt.Sprintf("A%04d", i))
	}
	if _, ok := JoinNames(long["Vary"][1:], long["Vary"][:2]); ok {
		t.Error("JoinNames of as many names, want it refused")
	}
	if names, ok := VaryNames(long); ok {
		t.Errorf("VaryNames of %d lines = %d names, want it refused", len(long["Vary"]), len(names))
	}
}

func TestVariantKey(t *testing.T) {
	for _, tt := range []struct {
		name string
		vary string
		a, b http.Header
		same bool
	}{
		{"RFC 9111 4.1: same", "foo", header("Foo", "1"), header("Foo", "1", "Bar", "2"), true},
		{"RFC 9111 4.1: other", "foo", header("Foo", "1"), header("Foo", "2"), false},
		{"RFC 9111 4.1: absent", "foo", header("Foo", "1"), header(), false},
		{"RFC 9111 4.1: both absent", "foo", header(), header("Bar", "1"), true},
		{"RFC 9111 4.1: absent is not empty", "foo", header(), header("Foo", ""), false},
		{"RFC 9111 4.1: not across fields", "bar, foo", header("Foo", "1", "Bar", "2"), header("Foo", "2", "Bar", "1"), false},
		{"RFC 9111 4.1: not into the next field", "bar, foo", header("Bar", "x"), header("Foo", "x"), false},
		{"RFC 9110 5.3: lines", "foo", header("Foo", "1, 2"), header("Foo", "1", "Foo", "2"), true},
		{"RFC 9110 5.6.1: space", "foo", header("Foo", "1,2"), header("Foo", " 1, \t2 "), true},
		{"an empty member may be all that a handler looks at", "foo", header("Foo", "1"), header("Foo", "", "Foo", "1"), false},
		{"the same at the end", "foo", header("Foo", "1"), header("Foo", "1,"), false},
		{"RFC 9110 5.6.1: empty encodings", "accept-encoding", header("Accept-Encoding", "gzip"), header("Accept-Encoding", ", gzip,"), true},
		{"RFC 9110 5.6.1: order counts", "foo", header("Foo", "1, 2"), header("Foo", "2, 1"), false},
		{"RFC 9110 5.6.4: space in a string", "foo", header("Foo", `"1,2"`), header("Foo", `"1, 2"`), false},
		{"RFC 9110 5.1: case counts in unknown fields", "foo", header("Foo", "a"), header("Foo", "A"), false},
		{"RFC 9110 12.5.3: Accept-Encoding", "accept-encoding", header("Accept-Encoding", "gzip, br;q=0.5"), header("Accept-Encoding", "BR; q=0.5", "Accept-Encoding", "gzip"), true},
		{"RFC 9110 12.5.3: weights count", "accept-encoding", header("Accept-Encoding", "gzip, br;q=0.5"), header("Accept-Encoding", "gzip;q=0.5, br"), false},
		{"RFC 9110 12.5.4: Accept-Language, case and space", "accept-language", header("Accept-Language", "en, de"), header("Accept-Language", "eN ,  De"), true},
		{"RFC 9110 5.6.2: space within a language", "accept-language", header("Accept-Language", "de-DE"), header("Accept-Language", "d e-DE"), false},
		{"RFC 9110 5.6.2: space within a coding", "accept-encoding", header("Accept-Encoding", "gzip"), header("Accept-Encoding", "g zip"), false},
		{"RFC 9110 5.6.4: a string over two lines", "foo", header("Foo", `"1`, "Foo", `2"`), header("Foo", `"1, 2"`), true},
		{"RFC 9110 12.5.4: Accept-Language, order", "accept-language", header("Accept-Language", "en, de"), header("Accept-Language", "de, en"), false},
		{"an alias behind a gateway", "foo-bar", header("Foo-Bar", "1"), header("Foo-Bar", "1", "Foo_Bar", "2"), false},
		{"an alias of another field", "foo-bar", header("Foo-Bar", "1"), header("Foo-Bar", "1", "Foo_Baz", "2"), true},
		{"RFC 6265 5.4: Cookie byte by byte", "cookie", header("Cookie", "a=1,2"), header("Cookie", "a=1, 2"), false},
		{"RFC 6265 5.4: Cookie lines", "cookie", header("Cookie", "a, b"), header("Cookie", "a", "Cookie", "b"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			names, ok := VaryNames(header("Vary", tt.vary))
			if !ok {
				t.Fatal("no names")
			}
			a, b := VariantKey(names, tt.a, Options{}), VariantKey(names, tt.b, Options{})
			if (a == b) != tt.same {
				t.Errorf("keys of %v and %v: %q, %q, want same = %v", tt.a, tt.b, a, b, tt.same)
			}
		})
	}
	if got := VariantKey(nil, header("Foo", "1"), Options{}); got != "" {
		t.Errorf("VariantKey without names = %q, want none", got)
	}
}

func TestVariantKey_AnyLanguageOrder(t *testing.T) {
	key := func(h http.Header) string {
		return VariantKey([]string{"accept-language"}, h, Options{AnyLanguageOrder: true})
	}
	same := header("Accept-Language", "en, de;q=0.5", "X", "1")
	for _, h := range []http.Header{header("Accept-Language", "de;q=0.5,EN"), header("Accept-Language", "de; q=0.5", "Accept-Language", "en")} {
		if key(h) != key(same) {
			t.Errorf("%v is not the same as %v", h, same)
		}
	}
	for _, h := range []http.Header{header("Accept-Language", "en;q=0.5, de"), header("Accept-Language", "en"), header(), header("Accept-Language", "")} {
		if key(h) == key(same) {
			t.Errorf("%v is the same as %v", h, same)
		}
	}
	if same.Get("Accept-Language") != "en, de;q=0.5" {
		t.Errorf("the request was changed: %v", same)
	}
}

func TestNormalised(t *testing.T) {
	for _, tt := range []struct {
		name  string
		lines []string
		want  []string
	}{
		{"Accept-Encoding", []string{"gzip, deflate,BR ;Q=0.5", "", "gzip"}, []string{"br;q=0.5, deflate, gzip"}},
		{"Accept-Encoding", []string{"g zip"}, []string{"g zip"}},
		{"Accept-Encoding", []string{" ,"}, []string{""}},
		{"Accept-Encoding", []string{"gzip", ""}, []string{"gzip"}},
		{"Accept-Language", []string{"DE-de,zh-hant-tw; q=0.8, EN-a-BBBB-us,*"}, []string{"de-DE, zh-Hant-TW;q=0.8, en-a-bbbb-us, *"}},
		{"Accept-Language", []string{"d e-DE"}, []string{"d e-DE"}},
		{"Accept-Language", []string{"AA, ZZ-az"}, []string{"aa, zz-AZ"}},
		{"Foo", []string{" 1,2 ", `"3 ,4"`, ""}, []string{`1, 2, "3 ,4", `}},
		{"Foo", []string{`"a\", b",c`, `"d\`}, []string{`"a\", b", c, "d\`}},
		{"Foo", []string{`a\,b`}, []string{`a\, b`}},
		{"Foo", []string{""}, []string{""}},
		{"Cookie", []string{" a=1,2 ", "b\t"}, []string{"a=1,2", "b"}},
		{"User-Agent", []string{"a,b"}, []string{"a,b"}},
	} {
		h := http.Header{tt.name: tt.lines}
		if got, _ := Normalised(h, Options{}); !reflect.DeepEqual(got[tt.name], tt.want) {
			t.Errorf("%s %q became %q, want %q", tt.name, tt.lines, got[tt.name], tt.want)
		}
		if !slices.Equal(h[tt.name], tt.lines) {
			t.Errorf("Normalised changed its argument to %q", h)
		}
	}
}

// FuzzNormalised: requests with one variant key have the same values of the key's fields.
func FuzzNormalised(f *testing.F) {
	f.Add("Accept-Language", "d e-DE", "", "de-DE", "", true)
	f.Add("Accept-Encoding", "g zip", "br", "gzip,BR", ",", false)
	f.Add("foo", `"`, `" ,c`, `", ", c`, "", false)
	f.Add("foo", `"a\`, `b", c`, `"a\, b", c`, "", false)
	f.Add("cookie", " a", "b", "a", "b ", false)
	f.Add("Accept-Language", ";", `"`, "0", "0", true)
	f.Add("Accept-Language", "de;q=1,EN-us", "fr", "fr, en-US", "de ;q=1", true)
	f.Fuzz(func(t *testing.T, name, a1, a2, b1, b2 string, anyOrder bool) {
		names, ok := VaryNames(http.Header{"Vary": {name}})
		if !ok || len(names) != 1 {
			return
		}
		opt := Options{AnyLanguageOrder: anyOrder}
		name = http.CanonicalHeaderKey(names[0])
		build := func(lines ...string) (raw, normal http.Header) {
			raw, normal = http.Header{name: lines}, http.Header{name: slices.Clone(lines)}
			normal, _ = Normalised(normal, opt)
			return raw, normal
		}
		a, normalA := build(a1, a2)
		b, normalB := build(b1, b2)
		if same := VariantKey(names, a, opt) == VariantKey(names, b, opt); same != reflect.DeepEqual(normalA, normalB) {
			t.Fatalf("%v and %v are one variant: %v; the handler sees %v and %v", a, b, same, normalA, normalB)
		}
		if VariantKey(names, a, opt) != VariantKey(names, normalA, opt) {
			t.Fatalf("%v is another variant than its normal form %v", a, normalA)
		}
		if a1 != a[name][0] || a2 != a[name][1] {
			t.Fatalf("the key has changed the request to %v", a)
		}
	})
}

func FuzzVary(f *testing.F) {
	f.Add("Foo, bar", "1", "2", "1, 2")
	f.Add("accept-encoding", "gzip", "br", "br,gzip")
	f.Add("cookie", "a", "", "a")
	f.Add("*", `"a, b`, `\`, `""`)
	f.Add("foo", "\x00\x01", "a,,b", ",")
	f.Fuzz(func(t *testing.T, vary, v1, v2, v3 string) {
		names, ok := VaryNames(header("Vary", vary))
		if !ok {
			return
		}
		again, ok := VaryNames(header("Vary", strings.Join(names, ", ")))
		if !ok || !reflect.DeepEqual(names, again) {
			t.Fatalf("Vary %q: %q became %q, %v", vary, names, again, ok)
		}
		if len(names) == 0 {
			return
		}
		two, one := http.Header{}, http.Header{}
		for _, name := range names {
			two.Add(name, v1)
			two.Add(name, v2)
			one.Add(name, v3)
		}
		a, b := selection(names, two, Options{}), selection(names, one, Options{})
		if (VariantKey(names, two, Options{}) == VariantKey(names, one, Options{})) != bytes.Equal(a, b) {
			t.Fatal("the key is not the hash of the selection")
		}
		if c := selection(names, header(), Options{}); bytes.Equal(a, c) || bytes.Equal(b, c) {
			t.Fatalf("%q: present is the same as absent", names)
		}
		// Equal variants have equal characters, except separators, case, order and repetition.
		if used(v1+v2) != used(v3) && bytes.Equal(a, b) {
			t.Fatalf("%q: %q and %q are one variant with %q", names, v1, v2, v3)
		}
	})
}

// used returns the set of characters in s that are no separators.
func used(s string) (set [256]bool) {
	for _, c := range []byte(lowerASCII(s)) {
		set[c] = c != ' ' && c != '\t' && c != ','
	}
	return set
}
