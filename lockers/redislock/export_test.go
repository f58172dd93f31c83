package redislock

// Watches is the number of watches that wait, of all keys.
func (l *Locker) Watches() int {
	l.sub.mu.Lock()
	defer l.sub.mu.Unlock()
	n := 0
	for _, ws := range l.sub.watches {
		n += len(ws)
	}
	return n
}

// Key is the Redis key of the lease on name.
func (l *Locker) Key(name string) string { return l.key(name) }
