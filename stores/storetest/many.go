package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// This file compares the answers of a BatchGetter with those of Get.

func batches(i Instance) bool { return i.Batches }

type said struct {
	entry driver.Entry
	err   error
}

// many reads keys from s at once, and wants one answer for each, all before GetMany returns.
func (k kit) many(ctx context.Context, s driver.Store, keys []string) []said {
	k.Helper()
	getter, ok := s.(driver.BatchGetter)
	if !ok {
		k.Fatalf("%T is no BatchGetter, but its Instance says Batches", s)
	}
	var mu sync.Mutex // guards the variables below
	answers, calls, over, failed := make([]said, len(keys)), make([]int, len(keys)), false, false
	getter.GetMany(ctx, keys, func(i int, e driver.Entry, err error) {
		mu.Lock()
		defer mu.Unlock()
		if over {
			if !failed { // otherwise the case has ended
				k.Errorf("GetMany calls for key %d after it has returned", i)
			}
			return
		}
		answers[i], calls[i] = said{e, err}, calls[i]+1
	})
	mu.Lock()
	defer mu.Unlock()
	over = true
	for i, n := range calls {
		if n != 1 {
			failed = true
			k.Fatalf("GetMany of %d keys has returned after %d calls for key %d, want one", len(keys), n, i)
		}
	}
	return answers
}

func testGetMany(k kit) {
	const n = 1000 // a cache asks for as many at once
	began := time.Now()
	writer, reader := k.Open(k), k.Open(k)
	want := map[string]driver.Entry{}
	var keys []string
	for i := range n {
		key := fmt.Sprintf("%s %d", k.key, i) // some engines hash keys with spaces
		if i%2 == 0 {
			key = fmt.Sprintf("%s/%d", k.key, i)
		}
		keys = append(keys, key)
		k := k
		k.key = key
		switch i % 10 { // most keys are unknown: the writes follow one another, and may be slow
		case 0, 1:
			e := value(k.newEpoch(writer), key)
			e.Age = time.Duration(i) * time.Second
			k.commit(writer, e)
			want[key] = e
		case 2:
			k.newEpoch(writer) // claimed, without an entry
		}
	}
	k.Run("entries", func(t *testing.T) {
		k := kit{T: t, Instance: k.Instance, key: k.key}
		for _, s := range []driver.Store{writer, reader} {
			for range 2 {
				for i, got := range k.many(t.Context(), s, keys) {
					e, there := want[keys[i]]
					if !there {
						if !errors.Is(got.err, driver.ErrNotFound) {
							t.Fatalf("%q, which is not there: entry of epoch %d, %v", keys[i], got.entry.Epoch, got.err)
						}
						continue
					}
					if got.err != nil {
						t.Fatalf("%q: %v", keys[i], got.err)
					}
					if err := same(got.entry, e); err != nil {
						t.Fatalf("%q: %v", keys[i], err)
					}
					if got.entry.Age > e.Age+time.Since(began)+time.Minute {
						t.Fatalf("%q: an Age of %v, committed with %v", keys[i], got.entry.Age, e.Age)
					}
				}
			}
		}
	})
	k.Run("none", func(t *testing.T) {
		kit{T: t, Instance: k.Instance, key: k.key}.many(t.Context(), reader, nil)
	})
	k.Run("one is invalidated", func(t *testing.T) {
		k := kit{T: t, Instance: k.Instance, key: keys[0]}
		k.invalidate(writer)
		answers := k.many(t.Context(), reader, keys[:2])
		if !errors.Is(answers[0].err, driver.ErrNotFound) {
			t.Errorf("the invalidated one: epoch %d, %v", answers[0].entry.Epoch, answers[0].err)
		}
		if answers[1].err != nil {
			t.Errorf("the other one: %v", answers[1].err)
		}
	})
	k.Run("one is no entry", func(t *testing.T) {
		if k.Poison == nil {
			t.Skip("the engine keeps no bytes")
		}
		k := kit{T: t, Instance: k.Instance, key: keys[10]}
		k.Poison(t, keys[10], []byte("somebody else's bytes"))
		answers := k.many(t.Context(), reader, keys[10:12])
		if !errors.Is(answers[0].err, driver.ErrCorrupt) {
			t.Errorf("the foreign bytes: epoch %d, %v, want ErrCorrupt", answers[0].entry.Epoch, answers[0].err)
		}
		if answers[1].err != nil {
			t.Errorf("the other one: %v", answers[1].err)
		}
	})
	k.Run("context", func(t *testing.T) {
		k := kit{T: t, Instance: k.Instance, key: k.key}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for i, got := range k.many(ctx, reader, keys) {
			if !errors.Is(got.err, context.Canceled) {
				t.Fatalf("key %d with a context that has ended: %v", i, got.err)
			}
		}
	})
}
