package page

import (
	"testing"
	"testing/synctest"
	"time"
)

// New variants count for variantTime, those of one kind of request not against the other kind.
func TestVariants(t *testing.T) {
	var v variants
	now := instant(time.Hour)
	for range maxVariants {
		if v.of(true).full(now) {
			t.Fatal("full below maxVariants")
		}
		v.of(true).add(now)
	}
	if !v.of(true).full(now) || v.of(false).full(now) {
		t.Errorf("after maxVariants: full %v, and the others %v", v.of(true).full(now), v.of(false).full(now))
	}
	part := variantTime / maxVariants
	if v.of(true).full(now+part) || !v.of(true).full(now+part-1) {
		t.Error("a part of variantTime later there must be room for one variant")
	}
	if v.of(true).add(now + 10*variantTime); v.of(true).full(now + 10*variantTime) {
		t.Error("full long afterwards")
	}
}

// Variants that are counted at the same time all count.
func TestVariants_Concurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var v variants
		for range maxVariants {
			go v.of(false).add(1)
		}
		synctest.Wait()
		if !v.of(false).full(1) {
			t.Error("a variant was not counted")
		}
	})
}
