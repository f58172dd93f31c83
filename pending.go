package bellwether

import (
	"maps"
	"slices"
	"sync"
)

// This file is the set of keys whose invalidation waits for the store.

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

func (p *pendingSet) drop(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.keys, key)
}
