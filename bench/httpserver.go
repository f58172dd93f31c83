package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-chi/stampede"
	memcache "github.com/goware/cachestore-mem"
	httpcache "github.com/victorspringer/http-cache"
	"github.com/victorspringer/http-cache/adapter/memory"

	"github.com/bellwether-go/bellwether"
)

// This file is the measured HTTP server: one handler, bare or behind a middleware, in its own process.

// serverEnv names the variable that makes this program a server. It has a serverConfig.
const serverEnv = "BELLWETHER_BENCH_SERVER"

type serverConfig struct {
	Kind  string // bare, or the middleware's name
	Addr  string
	Admin string // the address that reports the handler's runs
}

var bodies = map[string][]byte{
	"1k": bytes.Repeat([]byte("b"), 1<<10), "64k": bytes.Repeat([]byte("b"), 64<<10), "1m": bytes.Repeat([]byte("b"), 1<<20),
}

// newHandler returns the common handler of servers and proxies: /SIZE/AGE/DELAY/KEY is a body of that
// size, fresh for AGE seconds, made in DELAY milliseconds, and served stale while it is rebuilt.
func newHandler(runs *atomic.Int64) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{size}/{age}/{delay}/{key}", func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		body, ok := bodies[r.PathValue("size")]
		delay, err := strconv.Atoi(r.PathValue("delay"))
		if !ok || err != nil {
			http.NotFound(w, r)
			return
		}
		if delay > 0 {
			time.Sleep(time.Duration(delay) * time.Millisecond)
		}
		h := w.Header()
		h.Set("Cache-Control", "public, max-age="+r.PathValue("age")+", stale-while-revalidate=10")
		h.Set("Content-Type", "text/plain")
		h.Set("Content-Length", strconv.Itoa(len(body)))
		w.Write(body)
	})
	return mux
}

var middlewares = map[string]func(http.Handler) (http.Handler, error){
	"bare": func(h http.Handler) (http.Handler, error) { return h, nil },
	"bellwether": func(h http.Handler) (http.Handler, error) {
		return bellwether.NewMiddleware(bellwether.HTTPOptions{}).Handler(h), nil
	},
	"http-cache": func(h http.Handler) (http.Handler, error) {
		adapter, err := memory.NewAdapter(memory.AdapterWithAlgorithm(memory.LRU), memory.AdapterWithCapacity(100_000))
		if err != nil {
			return nil, err
		}
		// It ignores Cache-Control. Its TTL fits the expiring responses, and also refreshes the others.
		c, err := httpcache.NewClient(httpcache.ClientWithAdapter(adapter), httpcache.ClientWithTTL(time.Second))
		if err != nil {
			return nil, err
		}
		return c.Middleware(h), nil
	},
	"stampede": func(h http.Handler) (http.Handler, error) {
		backend, err := memcache.NewBackend(100_000)
		if err != nil {
			return nil, err
		}
		return stampede.Handler(slog.New(slog.DiscardHandler), backend, time.Second)(h), nil // as above
	},
}

// serve is a server process. It ends with its input.
func serve(config string) error {
	var c serverConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	var runs atomic.Int64
	wrap, ok := middlewares[c.Kind]
	if !ok {
		return fmt.Errorf("no middleware %q", c.Kind)
	}
	h, err := wrap(newHandler(&runs))
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return err
	}
	admin, err := net.Listen("tcp", c.Admin)
	if err != nil {
		return err
	}
	go http.Serve(admin, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, runs.Load()) }))
	go http.Serve(l, h)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
