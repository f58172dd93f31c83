package fault

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/bellwether-go/bellwether/driver"
)

type hostile struct{}

func (*hostile) Error() string { panic("Error") }

type exiting struct{}

func (exiting) String() string { runtime.Goexit(); return "" }

func TestGuard(t *testing.T) {
	plain := errors.New("plain")
	for name, test := range map[string]struct {
		f    func() error
		want string
	}{
		"returns nil":                {func() error { return nil }, "<nil>"},
		"returns an error":           {func() error { return plain }, "plain"},
		"panics with a text":         {func() error { panic("text") }, "bellwether: panic: text"},
		"panics with an error":       {func() error { panic(plain) }, "bellwether: panic: plain"},
		"panics with nil":            {func() error { panic(nil) }, "bellwether: panic: panic called with nil argument"},
		"panics with a hostile one":  {func() error { panic(&hostile{}) }, "bellwether: panic: a *fault.hostile whose methods do not return"},
		"panics with one that exits": {func() error { panic(exiting{}) }, "bellwether: panic: a fault.exiting whose methods do not return"},
	} {
		err := Guard(test.f)
		if got := fmt.Sprint(err); !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		if p, ok := errors.AsType[*PanicError](err); ok && len(p.Stack) == 0 {
			t.Errorf("%s: no stack", name)
		}
	}
	if err := Guard(func() error { panic(plain) }); !errors.Is(err, plain) {
		t.Errorf("%v does not wrap the error of its panic", err)
	}
}

func TestSays(t *testing.T) {
	wrapped := fmt.Errorf("users: %w", driver.ErrNotFound)
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"nil":             {nil, false},
		"itself":          {driver.ErrNotFound, true},
		"wrapped":         {wrapped, true},
		"another":         {context.Canceled, false},
		"a panic with it": {Guard(func() error { panic(wrapped) }), false},
	} {
		if got := NotFound(test.err); got != test.want {
			t.Errorf("%s: NotFound = %t, want %t", name, got, test.want)
		}
	}
}

func TestRemoteError_Unwrap(t *testing.T) {
	for message, want := range map[string]error{
		ErrGoexit.Error():         ErrGoexit,
		ErrRebuildTimeout.Error(): ErrRebuildTimeout,
		"origin: 503":             nil,
	} {
		if got := (&RemoteError{message}).Unwrap(); got != want {
			t.Errorf("%q unwraps to %v, want %v", message, got, want)
		}
	}
}

func TestInquire(t *testing.T) {
	Inquire(nil)
	Inquire(errors.New("plain"))
	if err := Guard(func() error { Inquire(&hostile{}); return nil }); err == nil {
		t.Error("an error whose Error panics passes")
	}
}
