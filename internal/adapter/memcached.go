package adapter

import (
	"errors"
	"io"
	"strings"
	"syscall"
)

// This file is shared by memcached's locker and store.

// ErrNoSwap is the error of a compare-and-swap on a memcached without item versions. Such a server
// answers every swap as overtaken, so a retry loop would not end.
var ErrNoSwap = errors.New("the server has no compare-and-swap: was it started with -C?")

// IsFull reports whether err is the answer of a full memcached that evicts nothing (-M). The client has no error
// for this answer. Such a server refuses a swap that frees memory too, but deletes.
func IsFull(err error) bool { return err != nil && strings.Contains(err.Error(), "out of memory") }

// Reconnected returns the result of call, or, if the connection was dead, of a second call after
// closeIdle. A server that has gone away probably leaves all idle connections dead. Found dead one by
// one, behind a breaker that lets one call through per second, they would outlast the outage by far.
func Reconnected[T any](call func() (T, error), closeIdle func() error) (T, error) {
	v, err := call()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		closeIdle()
		return call()
	}
	return v, err
}
