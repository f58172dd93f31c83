package httpcache

import (
	"net/http"
	"testing"
)

func TestRetargeting(t *testing.T) {
	key := func(h http.Header) string { return VariantKey([]string{RetargetingFields}, h) }
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
		{"RFC 7239 4: a client before a host", header("Forwarded", `for=192.0.2.1`, "X-Host", "a"), header("Forwarded", `for=192.0.2.1`), false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := key(tt.a) == key(tt.b); got != tt.same {
				t.Errorf("%v and %v are one variant: %v, want %v", tt.a, tt.b, got, tt.same)
			}
			if got := Retargeted(tt.a); got != tt.aChanges {
				t.Errorf("Retargeted(%v) = %v, want %v", tt.a, got, tt.aChanges)
			}
		})
	}
	if _, ok := VaryNames(header("Vary", RetargetingFields)); ok {
		t.Error("a Vary can name what stands for these fields")
	}
}

func TestVaryNames_TooMany(t *testing.T) {
	long := header()
	for range maxVary/5 + 1 {
		long.Add("Vary", "Abcde")
	}
	if names, ok := VaryNames(long); ok {
		t.Errorf("VaryNames of %d lines = %d names, want it refused", len(long["Vary"]), len(names))
	}
}
