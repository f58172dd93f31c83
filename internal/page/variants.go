package page

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/durations"
)

// This file bounds the variants of one key. Whoever can fill a field that a
// response varies by, such as User-Agent, can ask for a new variant with each
// request. The near tier is bounded in bytes, but one key should not take all
// of it, nor fill the store with what nobody asks for twice.

const (
	// maxVariants is how many variants of a key this process builds for the
	// cache within variantMemory. Requests for others go to the handler, as if
	// there were no cache; the variants that are there are served on.
	maxVariants   = 1024
	variantMemory = 10 * time.Minute
)

var variantSeed = maphash.MakeSeed()

// variants are those of one URL that were built of late: those for requests that need a
// variant because of what the pseudonyms stand for, and the others. Anybody can make up the
// former for any URL, and must not shut out the latter. The zero value is empty. It is safe
// for concurrent use.
type variants struct{ needed, named variantSet }

// of returns the variants of the one kind or the other.
func (v *variants) of(needed bool) *variantSet {
	if needed {
		return &v.needed
	}
	return &v.named
}

// A variantSet is some variants of one URL.
type variantSet struct {
	mu    sync.Mutex                   // guards what follows
	built map[uint64]durations.Instant // a variant's hash, to when it last was built or wanted
	swept durations.Instant            // when the map was last cleared of old ones
}

// admit reports whether the variant of that key may be built for the cache.
func (v *variantSet) admit(key string, now durations.Instant) bool {
	// Two variants of one hash count as one.
	id := maphash.String(variantSeed, key)
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.built[id]; !ok && len(v.built) >= maxVariants {
		// A sweep reads the whole map: not with each of a flood of requests.
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

// touch says that the variant of that key is there and wanted: it must not lose its
// place to those that nobody asks for twice, however long it is fresh, nor as the one
// whose build has told the names. Those that are there have been admitted, but for
// that one, so that the map has little more than maxVariants.
func (v *variantSet) touch(key string, now durations.Instant) {
	id := maphash.String(variantSeed, key)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.built == nil {
		v.built = make(map[uint64]durations.Instant)
	}
	v.built[id] = now
}
