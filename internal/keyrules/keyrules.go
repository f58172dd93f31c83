// Package keyrules makes keys of HTTP requests by rules about query parameters and cookies.
package keyrules

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// A Rule changes keys. The zero Rule changes nothing.
type Rule struct {
	Sorts   bool     // query parameters by name
	Cookies []string // names of cookies that make variants

	keeps func(param string) bool // reports whether a query parameter stays; nil: all stay
}

// Without drops the query parameters with these names. A final * stands for any ending.
func Without(names []string) Rule {
	listed := among(names)
	return Rule{keeps: func(param string) bool {
		name, ok := parameterName(param)
		return !ok || !listed(name)
	}}
}

// Only drops all query parameters except the ones with these names.
func Only(names []string) Rule {
	listed := among(names)
	return Rule{keeps: func(param string) bool {
		name, ok := parameterName(param)
		return ok && listed(name)
	}}
}

// Rules make keys. The zero Rules change nothing. After the last Add they are safe for concurrent use.
type Rules struct {
	filters []func(param string) bool
	sorts   bool
	cookies []string // sorted, each once
}

// Add makes the rules stricter by a rule.
func (k *Rules) Add(rule Rule) {
	if rule.keeps != nil {
		k.filters = append(k.filters, rule.keeps)
	}
	k.sorts = k.sorts || rule.Sorts
	k.cookies = append(k.cookies, rule.Cookies...)
	slices.Sort(k.cookies)
	k.cookies = slices.Compact(k.cookies)
}

// Key returns the URL of r's key, "" for r's own, and the variant. False: r has no default key.
func (k *Rules) Key(r *http.Request) (address, variant string, ok bool) {
	at, ok := httpcache.Locate(r)
	if !ok {
		return "", "", false
	}
	variant = k.variant(at.Rewritten, r.Header["Cookie"])
	query := k.query(at.Query)
	if at.Own && query == at.Query {
		return "", variant, true
	}
	address = at.Scheme + at.Host + at.Path
	if query != "" {
		address += "?" + query
	}
	return address, variant, true
}

// query returns the same string if the rules change nothing.
func (k *Rules) query(query string) string {
	if query == "" {
		return ""
	}
	query = k.filtered(query)
	if k.sorts {
		query = sortedQuery(query)
	}
	return query
}

func (k *Rules) filtered(query string) string {
	whole := true
	for param := range strings.SplitSeq(query, "&") {
		whole = whole && k.keeps(param)
	}
	if whole {
		return query
	}
	params := strings.Split(query, "&")
	return strings.Join(slices.DeleteFunc(params, func(param string) bool { return !k.keeps(param) }), "&")
}

func (k *Rules) keeps(param string) bool {
	for _, keeps := range k.filters {
		if !keeps(param) {
			return false
		}
	}
	return true
}

func sortedQuery(query string) string {
	before, inOrder := "", true
	for param := range strings.SplitSeq(query, "&") {
		name, ok := parameterName(param)
		if !ok {
			return query
		}
		inOrder = inOrder && before <= name
		before = name
	}
	if inOrder {
		return query
	}
	type parameter struct{ name, param string }
	var params []parameter
	for param := range strings.SplitSeq(query, "&") {
		name, _ := parameterName(param)
		params = append(params, parameter{name, param})
	}
	slices.SortStableFunc(params, func(a, b parameter) int { return strings.Compare(a.name, b.name) })
	sorted := make([]byte, 0, len(query))
	for i, p := range params {
		if i > 0 {
			sorted = append(sorted, '&')
		}
		sorted = append(sorted, p.param...)
	}
	return string(sorted)
}

// parameterName returns the decoded name of a query parameter, or false if net/url refuses the
// parameter. Some handlers split at a semicolon, so the names behind a semicolon are unknown.
func parameterName(param string) (name string, ok bool) {
	if strings.Contains(param, ";") {
		return "", false
	}
	name, _, _ = strings.Cut(param, "=")
	if !strings.ContainsAny(name, "%+") {
		return name, true
	}
	name, err := url.QueryUnescape(name)
	return name, err == nil
}

// among reports whether a name is one of names, or begins like one that ends in *.
func among(names []string) (listed func(name string) bool) {
	var prefixes, whole []string
	for _, name := range names {
		if prefix, wild := strings.CutSuffix(name, "*"); wild {
			prefixes = append(prefixes, prefix)
		} else {
			whole = append(whole, name)
		}
	}
	return func(name string) bool {
		return slices.Contains(whole, name) ||
			slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	}
}

// variant returns the variant of a request with the rewritten path, "" if there is none, and the lines
// of Cookie. Its parts are a quoted path, names with their quoted values, and quoted lines behind a
// semicolon. No name has a quotation mark or a semicolon, so different requests have different parts.
func (k *Rules) variant(rewritten string, lines []string) string {
	var b []byte
	if rewritten != "" {
		b = strconv.AppendQuote(b, rewritten)
	}
	if len(k.cookies) == 0 {
		return string(b)
	}
	if slices.ContainsFunc(lines, ambiguous) {
		for _, line := range lines {
			b = strconv.AppendQuote(append(b, ';'), line)
		}
		return string(b)
	}
	for _, kept := range k.cookies {
		for _, line := range lines {
			for cookie := range strings.SplitSeq(line, ";") {
				if name, rest := splitCookie(cookie); name == kept {
					b = strconv.AppendQuote(append(b, name...), rest)
				}
			}
		}
	}
	return string(b)
}

// splitCookie returns a cookie's name, and the rest as sent: parsers cut off different spaces.
func splitCookie(cookie string) (name, rest string) {
	i := strings.IndexByte(cookie, '=')
	if i < 0 {
		i = len(cookie)
	}
	return strings.Trim(cookie[:i], " \t"), cookie[i:]
}

// ambiguous reports whether a line of Cookie has a quoted value with different ends by RFC 6265 section
// 5.4, at the semicolon, and by RFC 2109 section 4.1, at the next quotation mark.
func ambiguous(line string) bool {
	if !strings.Contains(line, `"`) {
		return false
	}
	for cookie := range strings.SplitSeq(line, ";") {
		_, value, _ := strings.Cut(cookie, "=")
		quoted, ok := strings.CutPrefix(strings.Trim(value, " \t"), `"`)
		if !ok {
			continue
		}
		if quoted, ok = strings.CutSuffix(quoted, `"`); !ok || strings.ContainsAny(quoted, `"\`) {
			return true
		}
	}
	return false
}
