package zklock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// This file is the connection below the client. It bounds the handshake, orders the first replies, refuses
// each packet that would end the process on one of the client's goroutines, and keeps a failed Write from blocking
// them.

const (
	// settingWatches bounds how long replies over a new connection wait for the client to set watches again.
	settingWatches = 500 * time.Millisecond

	// minHandshake is an answer to a handshake without a password. ZooKeeper's has 36 or 37 bytes. The client
	// sends the password again in a buffer of 256 bytes, and could never continue a session with a longer one.
	minHandshake, maxHandshake = 20, 128

	// minReply is the header of a reply: its request's number, a zxid and an error. The largest reply that the
	// Locker asks for has the names in a queue: maxReply has room for 100,000.
	minReply, maxReply = 16, 4 << 20
)

// The operations whose replies the wire reads. opSetWatches is the client's own.
const (
	opError        = -1
	opCreate       = 1
	opGetData      = 4
	opSetData      = 5
	opGetChildren2 = 12
	opMulti        = 14
	opSetWatches   = 101
)

// watchEvent is the number of an event. It answers no request.
const watchEvent = -1

// A wire is a connection with four additions to the client. The first is a time limit for the handshake. The
// client would wait for it ten times as long as for other replies, and for its last bytes for ever.
//
// The second is an order. After the handshake of a continued session, the client sets its watches again, from
// the zxid of its last reply. It reads the zxid on one goroutine while another writes it with the first
// replies: in this data race the zxid may be too new. So no reply is handed to the client until it has sent
// the watches: the client's read of the zxid comes before the Write, and the Write before Read returns.
//
// The third is a check. The client believes each length and count in a packet, and a packet that ends too early
// panics where no guard stands. So Read hands over only whole packets that the client can decode.
//
// The fourth is a single end. A failed Write ends the connection by its Read: see Write.
type wire struct {
	net.Conn
	limit time.Duration
	open  atomic.Bool // the handshake is over

	// For the goroutine that dials, which follows the goroutines that read.
	unanswered bool  // the handshake had no answer in time
	refused    error // the refusal of a packet, or the server's of the handshake, or nil

	set     chan struct{} // closed when the watches are sent, or there are none
	setOnce sync.Once
	handed  bool // the wait for set is over; for the one goroutine that reads after the handshake

	buffer []byte // the latest packet; for the one goroutine that reads
	unread []byte // the part of buffer that the client has not got

	mu      sync.Mutex      // guards pending
	pending map[int32]int32 // the operations of the requests without a reply, by their numbers
}

// newWire returns a wire for a connection without a handshake.
func newWire(c net.Conn, limit time.Duration) *wire {
	return &wire{Conn: c, limit: limit, set: make(chan struct{}), pending: make(map[int32]int32)}
}

// Write implements [net.Conn]. The client makes one Write of each request: its length, its number,
// its operation and the rest. After the handshake, a failed Write closes the connection and returns no error.
//
// With the error, the client answers the request and keeps it among the requests without a reply. At the
// connection's end it answers them all, so this request twice. The channel of the credentials that the client sends
// again after a handshake has room for one answer, and nothing receives there after the error: the second answer
// would block the client's only loop for good, and with it the next connection and Close. Without the error, the
// client's Read fails on the closed connection, and the end answers each request once.
func (w *wire) Write(b []byte) (int, error) {
	if !w.open.Load() || len(b) < 12 {
		return w.Conn.Write(b)
	}
	number, op := int32At(b, 4), int32At(b, 8)
	if number >= 0 { // a ping's is negative
		w.mu.Lock()
		w.pending[number] = op
		w.mu.Unlock()
	}
	if _, err := w.Conn.Write(b); err != nil {
		w.Close()
	}
	if op == opSetWatches {
		w.watchesAreSet()
	}
	return len(b), nil
}

func (w *wire) watchesAreSet() { w.setOnce.Do(func() { close(w.set) }) }

// Read implements [net.Conn]. After an error the client closes the connection.
func (w *wire) Read(b []byte) (int, error) {
	if len(w.unread) == 0 {
		if err := w.receive(); err != nil {
			return 0, err
		}
	}
	n := copy(b, w.unread)
	w.unread = w.unread[n:]
	return n, nil
}

// receive reads the next packet when the client may have it.
func (w *wire) receive() error {
	if !w.open.Load() {
		err := w.readPacket(minHandshake, maxHandshake, checkHandshake)
		w.unanswered = errors.Is(err, os.ErrDeadlineExceeded)
		switch {
		case err == nil || w.refused != nil:
		case w.unanswered:
			w.refused = errNoHandshake
		default:
			w.refused = fmt.Errorf("%w: %v", errEnded, err)
		}
		return err
	}
	err := w.readPacket(minReply, maxReply, w.checkReply)
	if err == nil && !w.handed {
		w.handed = true
		select {
		case <-w.set:
		case <-time.After(settingWatches):
			// The client sends no watches: it never got the watch requested over the last connection.
		}
	}
	return err
}

