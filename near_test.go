package bellwether

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/bellwether-go/bellwether/driver"
)

func newTestNear(t *testing.T, maxBytes int64) *near[string] {
	t.Helper()
	n := newNear(clock{time.Now()}, maxBytes, sizeOf[string], nil)
	t.Cleanup(n.close)
	return n
}

// made is a value of an epoch that is fresh for a while from now on.
func (n *near[V]) made(v V, epoch uint64, ttl time.Duration) *item[V] {
	now := n.clock.now()
	return &item[V]{lifetime: newLifetime(now, Freshness{TTL: ttl}), kind: KindValue, value: v, epoch: epoch, trusted: forever}
}

// What no flight answers for only moves forward; what one ends with takes its place
// whatever its epoch.
func TestNear_MovesForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTestNear(t, 1<<20)
		for i, step := range []struct {
			put   bool
			epoch uint64
			v     string
			kept  string
		}{
			{true, 5, "a", "a"},
			{false, 4, "b", "a"},  // too late
			{false, 5, "c", "c"},  // the same rebuild, read again
			{false, 6, "d", "d"},  // the next one
			{false, 0, "e", "d"},  // without an entry that it stands beside
			{true, 2, "f", "f"},   // of a store that has lost its data
			{false, 3, "g", "g"},  // its next one
			{false, 2, "h", "g"},  // not back
			{true, 0, "i", "i"},   // made while the store was silent
			{false, 99, "j", "j"}, // epochs may skip
		} {
			keep := n.advance
			if step.put {
				keep = func(key string, it *item[string]) { n.put(key, it, 1) }
			}
			keep("k", n.made(step.v, step.epoch, time.Hour))
			if got, _ := n.get("k"); got.value != step.kept {
				t.Fatalf("step %d: after %+v the tier has %s of epoch %d", i, step, got.value, got.epoch)
			}
		}
		n.delete("k")
		if it, _ := n.get("k"); it != nil {
			t.Fatal("a deleted item is still there")
		}
		n.put("k", n.made("old epoch after a delete", 1, time.Hour), 1)
		if it, _ := n.get("k"); it == nil || it.epoch != 1 {
			t.Fatal("a deleted item holds the place of another")
		}
	})
}

// A value that is past its windows when it is made is not kept. Neither is
// what it came after: that would be served again, the older after the newer.
func TestNear_ValueWithoutALifeEndsItsForerunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTestNear(t, 1<<20)
		n.put("k", n.made("old", 1, time.Hour), 1)
		n.put("k", n.made("late", 0, 0), 1)
		if it, _ := n.get("k"); it != nil {
			t.Errorf("%q is still there after a later value that was not to be kept", it.value)
		}
		n.put("k", n.made("old", 2, time.Hour), 1)
		n.put("k", n.made("new", 3, 0), 1)
		if it, _ := n.get("k"); it != nil {
			t.Errorf("%q is still there after a later value that was not to be kept", it.value)
		}
		n.put("k", n.made("new", 5, time.Hour), 1)
		n.advance("k", n.made("old", 4, 0))
		if it, _ := n.get("k"); it == nil || it.value != "new" {
			t.Error("an older value without a life has ended a newer one")
		}
	})
}

func TestNear_Expiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTestNear(t, 1<<20)
		now := n.clock.now()
		failing := lifetime{failures: 1, retryAt: now + time.Second}
		n.put("value", &item[string]{lifetime: newLifetime(now, Freshness{TTL: time.Second, StaleIfError: 4 * time.Second}), kind: KindValue, epoch: 1}, 1)
		n.put("failure", &item[string]{lifetime: failing, epoch: 1}, 1)
		n.put("endless", n.made("v", 1, endless), 1)
		for _, step := range []struct {
			at                       time.Duration
			value, failure, forEvery bool
		}{
			{0, true, true, true},
			{5*time.Second - 1, true, true, true},
			{5 * time.Second, false, true, true},
			{time.Second + driver.FailureMemory - 1, false, true, true},
			{time.Second + driver.FailureMemory, false, false, true},
			{time.Hour, false, false, true}, // otter ticks once a second, in bubbles too
		} {
			time.Sleep(step.at - (n.clock.now() - now))
			for key, want := range map[string]bool{"value": step.value, "failure": step.failure, "endless": step.forEvery} {
				if it, _ := n.get(key); (it != nil) != want {
					t.Errorf("%v: %s is there: %t, want %t", step.at, key, it != nil, want)
				}
			}
		}
	})
}

