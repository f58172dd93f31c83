package fleettest

import (
	"slices"
	"testing"
)

var (
	fleets = []Kind{Redis, Memcached}
	// Engines that are store and locker at once.
	electors = []Kind{RedisFleet}
	// Engines of several servers; they have their own test files.
	several = []Kind{RedisSentinel, RedisCluster, Memcacheds}
	// Engines with another setup: no test kills their server, which would lose its user.
	other = []Kind{RedisDatabase}
)

func TestMain(m *testing.M) { Main(m, slices.Concat(fleets, electors, several, other)...) }

func TestFleet_ColdKey(t *testing.T)      { Each(t, fleets, ColdKey) }
func TestFleet_HolderKilled(t *testing.T) { Each(t, fleets, HolderKilled) }
func TestFleet_HolderKilledAtAKnownBuild(t *testing.T) {
	Each(t, fleets, HolderKilledAtAKnownBuild)
}
func TestFleet_HolderPausedPastItsLease(t *testing.T) { Each(t, fleets, HolderPausedPastItsLease) }
func TestFleet_Waiters(t *testing.T)                  { Each(t, fleets, Waiters) }
func TestFleet_OtherDatabase(t *testing.T) {
	Each(t, other, func(t *testing.T, kind Kind) {
		t.Run("ColdKey", func(t *testing.T) { ColdKey(t, kind) })
		t.Run("HolderKilled", func(t *testing.T) { HolderKilled(t, kind) })
		t.Run("Waiters", func(t *testing.T) { Waiters(t, kind) })
		t.Run("InvalidateDuringRebuild", func(t *testing.T) { InvalidateDuringRebuild(t, kind) })
	})
}

func TestFleet_OneEngine(t *testing.T) {
	Each(t, electors, func(t *testing.T, kind Kind) {
		t.Run("ColdKey", func(t *testing.T) { ColdKey(t, kind) })
		t.Run("HolderKilled", func(t *testing.T) { HolderKilled(t, kind) })
		t.Run("HolderKilledAtAKnownBuild", func(t *testing.T) { HolderKilledAtAKnownBuild(t, kind) })
		t.Run("HolderPausedPastItsLease", func(t *testing.T) { HolderPausedPastItsLease(t, kind) })
		t.Run("Waiters", func(t *testing.T) { Waiters(t, kind) })
		t.Run("Hits", func(t *testing.T) { Hits(t, kind) })
		t.Run("InvalidateDuringRebuild", func(t *testing.T) { InvalidateDuringRebuild(t, kind) })
		t.Run("EngineKilledUnderLoad", func(t *testing.T) { EngineKilledUnderLoad(t, kind) })
		t.Run("BlackHole", func(t *testing.T) { BlackHole(t, kind) })
	})
}

func TestFleet_Hits(t *testing.T)                    { Each(t, fleets, Hits) }
func TestFleet_InvalidateDuringRebuild(t *testing.T) { Each(t, fleets, InvalidateDuringRebuild) }
func TestFleet_EngineKilledUnderLoad(t *testing.T)   { Each(t, fleets, EngineKilledUnderLoad) }
func TestFleet_BlackHole(t *testing.T)               { Each(t, fleets, BlackHole) }
func TestFleet_TenProcesses(t *testing.T)            { Each(t, fleets, TenProcesses) }
