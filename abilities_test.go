package bellwether_test

import (
	"context"

	"github.com/bellwether-go/bellwether/driver"
)

// This file has the optional interfaces of the fakes of engines. A fake is a struct of a store or a
// locker and the function types that its test names, so it implements exactly these interfaces.

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

// quiet is a store without optional interfaces.
type quiet struct{ driver.Store }

func askable(s driver.Store) driver.Store {
	return struct {
		quiet
		driver.Fencer
	}{quiet{s}, s.(driver.Fencer)}
}

func polling(l driver.Locker) driver.Locker { return struct{ driver.Locker }{l} }

func batchesBy(store driver.Store, getMany getsMany) driver.Store {
	return struct {
		driver.Store
		getsMany
	}{store, getMany}
}

func notifiesBy(store driver.Store, notify notifies) driver.Store {
	return struct {
		driver.Store
		notifies
	}{store, notify}
}
