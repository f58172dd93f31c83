package bellwether

// OnState has f called when a flight enters a state, on the flight's goroutine. Set it before the first use.
func (c *Cache[V]) OnState(f func(key, state string)) {
	c.engine.onState = f
}

// OnState is [Cache.OnState] for a middleware.
func (m *Middleware) OnState(f func(key, state string)) {
	m.engine.onState = f
}
