//go:build latency

package fleettest

import (
	"slices"
	"testing"
)

// TestLatency_RedisHerd holds the herd's p99 to 5 ms beyond its load and the
// fan-out. It needs a machine that does nothing else: with 8 processes on 2
// cores each millisecond that another takes is in the result. So it is no part
// of `make test`; `make latency` runs it.
func TestLatency_RedisHerd(t *testing.T) {
	if got := redisHerd(t, Redis, 40); got > 5 {
		t.Errorf("p99 is %.2f ms beyond load and fan-out, want at most 5", got)
	}
}

// TestLatency_RedisFleetHerd holds that of Redis as one engine.
func TestLatency_RedisFleetHerd(t *testing.T) {
	if got := redisHerd(t, RedisFleet, 30); got > 5 {
		t.Errorf("p99 is %.2f ms beyond load and fan-out, want at most 5", got)
	}
}

// TestLatency_WakeLag holds the 99th percentile of what TestClaim_WakeLag holds
// the median of.
func TestLatency_WakeLag(t *testing.T) {
	for _, kind := range slices.Concat(fleets, electors) {
		t.Run(kind.Name, func(t *testing.T) {
			if _, p99 := WakeLag(t, kind); p99 > wakeLimit[kind.Name] {
				t.Errorf("p99 of %v, want at most %v", p99, wakeLimit[kind.Name])
			}
		})
	}
}
