package bellwether

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/jsonloss"
	"github.com/bellwether-go/bellwether/internal/sizeof"
)

// This file is the loader face: the options, and a cache of values of one type.

// Options configure a [Cache]. Only TTL is needed. Zero means a field's default. A
// negative value switches off what a field is for: a window, NotFoundTTL, ErrorTTL,
// Patience, EarlyRefresh, TTLJitter, Hedge or NearTTL. Where nothing can be switched off,
// as of a bound, a negative value is refused.
type Options struct {
	// TTL is how long a value is fresh, counted from when its load returned.
	// It must be positive. A load may choose otherwise for its value by
	// [SetFreshness]. The times of a value are kept in Store with it: those of the
	// process that has loaded it count in all.
	TTL time.Duration
	// StaleWhileRevalidate is how long after TTL a value is still served at
	// once while one rebuild runs behind it (RFC 5861 section 3). Zero: not at
	// all. Store is asked first for a value that it has not confirmed within NearTTL:
	// when Store goes silent, calls wait for EngineTimeout at most, until the silence
	// counts as an outage.
	StaleWhileRevalidate time.Duration
	// StaleIfError is how long after TTL a value is served when its rebuild
	// fails (RFC 5861 section 4). Zero: not at all.
	StaleIfError time.Duration
	// NotFoundTTL is how long it is remembered that a load returned
	// [ErrNotFound]. Zero means TTL; negative: it is told to those who wait, and not
	// remembered.
	NotFoundTTL time.Duration
	// ErrorTTL is how long a failure answers for its key before one caller
	// tries again; it doubles with every further failure, up to MaxErrorTTL, and
	// up to a half of it is taken off at random. If all loads of this process have
	// failed for an ErrorTTL and one succeeds, the keys whose loads failed here are
	// tried once before that. Zero means 1 s; negative: failures
	// are not remembered. Never remembered are context errors, ErrClosed and
	// ErrOverloaded: they answer who waits. In the other processes only
	// context.DeadlineExceeded does, as of a client's time-out or RebuildTimeout's;
	// of the others is said nothing there, and one of those processes tries next.
	//
	// An error that has, or wraps one that has, a method RetryAfter()
	// time.Duration decides for itself: nobody tries again sooner than that, or
	// it is not remembered if that is not positive.
	ErrorTTL time.Duration
	// MaxErrorTTL bounds the pauses after failures of a key, and so the time from
	// an origin's recovery to the next try. It is not below ErrorTTL. Zero means
	// 5 s, or ErrorTTL if that is longer.
	MaxErrorTTL time.Duration

	// EarlyRefresh has popular values rebuilt in the background before they
	// expire, by one caller of the fleet: a hit does so by chance, the more
	// likely the nearer the expiry is, measured in the time that the last rebuild
	// took. It is the beta of XFetch (Vattani, Chierichetti, Lowenstein, VLDB
	// 2015), where 1 is usual and more is earlier: for a value that is read ten
	// times in the time of a rebuild, the rebuild is too late at one expiry in 40
	// with 1, at one in 200,000 with 2. Zero: not at all.
	EarlyRefresh float64
	// TTLJitter is the part of a TTL, less than 1, of which up to all is taken
	// off, so that values that were loaded together do not expire together. How
	// much it is depends on key and epoch alone, so all processes agree. Zero:
	// nothing.
	TTLJitter float64

	// Patience is how long a caller that has a stale value waits for the
	// rebuild before it takes the stale one. Zero: not at all.
	Patience time.Duration
	// MaxWait is how long a caller waits that has nothing stale. Zero means
	// RebuildTimeout plus LeaseTTL, which leaves time for one takeover.
	MaxWait time.Duration
	// RebuildTimeout bounds a load: at its end the load's context ends, and its
	// callers get [ErrRebuildTimeout]. Zero means 30 s.
	RebuildTimeout time.Duration
	// LeaseTTL is the longest that a holder's lease lasts unless it is renewed, and
	// so the longest time after which a crashed holder is replaced. Where nothing stale
	// can be served meanwhile, a lease lasts for 1.75 times what its key's last build
	// took, or, for a key of which nothing is known, what builds take here of late (and
	// as long as it may where there were none), the engines' part in it included; but
	// never shorter than 500 ms and EngineTimeout, unless LeaseTTL is. It is renewed at
	// a third of its length, for as long as the holder lives. An [Elector] grants the lease
	// together with the first look at the entry: until the first renewal the lease lasts as
	// for a key of which this process knows nothing else. Zero means 5 s.
	LeaseTTL time.Duration
	// Hedge has a second rebuild begun beside one that takes this many times as
	// long as its key's last one, or, where nothing is known of that, as all but a
	// quarter of the latest ones: by one other process, of those whose callers wait for the value, and
	// at most once for each rebuild. The value that is committed first is
	// everybody's, and the other load is cancelled. To set it declares that the load
	// may run twice at one time. It must be more than 1; 3 is usual. It needs a
	// Locker and a build of 50 ms or more. Zero: not at all.
	Hedge float64
	// HedgeShare bounds the hedges of this process to this part of its own
	// rebuilds, up to 1. While half of the latest rebuilds are slow there are none:
	// then it is the origin, and not one process. Zero means 0.02.
	HedgeShare float64
	// MaxRebuilds bounds the rebuilds that run at one time in this process,
	// loads that have been given up on included. A batch load is one. While a load
	// waits for another key with its own context, of this cache or of another, one
	// more may run for such a key. Loads that wait for each other in another way, such as
	// over HTTP, need a slot each at the same time. Zero means 128; 4,096 for a
	// [Middleware], whose pages may fetch parts of their own site.
	MaxRebuilds int
	// MaxQueued bounds the keys whose rebuild waits for one of these; 16 times as many may
	// wait for Store to be looked into. The callers of one more get what is stale, else
	// [ErrOverloaded]. Of both, the keys of a GetMany count as one, or as one for
	// each thousand. Zero means 4096.
	MaxQueued int

	// Store keeps the entries for a fleet. Nil: the values stay in this process.
	Store Store
	// Locker elects who rebuilds, among the processes that share Store. Nil:
	// each process rebuilds for itself. A Locker without a Store is refused:
	// the processes would take turns and share nothing. If Locker and Store are the same
	// [Elector], one request looks, elects and claims, and one commits and releases.
	Locker Locker
	// Namespace says what the values are, such as "users". It comes before every key
	// in Store and Locker, with a colon behind it, and so has none itself. A Cache with
	// a Store needs one, and caches of different values need different ones: a cache
	// takes what it finds under its keys for its own values. A Middleware, whose keys are
	// URLs, needs none; without one its keys stand alone.
	Namespace string
	// EngineTimeout is how long a rebuild waits in all for engines that do not
	// answer, before it goes on without them. Zero means 500 ms.
	EngineTimeout time.Duration

	// NearBytes bounds the near tier, the decoded values in this process. Zero
	// means 64 MiB.
	NearBytes int64
	// NearTTL is how long a value in the near tier is served before Store is
	// asked whether it still holds: the time in which another process's
	// Invalidate reaches this one. Zero means 1 s. Without a Store it has no
	// meaning.
	//
	// Negative: the near tier is off. Store is asked for each call, once for those that
	// come at one time, and an Invalidate that has returned holds in all processes. The
	// values that this process has are still kept, up to NearBytes: one that Store
	// confirms is not decoded again, and while Store does not answer they are served
	// within their windows. What Store has not taken is served for 1 s.
	NearTTL time.Duration
	// Size tells how many bytes a value takes in the near tier, for several values
	// at a time. Nil: the memory that the value reaches, found by reflection, but
	// for what is behind a struct with a field of package sync or sync/atomic: that may
	// change meanwhile, and belong to others. Values whose own bytes are there need a Size.
	Size func(key string, value any) int
	// Codec turns values into bytes for Store, several at a time. The zero Codec is
	// JSON; values of type []byte and string it stores as they are. JSON loses some of a
	// value: unexported fields come back empty, and an interface as whatever the JSON
	// is. New tells OnError once which fields of the type these are, and panics if its
	// values cannot come back, as with a channel, a function or an interface with
	// methods. JSON also decodes what another type was, as far as names agree, without
	// an error: a type that has changed needs another Namespace.
	Codec Codec

	// OnError is told of the errors that no caller gets: engines that do not answer,
	// commits that came too late, leases lost, bytes that do not decode, and loads that
	// fail while something stale is served, or nobody waits. (An Observer's Rebuild is
	// told of all loads.) It is called on whichever goroutine meets the error, several
	// at a time: it must be quick, and safe for concurrent use. It may be called before
	// New or NewMiddleware has returned. Nil: nobody is told.
	OnError func(key string, err error)
	// Observers are told what the cache does: calls served, rebuilds, herds,
	// breakers, evictions. None: nobody is told, and nothing is spent on it.
	// Packages bellwetherslog, bellwetherprom and bellwetherotel have some.
	Observers []Observer
}