// A later item with a shorter life ends sooner, one with a longer life later.
func TestNear_ExpiryFollowsTheItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTestNear(t, 1<<20)
		n.put("shorter", n.made("a", 1, time.Hour), 1)
		n.put("shorter", n.made("b", 2, time.Second), 1)
		n.put("longer", n.made("a", 1, time.Second), 1)
		n.put("longer", n.made("b", 2, time.Hour), 1)
		time.Sleep(time.Minute)
		if it, _ := n.get("shorter"); it != nil {
			t.Errorf("%q outlives its windows", it.value)
		}
		if it, _ := n.get("longer"); it == nil || it.value != "b" {
			t.Error("the later item went at the end of the earlier one")
		}
	})
}

func TestNear_BoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 1 << 20
		n := newTestNear(t, limit)
		rng := rand.New(rand.NewPCG(1, 1))
		for i := range 5000 {
			n.put(fmt.Sprint(i), n.made(string(make([]byte, rng.IntN(8<<10))), 1, time.Hour), 1)
			if i%500 == 499 {
				synctest.Wait() // otter evicts behind the writers
				n.cache.CleanUp()
				if got := n.cache.WeightedSize(); got > limit {
					t.Fatalf("%d bytes after %d puts, want at most %d", got, i+1, limit)
				}
			}
		}
		if got := n.cache.WeightedSize(); got < limit/2 {
			t.Errorf("%d bytes, want the memory used", got)
		}
		// Many small ones weigh more than their bytes.
		for i := range 50_000 {
			n.put(fmt.Sprint("small", i), n.made("", 1, time.Hour), 1)
		}
		synctest.Wait()
		n.cache.CleanUp()
		if got := n.cache.EstimatedSize(); got > limit/itemOverhead {
			t.Errorf("%d empty values in %d bytes: their overhead is not counted", got, limit)
		}
		// One that can never fit leaves the others alone.
		n.put("huge", n.made(string(make([]byte, 2*limit)), 1, time.Hour), 1)
		synctest.Wait()
		n.cache.CleanUp()
		if _, there := n.cache.GetIfPresent("huge"); there || n.cache.WeightedSize() < limit/4 {
			t.Errorf("a value larger than the tier is kept: %t; the rest weighs %d", there, n.cache.WeightedSize())
		}
	})
}

// A value that the tier has no room for at all is let go of once, however many callers
// have waited for it.
func TestNear_TooLargeForAHerd(t *testing.T) {
	const values = 300
	var evicted atomic.Int32
	n := newNear(clock{time.Now()}, 64<<10, sizeOf[string], func(string, *item[string]) { evicted.Add(1) })
	defer n.close()
	for i := range values {
		it := n.made(string(make([]byte, 100<<10)), 1, time.Hour)
		n.put(fmt.Sprint("k", i), it, 20)
	}
	n.cache.CleanUp()
	for start := time.Now(); evicted.Load() < values && time.Since(start) < 5*time.Second; time.Sleep(time.Millisecond) {
	}
	time.Sleep(10 * time.Millisecond) // for those that would be too many
	if got := evicted.Load(); got != values {
		t.Errorf("%d evictions of %d values", got, values)
	}
}

func TestNear_SizesThatNobodyMeans(t *testing.T) {
	for _, size := range []int{-1, -1 << 62, 1 << 40, 1<<63 - 1} {
		n := newNear(clock{time.Now()}, 1<<20, func(string, string) int { return size }, nil)
		n.put("k", n.made("v", 1, time.Hour), 1)
		n.cache.CleanUp()
		if got, _ := n.get("k"); size > 0 && got != nil {
			t.Errorf("size %d: kept in a tier of 1 MiB", size)
		}
		if w := n.cache.WeightedSize(); w > 1<<20 {
			t.Errorf("size %d: tier weighs %d", size, w)
		}
		n.close()
	}
}

func TestNear_ForwardUnderConcurrentUse(t *testing.T) {
	n := newTestNear(t, 1<<20)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(w)))
			var seen uint64
			for i := range 3000 {
				epoch := uint64(i + rng.IntN(50))
				n.advance("k", n.made("v", epoch, time.Hour))
				it, _ := n.get("k")
				if it == nil || it.epoch < max(seen, epoch) {
					t.Errorf("got %v after advance(%d), and %d had been seen", it, epoch, seen)
					return
				}
				seen = it.epoch
			}
		})
	}
	wg.Wait()
}

// A hooked store calls committed after each commit.
type hookedStore struct {
	Store
	committed func(key string)
}

