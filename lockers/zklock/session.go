package zklock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/bellwether-go/bellwether/internal/adapter"
)

// This file is the way to ZooKeeper: one session on one connection, found again
// when it is lost, and given up promptly when nobody answers. The client does
// the protocol; what it lacks (contexts, bounds while it connects, an immediate
// second server, an end without a server) is made here.

const (
	// dialTimeout bounds the making of a connection, closeTimeout how long the
	// end of a session waits to be confirmed.
	dialTimeout  = time.Second
	closeTimeout = time.Second

	// handshakeTimeout bounds how long a server may take to answer a handshake. A
	// ZooKeeper that is just starting takes some and never answers them (3.8.0), and
	// hears the next. It doubles with each that is not answered, for a server
	// that is merely slow.
	handshakeTimeout = time.Second

	// spread is up to how long a lost connection is not replaced, at random: a
	// fleet that has lost its server does not come back in step.
	spread = 50 * time.Millisecond

	// settingWatches bounds how long the replies over a new connection wait until
	// the client has asked for its watches again, which it does at once.
	settingWatches = 500 * time.Millisecond

	// sendBuffer holds any request, of which the largest sets 128 KiB of
	// watches again. The client's own default is 1.5 MiB.
	sendBuffer = 256 << 10
)

var (
	errClosed      = errors.New("the Locker is closed")
	errUnreachable = errors.New("no server answers")
)

// A session is the Locker's session with ZooKeeper, and the next one when that
// has expired. It is safe for concurrent use.
type session struct {
	servers []string
	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	ended   chan struct{} // closed when close is done

	begun atomic.Bool // what start asks first, without the mutex

	mu     sync.Mutex // guards what follows
	conn   *zk.Conn   // nil before start
	events <-chan zk.Event
	wire   *wire // the latest connection
	dialed error // how the latest attempt to make one failed, nil if it did not
	closed bool

	up       bool          // it can be asked
	unproven bool          // the credentials have not been taken yet, so it is not up
	why      error         // why not, once all servers have been tried
	change   chan struct{} // closed when one of these two or closed changes

	id      int64 // the present session, 0 if there is none
	expired bool  // a server has said that it has ended, and was not asked for another yet
	leases  map[*lease]struct{}
}

func (s *session) init(servers []string) {
	s.servers = servers
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.ended = make(chan struct{})
	s.change = make(chan struct{})
	s.leases = make(map[*lease]struct{})
}

// start opens the session in the background, once. onEvent hears what watches
// tell, watching says whether there may be any; expired is called when the
// session, and every watch with it, has ended.
func (s *session) start(timeout time.Duration, dial func(context.Context, string, string) (net.Conn, error), auth credentials, onEvent func(zk.Event), watching func() bool, expired func()) {
	if s.begun.Load() {
		return
	}
	// The client calls back before Connect has returned: it waits for the mutex
	// then, and finds the connection.
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil || s.closed {
		return
	}
	conn, events, err := zk.Connect(s.servers, timeout,
		zk.WithLogger(unheard{}),
		zk.WithLogInfo(false),
		zk.WithMaxConnBufferSize(sendBuffer),
		zk.WithHostProvider(&hosts{session: s}),
		zk.WithDialer(func(network, addr string, _ time.Duration) (net.Conn, error) {
			return s.dial(network, addr, timeout, dial)
		}),
		zk.WithEventCallback(func(ev zk.Event) {
			if ev.Type == zk.EventSession {
				s.changed(ev.State, watching, expired)
			} else {
				onEvent(ev)
			}
		}))
	if err != nil {
		s.why = err // there are no servers
		s.begun.Store(true)
		return
	}
	s.conn, s.events = conn, events
	if auth.scheme != "" {
		s.unproven = true
		go s.authenticate(conn, auth)
	}
	s.begun.Store(true)
}

// credentials are what the Locker proves itself by; without a scheme it does not.
type credentials struct {
	scheme string
	auth   []byte
}

// authenticate gives the server the credentials. Over each later connection the client
// gives them by itself, before all else.
func (s *session) authenticate(conn *zk.Conn, c credentials) {
	for {
		err := conn.AddAuth(c.scheme, c.auth)
		s.mu.Lock()
		switch {
		case err == nil:
			s.unproven, s.why = false, nil
			if s.up = conn.State() == zk.StateHasSession; s.up {
				s.announce()
			}
		case errors.Is(err, zk.ErrAuthFailed):
			s.why = fmt.Errorf("authenticating: %w", err)
			s.announce()
		}
		s.mu.Unlock()
		if err == nil {
			return
		}
		select {
		case <-time.After(spread): // the connection was lost
		case <-s.ctx.Done():
			return
		}
	}
}