// settings are the Options that the engine goes by, with their defaults.
type settings struct {
	Options
	Freshness Freshness
	// OnLoadError is the user's OnError; observers are told of loads by their Rebuild.
	OnLoadError func(key string, err error)
	eachCall    bool // has the store asked: NearTTL was negative
}

// refuse panics because of an option.
func refuse(field string, value any, must string) {
	panic(fmt.Errorf("bellwether: %s is %v; it must %s", field, value, must))
}

// settings fills in the defaults and panics on options that cannot be meant.
func (o Options) settings() settings {
	for _, d := range []struct {
		name  string
		value *time.Duration
		zero  time.Duration // what zero means
		off   bool          // it may be, by a negative value
	}{
		{"TTL", &o.TTL, 0, true},
		{"StaleWhileRevalidate", &o.StaleWhileRevalidate, 0, true},
		{"StaleIfError", &o.StaleIfError, 0, true},
		{"NotFoundTTL", &o.NotFoundTTL, o.TTL, true},
		{"ErrorTTL", &o.ErrorTTL, time.Second, true},
		{"MaxErrorTTL", &o.MaxErrorTTL, max(o.ErrorTTL, 5*time.Second), false},
		{"Patience", &o.Patience, 0, true},
		{"RebuildTimeout", &o.RebuildTimeout, 30 * time.Second, false},
		{"LeaseTTL", &o.LeaseTTL, 5 * time.Second, false},
		{"MaxWait", &o.MaxWait, 0, false}, // see below
		{"EngineTimeout", &o.EngineTimeout, 500 * time.Millisecond, false},
	} {
		if *d.value < 0 && !d.off {
			refuse("Options."+d.name, *d.value, "not be negative; zero means the default")
		}
		// What is off lasts for no time at all.
		*d.value = max(0, cmp.Or(*d.value, d.zero))
	}
	eachCall := o.NearTTL < 0
	if eachCall {
		o.NearTTL = 1 // what is true at a moment answers the calls from before it
	}
	o.NearTTL = cmp.Or(o.NearTTL, time.Second)
	o.MaxWait = cmp.Or(o.MaxWait, durations.Add(o.RebuildTimeout, o.LeaseTTL))
	for _, f := range []*float64{&o.EarlyRefresh, &o.Hedge, &o.TTLJitter} {
		*f = max(0, *f)
	}
	switch {
	case o.MaxErrorTTL < o.ErrorTTL:
		refuse("Options.MaxErrorTTL", o.MaxErrorTTL, "not be below ErrorTTL; zero means the default")
	case o.MaxRebuilds < 0:
		refuse("Options.MaxRebuilds", o.MaxRebuilds, "not be negative; zero means the default")
	case o.MaxQueued < 0:
		refuse("Options.MaxQueued", o.MaxQueued, "not be negative; zero means the default")
	case o.NearBytes < 0:
		refuse("Options.NearBytes", o.NearBytes, "not be negative; zero means the default")
	case math.IsNaN(o.EarlyRefresh) || math.IsInf(o.EarlyRefresh, 1):
		refuse("Options.EarlyRefresh", o.EarlyRefresh, "be a number from 0; 1 is usual")
	case !(o.Hedge == 0 || o.Hedge > 1) || math.IsInf(o.Hedge, 1):
		refuse("Options.Hedge", o.Hedge, "be a number above 1, such as 3, or zero for no hedges")
	case !(o.HedgeShare >= 0 && o.HedgeShare <= 1):
		refuse("Options.HedgeShare", o.HedgeShare, "be from 0 to 1, such as 0.02, which zero means")
	case !(o.TTLJitter < 1):
		refuse("Options.TTLJitter", o.TTLJitter, "be from 0 to less than 1, such as 0.1")
	}
	o.HedgeShare = cmp.Or(o.HedgeShare, 0.02)
	o.MaxRebuilds = cmp.Or(o.MaxRebuilds, 128)
	o.MaxQueued = cmp.Or(o.MaxQueued, 4096)
	o.NearBytes = cmp.Or(o.NearBytes, 64<<20)
	if strings.Contains(o.Namespace, ":") {
		refuse("Options.Namespace", strconv.Quote(o.Namespace), "have no colon: a colon ends the namespace, so \"a:b\" would share keys with \"a\"")
	}
	for _, engine := range []struct {
		name string
		is   any
	}{{"Store", o.Store}, {"Locker", o.Locker}} {
		if engine.is != nil && adapter.Missing(engine.is) {
			refuse("Options."+engine.name, fmt.Sprintf("a nil %T", engine.is), "be a usable value, or nil without a type")
		}
	}
	if o.Locker != nil && o.Store == nil {
		panic(errors.New("bellwether: Options.Locker without Options.Store: processes would take turns and share nothing; set Store, or leave Locker nil"))
	}
	if o.Hedge != 0 && o.Locker == nil {
		panic(errors.New("bellwether: Options.Hedge without Options.Locker: no locker elects the process for the second rebuild; set Locker and Store, or leave Hedge zero"))
	}
	if (o.Codec.Marshal == nil) != (o.Codec.Unmarshal == nil) {
		panic(errors.New("bellwether: Options.Codec has only one of Marshal and Unmarshal; set both, or neither for JSON"))
	}
	var told []func(key string, err error)
	if o.OnError != nil {
		told = append(told, o.OnError)
	}
	onLoadError := tellAll(told)
	for _, by := range o.Observers {
		if by.Error != nil {
			told = append(told, by.Error)
		}
	}
	o.OnError = tellAll(told)
	return settings{
		Options: o, eachCall: eachCall, OnLoadError: onLoadError,
		Freshness: Freshness{TTL: o.TTL, StaleWhileRevalidate: o.StaleWhileRevalidate, StaleIfError: o.StaleIfError},
	}
}

