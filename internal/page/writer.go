package page

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
)

// This file is the ResponseWriter of a detached handler: its header, the guess of a type that
// the handler does not name, and what it has announced.

// errShortBody is the failure of a handler that wrote less than the
// Content-Length it announced.
var errShortBody = errors.New("bellwether: handler wrote less than its Content-Length")

// A sink is where a handler's response goes. It is the handler's goroutine's.
type sink interface {
	interim(status int, h http.Header)
	// begin is called once, with the final header, and before all that follows but flush.
	begin(h heading)
	take(p []byte) (int, error)
	flush()
}

// A heading is what a handler has written before the body.
type heading struct {
	status    int
	header    http.Header
	guessed   bool  // its Content-Type is
	announced int64 // Content-Length, -1 if there is none
}

// A writerPhase is how far a handler has come with its response.
type writerPhase uint8

const (
	headerOpen  writerPhase = iota
	typeAwaited             // it just writes: the header goes on when the first bytes tell the type
	bodyHeld                // its header has gone on without a type, which net/http guesses for each client: from the first bytes that tell it, not from less
	bodyOpen
)

// A writer is the ResponseWriter of an exchange. It is the handler's goroutine's.
type writer struct {
	m       *Middleware // whose handler it is
	to      sink
	header  http.Header
	phase   writerPhase
	heading heading // what follows is of the phases after headerOpen
	first   []byte  // of the body, until bodyOpen
	barred  error   // why the body takes no more
	written int64
}

// belongsTo reports whether the handler runs for m.
func (w *writer) belongsTo(m *Middleware) bool { return w.m == m }

// Header returns the header that WriteHeader will take.
func (w *writer) Header() http.Header { return w.header }

// WriteHeader decides who may read the response. An interim response goes to
// the first client, and is not the response.
func (w *writer) WriteHeader(status int) {
	if w.phase != headerOpen {
		return
	}
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http has it
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		w.to.interim(status, w.header)
		return
	}
	w.phase = bodyOpen
	w.close(status, w.header)
	w.to.begin(w.heading)
	if w.barred == nil && untyped(w.header) {
		w.phase = bodyHeld
	}
}

// close makes h the final header.
func (w *writer) close(status int, h http.Header) {
	w.heading = heading{status: status, header: h, announced: -1}
	if status == http.StatusNoContent || status == http.StatusNotModified {
		w.barred = http.ErrBodyNotAllowed
	} else if n, ok := contentLength(h); ok {
		w.heading.announced = n
	}
}

// release ends the wait for more of the body, of which more is the last: the type of the body
// is guessed here where it is not decided yet, so that all get the same: who reads
// the body as it grows, and who gets it whole. What was held back goes on in one
// piece, for it is from one that net/http guesses.
func (w *writer) release(more []byte) (err error) {
	start := more
	if len(w.first) > 0 {
		start, w.first = slices.Concat(w.first, more), nil
	}
	if w.phase == typeAwaited {
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

// pass sends a part of the body on.
func (w *writer) pass(p []byte) (int, error) {
	n, err := w.to.take(p)
	w.written += int64(n)
	return n, err
}

// Write adds to the body.
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
		w.barred = http.ErrContentLength // what comes behind it would stand in its place
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

// Flush sends the header on, before there is a body. What is written is readable
// at once, so there is nothing else to flush.
func (w *writer) Flush() {
	w.settle()
	w.to.flush()
}

// settle writes the header if the handler has not, and waits for no more of the body to guess its
// type.
func (w *writer) settle() {
	if w.phase == headerOpen {
		w.WriteHeader(http.StatusOK)
	}
	if w.phase != bodyOpen {
		w.release(nil)
	}
}

// shortfall is the failure of a handler that has written less than it announced, nil if it has
// not.
func (w *writer) shortfall() error {
	if w.phase == headerOpen || w.heading.announced < 0 || w.written >= w.heading.announced {
		return nil
	}
	return fmt.Errorf("%w: %d of %d bytes", errShortBody, w.written, w.heading.announced)
}
