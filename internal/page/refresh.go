package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file refreshes a page on demand: a request of the cache's own goes through the handler as a
// client's does, and its reply says how the refresh has ended.

// refreshKey is the context key of a *refresh.
type refreshKey struct{}

// A refresh is one call of [Middleware.Refresh] on its way to the cache.
type refresh struct {
	m       *Middleware
	arrived atomic.Bool // the request has reached the cache
}

// refreshOf returns the refresh whose request r is, nil for the request of a client. The handler runs with
// the values of r's context, and its own requests may have them: only the first request that reaches m
// is the refresh's.
func (m *Middleware) refreshOf(r *http.Request) *refresh {
	asked, _ := r.Context().Value(refreshKey{}).(*refresh)
	if asked == nil || asked.m != m || !asked.arrived.CompareAndSwap(false, true) {
		return nil
	}
	return asked
}

// Refresh has the response to r made again, and returns when the new response is stored. h is
// the handler that m wraps, or one around it.
func (m *Middleware) Refresh(h http.Handler, r *http.Request) error {
	failed := func(err error) error { return fmt.Errorf("bellwether: refreshing %.200q: %w", r.URL, err) }
	if r.Method != "" && r.Method != http.MethodGet {
		return failed(fmt.Errorf("the method is %q, and only a GET can be refreshed", r.Method))
	}
	asked := &refresh{m: m}
	own := r.Clone(context.WithValue(r.Context(), refreshKey{}, asked))
	own.Method, own.Body, own.ContentLength = http.MethodGet, http.NoBody, 0
	if own.Header == nil {
		own.Header = make(http.Header)
	}
	httpcache.RemoveConditions(own.Header)
	w := &refreshWriter{header: make(http.Header)}
	if err := fault.Guard(func() error { h.ServeHTTP(w, own); return nil }); err != nil {
		return failed(err)
	}
	if err := r.Context().Err(); err != nil {
		return failed(err)
	}
	if !asked.arrived.Load() {
		return failed(fmt.Errorf("the handler has answered with status %d without the cache; it must be one that Middleware.Handler has returned, or lead to it", w.status))
	}
	if err := w.outcome(); err != nil {
		return failed(err)
	}
	return nil
}

// A refreshWriter takes the reply to a refresh, and keeps its header alone.
type refreshWriter struct {
	header http.Header
	status int
}

func (w *refreshWriter) Header() http.Header { return w.header }

func (w *refreshWriter) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
		w.header = w.header.Clone() // the handler may go on to change the other
	}
}

func (w *refreshWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return len(b), nil
}

// FlushError has nothing to send.
func (w *refreshWriter) FlushError() error { return nil }

// outcome reads the reply's Cache-Status (RFC 9211 section 2). It returns nil if the response was stored, here
// or by another process meanwhile, else why it was not.
func (w *refreshWriter) outcome() error {
	if httpcache.IsServerError(w.status) {
		return fmt.Errorf("the handler has answered with status %d", w.status)
	}
	ours := ""
	for _, member := range w.header["Cache-Status"] {
		if strings.HasPrefix(member, "Bellwether;") {
			ours = member
		}
	}
	_, detail, _ := strings.Cut(ours, ";detail=")
	said, _, _ := strings.Cut(ours, ";key=")
	said, _, _ = strings.Cut(said, ";detail=")
	switch {
	case detail == staleIfError:
		return errors.New("the handler has failed, and the stored response stays")
	case strings.Contains(said, ";hit"), strings.Contains(said, ";stored"):
		return nil
	case detail != "":
		return fmt.Errorf("the response is not stored: %s", detail)
	}
	return errors.New("the response is not stored")
}
