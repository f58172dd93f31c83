package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file refreshes a page on demand: a request of the cache's own goes through the handler as a
// client's does. The answer that the request gets in the cache says how the refresh has ended. The
// reply does not say so: other handlers write to it too, and it begins before the response is stored.

type refreshKey struct{}

// A refresh is one call of [Middleware.Refresh] on its way to the cache.
type refresh struct {
	m       *Middleware
	arrived atomic.Bool   // the request has reached the cache
	done    chan struct{} // closed when the request has its reply; then the fields below do not change
	target  target
	answer  Answer // the last one on the request's way; zero: the request has bypassed the cache
}

// refreshOf returns the refresh with the request r, nil for a client's request. The handler's own
// requests may have the values of r's context: only the first request that reaches m is the refresh's.
func (m *Middleware) refreshOf(r *http.Request) *refresh {
	asked, _ := r.Context().Value(refreshKey{}).(*refresh)
	if asked == nil || asked.m != m || !asked.arrived.CompareAndSwap(false, true) {
		return nil
	}
	return asked
}

// Refresh has the response to r made again and stored. h is the handler that m wraps, or one around it.
func (m *Middleware) Refresh(h http.Handler, r *http.Request) error {
	failed := func(err error) error { return fmt.Errorf("bellwether: refreshing %.200q: %w", r.URL, err) }
	if r.Method != "" && r.Method != http.MethodGet {
		return failed(fmt.Errorf("the method is %q, and only a GET can be refreshed", r.Method))
	}
	if h == nil {
		return failed(errors.New("Refresh needs the handler that Middleware.Handler has returned, or one around it"))
	}
	asked := &refresh{m: m, done: make(chan struct{})}
	own := r.Clone(context.WithValue(r.Context(), refreshKey{}, asked))
	own.Method, own.Body, own.ContentLength = http.MethodGet, http.NoBody, 0
	if own.Header == nil {
		own.Header = make(http.Header)
	}
	httpcache.RemoveConditions(own.Header)
	w := &headWriter{header: make(http.Header)}
	if err := fault.Guard(func() error { h.ServeHTTP(w, own); return nil }); err != nil {
		return failed(err)
	}
	w.WriteHeader(http.StatusOK) // as net/http, if the handler has written nothing
	if err := r.Context().Err(); err != nil {
		return failed(err)
	}
	if !asked.arrived.Load() {
		return failed(fmt.Errorf("the handler has answered with status %d without the cache; it must be one that Middleware.Handler has returned, or lead to it", w.status))
	}
	select {
	case <-asked.done: // later than the reply behind http.TimeoutHandler
	case <-r.Context().Done():
		return failed(r.Context().Err())
	}
	if err := asked.outcome(r.Context(), w); err != nil {
		return failed(err)
	}
	return nil
}

// outcome returns nil if the next client gets the new response, even another process's, else why not.
func (asked *refresh) outcome(ctx context.Context, w *headWriter) error {
	it, err := asked.answer.Item, error(nil)
	if live := asked.answer.Live; live != nil { // the reply was complete before the response was stored
		it, err = live.Landing(ctx)
	}
	now := asked.m.cache.Now()
	switch {
	case err != nil:
		return err
	case it != nil && it.Failures > 0:
		return fmt.Errorf("the handler has failed, and a stored response stays: %w", it.Err)
	case it == nil || it.Kind != driver.KindValue || responseOf(it).kind != plain && responseOf(it).kind != varying:
		return fmt.Errorf("the response is not stored: the handler has answered with %s", describe(w))
	case !it.Fresh(now) && !it.Stale(now), !asked.m.servableBy(asked.target, func(key string) *Item { return asked.m.find(ctx, key) }):
		return fmt.Errorf("the response may not be served again: it has no freshness, or was invalidated meanwhile; the handler has answered with %s", describe(w))
	}
	return nil
}

// describe describes a reply, with the fields that decide about the storage of a response.
func describe(w *headWriter) string {
	return fmt.Sprintf("status %d, Cache-Status %q, Cache-Control %q", w.status, w.sent["Cache-Status"], w.sent["Cache-Control"])
}
