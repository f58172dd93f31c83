package bellwether

import (
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
)

// This file is what callers get in the place of a value.

var (
	// ErrNotFound means that there is nothing under the key. A load returns it, or wraps it,
	// for a thing that does not exist; that is remembered for NotFoundTTL.
	ErrNotFound = driver.ErrNotFound

	// ErrWaitTimeout means that a call has waited for MaxWait, and that there
	// is neither a value nor a failure to answer with. The rebuild goes on.
	ErrWaitTimeout = fault.ErrWaitTimeout

	// ErrClosed means that the cache is closed.
	ErrClosed = fault.ErrClosed

	// ErrOverloaded means that MaxQueued keys wait for one of MaxRebuilds, or for
	// Store, and that there is nothing stale to serve.
	ErrOverloaded = fault.ErrOverloaded

	// ErrUnavailable means that a lock engine or a store did not answer, or was
	// not asked because it did not answer lately. The engine's own error is
	// wrapped beside it if that was asked.
	ErrUnavailable = fault.ErrUnavailable

	// ErrGoexit is the failure of a load that called runtime.Goexit, or of a rebuild
	// during which an observer, OnError, a codec or an engine's adapter did.
	ErrGoexit = fault.ErrGoexit

	// ErrRebuildTimeout is the failure of a rebuild that took longer than
	// RebuildTimeout, and the cause of its context's end.
	ErrRebuildTimeout = fault.ErrRebuildTimeout
)

// A PanicError is a panic of user code, and the failure of what has panicked: a load or a
// handler, or the adapter of an engine, a codec, an observer.
type PanicError = fault.PanicError

// A RemoteError is the failure of a rebuild that ran in another process, or in
// this one before the value left the near tier. Only its text has travelled, the
// first 4 KiB of it. Unwrap returns [ErrRebuildTimeout] or [ErrGoexit] if the text is that
// error's.
type RemoteError = fault.RemoteError
