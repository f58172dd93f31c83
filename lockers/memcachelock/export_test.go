package memcachelock

// Observed is the number of leases that l remembers.
func (l *Locker) Observed() int {
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	return len(l.seen.young) + len(l.seen.old)
}

const MaxObserved = maxObserved
