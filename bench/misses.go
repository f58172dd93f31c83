package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// This file measures a miss without other processes: one process asks for cold keys in sequence.

const missScenario = "uncontended misses"

// misses asks for cold keys in sequence in one process. A load only writes two lines to the origin's log.
func (x *trial) misses() error {
	if err := x.open(); err != nil {
		return err
	}
	x.asking = 1
	at := time.Now().Add(20 * time.Millisecond)
	err := x.measure(0, func() error {
		return x.run("misses", func(i int, o *order) {
			o.At, o.Keys = at, x.size.Misses
			if i > 0 {
				o.Keys = 0
			}
		})
	})
	if err != nil {
		return err
	}
	n := float64(x.size.Misses)
	for _, r := range x.reports {
		x.m.Requests += float64(r.Wire.Requests) / n
		x.m.Bytes += float64(r.Wire.Bytes) / n
		if r.Calls > 0 {
			x.m.CPU += float64(r.CPU.Nanoseconds()) / 1e3 / n
		}
	}
	return nil
}

// misses is the process's part.
func (w *workerSide) misses(o order) error {
	t := w.begin(o)
	time.Sleep(time.Until(o.At))
	wire := w.clients.wire.now()
	before, err := processTime(os.Getpid())
	if err != nil {
		return err
	}
	for n := range uint64(o.Keys) {
		ctx, cancel := context.WithTimeout(context.Background(), o.Patience)
		call := &call{due: time.Now(), key: keyOf(o.Key, n), ctx: ctx, cancel: cancel}
		call.v, call.err = w.cache.Get(ctx, call.key)
		call.took = time.Since(call.due)
		call.returned.Store(true)
		t.calls = append(t.calls, call)
	}
	// The work after a miss, such as a release, belongs to it.
	time.Sleep(10 * time.Millisecond)
	after, err := processTime(os.Getpid())
	if err != nil {
		return err
	}
	t.cpu, t.wire = after-before, w.clients.wire.now().since(wire)
	return nil
}

var missColumns = []column[measurement]{
	{"requests", func(m measurement) float64 { return m.Requests }, "%.2f", false},
	{"bytes", func(m measurement) float64 { return m.Bytes }, "%.0f", false},
	{"CPU us", func(m measurement) float64 { return m.CPU }, "%.1f", false},
	{"commands", func(m measurement) float64 { return m.Commands / float64(max(1, m.Calls)) }, "%.2f", false},
	{"p50 ms", func(m measurement) float64 { return m.P50 }, "%.3f", false},
	{"p99 ms", func(m measurement) float64 { return m.P99 }, "%.3f", false},
	{"loads/expiry", func(m measurement) float64 { return m.LoadsPerExpiry }, "%.4g", false},
	{"failures", func(m measurement) float64 { return float64(m.Failures) }, "%.4g", false},
}

// traffic is the traffic of a process's connections to its engines.
type traffic struct {
	Requests int64 // writes: of a single caller each write is a request, or several sent together
	Bytes    int64 // in both directions
}

func (t traffic) since(before traffic) traffic {
	return traffic{t.Requests - before.Requests, t.Bytes - before.Bytes}
}

// A wire counts the traffic of the connections that it dials.
type wire struct{ requests, bytes atomic.Int64 }

func (w *wire) now() traffic { return traffic{w.requests.Load(), w.bytes.Load()} }

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return w.dialBy(ctx, &net.Dialer{Timeout: 5 * time.Second}, network, addr)
}

// dialRueidis is dial with rueidis's signature.
func (w *wire) dialRueidis(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
	return w.dialBy(ctx, d, "tcp", addr)
}

func (w *wire) dialBy(ctx context.Context, d *net.Dialer, network, addr string) (net.Conn, error) {
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("%T over %s: only TCP is counted", c, network)
	}
	return &countedConn{tcp, w}, nil
}

// A countedConn has all methods of the connection: clients use them to check that it is alive.
type countedConn struct {
	*net.TCPConn
	wire *wire
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	c.wire.bytes.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	c.wire.requests.Add(1)
	c.wire.bytes.Add(int64(n))
	return n, err
}
