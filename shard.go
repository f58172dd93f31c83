package bellwether

import (
	"hash/maphash"
	"sync"
)

// This file finds flights by key. A shard's one lock guards the map of flights, each change of a flight and
// the key's near item together: with a lock for each flight, nearly every change would take both.

const shardCount = 64

// A shard has the flights and the witnesses of a part of the keys.
type shard struct {
	mu        sync.Mutex // guards the fields below, and fields of flights and witnesses that say so
	flights   map[string]*flight
	witnesses map[string]*witness // of all flights, also those that take no callers, and of values without a flight
}

type shards struct {
	seed maphash.Seed
	all  [shardCount]shard
}

func newShards() *shards {
	s := &shards{seed: maphash.MakeSeed()}
	for i := range s.all {
		s.all[i].flights, s.all[i].witnesses = make(map[string]*flight), make(map[string]*witness)
	}
	return s
}

func (s *shards) of(key string) *shard {
	return &s.all[maphash.String(s.seed, key)%shardCount]
}

// lockAll locks all shards, and calls first, then each for every shard. No other call holds two of the locks.
func (s *shards) lockAll(first func(), each func(*shard)) {
	for i := range s.all {
		s.all[i].mu.Lock()
		defer s.all[i].mu.Unlock()
	}
	first()
	for i := range s.all {
		each(&s.all[i])
	}
}
