package bellwether

import (
	"hash/maphash"
	"sync"
)

// This file finds flights by key. A shard's one lock guards the map of flights, each change of a flight and
// the key's near item together: with a lock for each flight, nearly every change would take both.

const shardCount = 64

// A shard has the flights and the witnesses of a part of the keys.
type shard[V any] struct {
	mu        sync.Mutex // guards the fields below, and fields of flights and witnesses that say so
	flights   map[string]*flight[V]
	witnesses map[string]*witness[V] // of all flights, also those that take no callers, and of values without a flight
}

type shards[V any] struct {
	seed maphash.Seed
	all  [shardCount]shard[V]
}

func newShards[V any]() *shards[V] {
	s := &shards[V]{seed: maphash.MakeSeed()}
	for i := range s.all {
		s.all[i].flights, s.all[i].witnesses = make(map[string]*flight[V]), make(map[string]*witness[V])
	}
	return s
}

func (s *shards[V]) of(key string) *shard[V] {
	return &s.all[maphash.String(s.seed, key)%shardCount]
}

// lockAll locks all shards, and calls first, then each for every shard. No other call holds two of the locks.
func (s *shards[V]) lockAll(first func(), each func(*shard[V])) {
	for i := range s.all {
		s.all[i].mu.Lock()
		defer s.all[i].mu.Unlock()
	}
	first()
	for i := range s.all {
		each(&s.all[i])
	}
}
