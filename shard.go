package bellwether

import (
	"hash/maphash"
	"sync"
)

// This file is where the flights of an engine are found. The keys are dealt out to shards, and one lock
// guards all that a flight changes together with its key's place: the flight's own fields, the map in
// which callers find the flight, and the key's item in the near tier. With a lock of the flight's own
// beside one for the map, nearly every change would take both.

// shardCount is how many shards an engine has. It bounds how seldom two keys share a lock.
const shardCount = 64

// A shard has the flights and the witnesses of a part of the keys.
type shard[V any] struct {
	mu        sync.Mutex // guards what follows, and the fields of flights and witnesses that say so
	flights   map[string]*flight[V]
	witnesses map[string]*witness[V] // of all flights, also those that nobody may join any more, and of values that no flight makes
	closed    bool
}

// shards are an engine's.
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

// of is the key's shard.
func (s *shards[V]) of(key string) *shard[V] {
	return &s.all[maphash.String(s.seed, key)%shardCount]
}

// ended reports whether the cache is closed.
func (s *shard[V]) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// whole calls first, and each for every shard, with all shards locked: for a change that concerns
// every key. No other call holds two of the locks.
func (s *shards[V]) whole(first func(), each func(*shard[V])) {
	for i := range s.all {
		s.all[i].mu.Lock()
		defer s.all[i].mu.Unlock()
	}
	first()
	for i := range s.all {
		each(&s.all[i])
	}
}
