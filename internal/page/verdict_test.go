package page

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/httpcache"
)

func TestVerdict(t *testing.T) {
	const s = time.Second
	type row struct {
		name        string
		status      int
		cc          string
		fields      string // more response fields, "Name: value"
		credentials bool
		had, over   bool // the key has had a response for everyone; that response may no longer be served
		lost        bool
		ttl         time.Duration
		off         bool // failures have no pause
		want        audience.Audience
		pauses      bool
		checked     bool
		reason      string
		lifetime    time.Duration
	}
	for _, r := range []row{
		{name: "fresh", status: 200, cc: "max-age=60", want: audience.Everyone, lifetime: 60 * s},
		{name: "private", status: 200, cc: "private, max-age=60", want: audience.Owner, reason: "private", lifetime: 60 * s},
		{name: "private, and the key has had one for all", status: 200, cc: "private, max-age=60", had: true, ttl: s, want: audience.Owner, reason: "private", lifetime: 60 * s},
		{name: "no-store", status: 200, cc: "no-store", want: audience.Owner, reason: "no-store"},
		{name: "no freshness", status: 200, want: audience.Owner, reason: "no-lifetime"},
		{name: "the options' TTL", status: 200, ttl: 5 * s, want: audience.Everyone, lifetime: 5 * s},
		{name: "a cookie", status: 200, cc: "max-age=60", fields: "Set-Cookie: a=b", want: audience.Owner, reason: "set-cookie", lifetime: 60 * s},
		{name: "to be validated for each", status: 200, cc: "no-cache", fields: "Etag: \"1\"", want: audience.Owner, checked: true, reason: "not-fresh"},
		{name: "to credentials", status: 200, cc: "max-age=60", credentials: true, want: audience.Owner, reason: "authorization", lifetime: 60 * s},
		{name: "to credentials, for all", status: 200, cc: "public, max-age=60", credentials: true, want: audience.Everyone, lifetime: 60 * s},
		{name: "to credentials, for all, over, and a page is served", status: 200, cc: "public, max-age=0, stale-while-revalidate=9", credentials: true, had: true, want: audience.Owner, reason: "authorization"},
		{name: "to credentials, for all, over, and no page is served", status: 200, cc: "public, max-age=0, stale-while-revalidate=9", credentials: true, had: true, over: true, want: audience.Everyone},
		{name: "an error of a key of nobody knows whom", status: 503, want: audience.Alike, reason: "status-without-lifetime"},
		{name: "an error where TTL is set", status: 503, ttl: 60 * s, want: audience.Everyone, pauses: true, lifetime: 2 * s, reason: "status-without-lifetime"},
		{name: "an error where the key has had a response for all", status: 503, had: true, want: audience.Everyone, pauses: true, lifetime: 2 * s, reason: "status-without-lifetime"},
		{name: "an old error where TTL is set", status: 503, fields: "Age: 300", ttl: 60 * s, want: audience.Everyone, pauses: true, lifetime: 302 * s},
		{name: "an error where TTL is set, without pauses", status: 503, ttl: 60 * s, off: true, want: audience.Everyone, pauses: true},
		{name: "an error where TTL is set, and a Vary that nobody could find", status: 503, ttl: 60 * s, lost: true, want: audience.Owner, reason: "vary", lifetime: 2 * s},
		{name: "an error that says public", status: 500, cc: "public", want: audience.Everyone, pauses: true, lifetime: 2 * s},
		{name: "an error with its own freshness", status: 503, cc: "max-age=9", want: audience.Everyone, lifetime: 9 * s},
		{name: "an error with an Expires", status: 503, fields: "Expires: 0", want: audience.Everyone},
		{name: "a private error", status: 503, cc: "private", ttl: 60 * s, had: true, want: audience.Owner, reason: "private"},
		{name: "an error that is not to be stored", status: 503, cc: "no-store", ttl: 60 * s, had: true, want: audience.Owner, reason: "no-store"},
		{name: "an error to be validated for each", status: 503, cc: "no-cache", ttl: 60 * s, had: true, want: audience.Owner, reason: "status-without-lifetime"},
		{name: "events", status: 200, cc: "max-age=60", fields: "Content-Type: text/event-stream", want: audience.Owner, reason: "event-stream", lifetime: 60 * s},
		{name: "a header that is too large", status: 200, cc: "max-age=60", fields: "X-Large: " + strings.Repeat("x", maxHeader), want: audience.Owner, reason: "header too large", lifetime: 60 * s},
		{name: "a Vary that nobody could find", status: 200, cc: "max-age=60", lost: true, want: audience.Owner, reason: "vary", lifetime: 60 * s},
		{name: "to be validated for each, and a Vary that nobody could find", status: 200, cc: "no-cache", fields: "Etag: \"1\"", lost: true, want: audience.Owner, reason: "vary"},
		{name: "private, and a Vary that nobody could find", status: 200, cc: "private", lost: true, want: audience.Owner, reason: "private"},
	} {
		now := time.Now()
		h := http.Header{}
		if r.cc != "" {
			h.Set("Cache-Control", r.cc)
		}
		if name, value, ok := strings.Cut(r.fields, ": "); ok {
			h.Set(name, value)
		}
		req := httpcache.Request{Header: http.Header{}, Credentials: r.credentials}
		rules := httpcache.Options{DefaultLifetime: r.ttl, Retargeting: httpcache.NewRetargeting()}
		pause := 2 * s
		if r.off {
			pause = 0
		}
		got := facts{
			request: req, status: r.status, header: h, judged: httpcache.Judge(req, r.status, h, now, now, rules),
			had: r.had, servable: r.had && !r.over, shares: r.had || r.ttl > 0, lost: r.lost, pause: pause,
		}.verdict()
		if got.audience != r.want || (got.outcome == keepsChecked) != r.checked || got.pauses != r.pauses || got.freshness.Lifetime != r.lifetime || got.audience == audience.Owner && got.reason != r.reason {
			t.Errorf("%s: %+v, want audience %d, checked %t, pauses %t, lifetime %v, reason %q", r.name, got, r.want, r.checked, r.pauses, r.lifetime, r.reason)
		}
	}
}

