//go:build !race

package bellwether_test

const raceEnabled = false
