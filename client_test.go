package bellwether_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A client is the tests' fake of a ResponseWriter. It records the response and when its parts came, to
// be read after ServeHTTP has returned. It is a Flusher; a struct of an http.ResponseWriter hides this.
type client struct {
	*httptest.ResponseRecorder

	// The faults, set before use.
	rate     int                                // bytes read per second; 0: all at once
	held     bool                               // reads nothing until free is closed
	forgets  bool                               // counts bytes without recording them
	before   func(p []byte) error               // called before each Write; nil: no call
	deadline func(w *client, t time.Time) error // called by SetWriteDeadline; nil: not supported

	full  chan struct{} // closed at the first Write of a held client
	free  chan struct{} // closed by the test or by breakOff to end the hold
	fill  sync.Once
	broke atomic.Bool // set by breakOff

	took                         int // bytes
	made                         time.Time
	header, first, last, flushed time.Duration // when they came, since made; first and last are of the body
}

func newClient() *client {
	return &client{ResponseRecorder: httptest.NewRecorder(), full: make(chan struct{}), free: make(chan struct{}), made: time.Now()}
}

func heldClient() *client {
	w := newClient()
	w.held, w.deadline = true, (*client).breakOff
	return w
}

func slowClient(rate int) *client {
	w := newClient()
	w.rate, w.deadline = rate, (*client).breakOff
	return w
}

// ask has h answer r. As below a server, nothing is left of a response that is broken off.
func (w *client) ask(h http.Handler, r *http.Request) {
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			panic(p)
		}
	}()
	h.ServeHTTP(w, r)
}

// breakOff acts as a deadline that has passed when it is set.
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

// trickle waits for the time that n bytes take, in pieces.
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
