package httpcache

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// This file has a response's age, freshness and reuse. The clock appears only at parsed dates.

// A Source is the origin of a lifetime.
type Source uint8

// The sources, the weakest first.
const (
	SourceNone      Source = iota // no lifetime: the response was never fresh
	SourceHeuristic               // a fraction of the time since Last-Modified
	SourceDefault                 // Options.DefaultLifetime
	SourceRule                    // Options.Freshness, for a response without a lifetime of its own
	SourceExpires
	SourceMaxAge
	SourceSMaxAge
)

// Freshness is how long a response may be used, by its age. The zero value was never fresh.
type Freshness struct {
	// Lifetime is the age from which the response is stale (RFC 9111 section 4.2).
	Lifetime time.Duration
	// StaleWhileRevalidate is the stale window of a rebuild in the background (RFC 5861 section 3).
	StaleWhileRevalidate time.Duration
	// StaleIfError is the window after failed rebuilds (RFC 5861 section 4). Both begin at Lifetime.
	StaleIfError time.Duration
	// Source is the source of Lifetime. From SourceExpires upwards the response states its own lifetime.
	Source Source
	// NoStale forbids stale use (RFC 9111 section 4.2.4). Then both windows are 0.
	NoStale bool
	// NoCache demands validation (RFC 9111 section 5.2.2.4). Then Lifetime is 0, and NoStale is set.
	NoCache bool
}

// freshnessOf returns the freshness of a response (RFC 9111 section 4.2.1) and its stale windows.
func freshnessOf(status int, resp http.Header, d Directives, received time.Time, opt Options) Freshness {
	var f Freshness
	switch {
	case d.SMaxAge.Set:
		f.Lifetime, f.Source = d.SMaxAge.Duration, SourceSMaxAge
	case d.MaxAge.Set:
		f.Lifetime, f.Source = d.MaxAge.Duration, SourceMaxAge
	case !d.Targeted && len(resp["Expires"]) > 0:
		f.Lifetime, f.Source = expires(resp, received), SourceExpires
	case d.Public || heuristicallyCacheable(status):
		// Section 4.2.2: only without an explicit lifetime.
		if opt.DefaultLifetime > 0 {
			f.Lifetime, f.Source = opt.DefaultLifetime, SourceDefault
		} else if l := heuristic(resp, received, opt); l > 0 {
			f.Lifetime, f.Source = l, SourceHeuristic
		}
	}

	// Section 4.2.4: these forbid stale answers, also beside a window and s-maxage (section 5.2.2.10).
	f.NoCache = d.NoCache
	f.NoStale = d.NoCache || d.MustRevalidate || d.ProxyRevalidate || d.SMaxAge.Set
	if f.NoCache {
		f.Lifetime = 0
	}
	if f.NoStale {
		return f
	}
	window := func(stated Delta, byDefault time.Duration) time.Duration {
		if stated.Set {
			return stated.Duration
		}
		return max(0, byDefault)
	}
	f.StaleWhileRevalidate = window(d.StaleWhileRevalidate, opt.StaleWhileRevalidate)
	f.StaleIfError = window(d.StaleIfError, opt.StaleIfError)
	return f
}

// ruled is f with Options.Freshness. Directives that forbid stale answers still do.
func (f Freshness) ruled(req Request, status int, resp http.Header, age time.Duration, opt Options) Freshness {
	if opt.Freshness == nil || f.NoCache || IsServerError(status) {
		return f
	}
	ruled := opt.Freshness(req.Asked, status, resp, age, f)
	if f.Lifetime = max(0, ruled.Lifetime); f.Lifetime > 0 {
		f.Source = max(f.Source, SourceRule)
	}
	if !f.NoStale {
		f.StaleWhileRevalidate, f.StaleIfError = max(0, ruled.StaleWhileRevalidate), max(0, ruled.StaleIfError)
	}
	return f
}

