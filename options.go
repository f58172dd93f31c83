package bellwether

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is what users set: the options of both faces, their defaults, and what is refused.

// Options configure a [Cache]. Only TTL is needed. Zero means a field's default. A
// negative value switches off what a field is for: a window, NotFoundTTL, ErrorTTL,
// Patience, EarlyRefresh, TTLJitter, Hedge or NearTTL. Where nothing can be switched off,
// as of a bound, a negative value is refused.
type Options struct {
	// TTL is how long a value is fresh, counted from when its load returned.
	// It must be positive. A load may choose otherwise for its value, see [NewLoader]. The
	// times of a value are kept in Store with it: those of the process that has loaded it
	// count in all.
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
	// BatchWindow is how long a flight of a [NewBatch] cache waits for others of this process, so
	// that single calls of Get, and calls of GetMany, load together. It is added to the wait for
	// each value that is not in the near tier. Zero: not at all; each call is a batch of its own.
	BatchWindow time.Duration
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

	// Fleet joins the caches of several processes. Zero: this process is alone.
	Fleet Fleet
	// Limits bound what the cache takes.
	Limits Limits

	// Sweeps lets [Cache.InvalidateMatching] reach the whole fleet: the cache follows a log of
	// these invalidations, for which each process that has misses reads Store once more in a half
	// of Fleet.NearTTL. All caches of a fleet need it set alike. Without a Store there is no log
	// to follow, and InvalidateMatching needs no Sweeps. Default: off.
	Sweeps bool

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
	Observers []observe.Observer
}

// A Fleet is how the caches of several processes share values, and who of them rebuilds.
// Caches with one Namespace on one Store are of one fleet. A cache's Close does not close its
// engines.
type Fleet struct {
	// Engine is an engine that is store and locker at once, such as package redisfleet's:
	// one request looks, elects and claims, and one commits and releases. Nil: Store and
	// Locker are separate engines, or none.
	Engine driver.Elector
	// Store keeps the entries for a fleet. Nil: the values stay in this process, unless
	// there is an Engine.
	Store driver.Store
	// Locker elects who rebuilds, among the processes that share Store. Nil:
	// each process rebuilds for itself. A Locker without a Store is refused:
	// the processes would take turns and share nothing.
	Locker driver.Locker
	// Namespace says what the values are, such as "users". It comes before every key
	// in Store and Locker, with a colon behind it, and so has none itself. A Cache with
	// a Store needs one, and caches of different values need different ones: a cache
	// takes what it finds under its keys for its own values. A Middleware, whose keys are
	// URLs, needs none; without one its keys stand alone.
	Namespace string
	// EngineTimeout is how long a rebuild waits in all for engines that do not
	// answer, before it goes on without them. Zero means 500 ms.
	EngineTimeout time.Duration
	// LeaseTTL is the longest that a holder's lease lasts unless it is renewed, and
	// so the longest time after which a crashed holder is replaced. Where nothing stale
	// can be served meanwhile, a lease lasts for 1.75 times what its key's last build
	// took, or, for a key of which nothing is known, what builds take here of late (and
	// as long as it may where there were none), the engines' part in it included; but
	// never shorter than 500 ms and EngineTimeout, unless LeaseTTL is. It is renewed at
	// a third of its length, for as long as the holder lives. An Engine grants the lease
	// together with the first look at the entry: until the first renewal the lease lasts as
	// for a key of which this process knows nothing else. Zero means 5 s.
	LeaseTTL time.Duration
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
}

// Limits bound what a cache takes of its process and of the origin. None of them can be off.
type Limits struct {
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
	// NearBytes bounds the near tier, the decoded values in this process. Zero
	// means 64 MiB.
	NearBytes int64
}

// settings are the Options that the engine goes by, with their defaults.
type settings struct {
	Options
	Fleet // with Store and Locker set if Engine is
	Limits
	windows items.Windows // of a value whose load says nothing of them
	// OnLoadError is the user's OnError; observers are told of loads by their Rebuild.
	OnLoadError func(key string, err error)
	eachCall    bool // has the store asked: NearTTL was negative
}

// refuse panics because of an option.
func refuse(field string, value any, must string) {
	panic(fmt.Errorf("bellwether: %s is %v; it must %s", field, value, must))
}

// settings fills in the defaults and panics on options that cannot be meant. The panic names
// the options by the struct that the user has filled in.
func (o Options) settings(options string) settings {
	eachCall := o.Fleet.NearTTL < 0
	o.fillTimes(options)
	checkRules(options, o.rules())
	o.fillNumbers()
	o.Fleet.fillEngine()
	observed := []func(key string, err error){o.OnError}
	for _, by := range o.Observers {
		observed = append(observed, by.Error)
	}
	onLoadError := tellAll(observed[:1:1])
	o.OnError = tellAll(observed)
	return settings{
		Options: o, Fleet: o.Fleet, Limits: o.Limits, eachCall: eachCall, OnLoadError: onLoadError,
		windows: items.Windows{TTL: o.TTL, StaleWhileRevalidate: o.StaleWhileRevalidate, StaleIfError: o.StaleIfError},
	}
}

