package zklock_test

import (
	"testing"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/internal/fleettest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/zklock"
)

// The tests here run real processes that share a store on another engine and
// are elected by ZooKeeper.

var fleets = []fleettest.Kind{
	fleettest.Memcached.ElectedBy("zookeeper", testserver.ZooKeeper, open),
	fleettest.Redis.ElectedBy("zookeeper", testserver.ZooKeeper, open),
}

// open makes a worker's locker. Its session outlives the leases, so that they
// are what a dead holder is replaced by.
func open(addr string) (bellwether.Locker, error) { return zklock.New(addr), nil }

func TestMain(m *testing.M) { fleettest.Main(m, fleets...) }

func TestFleet_ColdKey(t *testing.T)      { fleettest.Each(t, fleets, fleettest.ColdKey) }
func TestFleet_HolderKilled(t *testing.T) { fleettest.Each(t, fleets, fleettest.HolderKilled) }
func TestFleet_Waiters(t *testing.T)      { fleettest.Each(t, fleets, fleettest.Waiters) }

func TestFleet_HolderKilledAtAKnownBuild(t *testing.T) {
	fleettest.Each(t, fleets, fleettest.HolderKilledAtAKnownBuild)
}

// One store is enough for what has nothing to do with the store.
func TestFleet_HolderPausedPastItsLease(t *testing.T) {
	fleettest.Each(t, fleets[1:], fleettest.HolderPausedPastItsLease)
}

func TestFleet_ZooKeeperKilledUnderLoad(t *testing.T) {
	fleettest.Each(t, fleets[1:], fleettest.EngineKilledUnderLoad)
}

func TestFleet_ZooKeeperIsABlackHole(t *testing.T) {
	fleettest.Each(t, fleets[1:], fleettest.BlackHole)
}
