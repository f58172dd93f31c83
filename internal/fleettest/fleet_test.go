package fleettest

import "testing"

var fleets = []Kind{Redis, Memcached}

func TestMain(m *testing.M) { Main(m, fleets...) }

func TestFleet_ColdKey(t *testing.T)                  { Each(t, fleets, ColdKey) }
func TestFleet_HolderKilled(t *testing.T)             { Each(t, fleets, HolderKilled) }
func TestFleet_HolderPausedPastItsLease(t *testing.T) { Each(t, fleets, HolderPausedPastItsLease) }
func TestFleet_Waiters(t *testing.T)                  { Each(t, fleets, Waiters) }
func TestFleet_InvalidateDuringRebuild(t *testing.T)  { Each(t, fleets, InvalidateDuringRebuild) }
func TestFleet_EngineKilledUnderLoad(t *testing.T)    { Each(t, fleets, EngineKilledUnderLoad) }
func TestFleet_BlackHole(t *testing.T)                { Each(t, fleets, BlackHole) }
func TestFleet_TenProcesses(t *testing.T)             { Each(t, fleets, TenProcesses) }
