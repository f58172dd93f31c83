package bellwether

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/jsonloss"
	"github.com/bellwether-go/bellwether/internal/sizeof"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is the loader face: the cache of values of one type. The engine does the work.

// A Cache keeps the values of a load, which runs once for all callers of a key, in all processes of a
// fleet. It is safe for concurrent use. Callers share values and must not modify them.
type Cache[V any] struct {
	engine *engine
	bind   binder  // makes the load of a call from the load that New or NewBatch was given
	window *window // nil: the loads of a call are its own
}

// New returns a Cache of the values of load. It panics on invalid options; the message names the field.
//
// The load's context has the values of the first caller's context, but not its end. A load should
// return when its context ends: after an invalidation the next load begins when the present load has
// returned. The load runs for several keys at a time. A load must not ask for its own key.
func New[V any](load func(ctx context.Context, key string) (V, error), o Options) *Cache[V] {
	if load == nil {
		panic(errors.New("bellwether: New needs a load, a func(ctx context.Context, key string) (V, error); for a load per call, pass a load that fails and call GetFunc"))
	}
	return newCache[V](userLoad[V](load), o)
}

// NewLoader is [New] for a load that takes a [Request] and returns a [Result].
func NewLoader[V any](load func(ctx context.Context, r Request[V]) (Result[V], error), o Options) *Cache[V] {
	if load == nil {
		panic(errors.New("bellwether: NewLoader needs a load, a func(ctx context.Context, r Request[V]) (Result[V], error)"))
	}
	return newCache[V](richLoad[V](load), o)
}

func newCache[V any](bind binder, o Options) *Cache[V] {
	if o.TTL <= 0 {
		refuse("Options.TTL", o.TTL, "be positive: how long a value is fresh, such as time.Minute")
	}
	if o.BatchWindow != 0 {
		refuse("Options.BatchWindow", o.BatchWindow, "be zero where a load has one key: NewBatch and NewBatchLoader have loads of many")
	}
	s := o.settings("Options")
	if s.Store != nil && s.Namespace == "" {
		refuse("Options.Fleet.Namespace", `""`, "be set where values go into a store: another cache on the store would be given this one's values for its own; name what the values are, such as \"users\"")
	}
	f := faceOf[V](o.Size, s.Codec)
	if s.Store != nil && s.Codec.Marshal == nil {
		var broken error
		if f.lossy, broken = jsonloss.Of(reflect.TypeFor[V]()); broken != nil {
			panic(broken)
		}
	}
	if s.Store == nil || s.Sweeps {
		f.traits = tagsOf
	}
	return &Cache[V]{engine: newEngine(s, f), bind: bind}
}

// faceOf returns the face of values of type V, without traits.
func faceOf[V any](size func(key string, value any) int, codec Codec) face {
	f := face{size: size}
	if size == nil {
		f.size = func(_ string, v any) int { return sizeof.Of(v) }
	}
	f.marshal, f.unmarshal = codecOf[V](codec)
	return f
}

func tagsOf(it *items.Item) (tags []string, signpost bool) {
	if it.Marks != nil {
		tags = it.Marks.Tags
	}
	return tags, false
}

type userLoad[V any] func(ctx context.Context, key string) (V, error)

func (l userLoad[V]) bind() loader {
	return func(ctx context.Context, a *attempt) (items.Product, error) {
		v, err := l(ctx, a.key)
		return items.Product{Value: v}, err
	}
}

type richLoad[V any] func(ctx context.Context, r Request[V]) (Result[V], error)

func (l richLoad[V]) bind() loader {
	return func(ctx context.Context, a *attempt) (items.Product, error) {
		result, err := l(ctx, requestOf[V](a.key, a.present))
		return result.product(a.key, a.present, err)
	}
}

// Get returns the value of key: at once if fresh, or stale within StaleWhileRevalidate, and otherwise
// after a rebuild shared by all callers. The end of ctx ends only this call's wait.
//
// The error is [ErrNotFound] itself if the load returns or wraps it. Without a stale value to serve,
// the error is the load's, or a [*RemoteError] from another process. Other errors are [ErrWaitTimeout]
// after MaxWait, [ErrOverloaded], [ErrClosed] and ctx's error.
func (c *Cache[V]) Get(ctx context.Context, key string) (V, error) {
	return c.get(ctx, key, c.bind, c.window)
}

// GetFunc is [Cache.Get] with this load. The load outlives its caller and its value is for all callers of
// the key: the load must use only what the key names, and not the caller's transaction or request.
func (c *Cache[V]) GetFunc(ctx context.Context, key string, load func(ctx context.Context, key string) (V, error)) (V, error) {
	if load == nil { // here and not in the rebuild, where the panic would be shared with other callers
		panic(errors.New("bellwether: GetFunc needs a load, a func(ctx context.Context, key string) (V, error); to use the load of New, call Get"))
	}
	return c.get(ctx, key, userLoad[V](load), nil)
}

// get answers a call that takes any answer. With a window the flight begins in the window's batch.
func (c *Cache[V]) get(ctx context.Context, key string, b binder, w *window) (V, error) {
	e := c.engine
	it, early, ok := e.hit(key, nil)
	if !ok {
		call := e.waiter(ctx, key, it)
		if w == nil || w.join(call) {
			call.wait(b) // called here: one more frame would be on each stack of a herd, see waiter
		}
		return typed[V](call.outcome(b))
	}
	if early {
		e.refresh(ctx, key, it, b, "")
	}
	// An item with failures may be stale, so Hit decides which observers hear of it.
	if e.observers.Hits() || it.Failures > 0 {
		e.observers.Hit(ctx, key, it.Way(e.clock.Now()))
	}
	return typed[V](it.Answer())
}

