package bellwether

// OnPhase has f called with each phase of a flight, on the flight's goroutine. Set it before the first use.
func (c *Cache[V]) OnPhase(f func(key, phase string)) {
	c.engine.entered = func(key string, p phase) { f(key, p.String()) }
}

// OnPhase is [Cache.OnPhase] for a middleware.
func (m *Middleware) OnPhase(f func(key, phase string)) {
	m.engine.entered = func(key string, p phase) { f(key, p.String()) }
}
