// Package adapter helps all engine adapters: names, tokens, times, and calls that end with their context.
package adapter

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"time"

	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/stack"
)

// maxName is the most bytes of a key as its own name. Memcached's limit is 250, with prefix and suffix.
const maxName = 160

// Name returns the name of key in an engine: key itself if every engine can carry it and a person can type
// it, else its SHA-256. Different keys have different names: a key that begins like a hash is hashed too. So
// are braces, a hash tag in Redis Cluster, and the slash, a path to users of ZooKeeper and etcd.
func Name(key string) string {
	if plain(key) {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "#" + base64.RawURLEncoding.EncodeToString(sum[:])
}

func plain(key string) bool {
	if key == "" || len(key) > maxName || key[0] == '#' {
		return false
	}
	for i := range len(key) {
		switch c := key[i]; {
		case c <= ' ' || c >= 0x7f:
			return false
		case c == '{' || c == '}' || c == '/':
			return false
		}
	}
	return true
}

// Token returns a token of 128 random bits. All have the same length: none is the prefix of another.
func Token() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand crashes the process instead
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// Millis is d in milliseconds, rounded up, so nothing ends in an engine earlier than for its owner.
func Millis(d time.Duration) int64 {
	ms := d / time.Millisecond
	if d%time.Millisecond > 0 {
		ms++
	}
	return int64(ms)
}

// Missing reports whether x is nil or a nil pointer, as a client declared and never made.
func Missing(x any) bool {
	v := reflect.ValueOf(x)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

var errGoexit = errors.New("the engine's client has ended the goroutine")

// Await runs f and returns its result, or ctx's error as soon as ctx ends. After that f goes on, and
// late, if not nil, gets its result, so nothing obtained by f stays without an owner. f runs on its own
// goroutine because memcached's client has no context, and Redis's client reads a context only with an
// option. A call into a black hole would last the client's time-outs times its retries.
func Await[T any](ctx context.Context, f func() (T, error), late func(T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	done := make(chan result)
	go func() {
		stack.Grow()
		r := result{err: errGoexit}
		// Deferred: the client may end the goroutine. A caller with an endless ctx would wait for ever.
		defer func() {
			// Unbuffered, so one side owns the result: the caller, or late after ctx's end. In a buffer, a
			// caller that leaves between send and receive would leave an acquired lease behind.
			select {
			case done <- r:
			case <-ctx.Done():
				if late != nil {
					defer func() { recover() }() // late calls the same client; no caller is left to report to
					late(r.v, r.err)
				}
			}
		}()
		// The driver's panic must not kill a process that merely caches.
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("panic in the engine's client: %v\n%s", p, debug.Stack()) // the value's methods may call Goexit
			}
		}()
		v, err := f()
		fault.Inquire(err) // its methods later run without a guard
		r = result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return zero, ctx.Err()
	}
}

// Do is [Await] for calls with only an error as their result.
func Do(ctx context.Context, f func() error) error {
	_, err := Await(ctx, func() (struct{}, error) { return struct{}{}, f() }, nil)
	return err
}
