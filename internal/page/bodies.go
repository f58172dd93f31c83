package page

import (
	"container/list"
	"sync"

	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file bounds the bodies that clients hold, in sum. A body outside the near tier stays in
// memory as long as its slowest client reads, and slow clients of many URLs are cheap to create.

// smallBody is the largest uncounted body: net/http and the kernel buffer as much for each client.
const smallBody = writePart

// The details for a body that is not kept.
const (
	reasonTooLarge = "too large" // it has passed MaxBodyBytes
	reasonMemory   = "memory"    // it would pass MaxHeldBytes
)

// bodies count the bytes that clients hold beside the near tier. Each body counts once; a body in
// progress counts with its present length. All methods are safe for concurrent use.
type bodies struct {
	limit int64
	near  func(key string, body spool.Body) bool // reports whether the near tier has the body

	mu      sync.Mutex // guards the fields below
	written int64      // bytes of the bodies in progress
	sent    int64      // bytes of the complete bodies that are being sent
	sending list.List  // the *sentBody of each, the eldest first
	at      map[*byte]*list.Element
}

// A sentBody is a complete body on the way to clients. bodies.mu guards all fields.
type sentBody struct {
	key     string
	body    spool.Body
	clients map[*pacedWriter]struct{}
	joined  bool // it has readers that joined while it was written
}

// hold returns the element of a complete body in sending, and adds it if necessary. b.mu is held.
func (b *bodies) hold(key string, body spool.Body) *list.Element {
	id := &body[0][0]
	if at := b.at[id]; at != nil {
		return at
	}
	if b.at == nil {
		b.at = make(map[*byte]*list.Element)
	}
	at := b.sending.PushBack(&sentBody{key: key, body: body, clients: make(map[*pacedWriter]struct{})})
	b.at[id] = at
	b.sent += body.Len()
	return at
}

// release removes a body without readers. b.mu is held.
func (b *bodies) release(at *list.Element) {
	if s := at.Value.(*sentBody); len(s.clients) == 0 && !s.joined {
		b.sending.Remove(at)
		delete(b.at, &s.body[0][0])
		b.sent -= s.body.Len()
	}
}

// besideNear is the number of bytes of the complete bodies outside the near tier. If all complete bodies fit into fits,
// it counts all of them, and does not look into the near tier. b.mu is held.
func (b *bodies) besideNear(fits int64) int64 {
	n := b.sent
	for e := b.sending.Front(); e != nil && b.sent > fits; e = e.Next() {
		if s := e.Value.(*sentBody); b.near(s.key, s.body) {
			n -= s.body.Len()
		}
	}
	return n
}

// An account is the share of a body in bodies, from the first byte until the first readers have left.
type account struct {
	of     *bodies
	n      int64         // guarded by of.mu
	closed bool          // guarded by of.mu
	sent   *list.Element // guarded by of.mu: the complete body's element in sending
}

// reach raises the account to n bytes. The result is false if the sum would pass the limit.
func (a *account) reach(n int64) bool {
	b := a.of
	b.mu.Lock()
	defer b.mu.Unlock()
	more := n - a.n
	if more <= 0 || a.closed {
		return true
	}
	if room := b.limit - b.written - more; b.besideNear(room) > room {
		return false
	}
	a.n += more
	b.written += more
	return true
}

// complete moves the account to the complete bodies: a body in the near tier costs nothing.
func (a *account) complete(key string, body spool.Body) {
	b := a.of
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.closed || body.Len() <= smallBody {
		return
	}
	b.written -= a.n
	a.n, a.closed = 0, true
	a.sent = b.hold(key, body)
	a.sent.Value.(*sentBody).joined = true
}

// close ends the account. It is called once.
func (a *account) close() {
	b := a.of
	b.mu.Lock()
	defer b.mu.Unlock()
	b.written -= a.n
	a.closed = true
	if a.sent != nil {
		a.sent.Value.(*sentBody).joined = false
		b.release(a.sent)
	}
}

// send counts a complete body, which p sends, until end is called. Beyond the limit send breaks off the
// clients of the eldest bodies: asking the handler for a stored body would be a stampede. Bodies in progress
// take at most half of the limit, or their slow clients would break off all clients of complete ones.
func (b *bodies) send(key string, body spool.Body, p *pacedWriter) (end func()) {
	if body.Len() <= smallBody {
		return func() {}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at := b.hold(key, body)
	at.Value.(*sentBody).clients[p] = struct{}{}
	fits := b.limit - min(b.written, b.limit/2)
	excess := b.besideNear(fits) - fits
	for e := b.sending.Front(); excess > 0 && e != at; e = e.Next() {
		eldest := e.Value.(*sentBody)
		if len(eldest.clients) == 0 || b.near(eldest.key, eldest.body) {
			continue
		}
		for slow := range eldest.clients {
			slow.hurry()
		}
		excess -= eldest.body.Len()
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(at.Value.(*sentBody).clients, p)
		b.release(at)
	}
}
