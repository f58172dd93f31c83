package driver

import (
	"context"
	"errors"
	"time"
)

// This file is the contract of the elections: who may rebuild a key. The
// adapters below lockers/ implement it, lockers/lockertest holds them to it.

var (
	// ErrHeld means that another holds the lease. It comes wrapped in a
	// [HeldError].
	ErrHeld = errors.New("bellwether: lease is held by another")

	// ErrLeaseLost means that the lease ended before its holder released it:
	// it expired, or another has taken it over.
	ErrLeaseLost = errors.New("bellwether: lease lost")
)

// A Locker elects one holder per key across processes. It only elects: that a
// former holder cannot write is the [Store]'s affair.
//
// A Locker is safe for concurrent use. Keys are arbitrary strings, the empty
// one included; an engine that cannot carry a key as it is hashes it.
// Every method honours its context, also where the engine's client cannot: it
// returns as soon as ctx ends, and what the engine does afterwards leaves no
// lease behind that nobody holds.
//
// Any error that is neither [ErrHeld] nor [ErrLeaseLost] means that the engine
// did not answer, so nobody knows who holds the lease.
type Locker interface {
	// TryAcquire takes the lease on key for ttl without waiting. If another
	// has it, the error is a *HeldError. The lease ends by itself when ttl has
	// passed since TryAcquire was called: the holder counts from before the
	// request was sent, so that it never believes in a lease longer than
	// anybody else. A ttl that is not positive is an error. TryAcquire is not
	// reentrant: a second call for a held key gets ErrHeld, whoever makes it.
	TryAcquire(ctx context.Context, key string, ttl time.Duration) (Lease, error)
}

// A Lease is the right to rebuild one key, for a while. Its methods are safe
// for concurrent use.
type Lease interface {
	// Renew makes the lease end ttl after this call was made. It returns
	// ErrLeaseLost if the lease is another's or nobody's by now; it never
	// takes a lost lease back. A lease that ends later already may keep its
	// end. A ttl that is not positive is an error, and changes nothing.
	Renew(ctx context.Context, ttl time.Duration) error

	// Release ends the lease and wakes those who watch it. It never frees
	// another's lease: if this one is lost already, it returns ErrLeaseLost
	// and changes nothing. A second Release returns ErrLeaseLost. After an error
	// that tells of no answer Release is called again, until the lease has run out.
	Release(ctx context.Context) error
}

// A Tokener is a [Lease] that has a fencing token: a number that a resource can
// compare, so that a holder which has lost its lease without knowing cannot
// write there after its successor. What the tokens of an engine's leases
// promise (that they rise, and across which losses) is said in docs/engines.md.
// The engine does not need it: its resource is the [Store], which has epochs.
type Tokener interface {
	// Token returns the lease's fencing token. Of two leases on one key, the
	// later has the greater token.
	Token() uint64
}

// A LossNotifier is a [Lease] that may learn of its loss before it is renewed: a
// session has expired, say. The loss is certain: whoever has heard of it stops,
// as after ErrLeaseLost.
type LossNotifier interface {
	// Lost returns a channel that is closed when the lease is known to be lost.
	// It may never close, and after Release it means nothing.
	Lost() <-chan struct{}
}

// A HeldError is what TryAcquire saw: another's lease. errors.Is(err, ErrHeld)
// is true for it.
type HeldError struct {
	// Key is the key as it was given to TryAcquire.
	Key string

	// Until is when, by the present process's monotonic clock, the holder has
	// announced that its lease ends unless renewed, counted from after the
	// engine's reply was read: never earlier than the holder itself believes.
	// It is zero if the engine does not tell.
	Until time.Time

	// Seen is the Locker's own mark of what it saw: a revision, a version, a
	// channel. It belongs to the Locker, which finds it again in Watch.
	Seen any
}

// Error says which key is held.
func (e *HeldError) Error() string { return ErrHeld.Error() + ": " + e.Key }

// Unwrap returns [ErrHeld].
func (e *HeldError) Unwrap() error { return ErrHeld }

// A Watcher is a [Locker] that can tell sooner than polling that a lease may
// be free.
type Watcher interface {
	// Watch returns a channel that is closed once the lease that held reports
	// may have ended. It misses no end that came after held was made: an
	// engine whose subscription is younger than held subscribes first, and
	// looks again then. The channel may close early (a reconnect, a renewal);
	// it may also never close, because a dead holder tells nobody: the caller
	// keeps a timer for held.Until beside it. The watch ends with ctx, after
	// which the channel's state means nothing.
	//
	// An error means that there is no push for now, and that the caller has
	// to poll.
	Watch(ctx context.Context, held *HeldError) (<-chan struct{}, error)
}
