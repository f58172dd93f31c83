package bellwether

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/jsonloss"
	"github.com/bellwether-go/bellwether/internal/sizeof"
	"github.com/bellwether-go/bellwether/internal/sweeplog"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is the loader face: a cache of values of one type.

// A Cache keeps the values of a load, and sees to it that however many callers
// ask for a key, in however many processes, the load runs once. Create one with
// New. It is safe for concurrent use. Values are shared between callers and must
// not be modified.
type Cache[V any] struct {
	engine *engine[V]
	bind   binder[V] // of the load that New was given
	// together is the load that NewBatch was given, nil if New was called.
	together batchLoad[V]
	window   *window[V] // nil: each call's loads are its own
}

// New returns a Cache of what load returns. The load gets a context that keeps
// the values of the context of the call that began the rebuild, but not its
// cancellation; the rebuild belongs to no caller. A load that returns an error
// that wraps [ErrNotFound] says that there is no such thing; its callers get
// ErrNotFound itself. It is called for several keys at a time, and must not ask
// this Cache for the key that it loads: it would wait for itself, and gets an
// error. It should return when its context ends: after an invalidation the next load
// of the key begins when the present one has returned.
//
// New panics if the options cannot be meant; the message names the field.
func New[V any](load func(ctx context.Context, key string) (V, error), o Options) *Cache[V] {
	if load == nil {
		panic(errors.New("bellwether: New needs a load, a func(ctx context.Context, key string) (V, error); for a load per call, pass a load that fails and call GetFunc"))
	}
	return newCache(userLoad[V](load), o)
}

// newCache returns a Cache of what the binder's loads make.
func newCache[V any](bind binder[V], o Options) *Cache[V] {
	if o.TTL <= 0 {
		refuse("Options.TTL", o.TTL, "be positive: how long a value is fresh, such as time.Minute")
	}
	if o.BatchWindow != 0 {
		refuse("Options.BatchWindow", o.BatchWindow, "be zero where a load has one key: NewBatch and NewBatchLoader have loads of many")
	}
	size := func(_ string, v V) int { return sizeof.Of(v) }
	if o.Size != nil {
		size = func(key string, v V) int { return o.Size(key, v) }
	}
	s := o.settings("Options")
	if s.Store != nil && s.Namespace == "" {
		refuse("Options.Fleet.Namespace", `""`, "be set where values go into a store: another cache on the store would be given this one's values for its own; name what the values are, such as \"users\"")
	}
	if s.Store != nil && s.Codec.Marshal == nil {
		lossy, broken := jsonloss.Of(reflect.TypeFor[V]())
		if broken != nil {
			panic(broken)
		}
		if lossy != nil {
			s.OnError("", lossy)
		}
	}
	marshal, unmarshal := codecOf[V](s.Codec)
	c := &Cache[V]{
		engine: newEngine(s, size, marshal, unmarshal),
		bind:   bind,
	}
	sweeps := s.Store == nil || s.Sweeps
	if sweeps {
		c.engine.keepLog(tagsOf[V])
	}
	c.engine.listen()
	if sweeps {
		c.engine.meetLog()
	}
	return c
}

// tagsOf are the tags of an item whose load has given it some.
func tagsOf[V any](it *items.Item[V]) (tags []string, signpost bool) {
	if it.Marks != nil {
		tags = it.Marks.Tags
	}
	return tags, false
}

// A userLoad is a user's load. It needs nothing but the key.
type userLoad[V any] func(ctx context.Context, key string) (V, error)

func (l userLoad[V]) bind() loader[V] {
	return func(ctx context.Context, a attempt[V]) (product[V], error) {
		v, err := l(ctx, a.key)
		return product[V]{value: v}, err
	}
}

// Get returns the value of key: at once if it is fresh, or stale within its
// window; else when the one rebuild that all callers share is done.
//
// The error is ErrNotFound if the load says so; the load's own error, or a
// [*RemoteError] with its text if it ran in another process, if it failed and
// nothing stale may be served; [ErrWaitTimeout] after MaxWait; [ErrOverloaded];
// [ErrClosed]; or ctx's error. A ctx that ends ends only this call's wait.
func (c *Cache[V]) Get(ctx context.Context, key string) (V, error) {
	return c.engine.get(ctx, key, c.bind, c.window)
}

// GetFunc is Get with a load of this call's own. Callers that meet share one
// rebuild, by the load of whichever came first. Its errors are those of Get.
func (c *Cache[V]) GetFunc(ctx context.Context, key string, load func(ctx context.Context, key string) (V, error)) (V, error) {
	if load == nil { // here, and not in the rebuild, which is not this caller's alone
		panic(errors.New("bellwether: GetFunc needs a load, a func(ctx context.Context, key string) (V, error); to use the load of New, call Get"))
	}
	return c.engine.get(ctx, key, userLoad[V](load), nil)
}

