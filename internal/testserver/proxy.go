package testserver

import (
	"bytes"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A Fault is a failure mode of a [Proxy], for open and new connections. Like a network, a fault loses
// nothing it holds back: when it ends, requests arrive late, after their callers have given up.
type Fault uint8

const (
	// NoFault passes everything on.
	NoFault Fault = iota
	// BlackHole accepts, and passes nothing on while it lasts.
	BlackHole
	// DeadRequests is half-open: replies pass, requests do not.
	DeadRequests
	// DeadReplies is half-open the other way: requests pass, replies do not.
	DeadReplies
	// SwallowReplies loses each reply, with its connection, after the request was carried out.
	SwallowReplies
	// SlowClose breaks off the next reply of each connection in the middle and ends that direction.
	// Requests go on to the server until the fault ends.
	SlowClose
	// Reset ends every connection with a RST.
	Reset
)

// String returns the fault's name.
func (f Fault) String() string {
	return [...]string{"none", "black hole", "dead requests", "dead replies", "swallowed replies", "slow close", "reset"}[f]
}

// A Proxy, at the host:port Addr, counts a server's traffic, and can act as a bad network at any time.
type Proxy struct {
	Addr string

	server  string
	swallow atomic.Pointer[[]byte] // content of the request whose reply is lost
	counted atomic.Pointer[[]byte] // content of the counted requests
	latency atomic.Int64
	rate    atomic.Int64 // bytes per second of all replies, 0 for no limit
	conns   atomic.Int64
	asked   atomic.Int64

	mu     sync.Mutex // guards the fields below
	fault  Fault
	change chan struct{} // closed when the fault changes or the proxy ends
	links  map[*link]struct{}
	ended  bool
	free   time.Time // when the data let through is over the line
}

// A link is one connection through a proxy.
type link struct {
	client, server *net.TCPConn
	share          float64     // of the latency: connections overtake each other
	lose           atomic.Bool // the next reply is lost
}

// NewProxy returns a proxy before the server at host:port, until the end of the test.
func NewProxy(tb testing.TB, server string) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), server: server, change: make(chan struct{}), links: map[*link]struct{}{}}
	var running sync.WaitGroup
	tb.Cleanup(func() {
		l.Close()
		p.end()
		running.Wait()
	})
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { p.serve(client.(*net.TCPConn)) })
		}
	})
	return p
}

// Set replaces the proxy's fault with f.
func (p *Proxy) Set(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.fault = f
	close(p.change)
	p.change = make(chan struct{})
	if f == Reset {
		for l := range p.links {
			l.reset()
		}
	}
}

// SetLatency delays data, each way, from now on: by at least half of d, and by more than d only data
// close behind other data. Each connection has its own delay, so connections overtake each other.
func (p *Proxy) SetLatency(d time.Duration) { p.latency.Store(int64(d)) }

// SetRate limits the line to the clients to so many bytes per second, shared by all connections.
func (p *Proxy) SetRate(bytesPerSecond int) { p.rate.Store(int64(bytesPerSecond)) }

// lateSleep is the tolerated excess of a sleep on a busy machine.
const lateSleep = 20 * time.Millisecond

// cross waits until n bytes of a reply, and the bytes before them, are over the line.
func (p *Proxy) cross(n int) {
	rate := p.rate.Load()
	if rate == 0 {
		return
	}
	p.mu.Lock()
	// A line does not stand still because a sleep was too long.
	if least := time.Now().Add(-lateSleep); p.free.Before(least) {
		p.free = least
	}
	p.free = p.free.Add(time.Duration(n) * time.Second / time.Duration(rate))
	over := p.free
	p.mu.Unlock()
	time.Sleep(time.Until(over)) // it is a line, which tests use in real time
}

// SwallowReplyTo makes the next request with these bytes pass, and its connection close without the reply.
func (p *Proxy) SwallowReplyTo(request string) {
	b := []byte(request)
	p.swallow.Store(&b)
}

// Armed reports whether that request has still to come.
func (p *Proxy) Armed() bool { return p.swallow.Load() != nil }

// Connections returns the number of connections accepted so far.
func (p *Proxy) Connections() int { return int(p.conns.Load()) }

