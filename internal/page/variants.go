package page

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
)

// This file bounds the variants of a key. A client can ask for a new variant of a field such as User-Agent
// with each request. Such variants must not fill the near tier and the store.

const (
	// maxVariants is the number of variants of a key that this process builds for the cache within
	// variantMemory. Requests for other variants go to the handler, unless the near tier has them.
	maxVariants   = 1024
	variantMemory = 10 * time.Minute
)

var variantSeed = maphash.MakeSeed()

// variants are the recently built variants of a URL: the variants of requests that need one because
// of a pseudonym, and the others. Any client can invent the former for any URL, and must not shut
// out the latter. The zero value is empty. All methods are safe for concurrent use.
type variants struct{ needed, named variantSet }

func (v *variants) of(needed bool) *variantSet {
	if needed {
		return &v.needed
	}
	return &v.named
}

// A variantSet has the hashes of variants. Two variants with one hash count as one. It is in memory beside the near
// tier, once for each URL, so it has four bytes for a variant, and no time.
type variantSet struct {
	mu     sync.Mutex // guards the fields below
	latest []uint32   // built since began
	before []uint32   // built in the variantMemory before began, and not since
	began  durations.Instant
}

func variantHash(key string) uint32 { return uint32(maphash.String(variantSeed, key)) }

// admits reports whether the variant of that key may be built for the cache.
func (s *variantSet) admits(key string, now durations.Instant) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.age(now)
	id := variantHash(key)
	return len(s.latest)+len(s.before) < maxVariants || slices.Contains(s.latest, id) || slices.Contains(s.before, id)
}

// add records that the variant of that key is built. Loads that began beside each other may pass maxVariants.
func (s *variantSet) add(key string, now durations.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.age(now)
	id := variantHash(key)
	if slices.Contains(s.latest, id) {
		return
	}
	if i := slices.Index(s.before, id); i >= 0 {
		s.before = slices.Delete(s.before, i, i+1)
	}
	s.latest = append(s.latest, id)
}

// age forgets old variants. s.mu is held.
func (s *variantSet) age(now durations.Instant) {
	switch since := now - s.began; {
	case since >= 2*variantMemory:
		s.latest, s.before, s.began = nil, nil, now
	case since >= variantMemory:
		s.latest, s.before, s.began = nil, s.latest, now
	}
}
