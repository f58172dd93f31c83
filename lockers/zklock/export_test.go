package zklock

import "github.com/bellwether-go/bellwether/driver"

// Holder is the path of the holder's node in a HeldError.
func Holder(held *driver.HeldError) string { return held.Seen.(seenLease).holder }

// Orphans is the number of possible nodes without a holder.
func Orphans(l *Locker) int {
	l.orphans.mu.Lock()
	defer l.orphans.mu.Unlock()
	return len(l.orphans.leases)
}
