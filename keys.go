package bellwether

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/keyrules"
)

// This file makes keys of HTTP requests by rules about query parameters and cookies.

// A KeyRule changes the keys that [Keys] makes. The zero KeyRule has no effect.
type KeyRule struct{ rule keyrules.Rule }

// WithoutQuery drops the query parameters with these names. A final * stands for any ending, as in
// "utm_*". Names are compared decoded, and case counts. A parameter with a semicolon or a name that
// cannot be decoded has no name, and stays. WithoutQuery panics on an empty name and on another *.
func WithoutQuery(names ...string) KeyRule {
	checkParameters("WithoutQuery", names)
	return KeyRule{keyrules.Without(names)}
}

// OnlyQuery drops all query parameters except those with these names, see [WithoutQuery]. Without names
// it drops the query.
func OnlyQuery(names ...string) KeyRule {
	checkParameters("OnlyQuery", names)
	return KeyRule{keyrules.Only(names)}
}

func checkParameters(option string, names []string) {
	for _, name := range names {
		if name == "" || strings.Contains(strings.TrimSuffix(name, "*"), "*") {
			refuse(option, strconv.Quote(name), "be the name of a query parameter, or the beginning of names with a final *, such as utm_*")
		}
	}
}

// SortedQuery sorts the query parameters by decoded name, and keeps the order of equal names. A query
// with a parameter without a name, see [WithoutQuery], stays as sent. Handlers must ignore the names' order.
func SortedQuery() KeyRule { return KeyRule{keyrules.Rule{Sorts: true}} }

// WithCookies makes a variant of the values of the cookies with these names. Requests without such a
// cookie share a variant. But a quoted value with a semicolon, a backslash or another quotation mark, of
// any cookie, makes a variant of the whole Cookie field. A handler that answers by another cookie must say
// private or Vary: Cookie. A client can invent values: a URL has up to 1,024 variants in ten minutes.
// WithCookies panics on a bad name.
func WithCookies(names ...string) KeyRule {
	for _, name := range names {
		if !httpcache.FieldName(name) {
			refuse("WithCookies", strconv.Quote(name), "be the name of a cookie, such as lang")
		}
	}
	return KeyRule{keyrules.Rule{Cookies: slices.Clone(names)}}
}

// Keys returns a function for [HTTPOptions].Key that makes keys by rules. A query parameter stays if
// all rules keep it. The function returns false for a request without a default key. Wrap it to refuse
// requests or to extend the variant.
func Keys(rules ...KeyRule) func(r *http.Request) (key Key, ok bool) {
	var k keyrules.Rules
	for _, r := range rules {
		k.Add(r.rule)
	}
	return func(r *http.Request) (key Key, ok bool) {
		key.URL, key.Variant, ok = k.Key(r)
		return key, ok
	}
}
