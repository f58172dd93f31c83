package bellwether

import (
	"context"
	"errors"
	"sync"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/items"
	"golang.org/x/sync/semaphore"
)

// This file is GetMany, many keys in one call. Each key has its own flight, with its own lease, epoch
// and failures; other callers join it, and it waits for no other key. together.go has the common work.

// NewBatch returns a Cache whose load takes many keys in one call. [Cache.GetMany] usually loads all
// its missing keys in one call, and [Cache.Get] one key.
//
// If the error is nil or a [*BatchError], a key without a value does not exist, as after [ErrNotFound],
// and a key in the BatchError has failed. With any other error, all keys without a value have failed.
// The load's context is as with [New], and also ends when no key of the call is needed any more.
// RebuildTimeout is for the whole call. NewBatch panics as New does.
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

// NewBatchLoader is [NewBatch] with a load that returns Results, see [NewLoader]. The map has the keys
// that exist. A key with [ErrNotFound] in the BatchError may have a Result with Freshness alone.
func NewBatchLoader[V any](load func(ctx context.Context, requests []Request[V]) (map[string]Result[V], error), o Options) *Cache[V] {
	if load == nil {
		panic(errors.New("bellwether: NewBatchLoader needs a load, a func(ctx context.Context, requests []Request[V]) (map[string]Result[V], error)"))
	}
	return newBatch(load, o)
}

func newBatch[V any](load batchLoad[V], o Options) *Cache[V] {
	timeOption{"BatchWindow", &o.BatchWindow, 0, false}.fill("Options")
	length := o.BatchWindow
	o.BatchWindow = 0
	c := newCache[V](load, o)
	if length > 0 {
		c.window = &window{engine: c.engine, load: load, length: length}
	}
	return c
}

// GetMany returns the values of keys, as concurrent calls of Get would. The error is nil or a
// [*BatchError] with the failed keys and the errors that Get would return. A key in neither the map nor
// the error was not found. So GetMany can be the load of another cache.
//
// The missing keys are loaded in one call of [NewBatch]'s load, or each key in a call of [New]'s load.
// Keys that another call is loading, in any process, are not loaded again. When ctx ends, GetMany
// returns the values so far, and the error of ctx for the other keys. Keys may be empty or repeat.
func (c *Cache[V]) GetMany(ctx context.Context, keys []string) (map[string]V, error) {
	values := make(map[string]V, len(keys))
	m := &manyCall{
		engine: c.engine, bind: c.bind, window: c.window, places: semaphore.NewWeighted(2 * maxUnderWay),
		found: func(key string, value any) { values[key] = valueOf[V](value) }, failed: map[string]error{},
	}
	// First the keys without an item to serve, then the keys whose rebuild no caller needs.
	missing, covered := m.hits(ctx, keys)
	m.all(ctx, append(missing, covered...))
	m.waiters.Wait()
	m.all(ctx, m.early)
	if len(m.failed) == 0 {
		return values, nil
	}
	return values, &BatchError{m.failed}
}

// maxUnderWay is the most keys of a call under way: a flight has goroutines and timers. It is
// several times maxTogether, so keys that wait long for other processes do not hold up the rest.
const maxUnderWay = 4 * maxTogether

type batchLoad[V any] func(ctx context.Context, requests []Request[V]) (map[string]Result[V], error)

func (l batchLoad[V]) load(ctx context.Context, attempts []*attempt) (commonResult, error) {
	requests := make([]Request[V], len(attempts))
	for i, a := range attempts {
		requests[i] = requestOf[V](a.key, a.present)
	}
	results, err := l(ctx, requests)
	return func(a *attempt, batchErr *BatchError, err error) (items.Product, error) {
		return resultOf(results, batchErr, err, a.key, a.present)
	}, err
}

func (l batchLoad[V]) bind() loader {
	return func(ctx context.Context, a *attempt) (items.Product, error) {
		result, err := l.load(ctx, []*attempt{a})
		batchErr, _ := errors.AsType[*BatchError](err)
		return result(a, batchErr, err)
	}
}

// A manyCall is a call of GetMany. A key has a waiter, and a refresher if its item is fresh and due for an early rebuild.
type manyCall struct {
	*engine
	bind   binder
	window *window // nil: the call makes its own batches
	// places bounds the work under way: a place for each key's waiter, and one for a flight it begins.
	places  *semaphore.Weighted
	waiters sync.WaitGroup

	mu     sync.Mutex // guards the fields below, and calls of found
	found  func(key string, value any)
	failed map[string]error
	early  []*waiter // the refreshers of items that the store answered with
}

