package driver

import (
	"context"
	"errors"
	"time"
)

// This file is the contract of the shared tier: what a fleet keeps per key, and who may write
// it. The adapters below stores/ implement it, stores/storetest holds them to it.

var (
	// ErrNotFound means that there is nothing under the key. A Store returns
	// it for a key without an entry; a load returns it (or wraps it) for a
	// thing that does not exist, which is remembered for NotFoundTTL.
	ErrNotFound = errors.New("bellwether: not found")

	// ErrFenced means that a commit came too late: since its epoch was given
	// out, a later one was committed, the key was invalidated, or the engine
	// has forgotten the claim. Nothing was written.
	ErrFenced = errors.New("bellwether: commit fenced off by a later epoch")

	// ErrCorrupt means that the bytes under the key are no entry of ours, or no lease.
	ErrCorrupt = errors.New("bellwether: stored bytes are not a valid entry")

	// ErrTooLarge means that the engine does not take a value of this size.
	ErrTooLarge = errors.New("bellwether: value too large for the store")
)

// A Store keeps encoded entries for a fleet, and for each key an epoch counter
// and a floor. Epochs order the rebuilds of a key: Claim gives one out, Commit
// is accepted only above the floor.
//
// A Store is safe for concurrent use. Keys are arbitrary strings, the empty
// one included. Every method honours its context, also where the engine's
// client cannot. Any error other than those named below means that the engine
// did not answer.
type Store interface {
	// Get returns the entry under key, with its Age as of now. It returns
	// ErrNotFound if there is none, and an error that wraps ErrCorrupt if the
	// bytes under the key are not an entry. The caller does not modify Value.
	Get(ctx context.Context, key string) (Entry, error)

	// Claim opens a rebuild: it returns the present entry (the zero Entry if
	// there is none or it is corrupt) and a new epoch, greater than every
	// epoch given out for the key before, be it before an eviction, an expiry
	// or a restart of the engine.
	Claim(ctx context.Context, key string) (Entry, uint64, error)

	// Commit stores e under e.Epoch, which came from Claim, and raises the
	// key's floor to it. An e without a Life leaves nothing there but the floor,
	// and a negative Age counts as 0; the Age goes on from the call, however late
	// the engine carries it out. It returns ErrFenced, and writes nothing, unless
	// the epoch is above the floor and the claim is still known; ErrTooLarge if the
	// engine does not take the value's size, which it does up to a million bytes at
	// least. To repeat a commit whose reply was lost, with the same Entry, is safe
	// and succeeds.
	Commit(ctx context.Context, key string, e Entry) error

	// Invalidate drops the entry and raises the floor to a new epoch, so that
	// every rebuild that is under way is refused at Commit.
	Invalidate(ctx context.Context, key string) error
}

// A BatchGetter is a [Store] that answers for many keys in a few round trips. Of a
// Store that is none, a batch asks for each key by itself, some at a time.
type BatchGetter interface {
	// GetMany calls each, once for each of keys, with the key's index and what
	// Get returns for the key. The keys are different from each other. It
	// returns when it has done so for all, and does not call each after that;
	// as soon as ctx ends, the error of those that are left is ctx's. The deadline of
	// ctx moves with each answer: what takes long is asked for in pieces.
	//
	// What is known of one key does not wait for what is not of another: a
	// server that does not answer has its own keys' answers delayed. each does
	// not block, and may be called by several goroutines at a time.
	GetMany(ctx context.Context, keys []string, each func(i int, e Entry, err error))
}

// A Notifier is a [Store] that tells a process what others write before it asks.
type Notifier interface {
	// Notify calls f for every commit and invalidation that the engine carries
	// out, whoever made it, one call at a time, until ctx ends; then it returns.
	// f does not block.
	//
	// Nobody relies on it: notices may be lost, with their connection above
	// all, and may come late or in another order than the changes.
	Notify(ctx context.Context, f func(Notice))
}

// A Fencer is a [Store] that tells of a rebuild which is under way whether it
// still counts. Where a response streams for longer than NearTTL, a store that is
// one lets callers join it whenever they come; with another they wait for the
// commit from then on.
type Fencer interface {
	// Fenced reports whether Commit would refuse an epoch that came from Claim
	// and was not committed since: whether a later one was committed, the key
	// was invalidated or the claim is forgotten. It writes nothing. For the epoch
	// that was committed last it returns false.
	Fenced(ctx context.Context, key string, epoch uint64) (bool, error)
}

// A Toucher is a [Store] that can commit an entry with the value that it has already: a
// rebuild that has found its value unchanged does not send it again.
type Toucher interface {
	// Touch is Commit of e with the Value of the present entry, if that has the epoch of; e.Value
	// is not used, and e.Kind is KindValue. All else is as with Commit: Touch raises the floor
	// to e.Epoch, the entry's age and life begin anew with e's, and a Notifier tells of it.
	//
	// Touch returns ErrFenced where Commit does: for an epoch below the floor, an epoch that was
	// never given out, and a claim that the engine has forgotten. Otherwise it returns
	// ErrNotFound and writes nothing if the present entry is another one, has no Value (its Kind
	// is not KindValue), or is missing: the caller commits the whole, under the same epoch. To
	// repeat a Touch whose reply was lost, with the same arguments, is safe and succeeds.
	Touch(ctx context.Context, key string, of uint64, e Entry) error
}

// setTries is how often Set claims: each time but the last it was fenced off by a rebuild, or
// another Set, that has claimed since.
const setTries = 5

// Set writes e under a new epoch, whatever e.Epoch is, and returns that epoch. Every rebuild that
// has claimed before is refused at its commit. Of two Sets the later epoch stays; that of a rebuild
// which begins meanwhile is replaced. The time that the claims take is added to e.Age. After an error
// nothing is known to be kept.
func Set(ctx context.Context, s Store, key string, e Entry) (epoch uint64, err error) {
	asked, age := time.Now(), e.Age
	for range setTries {
		if _, epoch, err = s.Claim(ctx, key); err != nil {
			return 0, err
		}
		e.Epoch, e.Age = epoch, age+time.Since(asked)
		if err = s.Commit(ctx, key, e); !errors.Is(err, ErrFenced) {
			break
		}
	}
	if err != nil {
		return 0, err
	}
	return epoch, nil
}

// A Notice is word of one change in a [Store].
type Notice struct {
	// Key is the key as it was given to Commit or Invalidate.
	Key string
	// Epoch is the epoch of the commit, or the floor that the invalidation set.
	Epoch uint64
	// Invalidated tells an invalidation from a commit.
	Invalidated bool
	// Entry is the committed entry with its Age as of now. It is the zero Entry
	// after an invalidation, and where it was not sent along: because it is
	// too large, or nobody can tell how old it is. Its Epoch is the notice's.
	Entry Entry
	// Made is a moment at which the change had not been made yet, or was being
	// made, on this process's clock; the later the better. It is zero if nobody
	// can tell.
	Made time.Time
}
