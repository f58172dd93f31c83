package page

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
)

// This file bounds the variants of a key. A client can ask for a new variant of a field such as User-Agent
// with each request. Such variants must not fill the near tier and the store.

const (
	// maxVariants is the number of variants of a key that this process builds for the cache within
	// variantMemory. Requests for other variants go to the handler. Existing variants are still served.
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

type variantSet struct {
	mu    sync.Mutex                   // guards the fields below
	built map[uint64]durations.Instant // a variant's hash, to when it last was built or wanted
	swept durations.Instant            // when old variants were last removed
}

// admit reports whether the variant of that key may be built for the cache.
func (v *variantSet) admit(key string, now durations.Instant) bool {
	// Two variants with one hash count as one.
	id := maphash.String(variantSeed, key)
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.built[id]; !ok && len(v.built) >= maxVariants {
		// The loop reads the whole map: at most once a second in a flood of requests.
		if now-v.swept < time.Second {
			return false
		}
		v.swept = now
		for old, at := range v.built {
			if now-at > variantMemory {
				delete(v.built, old)
			}
		}
		if len(v.built) >= maxVariants {
			return false
		}
	}
	if v.built == nil {
		v.built = make(map[uint64]durations.Instant)
	}
	v.built[id] = now
	return true
}

// touch records that the variant of that key exists and is wanted. It must not lose its place to
// variants that are asked for once, however long it is fresh. The variant that has named the fields
// is touched without admit. All others are admitted, so the map hardly exceeds maxVariants.
func (v *variantSet) touch(key string, now durations.Instant) {
	id := maphash.String(variantSeed, key)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.built == nil {
		v.built = make(map[uint64]durations.Instant)
	}
	v.built[id] = now
}
