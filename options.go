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

// This file has the options of a Cache, its Fleet and its Limits, with their defaults and their checks. Match is
// what a call invalidates.

// Options configure a [Cache]. Only TTL is required. A negative value is refused unless its field's
// comment mentions it, and so is a time of 2 to 999 ns, which lacks its unit. docs/options.md has the details.
type Options struct {
	// TTL is how long a value is fresh after its load. It must be positive. A [Result] may have its own.
	TTL time.Duration
	// StaleWhileRevalidate is how long after TTL a stale value is served at once, while one rebuild runs
	// behind it (RFC 5861 section 3). Zero or negative: off.
	StaleWhileRevalidate time.Duration
	// StaleIfError is how long after TTL a stale value is served if its rebuild fails (RFC 5861 section
	// 4). Zero or negative: off.
	StaleIfError time.Duration
	// NotFoundTTL is how long an [ErrNotFound] is remembered. Zero means TTL. Negative: off.
	NotFoundTTL time.Duration
	// ErrorTTL is the pause between a key's first failure and the next try. It doubles with each failure,
	// less a random part. An error with a method RetryAfter() time.Duration chooses its pause, whatever the
	// options. Errors of contexts and [ErrRebuildTimeout] have no pause. Zero means 1 s. Negative: off.
	ErrorTTL time.Duration
	// MaxErrorTTL is the longest such pause, at least ErrorTTL. Zero means 5 s, or ErrorTTL if longer.
	MaxErrorTTL time.Duration

	// EarlyRefresh rebuilds popular values in the background before they expire, once in the fleet. It is
	// the beta of XFetch: 1 is usual, and more is earlier. Zero or negative: off.
	EarlyRefresh float64
	// TTLJitter is the largest fraction of the TTL to subtract at random, below 1. Zero or negative: off.
	TTLJitter float64

	// Patience is how long a caller with a stale value waits for a fresh one, at most MaxWait. Zero or negative: off.
	Patience time.Duration
	// MaxWait is how long callers without a stale value wait. Zero means RebuildTimeout plus LeaseTTL.
	MaxWait time.Duration
	// RebuildTimeout limits a load, which then fails with [ErrRebuildTimeout]. Zero means 30 s.
	RebuildTimeout time.Duration
	// Hedge begins a second rebuild in another process after this many usual build times. It must be above
	// 1, and 3 is usual. Set Hedge only if a load may run twice at one time. It needs a Locker or Engine.
	// Zero or negative: off.
	Hedge float64
	// HedgeShare is the largest fraction of this process's rebuilds to hedge, up to 1. Zero means 0.02.
	HedgeShare float64
	// BatchWindow is how long a [NewBatch] load waits for other calls, to load together. Zero: off.
	BatchWindow time.Duration
	// Size returns a value's bytes in the near tier, for concurrent callers. The key's flight waits for Size,
	// so Size must not ask the cache for the key. Nil: by reflection.
	Size func(key string, value any) int
	// Codec turns values into bytes for Store, for concurrent callers. Zero: JSON, and values of type []byte
	// and string as they are. A changed type needs a new Namespace.
	Codec Codec

	// Fleet joins the caches of several processes. Zero: this process is alone.
	Fleet Fleet
	// Limits bound the cache in this process.
	Limits Limits

	// Sweeps lets [Cache.InvalidateMatching] reach the whole fleet, and must be alike in the fleet. A
	// process with misses reads Store once more in half a NearTTL. Default: off.
	Sweeps bool

	// OnError is called for each error that no caller gets, such as a silent engine. It runs where the
	// error occurs, also within New, and must be quick and safe for concurrent use. Nil: no calls.
	OnError func(key string, err error)
	// Observers are called for the cache's events, such as bellwetherprom's. None: no calls, at no cost.
	Observers []observe.Observer
}

