package driver

import (
	"context"
	"time"
)

// This file is the contract of an engine that is store and locker at once: it does in one
// request what the two do in several.

// An Elector is a [Store] and a [Locker] over one engine, whose leases and entries it reads
// and writes together. A cache uses it as one if it is given both as Store and as Locker.
// The methods of Store and Locker work on the same entries and the same leases: other
// processes may use them.
type Elector interface {
	Store
	Locker

	// Elect looks under key, stands for election and claims, in one step of the engine. See
	// [Election] for its answers. An entry that is [Entry.Fresh] and has an epoch above past
	// is the answer by itself. Otherwise the lease on key is taken for ttl as by TryAcquire,
	// and an epoch as by Claim, unless another holds the lease. A ttl that is not positive is
	// an error. The answer of "held" is no error.
	//
	// Bytes that are no entry count as no entry. The lease ends by itself when ttl has passed
	// since Elect was called. If ctx ends before the reply, Elect returns the error of ctx, and
	// a lease that the engine has given ends soon: a caller who has left leaves no lease behind.
	//
	// past is the epoch of the latest entry that the caller has seen and does not take
	// for an answer; 0 if there is none.
	Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (Election, error)

	// CommitAndRelease is Commit, and Release of the lease if the commit succeeds, in one
	// step of the engine. The commit does not depend on the lease: it succeeds also
	// after the lease's end, and then frees nobody else's. After an error the lease is as
	// it was before. To repeat a call whose reply was lost, with the same arguments, is safe
	// and succeeds, as with Commit.
	CommitAndRelease(ctx context.Context, key string, e Entry, lease Lease) error
}

// An Election is the answer of [Elector.Elect]: an entry that answers, if Lease and Held are
// nil; the leadership, if Lease is not; or the present holder.
type Election struct {
	// Entry is the present entry with its Age as of now, as from Claim: the zero Entry if there
	// is none or it is corrupt.
	Entry Entry
	// Lease is the lease that the caller has now.
	Lease Lease
	// Epoch is the epoch that the caller has claimed, if Lease is not nil.
	Epoch uint64
	// Held tells of another's lease, as from TryAcquire: its Until is zero, or not before the
	// end in which the holder believes.
	Held *HeldError
}
