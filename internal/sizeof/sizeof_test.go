package sizeof

import (
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

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
		"string":           {Of("hello"), 2*word + 5, 0},
		"bytes":            {Of(make([]byte, 3, 100)), 3*word + 100, 0},
		"nil bytes":        {Of([]byte(nil)), 3 * word, 0},
		"int":              {Of(7), word, 0},
		"nil pointer":      {Of((*node)(nil)), word, 0},
		"nil interface":    {Of(nil), 0, 0},
		"nil map":          {Of(map[string]int(nil)), word, 0},
		"nil in interface": {Of([]any{(*node)(nil)}), 6 * word, 0},
		"pointer":          {Of(shared), word + 1000, 0},
		"shared pointers":  {Of([]*[1000]byte{shared, shared, shared}), 6*word + 1000, 0},
		"array of shared":  {Of([2]*[1000]byte{shared, shared}), 2*word + 1000, 0},
		"in interface":     {Of([]any{[1000]byte{}}), 5*word + 1000, 0},
		"struct":           {Of(struct{ a, b string }{"aaaa", "bb"}), 4*word + 6, 0},
		"slice of strings": {Of([]string{"aaaa", "bb"}), 3*word + 4*word + 6, 0},
		"slice's capacity": {Of(make([]int64, 1, 100)), 3*word + 800, 0},
		"map":              {Of(map[string]string{"key": "value"}), word + 4*word + 8, 0},
		"ring":             {Of(ring), word + 2*int(unsafe.Sizeof(node{})), 0},
		"unexported":       {Of(self), word + int(unsafe.Sizeof(hidden{})) + 500 + 3 + 300 + 5*word + 200, 0},
		"self interface":   {Of(selfInterface), 4 * word, 4 * word},
		"cyclic slice":     {Of(cyclicSlice), 10 * word, 5 * word},
		"cyclic map":       {Of(cyclicMap), 6 * word, 4 * word},
		"flat megabyte":    {Of([][]byte{make([]byte, 1<<20)}), 6*word + 1<<20, 0},
		"struct of nothing": {Of(struct {
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

// Strings that share their bytes sum up to more than the largest int of 32 bits: the value does not become light.
func TestSizeOf_BeyondAnInt(t *testing.T) {
	got := Of(slices.Repeat([]string{strings.Repeat("x", 1<<20)}, 1<<12))
	if want := min(1<<32, uint64(math.MaxInt)); uint64(got) < want {
		t.Errorf("%d bytes, want at least %d", got, want)
	}
}

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
	type message struct { // as in protobuf
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
		if n := Of(v); n <= 0 || n > 500 {
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
	for range 1000 { // under -race this fails if Of looks into the pool
		Of(&row{"b", p})
	}
}

// A value at the same address as a smaller one still counts.
func TestSizeOf_PointerToTheFirstField(t *testing.T) {
	type large struct {
		first byte
		_     [1000]byte
		inner *[1000]byte
	}
	l, b := &large{inner: &[1000]byte{}}, make([]byte, 1000)
	for _, v := range [][]any{{&l.first, l}, {l, &l.first}} {
		if got := Of(v); got < 2000 {
			t.Errorf("%T, %T: %d bytes, want at least the 2,000 that are reached", v[0], v[1], got)
		}
	}
	for _, v := range [][][]byte{{b[:1:1], b}, {b, b[:1:1]}} {
		if got := Of(v); got < 1000 {
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
	if got, want := Of(&nodes[0]), length*int(unsafe.Sizeof(node{})); got < want || got > want+64 {
		t.Errorf("a list of a million nodes: %d bytes, want %d", got, want)
	}
}
