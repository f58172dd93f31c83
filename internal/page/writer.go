package page

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file is the ResponseWriter of a detached handler: its header, the guess of a type that
// the handler does not name, and what it has announced.

// A writer is the ResponseWriter of an exchange. It is the handler's goroutine's.
type writer struct {
	run         *exchange
	header      http.Header
	wroteHeader bool
	final       http.Header // header as of then
	// guessing is set until there are the bytes by which the type of the body can be
	// guessed. To decide waits for them where the handler just writes; where it has
	// written the header all is decided, but net/http, which guesses for each client
	// then, must not be given less.
	guessing  bool
	first     []byte // of the body, while guessing
	guessed   bool   // the type is not the handler's
	refused   bool   // the handler has written more than it announced
	bodyless  bool   // the status has no body
	announced int64  // Content-Length, -1 if there is none
	written   int64
}

// Header returns the header that WriteHeader will take.
func (w *writer) Header() http.Header { return w.header }

// WriteHeader decides who may read the response. An interim response goes to
// the first client, and is not the response.
func (w *writer) WriteHeader(status int) {
	if w.wroteHeader {
		return
	}
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http has it
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		w.run.owner.hint(status, w.header)
		return
	}
	w.wroteHeader, w.final = true, w.header
	w.bodyless = status == http.StatusNoContent || status == http.StatusNotModified
	w.announced = -1
	if n, ok := contentLength(w.header); ok && !w.bodyless {
		w.announced = n
	}
	if w.guessing {
		w.final = w.header.Clone()
		return
	}
	if status == http.StatusNotModified && w.run.asks != nil {
		if !httpcache.Selects(w.run.asks.header, httpcache.CanonicalHeader(w.header)) {
			return // about something else: fetch asks again, without conditions
		}
		w.run.validated = true
		w.announced = w.run.asks.about.body.Len()
	}
	w.run.decide(status)
	w.guessing = !w.bodyless && !w.run.validated && untyped(w.header)
	if w.run.validated {
		for _, piece := range w.run.asks.about.body {
			w.run.take(piece)
		}
	}
}

// guess ends what was waited for, of which more is the last: the type of the body
// is guessed here where it is not decided yet, so that all get the same: who reads
// the body as it grows, and who gets it whole. What was held back goes on in one
// piece, for it is from one that net/http guesses.
func (w *writer) guess(more []byte) (err error) {
	w.guessing = false
	start := more
	if len(w.first) > 0 {
		start, w.first = slices.Concat(w.first, more), nil
	}
	if w.run.response == nil {
		if len(start) > 0 {
			w.final.Set("Content-Type", http.DetectContentType(start))
			w.guessed = true
		}
		w.run.decide(http.StatusOK)
	}
	if len(start) > 0 {
		_, err = w.run.take(start)
	}
	return err
}

// Write adds to the body.
func (w *writer) Write(p []byte) (int, error) {
	if !w.wroteHeader {
		w.guessing = untyped(w.header)
		w.WriteHeader(http.StatusOK)
	}
	if w.bodyless {
		return 0, http.ErrBodyNotAllowed
	}
	if w.announced >= 0 && w.written+int64(len(w.first)+len(p)) > w.announced {
		w.refused = true // what comes behind it would stand in its place
	}
	if w.refused {
		return 0, http.ErrContentLength
	}
	if !w.guessing {
		return w.run.take(p)
	}
	if n := len(w.first) + len(p); n < guessLen && int64(n) != w.announced && unsigned(w.first, p) {
		w.first = append(w.first, p...)
		return len(p), nil
	}
	if err := w.guess(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush sends the header on, before there is a body. What is written is readable
// at once, so there is nothing else to flush.
func (w *writer) Flush() {
	w.settle()
	if w.run.body != nil { // else it is a 304 that nobody gets
		w.run.body.Flush()
	}
}

// settle writes the header if the handler has not, and waits for no more of the body to guess its
// type.
func (w *writer) settle() {
	if !w.wroteHeader {
		w.WriteHeader(http.StatusOK)
	}
	if w.guessing {
		w.guess(nil)
	}
}
