package bellwether

import (
	"context"
	"errors"
	"fmt"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"golang.org/x/sync/errgroup"
)

// This file is Ping: at start-up it asks the engines for each request of a rebuild.

// ping asks the store and the locker at one time, and returns the requests without an answer.
func (e *engine) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.EngineTimeout)
	defer cancel()
	var reads, writes, elects error
	var all errgroup.Group
	if e.Store != nil {
		reads, writes = ErrGoexit, ErrGoexit // unless the adapter returns
		all.Go(func() error { reads = e.pingBy(ctx, e.store, "reading from the store", e.pingReads); return nil })
		all.Go(func() error { writes = e.pingBy(ctx, e.writes, "writing to the store", e.pingWrites); return nil })
	}
	if e.Locker != nil {
		elects = ErrGoexit
		all.Go(func() error { elects = e.pingBy(ctx, e.locker, "electing by the locker", e.pingLocks); return nil })
	}
	all.Wait()
	return errors.Join(reads, writes, elects)
}

// pingBy makes a call, also during the engine's outage. An error of the engine's contract is an answer.
func (e *engine) pingBy(ctx context.Context, g *gate.Gate, doing string, call func(context.Context) error) error {
	if err := gate.AskAnyway(ctx, g, probeKey, e.EngineTimeout, call); errors.Is(err, ErrUnavailable) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

func (e *engine) pingReads(ctx context.Context) error {
	_, err := e.Store.Get(ctx, e.ownName(probeKey))
	return err
}

func (e *engine) pingWrites(ctx context.Context) error {
	_, err := driver.Set(ctx, e.Store, e.ownName(probeKey), probeEntry)
	return err
}

func (e *engine) pingLocks(ctx context.Context) error {
	lease, err := e.Locker.TryAcquire(ctx, e.ownName(probeKey), e.EngineTimeout)
	if err != nil {
		return err
	}
	return lease.Release(ctx)
}
