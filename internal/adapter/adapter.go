// Package adapter holds what every engine adapter needs: names that an engine
// can carry, tokens that nobody guesses, and calls that end with their context
// although the engine's client does not.
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

	"github.com/bellwether-go/bellwether/internal/stack"
)

// maxName is the length up to which a key keeps its own name in the engine.
// With a prefix and a suffix it stays below the 250 bytes of memcached.
const maxName = 160

// Name returns the part of an engine's key that stands for key: key itself
// where every engine can carry it and a person can type it, else its SHA-256.
// Two different keys never get the same name: what begins like a hash is
// hashed too. Braces are hashed because Redis Cluster takes them for a hash
// tag, the slash because ZooKeeper and etcd users take it for a path.
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

// Token returns a new token of 128 random bits, of a fixed length, so that
// none is the prefix of another.
func Token() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand crashes the process rather
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// Missing reports whether x is nil, or a nil pointer: a client that was declared and
// never made.
func Missing(x any) bool {
	v := reflect.ValueOf(x)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// errGoexit is what a call comes to that has not returned.
var errGoexit = errors.New("the engine's client has ended the goroutine")

// Await runs f and returns its result, or ctx's error as soon as ctx ends. In
// the second case f goes on by itself, and late, if not nil, is called with
// what it returned, so that nothing f obtained is left without an owner.
//
// f runs on a goroutine of its own because memcached's client has no context,
// and Redis's looks at one only if told so at its construction: a call into a
// black hole would last the client's own time-outs times its retries.
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
		// Deferred, or a caller whose ctx never ends would wait for ever when the
		// client, or a hook of its, ends the goroutine.
		defer func() {
			// The driver's panic must not kill a process that merely caches.
			if p := recover(); p != nil {
				r.err = fmt.Errorf("panic in the engine's client: %v\n%s", p, debug.Stack())
			}
			// Unbuffered, so that exactly one side owns the result: either the
			// caller receives it, or ctx has ended and late gets it. With a buffer,
			// a caller that leaves between the send and its own receive would leave
			// an acquired lease behind in the channel.
			select {
			case done <- r:
			case <-ctx.Done():
				if late != nil {
					defer func() { recover() }() // it calls the same client; nobody is left to be told
					late(r.v, r.err)
				}
			}
		}()
		r.v, r.err = f()
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return zero, ctx.Err()
	}
}

// Do is [Await] for what comes to an error alone: there is nothing that could be
// left without an owner.
func Do(ctx context.Context, f func() error) error {
	_, err := Await(ctx, func() (struct{}, error) { return struct{}{}, f() }, nil)
	return err
}
