package httpcache

import (
	"net/http"
	"strings"
	"time"
)

// This file puts the rules together into the one question that is asked of
// every response: who may have it, and for how long.

// A Judgement is what a response's header says about its use.
type Judgement struct {
	Directives Directives
	Freshness  Freshness
	// Age is the response's age when it was received.
	Age time.Duration
	// Shared tells whether others than its own client may have the response. If
	// not, Reason says why in a word or two.
	Shared bool
	Reason string
	// Checked tells of a response that is not Shared whether it may be stored for
	// validation: it answers each request for which the origin says that it still
	// holds, and no other (RFC 9111 section 5.2.2.4).
	Checked bool
}

// The reasons that Judge adds to storable's.
const (
	ReasonNoLifetime = "no-lifetime"
	ReasonNotFresh   = "not-fresh"
)

// Judge judges the response to a GET that was sent at sent and answered at received.
func Judge(req Request, status int, resp http.Header, sent, received time.Time, opt Options) Judgement {
	return JudgeAged(req, status, resp, InitialAge(resp, sent, received), received, opt)
}

// JudgeAged is Judge for a response whose age its own header does not tell: what a
// 304 has freshened is as old as that (see [Freshen]).
func JudgeAged(req Request, status int, resp http.Header, age time.Duration, received time.Time, opt Options) Judgement {
	j := Judgement{Directives: ResponseDirectives(resp, opt.Targets...), Age: age}
	j.Freshness = freshnessOf(status, resp, j.Directives, received, opt)
	j.Shared, j.Reason = storable(req, status, resp, j.Directives, opt)
	// A redirect needs a lifetime, which the rule may give. Other statuses that need one are
	// about the client more often than not: 401 and 403.
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
		// Nobody has said that it is for everybody, nor for how long.
		j.Shared, j.Reason = false, ReasonNoLifetime
	case !j.Freshness.shareable(j.Age):
		j.Shared, j.Reason = false, ReasonNotFresh
		j.Checked = Validatable(status, resp) && ValidatedFor(req, resp, opt)
	}
	return j
}

// OpenToAll tells whether a stored response may answer a request with
// Authorization, too. RFC 9111 section 3.5 restricts only the storing of
// responses to such requests; but an origin that answers them differently and
// does not say so with Vary is met more often than one that means it, so they
// get only what says by itself that it is for all.
func OpenToAll(resp http.Header, opt Options) bool {
	d := ResponseDirectives(resp, opt.Targets...)
	return d.openToAll()
}

// ValidatedFor tells whether a 304 to the request proves that a stored response holds for
// the request's client. A page that depends on the Cookie often has the Last-Modified of
// its template, and a 304 about the template says nothing about the client. So for a
// request with a Cookie the response must say public or s-maxage, and for one with
// credentials that it is for all. RFC 9111 section 4.3.3 asks for neither.
func ValidatedFor(req Request, resp http.Header, opt Options) bool {
	d := ResponseDirectives(resp, opt.Targets...)
	if req.Credentials {
		return d.openToAll()
	}
	return req.Header["Cookie"] == nil || d.Public || d.SMaxAge.Set
}

// Validatable tells whether a stored response can be validated (RFC 9111 section
// 4.3.1). Conditions count only where the answer would be a success (RFC 9110 section
// 13.2.1): a 304 to one about an error is about the page that has come back.
func Validatable(status int, resp http.Header) bool {
	return status < 300 && (resp.Get("ETag") != "" || resp.Get("Last-Modified") != "")
}

// PostStorable tells whether the response to a POST may be stored as that of a
// GET for the same target (RFC 9110 section 9.3.3): it says explicitly how long
// it is fresh, and names the target in Content-Location. j is Judge's word on it
// as the response to a GET.
func PostStorable(r *http.Request, status int, resp http.Header, j Judgement) bool {
	if r.Method != http.MethodPost || status != http.StatusOK || !j.Shared || j.Freshness.Source < SourceExpires {
		return false
	}
	if len(resp["Vary"]) > 0 || len(resp["Set-Cookie"]) > 0 {
		// A cookie in the answer to a POST is that client's; and the variant would
		// be that of the POST's fields, which are about its body as much as about
		// the answer.
		return false
	}
	own, ok := keyBehind("", r)
	if !ok || len(resp["Content-Location"]) != 1 {
		return false
	}
	location := resp.Get("Content-Location")
	if secure(r) && strings.HasPrefix(strings.ToLower(location), "http:") {
		return false // of the plain URL
	}
	named, ok := referenced(r, location)
	return ok && named == own
}
