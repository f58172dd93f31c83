package bellwether

import (
	"maps"
	"slices"
	"sync"
)

// This file is the set of keys whose invalidation waits for the store.

// maxPending is the most keys whose invalidation waits. Any client of a Middleware can send unsafe requests.
const maxPending = 4096

// A pendingSet is the keys whose invalidation waits.
type pendingSet struct {
	mu      sync.Mutex // guards the fields below
	keys    map[string]struct{}
	repeats bool // a goroutine makes the rounds
}

func (p *pendingSet) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.keys))
}

// add adds a key, unless the set is full. It reports whether the caller has to begin the rounds.
func (p *pendingSet) add(key string) (begin bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.keys) >= maxPending {
		return false
	}
	if p.keys == nil {
		p.keys = make(map[string]struct{})
	}
	p.keys[key] = struct{}{}
	begin, p.repeats = !p.repeats, true
	return begin
}

// again reports whether there is another round.
func (p *pendingSet) again() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repeats = len(p.keys) > 0
	return p.repeats
}

func (p *pendingSet) drop(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.keys, key)
}
