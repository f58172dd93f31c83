// Package driver has the contracts between Bellwether and the engines of a fleet.
//
// A [Store] keeps and fences entries. A [Locker] elects. Only authors of adapters need the package.
// [storetest] and [lockertest] test an adapter against its contract.
//
// Bellwether finds the optional interfaces by assertion: [BatchGetter], [Notifier], [Fencer] and
// [Toucher] of a Store, [Watcher] of a Locker, [LossNotifier] and [Tokener] of a [Lease], and
// [Elector] of an engine in both roles.
//
// [storetest]: https://pkg.go.dev/github.com/bellwether-go/bellwether/stores/storetest
// [lockertest]: https://pkg.go.dev/github.com/bellwether-go/bellwether/lockers/lockertest
package driver
