package httpcache

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// This file parses the Cache-Control of responses and requests, and the targeted fields in its
// place. Malformed, doubled or contradictory directives are read in the way that stores the least.

// Forever is the value of a max-stale without an argument (RFC 9111 section 5.2.1.2), beyond all others.
const Forever = time.Duration(math.MaxInt64)

// maxDelta is the value of a delta-seconds beyond 31 bits (RFC 9111 section 1.2.2).
const maxDelta = (1 << 31) * time.Second

// A Delta is a directive's argument in seconds. Set reports whether the directive is present.
type Delta struct {
	Set bool
	// Duration is the argument, 0 if it is malformed: a lifetime then is over (RFC 9111 section 4.2.1).
	Duration time.Duration
}

// lower sets d, or lowers it: of two contradictory values the smaller counts (RFC 9111 section 4.2.1).
func (d *Delta) lower(v time.Duration) {
	if !d.Set || v < d.Duration {
		*d = Delta{Set: true, Duration: v}
	}
}

// Directives are the cache directives of a response. The zero value has none.
type Directives struct {
	MaxAge               Delta // RFC 9111 section 5.2.2.1
	SMaxAge              Delta // RFC 9111 section 5.2.2.10
	StaleWhileRevalidate Delta // RFC 5861 section 3
	StaleIfError         Delta // RFC 5861 section 4

	NoStore         bool // RFC 9111 section 5.2.2.5
	NoCache         bool // RFC 9111 section 5.2.2.4, unqualified
	Private         bool // RFC 9111 section 5.2.2.7, unqualified
	Public          bool // RFC 9111 section 5.2.2.9
	MustRevalidate  bool // RFC 9111 section 5.2.2.2
	ProxyRevalidate bool // RFC 9111 section 5.2.2.8
	MustUnderstand  bool // RFC 9111 section 5.2.2.3

	// NoCacheFields and PrivateFields are the fields of a qualified no-cache or private, in
	// canonical form, sorted. Nil if the directive is also present unqualified.
	NoCacheFields, PrivateFields []string

	// Targeted: the directives are a targeted field's, so Expires does not count (RFC 9213 section 2.2).
	Targeted bool
}

// QualifiedFields are the fields that a qualified no-cache or private names.
func (d *Directives) QualifiedFields() []string {
	return slices.Concat(d.NoCacheFields, d.PrivateFields)
}

// OpenToAll reports whether the response may also answer a request with Authorization. RFC 9111 section 3.5
// restricts only the storing of responses to such requests. But an origin often answers them differently
// without a Vary, so they get only a response that itself states that it is for everyone.
func (d *Directives) OpenToAll() bool { return d.Public || d.SMaxAge.Set || d.MustRevalidate }

// OwnTrailer reports whether a trailer of a shared response is for its first client alone: a field
// of QualifiedFields (RFC 9111 sections 5.2.2.4 and 5.2.2.7), or a cookie. A cookie is no trailer
// (RFC 9110 section 6.5.1), so no directive has shared it.
func OwnTrailer(name string, qualified []string) bool {
	name = http.CanonicalHeaderKey(strings.TrimPrefix(name, http.TrailerPrefix))
	return name == "Set-Cookie" || name == "Set-Cookie2" || slices.Contains(qualified, name)
}

// ResponseDirectives returns the directives that apply to a response. They come from the first field of
// targeted that is present, well-formed and not empty (RFC 9213 section 2.2), else from Cache-Control.
func ResponseDirectives(h http.Header, targeted ...string) Directives {
	for _, name := range targeted {
		if d, ok := parseTargeted(h.Values(name)); ok {
			return d
		}
	}
	var d Directives
	for dir := range directives(h.Values("Cache-Control")) { // RFC 9111 section 5.2
		d.apply(dir)
	}
	d.settle()
	return d
}

