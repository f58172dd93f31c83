package httpcache

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

// This file has the request fields by which frameworks and proxies replace a request's target. No
// URL key and few Varys contain them. Without this file a client could have a response built for
// another target, and clients of the request's own target would get it.

// RetargetingFields is the name, among Vary names, of all retargeting fields. A response to a request
// with such a field is a variant for requests with the same field values. No field has the name.
const RetargetingFields = "(retargeting)"

// retargetingFields choose another scheme, host, port or path: the fields that proxies, gateways and
// frameworks document, and their usual spellings. Fields about the client, such as X-Forwarded-For,
// are left out: a response that depends on them is not shareable, and its origin must state so.
var retargetingFields = []string{
	"$wsis", "$wssc", "$wssn", "$wssp", "Cf-Visitor", "Cloudfront-Forwarded-Proto", "Fastly-Ssl", "Forwarded",
	"Front-End-Https", "Host-Override", "Ssl-Offloaded", "Wl-Proxy-Ssl", "X-App-Base-Path", "X-Appengine-Https",
	"X-Arr-Ssl", "X-Auth-Request-Redirect", "X-Base-Path", "X-Base-Uri", "X-Base-Url", "X-Basepath", "X-Client-Scheme",
	"X-Client-Ssl", "X-Context-Path", "X-Couchdb-Requested-Path", "X-Couchdb-Vhost-Path", "X-Envoy-Original-Dst-Host",
	"X-Envoy-Original-Host", "X-Envoy-Original-Path", "X-External-Host", "X-External-Path", "X-External-Port",
	"X-External-Scheme", "X-External-Uri", "X-External-Url", "X-Forwarded-Authority", "X-Forwarded-Base",
	"X-Forwarded-Base-Path", "X-Forwarded-Base-Url", "X-Forwarded-Basepath", "X-Forwarded-Context",
	"X-Forwarded-Context-Path", "X-Forwarded-Domain", "X-Forwarded-Host", "X-Forwarded-Hostname",
	"X-Forwarded-Http-Host", "X-Forwarded-Https", "X-Forwarded-Original-Host", "X-Forwarded-Original-Path",
	"X-Forwarded-Original-Uri", "X-Forwarded-Path", "X-Forwarded-Path-Base", "X-Forwarded-Pathbase", "X-Forwarded-Port",
	"X-Forwarded-Prefix", "X-Forwarded-Proto", "X-Forwarded-Protocol", "X-Forwarded-Query", "X-Forwarded-Request-Uri",
	"X-Forwarded-Root", "X-Forwarded-Scheme", "X-Forwarded-Script-Name", "X-Forwarded-Server", "X-Forwarded-Server-Port",
	"X-Forwarded-Ssl", "X-Forwarded-Subpath", "X-Forwarded-Tls", "X-Forwarded-Uri", "X-Forwarded-Url", "X-Host",
	"X-Host-Override", "X-Http-Host", "X-Http-Host-Override", "X-Https", "X-Ingress-Path", "X-Invoke-Path",
	"X-Invoke-Query", "X-Matched-Path", "X-Middleware-Rewrite", "X-Now-Route-Matches", "X-Original-Base-Path",
	"X-Original-Forwarded-Host", "X-Original-Forwarded-Proto", "X-Original-Host", "X-Original-Path",
	"X-Original-Path-Base", "X-Original-Pathbase", "X-Original-Port", "X-Original-Prefix", "X-Original-Proto",
	"X-Original-Protocol", "X-Original-Request-Uri", "X-Original-Scheme", "X-Original-Uri", "X-Original-Url", "X-Path",
	"X-Path-Info", "X-Path-Prefix", "X-Prefix", "X-Proto", "X-Protocol", "X-Proxy-Host", "X-Proxy-Path", "X-Proxy-Port",
	"X-Proxy-Prefix", "X-Proxy-Scheme", "X-Proxy-Url", "X-Proxycontextpath", "X-Proxyhost", "X-Proxyport",
	"X-Proxyscheme", "X-Public-Host", "X-Public-Url", "X-Real-Host", "X-Real-Proto", "X-Real-Scheme", "X-Replaced-Path",
	"X-Request-Host", "X-Request-Path", "X-Request-Scheme", "X-Request-Uri", "X-Request-Url", "X-Rewrite-Uri",
	"X-Rewrite-Url", "X-Root-Path", "X-Root-Url", "X-Rstudio-Request", "X-Rstudio-Root-Path", "X-Scheme",
	"X-Script-Name", "X-Server-Host", "X-Server-Name", "X-Server-Port", "X-Ssl", "X-Uri", "X-Url", "X-Url-Prefix",
	"X-Url-Scheme", "X-Virtual-Host", "X-Waws-Unencoded-Url",
}

