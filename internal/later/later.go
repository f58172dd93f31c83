// Package later repeats a call about each of many keys, until the engine answers it. The keys' calls are made in rounds.
package later

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// most is the most keys that wait. Any client of a Middleware can send unsafe requests. Further keys are not added.
	most = 4096
	// maxSilent calls without an answer end a round: a dead server's keys must not cost a call each.
	maxSilent = 16
	// longestPause is the longest pause before a round. A store that drops the key, and answers too
	// late, loses the key's responses once more in each round.
	longestPause = 16 * time.Second
)

// Config is the way to the engine and to the cache.
type Config struct {
	// Try makes the call about a key. It reports whether the engine was silent.
	Try func(key string) (silent bool)
	// Answers returns a channel that is closed when the engine answers again.
	Answers func() <-chan struct{}
	// Pause is the pause before the first round. Each further pause is twice as long.
	Pause time.Duration
	// Open ends with the cache. Behind runs a function on a goroutine that the cache waits for, unless Open has ended.
	Open   context.Context
	Behind func(func())
}

// Keys are the keys that wait. They are safe for concurrent use.
type Keys struct {
	Config

	mu      sync.Mutex // guards the fields below
	keys    map[string]struct{}
	repeats bool // a goroutine makes the rounds
}

// New returns Keys without a key.
func New(c Config) *Keys { return &Keys{Config: c, keys: make(map[string]struct{})} }

// Add has the call about a key repeated.
func (k *Keys) Add(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.keys) >= most {
		return
	}
	k.keys[key] = struct{}{}
	if !k.repeats {
		k.repeats = true
		k.Behind(func() { k.round(k.Pause) })
	}
}

// Drop takes a key away: the call about it has an answer.
func (k *Keys) Drop(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.keys, key)
}

// round makes one round after the pause, or when the engine answers.
func (k *Keys) round(pause time.Duration) {
	defer k.next(min(2*pause, longestPause)) // also after a Goexit in Try
	select {
	case <-k.Answers():
	case <-time.After(pause):
	case <-k.Open.Done():
		return
	}
	silent := 0
	for _, key := range k.all() {
		if silent == maxSilent || k.Open.Err() != nil {
			return
		}
		k.Drop(key) // before the call: an Add during the call needs a call after it
		if k.Try(key) {
			silent++
			k.Add(key)
		}
	}
}

// next begins the next round, if a key waits.
func (k *Keys) next(pause time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.repeats = len(k.keys) > 0; k.repeats {
		k.Behind(func() { k.round(pause) })
	}
}

func (k *Keys) all() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.keys))
}
