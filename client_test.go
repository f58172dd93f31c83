package bellwether_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// This file is the client of the tests: the one fake of a ResponseWriter, with its faults as
// data.

// A client records a response, and when the parts of it came. Its exported state is read
// after ServeHTTP has returned. It can be flushed; a struct of an http.ResponseWriter hides that.
type client struct {
	*httptest.ResponseRecorder

	// The faults, set before use.
	rate     int                                // bytes taken in a second; 0: all at once
	held     bool                               // nothing is taken until free is closed
	forgets  bool                               // bytes are counted, and not recorded
	before   func(p []byte) error               // called before each Write takes p; nil: nothing
	deadline func(w *client, t time.Time) error // SetWriteDeadline; nil: not supported

	full  chan struct{} // closed at the first Write of a held client
	free  chan struct{} // closed to let a held client go, or by breakOff
	fill  sync.Once
	broke atomic.Bool // by breakOff

	took                         int // bytes
	made                         time.Time
	header, first, last, flushed time.Duration // when they came, since made; first and last of the body
}

func newClient() *client {
	return &client{ResponseRecorder: httptest.NewRecorder(), full: make(chan struct{}), free: make(chan struct{}), made: time.Now()}
}

// heldClient takes nothing until it is let go, or breaks off at a write deadline.
func heldClient() *client {
	w := newClient()
	w.held, w.deadline = true, (*client).breakOff
	return w
}

// slowClient takes so many bytes a second, until it breaks off at a write deadline.
func slowClient(rate int) *client {
	w := newClient()
	w.rate, w.deadline = rate, (*client).breakOff
	return w
}

// breakOff is a deadline that has passed when it is set.
func (w *client) breakOff(time.Time) error {
	if !w.broke.Swap(true) {
		close(w.free)
	}
	return nil
}

func (w *client) SetWriteDeadline(t time.Time) error {
	if w.deadline == nil {
		return http.ErrNotSupported
	}
	return w.deadline(w, t)
}

func (w *client) WriteHeader(status int) {
	w.header = time.Since(w.made)
	w.ResponseRecorder.WriteHeader(status)
}

func (w *client) Flush() {
	if !w.Flushed {
		w.flushed = time.Since(w.made)
	}
	w.ResponseRecorder.Flush()
}

func (w *client) Write(p []byte) (n int, err error) {
	if w.before != nil {
		if err := w.before(p); err != nil {
			return 0, err
		}
	}
	if w.held {
		w.fill.Do(func() { close(w.full) })
		<-w.free
	}
	if w.broke.Load() {
		return 0, os.ErrDeadlineExceeded
	}
	n, err = w.trickle(len(p))
	w.last = time.Since(w.made)
	if w.took == 0 {
		w.first = w.last
	}
	w.took += n
	if !w.forgets {
		w.ResponseRecorder.Write(p[:n])
	}
	return n, err
}

// trickle takes the time of n bytes, in pieces.
func (w *client) trickle(n int) (taken int, err error) {
	if w.rate == 0 {
		return n, nil
	}
	for taken < n {
		piece := min(4096, n-taken)
		select {
		case <-time.After(time.Duration(piece) * time.Second / time.Duration(w.rate)):
		case <-w.free:
			return taken, os.ErrDeadlineExceeded
		}
		taken += piece
	}
	return taken, nil
}
