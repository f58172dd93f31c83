package etcdlock_test

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fleettest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/etcdlock"
)

var fleets = []fleettest.Kind{
	fleettest.Memcached.ElectedBy("etcd", testserver.Etcd, open),
	fleettest.Redis.ElectedBy("etcd", testserver.Etcd, open),
}

func open(addr string) (driver.Locker, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{addr}, Logger: zap.NewNop(),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: time.Second,
	})
	if err != nil {
		return nil, err
	}
	return etcdlock.New(client), nil
}

func TestMain(m *testing.M) { fleettest.Main(m, fleets...) }

func TestFleet(t *testing.T) { fleettest.Elected(t, fleets) }
