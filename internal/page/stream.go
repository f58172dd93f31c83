package page

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/audience"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file is a response in progress: the readers' state, the owner's place, and the body.

// A serverError is a handler's error status that the load reports as its failure.
type serverError int

func (e serverError) Error() string { return serverErrorText + strconv.Itoa(int(e)) }

const serverErrorText = "bellwether: handler answered with a server error: "

// toldStatus returns the handler's status if err is a serverError, or was one in another process.
func toldStatus(err error) (status int, ok bool) {
	if own, is := errors.AsType[serverError](err); is {
		return int(own), true
	}
	remote, is := errors.AsType[*fault.RemoteError](err)
	if !is {
		return 0, false
	}
	text, is := strings.CutPrefix(remote.Message, serverErrorText)
	status, _ = strconv.Atoi(text)
	return status, is && httpcache.IsServerError(status)
}

// failureOf returns the failure that a response with the status tells, or nil.
func failureOf(status int) error {
	if httpcache.IsServerError(status) {
		return serverError(status)
	}
	return nil
}

// errBroken is the error of callers whose response broke off before they had any of it.
var errBroken = errors.New("bellwether: response broken off")

// A stream is the state of a response while it is written. The handler's goroutine makes it. Once
// it has readers, only the body and the fields about it change.
type stream struct {
	owner     *place // of the client whose request runs the handler
	audience  audience.Audience
	failure   error // why there is no response after all; then the fields below are zero
	kept      bool  // the cache keeps the response, or keeps it for validation
	decidedAt time.Time
	age       time.Duration // at decidedAt
	header    http.Header   // the readers'
	private   http.Header   // the owner's
	announced int64         // the length of the body, -1 if unknown
	trailers  []string      // names of the trailer fields
	qualified []string      // names of the fields for the owner alone
	body      recording
	trailer   http.Header // set before the body ends
}

func (s *stream) shared() bool { return s.audience == audience.Everyone }

// ageNow is the response's age: its header's, and the time since.
func (s *stream) ageNow() time.Duration { return s.age + time.Since(s.decidedAt) }

// isOwners reports whether a trailer field is for the owner alone.
func (s *stream) isOwners(name string) bool { return httpcache.OwnTrailer(name, s.qualified) }

// privateWindow is how much of an unshared response is buffered between the handler and its client: no more
// than of an uncounted body.
const privateWindow = smallBody

// A recording is a body for readers, and for the cache up to the limit.
type recording struct {
	*spool.Spool
	limit   int64 // a longer body is not kept
	account account
	passed  bool   // the limit
	excess  string // why the body is not kept, beyond the limit
}

// passes reports whether the next n bytes are the first beyond the limit.
func (r *recording) passes(n int) bool {
	written := r.Len()
	end := written + int64(n)
	if kept := min(end, r.limit); written <= r.limit && kept > smallBody && !r.account.reach(kept) {
		r.limit, r.excess = written, reasonMemory
		r.Narrow(max(written, smallBody))
	}
	first := !r.passed && end > r.limit
	r.passed = r.passed || first // once: a Write that finds no reader adds nothing
	return first
}

// A place belongs to a client whose request may run the handler. It is safe for concurrent use.
type place struct {
	client string // see query.client

	mu     sync.Mutex // guards the fields below
	runs   int        // runs of the handler for the request
	left   bool
	reader *spool.Reader
	end    context.CancelCauseFunc // ends the handler whose only reader the client is
}

func (p *place) begin() (run int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs++
	return p.runs
}

func (p *place) began() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs > 0
}

// attach takes the client's reader at the start of the body of a run, if the start is still there.
func (p *place) attach(run int, body *spool.Spool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs != run {
		return // a run that was given up: the client reads the body of a later run
	}
	if p.reader != nil {
		p.reader.Close() // of a run that an invalidation has voided
	}
	if !p.left {
		p.reader, _ = body.NewReader()
	}
}

// follow ends a handler when its only client leaves.
func (p *place) follow(end context.CancelCauseFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end = end
	if p.left {
		end(context.Canceled)
	}
}

func (p *place) attached() (*spool.Reader, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reader, p.reader != nil
}

// leave gives the place up, so no body waits for it.
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