// readPacket reads a packet: its length, from shortest to longest, and as many bytes.
func (w *wire) readPacket(shortest, longest uint32, check func([]byte) error) error {
	w.buffer = slices.Grow(w.buffer[:0], 4)[:4]
	if _, err := io.ReadFull(w.Conn, w.buffer); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(w.buffer)
	if n < shortest || n > longest {
		w.refused = fmt.Errorf("the server's packet has %d bytes, and not %d to %d", n, shortest, longest)
		return w.refused
	}
	w.buffer = slices.Grow(w.buffer, int(n))[:4+n]
	if _, err := io.ReadFull(w.Conn, w.buffer[4:]); err != nil {
		return err
	}
	if err := check(w.buffer[4:]); err != nil {
		w.refused = fmt.Errorf("the server's packet of %d bytes: %w", n, err)
		return w.refused
	}
	w.unread = w.buffer
	return nil
}

// The reasons for a handshake without an answer. ZooKeeper names none.
var (
	errNoHandshake = errors.New("no answer to the handshake in time")
	errEnded       = errors.New("the server ends the connection in place of an answer to the handshake: it has no majority, it has more connections from this address than maxClientCnxns, or it has lost data that this Locker has seen and needs a new Locker")
)

var (
	errCutOff   = errors.New("its end is missing")
	errTimeout  = errors.New("a session without a timeout")
	errNotAsked = errors.New("a reply to no request")
	errOwnEvent = errors.New("an event of the client's own")
)

// checkHandshake checks an answer to a handshake: a version, a timeout, a session and a password. A session of
// 0 has expired, and has no timeout.
func checkHandshake(b []byte) error {
	timeout, id := int32At(b, 4), binary.BigEndian.Uint64(b[8:])
	if id != 0 && timeout <= 0 {
		return errTimeout
	}
	return checkBytes(b[16:])
}

// checkReply checks a later packet. A reply without a request is refused, because the request could follow
// before the client decodes the reply.
func (w *wire) checkReply(b []byte) error {
	number, failed, body := int32At(b, 0), int32At(b, 12) != 0, b[minReply:]
	if number < 0 {
		if number == watchEvent && len(body) >= 4 && int32At(body, 0) < 0 {
			return errOwnEvent // such as the session's end, which only a handshake may report
		}
		return nil
	}
	w.mu.Lock()
	op, asked := w.pending[number]
	delete(w.pending, number)
	w.mu.Unlock()
	switch {
	case !asked:
		return errNotAsked
	case failed: // the client does not read the body
		return nil
	}
	switch op {
	case opGetData:
		return checkBytes(body)
	case opGetChildren2:
		return checkNames(body)
	case opMulti:
		return checkMulti(body)
	}
	return nil // only numbers and texts: the client compares their lengths itself
}

// checkBytes checks the length at the start of b. A negative length is of no bytes.
func checkBytes(b []byte) error {
	if len(b) < 4 || int(int32At(b, 0)) > len(b)-4 {
		return errCutOff
	}
	return nil
}

// checkNames checks the number of names, for which the client makes room. Each name has at least its length.
func checkNames(b []byte) error {
	if len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) > uint64(len(b)-4)/4 {
		return errCutOff
	}
	return nil
}

// checkMulti checks the results of a transaction: each has a header of 9 bytes, and the last only its header.
func checkMulti(b []byte) error {
	const header, stat = 9, 68
	for len(b) >= header {
		op, last := int32At(b, 0), b[4] != 0
		if b = b[header:]; last {
			return nil
		}
		var n uint64
		switch {
		case op == opError:
			n = 4
		case op == opSetData:
			n = stat
		case op == opCreate && len(b) >= 4:
			n = 4 + uint64(binary.BigEndian.Uint32(b))
		case op == opCreate:
			return errCutOff
		}
		if n > uint64(len(b)) {
			return errCutOff
		}
		b = b[n:]
	}
	return errCutOff
}

func int32At(b []byte, at int) int32 { return int32(binary.BigEndian.Uint32(b[at:])) }

// SetReadDeadline implements [net.Conn].
func (w *wire) SetReadDeadline(t time.Time) error {
	if w.open.Load() {
		return w.Conn.SetReadDeadline(t)
	}
	if t.IsZero() {
		return nil // the handshake's length and its rest have one deadline
	}
	if limit := time.Now().Add(w.limit); limit.Before(t) {
		t = limit
	}
	return w.Conn.SetReadDeadline(t)
}
