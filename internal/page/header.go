package page

import (
	"bytes"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file has a header's size, its announcements, the fields of a reply, and the guess of a Content-Type.

// eventStream is the media type of server-sent events, which do not end.
const eventStream = "text/event-stream"

func isEventStream(h http.Header) bool {
	return strings.HasPrefix(strings.ToLower(h.Get("Content-Type")), eventStream)
}

// maxHeader is the largest header that is kept, in bytes. Other caches keep 8 to 128 KiB.
const maxHeader = 64 << 10

func headerBytes(h http.Header) int {
	n := 0
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	return n
}

func hasAll(kept, h http.Header) bool {
	for name := range h {
		if _, ok := kept[name]; !ok {
			return false
		}
	}
	return true
}

func hasAny(h http.Header, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return h[name] != nil })
}

// contentLength is the announced length of a body, -1 without one.
func contentLength(h http.Header) int64 {
	lines := h["Content-Length"]
	if len(lines) == 0 {
		return -1
	}
	n, err := strconv.ParseUint(lines[0], 10, 63) // digits alone (RFC 9110 section 8.6), as in net/http
	if err != nil {
		return -1
	}
	return int64(n)
}

// trailerNames returns the fields that the Trailer field announces, net/http's first way.
func trailerNames(h http.Header) []string {
	var names []string
	for name := range httpcache.Members(h["Trailer"]) {
		names = append(names, http.CanonicalHeaderKey(name))
	}
	return names
}

// trailerOf returns the trailer after the handler: announced fields, and prefixed fields with their prefix.
func trailerOf(h http.Header, announced []string) http.Header {
	var t http.Header
	for name, values := range h {
		if strings.HasPrefix(name, http.TrailerPrefix) || slices.Contains(announced, http.CanonicalHeaderKey(name)) {
			if t == nil {
				t = make(http.Header)
			}
			t[name] = slices.Clone(values)
		}
	}
	return t
}

// handlerFields returns the handler's part of the header h, which was outer before the handler. An outer
// middleware's fields are for one client: no other client gets them, and that client gets them once.
func handlerFields(h, outer http.Header) http.Header {
	own := maps.Clone(h)
	for name, before := range outer {
		switch now := own[name]; {
		case slices.Equal(now, before):
			delete(own, name)
		case len(now) > len(before) && slices.Equal(now[:len(before)], before):
			own[name] = now[len(before):]
		}
	}
	return httpcache.CanonicalHeader(own)
}

// copyHeader copies the stored fields into the reply. The values are shared and clipped: an append
// copies them. A guessed type yields to the type of an outer middleware, as net/http's guess does.
func copyHeader(dst, src http.Header, guessed bool) {
	for name, values := range src {
		if guessed && name == "Content-Type" && dst[name] != nil {
			continue
		}
		values = values[:len(values):len(values)]
		if before := dst[name]; len(before) > 0 && slices.Contains(addedFields, name) {
			values = append(before[:len(before):len(before)], values...)
		}
		dst[name] = values
	}
}

// addedFields are the fields to which handlers add. The values of an outer middleware stay.
var addedFields = []string{"Cache-Status", "Link", "Server-Timing", "Set-Cookie", "Vary"}

func setAge(h http.Header, age time.Duration) {
	h["Age"] = []string{httpcache.FormatAge(age)}
}

// guessLen is the length of the start from which a type is guessed, see [http.DetectContentType].
const guessLen = 512

// untyped reports whether net/http would guess a body's type. A nil Content-Type forbids the guess.
func untyped(h http.Header) bool {
	if h["Content-Type"] != nil || h["Transfer-Encoding"] != nil || h.Get("Content-Encoding") != "" {
		return false
	}
	_, named := httpcache.CanonicalHeader(h)["Content-Type"]
	return !named
}

// unsigned reports whether a body of first and more is too short for its type: a template's empty first line,
// or "<!" before "DOCTYPE". Other bodies do not wait: clients read them while the handler goes on.
func unsigned(first, more []byte) bool {
	b := more
	if len(first) > 0 {
		b = slices.Concat(first, more)
	}
	b = bytes.TrimLeft(b, "\t\n\f\r ")
	return len(b) == 0 || len(b) < 16 && (b[0] == '<' || bytes.HasPrefix(b, []byte("RIFF")))
}

// typed returns header with the type of the body, and reports whether the type is a guess.
func typed(header http.Header, body spool.Body) (_ http.Header, guessed bool) {
	if len(body) == 0 || !untyped(header) {
		return header, false
	}
	header = header.Clone()
	header.Set("Content-Type", http.DetectContentType(body[0]))
	return header, true
}
