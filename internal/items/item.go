// Package items has the answers of a cache as its process knows them, and the rules of their windows.
package items

import (
	"errors"
	"math"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
)

// An Item is an answer for a key in this process, immutable in the near tier and in a flight.
type Item struct {
	Lifetime
	Kind         driver.EntryKind
	Early        EarlyTry
	Beside       bool              // the store has not taken the item, which stands beside the entry of the epoch
	weight       uint32            // its memory in the near tier; 0 if not weighed yet
	Value        any               // if Kind is driver.KindValue, of the type that the face above knows
	Epoch        uint64            // of the item's rebuild, or of the store's entry if Beside; 0: none
	Build        time.Duration     // the duration of its load; 0: unknown
	Err          error             // the last failure, if Failures > 0
	TrustedUntil durations.Instant // until then it is valid without asking the store
	Marks        *Marks            // what its load has returned beside the value; nil: nothing
	// Position is the position of the log of sweeps that the load saw at its beginning.
	Position  uint64
	LoadBegan durations.Instant // 1 ns after the load began in this process, so it answers a call of that instant; 0: no load here
}

// Marks are the results of a load beside its value. They are immutable.
type Marks struct {
	Validator string   // distinguishes the value from others of its key, for the next load
	Tags      []string // names for sweeps
}

// A Product is the result of one run of a load.
type Product struct {
	Value   any
	Windows *Windows // of the value or of its absence; nil: the options' windows
	Marks   *Marks   // nil: none
	Kept    *Item    // the item whose value stays; nil: the value is new
	Failure error    // the failure that the value, an error page, tells; nil for other values
}

// Found is a copy for a flight that has found, and not made, the item.
func (it *Item) Found(trusted durations.Instant) *Item {
	c := *it
	c.TrustedUntil, c.LoadBegan = trusted, 0
	return &c
}

// Answer is a caller's answer from the item.
func (it *Item) Answer() (any, error) {
	switch it.Kind {
	case driver.KindValue:
		return it.Value, nil
	case driver.KindNotFound:
		return nil, driver.ErrNotFound
	}
	return nil, it.Err
}

// A Clock gives a cache's instants. The monotonic clock alone costs half of time.Now.
type Clock struct{ Base time.Time }

func (c Clock) Now() durations.Instant { return time.Since(c.Base) }

// Instant is the instant of t.
func (c Clock) Instant(t time.Time) durations.Instant { return t.Sub(c.Base) }

func errorWeight(err error) uint64 {
	w := 0
	if err != nil {
		w = len(err.Error())
	}
	if p, ok := err.(*fault.PanicError); ok {
		w += len(p.Stack)
	}
	return uint64(w)
}

// overhead is the memory that an item costs in the near tier beside its key and value: the item itself, its node and
// its places in the table and in the policy's queues, as `bench near` measures them.
const overhead = 272

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

// heaviest is the largest weight. It is an int for the observers, also on a machine of 32 bits.
const heaviest = min(math.MaxUint32, math.MaxInt)

// Weigh sets an unweighed item's weight. size is the memory of its value.
func (it *Item) Weigh(key string, size func(key string, value any) int) {
	if it.weight != 0 {
		return
	}
	w := uint64(len(key) + overhead)
	if it.Kind == driver.KindValue {
		w += uint64(max(0, size(key, it.Value))) + it.Marks.weight()
	}
	if it.RemembersFailures() { // otherwise the tier gets the item without Err, see Forgetting
		w += errorWeight(it.Err)
	}
	it.weight = uint32(min(w, heaviest)) // an item of 4 GiB does not become light
}

var errForgotten = errors.New("bellwether: rebuild failed")

// Forgetting is the item at now, without a failure that answers no caller any more. The weight stays: the failure's text
// is user code, and may be another now.
func (it *Item) Forgetting(now durations.Instant) *Item {
	if it.Failures == 0 || it.BackingOff(now) {
		return it
	}
	c := *it
	c.Err = errForgotten
	return &c
}

// Adopt copies the decoded value and the failure of known, which is the same item in this process,
// into an item from the store. A failure that known has forgotten stays the store's.
func (it *Item) Adopt(known *Item) {
	remote := it.Err
	it.Value, it.Err, it.weight = known.Value, known.Err, known.weight
	if known.Err == errForgotten {
		it.Err = remote
	}
	if it.Early = known.Early; it.Early == EarlyTryHad {
		it.RetryAt = known.RetryAt // earlier than the store's
	} else {
		// A slow reply makes an entry look older than the entry is, so the later time is closer to the truth.
		it.RetryAt = max(it.RetryAt, known.RetryAt)
	}
}

// Unweighed is a copy without a weight, for changes.
func (it *Item) Unweighed() *Item {
	c := *it
	c.weight = 0
	return &c
}

// Weight is the memory that the weighed item takes, in bytes.
func (it *Item) Weight() uint32 { return it.weight }

// Over reports whether now is at or after End. For fresh items, which are most, it is quicker.
func (it *Item) Over(now durations.Instant) bool { return now >= it.FreshUntil && now >= it.End() }

// An EarlyTry reports whether a failed key is tried again when its origin recovers. It is for failures
// in this process: another process's failure, a text in the store, may have named its own retry.
type EarlyTry uint8

const (
	NoEarlyTry EarlyTry = iota
	EarlyTryDue
	EarlyTryHad // since the key's last success: if the early try fails too, the pauses stay
)
