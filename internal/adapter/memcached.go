package adapter

import (
	"errors"
	"io"
	"syscall"
)

// This file is what memcached's locker and store have in common.

// ErrNoSwap is the error of a compare-and-swap on a memcached whose items have no
// versions. It answers each as if somebody else was quicker, and a loop would not end.
var ErrNoSwap = errors.New("the server has no compare-and-swap: was it started with -C?")

// Reconnected returns what call returns, or, if its connection had ended, what a
// second call does: the server has, or had, gone away, and the connection had been
// kept since. So are the client's other idle ones, probably, which closeIdle closes
// before: found out one call at a time, behind a breaker that lets one through in a
// second, they would outlast the outage by far.
func Reconnected[T any](call func() (T, error), closeIdle func() error) (T, error) {
	v, err := call()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		closeIdle()
		return call()
	}
	return v, err
}
