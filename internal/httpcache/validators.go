package httpcache

import (
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file validates a stored response with the origin, and answers clients that validate with us.

// conditions make a request conditional or partial (RFC 9110 sections 13.1 and 14.2).
var conditions = []string{
	"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range", "Range",
}

// RemoveConditions removes the conditions and the range from req: a rebuild asks for the whole response.
func RemoveConditions(req http.Header) {
	remove(req, conditions)
}

// deadlines are the fields by which a client bounds the handler's time, in Connect, gRPC gateways and Envoy.
var deadlines = []string{
	"Connect-Timeout-Ms", "Grpc-Timeout", "X-Envoy-Expected-Rq-Timeout-Ms", "X-Envoy-Upstream-Rq-Timeout-Ms",
	"X-Envoy-Upstream-Rq-Per-Try-Timeout-Ms",
}

// RemoveDeadlines removes the client's deadline from req: other clients, with more patience, wait for the same response.
func RemoveDeadlines(req http.Header) {
	remove(req, deadlines)
}

// SetConditions replaces the conditions in req by the stored response's (RFC 9111 section 4.3.1): by none if neither
// ETag nor Last-Modified is stored.
func SetConditions(req, stored http.Header) {
	RemoveConditions(req)
	if tag := stored.Get("ETag"); tag != "" {
		req.Set("If-None-Match", tag) // unchanged: the origin knows its own spelling
	}
	if modified := stored.Get("Last-Modified"); modified != "" {
		req.Set("If-Modified-Since", modified)
	}
}

// Selects reports whether a 304 that answers SetConditions may update the stored response (RFC 9111 section
// 4.3.4). If not, the caller asks again without conditions. A 304 without a common validator also selects:
// SetConditions asked about one stored response, and many origins leave the ETag out of a 304.
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

// notUpdated describe the stored bytes, so a 304 does not change them (RFC 9111 section 3.2). Its Content-Digest is of
// no content, and its Repr-Digest maybe of other bytes with the same weak entity tag (RFC 9530 sections 2 and 3).
var notUpdated = []string{"Content-Length", "Content-Encoding", "Content-Range", "Content-Digest", "Repr-Digest", "Digest"}

// Freshen returns a copy of stored with the fields of notModified, which has been through
// [StoredHeader] (RFC 9111 section 3.2). Judge the result anew, with the [InitialAge] of the 304.
func Freshen(stored, notModified http.Header) http.Header {
	h := stored.Clone()
	update := notModified.Clone()
	remove(update, notUpdated)
	for name, lines := range update {
		h[name] = lines
	}
	return h
}

// HeadAgrees reports whether the 200 to a HEAD has the bytes of the stored response to GET, and may
// update it through [Freshen]. If not, the stored response is stale (RFC 9111 section 4.3.5).
func HeadAgrees(stored, head http.Header) bool {
	for _, name := range [...]string{"ETag", "Last-Modified", "Content-Length"} {
		if v := head.Get(name); v != "" && v != stored.Get(name) {
			return false
		}
	}
	return true
}

// maxRanges bounds a request's ranges, which cost a part each. RFC 9110 section 14.2 allows the bound.
const maxRanges = 16

// AsksForRanges reports whether a request asks for up to maxRanges byte ranges (RFC 9110 section 14.2).
func AsksForRanges(r *http.Request) bool {
	ranges, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes=")
	if !ok || strings.Count(ranges, ",") >= maxRanges {
		return false
	}
	for part := range strings.SplitSeq(ranges, ",") {
		if n, ok := strings.CutPrefix(strings.TrimSpace(part), "-"); ok && strings.Trim(n, "0") == "" {
			return false // the last zero bytes, which net/http accepts as a range (RFC 9110 section 14.1.2)
		}
	}
	return true
}

var longPosition = regexp.MustCompile(`\d{19,}`)

// rangeOf returns the request's Range with positions that fit an int64: a longer position is beyond any
// response too (RFC 9110 section 14.1.1).
func rangeOf(r *http.Request) string {
	return longPosition.ReplaceAllString(r.Header.Get("Range"), strconv.FormatInt(math.MaxInt64, 10))
}

// SingleRange returns the range that a GET asks for, of a response of that size with the header h. It
// returns false for several ranges or none, a range outside, and an If-Range without the response's
// strong entity tag. Then the client gets the whole response (RFC 9110 sections 13.1.5, 14.2).
func SingleRange(r *http.Request, h http.Header, size int64) (first, length int64, ok bool) {
	from, to, ok := strings.Cut(strings.TrimPrefix(rangeOf(r), "bytes="), "-")
	if !ok || r.Method != http.MethodGet || len(r.Header["Range"]) != 1 || !AsksForRanges(r) {
		return 0, 0, false
	}
	if tags := r.Header["If-Range"]; tags != nil && !(len(tags) == 1 && strongMatch(tags[0], h.Get("ETag"))) {
		return 0, 0, false
	}
	if from == "" { // the last bytes
		n, _ := strconv.ParseUint(to, 10, 63) // 0 if it is no number
		length = min(int64(n), size)
		return size - length, length, length > 0
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

// ForRange returns r as a request of its Range alone, for [http.ServeContent]. The conditions go: NotModified has
// judged them, by stricter rules, and If-Match and If-Unmodified-Since are for the origin (RFC 9111 section
// 4.3.2). Range goes too if If-Range does not hold. stored came at received.
func ForRange(r *http.Request, stored http.Header, received time.Time) *http.Request {
	own := r.Clone(r.Context())
	RemoveConditions(own.Header)
	if rangeHolds(r.Header["If-Range"], stored, received) {
		own.Header.Set("Range", rangeOf(r))
	}
	return own
}

// rangeHolds reports whether an If-Range has the stored response's strong entity tag, or a date that is its strong
// Last-Modified (RFC 9110 sections 13.1.5 and 8.8.2.2), or is not there.
func rangeHolds(fields []string, stored http.Header, received time.Time) bool {
	if len(fields) != 1 {
		return len(fields) == 0
	}
	at, ok := onlyDate(fields, received)
	if !ok {
		return strongMatch(fields[0], stored.Get("ETag"))
	}
	modified, ok := onlyDate(stored["Last-Modified"], received)
	return ok && modified.Equal(at) && generated(stored, received).Sub(at) >= time.Second
}

// TrimToRange removes the fields from h, the header of a stored response, that do not apply to the
// answer to a Range with that status. The digests of content are the whole's (RFC 9530 section 2, RFC
// 2616 section 14.15). A 416 is about one request, so the fields of the whole's freshness go too.
func TrimToRange(h http.Header, status int) {
	if status == http.StatusOK {
		return // the answer is the whole
	}
	remove(h, []string{"Content-Digest", "Content-Md5"})
	if status == http.StatusRequestedRangeNotSatisfiable {
		maps.DeleteFunc(h, func(name string, _ []string) bool {
			return name == "Expires" || strings.HasSuffix(name, "-Cache-Control")
		})
	}
}

// NotModified reports whether a request's own condition gets a 304 from a stored response of that
// status (RFC 9111 section 4.3.2, RFC 9110 section 13.2.2). stored returns the values of the
// response's field by its canonical name. received is when the response came.
func NotModified(method string, req http.Header, status int, stored func(field string) []string, received time.Time) bool {
	// RFC 9110 section 13.2.1: a condition applies only to a success.
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
	// RFC 9111 section 4.3.2: Last-Modified, else Date, else the time of receipt.
	modified, ok := onlyDate(stored("Last-Modified"), received)
	if !ok {
		if modified, ok = onlyDate(stored("Date"), received); !ok {
			modified = received
		}
	}
	return !modified.After(since)
}

// anyTag reports whether If-None-Match contains the tag (RFC 9110 section 13.1.2).
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

var contentFields = []string{
	"Content-Type", "Content-Length", "Content-Encoding", "Content-Language", "Content-Range",
	"Content-Md5", "Content-Digest", "Repr-Digest", "Digest",
}

// InNotModified reports whether a 304 has the stored response's field of that name (RFC 9110
// section 15.4.5). It has no fields of the content, and no Last-Modified beside an ETag.
func InNotModified(name string, tagged bool) bool {
	return !slices.Contains(contentFields, name) && (!tagged || name != "Last-Modified")
}

// strongMatch compares entity tags strongly (RFC 9110 section 8.8.3.2). An empty tag matches no tag.
func strongMatch(a, b string) bool {
	return a != "" && a == b && !weak(a)
}

// weakMatch compares entity tags weakly (RFC 9110 section 8.8.3.2). An empty tag matches no tag. A
// tag without quotes, which the RFC does not allow, matches an equal tag.
func weakMatch(a, b string) bool {
	a, b = strings.TrimPrefix(a, "W/"), strings.TrimPrefix(b, "W/")
	return a != "" && a == b
}

// weak reports whether a tag is marked as weak; the mark's case counts (RFC 9110 section 8.8.3).
func weak(tag string) bool { return strings.HasPrefix(tag, "W/") }