func (s *hookedStore) Claim(context.Context, string) (Entry, uint64, error) { return Entry{}, 1, nil }
func (s *hookedStore) Invalidate(context.Context, string) error             { return nil }
func (s *hookedStore) Commit(_ context.Context, key string, _ Entry) error {
	s.committed(key)
	return nil
}

func newTestEngine(t *testing.T, store Store) *engine[string] {
	o := Options{Store: store, NearBytes: 1 << 20}.settings()
	e := newEngine(o, sizeOf[string], func(v string) ([]byte, error) { return []byte(v), nil }, func(b []byte) (string, error) { return string(b), nil })
	t.Cleanup(e.close)
	return e
}

// What another key's rebuild has made takes memory as well.
func TestEnginePut_CountsBytes(t *testing.T) {
	e := newTestEngine(t, &hookedStore{committed: func(string) {}})
	for i := range 1000 {
		e.put(t.Context(), fmt.Sprint(i), string(make([]byte, 10_000)), Freshness{TTL: time.Hour}, 0, nil)
	}
	e.near.cache.CleanUp()
	if n := e.near.cache.EstimatedSize(); n > 110 || n < 50 {
		t.Errorf("%d values of 10 kB in a tier of 1 MiB", n)
	}
}

// An Invalidate between the commit and the near tier.
func TestEnginePut_InvalidatedMeanwhile(t *testing.T) {
	s := &hookedStore{}
	e := newTestEngine(t, s)
	s.committed = func(key string) {
		if err := e.invalidate(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
	e.put(t.Context(), "k", "old", Freshness{TTL: time.Hour}, 0, nil)
	if it, _ := e.near.get("k"); it != nil {
		t.Errorf("%q is in the near tier after its invalidation", it.value)
	}
}

type node struct {
	next *node
	_    [48]byte
}

type hidden struct {
	b    []byte
	m    map[string][]byte
	any  any
	self *hidden
	f    func()
	ch   chan int
}

func TestSizeOf(t *testing.T) {
	const word = int(unsafe.Sizeof(uintptr(0)))
	shared := &[1000]byte{}
	ring := &node{}
	ring.next = &node{next: ring}
	self := &hidden{b: make([]byte, 10, 500), m: map[string][]byte{"key": make([]byte, 300)}, any: [200]byte{}, f: func() {}, ch: make(chan int)}
	self.self = self
	var selfInterface any
	selfInterface = &selfInterface
	cyclicSlice := make([]any, 1)
	cyclicSlice[0] = cyclicSlice
	cyclicMap := map[string]any{}
	cyclicMap["k"] = cyclicMap

	for name, test := range map[string]struct{ got, want, slack int }{
		"string":           {sizeOf("", "hello"), 5, 0},
		"bytes":            {sizeOf("", make([]byte, 3, 100)), 100, 0},
		"nil bytes":        {sizeOf[[]byte]("", nil), 0, 0},
		"int":              {sizeOf("", 7), word, 0},
		"nil pointer":      {sizeOf[*node]("", nil), word, 0},
		"nil interface":    {sizeOf[any]("", nil), 2 * word, 0},
		"nil map":          {sizeOf[map[string]int]("", nil), word, 0},
		"nil in interface": {sizeOf[any]("", (*node)(nil)), 2 * word, word},
		"pointer":          {sizeOf("", shared), word + 1000, 0},
		"shared pointers":  {sizeOf("", []*[1000]byte{shared, shared, shared}), 6*word + 1000, 0},
		"array of shared":  {sizeOf("", [2]*[1000]byte{shared, shared}), 2*word + 1000, 0},
		"interface":        {sizeOf[any]("", [1000]byte{}), 2*word + 1000, 0},
		"struct":           {sizeOf("", struct{ a, b string }{"aaaa", "bb"}), 4*word + 6, 0},
		"slice of strings": {sizeOf("", []string{"aaaa", "bb"}), 3*word + 4*word + 6, 0},
		"slice's capacity": {sizeOf("", make([]int64, 1, 100)), 3*word + 800, 0},
		"map":              {sizeOf("", map[string]string{"key": "value"}), word + 4*word + 8, 0},
		"ring":             {sizeOf("", ring), word + 2*int(unsafe.Sizeof(node{})), 0},
		"unexported":       {sizeOf("", self), word + int(unsafe.Sizeof(hidden{})) + 500 + 3 + 300 + 5*word + 200, 0},
		"self interface":   {sizeOf("", selfInterface), 4 * word, 4 * word},
		"cyclic slice":     {sizeOf("", cyclicSlice), 10 * word, 5 * word},
		"cyclic map":       {sizeOf("", cyclicMap), 6 * word, 4 * word},
		"flat megabyte":    {sizeOf("", [][]byte{make([]byte, 1<<20)}), 6*word + 1<<20, 0},
		"struct of nothing": {sizeOf("", struct {
			a, b struct{}
			f    func()
			c    chan int
			u    unsafe.Pointer
		}{}), 3 * word, word},
	} {
		if test.got < test.want-test.slack || test.got > test.want+test.slack {
			t.Errorf("%s: %d bytes, want %d within %d", name, test.got, test.want, test.slack)
		}
	}
}

// What guards itself is in use elsewhere, so it is not looked into: a map that is
// written to meanwhile would end the process.
func TestSizeOf_WhatGuardsItself(t *testing.T) {
	type pool struct {
		mu   sync.Mutex
		free map[int]string
	}
	type row struct {
		name string
		from *pool
	}
	type counted struct {
		atomic.Int64
		text string
	}
	type message struct { // as protobuf's
		_    [0]sync.Mutex
		text string
	}
	text := strings.Repeat("x", 1<<16)
	p := &pool{free: map[int]string{1: text}}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	var m sync.Map
	m.Store(1, text)
	for _, v := range []any{row{"a", p}, &counted{text: text}, []*message{{text: text}}, &m, time.Now().In(berlin)} {
		if n := sizeOf("", v); n <= 0 || n > 500 {
			t.Errorf("%T: %d bytes", v, n)
		}
	}
	var writing sync.WaitGroup
	defer writing.Wait()
	ended := make(chan struct{})
	defer close(ended)
	writing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-ended:
				return
			default:
			}
			p.mu.Lock()
			p.free[i%8] = "y"
			p.mu.Unlock()
		}
	})
	for range 1000 { // under -race this fails if anybody looks
		sizeOf("", &row{"b", p})
	}
}

