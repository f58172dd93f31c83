// Package driver has the contracts between Bellwether and the engines that coordinate a fleet:
// a [Store] keeps and fences, a [Locker] elects. Those who write an adapter for an engine need
// it, and nobody else; [storetest] and [lockertest] hold an adapter to it.
//
// The optional interfaces are found by assertion: [BatchGetter], [Notifier], [Fencer] and [Toucher]
// of a Store, [Watcher] of a Locker, [LossNotifier] and [Tokener] of a [Lease], and [Elector] of
// an engine that is both.
//
// [storetest]: https://pkg.go.dev/github.com/bellwether-go/bellwether/stores/storetest
// [lockertest]: https://pkg.go.dev/github.com/bellwether-go/bellwether/lockers/lockertest
package driver
