package page

import (
	"container/list"
	"sync"

	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file bounds the bodies that clients hold, in sum. One copy of a body
// serves all who read it, and the near tier bounds those that it has; but a body
// that is being written, or that the near tier has let go of, is there for as long
// as its slowest client reads it, and slow clients of many URLs are cheap to
// come by.

// smallBody is what a client may hold without being counted: net/http and the
// kernel hold as much for it, and a limit on connections bounds that.
const smallBody = writePart

// reasonMemory is why a body is not kept that would pass HTTPOptions.MaxHeldBytes.
const reasonMemory = "memory"

// bodies count what clients hold beside the near tier. Each body counts once, and while
// it is written as much as is written. It is safe for concurrent use.
type bodies struct {
	limit int64
	near  func(key string, body spool.Body) bool // reports whether the near tier has the body

	mu      sync.Mutex // guards what follows
	written int64      // of the bodies that are being written
	sent    int64      // of the complete bodies that are being sent
	sending list.List  // the *sentBody of each of these, the eldest first
	at      map[*byte]*list.Element
}

// A sentBody is a complete body that is being sent. bodies.mu guards it.
type sentBody struct {
	key     string
	body    spool.Body
	clients map[*pacedWriter]struct{}
	joined  bool // clients read it that have joined it while it was written
}

// hold returns the place of a complete body among those that are being sent. b.mu is held.
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

// release takes a body off that nobody reads any more. b.mu is held.
func (b *bodies) release(at *list.Element) {
	if s := at.Value.(*sentBody); len(s.clients) == 0 && !s.joined {
		b.sending.Remove(at)
		delete(b.at, &s.body[0][0])
		b.sent -= s.body.Len()
	}
}

// besideNear is how much of the complete bodies the near tier does not have. It is looked
// up only if all of them are more than fits. b.mu is held.
func (b *bodies) besideNear(fits int64) int64 {
	n := b.sent
	for e := b.sending.Front(); e != nil && b.sent > fits; e = e.Next() {
		if s := e.Value.(*sentBody); b.near(s.key, s.body) {
			n -= s.body.Len()
		}
	}
	return n
}

// An account is what one body counts for while it is written, and while those
// read it who have joined it then.
type account struct {
	of     *bodies
	n      int64         // guarded by of.mu
	closed bool          // guarded by of.mu
	sent   *list.Element // guarded by of.mu: its place among the bodies that are being sent, once it is complete
}

// reach counts the body as n bytes, if it was less, unless that passes the limit.
func (a *account) reach(n int64) bool {
	b := a.of
	b.mu.Lock()
	defer b.mu.Unlock()
	more := n - a.n
	if more <= 0 || a.closed {
		return true
	}
	if room := b.limit - b.written - more; room < 0 || b.besideNear(room) > room {
		return false
	}
	a.n += more
	b.written += more
	return true
}

// complete makes it a body that is being sent to those who have joined it: what the near
// tier has of these costs nothing.
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

func (a *account) close() {
	b := a.of
	b.mu.Lock()
	defer b.mu.Unlock()
	b.written -= a.n
	a.n, a.closed = 0, true
	if a.sent != nil {
		a.sent.Value.(*sentBody).joined = false
		b.release(a.sent)
		a.sent = nil
	}
}

// send counts a complete body, of which p sends something, until end is called. Where
// that passes the limit, the clients are broken off that have been at it for longest: to
// ask the handler for a body that is stored would be a stampede. What is being written
// takes half of the limit from what is sent at most, or slow clients of the one
// would have all clients of the other broken off.
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

// reasonTooLarge is why a body over MaxBody is not shared.
const reasonTooLarge = "too large"