// What begins at the same address as something smaller counts all the same.
func TestSizeOf_PointerToTheFirstField(t *testing.T) {
	type large struct {
		first byte
		_     [1000]byte
		inner *[1000]byte
	}
	l, b := &large{inner: &[1000]byte{}}, make([]byte, 1000)
	for _, v := range [][]any{{&l.first, l}, {l, &l.first}} {
		if got := sizeOf("", v); got < 2000 {
			t.Errorf("%T, %T: %d bytes, want at least the 2,000 that are reached", v[0], v[1], got)
		}
	}
	for _, v := range [][][]byte{{b[:1:1], b}, {b, b[:1:1]}} {
		if got := sizeOf("", v); got < 1000 {
			t.Errorf("%d bytes for two slices of one array, want at least its 1,000", got)
		}
	}
}

func TestSizeOf_LongList(t *testing.T) {
	const length = 1_000_000
	nodes := make([]node, length)
	for i := range nodes[1:] {
		nodes[i].next = &nodes[i+1]
	}
	if got, want := sizeOf("", &nodes[0]), length*int(unsafe.Sizeof(node{})); got < want || got > want+64 {
		t.Errorf("a list of a million nodes: %d bytes, want %d", got, want)
	}
}

// What a herd has asked for is kept, although the table is full of what has been
// asked for a few times.
func TestNear_FirstValueOfAHerd(t *testing.T) {
	n := newTestNear(t, 64<<10)
	ask := func(key string, callers int) (had bool) {
		if it, _ := n.get(key); it != nil {
			return true
		}
		it := n.made(string(make([]byte, 700)), 0, time.Hour) // more than the table takes in unseen, 1 %
		n.put(key, it, callers)
		n.cache.CleanUp()
		return false
	}
	for i := range 400 {
		ask(fmt.Sprint("scan ", i%80), 1)
	}
	kept := 0
	for i := range 100 {
		key := fmt.Sprint("herd ", i)
		ask(key, 100)
		if ask(key, 1) {
			kept++
		}
	}
	// Some are taken for others: so small a table's counters are few.
	if kept < 50 {
		t.Errorf("%d of 100 values are kept", kept)
	}
}

// What a failure says takes memory, too.
func TestNear_FailuresWeigh(t *testing.T) {
	n := newTestNear(t, 1<<20)
	for _, err := range []error{errors.New(string(make([]byte, 5000))), &PanicError{Stack: make([]byte, 5000)}} {
		it := &item[string]{err: err}
		if n.weigh("k", it); it.weight < 5000 {
			t.Errorf("%T: %d", err, it.weight)
		}
	}
}
