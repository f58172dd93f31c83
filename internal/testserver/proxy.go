package testserver

import (
	"bytes"
	"net"
	"sync/atomic"
	"testing"
)

// A Proxy stands before a server and can lose a reply, with its connection.
type Proxy struct {
	// Addr is its host:port.
	Addr string

	swallow atomic.Pointer[[]byte] // what the request whose reply is lost contains
}

// NewProxy returns a proxy before the server at host:port. It ends with the
// test.
func NewProxy(tb testing.TB, server string) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	p := &Proxy{Addr: l.Addr().String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(client, server)
		}
	}()
	return p
}

// SwallowReplyTo makes the proxy pass on the next request that contains these
// bytes, and close its connection in the place of the reply.
func (p *Proxy) SwallowReplyTo(request string) {
	b := []byte(request)
	p.swallow.Store(&b)
}

// Armed reports whether that request has still to come.
func (p *Proxy) Armed() bool { return p.swallow.Load() != nil }

func (p *Proxy) serve(client net.Conn, server string) {
	defer client.Close()
	engine, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer engine.Close()
	var lose atomic.Bool
	go func() {
		defer engine.Close() // ends the loop below
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			if err != nil {
				return
			}
			if want := p.swallow.Load(); want != nil && bytes.Contains(buf[:n], *want) && p.swallow.CompareAndSwap(want, nil) {
				lose.Store(true)
			}
			if _, err := engine.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := engine.Read(buf)
		if err != nil || lose.Load() {
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}
