package httpcache

import (
	"net/http"
	"strconv"
	"time"
)

// This file reports the work of the cache to the client (RFC 9211).

// A Forward is why a request went to the origin (RFC 9211 section 2.2).
type Forward string

const (
	FwdBypass   Forward = "bypass"    // the cache was configured not to handle it
	FwdMethod   Forward = "method"    // the cache does not answer its method
	FwdURIMiss  Forward = "uri-miss"  // no response is stored for its URI
	FwdVaryMiss Forward = "vary-miss" // no variant for it is stored
	FwdMiss     Forward = "miss"      // one of both
	FwdRequest  Forward = "request"   // its own directives demanded it
	FwdStale    Forward = "stale"     // the stored response is stale
)

// A Status is a cache's handling of a request: a member of Cache-Status (RFC 9211 section 2).
type Status struct {
	// Hit: the answer came without the origin. Fwd, FwdStatus, Stored and Collapsed do not count.
	Hit bool
	// Fwd is why the request went to the origin. Empty: unknown.
	Fwd Forward
	// FwdStatus is the origin's status, such as 304. 0: left out, if it is the response's.
	FwdStatus int
	// TTL is the rest of the response's freshness, negative if it is stale.
	TTL Delta
	// Stored: the response was stored.
	Stored bool
	// Collapsed: the request shared another request's way to the origin.
	Collapsed bool
	// Key is the response's cache key. Empty: left out.
	Key string
	// Detail is a word for debugging. Empty: none.
	Detail string
}

// maxStatusKey is the longest key in a Status: proxies bound a response's header, nginx by 4 or 8 KiB,
// and answer 502 to a longer header.
const maxStatusKey = 1 << 10

// String returns the member, without a Key or a Detail that is not printable ASCII.
func (s Status) String() string {
	b := append(make([]byte, 0, 128), "Bellwether"...)
	if s.Hit {
		b = append(b, ";hit"...) // section 2.1
	} else {
		if s.Fwd != "" {
			b = append(append(b, ";fwd="...), s.Fwd...) // section 2.2
		}
		if s.FwdStatus != 0 {
			b = strconv.AppendInt(append(b, ";fwd-status="...), int64(s.FwdStatus), 10) // section 2.3
		}
	}
	if s.TTL.Set {
		// Section 2.4, rounded down: half a second stale is stale.
		ttl := int64(s.TTL.Duration / time.Second)
		if s.TTL.Duration < 0 && s.TTL.Duration%time.Second != 0 {
			ttl--
		}
		b = strconv.AppendInt(append(b, ";ttl="...), ttl, 10)
	}
	if s.Stored && !s.Hit {
		b = append(b, ";stored"...) // section 2.5
	}
	if s.Collapsed && !s.Hit {
		b = append(b, ";collapsed"...) // section 2.6
	}
	if s.Key != "" && len(s.Key) <= maxStatusKey && printable(s.Key) { // optional
		b = appendString(append(b, ";key="...), s.Key) // section 2.7
	}
	if s.Detail != "" && printable(s.Detail) {
		b = appendTokenOrString(append(b, ";detail="...), s.Detail) // section 2.8
	}
	return string(b)
}

// AppendTo adds the member to Cache-Status in h, after caches nearer to the origin (RFC 9211 section 2).
func (s Status) AppendTo(h http.Header) {
	h.Add("Cache-Status", s.String())
}

// appendTokenOrString appends a printable, non-empty s: a word as a Token (RFC 9651 section 3.3.4), else a String.
func appendTokenOrString(b []byte, s string) []byte {
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || !isToken(c)) {
			return appendString(b, s)
		}
	}
	return append(b, s...)
}

// appendString appends s, which is printable, as a String (RFC 9651 section 3.3.3).
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}

// printable reports whether s can be a String (RFC 9651 section 3.3.3).
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
