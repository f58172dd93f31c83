package adapter

import (
	"errors"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
)

// This file is shared by memcached's locker and store.

// ErrNoSwap is the error of a compare-and-swap on a memcached without item versions. Such a server
// answers every swap as overtaken, so a retry loop would not end.
var ErrNoSwap = errors.New("the server has no compare-and-swap: was it started with -C?")

// IsFull reports whether err is the answer of a full memcached that evicts nothing (-M). The client has no error
// for this answer. Such a server refuses a swap that frees memory too, but deletes.
func IsFull(err error) bool { return err != nil && strings.Contains(err.Error(), "out of memory") }

// Connections are the connections of a client of memcached. They are safe for concurrent use.
type Connections struct {
	CloseIdle func() error

	answers atomic.Int64 // to calls of Reconnected so far, without misses
}

// Reconnected returns the result of call, or, if the connection was dead, of a second call after
// CloseIdle. A server that has gone away probably leaves all idle connections dead. Found dead one by
// one, behind a breaker that lets one call through per second, they would outlast the outage by far.
//
// Behind a router that has lost its state, a dead connection is only silent. So a time-out closes the idle
// connections too, for the next call. But CloseIdle knows no servers, so the connections stay if any server has
// answered during call: a silent server of several must not cost the others a dial for each request.
func Reconnected[T any](c *Connections, call func() (T, error)) (T, error) {
	answers := c.answers.Load()
	v, err := call()
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE):
		c.CloseIdle()
		return call()
	case errors.Is(err, os.ErrDeadlineExceeded) && c.answers.Load() == answers:
		c.CloseIdle()
	case err == nil:
		c.answers.Add(1)
	}
	return v, err
}
