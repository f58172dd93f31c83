package chain

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/slots"
)

func TestAwait(t *testing.T) {
	s := slots.New(10, 10)
	var a, b, c Flight
	loadA, loadBC := NewLoad(t.Context(), s, &a), NewLoad(t.Context(), s, &b, &c) // b and c are a batch
	for _, step := range []struct {
		what string
		do   func() error
		want error
	}{
		{"own key", func() error { return a.Await(loadA) }, errOwnKey},
		{"key of the same batch", func() error { return c.Await(loadBC) }, errOwnKey},
		{"a waits for b", func() error { return b.Await(loadA) }, nil},
		{"a waits for b again", func() error { return b.Await(loadA) }, nil},
		{"the batch waits for a", func() error { return a.Await(loadBC) }, errCircle},
		{"a circle after one of two calls", func() error { b.Leave(loadA); return a.Await(loadBC) }, errCircle},
		{"no circle after both calls", func() error { b.Leave(loadA); return a.Await(loadBC) }, nil},
		{"a waits for c", func() error { return c.Await(loadA) }, errCircle},
		{"a circle with an ended load", func() error { loadBC.Slot.End(); return c.Await(loadA) }, nil},
	} {
		if err := step.do(); !errors.Is(err, step.want) {
			t.Errorf("%s: %v, want %v", step.what, err, step.want)
		}
	}
}

func TestAwait_LongCircle(t *testing.T) {
	s := slots.New(10, 10)
	var flights [5]Flight
	var loads [5]*Load
	for i := range loads {
		loads[i] = NewLoad(t.Context(), s, &flights[i])
	}
	for i := range 4 {
		if err := flights[i+1].Await(loads[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := flights[0].Await(loads[4]); !errors.Is(err, errCircle) {
		t.Errorf("%v, want %v", err, errCircle)
	}
}

// TestAwait_LargeBatches has a batch's load ask for a batch whose load asks for a third batch. A search that visits the
// first load once for each key of the second takes a minute, under the lock of all flights.
func TestAwait_LargeBatches(t *testing.T) {
	const n = 2000
	s := slots.New(10, 10)
	var levels [3][]*Flight
	for i := range levels {
		for range n {
			levels[i] = append(levels[i], new(Flight))
		}
	}
	began := time.Now()
	for i, asked := range levels[1:] {
		l := NewLoad(t.Context(), s, levels[i]...)
		for at, f := range asked {
			if err := f.Await(l); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Fatalf("%v for the first %d calls of the load of batch %d", took, at+1, i+1)
			}
		}
	}
	if err := levels[0][n-1].Await(NewLoad(t.Context(), s, levels[2]...)); !errors.Is(err, errCircle) {
		t.Errorf("%v, want %v", err, errCircle)
	}
}

func TestLoad_Full(t *testing.T) {
	s := slots.New(10, 10)
	var ctx context.Context = t.Context()
	var f Flight
	for i := range longest + 5 {
		l := NewLoad(ctx, s, &f)
		if full := l.Full() != nil; full != (i+1 >= longest) {
			t.Errorf("load %d of a chain: full is %v", i+1, full)
		}
		ctx = l
	}
}

// A load that has ended makes no others wait, and With hands a load over.
func TestRunning(t *testing.T) {
	l := NewLoad(t.Context(), slots.New(1, 1), &Flight{})
	for _, ctx := range []context.Context{l, With(t.Context(), l)} {
		if Running(ctx) != l {
			t.Error("the load does not run")
		}
	}
	if Running(t.Context()) != nil || Running(With(t.Context(), t.Context())) != nil {
		t.Error("a load without a load")
	}
	l.Slot.End()
	if Running(l) != nil {
		t.Error("the load has ended, and runs")
	}
}
