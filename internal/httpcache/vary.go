package httpcache

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"iter"
	"net/http"
	"slices"
	"strings"
)

// This file tells the variants of a response apart: which request fields they
// depend on, and which requests get the same one.

// maxVary is about how many bytes of names a response may vary by.
const maxVary = 2 << 10

// VaryNames returns the names in Vary (RFC 9110 section 12.5.5) in lower case,
// sorted, each once. It returns false if no other request can match: for a "*"
// anywhere in it (RFC 9111 section 4.1), for what is no field name, of which
// nobody knows what it asks for, and for more than maxVary bytes, which are too
// much to be looked up for each request.
func VaryNames(h http.Header) (names []string, ok bool) {
	n := 0
	for name := range Members(h["Vary"]) {
		if n += len(name); name == "*" || n > maxVary {
			return nil, false
		}
		if token, rest := cutToken(name); token == "" || rest != "" {
			return nil, false
		}
		names = append(names, strings.ToLower(name))
	}
	slices.Sort(names)
	return slices.Compact(names), true
}

// JoinNames returns the names of all lists, sorted, each once. It returns false if they are
// longer, in sum, than the names that a response may vary by.
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

// VariantKey returns a key for the variant that req selects among those that
// depend on the named fields. Two requests have the same key if, and but for
// collisions of SHA-256 only if, each of these fields matches (RFC 9111
// section 4.1): has the same normal form. Without names the key is empty. The key is a
// hash of fixed length: a name may be Cookie, whose value is long and secret.
//
// The names are as VaryNames returns them. Host is not in a server's request
// header, but in [Key]; a Vary on it matches always, which is for callers to know
// who give several hosts one key.
func VariantKey(names []string, req http.Header, opt Options) string {
	if len(names) == 0 {
		return ""
	}
	sum := sha256.Sum256(selection(names, req, opt))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// selection is the names and the normal form of their values, each with its length, so
// that no two selections have the same bytes.
func selection(names []string, req http.Header, opt Options) (b []byte) {
	appendString := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, name := range names {
		appendString(name)
		var values []string
		if name == RetargetingFields {
			values = opt.retargeting().values(req)
		} else {
			name = http.CanonicalHeaderKey(name)
			values = normal(name, req[name], opt)
		}
		// No value is an absent field, which matches only an absent one; an
		// empty field has one value.
		b = binary.AppendUvarint(b, uint64(len(values)))
		for _, v := range values {
			appendString(v)
		}
	}
	return b
}

// Normalise gives each field of req its normal form. A handler that gets req sees the same
// values in two requests with the same [VariantKey], in the fields that the key is made of.
func Normalise(req http.Header, opt Options) {
	for name, lines := range req {
		req[name] = normal(name, lines, opt)
	}
}

// normal returns the normal form of the lines of a field, lines itself if they have it. The
// field's name is in canonical form. Variants are told apart by the normal form, and the
// handler gets it. RFC 9111 section 4.1 allows any change that keeps the meaning:
//
//   - space around a value means nothing (RFC 9110 section 5.5), for any field;
//   - the lines of a list are one list, and space around its commas means nothing (RFC
//     9110 sections 5.3 and 5.6.1), for fields not known to be anything but a list;
//   - Accept-Encoding ignores case, order and empty members (RFC 9110 section
//     12.5.3); the empty members of others are kept: a handler may take the first
//     for all there is;
//   - Accept-Language ignores case, and gets the usual one (RFC 5646 section 2.1.1),
//     which handlers compare with. Its order is kept unless opt says otherwise: RFC 9110
//     section 12.5.4 says that some take it for a preference, and Go's own matcher does.
//
// Space within a member stays: "d e-DE" is no language, and not "de-DE".
func normal(name string, lines []string, opt Options) []string {
	if len(lines) == 0 {
		return nil
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
	// The lines are joined first: a quoted string may begin in one line and end in the
	// next, and the handler sees the whole.
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
		members = appendMembers(nil, line)
	}
	// Without members it is an empty value: a field that is empty is not absent.
	if line = strings.Join(members, ", "); len(lines) > 1 || line != lines[0] {
		return []string{line}
	}
	return lines
}

// acceptMembers returns the members, in normal form, of an Accept field that has no quoted
// strings. value makes the normal form of the part before the weight. The weight is in lower
// case, and its ";" has no space around it (RFC 9110 section 12.4.2).
func acceptMembers(line string, value func(string) string) []string {
	members := strings.Split(line, ",")
	for i, member := range members {
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

// languageRange is a language range in its usual case (RFC 5646 section 2.1.1): regions in
// upper case, such as DE, scripts as in Latn, and all else in lower case.
func languageRange(s string) string {
	subtags := strings.Split(lowerASCII(s), "-")
	for i, subtag := range subtags[1:] {
		switch {
		case len(subtags[i]) == 1: // a singleton: what follows is an extension
			return strings.Join(subtags, "-")
		case len(subtag) == 2:
			subtags[i+1] = upperASCII(subtag)
		case len(subtag) == 4:
			subtags[i+1] = upperASCII(subtag[:1]) + subtag[1:]
		}
	}
	return strings.Join(subtags, "-")
}

// isList tells whether a field may be a list: the fields here are known not to
// be, so that a comma in them is an ordinary character. What looks alike in
// them is not the same: a cookie is compared byte by byte.
func isList(name string) bool {
	switch name {
	case "Authorization", "Proxy-Authorization", "Cookie", "User-Agent", "Referer", "Origin",
		"From", "Host", "Range", "If-Range", "If-Modified-Since", "If-Unmodified-Since", "Date",
		"Content-Type", KeyVariant:
		return false
	}
	return true
}

// Members yields the members, but for empty ones, of a list whose members have no
// quoted strings, such as one of names (RFC 9110 section 5.6.1).
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

// appendMembers appends the members of the list in line, the empty ones too. A
// comma in a quoted-string separates nothing (RFC 9110 section 5.6.1).
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

// lowerASCII is strings.ToLower for the letters that codings are made of. Other
// bytes stay as they are: strings.ToLower makes all that are not UTF-8 one.
func lowerASCII(s string) string { return mapASCII(s, 'A', 'Z') }

// upperASCII is strings.ToUpper for the same letters.
func upperASCII(s string) string { return mapASCII(s, 'a', 'z') }

// mapASCII changes the case of the letters from first to last.
func mapASCII(s string, first, last byte) string {
	b := []byte(s)
	for i, c := range b {
		if first <= c && c <= last {
			b[i] = c ^ 0x20
		}
	}
	return string(b)
}