// fillTimes fills in the defaults of all durations, and panics on a negative one that cannot be off.
func (o *Options) fillTimes(options string) {
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
		{"Fleet.LeaseTTL", &o.Fleet.LeaseTTL, 5 * time.Second, false},
		{"MaxWait", &o.MaxWait, 0, false}, // see below
		{"Fleet.EngineTimeout", &o.Fleet.EngineTimeout, 500 * time.Millisecond, false},
	} {
		if *d.value < 0 && !d.off {
			refuse(options+"."+d.name, *d.value, notNegative)
		}
		// What is off lasts for no time at all.
		*d.value = max(0, cmp.Or(*d.value, d.zero))
	}
	if o.Fleet.NearTTL < 0 {
		o.Fleet.NearTTL = 1 // what is true at a moment answers the calls from before it
	}
	o.Fleet.NearTTL = cmp.Or(o.Fleet.NearTTL, time.Second)
	o.MaxWait = cmp.Or(o.MaxWait, durations.Add(o.RebuildTimeout, o.Fleet.LeaseTTL))
}

// A rule is what an option must hold.
type rule struct {
	option string
	value  any
	broken bool
	must   string
}

// checkRules panics for the first rule that is broken. It adds the struct's name to those of the options.
func checkRules(options string, rules []rule) {
	for _, r := range rules {
		if r.broken {
			refuse(options+"."+r.option, r.value, r.must)
		}
	}
}

// notNegative is what a bound must be.
const notNegative = "not be negative; zero means the default"

// usable is what an engine must be.
const usable = "be a usable value, or nil without a type"

// rules are what all options must hold but for the durations' signs.
func (o *Options) rules() []rule {
	f := &o.Fleet
	return []rule{
		{"MaxErrorTTL", o.MaxErrorTTL, o.MaxErrorTTL < o.ErrorTTL, "not be below ErrorTTL; zero means the default"},
		{"Limits.MaxRebuilds", o.Limits.MaxRebuilds, o.Limits.MaxRebuilds < 0, notNegative},
		{"Limits.MaxQueued", o.Limits.MaxQueued, o.Limits.MaxQueued < 0, notNegative},
		{"Limits.NearBytes", o.Limits.NearBytes, o.Limits.NearBytes < 0, notNegative},
		{"EarlyRefresh", o.EarlyRefresh, math.IsNaN(o.EarlyRefresh) || math.IsInf(o.EarlyRefresh, 1), "be a number from 0; 1 is usual"},
		{"Hedge", o.Hedge, !(o.Hedge <= 0 || o.Hedge > 1) || math.IsInf(o.Hedge, 1), "be a number above 1, such as 3, or zero for no hedges"},
		{"HedgeShare", o.HedgeShare, !(o.HedgeShare >= 0 && o.HedgeShare <= 1), "be from 0 to 1, such as 0.02, which zero means"},
		{"TTLJitter", o.TTLJitter, !(o.TTLJitter < 1), "be from 0 to less than 1, such as 0.1"},
		{"Fleet.Namespace", strconv.Quote(o.Fleet.Namespace), strings.Contains(o.Fleet.Namespace, ":"), "have no colon: a colon ends the namespace, so \"a:b\" would share keys with \"a\""},
		{"Fleet.Engine", fmt.Sprintf("a nil %T", f.Engine), f.Engine != nil && adapter.Missing(f.Engine), usable},
		{"Fleet.Store", fmt.Sprintf("a nil %T", f.Store), f.Store != nil && adapter.Missing(f.Store), usable},
		{"Fleet.Locker", fmt.Sprintf("a nil %T", f.Locker), f.Locker != nil && adapter.Missing(f.Locker), usable},
		{"Fleet.Engine", "set beside Store or Locker", f.Engine != nil && (f.Store != nil || f.Locker != nil), "stand alone: it is both; leave Store and Locker nil"},
		{"Fleet.Locker", "set without a Store", f.Locker != nil && f.Store == nil && f.Engine == nil, "have one: processes would take turns and share nothing; set Store, or leave Locker nil"},
		{"Hedge", o.Hedge, o.Hedge > 0 && f.Locker == nil && f.Engine == nil, "be zero without Fleet.Locker: no locker elects the process for the second rebuild; set Locker and Store, or an Engine"},
		{"Codec", "half set", (o.Codec.Marshal == nil) != (o.Codec.Unmarshal == nil), "have both of Marshal and Unmarshal, or neither for JSON"},
	}
}

// fillNumbers fills in the defaults of all numbers.
func (o *Options) fillNumbers() {
	for _, f := range []*float64{&o.EarlyRefresh, &o.Hedge, &o.TTLJitter} {
		*f = max(0, *f)
	}
	o.HedgeShare = cmp.Or(o.HedgeShare, 0.02)
	o.Limits.MaxRebuilds = cmp.Or(o.Limits.MaxRebuilds, 128)
	o.Limits.MaxQueued = cmp.Or(o.Limits.MaxQueued, 4096)
	o.Limits.NearBytes = cmp.Or(o.Limits.NearBytes, 64<<20)
}

// fillEngine makes an engine that is both the store and the locker.
func (f *Fleet) fillEngine() {
	if f.Engine != nil {
		f.Store, f.Locker = f.Engine, f.Engine
	}
}

// tellAll returns an OnError that calls all of these.
func tellAll(told []func(key string, err error)) func(key string, err error) {
	return func(key string, err error) {
		for _, f := range told {
			if f == nil {
				continue
			}
			// Its panic is no reason for a key's callers to fail.
			fault.Guard(func() error { f(key, err); return nil })
		}
	}
}
