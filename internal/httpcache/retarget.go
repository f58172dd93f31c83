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

// retargetingFields choose another scheme, host, port or path: those that proxies,
// gateways and frameworks document, and their usual spellings. What names the
// client, as X-Forwarded-For does, is not among them: responses that depend on
// it are not for sharing, and their origin has to say so.
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
	// begins has an entry for the beginning of each name. It saves looking most fields of
	// a request up in names.
	begins [256]bool
}

// beginning is the index of a name in begins.
func beginning(name string) byte {
	if len(name) < 2 {
		return 0
	}
	return name[0]*31 + name[1]
}

// NewRetargeting returns the set of the fields that are known here, and of more.
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

// retargeting is opt's set.
func (opt *Options) retargeting() *Retargeting {
	if opt.Retargeting != nil {
		return opt.Retargeting
	}
	return knownRetargeting
}

// methodFields choose another method.
var methodFields = []string{"X-Forwarded-Method", "X-Http-Method", "X-Http-Method-Override", "X-Method-Override", "X-Original-Method"}

// OverridesMethod tells whether a request asks to be taken for one of another
// method than its own. It may change things then, so that it has to reach the handler,
// and what answers it is no response to GET.
func OverridesMethod(method string, req http.Header) bool {
	for _, name := range methodFields {
		for _, value := range req[name] {
			if value = strings.ToUpper(value); value == http.MethodHead {
				value = http.MethodGet // which the cache answers alike
			}
			if value != "" && value != method && !(value == http.MethodGet && method == http.MethodHead) {
				return true
			}
		}
	}
	return false
}

// isAlias tells whether a field's name, with "-" for each "_", is that of a field
// above or of a condition. A gateway such as net/http/cgi makes one of the two.
func (t *Retargeting) isAlias(name string) bool {
	if !strings.Contains(name, "_") {
		return false
	}
	name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
	return t.names[name] || slices.Contains(methodFields, name) || slices.Contains(conditions, name)
}

// RemoveAliases removes from req what the handler may take for a field that is
// looked for here by its own name only. No honest client writes one so.
func (opt *Options) RemoveAliases(req http.Header) {
	t := opt.retargeting()
	remove(req, methodFields) // which say what the method is, or OverridesMethod
	maps.DeleteFunc(req, func(name string, _ []string) bool { return t.isAlias(name) })
}

// Aliased tells whether RemoveAliases would remove something.
func (opt *Options) Aliased(req http.Header) bool {
	t := opt.retargeting()
	for name := range req {
		if t.isAlias(name) {
			return true
		}
	}
	return false
}

// Retargeted tells whether a request has a field that may choose another
// target. Each hit asks.
func (opt *Options) Retargeted(req http.Header) bool {
	t := opt.retargeting()
	for name := range req {
		if t.begins[beginning(name)] && t.names[name] {
			return len(t.values(req)) > 0
		}
	}
	return false
}

// values returns the fields that may choose another target, in the order of their
// names, each with its name before each of its values.
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
