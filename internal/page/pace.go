package page

import (
	"errors"
	"net/http"
	"time"

	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file is patience with clients. A client that takes a shared body slowly
// costs nobody but the memory of the body; one that takes nothing of it for
// minutes would hold that memory for as long as it likes: net/http has no such
// bound of its own unless the server has a WriteTimeout. Over MaxBody others wait
// for it, and the spool loses patience sooner.

const (
	// writePart is how much a client has to take within writePatience: about 1
	// KB/s, a tenth of the slowest line that anybody still has. It is counted by
	// writes: what a client takes in one go may be the end of one and nearly all
	// of the next.
	writePart     = 64 << 10
	writePatience = time.Minute
	// storedParts go at one time of a body that nobody else waits with: each write
	// costs the kernel more than what is in it.
	storedParts = 4
)

var errStalled = errors.New("bellwether: client takes nothing")

// A pacedWriter writes a body to a client, and gives up on one that takes
// nothing. Only one that does is touched: a write deadline that somebody else
// has set stays as it is for all others.
type pacedWriter struct {
	w     http.ResponseWriter
	parts int           // that go at one time, in the time of as many
	drop  func()        // gives the client's place in the body up; nil if it has none
	timer *time.Timer   // runs while something is sent
	ended chan struct{} // closed when the timer's function has returned
}

// paced returns a pacedWriter that has sent nothing.
func paced(w http.ResponseWriter, parts int, drop func()) *pacedWriter {
	p := &pacedWriter{w: w, parts: parts, drop: drop, ended: make(chan struct{})}
	p.timer = time.AfterFunc(p.patience(), p.giveUp)
	p.timer.Stop()
	return p
}

// patience is the time of the parts.
func (p *pacedWriter) patience() time.Duration { return time.Duration(p.parts) * writePatience }

// Write writes b some parts at a time.
func (p *pacedWriter) Write(b []byte) (int, error) {
	total := 0
	for {
		part := b[total:min(len(b), total+p.parts*writePart)]
		err := p.within(func() error {
			n, err := p.w.Write(part)
			total += n
			return err
		})
		if err != nil || total == len(b) {
			return total, err
		}
	}
}

// within gives what do sends the time of the parts.
func (p *pacedWriter) within(do func() error) (err error) {
	p.timer.Reset(p.patience())
	defer func() { // also if it panics: the timer must not touch what others have by then
		if p.stalled() {
			err = errStalled
		}
	}()
	return do()
}

// A pacedResponse is the ResponseWriter of an answer to a Range, whose body a
// pacedWriter writes.
type pacedResponse struct {
	http.ResponseWriter
	paced *pacedWriter
}

// WriteHeader is called with the header of the whole, whatever the status.
func (r pacedResponse) WriteHeader(status int) {
	httpcache.TrimToRange(r.Header(), status)
	r.ResponseWriter.WriteHeader(status)
}

func (r pacedResponse) Write(b []byte) (int, error) { return r.paced.Write(b) }

// giveUp is the timer's function.
func (p *pacedWriter) giveUp() {
	defer close(p.ended)
	if p.drop != nil {
		p.drop() // for a ResponseWriter without deadlines, too
	}
	http.NewResponseController(p.w).SetWriteDeadline(time.Now())
}

// hurry has the time of what is being sent end at once. It may be called by any
// goroutine, once. If nothing is being sent, it does nothing. If that ends between
// the two lines, stalled has found the timer stopped, and waits for its function.
func (p *pacedWriter) hurry() {
	if p.timer.Stop() {
		p.timer.Reset(0)
	}
}

// stalled reports whether they took too long. If so, the timer's function
// has returned: it must not touch the ResponseWriter after the handler has.
func (p *pacedWriter) stalled() bool {
	if p.timer.Stop() {
		return false
	}
	<-p.ended
	return true
}
