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

// This file is the fields of a header, by themselves: how large it is, what it announces, and
// which of it a reply gets.

// eventStream is the media type of server-sent events, which do not end.
const eventStream = "text/event-stream"

func isEventStream(h http.Header) bool {
	return strings.HasPrefix(strings.ToLower(h.Get("Content-Type")), eventStream)
}

// maxHeader is the largest header that is kept, in bytes. What others keep is
// between 8 and 128 KiB.
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

// hasAll reports whether all fields of h are in kept, too.
func hasAll(kept, h http.Header) bool {
	for name := range h {
		if _, ok := kept[name]; !ok {
			return false
		}
	}
	return true
}

// hasAny reports whether h has any of the fields.
func hasAny(h http.Header, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return h[name] != nil })
}

// contentLength returns what a header announces.
func contentLength(h http.Header) (int64, bool) {
	lines := h["Content-Length"]
	if len(lines) == 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(lines[0], 10, 63) // digits alone (RFC 9110 section 8.6), as net/http takes them
	return int64(n), err == nil
}

// trailerNames returns the fields that a handler has announced to send behind
// the body, in the first of net/http's two ways.
func trailerNames(h http.Header) []string {
	var names []string
	for name := range httpcache.Members(h["Trailer"]) {
		if name = http.CanonicalHeaderKey(name); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// trailerOf returns what a handler that has returned has left in its header to
// be sent behind the body: the fields it had announced, and in the second way
// those whose name has a prefix, which they keep.
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

// within returns the handler's part of a header h that was outer before the handler
// had it: what a middleware around this one has said to one client is not said to
// another, nor to that one twice.
func within(h, outer http.Header) http.Header {
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

// copyHeader gives the reply the stored fields. The values are shared, and
// clipped: who appends to one copies it.
//
// A type that is guessed yields to what a middleware around this one has set, as
// net/http's guess would.
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

// addedFields are those that handlers add to, rather than set them: what a
// middleware around this one has put there stays.
var addedFields = []string{"Cache-Status", "Link", "Server-Timing", "Set-Cookie", "Vary"}

// hasAdded reports whether there is something in h that has to stay.
func hasAdded(h http.Header) bool {
	return hasAny(h, addedFields)
}

// setType keeps net/http from guessing the type of a response that names none: the
// exchange has done so, where there is something to guess.
func setType(h http.Header) {
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil
	}
}

func setAge(h http.Header, age time.Duration) {
	h["Age"] = []string{httpcache.FormatAge(age)}
}

// guessLen is how much of a body its type is guessed from, see
// [http.DetectContentType].
const guessLen = 512

// untyped reports whether net/http would guess the type of a body with the header
// h. It does not where a handler has said that there is none.
func untyped(h http.Header) bool {
	if h["Content-Type"] != nil || h["Transfer-Encoding"] != nil || h.Get("Content-Encoding") != "" {
		return false
	}
	_, named := httpcache.CanonicalHeader(h)["Content-Type"]
	return !named
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
