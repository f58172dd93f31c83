package bellwether

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is GetMany: many keys asked for in one call. Each key has a flight of
// its own, with its own lease, epoch and failures, that other callers join and
// that waits for no other. What the flights do together is in member.go.

// A BatchError says which keys of a batch failed, and how. GetMany returns it,
// and a batch load may.
type BatchError struct {
	// Errors has the error of each key that failed.
	Errors map[string]error
}

// Error tells of one key; there may be thousands.
func (e *BatchError) Error() string {
	if len(e.Errors) == 0 {
		return "bellwether: no key failed"
	}
	first := slices.Min(slices.Collect(maps.Keys(e.Errors)))
	if len(e.Errors) == 1 {
		return fmt.Sprintf("bellwether: key %q: %v", first, e.Errors[first])
	}
	return fmt.Sprintf("bellwether: %d keys failed, the first is %q: %v", len(e.Errors), first, e.Errors[first])
}

// Unwrap returns the errors in the order of their keys.
func (e *BatchError) Unwrap() []error {
	errs := make([]error, 0, len(e.Errors))
	for _, key := range slices.Sorted(maps.Keys(e.Errors)) {
		errs = append(errs, e.Errors[key])
	}
	return errs
}

// NewBatch returns a Cache of what load returns for many keys at a time: what
// [Cache.GetMany] has to load, in one call as a rule, and what [Cache.Get] has,
// one key in a call. Being the only one, it is the same for all callers.
//
// The map has the values. What is not in it does not exist, and is remembered as
// [ErrNotFound] is, if the error is nil or a [*BatchError]; keys that a
// BatchError names have failed. With any other error all keys have failed that
// are not in the map. A key of the map that was not asked for is left aside.
//
// Its context is that of a load, see [New], and ends when nobody has any more use
// for any of its keys: RebuildTimeout counts for the whole, Invalidate of one key
// ends nothing for the others. Of MaxRebuilds it is one.
//
// NewBatch panics as New does.
func NewBatch[V any](load func(ctx context.Context, keys []string) (map[string]V, error), o Options) *Cache[V] {
	if load == nil {
		panic(errors.New("bellwether: NewBatch needs a load, a func(ctx context.Context, keys []string) (map[string]V, error)"))
	}
	return newBatch[V](func(ctx context.Context, requests []Request[V]) (map[string]Result[V], error) {
		keys := make([]string, len(requests))
		for i := range requests {
			keys[i] = requests[i].Key
		}
		values, err := load(ctx, keys)
		results := make(map[string]Result[V], len(values))
		for key, v := range values {
			results[key] = Result[V]{Value: v}
		}
		return results, err
	}, o)
}

// NewBatchLoader is [NewBatch] with a load that says more than values, see [NewLoader]. The map has
// the results of the keys that exist, and may have one of Freshness alone for a key that a BatchError
// says is [ErrNotFound].
func NewBatchLoader[V any](load func(ctx context.Context, requests []Request[V]) (map[string]Result[V], error), o Options) *Cache[V] {
	if load == nil {
		panic(errors.New("bellwether: NewBatchLoader needs a load, a func(ctx context.Context, requests []Request[V]) (map[string]Result[V], error)"))
	}
	return newBatch(load, o)
}

// newBatch returns a Cache of a batch load.
func newBatch[V any](load batchLoad[V], o Options) *Cache[V] {
	if o.BatchWindow < 0 {
		refuse("Options.BatchWindow", o.BatchWindow, notNegative)
	}
	length := o.BatchWindow
	o.BatchWindow = 0 // newCache has no use for it
	c := newCache[V](load, o)
	c.together = load
	if length > 0 {
		c.window = &window[V]{engine: c.engine, load: load, length: length}
	}
	return c
}

