package page

import (
	"net/http"
	"time"

	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file says who may have a response, before anybody gets a byte of it.

// A verdict says who may have a response.
type verdict struct {
	audience  audience.Audience // what only everyone may have is kept
	checked   bool              // it is kept for validation: it answers a request if the handler says that it holds
	reason    string            // why it is not for all; for Cache-Status
	freshness httpcache.Freshness
}

// facts are all that a verdict depends on.
type facts struct {
	request  httpcache.Request // that the handler was run for
	status   int
	header   http.Header         // canonical
	judged   httpcache.Judgement // by RFC 9111
	had      bool                // the key has had a response for all
	servable bool                // which may still be served, if only because loads fail
	lost     bool                // by its Vary the response needs a key that no request could find
	ttl      time.Duration       // HTTPOptions.TTL
	errorTTL time.Duration       // HTTPOptions.ErrorTTL
}

// verdict decides.
func (f facts) verdict() verdict {
	v := verdict{audience.Owner, f.judged.Checked, f.judged.Reason, f.judged.Freshness}
	if f.judged.Shared {
		v.audience = audience.Everyone
	}
	if f.unplannedError() {
		// A broken origin must not get a request from each client of a herd. Where the
		// key's responses are for all, so is the error: it answers the requests that
		// wait for it and those that come within ErrorTTL. Elsewhere the error may be
		// about the client that it was made for: it answers the waiting requests of
		// that client. It has no windows, because no response falls back on an error.
		// ErrorTTL counts from now, whatever age the response has. The directive
		// public says that the error is for all, and not for how long.
		v.audience, v.freshness = audience.Alike, httpcache.Freshness{}
		if f.judged.Directives.Public || f.ttl > 0 || f.had {
			v.audience, v.freshness.Lifetime = audience.Everyone, f.judged.Age+max(0, f.errorTTL)
		}
	}
	if reason := f.withheld(v.freshness); reason != "" && (v.audience != audience.Owner || v.checked) {
		v.audience, v.checked, v.reason = audience.Owner, false, reason
	}
	return v
}

// unplannedError reports whether the response is a server's error that says nothing of its own
// freshness, and nothing against being shared.
func (f facts) unplannedError() bool {
	permitted := f.judged.Shared || f.judged.Reason == httpcache.ReasonStatusNoLifetime || f.judged.Reason == httpcache.ReasonNotFresh
	return permitted && httpcache.IsServerError(f.status) && f.judged.Freshness.Source < httpcache.SourceExpires && !f.judged.Freshness.NoCache
}

// withheld is why a response that others could have is its owner's alone, "" if it is not.
func (f facts) withheld(fresh httpcache.Freshness) string {
	switch {
	case isEventStream(f.header):
		return reasonEventStream
	case f.request.Credentials && f.servable && fresh.Lifetime <= f.judged.Age:
		return reasonAuthorization // one client's response that is over ends no page that others are served
	case headerBytes(f.header) > maxHeader:
		return "header too large"
	case f.lost:
		return "vary"
	}
	return ""
}
