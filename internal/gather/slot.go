package gather

import "github.com/bellwether-go/bellwether/internal/slots"

// This file is the slot of a group, which its members share: a member is a [slots.Source].

// A hand is a taking of the group's slot: its first holder takes the slot, and its last gives it back. A round takes
// the slot for its load, and leaves the next member another slot. Group.mu guards the fields.
type hand struct {
	holders int                  // the members with the slot, or waiting for it, and the load
	taken   <-chan struct{}      // closed when the slot is there
	end     func() (free func()) // [slots.Request.End]
}

// there reports whether the slot is there.
func (h *hand) there() bool {
	select {
	case <-h.taken:
		return true
	default:
		return false
	}
}

// Try implements [slots.Source].
func (m *Member) Try() (free func()) {
	g := m.group
	if g.Load == nil {
		return g.Slots.Try()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return m.take(g.try())
}

// Request implements [slots.Source]. All members share one request: several would compete.
func (m *Member) Request(d *slots.Demand) slots.Request {
	g := m.group
	if g.Load == nil {
		return g.Slots.Request(d)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.hand
	if h == nil {
		wait := g.Slots.Request(d)
		h = &hand{taken: wait.Taken(), end: wait.End}
		g.hand = h
	}
	h.holders++
	return &request{m, h}
}

type request struct {
	member *Member
	hand   *hand
}

func (r *request) Taken() <-chan struct{} { return r.hand.taken }

func (r *request) End() (free func()) {
	g := r.member.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if !r.hand.there() {
		g.release(r.hand)
		return nil
	}
	return r.member.take(r.hand)
}

// Queue implements [slots.Source]. Members count once in MaxQueued: many keys must not refuse themselves.
func (m *Member) Queue() bool {
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queued++; g.queued == 1 {
		g.admitted = g.Slots.Queue()
	}
	return g.admitted
}

// Unqueue implements [slots.Source].
func (m *Member) Unqueue() {
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queued--; g.queued == 0 {
		g.Slots.Unqueue()
	}
}

// take gives a member its share of the slot, unless h is nil. mu is held.
func (m *Member) take(h *hand) (free func()) {
	if h == nil {
		return nil
	}
	if m.state == seated {
		m.turn(looking) // the member goes on after a load
	}
	s := &Seat{member: m, hand: h}
	m.seat = s
	return func() { s.leave(nil) }
}

// try adds a holder if the slot is taken, or can be taken now. Otherwise it returns nil. mu is held.
func (g *Group) try() *hand {
	switch {
	case g.hand == nil:
		free := g.Slots.Try()
		if free == nil {
			return nil
		}
		taken := make(chan struct{})
		close(taken)
		g.hand = &hand{taken: taken, end: func() func() { return free }}
	case !g.hand.there():
		return nil
	}
	g.hand.holders++
	return g.hand
}

// release removes a holder. The last holder gives the slot back, or ends the wait for it. mu is held.
func (g *Group) release(h *hand) {
	if h.holders--; h.holders > 0 {
		return
	}
	if g.hand == h { // otherwise a load has taken the slot
		g.hand = nil
	}
	if free := h.end(); free != nil { // otherwise the slot has not come
		free()
	}
}
