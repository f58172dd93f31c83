package page

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file is a response that is being written: what its readers know of it, the place of the
// client whose request runs the handler, and the body on its way.

// A serverError is the failure of a handler that answered with this error status
// while there is a stale response to serve in its place.
type serverError int

func (e serverError) Error() string {
	return fmt.Sprintf("bellwether: handler answered with a server error: %d", int(e))
}

// errBroken is what callers get of a response that broke off before they had
// any of it.
var errBroken = errors.New("bellwether: response broken off")

// A stream is what a response has while it is written. The handler's goroutine makes it, and does
// not change it any more once it has readers, but for the body and what is said of that.
type stream struct {
	owner     *place // of the client whose request runs the handler
	audience  audience.Audience
	failure   error // why there is no response after all; then there is nothing of what follows
	kept      bool  // something of the response is kept
	decidedAt time.Time
	age       time.Duration // as of then
	header    http.Header   // the readers'
	private   http.Header   // the owner's
	announced int64         // the length of the body, -1 if it is not known
	trailers  []string      // the names of fields that come behind the body
	qualified []string      // the names of those that are the owner's
	body      *spool.Spool
	excess    string      // why the body is not kept, once it has passed its limit
	trailer   http.Header // set before the body ends
}

// admits reports whether the client of a place may have the response.
func (s *stream) admits(p *place) bool {
	return s.audience.Admits(s.owner == p, s.owner.client == p.client)
}

// reader returns the place of a client in the body: the one that was taken for it, or a new one if
// the body's start is still there.
func (s *stream) reader(p *place) (*spool.Reader, bool) {
	if s.owner != p {
		return s.body.NewReader()
	}
	return p.attached()
}

// shared reports whether the response is for all.
func (s *stream) shared() bool { return s.audience == audience.Everyone }

// headerFor is the header that the client of a place gets.
func (s *stream) headerFor(p *place) http.Header {
	if s.owner == p {
		return s.private
	}
	return s.header
}

// trailersFor are the names of the fields that come behind the body, for the client of a place.
func (s *stream) trailersFor(p *place) []string {
	if s.owner == p {
		return s.trailers
	}
	return slices.DeleteFunc(slices.Clone(s.trailers), s.isOwners)
}

// trailerFor is what comes behind a body that has ended, for the client of a place.
func (s *stream) trailerFor(p *place) http.Header {
	if s.owner == p {
		return s.trailer
	}
	t := maps.Clone(s.trailer)
	maps.DeleteFunc(t, func(name string, _ []string) bool { return s.isOwners(name) })
	return t
}

// isOwners reports whether a trailer of that name is the owner's alone.
func (s *stream) isOwners(name string) bool { return httpcache.OwnTrailer(name, s.qualified) }

// privateWindow is how much of a response that nobody shares is kept in memory
// between the handler and its one client.
const privateWindow = 64 << 10

// A recording is a body on its way from the handler to its readers, and into memory if it is kept.
type recording struct {
	stream  *stream
	limit   int64 // beyond which it is not kept
	counted bool  // others than the owner hold it
	account account
	written int64
	passed  bool // the limit
}

// passes reports whether n more bytes are the first beyond the limit.
func (r *recording) passes(n int) bool {
	end := r.written + int64(n)
	if r.counted && r.written <= r.limit && end > smallBody && !r.account.reach(min(end, r.limit)) {
		r.limit, r.stream.excess = r.written, reasonMemory
		r.stream.body.Narrow(max(r.written, smallBody))
	}
	first := !r.passed && end > r.limit
	r.passed = r.passed || first // once: a Write that finds no reader takes nothing
	return first
}

// Write adds to the body.
func (r *recording) Write(p []byte) (int, error) {
	n, err := r.stream.body.Write(p)
	r.written += int64(n)
	return n, err
}

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
