//go:build !race

package bellwether_test

import "slices"

func median(xs []float64) float64 {
	s := slices.Sorted(slices.Values(xs))
	return s[len(s)/2]
}

// decided reports whether the median of the rounds is within the limit, whatever the rest brings.
func decided(rounds int, soFar []float64, limit float64) bool {
	within := 0
	for _, x := range soFar {
		if x <= limit {
			within++
		}
	}
	return within > rounds/2
}
