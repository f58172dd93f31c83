package httpcache

import (
	"strings"
	"testing"
)

func TestStatus_LongKey(t *testing.T) {
	for length, told := range map[int]bool{1 << 10: true, 1<<10 + 1: false} {
		key := strings.Repeat("k", length)
		if got := (Status{Fwd: FwdURIMiss, Key: key}).String(); strings.Contains(got, key) != told {
			t.Errorf("a key of %d bytes is told: %v", length, !told)
		}
	}
}
