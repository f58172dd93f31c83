package httpcache

import (
	"net/http"
	"slices"
	"testing"
)

func TestRetargeting(t *testing.T) {
	key := func(h http.Header) string { return VariantKey([]string{RetargetingFields}, h, Options{}) }
	for _, tt := range []struct {
		name     string
		a, b     http.Header
		same     bool
		aChanges bool // whether a chooses a target at all
	}{
		{"nothing", header(), header("Accept", "x", "X-Forwarded-For", "192.0.2.1"), true, false},
		{"a host", header("X-Forwarded-Host", "a"), header("X-Forwarded-Host", "b"), false, true},
		{"a host or none", header("X-Forwarded-Host", "a"), header(), false, true},
		{"an empty one or none", header("X-Forwarded-Host", ""), header(), false, true},
		{"two lines or one", header("X-Host", "a", "X-Host", "b"), header("X-Host", "a, b"), false, true},
		{"a value under another name", header("X-Original-Url", "a"), header("X-Rewrite-Url", "a"), false, true},
		{"RFC 7239 4: of the client only", header("Forwarded", `for=192.0.2.1;by=_x, For="[::1]"`), header(), true, false},
		{"RFC 7239 4: other clients, one host", header("Forwarded", `for=192.0.2.1;host=a`), header("Forwarded", `For=192.0.2.2; Host=A`), true, true},
		{"RFC 7239 4: other hosts", header("Forwarded", `for=192.0.2.1;host=a`), header("Forwarded", `for=192.0.2.1;host=b`), false, true},
		{"RFC 7239 6: a host in a client's name", header("Forwarded", "for=192.0.2.1 host=a"), header("Forwarded", "for=192.0.2.1 host=b"), false, true},
		{"RFC 7239 4: a client before a host", header("Forwarded", `for=192.0.2.1`, "X-Host", "a"), header("Forwarded", `for=192.0.2.1`), false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := key(tt.a) == key(tt.b); got != tt.same {
				t.Errorf("%v and %v are one variant: %v, want %v", tt.a, tt.b, got, tt.same)
			}
			if got := new(Options).Retargeted(tt.a); got != tt.aChanges {
				t.Errorf("Retargeted(%v) = %v, want %v", tt.a, got, tt.aChanges)
			}
		})
	}
	for _, name := range retargetingFields {
		if name != http.CanonicalHeaderKey(name) {
			t.Errorf("%s is not in canonical form", name)
		}
		if !new(Options).Retargeted(header("Accept", "x", name, "host=a")) {
			t.Errorf("%s is not seen", name)
		}
	}
	if _, ok := VaryNames(header("Vary", RetargetingFields)); ok {
		t.Error("a Vary can name what stands for these fields")
	}
}

// FuzzRetargeting: requests for different targets never share a variant, in any spelling of the fields.
func FuzzRetargeting(f *testing.F) {
	f.Add("X-Forwarded-Host", "a", "X-Forwarded-Host", "b")
	f.Add("Forwarded", "for=x;host=a", "Forwarded", `for="y;host=a"`)
	f.Add("x-host", "", "Accept", "a")
	f.Add("Forwarded", "host=a, host=b", "Forwarded", "host=a;host=b")
	f.Add("Forwarded", "for=_;HOST=a", "Forwarded", "\xff")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string) {
		a, b := header(name1, value1), header(name2, value2)
		names := []string{RetargetingFields}
		same := VariantKey(names, a, Options{}) == VariantKey(names, b, Options{})
		if same != slices.Equal(knownRetargeting.values(a), knownRetargeting.values(b)) {
			t.Fatalf("%v and %v: one variant %v, by the fields %v", a, b, same, !same)
		}
		if new(Options).Retargeted(a) != (VariantKey(names, a, Options{}) != VariantKey(names, header(), Options{})) {
			t.Fatalf("%v: Retargeted is %v", a, new(Options).Retargeted(a))
		}
		name := http.CanonicalHeaderKey(name1)
		if slices.Contains(retargetingFields, name) && name != "Forwarded" {
			if !new(Options).Retargeted(a) || same && (name != http.CanonicalHeaderKey(name2) || value1 != value2) {
				t.Fatalf("%v is taken for %v", a, b)
			}
		}
		c, d := header("Forwarded", value1, "Forwarded", "for=_x;host=mine"), header("Forwarded", value1)
		if VariantKey(names, c, Options{}) == VariantKey(names, d, Options{}) {
			t.Fatalf("Forwarded %q hides a host", value1)
		}
	})
}

func TestRetargeting_MoreFields(t *testing.T) {
	opt := Options{Retargeting: NewRetargeting("x-my-host", "Q")}
	for name, want := range map[string]bool{"X-My-Host": true, "Q": true, "X-Forwarded-Host": true, "X-Mine": false} {
		a, b := header("Accept", "x", name, "a"), header(name, "b")
		names := []string{RetargetingFields}
		if got := opt.Retargeted(a); got != want || (VariantKey(names, a, opt) != VariantKey(names, b, opt)) != want {
			t.Errorf("%s: Retargeted is %v, want %v", name, got, want)
		}
	}
	h := header("X_My-Host", "a", "X_Mine", "a")
	if opt.RemoveAliases(h); len(h) != 1 || h["X_mine"] == nil {
		t.Errorf("without aliases of the fields: %v", h)
	}
}
