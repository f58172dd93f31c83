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

// VariantKey returns a key for the variant that req selects among those that
// depend on the named fields. Two requests have the same key if, and but for
// collisions of SHA-256 only if, each of these fields matches (RFC 9111
// section 4.1). Without names the key is empty. The key is a hash of fixed
// length: a name may be Cookie, whose value is long and secret.
//
// The names are as VaryNames returns them. Host is not in a server's request
// header, but in [Key]; a Vary on it matches always, which is for callers to know
// who give several hosts one key.
func VariantKey(names []string, req http.Header) string {
	if len(names) == 0 {
		return ""
	}
	sum := sha256.Sum256(selection(names, req))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// selection is the names and their normalised values, each with its length, so
// that no two selections have the same bytes.
func selection(names []string, req http.Header) (b []byte) {
	appendString := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, name := range names {
		appendString(name)
		var values []string
		if name == RetargetingFields {
			values = retargeting(req)
		} else {
			values = normalised(name, req.Values(name))
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

// normalised returns a field's values in the form in which they are compared.
// RFC 9111 section 4.1 allows whatever does not change their meaning:
//
//   - space around a value means nothing (RFC 9110 section 5.5), for any field;
//   - lines of a list are one list, which is how the handler gets it, see
//     JoinLists, and space around its commas means nothing (RFC 9110 sections 5.3
//     and 5.6.1), for fields not known to be anything but a list;
//   - Accept-Encoding ignores case, order and empty members (RFC 9110 section
//     12.5.3); the empty members of others are kept: a handler may take the first
//     for all there is;
//   - Accept-Language ignores case. Its order is kept: RFC 9110 section
//     12.5.4 says that some take it for a preference, and Go's own matcher does.
func normalised(name string, lines []string) []string {
	if len(lines) == 0 {
		return nil
	}
	if !isList(name) {
		values := make([]string, len(lines))
		for i, line := range lines {
			values[i] = strings.Trim(line, " \t")
		}
		return values
	}
	values := make([]string, 0, len(lines))
	for _, line := range lines {
		values = appendMembers(values, line)
	}
	switch name {
	case "accept-encoding", "accept-language":
		for i, v := range values {
			v = lowerASCII(v)
			v = strings.ReplaceAll(v, " ", "")
			values[i] = strings.ReplaceAll(v, "\t", "")
		}
	}
	if name == "accept-encoding" {
		values = slices.DeleteFunc(values, func(v string) bool { return v == "" })
		slices.Sort(values)
		values = slices.Compact(values)
	}
	if len(values) == 0 {
		values = append(values, "") // present and empty is not absent
	}
	return values
}

// isList tells whether a field may be a list: the fields here are known not to
// be, so that a comma in them is an ordinary character. What looks alike in
// them is not the same: a cookie is compared byte by byte.
func isList(name string) bool {
	switch name {
	case "authorization", "proxy-authorization", "cookie", "user-agent", "referer", "origin",
		"from", "host", "range", "if-range", "if-modified-since", "if-unmodified-since", "date",
		"content-type":
		return false
	}
	return true
}

// JoinLists makes one line of each list that came in several (RFC 9110 section
// 5.3). A handler that looks at the first line only, as http.Header's Get does,
// then sees what the key was made of.
func JoinLists(h http.Header) {
	for name, lines := range h {
		if len(lines) > 1 && isList(strings.ToLower(name)) {
			h[name] = []string{strings.Join(lines, ", ")}
		}
	}
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
func lowerASCII(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// UnorderedLanguages returns req with the members of Accept-Language in an
// order of their own, so that [VariantKey] ignores the client's; req itself if
// there is nothing to sort. By RFC 9110 section 12.5.4 the order cannot be relied
// upon, but many a server does: it is for those to choose who know theirs.
func UnorderedLanguages(req http.Header) http.Header {
	values := normalised("accept-language", req["Accept-Language"])
	if len(values) < 2 {
		return req
	}
	slices.Sort(values)
	sorted := maps.Clone(req)
	sorted["Accept-Language"] = []string{strings.Join(values, ",")}
	return sorted
}
