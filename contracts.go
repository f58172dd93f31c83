package bellwether

import "github.com/bellwether-go/bellwether/driver"

// This file has the names of package driver that the root knows too.

// What an engine's adapter implements, and what it keeps: see package driver.
type (
	Store        = driver.Store
	BatchGetter  = driver.BatchGetter
	Notifier     = driver.Notifier
	Fencer       = driver.Fencer
	Toucher      = driver.Toucher
	Elector      = driver.Elector
	Election     = driver.Election
	Notice       = driver.Notice
	Entry        = driver.Entry
	EntryKind    = driver.EntryKind
	Locker       = driver.Locker
	Watcher      = driver.Watcher
	HeldError    = driver.HeldError
	Lease        = driver.Lease
	LossNotifier = driver.LossNotifier
	Tokener      = driver.Tokener
)

// What an Entry holds: see package driver.
const (
	KindNone     = driver.KindNone
	KindValue    = driver.KindValue
	KindNotFound = driver.KindNotFound
	KindUnshared = driver.KindUnshared
)

var (
	// ErrFenced is what a Store says to a commit that comes too late.
	ErrFenced = driver.ErrFenced
	// ErrCorrupt means that the bytes under the key are no entry of ours, or no lease.
	ErrCorrupt = driver.ErrCorrupt
	// ErrTooLarge means that the engine does not take a value of this size.
	ErrTooLarge = driver.ErrTooLarge
	// ErrHeld means that another holds the lease.
	ErrHeld = driver.ErrHeld
	// ErrLeaseLost means that the lease ended before its holder released it.
	ErrLeaseLost = driver.ErrLeaseLost
)
