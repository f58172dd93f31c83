package httpcache

import (
	"bytes"
	"net/http"
	"reflect"
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
		{"RFC 9110 12.5.4: Accept-Language, order", "accept-language", header("Accept-Language", "en, de"), header("Accept-Language", "de, en"), false},
		{"RFC 6265 5.4: Cookie byte by byte", "cookie", header("Cookie", "a=1,2"), header("Cookie", "a=1, 2"), false},
		{"RFC 6265 5.4: Cookie lines", "cookie", header("Cookie", "a, b"), header("Cookie", "a", "Cookie", "b"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			names, ok := VaryNames(header("Vary", tt.vary))
			if !ok {
				t.Fatal("no names")
			}
			a, b := VariantKey(names, tt.a), VariantKey(names, tt.b)
			if (a == b) != tt.same {
				t.Errorf("keys of %v and %v: %q, %q, want same = %v", tt.a, tt.b, a, b, tt.same)
			}
		})
	}
	if got := VariantKey(nil, header("Foo", "1")); got != "" {
		t.Errorf("VariantKey without names = %q, want none", got)
	}
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
		a, b := selection(names, two), selection(names, one)
		if (VariantKey(names, two) == VariantKey(names, one)) != bytes.Equal(a, b) {
			t.Fatal("the key is not the hash of the selection")
		}
		if c := selection(names, header()); bytes.Equal(a, c) || bytes.Equal(b, c) {
			t.Fatalf("%q: present is the same as absent", names)
		}
		// Where the variants are the same, the characters are, but for those
		// that separate, for case, order and repetition.
		if used(v1+v2) != used(v3) && bytes.Equal(a, b) {
			t.Fatalf("%q: %q and %q are one variant with %q", names, v1, v2, v3)
		}
	})
}

// used returns the set of characters in s that separate nothing.
func used(s string) (set [256]bool) {
	for _, c := range []byte(lowerASCII(s)) {
		set[c] = c != ' ' && c != '\t' && c != ','
	}
	return set
}
