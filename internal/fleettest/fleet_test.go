package fleettest

import (
	"slices"
	"testing"
)

var (
	fleets = []Kind{Redis, Memcached}
	// Of engines that are several servers: what they are put through is in the
	// test files of their own.
	several = []Kind{RedisCluster, Memcacheds}
)

func TestMain(m *testing.M) { Main(m, slices.Concat(fleets, several)...) }

func TestFleet_ColdKey(t *testing.T)      { Each(t, fleets, ColdKey) }
func TestFleet_HolderKilled(t *testing.T) { Each(t, fleets, HolderKilled) }
func TestFleet_HolderKilledAtAKnownBuild(t *testing.T) {
	Each(t, fleets, HolderKilledAtAKnownBuild)
}
func TestFleet_HolderPausedPastItsLease(t *testing.T) { Each(t, fleets, HolderPausedPastItsLease) }
func TestFleet_Waiters(t *testing.T)                  { Each(t, fleets, Waiters) }
func TestFleet_Hits(t *testing.T)                     { Each(t, fleets, Hits) }
func TestFleet_InvalidateDuringRebuild(t *testing.T)  { Each(t, fleets, InvalidateDuringRebuild) }
func TestFleet_EngineKilledUnderLoad(t *testing.T)    { Each(t, fleets, EngineKilledUnderLoad) }
func TestFleet_BlackHole(t *testing.T)                { Each(t, fleets, BlackHole) }
func TestFleet_TenProcesses(t *testing.T)             { Each(t, fleets, TenProcesses) }
