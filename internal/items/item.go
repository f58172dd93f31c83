// Package items has the answers of a cache as its process knows them, and the rules by which
// their windows pass. What to do for a caller by these rules is the cache's.
package items

import (
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/near"
)

// An Item is one answer for a key as this process knows it. Items are
// immutable once they have been handed to the near tier or to a flight.
type Item[V any] struct {
	Lifetime
	Kind    driver.EntryKind
	weight  uint32            // what it takes in the near tier; 0 if not weighed yet
	Value   V                 // if kind is driver.KindValue
	Epoch   uint64            // of the rebuild that made it, or of the entry beside which it stands; 0: of none
	Build   time.Duration     // how long that rebuild took
	Err     error             // the last failure, if Failures > 0
	Trusted durations.Instant // until when the store need not be asked whether it still holds
	Beside  bool              // the store has not taken it: it stands beside the store's entry of that epoch
	Early   EarlyTry
	Marks   *Marks // what its load has said of the value beside it; nil: nothing
	// Position is up to where the log of sweeps was known when its load began.
	Position uint64
	Made     durations.Instant // the instant after the load that made it began in this process; 0 if none did
}

// Marks are what a load says of its value beside the value. They do not change.
type Marks struct {
	Validator string   // tells the value from others of its key, for the next load
	Tags      []string // what sweeps may call the value
}

// Found is a copy for a flight that finds the item, and has not made it.
func (it *Item[V]) Found(trusted durations.Instant) *Item[V] {
	c := *it
	c.Trusted, c.Made = trusted, 0
	return &c
}

// Answer is what a caller gets for the item.
func (it *Item[V]) Answer() (V, error) {
	switch it.Kind {
	case driver.KindValue:
		return it.Value, nil
	case driver.KindNotFound:
		var zero V
		return zero, driver.ErrNotFound
	}
	var zero V
	return zero, it.Err
}

// A Clock gives a cache's instants. Reading the monotonic clock alone is half
// the price of time.Now.
type Clock struct{ Base time.Time }

// Now is the present moment.
func (c Clock) Now() durations.Instant { return time.Since(c.Base) }

// Instant is the moment t.
func (c Clock) Instant(t time.Time) durations.Instant { return t.Sub(c.Base) }

// errorWeight is the part of an item's weight that is its failure's.
func errorWeight(err error) (w int) {
	if err != nil {
		w = len(err.Error())
	}
	if p, ok := err.(*fault.PanicError); ok {
		w += len(p.Stack)
	}
	return w
}

// weight is the memory of the marks.
func (m *Marks) weight() uint64 {
	if m == nil {
		return 0
	}
	w := 64 + len(m.Validator)
	for _, tag := range m.Tags {
		w += 16 + len(tag)
	}
	return uint64(w)
}

// Weigh sets an item's weight, unless it has one: size is the memory of its value.
func (it *Item[V]) Weigh(key string, size func(key string, value V) int) {
	if it.weight != 0 {
		return
	}
	w := uint64(len(key) + near.Overhead)
	if it.Kind == driver.KindValue {
		w += uint64(max(0, size(key, it.Value))) + it.Marks.weight()
	}
	it.weight = uint32(min(w+uint64(errorWeight(it.Err)), 1<<32-1))
}

// errForgotten stands in the near tier for a failure that answers nobody any more.
var errForgotten = errors.New("bellwether: rebuild failed")

// Forgetting is the item without a failure that answers nobody at the time now.
func (it *Item[V]) Forgetting(now durations.Instant) *Item[V] {
	if it.Failures == 0 || it.BackingOff(now) || it.Err == errForgotten {
		return it
	}
	c := *it
	c.setFailure(errForgotten)
	return &c
}

// Adopt gives the item, which is as the store has it, the decoded value and the failure of
// known, which is the same item as this process has it. A failure that known has forgotten stays
// as the store has it.
func (it *Item[V]) Adopt(known *Item[V]) {
	remote := it.Err
	it.Value, it.Err, it.weight = known.Value, known.Err, known.weight
	if known.Err == errForgotten {
		it.setFailure(remote)
	}
	it.Early, it.RetryAt = known.Early, min(it.RetryAt, known.RetryAt)
}

// Unweighed is a copy that may be changed before it is weighed.
func (it *Item[V]) Unweighed() *Item[V] {
	c := *it
	c.weight = 0
	return &c
}

// setFailure gives the item, which is weighed and not shared yet, another failure.
func (it *Item[V]) setFailure(err error) {
	it.weight += uint32(errorWeight(err)) - uint32(errorWeight(it.Err))
	it.Err = err
}

// Weight implements [near.Item].
func (it *Item[V]) Weight() uint32 { return it.weight }

// Over implements [near.Item].
func (it *Item[V]) Over(now durations.Instant) bool { return now >= it.FreshUntil && now >= it.End() }

// An EarlyTry says whether a failed key is to be tried again when its origin
// recovers. It is for what failed in this process: another process's failure may have
// said itself when to try again, and its text alone has come here.
type EarlyTry uint8

const (
	NoEarlyTry EarlyTry = iota
	EarlyTryDue
	EarlyTryHad // since the key's last success: what fails all the same keeps its pauses
)
