package httpcache

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

// This file knows the request fields by which frameworks and proxies take a
// request for another than it is. They are in no key and in few Varys, so that
// whoever sends one could have a response built for the target in it, and
// handed to those who asked for the target in the request.

// RetargetingFields stands for all such fields among the names that a response
// varies by. A response to a request that has one is a variant for requests
// that have the same. It is no field's name, so no Vary has it.
const RetargetingFields = "(retargeting)"

// retargetingFields choose another scheme, host, port or path. What names the
// client, as X-Forwarded-For does, is not among them: responses that depend on
// it are not for sharing, and their origin has to say so.
var retargetingFields = []string{
	"Cf-Visitor", "Cloudfront-Forwarded-Proto", "Forwarded", "Front-End-Https", "X-Arr-Ssl", "X-Envoy-Original-Path",
	"X-Forwarded-Host", "X-Forwarded-Path", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded-Proto",
	"X-Forwarded-Protocol", "X-Forwarded-Scheme", "X-Forwarded-Server", "X-Forwarded-Ssl", "X-Forwarded-Uri", "X-Host",
	"X-Http-Host-Override", "X-Original-Host", "X-Original-Uri", "X-Original-Url", "X-Replaced-Path", "X-Rewrite-Url",
	"X-Scheme", "X-Script-Name", "X-Url-Scheme",
}

// methodFields choose another method.
var methodFields = []string{"X-Forwarded-Method", "X-Http-Method", "X-Http-Method-Override", "X-Method-Override", "X-Original-Method"}

// OverridesMethod tells whether a request asks to be taken for one of another
// method. It may change things then, so that it has to reach the handler, and
// what answers it is no response to GET.
func OverridesMethod(req http.Header) bool {
	for _, name := range methodFields {
		if req[name] != nil {
			return true
		}
	}
	return false
}

// isAlias tells whether a field's name, with "-" for each "_", is that of a field
// above or of a condition. A gateway such as net/http/cgi makes one of the two.
func isAlias(name string) bool {
	if !strings.Contains(name, "_") {
		return false
	}
	name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
	return slices.Contains(retargetingFields, name) || slices.Contains(methodFields, name) || slices.Contains(conditions, name)
}

// RemoveAliases removes from req what the handler may take for a field that is
// looked for here by its own name only. No honest client writes one so.
func RemoveAliases(req http.Header) {
	maps.DeleteFunc(req, func(name string, _ []string) bool { return isAlias(name) })
}

// Aliased tells whether RemoveAliases would remove something.
func Aliased(req http.Header) bool {
	for name := range req {
		if isAlias(name) {
			return true
		}
	}
	return false
}

// Retargeted tells whether a request has a field that may choose another
// target. Each hit asks, so it looks at the few fields that a request has.
func Retargeted(req http.Header) bool {
	for name := range req {
		switch name[:min(2, len(name))] {
		case "X-", "Fo", "Fr", "Cf", "Cl": // as the fields above begin
			if slices.Contains(retargetingFields, name) {
				return len(retargeting(req)) > 0
			}
		}
	}
	return false
}

// retargeting returns the fields that may choose another target, each with its
// name before each of its values.
func retargeting(req http.Header) []string {
	var values []string
	for _, name := range retargetingFields {
		for _, line := range req[name] {
			if name == "Forwarded" {
				line = forwardedTarget(line)
				if line == "" {
					continue
				}
			}
			values = append(values, name+":"+line)
		}
	}
	return values
}

// forwardedTarget returns of a Forwarded (RFC 7239 section 4) what is about the
// target. The rest is about the client and the proxies on its way, unless it has
// another "=", which no node's name has: some look for "host=" wherever it is.
// Quotes are not looked into: at worst a line that has separators in quotes is
// another variant.
func forwardedTarget(line string) string {
	var parts []string
	for part := range strings.FieldsFuncSeq(line, func(r rune) bool { return r == ',' || r == ';' }) {
		part = strings.ToLower(strings.Trim(part, " \t"))
		if client := strings.HasPrefix(part, "for=") || strings.HasPrefix(part, "by="); !client || strings.Count(part, "=") > 1 {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ";")
}
