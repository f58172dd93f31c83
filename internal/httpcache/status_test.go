package httpcache

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
)

func TestStatus_LongKey(t *testing.T) {
	for length, told := range map[int]bool{1 << 10: true, 1<<10 + 1: false} {
		key := strings.Repeat("k", length)
		if got := (Status{Fwd: FwdURIMiss, Key: key}).String(); strings.Contains(got, key) != told {
			t.Errorf("a key of %d bytes is told: %v", length, !told)
		}
	}
}

func TestStatus_Parses(t *testing.T) {
	for c := range rune(256) {
		key, detail := "a"+string(c)+"b", string(c)
		list, err := httpsfv.UnmarshalList([]string{Status{Fwd: FwdMiss, FwdStatus: 304, TTL: set(-s), Stored: true, Key: key, Detail: detail}.String()})
		if err != nil || len(list) != 1 {
			t.Fatalf("%q: %v, %v", key, list, err)
		}
		said := map[string]string{}
		params := list[0].(httpsfv.Item).Params
		for _, name := range params.Names() {
			v, _ := params.Get(name)
			said[name] = fmt.Sprint(v)
		}
		want := map[string]string{"fwd": "miss", "fwd-status": "304", "ttl": "-1", "stored": "true"}
		if printable(key) {
			want["key"], want["detail"] = key, detail
		}
		if !maps.Equal(said, want) {
			t.Errorf("%q: says %q, want %q", key, said, want)
		}
	}
}

func TestStatus(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status Status
		want   string
	}{
		{"RFC 9211 2.1: hit", Status{Hit: true, TTL: set(376 * s), Fwd: FwdMiss, Stored: true, Collapsed: true}, "Bellwether;hit;ttl=376"},
		{"RFC 9211 2.2: fwd", Status{Fwd: FwdURIMiss, Stored: true, Collapsed: true}, "Bellwether;fwd=uri-miss;stored;collapsed"},
		{"RFC 9211 2.3: fwd-status", Status{Fwd: FwdStale, FwdStatus: 304}, "Bellwether;fwd=stale;fwd-status=304"},
		{"RFC 9211 2.4: negative ttl, rounded down", Status{Hit: true, TTL: set(-1500e6)}, "Bellwether;hit;ttl=-2"},
		{"RFC 9211 2.4: ttl, rounded down", Status{Hit: true, TTL: set(1500e6)}, "Bellwether;hit;ttl=1"},
		{"RFC 9211 2.7: key", Status{Hit: true, Key: `h/~a"b\`}, `Bellwether;hit;key="h/~a\"b\\"`},
		{"RFC 9211 2.7: key not ASCII", Status{Hit: true, Key: "h/ä"}, "Bellwether;hit"},
		{"RFC 9211 2.8: detail", Status{Fwd: FwdBypass, Detail: "set-cookie"}, "Bellwether;fwd=bypass;detail=set-cookie"},
		{"RFC 9211 2.8: detail as a string", Status{Fwd: FwdBypass, Detail: "too large"}, `Bellwether;fwd=bypass;detail="too large"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.status.String(); got != tt.want {
				t.Errorf("String = %s, want %s", got, tt.want)
			}
		})
	}
	h := header("Cache-Status", "Origin;hit")
	Status{Fwd: FwdMiss}.AppendTo(h)
	if got, want := h.Values("Cache-Status"), []string{"Origin;hit", "Bellwether;fwd=miss"}; !slices.Equal(got, want) {
		t.Errorf("Cache-Status = %q, want %q", got, want)
	}
}
