package bellwether

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file makes keys of HTTP requests by rules about query parameters and cookies. Scheme, host and
// path are in internal/httpcache.

// A KeyRule changes the keys that [Keys] makes. The zero KeyRule changes nothing.
type KeyRule struct {
	keeps   func(param string) bool // reports whether a parameter stays; nil: all stay
	sorts   bool
	cookies []string // names of cookies that make variants
}

// WithoutQuery drops the query parameters with these names. A final * stands for any ending, as in
// "utm_*". Names are compared decoded, and case counts. Parameters refused by [net/url.ParseQuery]
// stay. WithoutQuery panics on an empty name and on another *.
func WithoutQuery(names ...string) KeyRule {
	listed := parameterNames("WithoutQuery", names)
	return KeyRule{keeps: func(param string) bool {
		name, ok := parameterName(param)
		return !ok || !listed(name)
	}}
}

// OnlyQuery drops all query parameters except those with these names, see [WithoutQuery], and drops
// parameters refused by [net/url.ParseQuery]. Without names it drops the query.
func OnlyQuery(names ...string) KeyRule {
	listed := parameterNames("OnlyQuery", names)
	return KeyRule{keeps: func(param string) bool {
		name, ok := parameterName(param)
		return ok && listed(name)
	}}
}

// SortedQuery sorts the query parameters by decoded name. Parameters of the same name keep their order.
// A query with a parameter refused by [net/url.ParseQuery] stays as sent. Use SortedQuery only if
// handlers ignore the order of names.
func SortedQuery() KeyRule { return KeyRule{sorts: true} }

// WithCookies makes a variant of the values of the cookies with these names. Requests without such a
// cookie share a variant. A cookie that is sent twice counts with both values, in their order. Where
// parsers disagree about a quoted value, the whole Cookie field makes the variant. A handler that
// answers by another cookie must say private or Vary: Cookie. A client can invent values, up to 1,024
// variants of a URL. WithCookies panics on a name that no cookie can have.
func WithCookies(names ...string) KeyRule {
	for _, name := range names {
		if !httpcache.FieldName(name) {
			refuse("WithCookies", strconv.Quote(name), "be the name of a cookie, such as lang")
		}
	}
	return KeyRule{cookies: slices.Clone(names)}
}

// Keys returns a function for [HTTPOptions].Key that makes keys by rules. A query parameter stays if
// all rules keep it. Scheme, host and path are those of the default key. A rewritten path, as by
// [http.StripPrefix], makes a variant of the client's path. The function returns false for a request
// without a default key. Wrap the function to refuse requests or to extend the variant.
func Keys(rules ...KeyRule) func(r *http.Request) (key Key, ok bool) {
	var k keyRules
	for _, rule := range rules {
		k.add(rule)
	}
	return k.key
}

type keyRules struct {
	filters []func(param string) bool
	sorts   bool
	cookies []string // sorted, each once
}

func (k *keyRules) add(rule KeyRule) {
	if rule.keeps != nil {
		k.filters = append(k.filters, rule.keeps)
	}
	k.sorts = k.sorts || rule.sorts
	k.cookies = append(k.cookies, rule.cookies...)
	slices.Sort(k.cookies)
	k.cookies = slices.Compact(k.cookies)
}

func (k *keyRules) key(r *http.Request) (key Key, ok bool) {
	at, ok := httpcache.Locate(r)
	if !ok {
		return key, false
	}
	key.Variant = k.variant(at.Rewritten, r.Header["Cookie"])
	query := k.query(at.Query)
	if at.Own && query == at.Query {
		return key, true
	}
	key.URL = at.Scheme + at.Host + at.Path
	if query != "" {
		key.URL += "?" + query
	}
	return key, true
}

// query returns the same string if the rules change nothing.
func (k *keyRules) query(query string) string {
	if query == "" {
		return ""
	}
	query = k.filtered(query)
	if k.sorts {
		query = sortedQuery(query)
	}
	return query
}

func (k *keyRules) filtered(query string) string {
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

func (k *keyRules) keeps(param string) bool {
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

func parameterNames(rule string, names []string) (listed func(name string) bool) {
	var prefixes, whole []string
	for _, name := range names {
		prefix, wild := strings.CutSuffix(name, "*")
		switch {
		case name == "", strings.Contains(prefix, "*"):
			refuse(rule, strconv.Quote(name), "be the name of a query parameter, or the beginning of names with a final *, such as utm_*")
		case wild:
			prefixes = append(prefixes, prefix)
		default:
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
func (k *keyRules) variant(rewritten string, lines []string) string {
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

// splitCookie returns the name of a cookie and the rest as sent, from the equals sign on, because
// parsers cut off different spaces.
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