func TestVerdict_Outcome(t *testing.T) {
	const all, alike, owner = audience.Everyone, audience.Alike, audience.Owner
	creds := httpcache.Request{Credentials: true}
	for name, test := range map[string]struct {
		facts   facts
		to      audience.Audience
		checked bool
		want    outcome
		answers audience.Audience
	}{
		"for all":                                {facts{status: 200}, all, false, keepsResponse, all},
		"to be validated for each":               {facts{status: 200}, owner, true, keepsChecked, all},
		"private":                                {facts{status: 200}, owner, false, keepsRecord, all},
		"private, to credentials":                {facts{status: 200, request: creds}, owner, false, keepsNothing, owner},
		"private, after one for all":             {facts{status: 200, had: true}, owner, false, keepsNothing, owner},
		"private again, after one for all":       {facts{status: 200, had: true, excluded: true}, owner, false, keepsRecord, all},
		"private again, behind a stale one":      {facts{status: 200, had: true, servable: true, excluded: true}, owner, false, keepsNothing, all},
		"an error for one client":                {facts{status: 500}, alike, false, keepsNothing, alike},
		"an error for one client again":          {facts{status: 500, excluded: true}, alike, false, keepsNothing, all},
		"a private error":                        {facts{status: 500}, owner, false, keepsNothing, owner},
		"an error for all":                       {facts{status: 500}, all, false, keepsResponse, all},
		"an error for all, behind a stale one":   {facts{status: 500, had: true, servable: true, spare: true}, all, false, yieldsToStale, all},
		"a private error, behind a stale one":    {facts{status: 500, had: true, servable: true, spare: true}, owner, false, yieldsToStale, owner},
		"an error of an open key":                {facts{status: 500, request: creds, had: true, open: true}, owner, false, failsForAll, owner},
		"an error of an open key, again":         {facts{status: 500, request: creds, had: true, open: true, excluded: true}, owner, false, failsForAll, owner},
		"an error for one client of an open key": {facts{status: 500, request: creds, had: true, open: true}, alike, false, keepsNothing, alike},
		"a 404 of an open key":                   {facts{status: 404, request: creds, had: true, open: true}, owner, false, keepsNothing, owner},
	} {
		got := test.facts.outcome(test.to, test.checked)
		if answers := test.facts.answers(test.to, got); got != test.want || answers != test.answers {
			t.Errorf("%s: outcome %d for the callers %d, want %d for %d", name, got, answers, test.want, test.answers)
		}
	}
}

func TestLoad_Failures(t *testing.T) {
	const now = 100 * time.Second
	held := func(res *Response, end instant) *Item {
		it := &Item{Kind: driver.KindValue, Value: res}
		it.Held, it.FreshUntil = true, end
		return it
	}
	failed := func(it *Item, n uint32, due instant) *Item {
		it.Failures, it.RetryAt = n, due
		return it
	}
	for name, test := range map[string]struct {
		item     *Item
		excluded bool
		want     uint32
	}{
		"nothing known":                          {nil, false, 1},
		"a page":                                 {held(&Response{status: 200}, 0), false, 1},
		"an error with a lifetime":               {held(&Response{status: 503}, 0), false, 1},
		"an error":                               {held(&Response{status: 503, failures: 3}, now), false, 4},
		"an error, in its pause":                 {held(&Response{status: 503, failures: 3}, now+1), false, 3},
		"an error for other requests of the URL": {held(&Response{status: 503, failures: 3}, now), true, 1},
		"a panic":                                {failed(&Item{}, 2, now), false, 3},
		"panics since the page":                  {failed(held(&Response{status: 200}, 0), 2, now), false, 3},
		"a panic since the error":                {failed(held(&Response{status: 503, failures: 3}, now-2), 1, now), false, 4},
		"a panic since the error, in its pause":  {failed(held(&Response{status: 503, failures: 3}, now-2), 1, now+1), false, 3},
		"a failure that is not remembered":       {failed(&Item{}, 1, 0), false, 1},
	} {
		l := &load{owner: &call{query: &query{target: target{needsVariant: test.excluded}}}, attempt: Attempt{Present: test.item}}
		if got := l.failures(now); got != test.want {
			t.Errorf("%s: the handler's failure is the %dth in a row, want the %dth", name, got, test.want)
		}
	}
}

// A request with credentials may ask about a response for everyone alone: another client's tag is none of its business.
func TestCondition_Credentials(t *testing.T) {
	for _, open := range []bool{true, false} {
		res := &Response{status: 200, fields: fieldsOf(http.Header{"Etag": {`"e"`}}), openToAll: open}
		if asks := new(Middleware).condition(res, httpcache.Request{Credentials: true}); (asks != nil) != open {
			t.Errorf("open to all: %v, condition %v", open, asks)
		}
	}
}
