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

// This file has loads that start from the previous value and return more than a value.

// A Request asks a load for a key.
type Request[V any] struct {
	Key string
	// Previous is the latest value of the key, if Found. It may be fresh, and must not be modified.
	Previous V
	// Found reports whether Previous is set. There is no Previous after an invalidation, nor after the
	// windows without a Validator or a remembered failure.
	Found bool
	// Validator is the Result.Validator of Previous, or empty.
	Validator string
}

// A Result is the answer of a load.
type Result[V any] struct {
	Value V
	// NotModified gives Previous a new lifetime in place of Value. A store that can prolong an entry is
	// not sent the value again. It is an error if Request.Found is false.
	NotModified bool
	// Freshness replaces the times of the options. A window of zero is closed. Zero: only waiting callers
	// get the value. With ErrNotFound it replaces NotFoundTTL. Nil: the options' times.
	Freshness *Freshness
	// Tags are for [Cache.InvalidateMatching], such as "org:7". Nil: none; with NotModified as before.
	Tags []string
	// Validator identifies this version of the value, such as an ETag or a row's version. Its value stays
	// for an hour after its TTL at least, for the next load. Empty: none; with NotModified as before.
	Validator string
}

// validatorKeep is how long the next load can start from an expired value with a validator.
const validatorKeep = time.Hour

// NewLoader is [New] for a load that takes a [Request] and returns a [Result].
func NewLoader[V any](load func(ctx context.Context, r Request[V]) (Result[V], error), o Options) *Cache[V] {
	if load == nil {
		panic(errors.New("bellwether: NewLoader needs a load, a func(ctx context.Context, r Request[V]) (Result[V], error)"))
	}
	return newCache(richLoad[V](load), o)
}

type richLoad[V any] func(ctx context.Context, r Request[V]) (Result[V], error)

func (l richLoad[V]) bind() loader[V] {
	return func(ctx context.Context, a attempt[V]) (product[V], error) {
		result, err := l(ctx, requestOf(a.key, a.present))
		return result.product(a.key, a.present, err)
	}
}

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