// Retargeting is a set of fields that choose another target. It is immutable.
type Retargeting struct {
	names map[string]bool
	// begins has the beginnings of the names. It saves most fields of a request the lookup in names.
	begins [256]bool
}

func beginning(name string) byte {
	if len(name) < 2 {
		return 0
	}
	return name[0]*31 + name[1]
}

// NewRetargeting returns the set of the known fields and of more.
func NewRetargeting(more ...string) *Retargeting {
	t := &Retargeting{names: make(map[string]bool)}
	for _, name := range slices.Concat(retargetingFields, more) {
		name = http.CanonicalHeaderKey(name)
		t.names[name] = true
		t.begins[beginning(name)] = true
	}
	return t
}

var knownRetargeting = NewRetargeting()

func (opt *Options) retargeting() *Retargeting {
	if opt.Retargeting != nil {
		return opt.Retargeting
	}
	return knownRetargeting
}

var methodFields = []string{"X-Forwarded-Method", "X-Http-Method", "X-Http-Method-Override", "X-Method-Override", "X-Original-Method"}

// OverridesMethod reports whether a request asks for another method than its own. Such a request
// may change state, so it must reach the handler, and its answer is no response to GET.
func OverridesMethod(method string, req http.Header) bool {
	for _, name := range methodFields {
		for _, value := range req[name] {
			if value != "" && !strings.EqualFold(value, method) {
				return true
			}
		}
	}
	return false
}

// aliased returns the canonical name for which a gateway such as net/http/cgi takes a field's name with
// a "_". Empty: the name has none.
func aliased(name string) string {
	if !strings.Contains(name, "_") {
		return ""
	}
	return http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
}

// isAlias reports whether name is an alias of a retargeting field, a method field, a condition, Range, a
// deadline, or a credential.
func (opt *Options) isAlias(name string) bool {
	name = aliased(name)
	return name != "" && (opt.retargeting().names[name] || slices.Contains(methodFields, name) ||
		slices.Contains(conditions, name) || slices.Contains(deadlines, name) || slices.Contains(opt.Credentials, name))
}

// RemoveAliases removes the fields from req that a handler may mistake for a field that this
// package looks up by its own name only. No honest client sends such a field.
func (opt *Options) RemoveAliases(req http.Header) {
	remove(req, methodFields) // their method is the request's own, see OverridesMethod
	maps.DeleteFunc(req, func(name string, _ []string) bool { return opt.isAlias(name) })
}

// Retargeted reports whether a request has a field that may choose another target. Each hit calls it.
func (opt *Options) Retargeted(req http.Header) bool {
	t := opt.retargeting()
	for name := range req {
		if t.begins[beginning(name)] && t.names[name] {
			return len(t.values(req)) > 0
		}
	}
	return false
}

// values returns the fields that may choose another target, sorted by name, each value with its name.
func (t *Retargeting) values(req http.Header) []string {
	var names []string
	for name := range req {
		if t.begins[beginning(name)] && t.names[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var values []string
	for _, name := range names {
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

// forwardedTarget returns the parts of a Forwarded field (RFC 7239 section 4) about the target, not about
// client and proxies. A part with a second "=", which no node name has, counts: some readers look for "host="
// anywhere. Quotes are ignored: at worst separators in quotes make another variant.
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