// unheard takes what the client would print. The errors come back from the
// calls too.
type unheard struct{}

func (unheard) Printf(string, ...any) {}

// changed hears of the connection's state. It runs on the client's goroutines,
// in their order.
func (s *session) changed(state zk.State, watching func() bool, expired func()) {
	s.mu.Lock()
	switch state {
	case zk.StateHasSession:
		s.up, s.id = !s.unproven, s.conn.SessionID()
		if s.up {
			s.why = nil
		}
		if !watching() {
			s.wire.watchesAreSet()
		}
		s.wire.open.Store(true)
		s.announce()
	case zk.StateDisconnected:
		if s.up {
			// Whoever asks now waits for the outcome of the next attempt.
			s.up = false
			s.announce()
		}
	case zk.StateExpired:
		// All at once and here: before a new session can begin, in which a
		// request would find the nodes gone.
		lost := s.leases
		s.leases, s.id, s.expired = make(map[*lease]struct{}), 0, true
		s.why = nil // a server answers: whoever asks now waits for the next session
		s.mu.Unlock()
		for l := range lost {
			l.lose()
		}
		expired()
		return
	}
	s.mu.Unlock()
}

// announce wakes those who wait for a change. The caller holds mu.
func (s *session) announce() {
	close(s.change)
	s.change = make(chan struct{})
}

// fail says that no server could be reached.
func (s *session) fail() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.up && s.why == nil {
		s.why = errUnreachable
		if s.dialed != nil {
			s.why = fmt.Errorf("%w: %v", errUnreachable, s.dialed) // not wrapped: a context's error would look like the caller's
		}
		s.announce()
	}
}

// expiredJustNow reports once for each expiry that there was one.
func (s *session) expiredJustNow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	expired := s.expired
	s.expired = false
	return expired
}

