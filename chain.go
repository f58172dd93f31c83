package bellwether

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// This file tracks which loads of this process, in all caches, wait for other loads. A load that
// would wait for itself gets an error at once, and so does a chain of more than maxChain loads.

// maxChain is the longest chain of loads that wait, each for the next.
const maxChain = 64

var (
	// errOwnKey is for a load that asks for its own key: it would wait until RebuildTimeout.
	errOwnKey = errors.New("bellwether: a load asks its cache for its own key, and would wait for itself; make the value without the cache")

	// errCircle is for a load that asks for a key whose load waits for it.
	errCircle = errors.New("bellwether: a load asks for a key that waits for this load, and would wait for itself; make one of the two values without the cache")

	// errChain is for the last load of a chain that is too long.
	errChain = fmt.Errorf("bellwether: %d loads that wait for each other, and the last load asks for another key; shorten the chain, or get some keys before their loads", maxChain)
)

// callsOfLoads guards all askers, since a circle may go through several caches.
var callsOfLoads sync.Mutex

// askers are the loads that wait for a flight, with the number of their calls. callsOfLoads guards
// them.
type askers map[*loadContext]int

// await adds a load to the flight's askers, or returns why it must not wait.
func (f *flight[V]) await(load *loadContext) error {
	callsOfLoads.Lock()
	defer callsOfLoads.Unlock()
	if slices.Contains(load.makes, &f.askers) {
		return errOwnKey
	}
	if awaited(&f.askers, load.makes, make(map[*askers]bool)) {
		return errCircle
	}
	if f.askers == nil {
		f.askers = make(askers)
	}
	f.askers[load]++
	return nil
}

// awaited reports whether a load for by's flight waits for a flight in flights. Waits through other
// loads count. callsOfLoads is held.
func awaited(by *askers, flights []*askers, seen map[*askers]bool) bool {
	for _, flight := range flights {
		if seen[flight] {
			continue
		}
		seen[flight] = true
		for load := range *flight {
			if !load.slot.Ended() && (slices.Contains(load.makes, by) || awaited(by, load.makes, seen)) {
				return true
			}
		}
	}
	return false
}

func (f *flight[V]) stopAwaiting(load *loadContext) {
	callsOfLoads.Lock()
	defer callsOfLoads.Unlock()
	if f.askers[load]--; f.askers[load] <= 0 {
		delete(f.askers, load)
	}
}
