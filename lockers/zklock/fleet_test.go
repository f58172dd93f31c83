package zklock_test

import (
	"testing"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fleettest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/zklock"
)

var fleets = []fleettest.Kind{
	fleettest.Memcached.ElectedBy("zookeeper", testserver.ZooKeeper, open),
	fleettest.Redis.ElectedBy("zookeeper", testserver.ZooKeeper, open),
}

// open makes a worker's locker. Its session outlives the leases, so a dead holder is replaced at
// the end of its lease.
func open(addr string) (driver.Locker, error) { return zklock.New(addr), nil }

func TestMain(m *testing.M) { fleettest.Main(m, fleets...) }

func TestFleet(t *testing.T) { fleettest.Elected(t, fleets) }
