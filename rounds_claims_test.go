//go:build !race

package bellwether_test

import "slices"

func median(xs []float64) float64 {
	s := slices.Sorted(slices.Values(xs))
	return s[len(s)/2]
}

// decided reports whether the median of that many rounds is known to be within
// the limit, whatever those that are still to come bring: more than half of
// them are.
func decided(rounds int, soFar []float64, limit float64) bool {
	within := 0
	for _, x := range soFar {
		if x <= limit {
			within++
		}
	}
	return within > rounds/2
}