// tellAll returns an OnError that calls all of these.
func tellAll(told []func(key string, err error)) func(key string, err error) {
	return func(key string, err error) {
		for _, f := range told {
			// Its panic is no reason for a key's callers to fail.
			fault.Guard(func() error { f(key, err); return nil })
		}
	}
}

// A Cache keeps the values of a load, and sees to it that however many callers
// ask for a key, in however many processes, the load runs once. Create one with
// New. It is safe for concurrent use. Values are shared between callers and must
// not be modified.
type Cache[V any] struct {
	engine *engine[V]
	bind   binder[V] // of the load that New was given
	// together is the load that NewBatch was given, nil if New was called.
	together batchLoad[V]
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
	if o.TTL <= 0 {
		refuse("Options.TTL", o.TTL, "be positive: how long a value is fresh, such as time.Minute")
	}
	size := func(_ string, v V) int { return sizeof.Of(v) }
	if o.Size != nil {
		size = func(key string, v V) int { return o.Size(key, v) }
	}
	s := o.settings()
	if s.Store != nil && s.Namespace == "" {
		panic(errors.New(`bellwether: Options.Store without Options.Namespace: another cache on the store would be given this one's values for its own; name what the values are, such as Namespace: "users"`))
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
		bind:   userLoad[V](load),
	}
	c.engine.listen()
	return c
}

