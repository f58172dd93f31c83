package page

import (
	"context"
	"testing"
)

// A key takes no memory when its requests have ended, also those that have found no place.
func TestBypasses_NothingStays(t *testing.T) {
	var b bypasses
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var ends []func()
	for range maxBypasses {
		end, ok := b.begin(ctx, "k")
		if !ok {
			t.Fatal("a free place is refused")
		}
		ends = append(ends, end)
	}
	if _, ok := b.begin(ctx, "k"); ok {
		t.Error("there are too many places")
	}
	for _, end := range ends {
		if len(b.of) != 1 {
			t.Errorf("%d keys while requests run, want 1", len(b.of))
		}
		end()
		end()
	}
	if len(b.of) != 0 {
		t.Errorf("%d keys stay, want none", len(b.of))
	}
}
