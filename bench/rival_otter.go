package main

import (
	"context"

	"github.com/maypok86/otter/v2"
)

// otter's loading cache. With a stale window it refreshes in the background after the TTL.

var otterInProcess = strategy{
	name: "otter", traits: staleServes,
	caveat: "in-process: one load for each process",
	open: func(_ *clients, p policy, load loader) (cache, error) {
		o := &otter.Options[string, string]{
			MaximumSize:      p.Near,
			ExpiryCalculator: otter.ExpiryWriting[string, string](p.TTL + p.Stale),
			Logger:           &otter.NoopLogger{}, // it logs every failed refresh
		}
		if o.MaximumSize == 0 {
			o.MaximumSize = 100_000
		}
		if p.Stale > 0 {
			o.RefreshCalculator = otter.RefreshWriting[string, string](p.TTL)
		}
		c, err := otter.New(o)
		if err != nil {
			return nil, err
		}
		from := otter.LoaderFunc[string, string](load)
		return closing{
			func(ctx context.Context, key string) (string, error) { return c.Get(ctx, key, from) },
			func() { c.StopAllGoroutines() },
		}, nil
	},
}
