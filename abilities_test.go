package bellwether_test

import (
	"context"

	"github.com/bellwether-go/bellwether/driver"
)

// This file is what fakes of engines can do beyond the contracts of Store, Locker and Lease.
//
// A cache takes other ways with a store or a locker that can do more. So a fake has the
// optional interfaces that its test names, and no other: each is a function type, and a struct
// of a store and of some of these is a store that can do as much.

type (
	getsMany func(ctx context.Context, keys []string, each func(int, driver.Entry, error))
	notifies func(ctx context.Context, f func(driver.Notice))
	fences   func(ctx context.Context, key string, epoch uint64) (bool, error)
	touches  func(ctx context.Context, key string, of uint64, e driver.Entry) error
	watches  func(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error)
	loses    func() <-chan struct{}
)

func (f getsMany) GetMany(ctx context.Context, keys []string, each func(int, driver.Entry, error)) {
	f(ctx, keys, each)
}

func (f notifies) Notify(ctx context.Context, hear func(driver.Notice)) { f(ctx, hear) }

func (f fences) Fenced(ctx context.Context, key string, epoch uint64) (bool, error) {
	return f(ctx, key, epoch)
}

func (f touches) Touch(ctx context.Context, key string, of uint64, e driver.Entry) error {
	return f(ctx, key, of, e)
}

func (f watches) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	return f(ctx, held)
}

func (f loses) Lost() <-chan struct{} { return f() }

// quiet is a store without optional interfaces: it tells nothing, and cannot be asked.
type quiet struct{ driver.Store }

// askable is a store that tells nothing, and can be asked whether an epoch is fenced off.
func askable(s driver.Store) driver.Store {
	return struct {
		quiet
		driver.Fencer
	}{quiet{s}, s.(driver.Fencer)}
}

// polling is a locker that pushes nothing.
func polling(l driver.Locker) driver.Locker { return struct{ driver.Locker }{l} }

// batchesBy is a store that answers for many keys as getMany does.
func batchesBy(store driver.Store, getMany getsMany) driver.Store {
	return struct {
		driver.Store
		getsMany
	}{store, getMany}
}

// notifiesBy is a store that tells what notify does.
func notifiesBy(store driver.Store, notify notifies) driver.Store {
	return struct {
		driver.Store
		notifies
	}{store, notify}
}
