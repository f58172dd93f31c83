package bellwether

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/items"
)

// This file is what a load is asked for and what it returns, in the words of the users and of the engine.

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
	// get the value. With ErrNotFound it replaces NotFoundTTL, and may have stale windows. Nil: the options' times.
	Freshness *Freshness
	// Tags are for [Cache.InvalidateMatching], such as "org:7". Nil: none; with NotModified as before.
	Tags []string
	// Validator identifies this version of the value, such as an ETag or a row's version. Its value stays
	// for an hour after its TTL at least, for the next load. Empty: none; with NotModified as before.
	Validator string
}

// validatorKeep is how long the next load can start from an expired value with a validator.
const validatorKeep = time.Hour

func requestOf[V any](key string, from *items.Item) Request[V] {
	r := Request[V]{Key: key}
	if from != nil && from.Held && from.Kind == driver.KindValue {
		r.Previous, r.Found = valueOf[V](from.Value), true
		if from.Marks != nil {
			r.Validator = from.Marks.Validator
		}
	}
	return r
}

func (r Result[V]) product(key string, from *items.Item, err error) (items.Product, error) {
	p := items.Product{Value: r.Value}
	if f := r.Freshness; f != nil {
		p.Windows = &items.Windows{Age: f.Age, TTL: f.TTL, StaleWhileRevalidate: f.StaleWhileRevalidate, StaleIfError: f.StaleIfError}
	}
	if err != nil {
		return p, err
	}
	marks := items.Marks{Validator: r.Validator, Tags: slices.Clone(r.Tags)}
	if r.NotModified {
		if !requestOf[V](key, from).Found {
			return p, fmt.Errorf("bellwether: the load of %q says NotModified, and there was no Previous; return a Value where Request.Found is false", key)
		}
		p.Kept, p.Value = from, from.Value
		if from.Marks != nil {
			marks = items.Marks{Validator: cmp.Or(r.Validator, from.Marks.Validator), Tags: marks.Tags}
			if r.Tags == nil {
				marks.Tags = from.Marks.Tags
			}
		}
	}
	if marks.Validator != "" || len(marks.Tags) > 0 {
		p.Marks = &marks
	}
	return p, nil
}

// resultOf returns the result for key of a batch load that returned results and err. The key's load
// started from the item from; batchErr is the BatchError in err, or nil.
func resultOf[V any](results map[string]Result[V], batchErr *BatchError, err error, key string, from *items.Item) (items.Product, error) {
	r, found := results[key]
	switch {
	case batchErr != nil && batchErr.Errors[key] != nil:
		err = batchErr.Errors[key]
	case found:
		err = nil
	case err == nil || error(batchErr) == err:
		err = ErrNotFound
	}
	// Else all keys without a result have failed: a BatchError within another error may lack some.
	return r.product(key, from, err)
}

// valueOf gives a value of the engine its type. It returns the zero value for none.
func valueOf[V any](value any) V {
	v, _ := value.(V)
	return v
}

// typed is a result of the engine with the value's type. Inlining would enlarge the caller's frame by copies of the value.
//
//go:noinline
func typed[V any](value any, err error) (V, error) { return valueOf[V](value), err }