// Peek returns the value that this process has for key, fresh or stale, with its age. It loads nothing,
// asks no store, waits for nothing and changes nothing: neither Stats nor what the near tier evicts
// next. It is safe for concurrent use, and does not allocate.
//
// The age counts from the return of the load, in whichever process that ran, or from the call of Set;
// a Freshness.Age of the value is added. ok is false if this process has no value: it has never had
// the key, the value has passed all of its windows, was evicted or was invalidated here, or the cache is
// closed. A remembered ErrNotFound is no value, nor is a failure by itself. The value may be one that
// the store no longer has: Peek does not find out whether another process has replaced it.
func (c *Cache[V]) Peek(key string) (value V, age time.Duration, ok bool) {
	return c.engine.peek(key)
}

// Set puts value under key, after your write to the origin. The value is fresh for TTL from now on,
// in the whole fleet. It is safe for concurrent use, and value must not be modified after the call.
//
// When Set has returned nil, this process serves value or a later one. Other processes follow within
// NearTTL. A rebuild under way loses, in any process: its value is served to nobody who asks after
// Set. Callers that wait for such a rebuild in this process get value. Of two Sets the value with the
// later epoch stays: these are the Sets that meet in the store, in the order of the store. A load
// that begins after Set may replace value. EarlyRefresh knows no build time of value, so value
// expires before its rebuild.
//
// The error wraps [ErrUnavailable] if the store does not answer within EngineTimeout, or not before
// ctx ends. Then value is not known to be kept, this process has dropped the key, and the store may still
// have an older value: call Set or Invalidate again. Set asks the store also while that is taken for
// down. Other errors are a value that Codec or Size cannot take or the store finds too large, and five
// commits in a row that others have overtaken: then the key is invalidated as by Invalidate, whose
// error is joined. On a closed cache Set does nothing and returns [ErrClosed].
func (c *Cache[V]) Set(ctx context.Context, key string, value V) error {
	return c.engine.set(ctx, key, value)
}

// Refresh has key rebuilt now, behind its callers, although its value may be fresh. It returns when the
// rebuild has begun, or was found under way in this process; its end is not waited for, and nor does
// the end of ctx end it. The values of ctx are the load's. Refresh is safe for concurrent use.
//
// One load runs in the fleet: a load that another process has under way counts as the rebuild. Its
// read of the origin may be of before Refresh. After a write to the origin call Set or Invalidate.
// Callers are served the present value meanwhile, fresh or stale. If the load fails, the value stays
// within its windows, the failure is remembered as any other, and OnError is told. During the
// pause after a failure (ErrorTTL) no rebuild begins.
//
// The error is [ErrClosed]; [ErrOverloaded] if too many keys wait for Store; or that of Get in a chain of
// 64 loads.
func (c *Cache[V]) Refresh(ctx context.Context, key string) error {
	return c.engine.refreshNow(ctx, key, c.bind)
}

// Invalidate makes sure that nothing computed before now is served for the
// keys once it has returned nil: not from the store, not from this process's
// near tier, and not by a rebuild that is under way anywhere. The near tiers of
// other processes follow within NearTTL.
//
// It asks the store also while that is taken for down. If the store does not answer
// within EngineTimeout, or not before ctx ends, the error wraps
// [ErrUnavailable] and names the keys; the near tier of this process has dropped
// them all the same.
func (c *Cache[V]) Invalidate(ctx context.Context, keys ...string) error {
	return errors.Join(c.engine.invalidateAll(ctx, keys)...)
}

// InvalidateMatching makes sure that nothing computed before now is served for what matches: in this
// process once it has returned nil, in the others within NearTTL. The cost is one write, however many
// values match, and a look at each value of the near tier.
//
// All but keys that are not Soft goes into a log that all processes follow, see
// [Middleware.InvalidateMatching]. In a fleet the log needs Options.Sweeps.
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
		errs = e.invalidateAll(ctx, match.Keys)
	}
	for _, prefix := range match.Prefixes {
		add(sweeplog.ByStart, prefix)
	}
	for _, tag := range match.Tags {
		add(sweeplog.ByTag, tag)
	}
	if match.All {
		add(sweeplog.ByPrefix, "") // hits all keys, also for processes that know the first kinds alone
	}
	return errors.Join(append(errs, e.sweep(ctx, sweeps))...)
}

// Ping asks the engines for all that a rebuild asks them for, to find out at start-up whether they answer: a
// read and a write of the Store and an election of the Locker, under a key that no value has. Without
// engines it does nothing. It ends after EngineTimeout, or when ctx ends, and is safe for concurrent use.
//
// The error wraps [ErrUnavailable], and names each engine that did not answer with its own error. A
// cache whose engines do not answer works all the same, as each process by itself, and recovers by
// itself.
func (c *Cache[V]) Ping(ctx context.Context) error { return c.engine.ping(ctx) }

// Stats returns what the cache has counted since it was made.
func (c *Cache[V]) Stats() observe.Stats { return c.engine.snapshot() }

// Close ends the cache: rebuilds under way are cancelled, their leases
// released, their callers get [ErrClosed]. It does not close Store and Locker,
// and returns when no goroutine of the cache is left but those of loads: their
// contexts have ended, and they are not waited for. It waits for those that call
// observers, OnError, Size and Codec, so none of these may call it. It may be called
// again; the error is always nil.
func (c *Cache[V]) Close() error {
	c.engine.close()
	return nil
}
