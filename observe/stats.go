package observe

// Stats are counts since the cache was made, and the present state of the cache.
//
// Each call counts in one of Hits, Misses and Collapsed, except a call without a flight and without a fresh
// value. Such a call counts in Stale alone if it gets a stale value, such as during a failure's pause. With a
// failure, an only-if-cached answer or a bypass to the handler it counts in none of the four.
type Stats struct {
	// Hits are calls answered by a fresh value of the near tier.
	Hits uint64 `json:"hits"`
	// Stale are calls answered by a stale value. Most also count in Misses or Collapsed, by their flight.
	Stale uint64 `json:"stale"`
	// Misses are calls that began a flight.
	Misses uint64 `json:"misses"`
	// Collapsed are calls that joined the flight of another call.
	Collapsed uint64 `json:"collapsed"`
	// WaitTimeouts are calls that waited in vain for MaxWait.
	WaitTimeouts uint64 `json:"wait_timeouts"`

	// Loads are the loads begun by this process. A batch load counts once for each of its keys.
	Loads uint64 `json:"loads"`
	// LoadFailures are failed loads. ErrNotFound is no failure. With a Middleware, a response with
	// the status 500, 502, 503 or 504 is a failure.
	LoadFailures uint64 `json:"load_failures"`
	// StoreHits are flights answered by an entry of the store: a fresh value, or a failure or stale
	// value while no try is due.
	StoreHits uint64 `json:"store_hits"`
	// Waits are flights that found the lease held by another holder.
	Waits uint64 `json:"waits"`
	// Fenced are commits that came too late.
	Fenced uint64 `json:"fenced"`
	// LeasesLost are leases that ended, or that another holder took, before the load was done.
	LeasesLost uint64 `json:"leases_lost"`
	// Hedges are loads begun beside the load of another process (Options.Hedge).
	Hedges uint64 `json:"hedges"`
	// Degraded are loads without lease or store, because an engine did not answer.
	Degraded uint64 `json:"degraded"`
	// EngineErrors are engine calls without an answer, also calls that an open breaker has held back.
	EngineErrors uint64 `json:"engine_errors"`

	// Flights is the number of keys now in a rebuild or a wait.
	Flights int `json:"flights"`
	// NearBytes is the present size of the near tier in bytes.
	NearBytes uint64 `json:"near_bytes"`
	// StoreUp and LockerUp report whether the engines answer; the store has to answer reads and
	// writes. Each turns false when a breaker of the engine opens, EngineWatch's apart. It turns true
	// again when the call that tests the engine gets an answer, or after half a minute without a failed call.
	// Without an engine it is true.
	StoreUp  bool `json:"store_up"`
	LockerUp bool `json:"locker_up"`
}
