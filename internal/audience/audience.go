// Package audience selects the callers of a flight that may have a value while its load is still
// making it. The other callers wait for the flight's end, and then for the next flight.
package audience

// An Audience is a set of a flight's callers.
type Audience uint8

const (
	Everyone Audience = iota
	Alike             // the call that began the flight, and the calls of the same client
	Owner             // the call that began the flight
)

// Admits reports whether a call is in the audience. began: the call has begun the flight.
// sameClient: the call that began the flight has the same client.
func (a Audience) Admits(began, sameClient bool) bool {
	return began || a == Everyone || a == Alike && sameClient
}
