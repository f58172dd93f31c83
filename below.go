package bellwether

import (
	"context"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/chain"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/observers"
	"github.com/bellwether-go/bellwether/internal/page"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
	"github.com/bellwether-go/bellwether/observe"
)

// This file adapts the engine and its parts to internal/page's interfaces. Their exported methods are of these
// interfaces. pageBinder goes the other way.

type below struct{ *engine }

var _ page.Cache = below{}

func (b below) Now() instant { return b.clock.Now() }

func (b below) Near(key string) (*page.Item, instant) { return b.near.Get(key) }

func (b below) Remember(key string, res *page.Response, w items.Windows) {
	it := &page.Item{Lifetime: items.NewLifetime(b.Now(), w), Kind: driver.KindValue, Value: res, TrustedUntil: forever}
	it.Weigh(key, b.size)
	b.near.Put(key, it, 1)
}

func (b below) Hit(key string, w page.Want) (it *page.Item, early, ok bool) { return b.hit(key, &w) }

func (b below) Wait(w *page.Waiting, by page.Binder) {
	c := b.waiter(w.Ctx, w.Key, w.Stale)
	c.want, c.budget, c.tallied = w.Want, w.Budget, w.Want.Counted
	if c.tallied { // the request has waited before
		c.began = w.Began
	}
	c.wait(pageBinder{by})
	w.Began, w.Want.Counted = c.began, c.tallied
	w.Budget, w.Early, w.Err = c.budget, c.dueEarly(), c.err
	w.Answer = page.Answer{Item: c.answer.item, Flown: c.answer.flown, Collapsed: c.collapsed}
	if c.answer.live != nil {
		w.Answer.Live = c.answer.live
	}
	if b.Watched() {
		w.Served = c.observed()
	}
}

func (b below) Refresh(ctx context.Context, key string, it *page.Item, client string, by page.Binder) {
	b.refresh(ctx, key, it, pageBinder{by}, client)
}

type pageBinder struct{ page.Binder }

func (b pageBinder) bind() loader {
	load := b.Bind()
	return func(ctx context.Context, a *attempt) (items.Product, error) {
		return load(ctx, page.Attempt{Present: a.present, Position: a.position, Excluded: a.excluded, Flight: a})
	}
}

func (b below) Within(request, load context.Context, own any) context.Context {
	return chain.With(observers.Within(request, load, own), load)
}

func (b below) Access(key string, budget *gate.Budget) page.Access {
	return b.access(key, budget)
}

func (a *access) Draft(ctx context.Context) page.Draft {
	d, _ := a.draft(ctx)
	return d
}

func (d *draft) Keep(res *page.Response, w items.Windows) {
	d.keep(d.engine.open, res, w, d.engine.clock.Now())
}

func (b below) Put(ctx context.Context, key string, res *page.Response, w items.Windows, position uint64, over *page.Item) {
	b.put(ctx, key, res, w, position, over)
}

func (b below) Replace(key string, over *page.Item, res *page.Response, w items.Windows, done func()) {
	b.behind(func() {
		defer done()
		b.put(b.open, key, res, w, b.sweeps.Log().Position(), over)
	})
}

func (b below) LogKeepsLines() bool {
	return b.Store == nil || b.Locker != nil && b.locker.Sound(sweeplog.Key)
}

func (b below) SweptSince(then instant) int { return b.sweeps.Log().HeardSince(then) }

func (b below) CountHit(ctx context.Context, key string) {
	b.count.hits.add()
	if b.observers.Hits() {
		b.observers.Hit(ctx, key, observe.WayHit)
	}
}

func (b below) CountStale() { b.count.stale.Add(1) }

func (b below) Watched() bool { return b.observers.Hits() || b.observers.Serves() }

func (b below) Tell(ctx context.Context, s observe.Serve) { b.observers.Serve(ctx, s) }

func (b below) OnError(key string, err error) { b.engine.OnError(key, err) }
