package bellwether

import (
	"fmt"
	"maps"
	"slices"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
)

// This file has the errors that callers get in place of a value, from driver and internal/fault.

var (
	// ErrNotFound means that the key does not exist. A load returns or wraps it.
	ErrNotFound = driver.ErrNotFound

	// ErrWaitTimeout means that a call got no value or failure within MaxWait. A load under way goes on.
	ErrWaitTimeout = fault.ErrWaitTimeout

	// ErrClosed means that the cache is closed.
	ErrClosed = fault.ErrClosed

	// ErrOverloaded means that too many keys wait, see [Limits], without a stale value to serve.
	ErrOverloaded = fault.ErrOverloaded

	// ErrUnavailable means that a store or a locker did not answer, or was not asked during its outage.
	// The error wraps the engine's own error, if any.
	ErrUnavailable = fault.ErrUnavailable

	// ErrGoexit is the failure after a runtime.Goexit in a load, an observer, a codec, an adapter or Size.
	ErrGoexit = fault.ErrGoexit

	// ErrRebuildTimeout is the failure of a rebuild longer than RebuildTimeout, and its context's cause.
	ErrRebuildTimeout = fault.ErrRebuildTimeout
)

// A PanicError is the failure after a panic in a load, a handler, an adapter, a codec, an observer or Size.
// Its Value is the value of the panic, which Unwrap returns if it is an error. Stack is the stack.
type PanicError = fault.PanicError

// A RemoteError is a failure from the store: of another process, or of this process after the value
// left the near tier. Message has the first 4 KiB of the error's text. Unwrap returns
// [ErrRebuildTimeout] or [ErrGoexit] by the text.
type RemoteError = fault.RemoteError

type keyError struct {
	doing string
	key   string
	err   error
}

func (e *keyError) Error() string { return fmt.Sprintf("%s %q: %v", e.doing, e.key, e.err) }
func (e *keyError) Unwrap() error { return e.err }

// A BatchError has the error of each failed key of a batch, also from a load.
type BatchError struct {
	Errors map[string]error
}

// Error names only the first key: there may be thousands.
func (e *BatchError) Error() string {
	if len(e.Errors) == 0 {
		return "bellwether: no key failed"
	}
	first := slices.Min(slices.Collect(maps.Keys(e.Errors)))
	if len(e.Errors) == 1 {
		return fmt.Sprintf("bellwether: key %q: %v", first, e.Errors[first])
	}
	return fmt.Sprintf("bellwether: %d keys failed, the first is %q: %v", len(e.Errors), first, e.Errors[first])
}

// Unwrap returns the errors in the order of their keys.
func (e *BatchError) Unwrap() []error {
	errs := make([]error, 0, len(e.Errors))
	for _, key := range slices.Sorted(maps.Keys(e.Errors)) {
		errs = append(errs, e.Errors[key])
	}
	return errs
}
