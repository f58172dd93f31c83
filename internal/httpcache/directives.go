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

// This file reads Cache-Control, of responses and of requests, and the
// targeted fields that take its place. What is malformed, doubled or
// contradictory is read in the way that keeps the least.

// Forever is the argument of a max-stale without one (RFC 9111 section
// 5.2.1.2), and longer than any other argument.
const Forever = time.Duration(math.MaxInt64)

// maxDelta is what a delta-seconds too large for 31 bits becomes (RFC 9111
// section 1.2.2).
const maxDelta = (1 << 31) * time.Second

// A Delta is the argument of a directive that takes seconds.
type Delta struct {
	// Set tells whether the directive is present.
	Set bool
	// Duration is its argument. It is 0 if the argument is malformed: a
	// lifetime that cannot be read is over (RFC 9111 section 4.2.1).
	Duration time.Duration
}

// lower sets d, or lowers it if it is set already: of two values that
// contradict each other the smaller holds (RFC 9111 section 4.2.1).
func (d *Delta) lower(v time.Duration) {
	if !d.Set || v < d.Duration {
		*d = Delta{Set: true, Duration: v}
	}
}

// Directives are the cache directives of a response. The zero value says
// nothing.
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

	// NoCacheFields and PrivateFields are the fields that a qualified no-cache
	// or private names, in canonical form, sorted. They are nil where the
	// directive is also present unqualified.
	NoCacheFields, PrivateFields []string

	// Targeted says that the directives come from a targeted field, beside
	// which Expires does not count (RFC 9213 section 2.2).
	Targeted bool
}

// QualifiedFields are the fields that a qualified no-cache or private names.
func (d *Directives) QualifiedFields() []string {
	return slices.Concat(d.NoCacheFields, d.PrivateFields)
}

// openToAll tells whether a response to a request with Authorization is for all:
// only if it says so (RFC 9111 section 3.5).
func (d *Directives) openToAll() bool { return d.Public || d.SMaxAge.Set || d.MustRevalidate }

// OwnTrailer tells whether a trailer of a response for all is its first client's
// alone: what is among its QualifiedFields (RFC 9111 sections 5.2.2.4 and 5.2.2.7), and
// cookies, which are no trailers (RFC 9110 section 6.5.1), so that nobody has said that
// they are for sharing.
func OwnTrailer(name string, qualified []string) bool {
	name = http.CanonicalHeaderKey(strings.TrimPrefix(name, http.TrailerPrefix))
	return name == "Set-Cookie" || name == "Set-Cookie2" || slices.Contains(qualified, name)
}

// ResponseDirectives returns the directives that hold for a response: those of
// the first field in targets that is present, well-formed and not empty (RFC
// 9213 section 2.2), else those of Cache-Control.
func ResponseDirectives(h http.Header, targets ...string) Directives {
	for _, name := range targets {
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

// apply adds one directive.
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

	// What forbids is obeyed however it is spelt.
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

	// What permits is obeyed as the grammar has it only.
	case "public":
		d.Public = d.Public || dir.bare()
	case "must-understand":
		d.MustUnderstand = d.MustUnderstand || dir.bare()
	}
}

// settle brings the fields' names into their one form.
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

// RequestDirectives are the cache directives of a request. The zero value says
// nothing.
type RequestDirectives struct {
	MaxAge       Delta // RFC 9111 section 5.2.1.1
	MaxStale     Delta // RFC 9111 section 5.2.1.2; Forever if without an argument
	MinFresh     Delta // RFC 9111 section 5.2.1.3
	StaleIfError Delta // RFC 5861 section 4

	NoCache      bool // RFC 9111 section 5.2.1.4
	NoStore      bool // RFC 9111 section 5.2.1.5
	OnlyIfCached bool // RFC 9111 section 5.2.1.7
}

