package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether"
)

// This file is the way to the upstream.

// newProxy returns a handler that asks the upstream.
//
// The upstream gets its own Host, because many sites have an upstream that knows
// itself by one name only; X-Forwarded-Host (if the client asked for a name),
// -Proto and -For tell of the client.
// Those that the client sent itself are dropped: they are not part of the
// cache's key, and would let one client choose what all get. X-Forwarded-For
// names the client whose request began the rebuild, so an upstream must not
// answer by it, unless it says that the answer is private.
//
// An upstream that does not answer is a 502, which the cache hands to all who
// wait, or has a stale response for. A body that breaks off ends in the panic
// with http.ErrAbortHandler that the cache knows a broken body by.
func newProxy(upstream *url.URL, quiet *repeats) (*httputil.ReverseProxy, *http.Transport) {
	transport := &http.Transport{
		// No Proxy: whether the upstream is reached must not hang on the
		// environment. No compression of our own: the client's Accept-Encoding
		// decides, and the upstream's Vary tells the variants apart.
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   5 * time.Second,
		ExpectContinueTimeout: time.Second,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true,
		// A herd that is let through together, each to its own private page,
		// needs a connection each, and the next herd needs them again.
		MaxIdleConnsPerHost: 1024,
		IdleConnTimeout:     90 * time.Second,
	}
	proxy := &httputil.ReverseProxy{
		Transport: newTwice(transport),
		Rewrite: func(r *httputil.ProxyRequest) {
			// Over a connection that has changed to h2c, the client's next requests would
			// reach the upstream, and neither the cache nor this proxy would see them.
			if strings.Contains(strings.ToLower(strings.Join(r.In.Header["Upgrade"], ",")), "h2c") {
				for _, name := range []string{"Connection", "Upgrade", "Http2-Settings"} {
					r.Out.Header.Del(name)
				}
			}
			r.Out.URL.RawQuery = r.In.URL.RawQuery // also of what does not parse: it is in the key
			r.SetURL(upstream)
			r.SetXForwarded()
			if r.In.Host == noName { // it was asked for by address
				r.Out.Header.Del("X-Forwarded-Host")
			}
		},
		FlushInterval: -1, // every write at once: streams are read while they grow
		ErrorLog:      quiet.logger("upstream body"),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			// Else nobody waits for it any more, or it is made anew.
			if r.Context().Err() == nil || errors.Is(err, bellwether.ErrRebuildTimeout) {
				quiet.warn("upstream", "upstream does not answer", "upstream", upstream.Redacted(), "err", err)
			}
			http.Error(w, http.StatusText(http.StatusBadGateway), http.StatusBadGateway)
		},
	}
	return proxy, transport
}

// A twice asks the upstream once more, over a new connection, if a kept connection ends
// without an answer: the upstream may have closed the connection while nothing was sent.
// net/http does so for each connection that it keeps, and an upstream that drops each
// request would get the request from all of them.
type twice struct{ kept, fresh http.RoundTripper }

func newTwice(kept *http.Transport) twice {
	fresh := kept.Clone()
	fresh.DisableKeepAlives = true
	return twice{kept, fresh}
}

// RoundTrip implements [http.RoundTripper].
func (t twice) RoundTrip(r *http.Request) (*http.Response, error) {
	switch {
	case r.Body != nil && r.Body != http.NoBody || !repeatable(r):
		return t.kept.RoundTrip(r) // which repeats only a request of which nothing was sent
	case r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions:
		// With a body of another type, see below, it would not say that its length is 0. They are few.
		return t.fresh.RoundTrip(r)
	}
	var reused atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused.Store(info.Reused) }}
	once := r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
	once.Body = struct{ io.ReadCloser }{http.NoBody} // net/http repeats no request that has a body of a type it does not know
	resp, err := t.kept.RoundTrip(once)
	if err == nil || !reused.Load() || r.Context().Err() != nil {
		return resp, err
	}
	return t.fresh.RoundTrip(r)
}

// repeatable reports whether net/http repeats a request that has been sent.
func repeatable(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil
}
