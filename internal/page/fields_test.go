package page

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestFields(t *testing.T) {
	for name, h := range map[string]http.Header{
		"no map":         nil,
		"none":           {},
		"one":            {"Etag": {`"e"`}},
		"no value":       {"Content-Type": nil, "Empty": {}, "Date": {""}},
		"several values": {"Link": {"<a>", "<b>", "<c>"}, "Set-Cookie": {"a", "", "b"}, "Date": {"now"}},
		"long":           {"A": {strings.Repeat("a", 511)}, "B": {strings.Repeat("b", 1<<16), strings.Repeat("c", 200)}},
		"any bytes":      {"X-\xff\x00": {"\xff\xfe\r\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := fieldsOf(h)
			if got := f.header(); !maps.EqualFunc(got, h, slices.Equal) {
				t.Errorf("got %q, want %q", got, h)
			}
			for field, want := range h {
				if got := f.values(field); !slices.Equal(got, want) {
					t.Errorf("%s: got %q, want %q", field, got, want)
				}
			}
			if got := f.values("Not-There"); got != nil {
				t.Errorf("got %q of a field that is not there", got)
			}
		})
	}
}

// TestFields_AppendToOne holds that an append to one field's values does not write into another's.
func TestFields_AppendToOne(t *testing.T) {
	h := fieldsOf(http.Header{"A": {"a"}, "B": {"b"}, "C": nil, "D": {"d"}}).header()
	for name, values := range h {
		h[name] = append(values, "more of "+name)
	}
	for name, values := range h {
		want := []string{strings.ToLower(name), "more of " + name}
		if name == "C" {
			want = want[1:]
		}
		if !slices.Equal(values, want) {
			t.Errorf("%s: got %q, want %q", name, values, want)
		}
	}
}
