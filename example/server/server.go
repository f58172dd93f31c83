package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"
)

// This file assembles the parts and runs them: router and middleware, engines, and an orderly end.

const (
	// drainTime bounds a shutdown's wait for requests, stopTime all: the process ends within five seconds.
	drainTime = 4 * time.Second
	stopTime  = 4500 * time.Millisecond
)

// A server is a running process.
type server struct {
	config   config
	log      *slog.Logger
	cache    *bellwether.Middleware
	metrics  *prometheus.Registry // of cache
	addr     net.Addr             // of the listener
	started  time.Time
	draining atomic.Bool
}

// run serves until ctx ends, and then shuts down within stopTime. The error is why it could not serve.
func run(ctx context.Context, c config, log *slog.Logger) error {
	// First, so a taken port ends the program before it has done anything.
	listener, err := net.Listen("tcp", c.addr)
	if err != nil {
		return fmt.Errorf("-addr: %w", err)
	}
	defer listener.Close()
	var adminListener net.Listener
	if c.admin != "" {
		if adminListener, err = net.Listen("tcp", c.admin); err != nil {
			return fmt.Errorf("-admin: %w", err)
		}
		defer adminListener.Close()
	}

	quiet := newRepeats(log)
	engines, err := connect(c)
	if err != nil {
		return err
	}
	watch := newLookout(log, engines.remote)
	engines.join(&c.cache.Fleet)
	c.cache.OnError = func(_ string, err error) {
		if errors.Is(err, bellwether.ErrUnavailable) {
			watch.raise()
		}
		quiet.warn(kindOf(err), "cache error", "err", err)
	}
	s := &server{
		config: c, log: log, addr: listener.Addr(), started: time.Now(),
	}
	s.cache, s.metrics = newCache(c.cache)
	site := s.site(quiet)

	failed := make(chan error, 2)
	front := newHTTPServer(s.router(site), log)
	front.RegisterOnShutdown(site.drain)
	go func() { failed <- front.Serve(listener) }()
	back := newHTTPServer(s.adminRouter(), log)
	if adminListener != nil {
		go func() { failed <- back.Serve(adminListener) }()
	}
	watching, endWatch := context.WithCancel(context.WithoutCancel(ctx))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		engines.warm(watching)
		watch.run(watching)
	}()
	log.Info("listening", "addr", listener.Addr(), "store", c.store, "locker", c.locker, "upstream", name(c), "pid", os.Getpid())
	if adminListener != nil {
		log.Info("admin listening", "addr", adminListener.Addr())
	}

	select {
	case err = <-failed: // too early: Shutdown has not been called
	case <-ctx.Done():
	}

	s.draining.Store(true)
	deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	began := time.Now()
	log.Info("draining", "at_most", drainTime)
	s.drain(deadline, front)

	// The rest calls engines, which may hang.
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		endWatch()
		<-watched
		s.cache.Close() // before the engines, which get the leases back
		engines.close()
		site.close()
	}()
	select {
	case <-stopped:
	case <-deadline.Done():
		log.Warn("an engine hangs: leaving without closing it")
	}
	back.Close() // last, so /healthz answers 503 until then
	log.Info("stopped", "took", time.Since(began).Round(time.Millisecond))
	return err
}

// drain waits for the running requests, and cuts off requests that take longer than drainTime.
func (s *server) drain(ctx context.Context, front *http.Server) {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	if err := front.Shutdown(ctx); err != nil {
		s.log.Warn("cutting off requests that still run")
		front.Close()
	}
}

// name describes the site for readers of the log.
func name(c config) string {
	if c.upstream == nil {
		return "demo"
	}
	return c.upstream.String()
}

// newHTTPServer returns a server for slow and hostile clients. Without a WriteTimeout streams may last.
func newHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// A site is the cached site. drain ends endless responses. close comes after the last request.
type site struct {
	routes func(chi.Router)
	drain  func()
	close  func()
}

// site returns the upstream, or the demo pages if there is none.
func (s *server) site(quiet *repeats) site {
	if s.config.upstream == nil {
		pen := newPen()
		return site{
			routes: func(r chi.Router) { demo(r, pen) },
			drain:  pen.audience.end,
			close:  pen.close,
		}
	}
	proxy, transport := newProxy(s.config.upstream, quiet)
	return site{
		routes: func(r chi.Router) {
			r.Handle("/*", proxy)
			r.Connect("/*", refuseTunnel)
			r.MethodNotAllowed(proxy.ServeHTTP) // methods that chi does not know
		},
		drain: func() {},
		close: transport.CloseIdleConnections,
	}
}

// router puts the cache in front of the site.
func (s *server) router(site site) http.Handler {
	r := chi.NewRouter()
	if s.config.upstream == nil {
		// Another site's page must not press the live page's buttons. The protection is before nameHost,
		// which changes the name with which an Origin is compared. An upstream has rules of its own.
		r.Use(http.NewCrossOriginProtection().Handler)
	}
	r.Use(nameHost)
	r.Use(s.cache.Handler)
	r.Use(middleware.GetHead) // behind the cache: for a HEAD past the cache
	site.routes(r)
	return r
}

// noName is the Host of requests to an address.
const noName = "localhost"

// siteHost returns the name under which host's site is cached. All addresses have one name: an address only
// selects a process, and all processes serve one site.
func siteHost(host string) string {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	if _, err := netip.ParseAddr(name); err == nil || strings.EqualFold(name, noName) {
		return noName
	}
	return host
}

// nameHost is the middleware before the cache that replaces each Host by the siteHost.
func nameHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := siteHost(r.Host); name != r.Host {
			named := *r
			named.Host = name
			r = &named
		}
		next.ServeHTTP(w, r)
	})
}
