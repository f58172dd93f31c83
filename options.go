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

// This file has the options of both faces and of a fleet. It fills in the defaults and refuses
// options that cannot be meant.

// Options configure a [Cache]. Only TTL is required. A negative value is refused where a field's
// comment does not mention it. In the repository, docs/operations.md helps to choose values.
type Options struct {
	// TTL is how long a value is fresh after its load has returned. Zero and negative values are
	// refused. A load may choose its own times, see [NewLoader]. Store keeps these times for all
	// processes.
	TTL time.Duration
	// StaleWhileRevalidate is how long after TTL a stale value is served at once, while one rebuild
	// runs behind the callers (RFC 5861 section 3). Zero or negative: off. If Store has not
	// confirmed the value within NearTTL, calls ask Store first, and wait for at most EngineTimeout
	// until it counts as down.
	StaleWhileRevalidate time.Duration
	// StaleIfError is how long after TTL a stale value is served if its rebuild fails (RFC 5861
	// section 4). Zero or negative: off.
	StaleIfError time.Duration
	// NotFoundTTL is how long an [ErrNotFound] of a load is remembered. Zero means TTL. Negative:
	// only the waiting callers get ErrNotFound.
	NotFoundTTL time.Duration
	// ErrorTTL is the pause between a key's first failure and the next try. Zero means 1 s.
	// Negative: off, failures are not remembered. The pause doubles with each further failure, up
	// to MaxErrorTTL, less a random part of up to a half. If all loads of this process have failed
	// for an ErrorTTL and one load succeeds, each failed key has one try before its pause ends.
	//
	// An error with a method RetryAfter() time.Duration, also a wrapped one, chooses its own pause;
	// zero or less means that the failure is not remembered. Context errors, ErrClosed and
	// ErrOverloaded answer the waiting callers of this process and are not remembered. Callers in
	// other processes get only context.DeadlineExceeded. After another such error one of the other
	// processes tries next.
	ErrorTTL time.Duration
	// MaxErrorTTL is the longest pause after failures of a key, and so after an origin's recovery.
	// It must not be below ErrorTTL. Zero means 5 s, or ErrorTTL if longer.
	MaxErrorTTL time.Duration

	// EarlyRefresh rebuilds popular values in the background before they expire. It is the beta of
	// XFetch (Vattani, Chierichetti, Lowenstein, VLDB 2015), and 1 is usual. The nearer the expiry,
	// in units of the last build time, the likelier a hit begins a rebuild, by one caller of the
	// fleet. For a value with ten reads per build time, the rebuild is late at 1 expiry in 40 with
	// 1, and at 1 in 200,000 with 2. Zero or negative: off.
	EarlyRefresh float64
	// TTLJitter is the largest fraction of the TTL that is subtracted at random, from 0 to less
	// than 1. It keeps values that were loaded together from expiring together. Key and epoch
	// decide the amount, so all processes agree. Zero or negative: off.
	TTLJitter float64

	// Patience is how long a caller with a stale value waits for the rebuild before it takes the
	// stale value. Zero or negative: off.
	Patience time.Duration
	// MaxWait is how long a caller without a stale value waits. Zero means RebuildTimeout plus
	// LeaseTTL: time for one takeover.
	MaxWait time.Duration
	// RebuildTimeout is the time limit of a load. At the limit the load's context ends, and its
	// callers get [ErrRebuildTimeout]. Zero means 30 s.
	RebuildTimeout time.Duration
	// Hedge begins a second rebuild beside one that takes this many times the usual build time. 3
	// is usual; Hedge must be above 1, and needs a Locker or an Engine. Zero or negative: off. Set
	// Hedge only if a load may run twice at one time. A rebuild has at most one hedge, after 50 ms
	// or more, in another process whose callers wait for the value. The first committed value
	// answers all callers, and the other load is cancelled. The usual build time is that of the
	// key's last build. For an unknown key, three quarters of this process's latest builds were
	// quicker.
	Hedge float64
	// HedgeShare is the largest fraction of this process's rebuilds that it may hedge, from 0 to 1.
	// Zero means 0.02. No hedge begins while half of the latest rebuilds are slow: then the origin
	// is slow.
	HedgeShare float64
	// BatchWindow is how long a load of a [NewBatch] cache waits for other calls of this process.
	// Calls of Get and GetMany within the window load together. The window delays each value that
	// is not in the near tier. Zero: off, each call is a batch. New and NewLoader refuse a
	// BatchWindow.
	BatchWindow time.Duration
	// Size returns the bytes that a value takes in the near tier. It is called for several values
	// at a time. Nil: the memory that the value reaches, by reflection, without the memory behind a
	// struct with a field of package sync or sync/atomic. Set Size if values keep their own bytes
	// there.
	Size func(key string, value any) int
	// Codec turns values into bytes for Store, several at a time. Zero: JSON, and values of type
	// []byte and string as they are. JSON loses unexported fields and the types behind interfaces.
	// New reports such fields to OnError once, and panics if values cannot come back, as with a
	// channel, a function or an interface with methods. JSON decodes values of an older type as far
	// as the names agree, without an error: give a changed type a new Namespace.
	Codec Codec

	// Fleet joins the caches of several processes. Zero: this process is alone.
	Fleet Fleet
	// Limits bound the cache in this process.
	Limits Limits

	// Sweeps lets [Cache.InvalidateMatching] reach the whole fleet by a log of invalidations. A
	// process with misses then reads Store once more in half a NearTTL. Set Sweeps alike in all
	// caches of a fleet. A cache without a Store needs no Sweeps. Default: off.
	Sweeps bool

	// OnError is called for each error that no caller gets: a silent engine, a late commit, a lost
	// lease, bytes that do not decode, a failure behind a stale value or without waiting callers.
	// It runs on the goroutine that meets the error, also before New or NewMiddleware has returned.
	// It must be quick and safe for concurrent use. Nil: such errors are dropped. An Observer's
	// Rebuild gets all loads.
	OnError func(key string, err error)
	// Observers are called for calls served, rebuilds, herds, breakers and evictions. Packages
	// bellwetherslog, bellwetherprom and bellwetherotel have observers. None: no calls, at no cost.
	Observers []observe.Observer
}

