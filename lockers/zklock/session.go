package zklock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/bellwether-go/bellwether/internal/adapter"
)

// This file is the way to ZooKeeper: one session on one connection, found again after a loss. It adds to the
// client contexts, time limits while connecting, an immediate second server, and an end without a server.

const (
	// dialTimeout bounds a dial, closeTimeout the wait for a server to confirm the end of a session.
	dialTimeout  = time.Second
	closeTimeout = time.Second

	// handshakeTimeout bounds the wait for the answer to a handshake. A ZooKeeper that is just
	// starting accepts some handshakes, never answers them (3.8.0), and answers the next. The limit
	// doubles with each unanswered handshake, for a server that is merely slow.
	handshakeTimeout = time.Second

	// spread is the longest random wait before a lost connection is replaced: a fleet that lost its
	// server does not come back in step.
	spread = 50 * time.Millisecond

	// refusedPause is the wait after refused credentials. The server ends the connection of each try, and a
	// fleet with wrong credentials would connect all the time.
	refusedPause = time.Second

	// sendBuffer holds any request; the largest sets 128 KiB of watches again. The client's own
	// default is 1.5 MiB.
	sendBuffer = 256 << 10
)

var (
	errClosed      = errors.New("the Locker is closed")
	errUnreachable = errors.New("no server answers")
)

// A session is the Locker's session, and its successor after an expiry, safe for concurrent use.
type session struct {
	servers []string
	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	ended   chan struct{} // closed when close is done

	begun atomic.Bool // read by start without the mutex

	mu      sync.Mutex // guards the fields below
	conn    *zk.Conn   // nil before start
	events  <-chan zk.Event
	wire    *wire // the latest connection
	dialed  error // the failure of the latest dial, or nil
	refused error // the refusal that ended the latest lost connection, or nil
	closed  bool

	up       bool          // requests are possible
	unproven bool          // the credentials are not accepted yet, so it is not up
	why      error         // why it is not up, once all servers have been tried
	change   chan struct{} // closed when up, why or closed changes

	id      int64 // the present session, or 0
	expired bool  // a server has reported its end, and no new one was requested yet
	leases  map[*lease]struct{}
}

func (s *session) init(servers []string) {
	s.servers = servers
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.ended = make(chan struct{})
	s.change = make(chan struct{})
	s.leases = make(map[*lease]struct{})
}

// start opens the session in the background, once. watching reports whether there may be watches. expired is
// called when the session and its watches have ended.
func (s *session) start(timeout time.Duration, dial func(context.Context, string, string) (net.Conn, error), auth credentials, onEvent func(zk.Event), watching func() bool, expired func()) {
	if s.begun.Load() {
		return
	}
	// The client calls back before Connect has returned: the mutex makes the callback find the connection.
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

// credentials authenticate the Locker. Without a scheme it does not authenticate.
type credentials struct {
	scheme string
	auth   []byte
}

// authenticate sends the credentials. Over each later connection the client sends them by itself, first.
func (s *session) authenticate(conn *zk.Conn, c credentials) {
	for {
		err := conn.AddAuth(c.scheme, c.auth)
		pause := spread // the connection was lost
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
			pause = refusedPause
		}
		s.mu.Unlock()
		if err == nil {
			return
		}
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
			return
		}
	}
}

// unheard drops the client's log. The calls return the same errors.
type unheard struct{}

func (unheard) Printf(string, ...any) {}

// changed handles a change of the connection's state, on the client's goroutines, in their order.
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
		if s.wire != nil {
			s.refused = s.wire.refused // before the client fails the connection's requests
		}
		if s.up {
			// Calls from now on wait for the outcome of the next attempt.
			s.up = false
			s.announce()
		}
	case zk.StateExpired:
		// All leases at once, before a request in a new session could find the nodes gone.
		lost := s.leases
		s.leases, s.id, s.expired = make(map[*lease]struct{}), 0, true
		s.why = nil // a server answers: calls from now on wait for the next session
		s.mu.Unlock()
		for l := range lost {
			l.lose()
		}
		expired()
		return
	}
	s.mu.Unlock()
}

// announce wakes the waiters for a change. The caller holds mu.
func (s *session) announce() {
	close(s.change)
	s.change = make(chan struct{})
}

// fail records that no server could be reached, with the latest reason: a later one is nearer to the mend.
func (s *session) fail() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.up {
		s.why = errUnreachable
		if reason := cmp.Or(s.dialed, s.refused); reason != nil {
			s.why = fmt.Errorf("%w: %v", errUnreachable, reason) // not wrapped: a context's error would look like the caller's
		}
		s.announce()
	}
}

// expiredJustNow reports once for each expiry that it happened.
func (s *session) expiredJustNow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	expired := s.expired
	s.expired = false
	return expired
}

// await returns the connection when the session is up, or an error when no server answers or ctx ends. Each
// request of a call begins here, so no answers of a server keep a call going after its caller has left.
func (s *session) await(ctx context.Context) (*zk.Conn, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
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

// awaitUp is await without the error for unreachable servers: it waits until a server answers.
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

// explain adds the refusal to the error of a request whose connection it ended.
func (s *session) explain(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused != nil && errors.Is(err, zk.ErrConnectionClosed) {
		return fmt.Errorf("%w: %v", err, s.refused)
	}
	return err
}

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

// hold ties the lease to the session, and returns false if the lease's session has ended already.
func (s *session) hold(l *lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || l.session != s.id {
		return false
	}
	s.leases[l] = struct{}{}
	return true
}

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
		// The server removes the session's nodes before it answers.
		select {
		case <-told:
		case <-time.After(closeTimeout):
		}
	}
	// The client checks for its end between two reads, and a silent server would keep it in one.
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
	w := newWire(c, handshakeTimeout)
	if last := s.wire; last != nil {
		last.Close() // the client forgets it after an expired session
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

// hosts gives the client the next server, on one goroutine. The client's own provider waits for a second
// before it tries a single server again, and resolves names only once.
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

// Next implements [zk.HostProvider], and returns true when all servers have been tried: the client
// then fails its unsent requests and waits for a second. It also returns true when the session is
// closed, because the client checks for its end there.
func (h *hosts) Next() (server string, all bool) {
	if h.session.expiredJustNow() {
		h.tried = 0 // the server answers: it can begin a new session at once
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
