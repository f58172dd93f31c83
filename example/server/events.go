package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
)

// This file connects the live page to the pen: the page, its events, and its buttons' commands.

const (
	eventPause   = 100 * time.Millisecond // the shortest time between two events
	eventSilence = 15 * time.Second       // the longest time between two lines
	eventWrite   = 5 * time.Second        // a listener's time to read an event
	maxListeners = 64
)

//go:embed live.html
var livePage string

func (p *pen) routes(r chi.Router) {
	r.Get("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "max-age=60")
		// The page is one file: any other request is a mistake.
		w.Header().Set("Content-Security-Policy",
			"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
		fmt.Fprint(w, livePage)
	})
	r.Get("/herd/events", p.events)
	r.Post("/herd", p.command(func(context.Context) error { return p.release() }))
	r.Post("/herd/settings", p.command(func(context.Context) error { return nil }))
	r.Post("/herd/invalidate", p.command(p.invalidate))
}

// command applies the settings in the request, and then does something.
func (p *pen) command(do func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
		err := r.ParseForm()
		if err == nil {
			err = p.set(r.PostForm)
		}
		if err != nil {
			replyJSON(w, http.StatusBadRequest, failure{Error: err.Error()})
			return
		}
		switch err := do(r.Context()); {
		case err == nil:
			replyJSON(w, http.StatusOK, p.look())
		case errors.Is(err, errHerdRuns):
			replyJSON(w, http.StatusConflict, failure{Error: err.Error()})
		default:
			replyJSON(w, http.StatusServiceUnavailable, failure{Error: err.Error()})
		}
	}
}

// listeners are the readers of the events.
type listeners struct {
	ended chan struct{} // closed when they must leave

	mu    sync.Mutex // guards count and over
	count int
	over  bool
}

func (l *listeners) init() { l.ended = make(chan struct{}) }

// end sends the listeners away, for good. It may be called again.
func (l *listeners) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.over = true
		close(l.ended)
	}
}

func (l *listeners) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.count == maxListeners {
		return false
	}
	l.count++
	return true
}

func (l *listeners) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count--
}

// events sends a listener the state, now and after each change, until it leaves or the server drains.
func (p *pen) events(w http.ResponseWriter, r *http.Request) {
	// Only a request for events gets its own ResponseWriter. Another response is for all clients.
	if !strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		text(w, "no-store")
		w.WriteHeader(http.StatusNotAcceptable)
		fmt.Fprintln(w, "these are server-sent events; ask with: curl -N -H 'Accept: text/event-stream'")
		return
	}
	if !p.audience.enter() {
		w.Header().Set("Retry-After", "5")
		http.Error(w, "too many listeners, or the server is shutting down", http.StatusServiceUnavailable)
		return
	}
	defer p.audience.leave()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // otherwise an nginx in between buffers them
	control := http.NewResponseController(w)
	// The deadline ends a listener that has stopped reading, for which TCP would retry for long.
	say := func(line string) bool {
		if err := control.SetWriteDeadline(time.Now().Add(eventWrite)); err != nil {
			return false
		}
		if _, err := fmt.Fprintf(w, "%s\n\n", line); err != nil {
			return false
		}
		return control.Flush() == nil
	}
	tick := time.NewTicker(eventPause)
	defer tick.Stop()
	var last string
	var said time.Time
	for {
		event := string(p.snapshot())
		line := "data: " + event
		if event == last {
			line = ": still here"
		}
		if event != last || time.Since(said) >= eventSilence {
			if !say(line) {
				return
			}
			last, said = event, time.Now()
		}
		select {
		case <-tick.C:
		case <-p.audience.ended:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// sharedFor encodes look's result at most once in a period, for many listeners: a look at a herd is slow.
func sharedFor[T any](period time.Duration, look func() T) func() []byte {
	var (
		mu      sync.Mutex // guards encoded and at
		encoded []byte
		at      time.Time
	)
	return func() []byte {
		mu.Lock()
		defer mu.Unlock()
		if encoded == nil || time.Since(at) >= period {
			b, err := json.Marshal(look())
			if err != nil {
				panic(err) // the type always encodes
			}
			encoded, at = b, time.Now()
		}
		return encoded
	}
}
