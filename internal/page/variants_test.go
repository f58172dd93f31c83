package page

import (
	"fmt"
	"testing"
	"time"
)

// Each variant counts once, and only against its own kind, until variantMemory has passed.
func TestVariants(t *testing.T) {
	var v variants
	now := instant(time.Hour)
	for i := range maxVariants {
		for range 3 {
			if key := fmt.Sprint(i); !v.of(true).admits(key, now) {
				t.Fatalf("variant %d is not admitted", i)
			} else {
				v.of(true).add(key, now)
			}
		}
	}
	if v.of(true).admits("new", now) || !v.of(true).admits("7", now) || !v.of(false).admits("new", now) {
		t.Error("after maxVariants: want no new variant of the kind, and all others")
	}
	now += variantMemory
	v.of(true).add("7", now)
	if v.of(true).admits("new", now) || !v.of(true).admits("8", now) {
		t.Error("after variantMemory: want the old variants, and no new one")
	}
	now += variantMemory
	if !v.of(true).admits("new", now) || len(v.of(true).before) != 1 {
		t.Errorf("later: %d old variants, want the one in use", len(v.of(true).before))
	}
	v.of(true).add("9", now)
	for _, now := range []instant{now, now + variantMemory} { // a variant that is built again counts once
		for i := range maxVariants - 1 {
			v.of(false).add(fmt.Sprint(i), now)
		}
		if !v.of(false).admits("new", now) {
			t.Error("not admitted beside fewer than maxVariants")
		}
	}
	if v.of(true).age(now + 2*variantMemory); len(v.of(true).before) != 0 {
		t.Error("long afterwards variants are there")
	}
}