// A Fleet connects the caches of several processes. Caches with the same Namespace on the same
// Store are of one fleet. Closing a cache does not close its engines.
type Fleet struct {
	// Engine is a store and a locker in one, such as package redisfleet's, with fewer requests.
	// Leave Store and Locker nil then. Nil: none.
	Engine driver.Elector
	// Store keeps the entries of the fleet. Nil, without an Engine: values stay in this process.
	Store driver.Store
	// Locker elects the process that rebuilds. It needs a Store. Nil: each process rebuilds for
	// itself.
	Locker driver.Locker
	// Namespace names the kind of the values, such as "users". It precedes each key in Store and
	// Locker, and must not contain a colon. Empty: none. A Cache with a Store requires a Namespace.
	// Caches of different values need different ones, because a cache takes each entry under its
	// keys for its own. A Middleware needs none, because its keys are URLs.
	Namespace string
	// EngineTimeout is the total time that a rebuild waits for silent engines before it goes on
	// without them. Zero means 500 ms.
	EngineTimeout time.Duration
	// LeaseTTL is the longest lease of a holder that does not renew it, and so the longest time
	// until a crashed holder is replaced. Zero means 5 s. A living holder renews its lease at a
	// third of its length. If no stale value can be served during a takeover, the lease is 1.75
	// times the key's last build, with the engines' part; at least 500 ms and EngineTimeout, and at
	// most LeaseTTL. An unknown key has the usual build of this process, and LeaseTTL without one.
	// An Engine grants the lease with the first read of the entry, as for a key of which only this
	// process's own knowledge exists.
	LeaseTTL time.Duration
	// NearTTL is how long the near tier serves a value before it asks Store again. An Invalidate
	// reaches other processes within this time. Zero means 1 s. Without a Store NearTTL has no
	// effect.
	//
	// Negative: off. Each call asks Store, once for calls at the same time, and an Invalidate that
	// has returned holds in all processes. This process still keeps its values, up to NearBytes: a
	// value that Store confirms is not decoded again, and values are served within their windows
	// while Store is silent. A value that Store has not taken is served for 1 s.
	NearTTL time.Duration
}

// Limits bound what a cache takes from its process and from the origin. Negative values are
// refused.
type Limits struct {
	// MaxRebuilds is how many loads run at one time in this process. Zero means 128; 4,096 for a
	// [Middleware], whose pages may fetch parts of their own site. A batch load counts as one load,
	// and a load past its timeout counts until it returns. A load that waits for another key of any
	// cache, with its own context, lends its slot to that key. Loads that wait for each other in
	// another way, such as over HTTP, need one slot each.
	MaxRebuilds int
	// MaxQueued is how many keys wait for a slot among MaxRebuilds. Zero means 4096. Up to 16 times
	// as many keys may wait for Store. Beyond either limit callers get a stale value or
	// [ErrOverloaded]. A GetMany counts as one key for each thousand of its keys.
	MaxQueued int
	// NearBytes is the size of the near tier, the decoded values in this process, in bytes. Zero
	// means 64 MiB.
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

// refuse panics because of an option.
func refuse(field string, value any, must string) {
	panic(fmt.Errorf("bellwether: %s is %v; it must %s", field, value, must))
}

// settings fills in the defaults and panics on options that cannot be meant. The panic names an
// option by options, the name of the struct that the user has filled in.
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

// fillTimes fills in the defaults of the durations and panics on a refused negative one.
func (o *Options) fillTimes(options string) {
	for _, d := range []struct {
		name  string
		value *time.Duration
		zero  time.Duration // the default
		off   bool          // a negative value is off
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
		{"MaxWait", &o.MaxWait, 0, false}, // its default follows the loop
		{"Fleet.EngineTimeout", &o.Fleet.EngineTimeout, 500 * time.Millisecond, false},
	} {
		if *d.value < 0 && !d.off {
			refuse(options+"."+d.name, *d.value, notNegative)
		}
		*d.value = max(0, cmp.Or(*d.value, d.zero))
	}
	if o.Fleet.NearTTL < 0 {
		o.Fleet.NearTTL = 1 // an answer of the store serves only the calls that came before it
	}
	o.Fleet.NearTTL = cmp.Or(o.Fleet.NearTTL, time.Second)
	o.MaxWait = cmp.Or(o.MaxWait, durations.Add(o.RebuildTimeout, o.Fleet.LeaseTTL))
}

// A rule is a condition on an option.
type rule struct {
	option string
	value  any
	broken bool
	must   string
}

// checkRules panics for the first broken rule.
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

func (o *Options) fillNumbers() {
	for _, f := range []*float64{&o.EarlyRefresh, &o.Hedge, &o.TTLJitter} {
		*f = max(0, *f)
	}
	o.HedgeShare = cmp.Or(o.HedgeShare, 0.02)
	o.Limits.MaxRebuilds = cmp.Or(o.Limits.MaxRebuilds, 128)
	o.Limits.MaxQueued = cmp.Or(o.Limits.MaxQueued, 4096)
	o.Limits.NearBytes = cmp.Or(o.Limits.NearBytes, 64<<20)
}

func (f *Fleet) fillEngine() {
	if f.Engine != nil {
		f.Store, f.Locker = f.Engine, f.Engine
	}
}

// tellAll returns an OnError that calls all the functions.
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
