package testserver

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A Meter, at the host:port Addr, counts the requests of a server's clients. It knows the engines'
// protocols, so it counts requests, not packets, and can tell watches from single requests.
type Meter struct {
	Addr string

	protocol protocol

	mu       sync.Mutex // guards the fields below
	requests map[string]int
	trips    int
	conns    map[net.Conn]struct{} // nil once the test has ended
	running  sync.WaitGroup
}

// A protocol reads one request of a client and returns its kind, or "" for a ping and the like.
// state belongs to the connection, and is zero at its beginning.
type protocol func(r *bufio.Reader, state *int) (kind string, err error)

var watches = map[string]bool{"subscribe": true, "ssubscribe": true, "watch": true, "getChildren": true}

// NewMeter returns a meter before the server, until the end of the test.
func NewMeter(tb testing.TB, server *Server) *Meter {
	tb.Helper()
	if server.protocol == nil {
		tb.Fatalf("no meter for the server at %s", server.Addr)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	m := &Meter{Addr: l.Addr().String(), protocol: server.protocol, requests: map[string]int{}, conns: map[net.Conn]struct{}{}}
	m.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			m.running.Go(func() { m.serve(client, server.Addr) })
		}
	})
	tb.Cleanup(func() {
		l.Close()
		m.mu.Lock()
		for c := range m.conns {
			c.Close()
		}
		m.conns = nil
		m.mu.Unlock()
		m.running.Wait()
	})
	return m
}

// Requests returns the number of requests of each kind.
func (m *Meter) Requests() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.requests)
}

// RoundTrips returns how often a client has sent data after all its earlier requests on the
// connection were answered. On a connection with concurrent requests every request counts.
func (m *Meter) RoundTrips() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.trips
}

// Watches returns the number of requests that set up a watch.
func (m *Meter) Watches() int {
	n := 0
	for kind, requests := range m.Requests() {
		if watches[kind] {
			n += requests
		}
	}
	return n
}

// keep ties c to the end of the test, and returns false after that.
func (m *Meter) keep(c net.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conns == nil {
		c.Close()
		return false
	}
	m.conns[c] = struct{}{}
	return true
}

func (m *Meter) leave(c net.Conn) {
	c.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.conns, c)
}

func (m *Meter) serve(client net.Conn, server string) {
	if !m.keep(client) {
		return
	}
	defer m.leave(client)
	engine, err := net.Dial("tcp", server)
	if err != nil || !m.keep(engine) {
		return
	}
	defer m.leave(engine)

	var asked, answered atomic.Int64 // requests and parts of replies; only their equality matters
	m.running.Go(func() {
		defer client.Close() // ends the loop below
		buf := make([]byte, 64<<10)
		for {
			n, err := engine.Read(buf)
			if err != nil {
				return
			}
			answered.Store(asked.Load())
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	})

	// A request is counted before it goes on, so a client with a reply finds its request counted.
	var read bytes.Buffer
	in, state := bufio.NewReader(io.TeeReader(client, &read)), 0
	for {
		kind, err := m.protocol(in, &state)
		if err == nil && kind != "" {
			m.mu.Lock()
			m.requests[kind]++
			if answered.Load() == asked.Load() || concurrent[kind] {
				m.trips++
			}
			m.mu.Unlock()
			asked.Add(1)
		}
		// Data that came together goes on together: else the reply to the first command of a
		// pipeline would come before its second is counted.
		if err == nil && in.Buffered() > 0 {
			continue
		}
		if _, werr := read.WriteTo(engine); err != nil || werr != nil {
			return
		}
	}
}

// concurrent are the kinds of requests that share a connection without waiting for each other.
var concurrent = map[string]bool{"call": true, "watch": true, "message": true}

// resp is Redis's protocol: an array of strings, beginning with the command.
func resp(r *bufio.Reader, _ *int) (kind string, err error) {
	words, err := respLength(r, '*')
	for i := range words {
		n, err := respLength(r, '$')
		if err != nil {
			return "", err
		}
		word := make([]byte, n+2)
		if _, err := io.ReadFull(r, word); err != nil {
			return "", err
		}
		if i == 0 {
			kind = strings.ToLower(string(word[:n]))
		}
	}
	switch kind {
	case "ping", "hello", "client": // of the connection, not of its user
		kind = ""
	}
	return kind, err
}

func respLength(r *bufio.Reader, mark byte) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != mark {
		return 0, fmt.Errorf("not RESP: %q", line)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// memcacheText is memcached's protocol: a line, and a value after storing commands.
func memcacheText(r *bufio.Reader, _ *int) (kind string, err error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	words := strings.Fields(line)
	if len(words) == 0 {
		return "", errors.New("an empty line in the place of a command")
	}
	switch words[0] {
	case "set", "add", "replace", "append", "prepend", "cas":
		n, err := strconv.Atoi(words[4])
		if err != nil {
			return "", err
		}
		_, err = r.Discard(n + 2)
		return words[0], err
	}
	return words[0], nil
}

// dynamoHTTP is DynamoDB's protocol: HTTP, with the operation in a field.
func dynamoHTTP(r *bufio.Reader, _ *int) (kind string, err error) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return "", err
	}
	_, kind, _ = strings.Cut(req.Header.Get("X-Amz-Target"), ".")
	return kind, nil
}

// zookeeperFrames is ZooKeeper's protocol: frames preceded by their length. The first is the
// handshake; the others begin with a number and the operation.
func zookeeperFrames(r *bufio.Reader, frames *int) (kind string, err error) {
	var head [12]byte
	if _, err := io.ReadFull(r, head[:4]); err != nil {
		return "", err
	}
	n := int(binary.BigEndian.Uint32(head[:4]))
	if *frames++; *frames == 1 || n < 8 {
		_, err = r.Discard(n)
		return "", err
	}
	if _, err := io.ReadFull(r, head[4:]); err != nil {
		return "", err
	}
	_, err = r.Discard(n - 8)
	switch op := int32(binary.BigEndian.Uint32(head[8:])); op {
	case 11, 100, -11: // ping, credentials, the end of a session
		return "", err
	case 8, 12:
		return "getChildren", err // zklock's watches
	default:
		return fmt.Sprint("operation ", op), err
	}
}

// etcdHTTP2 is gRPC's protocol: HTTP/2, with a request's one message in a data frame that ends its
// stream. A watch is a message on a stream that stays open.
func etcdHTTP2(r *bufio.Reader, frames *int) (kind string, err error) {
	if *frames++; *frames == 1 {
		_, err = r.Discard(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
		return "", err
	}
	var head [9]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", err
	}
	n := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	const data, endStream, createRequest = 0, 1, 1<<3 | 2 // the last is a field of etcd's WatchRequest
	switch {
	case head[3] != data || n == 0: // an empty one closes its stream
	case head[4]&endStream != 0:
		kind = "call"
	default:
		kind = "message"
		if message, err := r.Peek(6); err == nil && n >= 6 && message[5] == createRequest { // after gRPC's own five
			kind = "watch"
		}
	}
	_, err = r.Discard(n)
	return kind, err
}
