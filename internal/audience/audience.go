// Package audience says which callers of a flight may have a value that its load is still
// making. The other callers wait for the flight's end, and then for the next flight.
package audience

// An Audience is some of the callers of a flight.
type Audience uint8

const (
	Everyone Audience = iota
	Alike             // the call that began the flight, and the calls of the same client
	Owner             // the call that began the flight
)

// Admits reports whether a call is of the audience: began says that it has begun the flight,
// sameClient that its client is the one of the call that has.
func (a Audience) Admits(began, sameClient bool) bool {
	return began || a == Everyone || a == Alike && sameClient
}
