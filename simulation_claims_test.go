//go:build !race

package bellwether_test

import "testing"

// TestClaim_DocumentFleet holds the rows of docs/fleet.md that are too large for
// the race detector, with -short but for those of 10,000 nodes that poll.
func TestClaim_DocumentFleet(t *testing.T) {
	holdFleet(t, func(nodes int, pushes bool) bool {
		return !inRace(nodes, pushes) && (nodes < 10_000 || pushes || !testing.Short())
	})
}

// TestClaim_DocumentDrain holds the table of keys that expire together, with
// -short its rows of one process.
func TestClaim_DocumentDrain(t *testing.T) {
	holdDrains(t, func(processes int) bool { return processes == 1 || !testing.Short() })
}