// expires is Expires minus Date (RFC 9111 section 4.2.1), at least 0. An invalid Expires, such as
// "0", is in the past (section 5.3), and so are two lines that differ.
func expires(h http.Header, received time.Time) time.Duration {
	at, ok := onlyDate(h["Expires"], received)
	if !ok {
		return 0
	}
	// Sub saturates, so no pair of dates wraps round.
	return min(max(0, at.Sub(generated(h, received))), maxDelta)
}

// heuristic is a fraction of the time between Last-Modified and Date (RFC 9111 section 4.2.2). It is negative if the
// response was modified later.
func heuristic(h http.Header, received time.Time, opt Options) time.Duration {
	modified, ok := onlyDate(h["Last-Modified"], received)
	if !ok {
		return 0
	}
	unused := generated(h, received).Sub(modified)
	const most = 24 * time.Hour
	return time.Duration(min(opt.HeuristicFraction*float64(unused), float64(most)))
}

// generated is Date, else the time of receipt (RFC 9110 section 6.6.1).
func generated(h http.Header, received time.Time) time.Time {
	if at, ok := onlyDate(h["Date"], received); ok {
		return at
	}
	return received
}

// onlyDate parses the date in a field's lines. Lines that differ are no date.
func onlyDate(lines []string, now time.Time) (time.Time, bool) {
	if len(lines) == 0 {
		return time.Time{}, false
	}
	for _, other := range lines[1:] {
		if other != lines[0] {
			return time.Time{}, false
		}
	}
	return parseDate(lines[0], now)
}

// InitialAge returns a response's age on arrival (RFC 9111 section 4.2.3). sent is the time of the
// request, received the time of the response's header.
func InitialAge(resp http.Header, sent, received time.Time) time.Duration {
	at, dated := onlyDate(resp["Date"], received)
	if !dated && resp["Age"] == nil {
		// The handler in this process has generated the response now: the time of its making is no
		// age. A response from a network has a Date (RFC 9110 section 6.6.1).
		return 0
	}
	var apparent time.Duration
	if dated {
		// Date has whole seconds. With the fraction as age, max-age=1 would often be stale at once.
		apparent = min(max(0, received.Sub(at).Truncate(time.Second)), maxDelta)
	}
	delay := max(0, received.Sub(sent))
	corrected := ageValue(resp) + delay
	return max(apparent, corrected)
}

// ageValue returns the first member of Age, 0 if it is no delta-seconds (RFC 9111 section 5.1).
func ageValue(h http.Header) time.Duration {
	lines := h["Age"]
	if len(lines) == 0 {
		return 0
	}
	first, _, _ := strings.Cut(lines[0], ",")
	age, _ := parseDelta(strings.Trim(first, " \t"))
	return age
}

// FormatAge returns age for an Age field: whole seconds, rounded down (RFC 9111 section 5.1).
func FormatAge(age time.Duration) string {
	return strconv.FormatInt(int64(min(max(0, age), maxDelta)/time.Second), 10)
}

// shareable reports whether a storable response of this age on arrival may answer the requests that waited
// before it was asked for (RFC 9111 section 4). A stale arrival was still made after they asked. It may not
// if it demands validation for every request: by no-cache, or because it is stale and forbids stale answers.
func (f Freshness) shareable(age time.Duration) bool {
	return age < f.Lifetime || !f.NoStale
}

// Reuse reports whether a stored response of this age may answer a request with these directives
// without the origin (RFC 9111 sections 4.2, 4.2.4 and 5.2.1). The caller handles only-if-cached.
func (f Freshness) Reuse(age time.Duration, req RequestDirectives) bool {
	switch {
	case req.NoCache: // section 5.2.1.4
		return false
	case req.MaxAge.Set && age > req.MaxAge.Duration: // section 5.2.1.1
		return false
	case req.MinFresh.Set && f.Lifetime-age < req.MinFresh.Duration: // section 5.2.1.3
		return false
	case age < f.Lifetime: // section 4.2
		return true
	case f.NoStale: // section 4.2.4
		return false
	}
	stale := age - f.Lifetime
	switch {
	case req.MaxStale.Set:
		// Section 5.2.1.2: the client's limit replaces the window, longer or shorter.
		return stale <= req.MaxStale.Duration
	case req.MaxAge.Set:
		return false // section 5.2.1.1: no stale response without max-stale
	}
	return stale < f.StaleWhileRevalidate // RFC 5861 section 3
}

