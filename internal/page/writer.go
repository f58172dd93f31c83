package page

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
)

// This file is a detached handler's ResponseWriter: header, guessed type, and announced length.

// errShortBody is the failure of a handler below the announced Content-Length.
var errShortBody = errors.New("bellwether: handler wrote less than its Content-Length")

// A sink takes a handler's response. The handler's goroutine calls it.
type sink interface {
	interim(status int, h http.Header)
	// begin is called with the final header, before take: once, and again if it has panicked.
	begin(h heading)
	take(p []byte) (int, error)
	flush()
	// afterRun calls f, on a goroutine of its own, when the run's context ends.
	afterRun(f func())
}

// A heading is the part of a response before the body.
type heading struct {
	status    int
	header    http.Header
	guessed   bool  // its Content-Type is a guess
	announced int64 // Content-Length, -1 if there is none
}

type writerPhase uint8

const (
	headerOpen  writerPhase = iota
	typeAwaited             // a Write without WriteHeader: the header goes on when the first bytes give the type
	bodyHeld                // the header has gone on without a type; the first bytes wait until they suffice for net/http's guess
	bodyOpen
)

// A writer is the ResponseWriter of an exchange. It belongs to the handler's goroutine.
type writer struct {
	m       *Middleware // whose handler it is
	to      sink
	header  http.Header
	phase   writerPhase
	heading heading // this field and the fields below are of the phases after headerOpen
	first   []byte  // the start of the body, until bodyOpen
	barred  error   // why the body takes no more bytes
	written int64
}

func (w *writer) belongsTo(m *Middleware) bool { return w.m == m }

func (w *writer) Header() http.Header { return w.header }

// WriteHeader decides the response's audience. Only the first client gets an interim response.
func (w *writer) WriteHeader(status int) {
	if w.phase != headerOpen {
		return
	}
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as in net/http
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		w.to.interim(status, w.header)
		return
	}
	w.close(status, w.header)
	w.to.begin(w.heading) // after a panic of Freshness the header is still open, as after the handler's own panic
	w.phase = bodyOpen
	if w.barred == nil && untyped(w.header) {
		w.phase = bodyHeld
	}
}

func (w *writer) close(status int, h http.Header) {
	w.heading, w.barred = heading{status: status, header: h, announced: contentLength(h)}, nil
	if status == http.StatusNoContent || status == http.StatusNotModified {
		w.heading.announced, w.barred = -1, http.ErrBodyNotAllowed
	}
}

// release ends the wait for more of the body; more is the last part. It guesses an undecided type, the same
// for readers of the growing and the whole body, and passes on one piece: net/http guesses from one piece.
func (w *writer) release(more []byte) (err error) {
	start := more
	if len(w.first) > 0 {
		start, w.first = slices.Concat(w.first, more), nil
	}
	if w.phase == typeAwaited {
		w.phase = headerOpen // until begin has returned
		if len(start) > 0 {
			w.heading.header.Set("Content-Type", http.DetectContentType(start))
			w.heading.guessed = true
		}
		w.to.begin(w.heading)
	}
	w.phase = bodyOpen
	if len(start) > 0 {
		_, err = w.pass(start)
	}
	return err
}

func (w *writer) pass(p []byte) (int, error) {
	n, err := w.to.take(p)
	w.written += int64(n)
	return n, err
}

func (w *writer) Write(p []byte) (int, error) {
	switch {
	case w.phase != headerOpen:
	case untyped(w.header):
		w.phase = typeAwaited
		w.close(http.StatusOK, w.header.Clone())
	default:
		w.WriteHeader(http.StatusOK)
	}
	announced, n := w.heading.announced, len(w.first)+len(p)
	if announced >= 0 && w.written+int64(n) > announced {
		w.barred = http.ErrContentLength // further bytes would stand in the place of these
	}
	switch {
	case w.barred != nil:
		return 0, w.barred
	case w.phase == bodyOpen:
		return w.pass(p)
	case n < guessLen && int64(n) != announced && unsigned(w.first, p):
		w.first = append(w.first, p...)
		return len(p), nil
	}
	if err := w.release(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush sends the header before the first byte. The body needs no flush: each byte is readable at once.
func (w *writer) Flush() {
	w.settle()
	w.to.flush()
}

// CloseNotify tells of the end of the run, which has no other client. See watchedWriter.CloseNotify.
func (w *writer) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	w.to.afterRun(func() { gone <- true })
	return gone
}

// settle writes the header if the handler has not, and ends the wait for more of the body.
func (w *writer) settle() {
	if w.phase == headerOpen {
		w.WriteHeader(http.StatusOK)
	}
	if w.phase != bodyOpen {
		w.release(nil)
	}
}

// shortfall is the failure of a handler below the announced length, or nil.
func (w *writer) shortfall() error {
	if w.written >= w.heading.announced {
		return nil
	}
	return fmt.Errorf("%w: %d of %d bytes", errShortBody, w.written, w.heading.announced)
}
