package httpcache

import (
	"strings"
	"testing"
)

// Proxies bound a response's header, nginx by 4 or 8 KiB, and answer 502 to a longer one.
func TestStatus_LongKey(t *testing.T) {
	for length, told := range map[int]bool{1 << 10: true, 1<<10 + 1: false} {
		key := strings.Repeat("k", length)
		if got := (Status{Fwd: FwdURIMiss, Key: key}).String(); strings.Contains(got, key) != told {
			t.Errorf("a key of %d bytes is told: %v", length, !told)
		}
	}
}