func (c *manyCall) all(ctx context.Context, todo []*waiter) {
	for len(todo) > 0 {
		n := min(len(todo), maxTogether)
		has := c.places.TryAcquire(int64(2 * n))
		if !has {
			if todo = c.answerCovered(todo); len(todo) == 0 {
				return
			}
			n = min(len(todo), maxTogether)
			has = c.waitForPlaces(ctx, todo[:n])
		}
		if has {
			c.begin(todo[:n])
		}
		todo = todo[n:]
	}
}

// hits answers the keys that need no flight. Of the rest, covered keys have an item that can be served.
func (c *manyCall) hits(ctx context.Context, keys []string) (missing, covered []*waiter) {
	seen := make(map[string]struct{}, len(keys))
	began := c.clock.Now()
	for _, key := range keys {
		if _, again := seen[key]; again {
			continue
		}
		seen[key] = struct{}{}
		it, early, ok := c.hit(key, nil)
		if ok {
			c.answer(key, it, nil)
			if c.observers.Hits() || it.Failures > 0 {
				c.observers.Hit(ctx, key, it.Way(c.clock.Now()))
			}
		}
		switch {
		case early:
			covered = append(covered, c.refresher(ctx, key, it))
		case ok:
		default:
			w := c.waiter(ctx, key, it)
			w.began = began // MaxWait is for the whole call
			if it == nil {
				missing = append(missing, w)
			} else {
				covered = append(covered, w)
			}
		}
	}
	return missing, covered
}

func (c *manyCall) answer(key string, it *items.Item, err error) {
	var value any
	if err == nil {
		value, err = it.Answer()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.found(key, value)
	case err != ErrNotFound: // not errors.Is: it would run user code, outside of any guard
		c.failed[key] = err
	}
}

// collectAndFree collects a key's answer, and frees the place of its waiter.
func (c *manyCall) collectAndFree(a *waiter) {
	defer c.places.Release(1)
	c.collect(a)
}

func (c *manyCall) collect(a *waiter) {
	c.answer(a.key, a.answer.item, a.err)
	if c.observers.Serves() {
		a.tellObservers()
	}
	if a.dueEarly() {
		// Later, together with the other early keys: each alone would be a load of its own.
		early := c.refresher(a.ctx, a.key, a.answer.item)
		c.mu.Lock()
		c.early = append(c.early, early)
		c.mu.Unlock()
	}
}

// answerCovered answers the covered keys from their items, which may leave their windows during a wait for places. A later
// call begins their rebuilds. It returns the other keys.
func (c *manyCall) answerCovered(todo []*waiter) (rest []*waiter) {
	for _, a := range todo {
		now := c.clock.Now()
		switch {
		case a.refreshes:
		case a.stale != nil && now < a.stale.TrustedUntil && a.stale.Stale(now):
			c.count.stale.Add(1)
			a.answer.item = a.stale
			c.collect(a)
		default: // no item, or no longer a servable item
			rest = append(rest, a)
		}
	}
	return rest
}

// waitForPlaces waits until there are places for the keys. If it returns false, they have their errors.
func (c *manyCall) waitForPlaces(ctx context.Context, together []*waiter) bool {
	// Not longer than MaxWait: the places may belong to hanging flights that no caller waits for.
	limited, cancel := context.WithTimeout(ctx, durations.Add(together[0].began, c.MaxWait)-c.clock.Now())
	defer cancel()
	if c.places.Acquire(limited, int64(2*len(together))) == nil {
		return true
	}
	err := ctx.Err()
	if err == nil {
		err = ErrWaitTimeout
		c.count.waitTimeouts.Add(uint64(len(together)))
	}
	for _, a := range together {
		a.err = err
		c.collect(a)
	}
	return false
}

// beginBatch begins a batch of the call's own for the keys without flights.
func (c *manyCall) beginBatch(together []*waiter) {
	b := c.engine.batch(c.bind, c.places)
	defer close(b.complete)
	for _, a := range together {
		m := &member{batch: b}
		a.join(m)
		if m.gathered == nil {
			c.places.Release(1) // the key has begun no flight, which would free its place (member.end)
		}
	}
}

func (c *manyCall) begin(together []*waiter) {
	if c.window != nil {
		for _, a := range together {
			c.window.join(a)
		}
		c.places.Release(int64(len(together))) // the places of flights: the window's batches need none
	} else {
		c.beginBatch(together)
	}
	for _, a := range together {
		if a.refreshes {
			c.places.Release(1)
			continue
		}
		if a.flight == nil {
			c.collectAndFree(a)
			continue
		}
		if is, _, _ := a.advance(); is == gotAnswer || is == leftFlight {
			c.collectAndFree(a)
			continue
		}
		c.waiters.Go(func() {
			fault.Run(func() error { a.wait(c.bind); return nil }, func(err error) {
				if err != nil { // of the methods of the call's context
					a.err = err
				}
				c.collectAndFree(a)
			})
		})
	}
}
