package driver

import (
	"context"
	"time"
)

// An Elector is a [Store] and a [Locker] over one engine, joined in a single request.
//
// A cache calls Elect and CommitAndRelease if the Elector is its Fleet.Engine. The methods of Store
// and Locker work on the same entries and the same leases, so other processes may use them.
type Elector interface {
	Store
	Locker

	// Elect reads the entry, stands for election and claims an epoch, in a single step.
	//
	// Elect answers with the entry alone if the entry is [Entry.Fresh] and its epoch is above past.
	// Otherwise Elect takes the lease on key for ttl as TryAcquire does, and claims an epoch as
	// Claim does. If another holder has the lease, Election.Held is set and the error is nil.
	//
	// past is the latest epoch the caller has seen and does not accept as an answer, or 0. A ttl of 0 or less
	// is an error. Corrupt bytes count as no entry. If ctx ends before the reply, Elect returns the error of
	// ctx, and a lease granted by the engine ends soon.
	Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (Election, error)

	// CommitAndRelease commits e and, if the commit succeeds, releases lease, in a single step.
	//
	// The commit does not depend on the lease. After the end of the lease the commit still succeeds, and
	// the lease of a later holder stays. An error leaves the lease as before. Repeating a call with the
	// same arguments after a lost reply is safe and succeeds, as with Commit.
	CommitAndRelease(ctx context.Context, key string, e Entry, lease Lease) error
}

// An Election is the answer of [Elector.Elect]: a lease, the present holder, or an entry. The entry
// alone is the answer if Lease and Held are nil.
type Election struct {
	// Entry is the present entry with its Age as of now, as from Claim. It is the zero Entry if the
	// key has none or the bytes are corrupt.
	Entry Entry
	// Lease is the lease won by the caller, or nil.
	Lease Lease
	// Epoch is the epoch claimed for the caller. It is set if Lease is not nil.
	Epoch uint64
	// Held describes the lease of another holder, as from TryAcquire, or is nil.
	Held *HeldError
}
