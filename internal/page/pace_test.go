package page

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// A panickingDeadline is a ResponseWriter of an outer middleware that has no deadline to set.
type panickingDeadline struct{ http.ResponseWriter }

func (panickingDeadline) SetWriteDeadline(time.Time) error { panic("no connection") }

// A slow client whose ResponseWriter panics on the deadline is given up. The panic would be on a timer's goroutine.
func TestPacedWriter_DeadlinePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dropped := false
		p := paced(panickingDeadline{httptest.NewRecorder()}, 1, func() { dropped = true })
		err := p.within(func() error {
			time.Sleep(2 * writePatience)
			return nil
		})
		if err != errStalled || !dropped {
			t.Errorf("%v, the place is given up: %t; want errStalled", err, dropped)
		}
	})
}

type slowDeadline struct {
	http.ResponseWriter
	set bool
}

func (w *slowDeadline) SetWriteDeadline(time.Time) error {
	time.Sleep(time.Second)
	w.set = true
	return nil
}

// A write that ends during the call for its deadline waits for this call: no server may use the ResponseWriter beside it.
func TestPacedWriter_EndsBesideItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &slowDeadline{ResponseWriter: httptest.NewRecorder()}
		err := paced(w, 1, nil).within(func() error {
			time.Sleep(writePatience + time.Second/2)
			return nil
		})
		if err != errStalled || !w.set {
			t.Errorf("%v, the deadline is set: %t; want errStalled after the deadline", err, w.set)
		}
	})
}

// A ResponseWriter that takes another number of bytes than it was given, and tells no error, ends the response.
func TestPaced_WrongCount(t *testing.T) {
	for _, n := range []int{0, 2, 100} {
		p := paced(miscounting{httptest.NewRecorder(), n}, 1, nil)
		if _, err := p.Write([]byte("page")); err != io.ErrShortWrite {
			t.Errorf("taking %d bytes of 4: %v", n, err)
		}
	}
}

type miscounting struct {
	http.ResponseWriter
	n int
}

func (w miscounting) Write([]byte) (int, error) { return w.n, nil }
