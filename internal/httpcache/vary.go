package httpcache

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// This file distinguishes the variants of a response by request fields.

// maxVary is about how many bytes of names a response may vary by.
const maxVary = 2 << 10

// VaryNames returns the names in Vary (RFC 9110 section 12.5.5) in lower case, sorted, each once.
// The result is false if no other request can match: for a "*" (RFC 9111 section 4.1), for a member
// that is no field name, and for more than maxVary bytes, too many to look up for each request.
func VaryNames(h http.Header) (names []string, ok bool) {
	n := 0
	for name := range Members(h["Vary"]) {
		if n += len(name); name == "*" || n > maxVary {
			return nil, false
		}
		if _, rest := cutToken(name); rest != "" {
			return nil, false
		}
		names = append(names, strings.ToLower(name))
	}
	slices.Sort(names)
	return slices.Compact(names), true
}

// JoinNames returns the names of all lists, sorted, each once, and false for more than maxVary bytes.
func JoinNames(lists ...[]string) (names []string, ok bool) {
	names = slices.Concat(lists...)
	slices.Sort(names)
	names = slices.Compact(names)
	n := 0
	for _, name := range names {
		n += len(name)
	}
	return names, n <= maxVary
}

// VariantKey returns the key of the variant that req selects among the variants of the named fields.
// Two requests have the same key if each of these fields matches (RFC 9111 section 4.1): has the same
// normal form. Otherwise only a collision of SHA-256 gives them the same key. Without names the key
// is empty. The key is a hash of fixed length: a name may be Cookie, whose value is long and secret.
//
// The names have the form of VaryNames. Host is in [Key], not in a server's request header, so a
// Vary on it always matches. A caller that gives several hosts one key must take care of this.
func VariantKey(names []string, req http.Header, opt Options) string {
	if len(names) == 0 {
		return ""
	}
	sum := sha256.Sum256(selection(names, req, opt))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// selection is the names and their values' normal form, each with its length, so no two are equal. An
// alias of a name is another variant, since a handler behind a gateway may take it for the field itself.
func selection(names []string, req http.Header, opt Options) (b []byte) {
	add := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	aliases := aliasesIn(req)
	for _, name := range names {
		add(name)
		var values []string
		if name == RetargetingFields {
			values = opt.retargeting().values(req)
		} else {
			name = http.CanonicalHeaderKey(name)
			values = normal(name, req[name], opt)
			for _, alias := range aliases {
				if aliased(alias) == name {
					values = slices.Concat(values, []string{"\n" + alias}, req[alias]) // no value has a line break
				}
			}
		}
		// No values: an absent field, which matches only an absent one. An empty field has one value.
		b = binary.AppendUvarint(b, uint64(len(values)))
		for _, v := range values {
			add(v)
		}
	}
	return b
}

// aliasesIn returns the names of req that may be aliases of other fields, sorted.
func aliasesIn(req http.Header) (names []string) {
	for name := range req {
		if aliased(name) != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Normalised returns req with each field in its normal form, so one [VariantKey] means the same values. It reports
// whether the result differs from req, which stays unchanged.
func Normalised(req http.Header, opt Options) (normalised http.Header, changed bool) {
	normalised = req
	for name, lines := range req {
		form := normal(name, lines, opt)
		if slices.Equal(form, lines) {
			continue
		}
		if !changed {
			normalised, changed = maps.Clone(req), true
		}
		normalised[name] = form
	}
	return normalised, changed
}

// normal returns the normal form of the lines of a field, lines itself if they have it. name is in
// canonical form. The normal form distinguishes variants, and the handler gets it. RFC 9111 section
// 4.1 allows any change that keeps the meaning:
//
//   - Space around a value has no meaning (RFC 9110 section 5.5), for any field.
//   - The lines of a list are one list, and space around its commas has no meaning (RFC 9110
//     sections 5.3 and 5.6.1), for all fields except known exceptions.
//   - Accept-Encoding ignores case, order and empty members (RFC 9110 section 12.5.3). Other fields
//     keep empty members: a handler may read only the first member.
//   - Accept-Language ignores case, and gets the usual case (RFC 5646 section 2.1.1), with which
//     handlers compare. Its order counts unless opt ignores it: RFC 9110 section 12.5.4 says that
//     some take it for a preference, and Go's own matcher does.
//
// Space within a member stays: "d e-DE" is no language, and not "de-DE".
func normal(name string, lines []string, opt Options) []string {
	if len(lines) == 0 {
		return nil
	}
	if name == KeyVariant { // no field: each byte counts
		return lines
	}
	if !isList(name) {
		padded := func(line string) bool { return strings.Trim(line, " \t") != line }
		if !slices.ContainsFunc(lines, padded) {
			return lines
		}
		trimmed := make([]string, len(lines))
		for i, line := range lines {
			trimmed[i] = strings.Trim(line, " \t")
		}
		return trimmed
	}
	// The lines are joined first, because a quoted string may begin in one and end in the next.
	line := strings.Join(lines, ", ")
	var members []string
	switch name {
	case "Accept-Encoding":
		members = acceptMembers(line, lowerASCII)
		members = slices.DeleteFunc(members, func(v string) bool { return v == "" })
		slices.Sort(members)
		members = slices.Compact(members)
	case "Accept-Language":
		members = acceptMembers(line, languageRange)
		if opt.AnyLanguageOrder {
			slices.Sort(members)
		}
	default:
		var few [8]string // a longer list has memory of its own
		members = appendMembers(few[:0], line)
	}
	// Without members it is an empty value: an empty field is not absent.
	if line = strings.Join(members, ", "); len(lines) > 1 || line != lines[0] {
		return []string{line}
	}
	return lines
}

// acceptMembers returns the normal form of the members of an Accept field without quoted strings. value
// normalises the part before the weight. The weight is in lower case (RFC 9110 section 12.4.2).
func acceptMembers(line string, value func(string) string) []string {
	members := strings.Split(line, ",")
	for i, member := range members {
		if strings.IndexByte(member, ';') < 0 { // the usual case
			members[i] = value(strings.Trim(member, " \t"))
			continue
		}
		parts := strings.Split(member, ";")
		for j, part := range parts {
			if part = strings.Trim(part, " \t"); j == 0 {
				parts[j] = value(part)
			} else {
				parts[j] = lowerASCII(part)
			}
		}
		members[i] = strings.Join(parts, ";")
	}
	return members
}

// languageRange returns a range in its usual case (RFC 5646 section 2.1.1): region DE, script Latn.
func languageRange(s string) string {
	subtags := strings.Split(lowerASCII(s), "-")
	for i, subtag := range subtags[1:] {
		switch {
		case len(subtags[i]) == 1: // a singleton: the rest is an extension
			return strings.Join(subtags, "-")
		case len(subtag) == 2:
			subtags[i+1] = upperASCII(subtag)
		case len(subtag) == 4:
			subtags[i+1] = upperASCII(subtag[:1]) + subtag[1:]
		}
	}
	return strings.Join(subtags, "-")
}

// isList reports whether a field may be a list. The fields below are no lists: a comma in them is
// an ordinary character, and a cookie is compared byte by byte.
func isList(name string) bool {
	switch name {
	case "Authorization", "Proxy-Authorization", "Cookie", "User-Agent", "Referer", "Origin",
		"From", "Host", "Range", "If-Range", "If-Modified-Since", "If-Unmodified-Since", "Date",
		"Content-Type":
		return false
	}
	return true
}

// Members yields the non-empty members of a list without quoted strings (RFC 9110 section 5.6.1).
func Members(lines []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, line := range lines {
			for member := range strings.SplitSeq(line, ",") {
				if member = strings.Trim(member, " \t"); member != "" && !yield(member) {
					return
				}
			}
		}
	}
}

// appendMembers appends the members of a list. A quoted comma is no separator (RFC 9110 section 5.6.1).
func appendMembers(members []string, line string) []string {
	start, quoted := 0, false
	for i := 0; i <= len(line); i++ {
		switch {
		case i == len(line), line[i] == ',' && !quoted:
			members = append(members, strings.Trim(line[start:i], " \t"))
			start = i + 1
		case line[i] == '"':
			quoted = !quoted
		case line[i] == '\\' && quoted && i+1 < len(line):
			i++
		}
	}
	return members
}

// lowerASCII is strings.ToLower for ASCII alone: strings.ToLower makes all bytes outside UTF-8 equal.
func lowerASCII(s string) string { return mapASCII(s, 'A', 'Z') }

func upperASCII(s string) string { return mapASCII(s, 'a', 'z') }

func mapASCII(s string, first, last byte) string {
	if strings.IndexFunc(s, func(c rune) bool { return rune(first) <= c && c <= rune(last) }) < 0 {
		return s
	}
	b := []byte(s)
	for i, c := range b {
		if first <= c && c <= last {
			b[i] = c ^ 0x20
		}
	}
	return string(b)
}
