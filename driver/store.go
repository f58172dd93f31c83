package driver

import (
	"context"
	"errors"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
)

// This file is the contract of the shared tier. The adapters below stores/ implement it.

var (
	// ErrNotFound means that the key has no entry. A load returns or wraps it for a missing thing;
	// Bellwether remembers the answer for NotFoundTTL.
	ErrNotFound = errors.New("bellwether: not found")

	// ErrFenced means that a commit came too late and wrote nothing. Since its claim, a later epoch
	// was committed, the key was invalidated, or the engine forgot the claim.
	ErrFenced = errors.New("bellwether: commit fenced off by a later epoch")

	// ErrCorrupt means that the bytes under the key are not an entry or a lease of Bellwether.
	ErrCorrupt = errors.New("bellwether: stored bytes are not a valid entry")

	// ErrTooLarge means that the engine refuses a value of this size.
	ErrTooLarge = errors.New("bellwether: value too large for the store")
)

// A Store keeps encoded entries for a fleet, and an epoch counter and a floor for each key. Epochs order
// the rebuilds of a key: Claim issues an epoch, and Commit accepts only epochs above the floor.
//
// A Store is safe for concurrent use. Keys are arbitrary strings, including the empty string. Every
// method returns the error of ctx as soon as ctx ends, even if the engine's client ignores contexts. Every
// error except the errors named below means that the engine did not answer.
type Store interface {
	// Get returns the entry under key, with its Age as of now. The error is ErrNotFound without an
	// entry, and wraps ErrCorrupt if the bytes are not an entry. The caller does not modify Value.
	Get(ctx context.Context, key string) (Entry, error)

	// Claim opens a rebuild: it returns the present entry and a new epoch. The entry is the zero Entry if the
	// key has none or the bytes are corrupt. The epoch is above all earlier epochs of the key, even across an
	// eviction, an expiry or a restart of the engine. A Store may forget a claim after an hour.
	Claim(ctx context.Context, key string) (Entry, uint64, error)

	// Commit stores e under e.Epoch, an epoch from Claim, and raises the floor to e.Epoch. The age of e goes
	// on from the call, however late the engine carries it out. An e without a Life leaves only the floor. A
	// negative Age counts as 0.
	//
	// Commit returns ErrFenced and writes nothing if the epoch is not above the floor, was never issued, or
	// has a forgotten claim. It returns ErrTooLarge for a Value beyond the engine's limit; every Store takes
	// a million bytes. Repeating a commit with the same Entry after a lost reply is safe and succeeds.
	Commit(ctx context.Context, key string, e Entry) error

	// Invalidate drops the entry and raises the floor to the last epoch issued for the key, or above. Commit
	// then refuses every rebuild under way.
	Invalidate(ctx context.Context, key string) error
}

// A BatchGetter is a [Store] that reads many keys in a few round trips. For other Stores a batch
// calls Get for each key, several at a time.
type BatchGetter interface {
	// GetMany calls each once per key, with the index of the key and the results of Get. For a foreign
	// type of key, such as a list in Redis, the error may be ErrNotFound.
	//
	// The keys are distinct, 1,000 at most. GetMany returns after the last call of each. When ctx ends, the
	// remaining keys get the error of ctx. The deadline of ctx moves with each answer, so an adapter splits
	// slow reads into pieces.
	//
	// The answer for a key does not wait for another server: a server without an answer delays only
	// its own keys. each does not block, and several goroutines may call it at a time.
	GetMany(ctx context.Context, keys []string, each func(i int, e Entry, err error))
}

// A Notifier is a [Store] that reports the changes of all processes.
type Notifier interface {
	// Notify calls f for every commit and invalidation of any process until ctx ends, then returns.
	// A notice follows its change: a Get at the notice finds the change. A refused commit changes nothing
	// and has no notice, nor has the repetition of a commit.
	// Calls of f do not overlap. f does not block.
	//
	// Notices are hints: they may be lost, above all with their connection, come late, or come in
	// another order than the changes.
	Notify(ctx context.Context, f func(Notice))
}

// A Fencer is a [Store] that can check the epoch of a rebuild under way. Without a Fencer, callers cannot
// join a response that has streamed for longer than NearTTL, and wait for its commit.
type Fencer interface {
	// Fenced reports whether Commit would refuse an epoch from Claim with ErrFenced. It writes nothing, and
	// returns false for the epoch of the last commit.
	Fenced(ctx context.Context, key string, epoch uint64) (bool, error)
}

// A Toucher is a [Store] that can commit an entry with the value already in the store. A rebuild
// with an unchanged value then does not send the value again.
type Toucher interface {
	// Touch commits e with the Value of the present entry, if the present entry has the epoch of.
	// e.Value is not used, and e.Kind is KindValue. As with Commit, Touch raises the floor to e.Epoch,
	// the age and the life of the entry start again from e, and a Notifier reports the change.
	//
	// Touch returns ErrFenced where Commit does. It returns ErrNotFound and writes nothing if the present
	// entry has another epoch, has a Kind other than KindValue, or is missing. The caller then commits the
	// whole entry under the same epoch. Repeating a Touch after a lost reply is safe and succeeds.
	Touch(ctx context.Context, key string, of uint64, e Entry) error
}

// setTries is the number of claims in one Set. A try fails if a later epoch is committed first.
const setTries = 5

// Set writes e under a new epoch and returns the epoch. e.Epoch is ignored. The time of the claims
// is added to e.Age.
//
// Every rebuild claimed earlier is refused at its commit. Of two Sets, the later epoch stays. Set
// replaces the value of a rebuild begun meanwhile. After an error the state of the key is unknown.
func Set(ctx context.Context, s Store, key string, e Entry) (epoch uint64, err error) {
	asked, age := time.Now(), max(0, e.Age)
	for range setTries {
		if _, epoch, err = s.Claim(ctx, key); err != nil {
			return 0, err
		}
		e.Epoch, e.Age = epoch, durations.Add(age, time.Since(asked))
		if err = s.Commit(ctx, key, e); !errors.Is(err, ErrFenced) {
			break
		}
	}
	if err != nil {
		return 0, err
	}
	return epoch, nil
}

// A Notice reports one change in a [Store].
type Notice struct {
	// Key is the argument of Commit or Invalidate.
	Key string
	// Epoch is the epoch of the commit, or the floor set by the invalidation.
	Epoch uint64
	// Invalidated is true for an invalidation and false for a commit.
	Invalidated bool
	// Entry is the committed entry with its Age as of now and with the notice's Epoch. It is the zero Entry
	// after an invalidation, and if the entry is too large to be sent along or its age is unknown.
	Entry Entry
	// Made is a moment before the change was done, by this process's clock, the later the better, or zero.
	// If Made is zero or NearTTL ago, a cache does not take Entry, and asks the Store.
	Made time.Time
}
