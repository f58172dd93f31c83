package httpcache

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file asks the origin whether a stored response still holds, takes in
// its answer, and answers the clients that ask the same of us.

// conditions are the fields that make a request conditional or partial (RFC
// 9110 sections 13.1 and 14.2).
var conditions = []string{
	"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range", "Range",
}

// RemoveConditions removes from req what makes it conditional or partial: a
// rebuild asks for the whole thing, whatever the client has of it already.
func RemoveConditions(req http.Header) {
	remove(req, conditions)
}

// SetConditions replaces the conditions in req by those of a stored response
// (RFC 9111 section 4.3.1): its ETag in If-None-Match, its Last-Modified in
// If-Modified-Since. It returns false, and leaves no condition in req, if the
// stored response has neither.
func SetConditions(req, stored http.Header) bool {
	RemoveConditions(req)
	found := false
	if tag := stored.Get("ETag"); tag != "" {
		req.Set("If-None-Match", tag) // as it came: the origin knows its own spelling
		found = true
	}
	if modified := stored.Get("Last-Modified"); modified != "" {
		req.Set("If-Modified-Since", modified)
		found = true
	}
	return found
}

// Selects tells whether a 304 that answers SetConditions is about the stored
// response and may update it (RFC 9111 section 4.3.4). If not, the caller asks
// again without conditions.
//
// A 304 with a strong tag selects a response with the same tag, one with a
// weak tag a response whose tag matches weakly. One without a tag selects by
// Last-Modified if both have it. One that has no validator in common with the
// stored response selects it all the same: section 4.3.4 knows several stored
// responses, but SetConditions asked about one, and origins that leave out the
// ETag from a 304 are many.
func Selects(stored, notModified http.Header) bool {
	tag, own := notModified.Get("ETag"), stored.Get("ETag")
	switch {
	case tag != "" && !weak(tag):
		return strongMatch(tag, own)
	case tag != "" && own != "":
		return weakMatch(tag, own)
	}
	modified, ownModified := notModified.Get("Last-Modified"), stored.Get("Last-Modified")
	return modified == "" || ownModified == "" || modified == ownModified
}

// notUpdated are the fields that a 304 does not change (RFC 9111 section 3.2):
// they describe the stored bytes, which stay as they are.
var notUpdated = []string{"Content-Length", "Content-Encoding", "Content-Range"}

// Freshen returns a copy of stored with each field replaced that notModified
// has (RFC 9111 section 3.2). notModified has been through [StoredHeader].
// Directives and freshness are to be worked out anew from the result, the age
// with [InitialAge] from the 304.
func Freshen(stored, notModified http.Header) http.Header {
	h := stored.Clone()
	if h == nil {
		h = http.Header{}
	}
	update := notModified.Clone()
	remove(update, notUpdated)
	for name, lines := range update {
		h[name] = lines
	}
	return h
}

// HeadAgrees tells whether the 200 that answered a HEAD is about the same
// bytes as the stored response to GET, which it may then update through
// [Freshen]; else the stored response counts as stale (RFC 9111 section
// 4.3.5).
func HeadAgrees(stored, head http.Header) bool {
	for _, name := range [...]string{"ETag", "Last-Modified", "Content-Length"} {
		if v := head.Get(name); v != "" && v != stored.Get(name) {
			return false
		}
	}
	return true
}

// maxRanges is how many ranges of one response a request may ask for. Each costs a part
// of its own: RFC 9110 section 14.2 lets a server ignore a request for many.
const maxRanges = 16

// AsksForRanges tells whether a request asks for ranges that are to be answered: of bytes,
// and not of another unit (RFC 9110 section 14.2), and not more than 16.
func AsksForRanges(r *http.Request) bool {
	ranges, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes=")
	if !ok || strings.Count(ranges, ",") >= maxRanges {
		return false
	}
	for part := range strings.SplitSeq(ranges, ",") {
		if n, ok := strings.CutPrefix(strings.TrimSpace(part), "-"); ok && strings.Trim(n, "0") == "" {
			return false // the last no bytes, which net/http takes for a range (RFC 9110 section 14.1.2)
		}
	}
	return true
}

// SingleRange returns the part that a GET asks for, of a response of that size with the header
// h. It returns false if the request asks for several parts or none, if there is no such part,
// and if the request's If-Range does not have the response's strong entity tag: the
// response is whole then (RFC 9110 sections 13.1.5 and 14.2).
func SingleRange(r *http.Request, h http.Header, size int64) (first, length int64, ok bool) {
	from, to, ok := strings.Cut(strings.TrimPrefix(r.Header.Get("Range"), "bytes="), "-")
	if !ok || r.Method != http.MethodGet || len(r.Header["Range"]) != 1 || !AsksForRanges(r) {
		return 0, 0, false
	}
	if tags := r.Header["If-Range"]; tags != nil && !(len(tags) == 1 && strongMatch(tags[0], h.Get("ETag"))) {
		return 0, 0, false
	}
	if from == "" { // so many at the end
		n, err := strconv.ParseUint(to, 10, 63)
		length = min(int64(n), size)
		return size - length, length, err == nil && length > 0
	}
	n, err := strconv.ParseUint(from, 10, 63)
	if first = int64(n); err != nil || first >= size {
		return 0, 0, false
	}
	last := size - 1
	if to != "" {
		n, err := strconv.ParseUint(to, 10, 63)
		if last = min(last, int64(n)); err != nil || last < first {
			return 0, 0, false
		}
	}
	return first, last - first + 1, true
}