// IsServerError reports whether a status is an error for stale-if-error (RFC 5861 section 4).
func IsServerError(status int) bool {
	switch status {
	case 500, 502, 503, 504:
		return true
	}
	return false
}

// HTTP-dates (RFC 9110 section 5.6.7): 0 is a digit, J a month, D a weekday, _ a digit or a space.
const (
	imfFixdate = "DDD, 00 JJJ 0000 00:00:00 GMT"
	rfc850Date = ", 00-JJJ-00 00:00:00 GMT" // after the long weekday
	asctime    = "DDD JJJ _0 00:00:00 0000"
)

const (
	weekdays = "sunmontuewedthufrisat"
	months   = "janfebmaraprmayjunjulaugsepoctnovdec"
)

// parseDate parses an HTTP-date in one of its three forms. [http.ParseTime] accepts spaces, one-digit
// hours and other zones, which a cache must treat as invalid. parseDate ignores letter case (RFC 9111
// section 4.2), and a wrong weekday. now places a year of two digits: at most 50 years ahead.
func parseDate(s string, now time.Time) (time.Time, bool) {
	s = strings.ToLower(strings.Trim(s, " \t"))
	var day, month, year, clock string
	switch {
	case matches(s, imfFixdate):
		day, month, year, clock = s[5:7], s[8:11], s[12:16], s[17:25]
	case matches(s, asctime):
		day, month, clock, year = s[8:10], s[4:7], s[11:19], s[20:24]
	default:
		weekday, rest, _ := strings.Cut(s, ",")
		rest = "," + rest
		if !longWeekday(weekday) || !matches(rest, rfc850Date) {
			return time.Time{}, false
		}
		day, month, year, clock = rest[2:4], rest[5:8], rest[9:11], rest[12:20]
	}
	y, d := number(year), number(day)
	hour, minute, second := number(clock[:2]), number(clock[3:5]), number(clock[6:])
	if hour > 23 || minute > 59 || second > 60 { // 60: a leap second
		return time.Time{}, false
	}
	if len(year) == 2 {
		y += now.UTC().Year() / 100 * 100
		if y > now.UTC().Year()+50 {
			y -= 100
		}
	}
	midnight := time.Date(y, time.Month(strings.Index(months, month)/3+1), d, 0, 0, 0, 0, time.UTC)
	if midnight.Day() != d { // the 31st of June, the 0th of May
		return time.Time{}, false
	}
	return midnight.Add(time.Duration(hour*3600+minute*60+second) * time.Second), true
}

// matches reports whether s, in lower case, has the form of a date.
func matches(s, form string) bool {
	if len(s) != len(form) {
		return false
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; form[i] {
		case '0':
			if c < '0' || c > '9' {
				return false
			}
		case '_':
			if c != ' ' && (c < '0' || c > '9') {
				return false
			}
		case 'D', 'J':
			names := weekdays
			if form[i] == 'J' {
				names = months
			}
			if strings.Index(names, s[i:i+3])%3 != 0 { // -1: there is no such name
				return false
			}
			i += 2
		default:
			if c != form[i]|0x20 {
				return false
			}
		}
	}
	return true
}

func longWeekday(s string) bool {
	switch s {
	case "sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday":
		return true
	}
	return false
}

// number parses digits. The first may be a space.
func number(s string) int {
	n := 0
	for i := range len(s) {
		if s[i] != ' ' {
			n = n*10 + int(s[i]-'0')
		}
	}
	return n
}
