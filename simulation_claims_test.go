//go:build !race

package bellwether_test

import (
	"strings"
	"testing"
)

// TestClaim_DocumentFleet holds the rows of docs/fleet.md that are too large for
// the race detector. Those of 10,000 nodes that poll, which take longest, are left
// to "make simulation", but for the first.
func TestClaim_DocumentFleet(t *testing.T) {
	held := holdFleet(t, func(nodes int, pushes bool, event simEvent) bool {
		return !inRace(nodes, pushes, event) && (nodes < 10_000 || pushes || event == simExpires)
	})
	if held == 0 {
		t.Error("there are none")
	}
}

// TestClaim_DocumentDrain holds the table of keys that expire together.
func TestClaim_DocumentDrain(t *testing.T) {
	for _, row := range tableUnder(t, drainHeader) {
		o, ok := drains[row[0]]
		if !ok {
			t.Errorf("docs/fleet.md has a row %q, which is no way to drain", row[0])
			continue
		}
		t.Run(strings.Join(row[:2], ", "), func(t *testing.T) {
			t.Parallel()
			holdRow(t, row, drain(t, number(t, row[1]), 10_000, row[0], o))
		})
	}
}
