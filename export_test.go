package bellwether

// OnPhase has f told of each phase that a flight enters, on the flight's goroutine. f is set
// before the cache's first use.
func (c *Cache[V]) OnPhase(f func(key, phase string)) {
	c.engine.entered = func(key string, p phase) { f(key, p.String()) }
}

// OnPhase is [Cache.OnPhase] for a middleware.
func (m *Middleware) OnPhase(f func(key, phase string)) {
	m.engine.entered = func(key string, p phase) { f(key, p.String()) }
}