// GetMany returns the values of keys: what Get returns for each of them, asked
// for at one time. The error is nil or a [*BatchError]: the keys that it names
// have failed, by what Get would return; those that neither it nor the map has
// were not found. So GetMany is itself a load for [NewBatch].
//
// The store is asked for all keys at once if it is a [driver.BatchGetter]. What has to
// be loaded is loaded in one call of the load that [NewBatch] was given; of [New]'s
// in one call for each key. A key that another call is loading is not loaded
// again, here or in any process; and a Get for a key of this call joins it.
//
// No key waits for another's trouble: what another process holds, and what is
// late, is loaded later, apart from the rest. But GetMany returns when it has an
// answer for each key, or ctx ends: then it has the values that are there, and
// ctx's error for the other keys.
//
// Keys may be empty, and may repeat. Of very many, 4,000 are under way at a time,
// and a load is given 1,000 at most.
func (c *Cache[V]) GetMany(ctx context.Context, keys []string) (map[string]V, error) {
	return c.engine.getMany(ctx, keys, c.bind, c.together, c.window)
}

const (
	// maxTogether is how many keys the store is asked for, and a load is given,
	// at most at a time.
	maxTogether = 1000
	// maxUnderWay is how many keys of one call are under way at most: a flight
	// has goroutines and timers. It is several times maxTogether, so that those
	// that wait long for others do not hold up the rest.
	maxUnderWay = 4 * maxTogether
)

// A batchLoad is a user's load of many keys.
type batchLoad[V any] func(ctx context.Context, requests []Request[V]) (map[string]Result[V], error)

// bind implements binder, for one key.
func (l batchLoad[V]) bind() loader[V] {
	return func(ctx context.Context, a attempt[V]) (product[V], error) {
		results, err := l(ctx, []Request[V]{requestOf(a.key, a.present)})
		batch, _ := errors.AsType[*BatchError](err)
		return resultOf(results, batch, err, a.key, a.present)
	}
}

// resultOf is what a batch load that has returned results and err says of key, whose load has started
// from the item. batch is the BatchError in err, nil if there is none.
func resultOf[V any](results map[string]Result[V], batch *BatchError, err error, key string, from *items.Item[V]) (product[V], error) {
	r, found := results[key]
	switch {
	case batch != nil && batch.Errors[key] != nil:
		err = batch.Errors[key]
	case found:
		err = nil
	case err == nil || error(batch) == err:
		err = ErrNotFound
	}
	// Else all keys that have no result have failed: a BatchError within another error may not
	// be all that it says.
	return r.product(key, from, err)
}

// A pending is one key of a call that has no answer yet.
type pending[V any] struct {
	*waiter[V]
	early bool // nobody waits: its value is fresh, and to be rebuilt before it expires
}

// A manyCall is one call of getMany.
type manyCall[V any] struct {
	*engine[V]
	single binder[V] // for keys that do not go with a batch
	load   batchLoad[V]
	window *window[V] // nil: the call's batches are its own
	// places bounds what is under way: two for each key, one for its waiter and
	// one for the flight that it has begun.
	places  *semaphore.Weighted
	waiters sync.WaitGroup

	mu     sync.Mutex // guards what follows
	values map[string]V
	failed map[string]error
	early  []pending[V] // what the store has answered, and is to be rebuilt before it expires
}

func (e *engine[V]) getMany(ctx context.Context, keys []string, single binder[V], load batchLoad[V], w *window[V]) (map[string]V, error) {
	c := &manyCall[V]{
		engine: e, single: single, load: load, window: w, places: semaphore.NewWeighted(2 * maxUnderWay),
		values: make(map[string]V, len(keys)), failed: map[string]error{},
	}
	// First those that have nothing to be served meanwhile, then those of which
	// nobody need wait for the rebuild.
	missing, covered := c.hits(ctx, keys)
	c.all(ctx, append(missing, covered...))
	c.waiters.Wait()
	c.all(ctx, c.early)
	if len(c.failed) == 0 {
		return c.values, nil
	}
	return c.values, &BatchError{c.failed}
}

// all begins what there is to do, some at a time.
func (c *manyCall[V]) all(ctx context.Context, todo []pending[V]) {
	for len(todo) > 0 {
		together := todo[:min(len(todo), maxTogether)]
		todo = todo[len(together):]
		if !c.places.TryAcquire(int64(2 * len(together))) {
			together = c.waitForPlaces(ctx, together)
		}
		if len(together) > 0 {
			c.begin(together)
		}
	}
}

