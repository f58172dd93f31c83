package page

import "net/http"

// Decoded is h as read from a stored response.
func Decoded(h http.Header) http.Header { return fieldsOf(h).header() }