// ForRange returns r as a request of its Range alone, for [http.ServeContent]:
// without If-Match and If-Unmodified-Since, which are the origin's (RFC 9111 section
// 4.3.2), and without the Range if its If-Range is a date that is no strong
// validator of what is stored (RFC 9110 sections 13.1.5 and 8.8.2.2). received is
// when that came.
func ForRange(r *http.Request, stored http.Header, received time.Time) *http.Request {
	weak := false
	if at, ok := onlyDate(r.Header["If-Range"], received); ok {
		weak = generated(stored, received).Sub(at) < time.Second
	}
	if !weak && r.Header["If-Match"] == nil && r.Header["If-Unmodified-Since"] == nil {
		return r
	}
	own := r.Clone(r.Context())
	remove(own.Header, []string{"If-Match", "If-Unmodified-Since"})
	if weak {
		delete(own.Header, "Range")
	}
	return own
}

// TrimToRange removes from h, the header of a stored response, what does not hold for
// an answer to a Range that has that status. The digests of content are the whole's
// (RFC 9530 section 2, RFC 2616 section 14.15). That there is no such range is about one
// request: what net/http has left of how long the whole is fresh goes, too.
func TrimToRange(h http.Header, status int) {
	if status == http.StatusOK {
		return // it is the whole
	}
	remove(h, []string{"Content-Digest", "Content-Md5"})
	if status == http.StatusRequestedRangeNotSatisfiable {
		maps.DeleteFunc(h, func(name string, _ []string) bool {
			return name == "Expires" || strings.HasSuffix(name, "-Cache-Control")
		})
	}
}

// NotModified tells whether a request's own condition is to be answered with
// 304 from a stored response of that status (RFC 9111 section 4.3.2, RFC 9110
// section 13.2.2). stored are the values of that one's fields, by their canonical names, and
// received is when it came.
func NotModified(method string, req http.Header, status int, stored func(field string) []string, received time.Time) bool {
	// RFC 9110 section 13.2.1: a condition holds for what would be a success.
	if method != http.MethodGet && method != http.MethodHead || status < 200 || status > 299 {
		return false
	}
	if tags := req["If-None-Match"]; len(tags) > 0 {
		// RFC 9110 section 13.1.3: If-Modified-Since is ignored beside it.
		tag := ""
		if own := stored("Etag"); len(own) > 0 {
			tag = own[0]
		}
		return anyTag(tags, tag)
	}
	since, ok := onlyDate(req["If-Modified-Since"], received)
	if !ok {
		return false
	}
	// RFC 9111 section 4.3.2: Last-Modified, else Date, else the time of
	// receipt.
	modified, ok := onlyDate(stored("Last-Modified"), received)
	if !ok {
		if modified, ok = onlyDate(stored("Date"), received); !ok {
			modified = received
		}
	}
	return !modified.After(since)
}

// anyTag tells whether If-None-Match names the tag (RFC 9110 section 13.1.2).
func anyTag(lines []string, tag string) bool {
	for _, line := range lines {
		start, quoted := 0, false
		for i := 0; i <= len(line); i++ {
			switch {
			case i == len(line), line[i] == ',' && !quoted:
				if member := strings.Trim(line[start:i], " \t"); member == "*" || weakMatch(member, tag) {
					return true
				}
				start = i + 1
			case line[i] == '"': // a backslash does not escape it (RFC 9110 section 8.8.3)
				quoted = !quoted
			}
		}
	}
	return false
}

// contentFields describe the content of the response that they are in.
var contentFields = []string{
	"Content-Type", "Content-Length", "Content-Encoding", "Content-Language", "Content-Range",
	"Content-Md5", "Content-Digest", "Repr-Digest", "Digest",
}

// InNotModified tells whether a 304 has a stored response's field of that name (RFC
// 9110 section 15.4.5): not what describes a content that is not sent, nor
// Last-Modified where the response is tagged by an ETag. Caching fields, and all that
// is not about the content, stay.
func InNotModified(name string, tagged bool) bool {
	return !slices.Contains(contentFields, name) && (!tagged || name != "Last-Modified")
}

// strongMatch compares two entity tags strongly (RFC 9110 section 8.8.3.2):
// both are strong and the same. An empty one matches nothing.
func strongMatch(a, b string) bool {
	return a != "" && a == b && !weak(a)
}

// weakMatch compares two entity tags weakly (RFC 9110 section 8.8.3.2): the
// same but for the mark of weakness. An empty one matches nothing. A tag
// without quotes is not what the RFC calls a tag, and matches its like.
func weakMatch(a, b string) bool {
	a, b = strings.TrimPrefix(a, "W/"), strings.TrimPrefix(b, "W/")
	return a != "" && a == b
}

// weak tells whether a tag is marked as weak; the mark's case counts (RFC 9110
// section 8.8.3).
func weak(tag string) bool { return strings.HasPrefix(tag, "W/") }
