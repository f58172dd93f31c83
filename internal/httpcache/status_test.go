package httpcache

import (
	"strings"
	"testing"
)

// A proxy in front bounds a response's header, nginx by 4 or 8 KiB, and answers 502
// to more. The key in it is for people.
func TestStatus_LongKey(t *testing.T) {
	for length, told := range map[int]bool{1 << 10: true, 1<<10 + 1: false} {
		key := strings.Repeat("k", length)
		if got := (Status{Fwd: FwdURIMiss, Key: key}).String(); strings.Contains(got, key) != told {
			t.Errorf("a key of %d bytes is told: %v", length, !told)
		}
	}
}
