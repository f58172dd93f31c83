package bellwether

import (
	"fmt"
	"strings"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/lookout"
)

// This file turns items into the store's entries and back.

// An outgoing entry is on its way to the store. Its Age is set when it is sent: the Codec may be slow,
// and the entry waits for its turn.
type outgoing struct {
	driver.Entry
	born instant
}

// asOf is the entry with its Age at now.
func (o *outgoing) asOf(now instant) driver.Entry {
	e := o.Entry
	e.Age = max(0, durations.Between(o.born, now))
	return e
}

func (k *storeKey) encode(it *items.Item) (outgoing, error) {
	e := k.entryOf(it)
	if it.Kind != driver.KindValue {
		return e, nil
	}
	err := fault.Guard(func() (err error) {
		e.Value, err = k.engine.marshal(it.Value)
		return err
	})
	return e, err
}

// entryOf returns the entry of an item without its value.
func (k *storeKey) entryOf(it *items.Item) outgoing {
	e := driver.Entry{
		Kind:                 it.Kind,
		Epoch:                it.Epoch,
		TTL:                  it.FreshUntil - it.Born,
		StaleWhileRevalidate: it.StaleUntil - it.FreshUntil,
		StaleIfError:         it.ErrorUntil - it.FreshUntil,
		Keep:                 it.KeepUntil - it.FreshUntil,
		BuildTime:            it.Build,
		Sweep:                it.Position,
		Failures:             it.Failures,
	}
	if it.Marks != nil {
		e.Validator, e.Tags = it.Marks.Validator, it.Marks.Tags
	}
	if over := k.engine.clock.Now() - it.FreshUntil; it.Kind == driver.KindNotFound && over >= 0 {
		e.Keep = durations.Add(over, waitersLife(it.Build)) // an ErrNotFound without a TTL is for waiting processes only
	}
	if it.Failures > 0 {
		e.RetryAge, e.Failure = durations.Between(it.Born, it.RetryAt), failureText(it.Err)
	}
	return outgoing{e, it.Born}
}

// maxFailure is the longest text of a failure in bytes. A store may refuse a longer entry, and then
// the processes would fail one after another.
const maxFailure = 4 << 10

func failureText(err error) string {
	text := err.Error()
	if len(text) > maxFailure {
		text = strings.ToValidUTF8(text[:maxFailure], "") + "..."
	}
	return text
}

// decode returns the item of the store's entry, nil if the entry is empty, and the entry's mark. A known item of
// the same rebuild spares decoding the value. If known stands beside the entry, known is the item.
func (k *storeKey) decode(there lookout.Reply, known *items.Item) (*items.Item, mark) {
	e := &there.Entry
	if !k.engine.knowsKind(e.Kind) {
		k.engine.OnError(k.key, &keyError{"decoding", k.key, fmt.Errorf("%w: unknown kind %d", driver.ErrCorrupt, e.Kind)})
		return nil, mark{}
	}
	switch {
	case e.Kind == driver.KindUnshared:
		return k.ownOf(there, known)
	case e.Kind == driver.KindUnelected:
		return nil, mark{unelected: e.Age < e.TTL}
	case e.Kind == driver.KindNone && e.Failures == 0:
		return nil, mark{}
	case known != nil && known.Epoch == e.Epoch && known.Beside:
		return k.engine.afterSweeps(k.key, known.Found(k.engine.trustedUntil(there.Asked))), mark{}
	}
	it := k.itemOf(there)
	if !k.decodeTo(it, known, e.Value) {
		return nil, mark{}
	}
	return k.engine.afterSweeps(k.key, it), mark{}
}

// decodeTo gives the item the entry's value: known's, if known is of the same rebuild.
func (k *storeKey) decodeTo(it, known *items.Item, value []byte) bool {
	if known != nil && known.Epoch == it.Epoch && known.Failures == it.Failures && known.Kind == it.Kind {
		it.Adopt(known)
		return true
	}
	if it.Kind != driver.KindValue {
		return true
	}
	err := fault.Guard(func() (err error) {
		it.Value, err = k.engine.unmarshal(value)
		return err
	})
	if err != nil {
		k.engine.OnError(k.key, &keyError{"decoding", k.key, fmt.Errorf("%w, maybe of a cache of another type in this Namespace: %w", driver.ErrCorrupt, err)})
	}
	return err == nil
}

// knowsKind reports whether this cache's values have the kind. A Middleware has no ErrNotFound: its zero value, nil, is
// no answer.
func (e *engine) knowsKind(kind driver.EntryKind) bool {
	return kind <= driver.KindUnelected && (kind != driver.KindNotFound || e.isAnswer(nil))
}

// itemOf returns the item of the store's entry without its value.
func (k *storeKey) itemOf(there lookout.Reply) *items.Item {
	e := &there.Entry
	it := &items.Item{Kind: e.Kind, Epoch: e.Epoch, Build: e.BuildTime, Position: e.Sweep, TrustedUntil: k.engine.trustedUntil(there.Asked)}
	it.Lifetime = items.NewLifetime(there.Came, items.Windows{
		Age: e.Age, TTL: e.TTL, StaleWhileRevalidate: e.StaleWhileRevalidate, StaleIfError: e.StaleIfError, Keep: e.Keep,
	})
	it.Held = e.Kind != driver.KindNone
	if e.Validator != "" || len(e.Tags) > 0 {
		it.Marks = &items.Marks{Validator: e.Validator, Tags: e.Tags}
	}
	if e.Failures > 0 {
		it.Failures, it.RetryAt = e.Failures, durations.Add(it.Born, e.RetryAge)
		it.Err = &RemoteError{Message: e.Failure}
	}
	return it
}

// ownOf is decode for an entry without its value. The value, or a failure to make it, is only in
// the process that has made it.
func (k *storeKey) ownOf(there lookout.Reply, known *items.Item) (own *items.Item, is mark) {
	e := &there.Entry
	if known != nil && known.Epoch == e.Epoch && (known.Failures > 0 || known.Kind == driver.KindValue) {
		// The lifetime is known's too: the entry has that of its writer.
		own = known.Found(k.engine.trustedUntil(there.Asked))
	}
	if e.Age < e.TTL && (own == nil || there.Came >= own.FreshUntil) {
		is.unshared = e.Epoch // a new epoch would make all others load again
	}
	return k.engine.afterSweeps(k.key, own), is
}