// ParseRequest reads the Cache-Control of a request. A directive whose
// argument is malformed is ignored: what a client wishes is advice (RFC 9111
// section 5.2.1), and junk must not switch the cache off. Pragma is not looked
// at (RFC 9111 section 5.4).
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
		case "stale-if-error":
			if ok {
				d.StaleIfError.lower(v)
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

// A directive is one name with its argument.
type directive struct {
	name   string // lower case
	arg    string // without quotes
	hasArg bool
	broken bool // something stands beside it that the grammar does not know
}

// bare tells whether the directive is well-formed and without an argument.
func (dir directive) bare() bool { return !dir.hasArg && !dir.broken }

// seconds returns the argument, and 0 for one that is no delta-seconds.
func (dir directive) seconds() time.Duration {
	v, _ := dir.delta()
	return v
}

// delta returns the argument if it is a delta-seconds (RFC 9111 section
// 1.2.2), quoted or not (section 5.2).
func (dir directive) delta() (time.Duration, bool) {
	if dir.broken {
		return 0, false
	}
	return parseDelta(dir.arg)
}

// parseDelta reads a delta-seconds: digits and nothing else (RFC 9111 section
// 1.2.2).
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

// appendFields adds the names in the argument to names. It returns false if
// the directive is to be read as unqualified: because it is, or because it
// names nothing, or something that is no field's usual name, such as a list in
// single quotes, half of which is in another directive by now.
func (dir directive) appendFields(names *[]string) bool {
	if !dir.hasArg || dir.broken {
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
// The grammar is #( token [ "=" ( token / quoted-string ) ] ). Where a line
// leaves it, what was read so far of that list member and all that follows in
// it is broken, up to the next comma: "no-store; private" is two directives
// that forbid, "public; max-age=60" none that permits, "max-age =60" a
// lifetime that cannot be read.
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
					// A string in the place of a name: step over it, so that
					// nothing in it is taken for a directive.
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

// cutToken splits s behind the token that it begins with.
func cutToken(s string) (token, rest string) {
	i := 0
	for i < len(s) && isToken(s[i]) {
		i++
	}
	return s[:i], s[i:]
}

// cutString splits s, which begins with a double quote, behind the
// quoted-string (RFC 9110 section 5.6.4), and returns what is quoted. If the
// string does not end, it returns false and only the quote is cut off: what
// would be inside it may forbid something. Quotes then mean nothing in the rest
// of s, so that no line is searched for their end twice.
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

// FieldName tells whether a field can have that name (RFC 9110 section 5.1).
func FieldName(name string) bool {
	token, rest := cutToken(name)
	return token != "" && rest == ""
}

// isToken tells whether c is a tchar (RFC 9110 section 5.6.2).
func isToken(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// parseTargeted reads a targeted field: a dictionary of RFC 9651 (RFC 9213
// section 2.1). It returns false for one that is absent, empty or malformed,
// which is ignored.
func parseTargeted(lines []string) (Directives, bool) {
	if len(lines) == 0 {
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
		item, ok := member.(httpsfv.Item)
		if !ok {
			dir.broken = true // an inner list is no argument
			d.apply(dir)
			continue
		}
		switch v := item.Value.(type) {
		case bool:
			dir.hasArg, dir.broken = false, !v
		case int64:
			dir.arg = strconv.FormatInt(v, 10)
		case string:
			dir.arg, dir.broken = v, takesSeconds(name)
		case httpsfv.Token:
			dir.arg, dir.broken = string(v), takesSeconds(name)
		default:
			dir.broken = true
		}
		d.apply(dir)
	}
	d.settle()
	return d, true
}

// takesSeconds tells whether a directive's argument is an Integer in a
// targeted field; unlike in Cache-Control, a quoted number is none (RFC 9213
// section 2.1).
func takesSeconds(name string) bool {
	switch name {
	case "max-age", "s-maxage", "stale-while-revalidate", "stale-if-error":
		return true
	}
	return false
}