// A userLoad is a user's load. It needs nothing but the key.
type userLoad[V any] func(ctx context.Context, key string) (V, error)

func (l userLoad[V]) bind() loader[V] {
	return func(ctx context.Context, a attempt[V]) (V, error) { return l(ctx, a.key) }
}

// Get returns the value of key: at once if it is fresh, or stale within its
// window; else when the one rebuild that all callers share is done.
//
// The error is ErrNotFound if the load says so; the load's own error, or a
// [*RemoteError] with its text if it ran in another process, if it failed and
// nothing stale may be served; [ErrWaitTimeout] after MaxWait; [ErrOverloaded];
// [ErrClosed]; or ctx's error. A ctx that ends ends only this call's wait.
func (c *Cache[V]) Get(ctx context.Context, key string) (V, error) {
	return c.engine.get(ctx, key, c.bind)
}

// GetFunc is Get with a load of this call's own. Callers that meet share one
// rebuild, by the load of whichever came first. Its errors are those of Get.
func (c *Cache[V]) GetFunc(ctx context.Context, key string, load func(ctx context.Context, key string) (V, error)) (V, error) {
	if load == nil { // here, and not in the rebuild, which is not this caller's alone
		panic(errors.New("bellwether: GetFunc needs a load, a func(ctx context.Context, key string) (V, error); to use the load of New, call Get"))
	}
	return c.engine.get(ctx, key, userLoad[V](load))
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

// Stats returns what the cache has counted since it was made.
func (c *Cache[V]) Stats() Stats { return c.engine.snapshot() }

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
