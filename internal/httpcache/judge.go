package httpcache

import (
	"net/http"
	"strings"
	"time"
)

// This file joins the rules into one answer about a response: whether it is shared, and for how long.

// A Judgement is the meaning of a response's header for its use.
type Judgement struct {
	Directives Directives
	Freshness  Freshness
	// Age is the response's age when it was received.
	Age time.Duration
	// Shared reports whether other clients may have the response. If not, Reason is a word or two.
	Shared bool
	Reason string
	// Checked: a response that is not Shared may be stored for validation: it answers only a
	// request for which the origin confirms it (RFC 9111 section 5.2.2.4).
	Checked bool
}

// Stored reports whether a cache may store anything of the response.
func (j Judgement) Stored() bool { return j.Shared || j.Checked }

// The reasons that Judge adds to storable's.
const (
	ReasonNoLifetime = "no-lifetime"
	ReasonNotFresh   = "not-fresh"
)

// Judge judges the response to a GET that was sent at sent and answered at received.
func Judge(req Request, status int, resp http.Header, sent, received time.Time, opt Options) Judgement {
	return JudgeAged(req, status, resp, InitialAge(resp, sent, received), received, opt)
}

// JudgeAged is Judge with the age of a 304 that has freshened the response (see [Freshen]).
func JudgeAged(req Request, status int, resp http.Header, age time.Duration, received time.Time, opt Options) Judgement {
	j := Judgement{Directives: ResponseDirectives(resp, opt.Targets...), Age: age}
	j.Freshness = freshnessOf(status, resp, j.Directives, received, opt)
	j.Shared, j.Reason = storable(req, status, resp, j.Directives, j.Freshness, opt)
	// A redirect needs a lifetime, which the rule may give. Other statuses that need a lifetime,
	// such as 401 and 403, are usually about the client.
	unsaid := j.Reason == ReasonStatusNoLifetime && status < 400
	if !j.Shared && !unsaid {
		return j
	}
	j.Freshness = j.Freshness.ruled(req, status, resp, j.Age, opt)
	if unsaid {
		if j.Freshness.Source < SourceRule {
			return j
		}
		j.Shared, j.Reason = true, ""
	}
	switch {
	case j.Freshness.Source == SourceNone && !j.Directives.Public && !j.Directives.NoCache:
		// The response states neither its audience nor a lifetime.
		j.Shared, j.Reason = false, ReasonNoLifetime
	case !j.Freshness.shareable(j.Age),
		j.Freshness.Lifetime == 0 && statesZero(resp, j.Directives, received) && !openToCookies(req, j.Directives):
		j.Shared, j.Reason = false, ReasonNotFresh
		j.Checked = Validatable(status, resp) && ValidatedFor(req, resp, opt)
	}
	return j
}

// openToCookies reports whether a response that is not fresh may be for other clients than the request's: the
// request has no Cookie, or the response states that it is for a shared cache.
func openToCookies(req Request, d Directives) bool {
	return req.Header["Cookie"] == nil || d.Public || d.SMaxAge.Set
}

// StatesZero reports whether a stored response states a lifetime of zero and no stale window. Handlers send
// max-age=0 and "Expires: 0" with pages that are not to be shared. RFC 9111 would let waiting requests share them.
func StatesZero(resp http.Header, opt Options) bool {
	return statesZero(resp, ResponseDirectives(resp, opt.Targets...), time.Time{}) // it has a Date
}

func statesZero(resp http.Header, d Directives, received time.Time) bool {
	f := freshnessOf(http.StatusOK, resp, d, received, Options{})
	return f.Source >= SourceExpires && f.Lifetime == 0 && f.StaleWhileRevalidate == 0 && f.StaleIfError == 0
}

// ValidatedFor reports whether a 304 to the request proves a stored response valid for the request's
// client. A page that depends on the Cookie often has the Last-Modified of its template, and the 304
// is about the template. So a request with a Cookie needs a response with public or s-maxage, and a
// request with credentials a response for everyone. RFC 9111 section 4.3.3 does not require this.
func ValidatedFor(req Request, resp http.Header, opt Options) bool {
	d := ResponseDirectives(resp, opt.Targets...)
	if req.Credentials {
		return d.OpenToAll()
	}
	return openToCookies(req, d)
}

// Validatable reports whether a stored response can be validated (RFC 9111 section 4.3.1). Conditions
// count only for successes (RFC 9110 section 13.2.1): a 304 about an error is about the recovered page.
func Validatable(status int, resp http.Header) bool {
	return status < 300 && (resp.Get("ETag") != "" || resp.Get("Last-Modified") != "")
}

// PostStorable reports whether a POST's response may be stored for GETs of its target (RFC 9110 section
// 9.3.3): with an explicit lifetime, and the target in Content-Location. j judges it as a GET's. page has
// the key of the response, which must be the target's.
func PostStorable(r, page *http.Request, status int, resp http.Header, j Judgement) bool {
	if r.Method != http.MethodPost || status != http.StatusOK || !j.Shared || j.Freshness.Source < SourceExpires {
		return false
	}
	if len(resp["Vary"]) > 0 || len(resp["Set-Cookie"]) > 0 {
		// A cookie in the answer to a POST belongs to its client. And the variant would be one of
		// the POST's fields, which describe its body as well as the wanted answer.
		return false
	}
	own, _ := keyBehind("", r)
	if key, _ := keyBehind("", page); key != own || len(resp["Content-Location"]) != 1 {
		return false
	}
	location := resp.Get("Content-Location")
	if secure(page) && strings.HasPrefix(strings.ToLower(location), "http:") {
		return false // of the plain URL
	}
	get, ok := referenced(r, page, location)
	if !ok {
		return false
	}
	named, _ := keyBehind("", get)
	return named == own
}