func (d *Directives) apply(dir directive) {
	switch dir.name {
	case "max-age":
		d.MaxAge.lower(dir.seconds())
	case "s-maxage":
		d.SMaxAge.lower(dir.seconds())
	case "stale-while-revalidate":
		d.StaleWhileRevalidate.lower(dir.seconds())
	case "stale-if-error":
		d.StaleIfError.lower(dir.seconds())

	// A prohibition counts in any spelling.
	case "no-store":
		d.NoStore = true
	case "no-cache":
		d.NoCache = !dir.appendFields(&d.NoCacheFields) || d.NoCache
	case "private":
		d.Private = !dir.appendFields(&d.PrivateFields) || d.Private
	case "must-revalidate":
		d.MustRevalidate = true
	case "proxy-revalidate":
		d.ProxyRevalidate = true

	// A permission counts only if it is well-formed.
	case "public":
		d.Public = d.Public || dir.bare()
	case "must-understand":
		d.MustUnderstand = d.MustUnderstand || dir.bare()
	}
}

// settle sorts the field names, and removes them beside an unqualified directive.
func (d *Directives) settle() {
	settle := func(names *[]string, unqualified bool) {
		if unqualified {
			*names = nil
		}
		slices.Sort(*names)
		*names = slices.Compact(*names)
	}
	settle(&d.NoCacheFields, d.NoCache)
	settle(&d.PrivateFields, d.Private)
}

// RequestDirectives are the cache directives of a request. The zero value has none.
type RequestDirectives struct {
	MaxAge   Delta // RFC 9111 section 5.2.1.1
	MaxStale Delta // RFC 9111 section 5.2.1.2; Forever without an argument
	MinFresh Delta // RFC 9111 section 5.2.1.3

	NoCache      bool // RFC 9111 section 5.2.1.4
	NoStore      bool // RFC 9111 section 5.2.1.5
	OnlyIfCached bool // RFC 9111 section 5.2.1.7
}

// ParseRequest parses the Cache-Control of a request, not Pragma (RFC 9111 section 5.4). It ignores a
// malformed number: directives are advice (section 5.2.1), and junk must not switch the cache off.
func ParseRequest(h http.Header) RequestDirectives {
	var d RequestDirectives
	for dir := range directives(h["Cache-Control"]) {
		v, ok := dir.delta()
		switch dir.name {
		case "max-age":
			if ok {
				d.MaxAge.lower(v)
			}
		case "min-fresh":
			if ok {
				d.MinFresh = Delta{Set: true, Duration: max(v, d.MinFresh.Duration)}
			}
		case "max-stale":
			if ok {
				d.MaxStale.lower(v)
			} else if dir.bare() {
				d.MaxStale.lower(Forever)
			}
		case "no-cache":
			d.NoCache = true
		case "no-store":
			d.NoStore = true
		case "only-if-cached":
			d.OnlyIfCached = true
		}
	}
	return d
}

// RemoveAllowances removes the directives by which a client accepts an old response or an error from a cache that
// the handler asks: the handler's response is for all clients. It keeps only the known directives that every
// response may heed.
func RemoveAllowances(req http.Header) {
	var kept []string
	for dir := range directives(req["Cache-Control"]) {
		_, numeric := dir.delta()
		switch {
		case dir.name == "no-cache", dir.name == "no-transform":
			kept = append(kept, dir.name)
		case numeric && (dir.name == "max-age" || dir.name == "min-fresh"):
			kept = append(kept, dir.name+"="+dir.arg)
		}
	}
	delete(req, "Cache-Control")
	if kept != nil {
		req.Set("Cache-Control", strings.Join(kept, ", "))
	}
}

type directive struct {
	name   string // lower case
	arg    string // without quotes
	hasArg bool
	broken bool // the list member has characters outside the grammar
}

func (dir directive) bare() bool { return !dir.hasArg && !dir.broken }

func (dir directive) seconds() time.Duration {
	v, _ := dir.delta()
	return v
}

// delta returns the argument if it is a delta-seconds, also in quotes (RFC 9111 sections 1.2.2, 5.2).
func (dir directive) delta() (time.Duration, bool) {
	if dir.broken {
		return 0, false
	}
	return parseDelta(dir.arg)
}

// parseDelta parses a delta-seconds: digits alone (RFC 9111 section 1.2.2).
func parseDelta(s string) (time.Duration, bool) {
	if s == "" {
		return 0, false
	}
	var n int64
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = min(n*10+int64(s[i]-'0'), int64(maxDelta/time.Second))
	}
	return time.Duration(n) * time.Second, true
}

