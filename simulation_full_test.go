//go:build simulation

package bellwether_test

import "testing"

// TestSimulation_DocumentFleet holds all rows of the first table of docs/fleet.md.
func TestSimulation_DocumentFleet(t *testing.T) {
	holdFleet(t, func(int, bool, simEvent) bool { return true })
}

// TestSimulation_DocumentDrain holds all rows of its second.
func TestSimulation_DocumentDrain(t *testing.T) {
	holdDrains(t, func(int) bool { return true })
}
