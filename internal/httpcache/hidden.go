package httpcache

import (
	"net/http"
	"slices"
	"strings"
)

// Hidden is a set of response fields for the cache alone, by their canonical names. Clients do not get them.
type Hidden []string

// Remove removes the fields from the response header h: in any spelling, as trailers, and from the
// announcement of trailers. It returns the previous values of the changed entries, nil without changes.
func (f Hidden) Remove(h http.Header) (removed http.Header) {
	if len(f) == 0 {
		return nil
	}
	save := func(name string, values []string) {
		if removed == nil {
			removed = make(http.Header)
		}
		removed[name] = values
	}
	hidden := func(name string) bool { return slices.Contains(f, http.CanonicalHeaderKey(name)) }
	for name, values := range h {
		switch {
		case hidden(strings.TrimPrefix(name, http.TrailerPrefix)):
			save(name, values)
			delete(h, name)
		case http.CanonicalHeaderKey(name) == "Trailer":
			announced := slices.Collect(Members(values))
			if rest := slices.DeleteFunc(slices.Clone(announced), hidden); len(rest) < len(announced) {
				save(name, values)
				if h[name] = rest; len(rest) == 0 {
					delete(h, name)
				}
			}
		}
	}
	return removed
}
