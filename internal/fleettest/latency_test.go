//go:build latency

package fleettest

import (
	"slices"
	"testing"
)

// TestLatency_RedisHerd limits redisHerd's p99. `make latency` runs it: other work shows in the result.
func TestLatency_RedisHerd(t *testing.T) {
	if got := redisHerd(t, Redis, 40); got > 5 {
		t.Errorf("p99 is %.2f ms beyond load and fan-out, want at most 5", got)
	}
}

func TestLatency_RedisFleetHerd(t *testing.T) {
	if got := redisHerd(t, RedisFleet, 30); got > 5 {
		t.Errorf("p99 is %.2f ms beyond load and fan-out, want at most 5", got)
	}
}

// TestLatency_WakeLag limits the 99th percentile of the lag in TestClaim_WakeLag.
func TestLatency_WakeLag(t *testing.T) {
	for _, kind := range slices.Concat(fleets, electors) {
		t.Run(kind.Name, func(t *testing.T) {
			if _, p99 := WakeLag(t, kind); p99 > wakeLimit[kind.Name] {
				t.Errorf("p99 of %v, want at most %v", p99, wakeLimit[kind.Name])
			}
		})
	}
}
