package page

import (
	"net/http"
	"time"

	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file decides the audience of a response, and the outcome of its load, before any client gets a byte of it.

type verdict struct {
	audience  audience.Audience // the clients that may read the response
	answers   audience.Audience // the callers that end their wait now; outside the audience they ask the handler themselves
	outcome   outcome
	reason    string // why the response is not for everyone; for Cache-Status
	pauses    bool   // the response is a server error, and its lifetime is the pause after it
	freshness httpcache.Freshness
}

// An outcome is the rest of a load after the handler's header. All but the first two end the load at once, while
// the handler goes on.
type outcome uint8

const (
	keepsResponse outcome = iota // the load goes on to the body's end, and the cache keeps the response, for Everyone
	keepsChecked                 // the same, for validation alone: the handler must confirm the response for each request
	keepsRecord                  // the cache keeps a record that the key is uncacheable
	keepsNothing
	failsForAll   // the load fails for all callers; only the owner reads the error's text, which may be about it
	yieldsToStale // the load fails, and the callers get the stored response in place of the error
)

// keeps reports whether the cache keeps the response.
func (o outcome) keeps() bool { return o <= keepsChecked }

// facts are the whole input of a verdict.
type facts struct {
	request  httpcache.Request // the request that the handler was run for
	status   int
	header   http.Header         // canonical
	judged   httpcache.Judgement // by RFC 9111
	had      bool                // the key has had a response for everyone
	servable bool                // the cache may still serve that response, at least when loads fail
	spare    bool                // the cache may serve that response in place of an error
	open     bool                // the key's responses answer requests with credentials, as this one
	shares   bool                // load.sharesByDefault
	excluded bool                // the owner was outside the audience of an earlier load
	lost     bool                // no request could find the response by its Vary
	pause    time.Duration       // until the next try, if the response is a failure
}

func (f facts) verdict() verdict {
	v := verdict{audience: audience.Owner, reason: f.judged.Reason, freshness: f.judged.Freshness}
	validates := f.judged.Checked
	if f.judged.Shared {
		v.audience = audience.Everyone
	}
	if f.unplannedError() {
		// A broken origin must not get a request from each client of a herd. If the key's responses are for
		// everyone, or the error is public, it answers all requests in the pause, which counts from now,
		// not by Age. Otherwise it may be about its client, and answers only that client's waiting requests.
		// It has no stale windows, because no response falls back on an error.
		v.audience, v.freshness = audience.Alike, httpcache.Freshness{}
		if f.judged.Directives.Public || f.shares {
			v.audience, v.pauses, v.freshness.Lifetime = audience.Everyone, true, durations.Add(f.judged.Age, f.pause)
		}
	}
	if reason := f.withheld(v.freshness); reason != "" && (v.audience != audience.Owner || validates) {
		v.audience, validates, v.pauses, v.reason = audience.Owner, false, false, reason
	}
	v.outcome = f.outcome(v.audience, validates)
	v.answers = f.answers(v.audience, v.outcome)
	return v
}

// outcome returns the outcome of a response for an audience, which validates if it may be kept for validation. Errors
// and responses to credentials prove nothing about other clients, and make no key uncacheable. An earlier response for
// everyone stays while the cache may serve it, and then until a second load brings a response for one client alone.
func (f facts) outcome(to audience.Audience, validates bool) outcome {
	failed := httpcache.IsServerError(f.status)
	switch {
	case failed && f.spare:
		return yieldsToStale
	case to == audience.Everyone:
		return keepsResponse
	case validates:
		return keepsChecked
	case failed && f.open && to == audience.Owner:
		return failsForAll
	case !failed && !f.request.Credentials && (!f.had || !f.servable && f.excluded):
		return keepsRecord
	}
	return keepsNothing
}

// answers returns the callers that end their wait with a response for an audience. A first private page or error
// sends no caller outside its audience to the handler: the next response may be for everyone.
func (f facts) answers(to audience.Audience, o outcome) audience.Audience {
	if o == keepsChecked || o == keepsRecord || o == keepsNothing && f.excluded {
		return audience.Everyone
	}
	return to
}

// unplannedError reports whether the response is a shareable server error without its own freshness.
func (f facts) unplannedError() bool {
	permitted := f.judged.Shared || f.judged.Reason == httpcache.ReasonStatusNoLifetime || f.judged.Reason == httpcache.ReasonNotFresh
	return permitted && httpcache.IsServerError(f.status) && f.judged.Freshness.Source < httpcache.SourceExpires && !f.judged.Freshness.NoCache
}

// withheld returns why a shareable response is for its owner alone, or "".
func (f facts) withheld(fresh httpcache.Freshness) string {
	switch {
	case isEventStream(f.header):
		return reasonEventStream
	case f.request.Credentials && f.servable && fresh.Lifetime <= f.judged.Age:
		return reasonAuthorization // an expired response to credentials must not end a served page
	case headerBytes(f.header) > maxHeader:
		return "header too large"
	case f.lost:
		return "vary"
	}
	return ""
}
