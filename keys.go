package bellwether

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file makes keys of HTTP requests by rules: the parameters of the query and the cookies
// that tell responses apart. The other parts of a key are in internal/httpcache.

// A KeyRule changes the keys that [Keys] makes. The zero KeyRule changes nothing.
type KeyRule struct {
	keeps   func(param string) bool // whether a parameter stays; nil: all stay
	sorts   bool                    // the parameters are sorted
	cookies []string                // the names of the cookies that are kept
}

// WithoutQuery drops the query parameters with these names. A name with a final * stands for
// all names with that beginning: "utm_*". Names are compared decoded, and case counts. A
// parameter that [net/url.ParseQuery] refuses stays as it was sent. WithoutQuery panics on an
// empty name, and on a * within a name.
func WithoutQuery(names ...string) KeyRule {
	listed := parameterNames("WithoutQuery", names)
	return KeyRule{keeps: func(param string) bool {
		name, ok := parameterName(param)
		return !ok || !listed(name)
	}}
}

// OnlyQuery drops all query parameters but those with these names, which are read as in
// [WithoutQuery]. A parameter that [net/url.ParseQuery] refuses is dropped. Without names
// the whole query is dropped.
func OnlyQuery(names ...string) KeyRule {
	listed := parameterNames("OnlyQuery", names)
	return KeyRule{keeps: func(param string) bool {
		name, ok := parameterName(param)
		return ok && listed(name)
	}}
}

// SortedQuery sorts the query parameters by their decoded names. Parameters of one name keep
// their order. Use SortedQuery if the handlers ignore the order of different names. A query
// with a parameter that [net/url.ParseQuery] refuses stays as it was sent.
func SortedQuery() KeyRule { return KeyRule{sorts: true} }

// WithCookies makes a variant of each set of values of the cookies with these names.
// A request without any of them shares the variant without a name. A cookie that is sent
// twice counts with both values, in their order. If a quoted value does not end where the
// cookie ends, parsers disagree about the cookies, and the whole Cookie field makes the
// variant. WithCookies panics on a name that no cookie can have.
//
// Other cookies make no variants, although the handler sees them: it gets the whole Cookie
// field of the request that it runs for. A handler that answers by another cookie must say
// private, or Vary: Cookie. Each value that a client invents is a variant, with a run of the
// handler, up to 1,024 variants of a URL.
func WithCookies(names ...string) KeyRule {
	for _, name := range names {
		if !httpcache.FieldName(name) {
			refuse("WithCookies", strconv.Quote(name), "be the name of a cookie, such as lang")
		}
	}
	return KeyRule{cookies: slices.Clone(names)}
}

// Keys returns a function for [HTTPOptions].Key that makes keys by rules. A parameter of the
// query stays if all rules keep it. Without rules, and where the rules change nothing, the key
// has the request's own URL, and the query stays as it was sent.
//
// Scheme, host and path are those of the default key. If the path was rewritten before it
// reached the middleware, as by [http.StripPrefix], the URL has the path that the client has
// sent, and the rewritten path makes a variant. The function returns false for a request
// that has no default key.
//
// To refuse requests or to add to the variant, call the function from a function of your own.
func Keys(rules ...KeyRule) func(r *http.Request) (key Key, ok bool) {
	var k keyRules
	for _, rule := range rules {
		k.add(rule)
	}
	return k.key
}

// keyRules are several rules as one.
type keyRules struct {
	filters []func(param string) bool
	sorts   bool
	cookies []string // sorted, each once
}

// add adds a rule.
func (k *keyRules) add(rule KeyRule) {
	if rule.keeps != nil {
		k.filters = append(k.filters, rule.keeps)
	}
	k.sorts = k.sorts || rule.sorts
	k.cookies = append(k.cookies, rule.cookies...)
	slices.Sort(k.cookies)
	k.cookies = slices.Compact(k.cookies)
}

// key is what Keys returns.
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

// query returns the query as the rules leave it: the same string if they change nothing.
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

// filtered returns the query with the parameters that all filters keep.
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

// keeps reports whether all filters keep the parameter.
func (k *keyRules) keeps(param string) bool {
	for _, keeps := range k.filters {
		if !keeps(param) {
			return false
		}
	}
	return true
}

// sortedQuery returns the query with its parameters sorted by name.
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

// parameterName returns the decoded name of a query parameter. It returns false if the
// parameter is one that net/url refuses. A semicolon separates parameters for some handlers:
// the names behind it are not known.
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

// parameterNames returns a function that reports whether a name is among the listed ones.
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

// variant returns the variant of a request whose path was rewritten to that, "" if it was not,
// and that has these lines of Cookie. Its parts are a quoted path, names with the quoted rest of
// their cookies, and quoted lines behind a semicolon. No name has a quotation mark or a
// semicolon, so that no two different requests have the same parts.
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

// splitCookie returns the name of a cookie, and the rest of it as it was sent, from the equals
// sign on: parsers differ in the space that they cut off.
func splitCookie(cookie string) (name, rest string) {
	i := strings.IndexByte(cookie, '=')
	if i < 0 {
		i = len(cookie)
	}
	return strings.Trim(cookie[:i], " \t"), cookie[i:]
}

// ambiguous reports whether a line of Cookie has a quoted value that some parsers end at the
// semicolon, as RFC 6265 section 5.4 does, and others at the next quotation mark, as RFC 2109
// section 4.1 does: the cookies behind it are different ones for the two.
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
