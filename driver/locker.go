package driver

import (
	"context"
	"errors"
	"time"
)

// This file is the contract of elections. The adapters below lockers/ implement it.

var (
	// ErrHeld means that another holder has the lease. It comes wrapped in a [HeldError].
	ErrHeld = errors.New("bellwether: lease is held by another")

	// ErrLeaseLost means that the lease ended before its release: it expired, or another holder took it.
	ErrLeaseLost = errors.New("bellwether: lease lost")
)

// A Locker elects one holder per key across processes. The [Store] refuses writes of former holders.
//
// A Locker is safe for concurrent use. Keys are arbitrary strings, including the empty string. An
// adapter hashes keys unfit for its engine. Every method returns the error of ctx as soon as ctx
// ends, even if the engine's client ignores contexts. The adapter gives up a lease granted by the engine after that.
//
// Every error except [ErrHeld] and [ErrLeaseLost] means that the engine did not answer and the
// holder is unknown.
type Locker interface {
	// TryAcquire takes the lease on key for ttl without waiting. The lease ends by itself when ttl has passed
	// since the call. The holder counts from before the request, so it never believes in a lease longer than
	// another process does. If another holder has the lease, the error is a *HeldError, also for the holder's
	// own second call for the key. A ttl of 0 or less is an error. An adapter shortens a ttl beyond its engine's
	// longest lease, here and in Renew.
	TryAcquire(ctx context.Context, key string, ttl time.Duration) (Lease, error)
}

// A Lease is the right to rebuild one key for a limited time. Its methods are safe for concurrent use.
type Lease interface {
	// Renew moves the end of the lease to ttl after the call.
	//
	// Renew returns ErrLeaseLost if the lease has ended or another holder has it. Renew never takes
	// a lost lease back. A lease with a later end may keep it. A ttl of 0 or less is an error and
	// changes nothing.
	Renew(ctx context.Context, ttl time.Duration) error

	// Release ends the lease and wakes its watchers.
	//
	// Release never frees the lease of another holder. For a lost lease, and on a second call,
	// Release returns ErrLeaseLost and changes nothing. If the engine did not answer, the caller
	// calls Release again until the lease has run out.
	Release(ctx context.Context) error
}

// A Tokener is a [Lease] with a fencing token for resources outside the [Store].
//
// A resource compares tokens, so a former holder cannot write after its successor. docs/engines.md lists the
// losses that each engine's tokens survive. Bellwether needs no tokens: its Store has epochs.
type Tokener interface {
	// Token returns the fencing token of the lease. A later lease on the same key has a greater token.
	Token() uint64
}

// A LossNotifier is a [Lease] that may report its loss before a renewal, for example when a session
// expires. The loss is certain: the holder stops, as after ErrLeaseLost.
type LossNotifier interface {
	// Lost returns a channel that is closed when the lease is known to be lost. The channel may
	// stay open after a loss. After Release its state means nothing.
	Lost() <-chan struct{}
}

// A HeldError describes the lease of another holder, as seen by TryAcquire. It wraps ErrHeld.
type HeldError struct {
	// Key is the argument of TryAcquire.
	Key string

	// Until is the announced end of the lease, unless renewed, on the monotonic clock of this process. It
	// counts from after the engine's reply, so it is never earlier than the end known to the holder. Only an
	// Elector may leave renewals out. Until is zero if the engine does not tell.
	Until time.Time

	// Seen is the Locker's mark of the lease, for Watch: a revision, a version, a channel.
	Seen any
}

// Error names the key.
func (e *HeldError) Error() string { return ErrHeld.Error() + ": " + e.Key }

// Unwrap returns [ErrHeld].
func (e *HeldError) Unwrap() error { return ErrHeld }

// A Watcher is a [Locker] that reports free leases sooner than polling does.
type Watcher interface {
	// Watch returns a channel that is closed once the lease behind held may have ended.
	//
	// Watch misses no end after held was made: an engine with a later subscription subscribes first
	// and then looks again. The channel may close early, after a reconnect or a renewal. It may
	// stay open after the death of a holder, so the caller keeps a timer for held.Until. The watch
	// ends with ctx. After ctx the state of the channel means nothing.
	//
	// An error means that there is no push for now and the caller has to poll. If the error wraps
	// [errors.ErrUnsupported], the caller always has to poll, and nobody is told of a failure.
	Watch(ctx context.Context, held *HeldError) (<-chan struct{}, error)
}
