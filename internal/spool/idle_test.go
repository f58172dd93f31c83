package spool

import (
	"errors"
	"testing"
	"testing/synctest"
)

// OnIdle's function is called once: when the body has ended and its last reader has left.
func TestSpool_OnIdle(t *testing.T) {
	broken := errors.New("broken")
	ends := map[string]func(s *Spool){
		"complete":   func(s *Spool) { s.Close() },
		"broken off": func(s *Spool) { s.CloseWithError(broken) },
	}
	for name, end := range ends {
		check := func(when string, calls, want int) {
			t.Helper()
			if calls != want {
				t.Errorf("%s: %d calls %s, want %d", name, calls, when, want)
			}
		}
		calls := 0
		s := New(100)
		s.OnIdle(func() { calls++ })
		a, b := join(t, s), join(t, s)
		write(t, s, body(10))
		a.Close()
		b.Close()
		check("while it grows", calls, 0)
		c, d := join(t, s), join(t, s)
		end(s)
		check("while two read", calls, 0)
		c.Close()
		c.Close()
		check("while one reads", calls, 0)
		d.Close()
		check("when the last has left", calls, 1)
		if r, ok := s.NewReader(); ok {
			r.Close()
		}
		end(s)
		check("after another reader and another end", calls, 1)

		calls = 0
		s = New(100)
		s.OnIdle(func() { calls++ })
		end(s)
		check("of a body that nobody has read", calls, 1)
	}
}

// A body over the limit ends when its last reader leaves: Write fails, and OnIdle's function runs.
func TestSpool_OnIdleOfABodyThatAllHaveLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		s := New(10)
		s.OnIdle(func() { calls++ })
		r := join(t, s)
		wrote := make(chan error)
		go func() {
			_, err := s.Write(body(1 << 20))
			wrote <- err
		}()
		synctest.Wait() // the writer waits for the reader
		s.mu.Lock()
		before := calls
		s.mu.Unlock()
		r.Close()
		if err := <-wrote; err != ErrNoReaders || before != 0 || calls != 1 {
			t.Errorf("Write = %v, %d calls before and %d after the reader left, want 0 and 1", err, before, calls)
		}
	})
}

// A lower limit counts from the next Write on. A higher limit changes nothing.
func TestSpool_Narrow(t *testing.T) {
	for _, tt := range []struct {
		limit, narrow int64
		want          int // the largest body that is kept
	}{
		{100, 60, 60},
		{100, 50, 50}, // the bytes that are already there
		{100, 100, 100},
		{100, 200, 100},
		{60, 1 << 40, 60},
	} {
		for _, n := range []int{tt.want, tt.want + 1} {
			s := New(tt.limit)
			r := join(t, s)
			write(t, s, body(50))
			s.Narrow(tt.narrow)
			if s.Overflowed() {
				t.Errorf("limit %d, narrowed to %d: it overflows before it is written to", tt.limit, tt.narrow)
			}
			for i := 50; i < n; i++ {
				write(t, s, body(n)[i:i+1])
			}
			s.Close()
			checkRead(t, r, body(n), nil) // present readers get all bytes
			r.Close()
			if _, ok := s.Body(); ok != (n <= tt.want) || s.Overflowed() == ok {
				t.Errorf("limit %d, narrowed to %d: of %d bytes Body says %v, Overflowed %v", tt.limit, tt.narrow, n, ok, s.Overflowed())
			}
		}
	}
}

// A limit below zero is zero: the body streams through.
func TestSpool_NarrowToNothing(t *testing.T) {
	for _, limit := range []int64{0, -1} {
		synctest.Test(t, func(t *testing.T) {
			want := body(100 << 10)
			s := New(100)
			r := join(t, s)
			s.Narrow(limit)
			go func() {
				s.Write(want)
				s.Close()
			}()
			checkRead(t, r, want, nil)
			r.Close()
		})
		s := New(100)
		s.Narrow(limit)
		if n, err := s.Write([]byte("x")); n != 0 || err != ErrNoReaders {
			t.Errorf("narrowed to %d: Write = %d, %v, want ErrNoReaders", limit, n, err)
		}
	}
}
