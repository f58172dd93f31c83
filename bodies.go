package bellwether

import (
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

// reasonMemory is why a body is not kept that would pass HTTPOptions.MaxHeld.
const reasonMemory = "memory"

// bodies count what clients hold. Each body counts once, and while it is written
// as much as is written. It is safe for concurrent use.
type bodies struct {
	limit int64

	mu   sync.Mutex // guards what follows
	held int64
	sent map[*byte]int // complete bodies that are being sent, by their first byte, to the clients of each
}

// An account is what one body counts for while it is written, and while those
// read it who have joined it then.
type account struct {
	of     *bodies
	n      int64 // guarded by of.mu
	closed bool  // guarded by of.mu
}

// reach counts the body as n bytes, if it was less, unless that passes the limit.
func (a *account) reach(n int64) bool {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	more := n - a.n
	switch {
	case more <= 0 || a.closed:
		return true
	case more > a.of.limit-a.of.held:
		return false
	}
	a.n += more
	a.of.held += more
	return true
}

func (a *account) close() {
	a.of.mu.Lock()
	defer a.of.mu.Unlock()
	a.of.held -= a.n
	a.n, a.closed = 0, true
}

// hold counts a complete body until release is called. It returns false, and
// release does nothing, if that passes the limit.
func (b *bodies) hold(body spool.Body) (release func(), ok bool) {
	n := body.Len()
	if n <= smallBody {
		return func() {}, true
	}
	id := &body[0][0]
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sent[id] == 0 {
		if n > b.limit-b.held {
			return func() {}, false
		}
		b.held += n
	}
	if b.sent == nil {
		b.sent = make(map[*byte]int)
	}
	b.sent[id]++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.sent[id]--; b.sent[id] == 0 {
			delete(b.sent, id)
			b.held -= n
		}
	}, true
}
