package adapter

import (
	"errors"
	"io"
	"syscall"
)

// Broken reports whether a call failed because its connection had ended: the
// server has, or had, gone away, and the connection had been kept since.
func Broken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
