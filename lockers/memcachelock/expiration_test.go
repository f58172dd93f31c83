package memcachelock

import (
	"testing"
	"time"
)

func TestExpiration_OutlivesTheLease(t *testing.T) {
	for _, c := range []struct {
		ttl  time.Duration
		want int32
	}{
		{1, 6},
		{50 * time.Millisecond, 6},
		{time.Second, 6},
		{time.Second + 1, 7},
		{1500 * time.Millisecond, 7},
		{maxTTL, 30 * 24 * 60 * 60},
	} {
		if got := expiration(c.ttl); got != c.want {
			t.Errorf("expiration(%v) = %d, want %d", c.ttl, got, c.want)
		}
	}
}
