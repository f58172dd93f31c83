package page

import (
	"context"
	"sync"

	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file is the place that a client has in the body which its own request's handler writes.

// A place is that of a client whose request may run the handler. It is safe for concurrent use.
type place struct {
	client  string // see query.client
	earlier *place // of the same query

	mu     sync.Mutex // guards what follows
	runs   int        // of the handler, for the request
	left   bool
	reader *spool.Reader
	end    context.CancelCauseFunc // of the handler whose only reader the client is
}

// begin counts a run of the handler for the request, and returns which it is.
func (p *place) begin() (run int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs++
	return p.runs
}

// began reports whether the handler was run for the request.
func (p *place) began() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs > 0
}

// attach takes the client's place at the start of the body of a run, if it is still there.
func (p *place) attach(run int, body *spool.Spool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs != run {
		return // given up on, and late: the client reads what a later run makes
	}
	if p.reader != nil {
		p.reader.Close() // of a run that an invalidation has made void
		p.reader = nil
	}
	if !p.left {
		p.reader, _ = body.NewReader()
	}
}

// follow binds the end of a handler to the end of its only client.
func (p *place) follow(end context.CancelCauseFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end = end
	if p.left {
		end(context.Canceled)
	}
}

// attached returns the place that attach has taken.
func (p *place) attached() (*spool.Reader, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reader, p.reader != nil
}

// leave gives the place up, so that a body does not wait for it.
func (p *place) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = true
	if p.reader != nil {
		p.reader.Close()
	}
	if p.end != nil {
		p.end(context.Canceled)
	}
}
