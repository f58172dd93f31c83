package page

import (
	"bytes"
	"net/http"
	"slices"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file is the type of a body that names none: a guess from its first bytes.

// guessLen is how much of a body its type is guessed from, see
// [http.DetectContentType].
const guessLen = 512

// untyped reports whether net/http would guess the type of a body with the header
// h. It does not where a handler has said that there is none.
func untyped(h http.Header) bool {
	if h["Content-Type"] != nil || h["Transfer-Encoding"] != nil || h.Get("Content-Encoding") != "" {
		return false
	}
	_, typed := httpcache.CanonicalHeader(h)["Content-Type"]
	return !typed
}

// unsigned reports whether a body that begins with first and more may still turn out
// to be of a type that is known by its first bytes, when they are all there: templates begin
// with a line of their own, and some write "<!" and "DOCTYPE" by themselves. (What
// else has been written is not waited for, as net/http would until its buffer is
// full: it is there to be read while the rest is made.)
func unsigned(first, more []byte) bool {
	b := more
	if len(first) > 0 {
		b = slices.Concat(first, more)
	}
	b = bytes.TrimLeft(b, "\t\n\f\r ")
	return len(b) == 0 || len(b) < 16 && (b[0] == '<' || bytes.HasPrefix(b, []byte("RIFF")))
}

// typed is header with the type of the body, and whether that is guessed here.
func typed(header http.Header, body spool.Body) (_ http.Header, guessed bool) {
	if len(body) == 0 || !untyped(header) {
		return header, false
	}
	header = header.Clone()
	header.Set("Content-Type", http.DetectContentType(body[0]))
	return header, true
}
