package httpcache

import (
	"net/http"
	"testing"
	"time"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func httpDate(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }

func TestParseDate(t *testing.T) {
	want := time.Date(2050, 8, 18, 2, 1, 18, 0, time.UTC)
	for _, good := range []string{
		"Thu, 18 Aug 2050 02:01:18 GMT",
		"THU, 18 aug 2050 02:01:18 gMT",
		"Mon, 18 Aug 2050 02:01:18 GMT", // not the day's weekday
		" Thu, 18 Aug 2050 02:01:18 GMT\t",
		"Thursday, 18-Aug-50 02:01:18 GMT",
		"Thu Aug 18 02:01:18 2050",
	} {
		if got, ok := parseDate(good, now); !ok || !got.Equal(want) {
			t.Errorf("parseDate(%q) = %v, %v, want %v", good, got, ok, want)
		}
	}
	for _, bad := range []string{
		"", "0", "-1", "foo", ",", "Thu,",
		"Thu, 18 Aug 2050 02:01:18 UTC",
		"Thu, 18 Aug 2050 02:01:18 AEST",
		"Thu, 18 Aug 2050 02:01:18",
		"Thu, 18 Aug 50 02:01:18 GMT",
		"Thu 18 Aug 2050 02:01:18 GMT",
		"Thu, 18  Aug  2050 02:01:18 GMT",
		"Thu,  18 Aug 2050 02:01:18 GMT",
		"Thu, 18-Aug-2050 02:01:18 GMT",
		"Thu, 18-Aug-50 02:01:18 GMT",
		"Thu, 18 Aug 2050 02.01.18 GMT",
		"Thu, 18 Aug 2050 2:01:18 GMT",
		"Thu, 8 Aug 2050 02:01:18 GMT",
		"Thu,  8 Aug 2050 02:01:18 GMT",
		"Thu, 18 Aug 2050 02:01:18 +0000",
		"Thu, 1: Aug 2050 02:01:18 GMT",
		"Thursday, 18/Aug/50 02:01:18 GMT",
		"Thu Aug :8 02:01:18 2050",
		"Thu Aug /8 02:01:18 2050",
		"Thu, 18 Aug 2050 24:01:18 GMT",
		"Thu, 18 Aug 2050 02:60:18 GMT",
		"Thu, 18 Aug 2050 02:01:61 GMT",
		"Thu, 31 Jun 2050 02:01:18 GMT",
		"Thu, 00 Jun 2050 02:01:18 GMT",
		"Thu, 18 Anf 2050 02:01:18 GMT",
		"Unm, 18 Aug 2050 02:01:18 GMT",
		"Thu, 18 Aug 2050 02:01:18 GMT, Thu, 18 Aug 2050 02:01:18 GMT",
	} {
		if got, ok := parseDate(bad, now); ok {
			t.Errorf("parseDate(%q) = %v, want none", bad, got)
		}
	}
	for in, want := range map[string]time.Time{
		"Sunday, 06-Nov-94 08:49:37 GMT": time.Date(1994, 11, 6, 8, 49, 37, 0, time.UTC), // 68 years ahead
		"Sunday, 06-Nov-76 08:49:37 GMT": time.Date(2076, 11, 6, 8, 49, 37, 0, time.UTC), // 50
		"Sunday, 06-Nov-77 08:49:37 GMT": time.Date(1977, 11, 6, 8, 49, 37, 0, time.UTC), // 51
		"Sun Nov  6 08:49:37 1994":       time.Date(1994, 11, 6, 8, 49, 37, 0, time.UTC),
		"Sun Nov 06 08:49:37 1994":       time.Date(1994, 11, 6, 8, 49, 37, 0, time.UTC),
		"Sat, 31 Dec 2016 23:59:60 GMT":  time.Date(2017, 1, 1, 0, 0, 0, 0, time.UTC), // a leap second
	} {
		if got, ok := parseDate(in, now); !ok || !got.Equal(want) {
			t.Errorf("parseDate(%q) = %v, %v, want %v", in, got, ok, want)
		}
	}
}

func FuzzParseDate(f *testing.F) {
	f.Add("Thu, 18 Aug 2050 02:01:18 GMT")
	f.Add("Thursday, 18-Aug-50 02:01:18 GMT")
	f.Add("Thu Aug  8 02:01:18 2050")
	f.Fuzz(func(t *testing.T, in string) {
		got, ok := parseDate(in, now)
		if !ok {
			return
		}
		if again, ok := parseDate(got.Format(http.TimeFormat), now); !ok || !again.Equal(got) {
			t.Fatalf("parseDate(%q) = %v, whose own form reads as %v, %v", in, got, again, ok)
		}
	})
}

func TestFreshnessOf(t *testing.T) {
	windows := Options{StaleWhileRevalidate: 7 * s, StaleIfError: 8 * s}
	tenth := Options{HeuristicFraction: 0.1}
	both := func(f Freshness) Freshness {
		f.StaleWhileRevalidate, f.StaleIfError = 7*s, 8*s
		return f
	}
	for _, tt := range []struct {
		name   string
		status int
		resp   http.Header
		opt    Options
		want   Freshness
	}{
		{"RFC 9111 4.2.1: nothing", 200, header(), windows, both(Freshness{})},
		{"RFC 9111 4.2.1: s-maxage first", 200, header("Cache-Control", "max-age=1, s-maxage=60", "Expires", "0"), windows,
			Freshness{Lifetime: 60 * s, Source: SourceSMaxAge, NoStale: true}},
		{"RFC 9111 4.2.1: then max-age", 200, header("Cache-Control", "max-age=60", "Expires", "0"), windows,
			both(Freshness{Lifetime: 60 * s, Source: SourceMaxAge})},
		{"RFC 9111 4.2.1: max-age=0 beside a later Expires", 200, header("Cache-Control", "max-age=0", "Expires", httpDate(time.Hour)), windows,
			both(Freshness{Source: SourceMaxAge})},
		{"RFC 9111 4.2.1: malformed s-maxage is over", 200, header("Cache-Control", "s-maxage=x, max-age=60"), windows,
			Freshness{Source: SourceSMaxAge, NoStale: true}},
		{"RFC 9111 4.2.1: then Expires - Date", 200, header("Expires", httpDate(time.Hour), "Date", httpDate(-10*s)), Options{},
			Freshness{Lifetime: time.Hour + 10*s, Source: SourceExpires}},
		{"RFC 9111 5.3: Expires without Date", 200, header("Expires", httpDate(time.Hour)), Options{}, Freshness{Lifetime: time.Hour, Source: SourceExpires}},
		{"RFC 9111 5.3: Expires with a bad Date", 200, header("Expires", httpDate(time.Hour), "Date", "foo"), Options{}, Freshness{Lifetime: time.Hour, Source: SourceExpires}},
		{"RFC 9111 5.3: Expires: 0", 200, header("Expires", "0", "Last-Modified", httpDate(-time.Hour)), Options{}, Freshness{Source: SourceExpires}},
		{"RFC 9111 5.3: Expires past", 200, header("Expires", httpDate(-time.Hour)), Options{}, Freshness{Source: SourceExpires}},
		{"RFC 9111 5.3: far future", 200, header("Expires", "Sun, 21 Nov 9999 04:46:39 GMT"), Options{}, Freshness{Lifetime: maxDelta, Source: SourceExpires}},
		{"RFC 9111 4.2.1: two Expires", 200, header("Expires", httpDate(time.Hour), "Expires", httpDate(2*time.Hour)), Options{}, Freshness{Source: SourceExpires}},
		{"RFC 9111 4.2.1: the same Expires twice", 200, header("Expires", httpDate(time.Hour), "Expires", httpDate(time.Hour)), Options{}, Freshness{Lifetime: time.Hour, Source: SourceExpires}},
		{"RFC 9213 2.2: Expires beside a targeted field", 200, header("Expires", httpDate(time.Hour), "CDN-Cache-Control", "none"), Options{Targets: []string{"CDN-Cache-Control"}}, Freshness{}},
		{"RFC 9111 4.2.2: heuristic", 200, header("Last-Modified", httpDate(-100*s), "Date", httpDate(0)), tenth, Freshness{Lifetime: 10 * s, Source: SourceHeuristic}},
		{"RFC 9111 4.2.2: heuristic, bounded", 200, header("Last-Modified", httpDate(-1e6*s)), tenth, Freshness{Lifetime: 24 * time.Hour, Source: SourceHeuristic}},
		{"RFC 9111 4.2.2: heuristic, options", 200, header("Last-Modified", httpDate(-100*s)), Options{HeuristicFraction: 0.5}, Freshness{Lifetime: 50 * s, Source: SourceHeuristic}},
		{"RFC 9111 4.2.2: heuristic, off", 200, header("Last-Modified", httpDate(-100*s)), Options{}, Freshness{}},
		{"RFC 9111 4.2.2: heuristic, modified later", 200, header("Last-Modified", httpDate(100*s)), tenth, Freshness{}},
		{"RFC 9111 4.2.2: heuristic, not modified", 200, header(), tenth, Freshness{}},
		{"RFC 9111 4.2.2: heuristic, two dates", 200, header("Last-Modified", httpDate(-100*s), "Last-Modified", httpDate(-200*s)), tenth, Freshness{}},
		{"RFC 9111 4.2.2: heuristic, 404", 404, header("Last-Modified", httpDate(-100*s)), tenth, Freshness{Lifetime: 10 * s, Source: SourceHeuristic}},
		{"RFC 9111 4.2.2: heuristic, 201", 201, header("Last-Modified", httpDate(-100*s)), tenth, Freshness{}},
		{"RFC 9111 4.2.2: heuristic, public 599", 599, header("Last-Modified", httpDate(-100*s), "Cache-Control", "public"), tenth, Freshness{Lifetime: 10 * s, Source: SourceHeuristic}},
		{"RFC 9111 4.2.2: default", 200, header("Last-Modified", httpDate(-100*s)), Options{DefaultLifetime: 5 * s, HeuristicFraction: 0.1}, Freshness{Lifetime: 5 * s, Source: SourceDefault}},
		{"RFC 9111 4.2.2: no default where something is said", 200, header("Cache-Control", "max-age=0"), Options{DefaultLifetime: 5 * s}, Freshness{Source: SourceMaxAge}},
		{"RFC 9111 5.2.2.2: must-revalidate", 200, header("Cache-Control", "max-age=1, must-revalidate, stale-while-revalidate=9"), windows, Freshness{Lifetime: s, Source: SourceMaxAge, NoStale: true}},
		{"RFC 9111 5.2.2.8: proxy-revalidate", 200, header("Cache-Control", "max-age=1, proxy-revalidate"), windows, Freshness{Lifetime: s, Source: SourceMaxAge, NoStale: true}},
		{"RFC 9111 5.2.2.4: no-cache", 200, header("Cache-Control", "max-age=60, no-cache"), windows, Freshness{Source: SourceMaxAge, NoStale: true, NoCache: true}},
		{"RFC 9111 5.2.2.4: no-cache for a field", 200, header("Cache-Control", "max-age=60, no-cache=a"), windows, both(Freshness{Lifetime: 60 * s, Source: SourceMaxAge})},
		{"RFC 5861 3: stated windows", 200, header("Cache-Control", "max-age=1, stale-while-revalidate=0, stale-if-error=9"), windows, Freshness{Lifetime: s, Source: SourceMaxAge, StaleIfError: 9 * s}},
		{"RFC 9111 5.2.2.10: s-maxage and a window", 200, header("Cache-Control", "s-maxage=1, stale-while-revalidate=9"), windows, Freshness{Lifetime: s, Source: SourceSMaxAge, NoStale: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := ResponseDirectives(tt.resp, tt.opt.Targets...)
			if got := freshnessOf(tt.status, tt.resp, d, now, tt.opt); got != tt.want {
				t.Errorf("freshnessOf = %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestInitialAge(t *testing.T) {
	for _, tt := range []struct {
		name  string
		resp  http.Header
		delay time.Duration
		want  time.Duration
	}{
		{"RFC 9111 4.2.3: nothing", header(), 0, 0},
		{"RFC 9111 4.2.3: response delay", header("Date", httpDate(0)), 3 * s, 3 * s},
		{"RFC 9111 4.2.3: generated here", header(), 3 * s, 0},
		{"RFC 9111 4.2.3: Age and delay", header("Age", "7"), 3 * s, 10 * s},
		{"RFC 9111 4.2.3: apparent age", header("Date", httpDate(-20*s), "Age", "7"), 3 * s, 20 * s},
		{"RFC 9111 4.2.3: a Date ahead", header("Date", httpDate(20*s), "Age", "7"), 0, 7 * s},
		{"RFC 9111 4.2.3: a bad Date", header("Date", "foo"), 0, 0},
		{"RFC 9111 4.2.3: a clock set back", header(), -5 * s, 0},
		{"RFC 9111 5.1: first member", header("Age", "7, 0"), 0, 7 * s},
		{"RFC 9111 5.1: first member is 0", header("Age", "0, 7"), 0, 0},
		{"RFC 9111 5.1: first line", header("Age", "7", "Age", "0"), 0, 7 * s},
		{"RFC 9111 5.1: negative", header("Age", "-7"), 0, 0},
		{"RFC 9111 5.1: decimal", header("Age", "7.0"), 0, 0},
		{"RFC 9111 5.1: unit", header("Age", "7s"), 0, 0},
		{"RFC 9111 5.1: parameter", header("Age", "7;a=b"), 0, 0},
		{"RFC 9111 5.1: no number", header("Age", "abc"), 0, 0},
		{"RFC 9111 1.2.2: overflow", header("Age", "99999999999999999999"), 0, maxDelta},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := InitialAge(tt.resp, now.Add(-tt.delay), now); got != tt.want {
				t.Errorf("InitialAge = %v, want %v", got, tt.want)
			}
		})
	}
	if got := InitialAge(header("Date", httpDate(0)), now, now.Add(900*time.Millisecond)); got != 900*time.Millisecond {
		t.Errorf("InitialAge with a delay = %v, want the delay", got)
	}
	if got := InitialAge(header("Date", httpDate(0)), now.Add(900*time.Millisecond), now.Add(900*time.Millisecond)); got != 0 {
		t.Errorf("InitialAge of this second's Date = %v, want 0", got)
	}
}

func TestReuse(t *testing.T) {
	f := Freshness{Lifetime: 100 * s, StaleWhileRevalidate: 10 * s}
	strict := Freshness{Lifetime: 100 * s, NoStale: true}
	for _, tt := range []struct {
		name string
		f    Freshness
		age  time.Duration
		req  string
		want bool
	}{
		{"RFC 9111 4.2: fresh", f, 99 * s, "", true},
		{"RFC 9111 4.2: stale at the lifetime", strict, 100 * s, "", false},
		{"RFC 5861 3: in the window", f, 109 * s, "", true},
		{"RFC 5861 3: at its end", f, 110 * s, "", false},
		{"RFC 9111 4.2: never fresh", Freshness{}, 0, "", false},
		{"RFC 9111 5.2.2.4: no-cache", Freshness{NoCache: true, NoStale: true}, 0, "max-stale", false},
		{"RFC 9111 5.2.1.4: request no-cache", f, 0, "no-cache", false},
		{"RFC 9111 5.2.1.1: younger than max-age", f, 5 * s, "max-age=5", true},
		{"RFC 9111 5.2.1.1: older than max-age", f, 6 * s, "max-age=5", false},
		{"RFC 9111 5.2.1.1: max-age takes nothing stale", f, 105 * s, "max-age=200", false},
		{"RFC 9111 5.2.1.1: unless with max-stale", f, 105 * s, "max-age=200, max-stale=5", true},
		{"RFC 9111 5.2.1.2: max-stale", f, 150 * s, "max-stale=50", true},
		{"RFC 9111 5.2.1.2: staler than max-stale", f, 151 * s, "max-stale=50", false},
		{"RFC 9111 5.2.1.2: max-stale below the window", f, 105 * s, "max-stale=4", false},
		{"RFC 9111 5.2.1.2: any staleness", f, 1e6 * s, "max-stale", true},
		{"RFC 9111 4.2.4: max-stale against must-revalidate", strict, 101 * s, "max-stale", false},
		{"RFC 9111 5.2.1.3: fresh enough", f, 90 * s, "min-fresh=10", true},
		{"RFC 9111 5.2.1.3: not fresh enough", f, 91 * s, "min-fresh=10", false},
		{"RFC 9111 5.2.1.3: stale", f, 101 * s, "min-fresh=0", false},
		{"RFC 9111 5.2.1: unknown", f, 0, "nothing-to-see-here", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := ParseRequest(header("Cache-Control", tt.req))
			if got := tt.f.Reuse(tt.age, req); got != tt.want {
				t.Errorf("Reuse(%v, %q) = %v, want %v", tt.age, tt.req, got, tt.want)
			}
		})
	}
}

func TestShareable(t *testing.T) {
	for cc, want := range map[string]bool{
		"max-age=60":                 true,
		"max-age=0":                  true, // made after they asked
		"":                           true,
		"max-age=60, no-cache":       false,
		"max-age=0, must-revalidate": false,
		"s-maxage=0":                 false,
		"s-maxage=60":                true,
	} {
		h := header("Cache-Control", cc)
		if got := freshnessOf(200, h, ResponseDirectives(h), now, Options{}).shareable(0); got != want {
			t.Errorf("Shareable of %q = %v, want %v", cc, got, want)
		}
	}
}

func TestFormatAge(t *testing.T) {
	for age, want := range map[time.Duration]string{0: "0", -s: "0", 1999 * time.Millisecond: "1", Forever: "2147483648"} {
		if got := FormatAge(age); got != want {
			t.Errorf("FormatAge(%v) = %q, want %q", age, got, want)
		}
	}
}
