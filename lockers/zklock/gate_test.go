package zklock_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/lockers/zklock"
)

// A gate is one Locker's way to ZooKeeper. It counts requests, and can be shut.
type gate struct {
	mu       sync.Mutex // guards all
	shut     bool
	refused  string // an address that is shut
	mute     string // the silent server of the next connection
	conns    []net.Conn
	requests int
}

const opPing = 11

func newGated(tb testing.TB, addr string, session time.Duration, more ...string) (*zklock.Locker, *gate) {
	tb.Helper()
	g := &gate{}
	l := newLocker(tb, append(more, addr)...)
	l.SessionTimeout = session
	l.Dial = g.dial
	return l, g
}

func (g *gate) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut || addr == g.refused {
		return nil, errors.New("the gate is shut")
	}
	addr, g.mute = cmp.Or(g.mute, addr), ""
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	g.conns = append(g.conns, c)
	return &counted{Conn: c, gate: g}, nil
}

// refuse keeps the open connections and refuses new ones.
func (g *gate) refuse() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
}

func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	for _, c := range g.conns {
		c.Close()
	}
	g.conns = nil
}

// drop ends the connections, and leaves the gate open.
func (g *gate) drop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.conns {
		c.Close()
	}
	g.conns = nil
}

// silence connects the next connection to a server that reads and never answers.
func (g *gate) silence(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel completes connections that no process accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mute = silent.Addr().String()
}

// cutOne ends the connection, and shuts the way to its server.
func (g *gate) cutOne() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused = g.conns[0].RemoteAddr().String()
	g.conns[0].Close()
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
}

func (g *gate) count(f func()) int {
	g.mu.Lock()
	before := g.requests
	g.mu.Unlock()
	f()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.requests - before
}

// A counted connection counts requests: the client makes one Write of each.
type counted struct {
	net.Conn
	gate  *gate
	begun bool // the handshake was sent; it has no operation
}

func (c *counted) Write(b []byte) (int, error) {
	if c.begun && len(b) >= 12 && binary.BigEndian.Uint32(b[8:]) != opPing {
		c.gate.mu.Lock()
		c.gate.requests++
		c.gate.mu.Unlock()
	}
	c.begun = true
	return c.Conn.Write(b)
}
