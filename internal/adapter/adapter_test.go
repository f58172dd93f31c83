package adapter

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

func TestName(t *testing.T) {
	for _, key := range []string{"user:42", "a", "é"[:0] + "x#y", strings.Repeat("k", maxName)} {
		if got := Name(key); got != key {
			t.Errorf("Name(%q) = %q, want the key itself", key, got)
		}
	}
	seen := map[string]string{}
	for _, key := range []string{"", " ", "a b", "a\x00", "a\r\nset x", "é", "{a}", "a}", "/a", "#", "#x", strings.Repeat("k", maxName+1), strings.Repeat("k", 10<<10), "\xff"} {
		got := Name(key)
		if !plain(got[1:]) || got[0] != '#' {
			t.Errorf("Name(%.20q) = %q, want a hash that engines can carry", key, got)
		}
		if other, dup := seen[got]; dup {
			t.Errorf("Name(%.20q) = Name(%.20q)", key, other)
		}
		seen[got] = key
		if again := Name(got); again == got {
			t.Errorf("Name(%q) is itself: a key that looks like a hash collides with the hash", got)
		}
	}
}

func FuzzName(f *testing.F) {
	f.Add("a", "b")
	f.Add("", "#47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU")
	f.Fuzz(func(t *testing.T, a, b string) {
		na, nb := Name(a), Name(b)
		if (na == nb) != (a == b) {
			t.Fatalf("Name(%q) = %q, Name(%q) = %q", a, na, b, nb)
		}
		if len(na) == 0 || len(na) > maxName || strings.ContainsAny(na, "{}/ \r\n\x00") {
			t.Fatalf("Name(%q) = %q, which not every engine can carry", a, na)
		}
	})
}

func TestToken(t *testing.T) {
	a, b := Token(), Token()
	if a == b || len(a) != len(b) {
		t.Fatalf("tokens %q, %q: want different ones of one length", a, b)
	}
}

func TestAwait_ReturnsWithItsContextAndHandsTheLateResultOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late := make(chan string, 1)
		start := time.Now()
		_, err := Await(ctx, func() (string, error) {
			time.Sleep(time.Minute)
			return "lease", nil
		}, func(v string, err error) { late <- v })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Fatalf("err = %v after %v, want the deadline after 1s", err, time.Since(start))
		}
		if got := <-late; got != "lease" {
			t.Fatalf("late got %q", got)
		}
	})
}

func TestAwait_Panic(t *testing.T) {
	_, err := Await(t.Context(), func() (int, error) { panic("boom") }, nil)
	if err == nil || !strings.Contains(err.Error(), "boom") {
		t.Fatalf("err = %v, want the panic", err)
	}
}

func TestAwait_ErrorWhoseMethodsPanic(t *testing.T) {
	_, err := Await(t.Context(), func() (int, error) { return 0, testserver.ErrBroken }, nil)
	if err == nil || !strings.Contains(err.Error(), "nil pointer") {
		t.Fatalf("err = %v, want the panic", err)
	}
}

// exiting is the value of a panic.
type exiting struct{}

func (exiting) String() string { runtime.Goexit(); return "" }

func TestAwait_PanicThatCannotBePrinted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // fails if the call waits for ever
		if _, err := Await(t.Context(), func() (int, error) { panic(exiting{}) }, nil); !errors.Is(err, errGoexit) {
			t.Fatalf("err = %v, want that the client has ended the goroutine", err)
		}
	})
}

func TestAwait_Goexit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // fails if the call waits for ever
		_, err := Await(t.Context(), func() (int, error) {
			runtime.Goexit()
			return 0, nil
		}, nil)
		if !errors.Is(err, errGoexit) {
			t.Fatalf("err = %v, want that the client has ended the goroutine", err)
		}
	})
}

func TestReconnected(t *testing.T) {
	for err, want := range map[error]bool{
		io.EOF:                   true, // between two replies
		io.ErrUnexpectedEOF:      true, // inside a reply
		syscall.ECONNRESET:       true,
		syscall.EPIPE:            true,
		syscall.ECONNREFUSED:     false,
		os.ErrDeadlineExceeded:   false,
		context.DeadlineExceeded: false,
		nil:                      false,
	} {
		calls, closed := 0, 0
		conns := &Connections{CloseIdle: func() error { closed++; return nil }}
		_, got := Reconnected(conns, func() (int, error) { calls++; return 0, err })
		if again := calls == 2 && closed == 1; again != want || got != err {
			t.Errorf("%v: %d calls, %d times closed, %v", err, calls, closed, got)
		}
	}
}

// TestReconnected_TimedOut has calls without a reply, alone and beside a call with a reply.
func TestReconnected_TimedOut(t *testing.T) {
	closed := 0
	conns := &Connections{CloseIdle: func() error { closed++; return nil }}
	answered := func() (int, error) { return 0, nil }
	silent := func() (int, error) { return 0, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded} }
	Reconnected(conns, answered)
	Reconnected(conns, func() (int, error) {
		Reconnected(conns, answered)
		return silent()
	})
	if closed != 0 {
		t.Errorf("closed %d times after a time-out beside an answer, want never: the other connections live", closed)
	}
	if _, err := Reconnected(conns, silent); closed != 1 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("closed %d times after a time-out without any answer, want once; err = %v", closed, err)
	}
}

// TestAwait_LatePanics has the client panic twice after its caller has left.
func TestAwait_LatePanics(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				called := false
				Await(ctx, func() (int, error) {
					time.Sleep(time.Minute)
					end()
					return 0, nil
				}, func(_ int, err error) {
					called = err != nil
					end()
				})
				time.Sleep(time.Minute)
				synctest.Wait()
				if !called {
					t.Error("what may have been obtained was not handed over")
				}
			})
		})
	}
}
