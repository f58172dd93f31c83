package main

import (
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
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
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
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
