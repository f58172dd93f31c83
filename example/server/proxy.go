package main

import (
	"errors"
	"fmt"
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

// This file connects to the upstream.

// newProxy returns a handler that asks the upstream.
//
// The upstream gets its own Host, because many upstreams know only their own name. X-Forwarded-Host (if the
// client asked for a name), -Proto and -For describe the client. The proxy drops the client's fields of these
// names: they are not in the key, so one client could choose the answer for all. X-Forwarded-For names the
// client whose request began the rebuild: an answer by it must be private.
//
// An upstream that does not answer, or answers with an invalid status, is a 502. The cache hands it to all
// waiting clients, or serves a stale response. A broken body is a panic with http.ErrAbortHandler, by which
// the cache recognises it.
func newProxy(upstream *url.URL, quiet *repeats) (*httputil.ReverseProxy, *http.Transport) {
	transport := &http.Transport{
		// No Proxy: the environment must not decide about the upstream. No compression of our own:
		// the client's Accept-Encoding decides, and the upstream's Vary distinguishes the variants.
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   5 * time.Second,
		ExpectContinueTimeout: time.Second,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true,
		// A herd for private pages needs a connection for each request, again and again.
		MaxIdleConnsPerHost: 1024,
		IdleConnTimeout:     90 * time.Second,
		// All requests share an HTTP/2 connection, which is never idle under load. Behind a router that has
		// forgotten it, the kernel ends it after some 15 minutes, and each request before would time out.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
	}
	proxy := &httputil.ReverseProxy{
		Transport: newTwice(transport),
		Rewrite: func(r *httputil.ProxyRequest) {
			// Over a connection that has switched to h2c, the client's next requests would reach
			// the upstream unseen by the cache and by this proxy.
			if strings.Contains(strings.ToLower(strings.Join(r.In.Header["Upgrade"], ",")), "h2c") {
				for _, name := range []string{"Connection", "Upgrade", "Http2-Settings"} {
					r.Out.Header.Del(name)
				}
			}
			r.Out.URL.RawQuery = r.In.URL.RawQuery // also an unparsable query, which the key has too
			r.SetURL(upstream)
			r.SetXForwarded()
			if r.In.Host == noName || r.In.Host == "" { // requested by address, or by HTTP/1.0
				r.Out.Header.Del("X-Forwarded-Host")
			}
		},
		// net/http's server panics on such a status.
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode < 100 || r.StatusCode > 999 {
				return fmt.Errorf("the response has the invalid status %03d", r.StatusCode)
			}
			return nil
		},
		FlushInterval: -1, // flush every write: clients read streams while they grow
		ErrorLog:      quiet.logger("upstream body"),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			// Otherwise no client waits, or the page is being rebuilt.
			if r.Context().Err() == nil || errors.Is(err, bellwether.ErrRebuildTimeout) {
				quiet.warn("upstream", "upstream does not answer", "upstream", upstream.Redacted(), "err", err)
			}
			http.Error(w, http.StatusText(http.StatusBadGateway), http.StatusBadGateway)
		},
	}
	return proxy, transport
}

// A twice repeats a request over a new connection if a kept, perhaps closed, connection ends without an
// answer. net/http would repeat it over each kept HTTP/1 connection of an upstream that drops the request.
type twice struct {
	kept, fresh *http.Transport
	// http1: the last answer came over HTTP/1, and so may have the kept connections. There are none before it.
	http1 atomic.Bool
}

func newTwice(kept *http.Transport) *twice {
	fresh := kept.Clone()
	fresh.DisableKeepAlives = true
	return &twice{kept: kept, fresh: fresh}
}

// RoundTrip implements [http.RoundTripper].
func (t *twice) RoundTrip(r *http.Request) (*http.Response, error) {
	switch {
	case r.Body != nil && r.Body != http.NoBody || !repeatable(r):
		return t.kept.RoundTrip(r) // net/http repeats only a request of which nothing was sent
	case r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions:
		// These requests are few. With the body below they would lose their Content-Length of 0.
		return t.fresh.RoundTrip(r)
	}
	var reused atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused.Store(info.Reused) }}
	once := r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
	if t.http1.Load() {
		// net/http repeats no request with a body of an unknown type. HTTP/1 finds the body empty, but HTTP/2 would
		// announce it: to the upstream the request would have content, and a cache there would not answer it.
		once.Body = struct{ io.ReadCloser }{http.NoBody}
	}
	resp, err := t.kept.RoundTrip(once)
	if err == nil {
		t.http1.Store(resp.ProtoMajor == 1)
	}
	switch {
	case err == nil || !reused.Load():
		return resp, err
	case errors.Is(err, bellwether.ErrRebuildTimeout):
		// The other kept connections may be as silent, and each would cost a rebuild.
		t.kept.CloseIdleConnections()
		return nil, err
	case r.Context().Err() != nil:
		return nil, err
	}
	return t.fresh.RoundTrip(r)
}

// repeatable reports whether net/http repeats a sent request.
func repeatable(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil
}

// refuseTunnel answers a CONNECT. The proxy would ask the upstream for a tunnel to the upstream itself.
func refuseTunnel(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, http.StatusText(http.StatusNotImplemented), http.StatusNotImplemented)
}
