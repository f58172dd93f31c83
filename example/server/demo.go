package main

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
)

// This file is the site without an upstream: pages that state how often they were built.

const index = `The live page, for a browser: http://%[1]s/

Pages to try with curl -i; read Cache-Status and Age:

/slow?delay=500ms&ttl=10s   takes delay to build, up to 10s, and is fresh for ttl, up to 24h
/fast                       is built at once and is fresh for 10s
/stream                     10 lines, one every 200ms; all clients read them while the handler writes them
/vary                       one variant for each Accept-Language
/private                    is for one client and is never shared
/error                      a 503 for all waiting clients with the same Cookie

A herd: seq 200 | xargs -P 200 -I{} curl -s 'http://%[1]s/slow?delay=2s' | sort | uniq -c
`

// demo adds the pages to r, with the live page at its root.
func demo(r chi.Router, live *pen) {
	live.routes(r)
	r.Get("/index.txt", func(w http.ResponseWriter, r *http.Request) {
		text(w, "max-age=60")
		fmt.Fprintf(w, index, r.Context().Value(http.LocalAddrContextKey))
	})
	r.Get("/slow", new(page).slow)
	r.Get("/fast", new(page).fast)
	r.Get("/stream", new(page).stream)
	r.Get("/vary", new(page).vary)
	r.Get("/private", new(page).private)
	r.Get("/error", new(page).fail)
}

type page struct{ builds atomic.Int64 }

func (p *page) built(began time.Time) string {
	return fmt.Sprintf("build %d by process %d, at %s, in %v\n",
		p.builds.Add(1), os.Getpid(), time.Now().Format("15:04:05.000"), time.Since(began).Round(time.Millisecond))
}

func (p *page) slow(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	q := r.URL.Query()
	delay, err := parameter(q, "delay", 500*time.Millisecond, 10*time.Second)
	if err == nil {
		var ttl time.Duration
		if ttl, err = parameter(q, "ttl", 10*time.Second, 24*time.Hour); err == nil {
			pause(r, delay)
			text(w, fmt.Sprintf("max-age=%d", (ttl+time.Second-1)/time.Second)) // in whole seconds, RFC 9111 section 1.2.2
			fmt.Fprint(w, p.built(began))
			return
		}
	}
	text(w, "no-store")
	w.WriteHeader(http.StatusBadRequest)
	fmt.Fprintln(w, err)
}

func (p *page) fast(w http.ResponseWriter, _ *http.Request) {
	text(w, "max-age=10")
	fmt.Fprint(w, p.built(time.Now()))
}

func (p *page) stream(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	text(w, "max-age=10")
	flush := http.NewResponseController(w).Flush
	for i := range 10 {
		fmt.Fprintf(w, "line %d of 10 after %v\n", i+1, time.Since(began).Round(time.Millisecond))
		flush() // without Flush the writer sends it all at the end
		pause(r, 200*time.Millisecond)
	}
	fmt.Fprint(w, p.built(began))
}

func (p *page) vary(w http.ResponseWriter, r *http.Request) {
	greeting := "Hello"
	for prefix, word := range map[string]string{"de": "Hallo", "fr": "Bonjour", "ga": "Dia dhuit", "zh": "你好"} {
		if strings.HasPrefix(r.Header.Get("Accept-Language"), prefix) {
			greeting = word
		}
	}
	w.Header().Set("Vary", "Accept-Language")
	text(w, "max-age=10")
	fmt.Fprintf(w, "%s! %s", greeting, p.built(time.Now()))
}

func (p *page) private(w http.ResponseWriter, _ *http.Request) {
	text(w, "private")
	fmt.Fprint(w, p.built(time.Now()))
}

func (p *page) fail(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	pause(r, 200*time.Millisecond) // time for a herd to gather
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprint(w, p.built(began))
}

// parameter parses a duration in a query, with a default, and bounds it.
func parameter(q url.Values, name string, def, most time.Duration) (time.Duration, error) {
	if !q.Has(name) {
		return def, nil
	}
	d, err := time.ParseDuration(q.Get(name))
	if err != nil {
		return 0, fmt.Errorf("%s=%q: want a duration with its unit, such as 500ms or 2s", name, q.Get(name))
	}
	return min(max(d, 0), most), nil
}

// pause waits, or breaks the page off when the request has ended.
func pause(r *http.Request, d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	}
}

func text(w http.ResponseWriter, cacheControl string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", cacheControl)
}