// Peek returns the value of key in this process, fresh or stale, and its age since the load or Set,
// plus Freshness.Age. Peek does not load, ask the store, wait or allocate, and changes neither Stats
// nor the order of evictions. ok is false without a value in its windows, or after Close.
func (c *Cache[V]) Peek(key string) (value V, age time.Duration, ok bool) {
	it, now := c.engine.near.Peek(key)
	if it == nil || it.Kind != driver.KindValue || now >= max(it.FreshUntil, it.StaleUntil, it.ErrorUntil) {
		return value, 0, false
	}
	return valueOf[V](it.Value), durations.Between(it.Born, now), true
}

// HotKeys returns up to most keys of this process, the most used first. Another process is warm after a
// GetMany of them.
func (c *Cache[V]) HotKeys(most int) []string { return c.engine.near.Hottest(most) }

// Set puts value under key, after your write to the origin. The value has no Tags, is fresh for TTL
// from now on, and must not be modified. After Set has returned nil, this process serves value or a
// later value, and other processes follow within NearTTL. Only a load begun after Set may replace it.
// An Invalidate of the key during Set may count as earlier or as later.
//
// If the store does not answer within EngineTimeout (twice that behind other calls) or before ctx ends, the
// error wraps [ErrUnavailable], and the key is invalidated as by an Invalidate with this error. A refused
// value invalidates the key. After Close, Set returns [ErrClosed].
func (c *Cache[V]) Set(ctx context.Context, key string, value V) error {
	return c.engine.set(ctx, key, value)
}

// Refresh begins a rebuild of key, also of a fresh value, and does not wait. The load gets ctx's values,
// but not its end. Callers get the present value meanwhile. A load under way anywhere counts, so call
// Set or Invalidate after a write. A load's failure goes to OnError. A rebuild that meets MaxQueued waiting keys
// does not take place, and nobody hears of it: refresh many keys part by part. In a failure's pause no rebuild
// begins either: the error is that failure, or nil beside a value to serve. Other errors are [ErrClosed], and
// [ErrOverloaded] if too many keys wait for Store.
func (c *Cache[V]) Refresh(ctx context.Context, key string) error {
	// A load that returns at this instant counts as one from before the call.
	return c.engine.refreshSince(context.WithoutCancel(ctx), key, c.bind, c.engine.clock.Now()+1)
}

// Invalidate drops the values of keys. After it has returned nil, no value computed before the call is
// served from the store, from this process's near tier or by a rebuild under way in any process. Other near
// tiers follow within NearTTL. If the store does not answer for a key within EngineTimeout (twice that
// behind other calls) or before ctx ends, the error wraps [ErrUnavailable] and names the key. This process
// drops it, and asks again until there is an answer (4,096 keys).
func (c *Cache[V]) Invalidate(ctx context.Context, keys ...string) error {
	return errors.Join(c.engine.InvalidateAll(ctx, keys)...)
}

// InvalidateMatching drops the matching values. After it has returned nil, no matching value computed
// before the call is served in this process, nor in others after NearTTL. In a fleet it needs
// Options.Sweeps. Soft matches, Prefixes, Tags and All go into a log, see [Middleware.InvalidateMatching].
func (c *Cache[V]) InvalidateMatching(ctx context.Context, match Match) error {
	e := c.engine
	if e.sweeps == nil {
		return errors.New("bellwether: InvalidateMatching in a fleet needs Options.Sweeps, set in all its caches")
	}
	var sweeps []sweeplog.Sweep
	add := func(kind sweeplog.Kind, what string) {
		sweeps = append(sweeps, sweeplog.Sweep{Kind: kind, What: sweeplog.Exact(what), Soft: match.Soft})
	}
	var errs []error
	if match.Soft {
		for _, key := range match.Keys {
			add(sweeplog.ByName, key)
		}
	} else {
		errs = e.InvalidateAll(ctx, match.Keys)
	}
	for _, prefix := range match.Prefixes {
		add(sweeplog.ByStart, prefix)
	}
	for _, tag := range match.Tags {
		add(sweeplog.ByTag, tag)
	}
	if match.All {
		add(sweeplog.ByPrefix, "") // the empty prefix hits every key, see sweeplog's repeats
	}
	return errors.Join(append(errs, e.Sweep(ctx, sweeps))...)
}

// Ping checks the engines at start-up, with a read, a write and an election. It ends after
// EngineTimeout, or when ctx ends. The error wraps [ErrUnavailable] and names each silent engine, with
// the engine's own error. A cache works without engines, and recovers.
func (c *Cache[V]) Ping(ctx context.Context) error { return c.engine.ping(ctx) }

// Stats returns the counters of the cache since its creation.
func (c *Cache[V]) Stats() observe.Stats { return c.engine.snapshot() }

// Close ends the cache. It cancels the rebuilds, releases their leases, and answers their callers with
// [ErrClosed]. Store and Locker stay open. Close waits for all goroutines except loads, so observers,
// OnError, Size and Codec must not call Close. A second Close is harmless. The error is always nil.
func (c *Cache[V]) Close() error {
	c.engine.close()
	return nil
}
