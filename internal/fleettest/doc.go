// Package fleettest tests whole fleets: real processes and engines, some of them killed, paused or cut off.
//
// Its cases work for any pair of a store and a locker. The tests of this package run them for Redis
// and memcached. A locker with its own module runs them in its own tests:
//
//	var fleets = []fleettest.Kind{
//		fleettest.Memcached.ElectedBy("etcd", testserver.Etcd, open),
//		fleettest.Redis.ElectedBy("etcd", testserver.Etcd, open),
//	}
//
//	func TestMain(m *testing.M) { fleettest.Main(m, fleets...) }
//
//	func TestFleet_ColdKey(t *testing.T) { fleettest.Each(t, fleets, fleettest.ColdKey) }
package fleettest
