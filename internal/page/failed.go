package page

import (
	"context"
	"errors"
	"net/http"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/observe"
)

// This file answers a request whose rebuild has failed, or that has waited in vain.

// replyError answers a request whose rebuild failed, or that waited in vain. s is its
// answer as far as it has one.
func (q *query) replyError(c *call, key string, s Answer, err error) {
	w, r := q.w, q.r
	if spare := q.spared(key); spare != nil {
		status := httpcache.Status{Hit: true} // as far as is known: others may have failed before
		if c.began() {
			status = failedForward(spare, q.m.cache.Now(), err)
		}
		q.replySpare(key, spare, status)
		return
	}
	q.add(observe.Serve{Err: err})
	p, panicked := errors.AsType[*fault.PanicError](err)
	if panicked && c.began() && !s.Collapsed { // and not of a later flight, which another has begun
		panic(p.Value) // to its own client's server, as if nothing stood between
	}
	code, detail := http.StatusBadGateway, "failed"
	switch {
	case panicked: // whatever error with
	case r.Context().Err() != nil && errors.Is(err, context.Canceled):
		// Nobody is there; or the server is being shut down under its clients.
		code, detail = http.StatusServiceUnavailable, "cancelled"
	case errors.Is(err, fault.ErrWaitTimeout):
		if q.m.through.TryAcquire(1) {
			defer q.m.through.Release(1)
			q.pass(httpcache.Status{Fwd: httpcache.FwdMiss, Detail: waitedTooLong})
			return
		}
		code, detail = http.StatusServiceUnavailable, waitedTooLong
	case errors.Is(err, fault.ErrClosed):
		code, detail = http.StatusServiceUnavailable, "closed"
	case errors.Is(err, fault.ErrOverloaded):
		code, detail = http.StatusServiceUnavailable, "overloaded"
	case errors.Is(err, context.DeadlineExceeded):
		q.m.tooSlow(key, s.Item, err)
		code, detail = http.StatusGatewayTimeout, "timeout"
	}
	status := httpcache.Status{Fwd: httpcache.FwdURIMiss, Collapsed: s.Collapsed, Detail: detail}
	if it, now := q.m.cache.Near(key); it != nil && it.BackingOff(now) {
		replyRetry(w, status, code, it.RetryAt-now)
		return
	}
	replyFailure(w, status, code)
}

// waitedTooLong is the detail for those whom MaxWait has run out for.
const waitedTooLong = "waited too long"

// tooSlow remembers of a key that its rebuild took longer than RebuildTimeout, if it has
// never had a response for all: its handler may answer whoever waits for longer. They count
// against PassThrough, since an origin that has become slow must not get them all.
func (m *Middleware) tooSlow(key string, failed *Item, err error) {
	if m.options.PassThrough > 0 && errors.Is(err, fault.ErrRebuildTimeout) && failed != nil && failed.Failures > 0 && !failed.Held {
		m.replace(key, failed, &Response{kind: uncacheable, reason: reasonSlow}, m.uncacheableFor(m.options.RebuildTimeout))
	}
}