// A Fleet connects the caches of several processes, by the same Namespace on the same Store. Closing a
// cache does not close its engines.
type Fleet struct {
	// Engine is a store and a locker at once, such as redisfleet's, in place of both. Nil: none.
	Engine driver.Elector
	// Store keeps the entries of the fleet. Nil, without an Engine: values stay in this process.
	Store driver.Store
	// Locker elects the process that rebuilds, and needs a Store. Nil: each process rebuilds alone.
	Locker driver.Locker
	// Namespace precedes each key in Store and Locker, such as "users", without a colon. A Cache with a
	// Store needs a Namespace that no cache of other values has. Empty: none, for a Middleware.
	Namespace string
	// EngineTimeout is how long a rebuild waits for silent engines in all, while the process runs. Zero means 500 ms.
	EngineTimeout time.Duration
	// LeaseTTL is the longest lease, and so about the longest time for which a call waits for a dead holder.
	// It is at least 10 ms. Zero means 5 s.
	LeaseTTL time.Duration
	// NearTTL is how long the near tier serves a value before asking Store again, and so how long another
	// process may miss an Invalidate. Zero means 1 s. Negative: off, each call asks Store, and an Invalidate
	// that has returned holds in all processes. There, a value that Store did not take is served for 1 s.
	// No effect without a Store.
	NearTTL time.Duration
}

// Limits bound what a cache takes from its process and from the origin. Negative values are refused.
type Limits struct {
	// MaxRebuilds is how many loads run at one time in this process. A load that waits for another key
	// with its own context lends its slot to that key. Zero means 128; 4,096 for a [Middleware].
	MaxRebuilds int
	// MaxQueued is how many keys wait for a slot among MaxRebuilds. Callers of further keys get a stale
	// value or [ErrOverloaded]. Zero means 4096.
	MaxQueued int
	// NearBytes is the size of the near tier, the values in this process. Zero means 64 MiB.
	NearBytes int64
}

// settings are an engine's options with their defaults.
type settings struct {
	Options
	Fleet // Store and Locker are set if Engine is
	Limits
	windows items.Windows // of a value whose load has no Freshness
	// OnLoadError is the user's OnError alone: observers get loads through their Rebuild.
	OnLoadError func(key string, err error)
	eachCall    bool // each call asks the store: NearTTL was negative
}

func refuse(field string, value any, must string) {
	panic(fmt.Errorf("bellwether: %s is %v; it must %s", field, value, must))
}

