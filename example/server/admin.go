package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/go-chi/chi/v5"
)

// This file is the operators' listener. The site's clients cannot reach it.

func (s *server) adminRouter() http.Handler {
	r := chi.NewRouter()
	// A page of another site in an operator's browser can send a POST here.
	protection := http.NewCrossOriginProtection()
	deny := func(w http.ResponseWriter, _ *http.Request) {
		replyJSON(w, http.StatusForbidden, failure{Error: "a page of another origin sent this request; send it from this origin, by the listener's address, or without a browser"})
	}
	protection.SetDenyHandler(http.HandlerFunc(deny))
	r.Use(protection.Handler, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if rebound(r) {
				deny(w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	r.Get("/healthz", s.healthz)
	r.Get("/stats", s.stats)
	r.Method(http.MethodGet, "/metrics", s.metricsHandler())
	r.Post("/invalidate", s.invalidate)
	r.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		allowed := http.MethodGet
		if r.URL.Path == "/invalidate" {
			allowed = http.MethodPost
		}
		w.Header().Set("Allow", allowed)
		replyJSON(w, http.StatusMethodNotAllowed, failure{Error: "use " + allowed})
	})
	return r
}

// rebound reports DNS rebinding: a browser's request to a name that a site may resolve to this address.
func rebound(r *http.Request) bool {
	host := (&url.URL{Host: r.Host}).Hostname()
	if _, err := netip.ParseAddr(host); err == nil || host == "localhost" {
		return false
	}
	return r.Header["Origin"] != nil || r.Header.Get("Sec-Fetch-Site") == "same-origin"
}

// healthz tells a load balancer whether to send requests. Engines that are down do not count.
func (s *server) healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if s.draining.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, "draining")
		return
	}
	fmt.Fprintln(w, "ok")
}

// A report is the body of /stats.
type report struct {
	PID      int     `json:"pid"`
	Addr     string  `json:"addr"`
	Upstream string  `json:"upstream"`
	Store    string  `json:"store"`
	Locker   string  `json:"locker"`
	Uptime   float64 `json:"uptime_seconds"`
	Draining bool    `json:"draining"`
	observe.Stats
}

func (s *server) stats(w http.ResponseWriter, _ *http.Request) {
	replyJSON(w, http.StatusOK, report{
		PID: os.Getpid(), Addr: s.addr.String(), Upstream: name(s.config),
		Store: s.config.store, Locker: s.config.locker,
		Uptime: time.Since(s.started).Seconds(), Draining: s.draining.Load(),
		Stats: s.cache.Stats(),
	})
}

// A failure is the body of a reply with an error.
type failure struct {
	Error string   `json:"error"`
	URLs  []string `json:"urls,omitempty"`
}

// invalidate drops pages: POST /invalidate?url=http://host/path, likewise prefix= and tag=, each repeatable.
// The host of a relative url or prefix is host=, else the addresses' site. soft=1 leaves the pages stale.
func (s *server) invalidate(w http.ResponseWriter, r *http.Request) {
	match, err := matched(r.URL.RawQuery)
	if err != nil {
		replyJSON(w, http.StatusBadRequest, failure{Error: err.Error()})
		return
	}
	switch err := s.cache.InvalidateMatching(r.Context(), match); {
	case err == nil:
		replyJSON(w, http.StatusOK, struct {
			Invalidated []string `json:"invalidated"`
			Prefixes    []string `json:"prefixes,omitempty"`
			Tags        []string `json:"tags,omitempty"`
			Soft        bool     `json:"soft,omitempty"`
		}{append([]string{}, match.Keys...), match.Prefixes, match.Tags, match.Soft})
	case errors.Is(err, bellwether.ErrUnavailable):
		replyJSON(w, http.StatusServiceUnavailable, failure{
			Error: "the store has not taken the invalidation, so the processes go on serving what the store and the other processes have; this process has invalidated its own copies (the near tier), and repeats each url without soft=1 until the store answers; repeat all else yourself: " + err.Error(),
			URLs:  match.Keys,
		})
	default:
		replyJSON(w, http.StatusBadRequest, failure{Error: err.Error(), URLs: match.Keys})
	}
}

func matched(query string) (m bellwether.Match, err error) {
	q, err := url.ParseQuery(query)
	if err != nil {
		return m, fmt.Errorf("the query cannot be read: %w", err)
	}
	for name := range q {
		switch name {
		case "url", "prefix", "tag", "soft", "host":
		default:
			return m, fmt.Errorf("unknown parameter %q; the parameters are url, prefix, tag, soft and host, and %%26 stands for an & within a url", name)
		}
	}
	if len(q["url"])+len(q["prefix"])+len(q["tag"]) == 0 {
		return m, errors.New("no url, prefix or tag; write /invalidate?url=http://host/path, with %26 for an & within a url")
	}
	if soft := q.Get("soft"); soft != "" {
		if m.Soft, err = strconv.ParseBool(soft); err != nil {
			return m, fmt.Errorf("soft is %q; want 1 or 0", soft)
		}
	}
	if m.Keys, err = pages(q, "url"); err != nil {
		return m, err
	}
	m.Prefixes, err = pages(q, "prefix")
	m.Tags = q["tag"]
	return m, err
}

// pages returns the full URLs in a parameter of a query.
func pages(q url.Values, parameter string) ([]string, error) {
	var urls []string
	for _, page := range q[parameter] {
		u, err := url.Parse(page)
		if err != nil {
			return nil, fmt.Errorf("%s is not a URL: %w", parameter, err)
		}
		if u.Scheme == "" && u.Host == "" && len(page) > 0 && page[0] == '/' {
			host := cmp.Or(q.Get("host"), noName)
			u, err = url.Parse("http://" + host + page)
			if err != nil || u.Host != host {
				return nil, fmt.Errorf("host %q: want a name or an address, with or without a port", host)
			}
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
			return nil, fmt.Errorf("%s %q: want http://host/path?query, or /path?query, without a user or a fragment", parameter, page)
		}
		u.Host = siteHost(u.Host)
		urls = append(urls, u.String())
	}
	return urls, nil
}

func replyJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	e.Encode(body) // an error here is the client's end
}