// await returns the connection when the session stands, and an error when no
// server answers or ctx has ended.
func (s *session) await(ctx context.Context) (*zk.Conn, error) {
	for {
		s.mu.Lock()
		conn, up, why, closed, change := s.conn, s.up, s.why, s.closed, s.change
		s.mu.Unlock()
		switch {
		case closed:
			return nil, errClosed
		case up:
			return conn, nil
		case why != nil:
			return nil, why
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// awaitUp is await for those who have time until a server answers.
func (s *session) awaitUp(ctx context.Context) (*zk.Conn, error) {
	for {
		s.mu.Lock()
		conn, up, change := s.conn, s.up, s.change
		s.mu.Unlock()
		if up {
			return conn, nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// now returns the connection if the session stands.
func (s *session) now() (*zk.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, errClosed
	case !s.up:
		return nil, errUnreachable
	}
	return s.conn, nil
}

// hold makes the lease one that ends with the session, and reports with false
// that its session has ended already.
func (s *session) hold(l *lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || l.session != s.id {
		return false
	}
	s.leases[l] = struct{}{}
	return true
}

// leave forgets a lease.
func (s *session) leave(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, l)
}

// close ends the session and returns when the client has ended.
func (s *session) close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.ended
		return
	}
	s.closed = true
	conn, events, up, lost := s.conn, s.events, s.up, s.leases
	s.leases = make(map[*lease]struct{})
	s.announce()
	s.mu.Unlock()
	defer close(s.ended)
	s.cancel()
	for l := range lost {
		l.lose()
	}
	if conn == nil {
		return
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		conn.Close()
	}()
	if up {
		// The server takes the session's nodes away before it answers.
		select {
		case <-told:
		case <-time.After(closeTimeout):
		}
	}
	// The client looks at its end only between two reads, and a silent server
	// would keep it there.
	s.mu.Lock()
	if s.wire != nil {
		s.wire.Close()
	}
	s.mu.Unlock()
	for range events {
		// The client closes the channel when its goroutines have ended.
	}
	<-told
}

// dial makes a connection for the client.
func (s *session) dial(network, addr string, timeout time.Duration, dial func(context.Context, string, string) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, dialTimeout)
	defer cancel()
	// User code, which may panic: this is the client's goroutine.
	c, err := adapter.Await(ctx, func() (net.Conn, error) { return dial(ctx, network, addr) }, func(c net.Conn, err error) {
		if err == nil {
			c.Close()
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dialed = err; err != nil {
		return nil, err
	}
	w := &wire{Conn: c, limit: handshakeTimeout, set: make(chan struct{})}
	if last := s.wire; last != nil {
		last.Close() // the client forgets it where a session has expired
		if last.unanswered {
			w.limit = min(2*last.limit, max(2*timeout/3, 2*time.Second))
		}
	}
	s.wire = w
	if s.closed {
		w.Close()
		return nil, errClosed
	}
	return w, nil
}

// A wire is a connection with two things that the client lacks. One is a bound on
// its handshake, for which it would wait ten times as long as for anything else,
// and for the last bytes of which it would wait for ever.
//
// The other is an order. After the handshake of a session that goes on, the
// client sets its watches again, from the zxid of the last reply it has had. It
// reads that on one goroutine while another takes the first replies over the new
// connection, and writes it: a data race of the client's, by which the zxid may
// be too new. So until it has sent the watches no reply is handed to it. What it
// has read to send them comes before the Write, and that before Read returns.
type wire struct {
	net.Conn
	limit time.Duration
	open  atomic.Bool // the handshake is over

	unanswered bool // the handshake was not answered in time; for the goroutine that makes connections

	set     chan struct{} // closed when the watches are sent, or there are none
	setOnce sync.Once
	handed  bool // the wait for set is over; for the one goroutine that reads after the handshake
}

// opSetWatches is the operation of the request that sets watches again.
const opSetWatches = 101

// Write implements [net.Conn]. The client makes one Write of each request: its
// length, its number, its operation and the rest.
func (w *wire) Write(b []byte) (int, error) {
	n, err := w.Conn.Write(b)
	if w.open.Load() && len(b) >= 12 && binary.BigEndian.Uint32(b[8:]) == opSetWatches {
		w.watchesAreSet()
	}
	return n, err
}

// watchesAreSet lets the replies through.
func (w *wire) watchesAreSet() { w.setOnce.Do(func() { close(w.set) }) }

// Read implements [net.Conn].
func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if !w.open.Load() {
		w.unanswered = errors.Is(err, os.ErrDeadlineExceeded)
		return n, err
	}
	if err == nil && !w.handed {
		w.handed = true
		select {
		case <-w.set:
		case <-time.After(settingWatches):
			// The client sends none: the watch that the Locker knows was asked
			// for over the last connection, and the client has not got it.
		}
	}
	return n, err
}

// SetReadDeadline implements [net.Conn].
func (w *wire) SetReadDeadline(t time.Time) error {
	if w.open.Load() {
		return w.Conn.SetReadDeadline(t)
	}
	if t.IsZero() {
		return nil // of the handshake's two reads the second keeps the deadline of the first
	}
	if limit := time.Now().Add(w.limit); limit.Before(t) {
		t = limit
	}
	return w.Conn.SetReadDeadline(t)
}

// hosts tells the client which server is next. Its own would do so too, but
// waits for a second before it tries the only server again, and looks names up
// just once. It is used by one goroutine of the client.
type hosts struct {
	session *session
	servers []string
	next    int
	tried   int // attempts since the last connection
	begun   bool
}

// Init implements [zk.HostProvider]. The client has shuffled the servers.
func (h *hosts) Init(servers []string) error {
	h.servers = servers
	return nil
}

// Len implements [zk.HostProvider].
func (h *hosts) Len() int { return len(h.servers) }

// Next implements [zk.HostProvider]. It reports true when all servers have been
// tried: then the client fails what nobody has been asked, and waits for a
// second. It does the same when the session is closed, for that is where the
// client notices.
func (h *hosts) Next() (server string, all bool) {
	if h.session.expiredJustNow() {
		h.tried = 0 // the server answers: a new session can be had at once
	}
	if h.begun && h.tried == 0 {
		select {
		case <-time.After(rand.N(spread)):
		case <-h.session.ctx.Done():
		}
	}
	h.begun = true
	all = h.tried > 0 && h.tried%len(h.servers) == 0
	if all {
		h.session.fail()
	}
	server = h.servers[h.next]
	h.next = (h.next + 1) % len(h.servers)
	h.tried++
	return server, all || h.session.ctx.Err() != nil
}

// Connected implements [zk.HostProvider].
func (h *hosts) Connected() { h.tried = 0 }
