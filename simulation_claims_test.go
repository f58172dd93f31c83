//go:build !race

package bellwether_test

import (
	"strings"
	"testing"
)

// Rows of docs/fleets.md too large for the race detector hold. -short skips 10,000 polling nodes.
func TestClaim_DocumentFleet(t *testing.T) {
	holdFleet(t, func(nodes int, kind simKind) bool {
		return !inRace(nodes) && (nodes < 10_000 || kind != simPolls || !testing.Short())
	})
}

// The table of keys that expire together holds. -short checks the rows of one process.
func TestClaim_DocumentDrain(t *testing.T) {
	holdDrains(t, func(processes int) bool { return processes == 1 || !testing.Short() })
}

// holdDrains checks the second table's rows with a number of processes that of accepts.
func holdDrains(t *testing.T, of func(processes int) bool) {
	t.Helper()
	held := 0
	for _, row := range tableUnder(t, drainHeader) {
		o, ok := drains[row[0]]
		if !ok {
			t.Errorf("docs/fleets.md has an unknown row %q", row[0])
			continue
		}
		if n := number(t, row[1]); of(n) {
			held++
			t.Run(strings.Join(row[:2], ", "), func(t *testing.T) {
				t.Parallel()
				holdRow(t, row, drain(t, n, 10_000, simBuild, row[0], o))
			})
		}
	}
	if held == 0 {
		t.Error("docs/fleets.md has no such rows")
	}
}