// CountRequests makes Requests count, from 0, the occurrences of marker in the requests from now on.
func (p *Proxy) CountRequests(marker string) {
	b := []byte(marker)
	p.asked.Store(0)
	p.counted.Store(&b)
}

// Requests returns the count of CountRequests.
func (p *Proxy) Requests() int { return int(p.asked.Load()) }

// end resets open connections and ends the waits of held data.
func (p *Proxy) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	close(p.change)
	for l := range p.links {
		l.reset()
	}
}

// now returns the fault, and the channel that is closed when it changes.
func (p *Proxy) now() (Fault, <-chan struct{}, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault, p.change, p.ended
}

func (p *Proxy) serve(client *net.TCPConn) {
	p.conns.Add(1)
	c, err := net.Dial("tcp", p.server)
	if err != nil {
		client.SetLinger(0) // as the server's own machine would refuse it
		client.Close()
		return
	}
	l := &link{client: client, server: c.(*net.TCPConn), share: .5 + rand.Float64()/2}
	p.mu.Lock()
	dead := p.ended || p.fault == Reset
	if !dead {
		p.links[l] = struct{}{}
	}
	p.mu.Unlock()
	if dead {
		l.reset()
		return
	}
	var requests sync.WaitGroup
	requests.Go(func() { p.carryRequests(l) })
	p.carryReplies(l)
	l.client.Close()
	requests.Wait()
	l.server.Close()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// reset ends both sides; data under way is lost.
func (l *link) reset() {
	l.client.SetLinger(0)
	l.client.Close()
	l.server.SetLinger(0)
	l.server.Close()
}

// carryRequests ends when the client has closed and the server has all its data, or the server is gone.
func (p *Proxy) carryRequests(l *link) {
	// The server's side closes both ways: else a server that sends to a lost client would keep the link.
	defer l.server.Close()
	var tail []byte // of earlier data, in which a counted marker may begin
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if err != nil {
			return
		}
		if marker := p.counted.Load(); marker != nil {
			tail = append(tail, buf[:n]...)
			p.asked.Add(int64(bytes.Count(tail, *marker)))
			if i := bytes.LastIndex(tail, *marker); i >= 0 {
				tail = tail[i+len(*marker):]
			}
			tail = bytes.Clone(tail[max(0, len(tail)-len(*marker)+1):])
		}
		if want := p.swallow.Load(); want != nil && bytes.Contains(buf[:n], *want) && p.swallow.CompareAndSwap(want, nil) {
			l.lose.Store(true)
		}
		if !p.hold(l, BlackHole, DeadRequests) {
			return
		}
		if _, err := l.server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// carryReplies ends when either side is gone, or a reply is lost.
func (p *Proxy) carryReplies(l *link) {
	buf := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buf)
		if err != nil || l.lose.Load() {
			return
		}
		if !p.hold(l, BlackHole, DeadReplies) {
			return
		}
		switch fault, _, _ := p.now(); fault {
		case SwallowReplies:
			return
		case SlowClose:
			l.client.Write(buf[:n/2])
			l.client.CloseWrite()
			p.drain(l)
			return
		}
		p.cross(n)
		if _, err := l.client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// hold delays data for the latency and while a fault lasts, and reports whether the data goes on then.
func (p *Proxy) hold(l *link, faults ...Fault) bool {
	if d := time.Duration(float64(p.latency.Load()) * l.share); d > 0 {
		_, change, ended := p.now()
		for late := time.NewTimer(d); !ended; {
			select {
			case <-late.C:
				ended = true
			case <-change:
				_, change, ended = p.now()
			}
		}
	}
	for {
		fault, change, ended := p.now()
		if ended {
			return false
		}
		if fault != faults[0] && fault != faults[1] {
			return true
		}
		<-change
	}
}

// drain discards the server's replies while the slow close lasts.
func (p *Proxy) drain(l *link) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		buf := make([]byte, 4<<10)
		for {
			if _, err := l.server.Read(buf); err != nil {
				return
			}
		}
	}()
	for {
		fault, change, ended := p.now()
		if ended || fault != SlowClose {
			break
		}
		select {
		case <-change:
		case <-over:
			return
		}
	}
	l.server.Close()
	<-over
}
