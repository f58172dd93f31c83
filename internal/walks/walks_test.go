package main

import (
	"testing"

	"github.com/bellwether-go/bellwether/internal/walks/probe"
)

func TestInstrument(t *testing.T) {
	const source = `// Package p has functions.
package p // a comment

import "sync"

var once, twice = sync.OnceValue(func() int { return 1 }), 2

// f has a literal.
//
//go:noinline
func f() {
	go func() {}()
}

func (a *table[K, V]) get() {}

func inAssembly()
`
	const want = `// Package p has functions.
package p; import walkprobe "github.com/bellwether-go/bellwether/internal/walks/probe" // a comment

import "sync"

var once, twice = sync.OnceValue(func() int { walkprobe.Enter("p.go", "once"); return 1 }), 2

// f has a literal.
//
//go:noinline
func f() { walkprobe.Enter("p.go", "f");
	go func() { walkprobe.Enter("p.go", "f");}()
}

func (a *table[K, V]) get() { walkprobe.Enter("p.go", "table.get");}

func inAssembly()
`
	got, err := instrument("p.go", []byte(source))
	if err != nil || string(got) != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, got, want)
	}
	const without = "package p\n\ntype T int\n"
	if got, err := instrument("p.go", []byte(without)); err != nil || string(got) != without {
		t.Errorf("a file without functions: got %v\n%s", err, got)
	}
}

func TestCount(t *testing.T) {
	var entries []probe.Entry
	for _, e := range [][2]string{{"a.go", "f"}, {"a.go", "g"}, {"b.go", "f"}, {"a.go", "f"}, {"a.go", "f"}, {"c.go", "h"}, {"b.go", "f"}} {
		entries = append(entries, probe.Entry{File: e[0], Function: e[1]})
	}
	if got, want := count(entries), [...]int{4, 3, 2, 7}; got != want {
		t.Errorf("got %v of %v, want %v", got, numbers, want)
	}
}