// settings fills in the defaults and panics on options that cannot be meant. The panic names an option
// by options, the name of the user's struct.
func (o Options) settings(options string) settings {
	eachCall := o.Fleet.NearTTL < 0
	o.fillTimes(options)
	checkRules(options, o.rules())
	o.fillNumbers()
	if f := &o.Fleet; f.Engine != nil {
		f.Store, f.Locker = f.Engine, f.Engine
	}
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

// fillTimes fills in the defaults of the durations.
func (o *Options) fillTimes(options string) {
	for _, t := range []timeOption{
		{"TTL", &o.TTL, 0, true},
		{"StaleWhileRevalidate", &o.StaleWhileRevalidate, 0, true},
		{"StaleIfError", &o.StaleIfError, 0, true},
		{"NotFoundTTL", &o.NotFoundTTL, o.TTL, true},
		{"ErrorTTL", &o.ErrorTTL, time.Second, true},
		{"MaxErrorTTL", &o.MaxErrorTTL, max(o.ErrorTTL, 5*time.Second), false},
		{"Patience", &o.Patience, 0, true},
		{"RebuildTimeout", &o.RebuildTimeout, 30 * time.Second, false},
		{"Fleet.LeaseTTL", &o.Fleet.LeaseTTL, 5 * time.Second, false},
		{"MaxWait", &o.MaxWait, 0, false}, // its default follows
		{"Fleet.EngineTimeout", &o.Fleet.EngineTimeout, 500 * time.Millisecond, false},
		{"Fleet.NearTTL", &o.Fleet.NearTTL, time.Second, true},
	} {
		t.fill(options)
	}
	o.Fleet.NearTTL = max(o.Fleet.NearTTL, 1) // off: an answer of the store serves only the calls that came before it
	o.MaxWait = cmp.Or(o.MaxWait, durations.Add(o.RebuildTimeout, o.Fleet.LeaseTTL))
	// A flight waits for another process up to its first caller's MaxWait. A caller that waits longer would begin
	// flight after flight.
	o.Patience = min(o.Patience, o.MaxWait)
}

type timeOption struct {
	name  string
	value *time.Duration
	zero  time.Duration // the default
	off   bool          // a negative value is off
}

// fill fills in the default, and panics on a duration that cannot be meant.
func (t timeOption) fill(options string) {
	switch d := *t.value; {
	case d < 0 && !t.off:
		refuse(options+"."+t.name, d, notNegative)
	case d > time.Nanosecond && d < time.Microsecond: // TTL: 60; a time.Nanosecond is meant, as the shortest time
		refuse(options+"."+t.name, d, "have a unit, such as 60*time.Second: a number alone is in nanoseconds")
	}
	*t.value = max(0, cmp.Or(*t.value, t.zero))
}

type rule struct {
	option string
	value  any
	broken bool
	must   string
}

func checkRules(options string, rules []rule) {
	for _, r := range rules {
		if r.broken {
			refuse(options+"."+r.option, r.value, r.must)
		}
	}
}

const notNegative = "not be negative; zero means the default"

const usable = "be a usable value, or nil without a type"

// rules are the conditions on all options except the signs of durations.
func (o *Options) rules() []rule {
	f := &o.Fleet
	return []rule{
		{"MaxErrorTTL", o.MaxErrorTTL, o.MaxErrorTTL < o.ErrorTTL, fmt.Sprintf("not be below ErrorTTL, %v; zero means the default", o.ErrorTTL)},
		// A shorter lease ends before its renewal arrives, and each process loads more than without a locker.
		{"Fleet.LeaseTTL", f.LeaseTTL, f.LeaseTTL < 10*time.Millisecond, "be at least 10ms, such as 5*time.Second: a holder renews its lease over the network; zero means the default"},
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

func (o *Options) fillNumbers() {
	for _, f := range []*float64{&o.EarlyRefresh, &o.Hedge, &o.TTLJitter} {
		*f = max(0, *f)
	}
	o.HedgeShare = cmp.Or(o.HedgeShare, 0.02)
	o.Limits.MaxRebuilds = cmp.Or(o.Limits.MaxRebuilds, 128)
	o.Limits.MaxQueued = cmp.Or(o.Limits.MaxQueued, 4096)
	o.Limits.NearBytes = cmp.Or(o.Limits.NearBytes, 64<<20)
}

func tellAll(told []func(key string, err error)) func(key string, err error) {
	return func(key string, err error) {
		for _, f := range told {
			if f == nil {
				continue
			}
			// A panic of an OnError must not fail a key's callers.
			fault.Guard(func() error { f(key, err); return nil })
		}
	}
}

// A Match selects the values of a [Cache], or the responses of a [Middleware], that match any of its
// fields. The zero Match selects nothing.
type Match struct {
	// Keys are the keys of a Cache, or URLs for a Middleware: both schemes, with all variants.
	Keys []string
	// Prefixes match the keys that begin with them. "http://host/a" matches "/a", "/a/b", "/ab" and
	// "/a?q" on that host, and "http://host" matches the whole host.
	Prefixes []string
	// Tags match values by [Result].Tags, and responses by [HTTPOptions].TagFields. Case counts.
	Tags []string
	// All matches everything in the fleet, for one place in the log of [Middleware.InvalidateMatching].
	All bool
	// Soft makes matches stale from now on instead of dropping them. The next load can start from a match
	// with a stale window or a [Result].Validator.
	Soft bool
}
