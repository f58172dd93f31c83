package page

import (
	"net/http"
	"time"

	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file decides the audience of a response before any client gets a byte of it.

type verdict struct {
	audience  audience.Audience // the cache keeps a response for Everyone
	checked   bool              // the cache keeps the response for validation: the handler must confirm it for each request
	reason    string            // why the response is not for everyone; for Cache-Status
	pauses    bool              // the response is a server error, and its lifetime is the pause after it
	freshness httpcache.Freshness
}

// facts are the whole input of a verdict.
type facts struct {
	request  httpcache.Request // the request that the handler was run for
	status   int
	header   http.Header         // canonical
	judged   httpcache.Judgement // by RFC 9111
	had      bool                // the key has had a response for everyone
	servable bool                // the cache may still serve that response, at least when loads fail
	lost     bool                // no request could find the response by its Vary
	ttl      time.Duration       // HTTPOptions.TTL
	pause    time.Duration       // until the next try, if the response is a failure
}

func (f facts) verdict() verdict {
	v := verdict{audience: audience.Owner, checked: f.judged.Checked, reason: f.judged.Reason, freshness: f.judged.Freshness}
	if f.judged.Shared {
		v.audience = audience.Everyone
	}
	if f.unplannedError() {
		// A broken origin must not get a request from each client of a herd. If the key's responses are for
		// everyone, or the error is public, it answers all requests in the pause, which counts from now,
		// not by Age. Otherwise it may be about its client, and answers only that client's waiting requests.
		// It has no stale windows, because no response falls back on an error.
		v.audience, v.freshness = audience.Alike, httpcache.Freshness{}
		if f.judged.Directives.Public || f.ttl > 0 || f.had {
			v.audience, v.pauses, v.freshness.Lifetime = audience.Everyone, true, durations.Add(f.judged.Age, f.pause)
		}
	}
	if reason := f.withheld(v.freshness); reason != "" && (v.audience != audience.Owner || v.checked) {
		v.audience, v.checked, v.pauses, v.reason = audience.Owner, false, false, reason
	}
	return v
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
