package page

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/observe"
)

// This file is the replies to a query: what is stored, something stale in the place of an error,
// and the cache's own refusals.

// reply answers with a complete response: from the near tier, or from a flight
// that has ended.
func (q *query) reply(key string, s Answer) {
	res, now := s.Item.Value, q.m.cache.Now()
	q.add(observe.Serve{Way: s.Item.Way(now)})
	here := loadedHere(s)
	failed := s.Flown && s.Item.Failures > 0
	status := httpcache.Status{Hit: true}
	switch {
	case here && failed:
		status = failedForward(s.Item, now, s.Item.Err)
		status.Collapsed = s.Collapsed
	case here:
		status = httpcache.Status{Fwd: res.fwd, FwdStatus: res.fwdStatus, Stored: true, Collapsed: s.Collapsed, Key: q.m.statusKey(key)}
	}
	if failed {
		status.Detail = staleIfError
	}
	status.TTL = ttl(s.Item, now)
	writeStored(q.w, q.r, q.m.storedOf(key, s.Item, now), status)
}

// statusKey is the key as Cache-Status tells it, if it does.
func (m *Middleware) statusKey(key string) string {
	if m.options.HideStatusKey {
		return ""
	}
	return key
}

// loadedHere reports whether the answer, or its failure, is of a load here: it was
// not found in the store, and not refused.
func loadedHere(s Answer) bool {
	return s.Flown && s.Item.Made > 0 && !errors.Is(s.Item.Err, fault.ErrOverloaded)
}

// staleIfError is the detail where something stale is served in the place of an
// error (RFC 5861 section 4).
const staleIfError = "stale-if-error"

// replySpare answers with something stale in the place of an error. status tells of
// the way to the error.
func (q *query) replySpare(key string, it *Item, status httpcache.Status) {
	q.add(observe.Serve{Way: observe.WayStale})
	q.m.cache.CountStale()
	now := q.m.cache.Now()
	status.TTL, status.Detail = ttl(it, now), staleIfError
	writeStored(q.w, q.r, q.m.storedOf(key, it, now), status)
}

// notCached ends a request for what is stored alone (RFC 9111 section 5.2.1.7).
func (q *query) notCached() {
	q.add(observe.Serve{Way: observe.WayMiss})
	replyNotCached(q.w)
}

// replyNotCached answers a request that wants no other answer than a stored one.
func replyNotCached(w http.ResponseWriter) {
	replyFailure(w, httpcache.Status{Detail: "only-if-cached"}, http.StatusGatewayTimeout)
}

// replyFailure answers with an error of the cache's own, which nobody is to keep. A client
// that finds no room may come again in a second.
func replyFailure(w http.ResponseWriter, status httpcache.Status, code int) {
	retry := time.Duration(0)
	if code == http.StatusServiceUnavailable {
		retry = time.Second
	}
	replyRetry(w, status, code, retry)
}

// replyRetry is replyFailure for a client that is to come again after some time; 0: it is not
// known when.
func replyRetry(w http.ResponseWriter, status httpcache.Status, code int, retry time.Duration) {
	status.AppendTo(w.Header())
	w.Header().Set("Cache-Control", "no-store")
	if retry > 0 { // in whole seconds (RFC 9110 section 10.2.3), and not before it is time
		w.Header().Set("Retry-After", strconv.FormatInt(int64((retry+time.Second-1)/time.Second), 10))
	}
	http.Error(w, http.StatusText(code), code)
}

// failedForward is the word about a request that has gone to the handler although
// it was stored, and that failed with err.
func failedForward(it *Item, now instant, err error) httpcache.Status {
	status := httpcache.Status{Fwd: forwardDespite(it, now)}
	if e, ok := errors.AsType[serverError](err); ok {
		status.FwdStatus = int(e)
	}
	return status
}
