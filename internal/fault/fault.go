// Package fault has the cache's own failures for user code and engines, under the names of the root
// package, and the guards around that code. No panic and no Goexit passes a guard.
package fault

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

var (
	// ErrGoexit is the failure of user code that has called runtime.Goexit.
	ErrGoexit = errors.New("bellwether: user code called runtime.Goexit")

	// ErrRebuildTimeout is the failure of a rebuild that took longer than RebuildTimeout.
	ErrRebuildTimeout = fmt.Errorf("bellwether: rebuild took longer than RebuildTimeout: %w", context.DeadlineExceeded)

	// ErrUnavailable is the silence of an engine.
	ErrUnavailable = errors.New("bellwether: engine unavailable")

	// ErrWaitTimeout ends a call that has waited for MaxWait.
	ErrWaitTimeout = errors.New("bellwether: no value within MaxWait")

	// ErrClosed ends a call of a closed cache.
	ErrClosed = errors.New("bellwether: cache is closed")

	// ErrOverloaded ends a call when there is no room for its rebuild.
	ErrOverloaded = errors.New("bellwether: more keys wait for a rebuild than MaxQueued")

	// ErrInvalidated cancels a load whose key is invalidated.
	ErrInvalidated = errors.New("bellwether: key invalidated during its rebuild")

	// ErrLocal is the error of the encoding of a value that is for its process alone. It is no failure.
	ErrLocal = errors.New("bellwether: value is for its process alone")
)

// A NoResult ends a load that has answered its audience itself, and has learnt nothing about the key. It is not
// remembered, and the key's item stays. Recognize it by its type and not by errors.Is: the Is method of a user's
// error may claim any error.
type NoResult struct {
	// Failed is true if the answer was a failure. It may be about the audience: another caller's load may succeed.
	Failed bool
	// Err is the failure, of the load or told by its answer; nil if there is none.
	Err error
}

// Error returns the failure's text.
func (n *NoResult) Error() string {
	if n.Err != nil {
		return n.Err.Error()
	}
	return "bellwether: load was for its caller alone"
}

// Unwrap returns the failure.
func (n *NoResult) Unwrap() error { return n.Err }

// A PanicError is a panic of user code: of a load, a handler, an adapter, a codec, an observer.
type PanicError struct {
	// Value is the value of the panic.
	Value any
	// Stack is the panicking goroutine's stack.
	Stack []byte
}

// Error returns the panic's value, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("bellwether: panic: %v", e.Value) }

// Unwrap returns the panic's value if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// A RemoteError is a failure from the store, mostly another process's. Only its text comes through the store.
type RemoteError struct{ Message string }

// Error returns "bellwether: rebuild failed: " and the text.
func (e *RemoteError) Error() string {
	return "bellwether: rebuild failed: " + e.Message
}

// Unwrap returns [ErrRebuildTimeout] or [ErrGoexit] if the text is that error's, else nil.
func (e *RemoteError) Unwrap() error {
	for _, ours := range [...]error{ErrRebuildTimeout, ErrGoexit} {
		if e.Message == ours.Error() {
			return ours
		}
	}
	return nil
}

// A RetryAdvice is an error that names the time of the next try.
type RetryAdvice interface {
	error
	RetryAfter() time.Duration
}

// Guard runs user code and makes its panic an error, and a panic of its error's methods, see Inquire.
func Guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = Panicked(p)
		}
	}()
	err = f()
	Inquire(err)
	return err
}

// Run runs user code that may end its goroutine. It calls done with the error that f returns, with
// the *PanicError of f's panic, or with ErrGoexit if f does not return. The error's methods are part of f, see Inquire.
func Run(f func() error, done func(error)) {
	err := ErrGoexit // recover returns nil for a Goexit alone: a panic(nil) is a *runtime.PanicNilError
	defer func() {
		if p := recover(); p != nil {
			err = Panicked(p)
		}
		done(err)
	}()
	returned := f()
	Inquire(returned)
	err = returned
}

// Panicked is the failure for a panic p of this goroutine. A text replaces a value whose methods do not return.
func Panicked(p any) *PanicError {
	e := &PanicError{Value: p, Stack: debug.Stack()}
	returned := make(chan bool)
	go func() { // the methods may end their goroutine, and here is no guard against that
		ok := false
		defer func() {
			recover()
			returned <- ok
		}()
		if err, is := p.(error); is {
			Inquire(err)
		}
		_ = fmt.Sprint(p)
		ok = true
	}()
	if !<-returned {
		e.Value = fmt.Sprintf("a %T whose methods do not return", p)
	}
	return e
}

// Inquire calls the methods of a user's error that later run without a guard. They are user code, and
// the methods of a nil pointer panic. Guard and Run call it. Other guards call it before they end.
func Inquire(err error) {
	if err == nil {
		return
	}
	IsAnswer(err)
	if advice, ok := errors.AsType[RetryAdvice](err); ok {
		advice.RetryAfter()
	}
	_ = err.Error()
}

// Says reports whether a load's error is one of targets. A panic with such an error is none of them.
func Says(err error, targets ...error) bool {
	if _, panicked := errors.AsType[*PanicError](err); panicked {
		return false
	}
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// NotFound reports whether a load found no value.
func NotFound(err error) bool { return Says(err, driver.ErrNotFound) }

// IsAnswer reports whether an engine's error is an answer, and no silence.
func IsAnswer(err error) bool {
	for _, answer := range [...]error{driver.ErrNotFound, driver.ErrHeld, driver.ErrLeaseLost, driver.ErrFenced, driver.ErrCorrupt, driver.ErrTooLarge} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}
