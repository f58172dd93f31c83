package page

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// This file gives up clients that read nothing: net/http, without a WriteTimeout, lets them hold a shared
// body's memory for ever. Over MaxBodyBytes, where other clients wait, the spool's patience is shorter.

const (
	// writePart is the size of a write that a client must take within writePatience: about 1 KB/s,
	// a tenth of the slowest line in use. One burst may end a write and be most of the next.
	writePart     = 64 << 10
	writePatience = time.Minute
	// storedParts are written at once if no other client waits: a write costs more than its bytes.
	storedParts = 4
)

var errStalled = errors.New("bellwether: client takes nothing")

// A pacedWriter writes a body, and gives up a client that takes nothing. Other write deadlines stay.
type pacedWriter struct {
	w     http.ResponseWriter
	parts int           // written at once, with the patience for each added up
	drop  func()        // gives up the client's place in the body; nil if it has none
	timer *time.Timer   // runs during a write
	ended chan struct{} // closed when the timer's function has returned
}

func paced(w http.ResponseWriter, parts int, drop func()) *pacedWriter {
	p := &pacedWriter{w: w, parts: parts, drop: drop, ended: make(chan struct{})}
	p.timer = time.AfterFunc(p.patience(), p.giveUp)
	p.timer.Stop()
	return p
}

func (p *pacedWriter) patience() time.Duration { return time.Duration(p.parts) * writePatience }

func (p *pacedWriter) Write(b []byte) (int, error) {
	total := 0
	for {
		part := b[total:min(len(b), total+p.parts*writePart)]
		err := p.within(func() error {
			n, err := p.w.Write(part)
			if err == nil && n != len(part) { // as io.Copy: a writer that takes nothing would be asked for ever
				return io.ErrShortWrite
			}
			total += n
			return err
		})
		if err != nil || total == len(b) {
			return total, err
		}
	}
}

// within bounds the writes of do by the patience.
func (p *pacedWriter) within(do func() error) (err error) {
	p.timer.Reset(p.patience())
	defer func() { // also on a panic: the timer must not touch the ResponseWriter afterwards
		if p.stalled() {
			err = errStalled
		}
	}()
	return do()
}

// breakOff breaks the response off if a write took too long. An outer ResponseWriter may have removed the
// Content-Length, and would end the part that is sent as a whole body.
func (p *pacedWriter) breakOff(r *http.Request) {
	select {
	case <-p.ended:
		reset(p.w, r)
		panic(http.ErrAbortHandler)
	default:
	}
}

// A pacedResponse is the ResponseWriter of an answer to a Range. A pacedWriter writes its body.
type pacedResponse struct {
	http.ResponseWriter
	paced *pacedWriter
	whole int64 // bytes of the whole body
}

// WriteHeader gets the header of the whole body, for each status.
func (r pacedResponse) WriteHeader(status int) {
	if status == http.StatusRequestedRangeNotSatisfiable { // net/http says it for some ranges only (RFC 9110 section 15.5.17)
		r.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", r.whole))
	}
	httpcache.TrimToRange(r.Header(), status)
	r.ResponseWriter.WriteHeader(status)
}

func (r pacedResponse) Write(b []byte) (int, error) { return r.paced.Write(b) }

// giveUp is the timer's function.
func (p *pacedWriter) giveUp() {
	defer close(p.ended)
	if p.drop != nil {
		p.drop() // also for a ResponseWriter without deadlines
	}
	fault.Guard(func() error { // the ResponseWriter may be user code, and no caller is left to panic to
		return http.NewResponseController(p.w).SetWriteDeadline(time.Now())
	})
}

// hurry ends the patience with the current write, if any. Any goroutine may call it, and several times.
// If the write ends between the two lines, stalled finds the timer stopped and waits for its function.
func (p *pacedWriter) hurry() {
	if p.timer.Stop() {
		p.timer.Reset(0)
	}
}

// stalled reports whether the write took too long. If so, the timer's function has returned: it
// must not touch the ResponseWriter after the handler has returned.
func (p *pacedWriter) stalled() bool {
	if p.timer.Stop() {
		return false
	}
	<-p.ended
	return true
}

// reset resets an HTTP/1.0 connection without Content-Length, whose plain end would be the body's end.
func reset(w http.ResponseWriter, r *http.Request) {
	if r.ProtoAtLeast(1, 1) || w.Header().Get("Content-Length") != "" {
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if c, ok := conn.(*tls.Conn); ok {
		conn = c.NetConn()
	}
	if c, ok := conn.(*net.TCPConn); ok {
		c.SetLinger(0)
	}
	conn.Close()
}
