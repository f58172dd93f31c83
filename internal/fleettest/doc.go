// Package fleettest holds the tests that need a fleet: real processes around
// real engines, some of which are killed, paused or cut off. Its cases are for
// any pair of a store and a locker; the tests of this package run them for
// Redis and memcached, and those of a locker with a module of its own do it for
// that:
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