// appendFields adds the names in the argument to names. The result is false if the directive counts
// as unqualified: it has no argument, no name, or a name that is no usual field name. Such a name
// is a list in single quotes, half of which is already in another directive.
func (dir directive) appendFields(names *[]string) bool {
	if dir.broken {
		return false
	}
	var found []string
	for name := range Members([]string{dir.arg}) {
		if token, rest := cutToken(name); rest != "" || strings.Contains(token, "'") {
			return false
		}
		found = append(found, http.CanonicalHeaderKey(name))
	}
	*names = append(*names, found...)
	return len(found) > 0
}

// directives yields the directives in a field's lines.
//
// The grammar is #( token [ "=" ( token / quoted-string ) ] ). Characters outside the grammar break
// the rest of their list member, and the directive before them. "no-store; private" is two directives
// that forbid, "public; max-age=60" has no permission, and "max-age =60" is an unreadable lifetime.
func directives(lines []string) func(yield func(directive) bool) {
	return func(yield func(directive) bool) {
		for _, s := range lines {
			broken := false // since the last comma
			quotes := strings.Contains(s, `"`)
			for s != "" {
				switch {
				case s[0] == ',':
					s, broken = s[1:], false
					continue
				case s[0] == ' ' || s[0] == '\t':
					s = s[1:]
					continue
				case s[0] == '"' && quotes:
					// Skip a string in the place of a name: no part of it is a directive.
					_, s, quotes = cutString(s)
					broken = true
					continue
				case !isToken(s[0]):
					s, broken = s[1:], true
					continue
				}
				var dir directive
				dir.name, s = cutToken(s)
				dir.name = strings.ToLower(dir.name)
				if strings.HasPrefix(s, "=") {
					dir.hasArg = true
					s = s[1:]
					if quotes && strings.HasPrefix(s, `"`) {
						dir.arg, s, quotes = cutString(s)
					} else {
						dir.arg, s = cutToken(s)
					}
				}
				s = strings.TrimLeft(s, " \t")
				broken = broken || s != "" && s[0] != ','
				dir.broken = broken
				if !yield(dir) {
					return
				}
			}
		}
	}
}

func cutToken(s string) (token, rest string) {
	i := 0
	for i < len(s) && isToken(s[i]) {
		i++
	}
	return s[:i], s[i:]
}

// cutString splits s after the quoted-string at its start (RFC 9110 section 5.6.4), and returns the text
// in the quotes. If the string does not end, it returns false and cuts off the quote alone: the text may
// forbid something. Quotes then have no meaning in s, so no line is searched for their end twice.
func cutString(s string) (quoted, rest string, ok bool) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return "", s[1:], false
			}
		}
		b.WriteByte(s[i])
	}
	return "", s[1:], false
}

// FieldName reports whether name is valid as the name of a field (RFC 9110 section 5.1).
func FieldName(name string) bool {
	token, rest := cutToken(name)
	return token != "" && rest == ""
}

// isToken reports whether c is a tchar (RFC 9110 section 5.6.2).
func isToken(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// parseTargeted parses a targeted field: a dictionary of RFC 9651 (RFC 9213 section 2.1). The
// result is false for an absent, empty or malformed field, which is ignored.
func parseTargeted(lines []string) (Directives, bool) {
	if len(lines) == 0 { // in most responses
		return Directives{}, false
	}
	dict, err := httpsfv.UnmarshalDictionary(lines)
	if err != nil || len(dict.Names()) == 0 {
		return Directives{}, false
	}
	d := Directives{Targeted: true}
	for _, name := range dict.Names() {
		dir := directive{name: name, hasArg: true}
		member, _ := dict.Get(name)
		item, _ := member.(httpsfv.Item)
		switch v := item.Value.(type) { // an inner list or a value of another type is an empty argument
		case bool:
			dir.hasArg, dir.broken = false, !v
		case int64:
			dir.arg = strconv.FormatInt(v, 10)
		case string:
			dir.arg, dir.broken = v, takesSeconds(name)
		case httpsfv.Token:
			dir.arg, dir.broken = string(v), takesSeconds(name)
		}
		d.apply(dir)
	}
	d.settle()
	return d, true
}

// takesSeconds reports whether a directive's argument is an Integer in a targeted field. Unlike in
// Cache-Control, a quoted number is no argument (RFC 9213 section 2.1).
func takesSeconds(name string) bool {
	switch name {
	case "max-age", "s-maxage", "stale-while-revalidate", "stale-if-error":
		return true
	}
	return false
}