// hits answers what the near tier can, and returns the rest: what is missing, and
// what is covered by something that can be served.
func (c *manyCall[V]) hits(ctx context.Context, keys []string) (missing, covered []pending[V]) {
	seen := make(map[string]struct{}, len(keys))
	began := c.clock.Now()
	for _, key := range keys {
		if _, again := seen[key]; again {
			continue
		}
		seen[key] = struct{}{}
		it, early, ok := c.hit(key)
		if ok {
			c.answer(key, it, nil)
			if c.observers.hit != nil || it.Failures > 0 {
				c.tellHit(ctx, key, it.Way(c.clock.Now()))
			}
		}
		switch {
		case early:
			covered = append(covered, pending[V]{c.refresher(ctx, key, it), true})
		case ok:
		default:
			w := c.waiter(ctx, key, it)
			w.began = began // MaxWait is the call's
			if it == nil {
				missing = append(missing, pending[V]{w, false})
			} else {
				covered = append(covered, pending[V]{w, false})
			}
		}
	}
	return missing, covered
}

func (c *manyCall[V]) answer(key string, it *items.Item[V], err error) {
	var v V
	if err == nil {
		v, err = it.Answer()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.values[key] = v
	case err != ErrNotFound: // itself: to ask what it wraps would run user code, where nobody recovers
		c.failed[key] = err
	}
}

// take takes the answer of a waiter that has it.
func (c *manyCall[V]) take(a pending[V]) {
	defer c.places.Release(1)
	c.end(a)
}

// end is take for a waiter without a place.
func (c *manyCall[V]) end(a pending[V]) {
	c.answer(a.key, a.answer.item, a.err)
	if c.observers.serve != nil {
		a.tell()
	}
	if a.dueEarly() {
		// Together with the others, and so later: one at a time they would be a
		// load each.
		early := pending[V]{c.refresher(a.ctx, a.key, a.answer.item), true}
		c.mu.Lock()
		c.early = append(c.early, early)
		c.mu.Unlock()
	}
}

// waitForPlaces returns those for which there are places now. Who is covered is
// served with that and does not wait: of a call for very many stale keys, a later
// call begins the rest of the rebuilds.
func (c *manyCall[V]) waitForPlaces(ctx context.Context, together []pending[V]) []pending[V] {
	var rest []pending[V]
	for _, a := range together {
		now := c.clock.Now()
		switch {
		case a.early:
		case a.stale != nil && now < a.stale.Trusted && a.stale.Stale(now):
			c.count.stale.Add(1)
			a.answer.item = a.stale
			c.end(a)
		default: // it has nothing, or not any more
			rest = append(rest, a)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	// Not for longer than MaxWait: what has the places may be flights that hang,
	// and that nobody waits for any more.
	limited, cancel := context.WithTimeout(ctx, durations.Add(rest[0].began, c.MaxWait)-c.clock.Now())
	defer cancel()
	if c.places.Acquire(limited, int64(2*len(rest))) == nil {
		return rest
	}
	err := ctx.Err()
	if err == nil {
		err = ErrWaitTimeout
		c.count.waitTimeouts.Add(uint64(len(rest)))
	}
	for _, a := range rest {
		a.err = err
		c.end(a)
	}
	return nil
}

// beginApart begins a batch of the call's own, of flights for those of the keys that have none.
func (c *manyCall[V]) beginApart(together []pending[V]) {
	b := c.batch()
	defer close(b.complete)
	// Before it has flights: closing the engine waits for it, and so for them.
	c.behind(b.depart)
	for i, a := range together {
		m := &member[V]{batch: b, key: a.key, order: i}
		a.join(m)
		if m.fly == nil {
			c.places.Release(1) // that of the flight that it has not begun
		}
	}
}

// begin begins flights for those of the keys that have none, and waits for the answers behind.
func (c *manyCall[V]) begin(together []pending[V]) {
	if c.window != nil {
		for _, a := range together {
			c.window.join(a.waiter)
		}
		c.places.Release(int64(len(together))) // those of flights: the window's batches have their own
	} else {
		c.beginApart(together)
	}
	for _, a := range together {
		if a.early {
			a.leave()
			c.places.Release(1)
			continue
		}
		if a.flight == nil {
			c.take(a)
			continue
		}
		if is, _, _ := a.advance(); is == answered || is == gone {
			c.take(a)
			continue
		}
		c.waiters.Go(func() {
			a.wait(c.single)
			c.take(a)
		})
	}
}
