package bellwether

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is the loads that say more than a value: they start from the previous one, and say how
// long the new one lives and what it is called.

// A Request is what a load is asked for, and what it may start from.
type Request[V any] struct {
	Key string
	// Previous is the key's latest value, if Found: a stale one, or a fresh one that is to be
	// rebuilt before it expires. It must not be modified.
	Previous V
	// Found tells that there is a Previous. Without stale windows and a Validator there is none
	// once a value has expired, and there is none after an invalidation.
	Found bool
	// Validator is what the load of Previous has returned, "" if it has returned none.
	Validator string
}

// A Result is what a load returns for a key.
type Result[V any] struct {
	Value V
	// NotModified says that Previous is still the value, for a new lifetime; Value does not
	// count. A store that can prolong an entry is not sent the value again. It is an error
	// unless the request has a Previous.
	NotModified bool
	// Freshness replaces what the options say of the value's windows, all of them: one that is
	// left zero is closed, and with the zero Freshness the value answers those who wait for it,
	// and is not kept. With ErrNotFound it replaces NotFoundTTL; with other errors it does not
	// count. Nil: as the options say.
	Freshness *Freshness
	// Tags are names by which [Cache.InvalidateMatching] finds the value, such as "org:7". Nil:
	// none, or with NotModified those of Previous.
	Tags []string
	// Validator tells this value from others of its key, such as an ETag or a row's version. The
	// next load gets it with the value, which is kept for that for an hour beyond its windows.
	// Empty: none, or with NotModified that of Previous.
	Validator string
}

// validatorKeep is how long a value with a validator is kept for the next load.
const validatorKeep = time.Hour

// NewLoader is [New] with a load that starts from the previous value and says more than the new one.
func NewLoader[V any](load func(ctx context.Context, r Request[V]) (Result[V], error), o Options) *Cache[V] {
	if load == nil {
		panic(errors.New("bellwether: NewLoader needs a load, a func(ctx context.Context, r Request[V]) (Result[V], error)"))
	}
	return newCache(richLoad[V](load), o)
}

// A richLoad is a user's load of requests.
type richLoad[V any] func(ctx context.Context, r Request[V]) (Result[V], error)

func (l richLoad[V]) bind() loader[V] {
	return func(ctx context.Context, a attempt[V]) (product[V], error) {
		result, err := l(ctx, requestOf(a.key, a.present))
		return result.product(a.key, a.present, err)
	}
}

// requestOf is the request of a load that starts from the item, nil if there is none.
func requestOf[V any](key string, from *items.Item[V]) Request[V] {
	r := Request[V]{Key: key}
	if from != nil && from.Held && from.Kind == driver.KindValue {
		r.Previous, r.Found = from.Value, true
		if from.Marks != nil {
			r.Validator = from.Marks.Validator
		}
	}
	return r
}

// product is what the load of key has made that has returned r and err, and has started from the item.
func (r Result[V]) product(key string, from *items.Item[V], err error) (product[V], error) {
	p := product[V]{value: r.Value}
	if r.Freshness != nil {
		w := r.Freshness.windows()
		p.windows = &w
	}
	if err != nil {
		return p, err
	}
	marks := items.Marks{Validator: r.Validator, Tags: slices.Clone(r.Tags)}
	if r.NotModified {
		if !requestOf(key, from).Found {
			return p, fmt.Errorf("bellwether: the load of %q says NotModified, and there was no Previous; return a Value where Request.Found is false", key)
		}
		p.kept, p.value = from, from.Value
		if from.Marks != nil {
			marks = items.Marks{Validator: cmp.Or(r.Validator, from.Marks.Validator), Tags: marks.Tags}
			if r.Tags == nil {
				marks.Tags = from.Marks.Tags
			}
		}
	}
	if marks.Validator != "" || len(marks.Tags) > 0 {
		p.marks = &marks
	}
	return p, nil
}
