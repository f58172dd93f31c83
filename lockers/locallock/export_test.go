package locallock

// Len is the number of leases in the table, expired ones included.
func (l *Locker) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.leases) != len(l.queue) {
		panic("the map and the queue differ")
	}
	return len(l.queue)
}
