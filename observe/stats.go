package observe

// Stats are counts since the cache was made, and what is so now. A call is in one of
// Hits, Misses and Collapsed, but for those that need no flight and get nothing
// fresh. Of these, who gets something stale (while a failure's pause lasts, or
// because the request takes it) is in Stale alone; who gets a failure, or what the
// store has for only-if-cached, or goes past the cache to the handler, is in none.
type Stats struct {
	// Hits are calls answered by a fresh value of the near tier.
	Hits uint64 `json:"hits"`
	// Stale are calls answered by a stale value. Most of them have begun a
	// flight or come to one, and count among Misses or Collapsed too.
	Stale uint64 `json:"stale"`
	// Misses are calls that began a flight: no other call was at the key.
	Misses uint64 `json:"misses"`
	// Collapsed are calls that came to another's flight.
	Collapsed uint64 `json:"collapsed"`
	// WaitTimeouts are calls that waited in vain for MaxWait.
	WaitTimeouts uint64 `json:"wait_timeouts"`

	// Loads are the loads that this process has begun; a batch load counts for
	// each of its keys.
	Loads uint64 `json:"loads"`
	// LoadFailures are those that failed; ErrNotFound is no failure. With a
	// Middleware a response with a status of 5xx is one.
	LoadFailures uint64 `json:"load_failures"`
	// StoreHits are flights answered by what the store has: fresh, or a failure,
	// or what is stale, while no try is due.
	StoreHits uint64 `json:"store_hits"`
	// Waits are flights that found the lease held by another.
	Waits uint64 `json:"waits"`
	// Fenced are commits that came too late.
	Fenced uint64 `json:"fenced"`
	// LeasesLost are leases that ended, or another took, before the load was done.
	LeasesLost uint64 `json:"leases_lost"`
	// Hedges are the loads that were begun beside another process's, see
	// Options.Hedge.
	Hedges uint64 `json:"hedges"`
	// Degraded are loads that ran without lease or store, because those did
	// not answer.
	Degraded uint64 `json:"degraded"`
	// EngineErrors are calls of engines that got no answer.
	EngineErrors uint64 `json:"engine_errors"`

	// Flights are the keys with a rebuild or a wait under way now.
	Flights int `json:"flights"`
	// NearBytes is the size of the near tier now.
	NearBytes uint64 `json:"near_bytes"`
	// StoreUp and LockerUp tell whether the engines answer, a store to reads and to
	// writes: each is false from the opening of a breaker of its until a call has its
	// answer, or none has failed for half a minute. Both are true where there is no such engine.
	StoreUp  bool `json:"store_up"`
	LockerUp bool `json:"locker_up"`
}
