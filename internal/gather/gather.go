// Package gather lets the keys of a batch load together. Each key goes its own way to its load, and
// may wait for a lease or a slot meanwhile; the keys that are ready are loaded in one call.
package gather

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/slots"
)

// lull is how long the ready members wait, while no member moves, for the others: one slow answer
// of an engine must not hold up a batch, and a dead process's leases do not end all at one moment.
const lull = 20 * time.Millisecond

// Options configure a Group.
type Options[K, R any] struct {
	// Load loads the keys of some members: it sets the Result of each seat. It is called on a
	// goroutine of its own, and must not panic. Nil: each member loads by itself, and none
	// calls [Member.Load].
	Load func(ctx context.Context, seats []*Seat[K, R])
	// Slots has the slots for the loads. The first load's slot is shared by all members.
	Slots *slots.Slots
	// Running counts the goroutine that waits for a shared slot.
	Running *sync.WaitGroup
	// Longest bounds the time from the first ready member of a load to the load.
	Longest time.Duration
	// Closed reports whether the cache is closed. Then no load begins: the members leave.
	Closed func() bool
}

// A Group is the members of one batch: keys, however the caller tells them apart, and the results of
// their loads. It is safe for concurrent use.
type Group[K, R any] struct {
	Options[K, R]
	Demand slots.Demand // whether a load waits for a member
	shared *slots.Shared

	mu            sync.Mutex   // guards what follows, and all fields of members
	looking, away int          // members in these states
	loaded        bool         // the first load has begun
	queued        int          // of the members, those that wait for a slot
	admitted      bool         // these may
	open          *round[K, R] // the members that are ready to load; nil if there are none
}

// New returns a group without members.
func New[K, R any](o Options[K, R]) *Group[K, R] {
	return &Group[K, R]{Options: o, shared: o.Slots.Share(o.Running)}
}

// A Member is one key of a group. It implements [slots.Source].
type Member[K, R any] struct {
	group *Group[K, R]
	key   K
	order int // among the keys of the batch

	state state
	seat  *Seat[K, R] // of the state loading
	hand  *slots.Hand // the member's slot
	free  func()      // gives that back, the first time
}

// A state is what a group knows of a member.
type state uint8

const (
	looking state = iota // on its way to its load or its end
	away                 // from it: it waits for another process
	loading              // in a round
	ended
)

// Join adds a member. All members join before the first one looks for a slot.
func (g *Group[K, R]) Join(key K, order int) *Member[K, R] {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.looking++
	return &Member[K, R]{group: g, key: key, order: order}
}

// Held says that the member waits for another process: no other member waits for it.
func (m *Member[K, R]) Held() { m.turnTo(away) }

// End says that the member has its answer, or none.
func (m *Member[K, R]) End() { m.turnTo(ended) }

func (m *Member[K, R]) turnTo(s state) {
	m.group.mu.Lock()
	defer m.group.mu.Unlock()
	m.turn(s)
}

// Try implements [slots.Source].
func (m *Member[K, R]) Try() (free func()) {
	switch g := m.group; {
	case g.Load == nil:
		return g.Slots.Try()
	case m.shares():
		return m.take(g.shared.Try())
	default:
		return m.take(slots.Own(g.Slots.Try()))
	}
}

// Wait implements [slots.Source].
func (m *Member[K, R]) Wait(ctx context.Context, d *slots.Demand) (free func()) {
	switch g := m.group; {
	case g.Load == nil:
		return g.Slots.Wait(ctx, d)
	case m.shares():
		return m.take(g.shared.Wait(ctx, d))
	default:
		return m.take(slots.Own(g.Slots.Wait(ctx, d)))
	}
}

// shares reports whether the slot that the member is to take is the first load's, and not one of
// its own.
func (m *Member[K, R]) shares() bool {
	m.group.mu.Lock()
	defer m.group.mu.Unlock()
	return !m.group.loaded
}

func (m *Member[K, R]) take(h *slots.Hand) (free func()) {
	if h == nil {
		return nil
	}
	m.group.mu.Lock()
	defer m.group.mu.Unlock()
	m.hand, m.free = h, sync.OnceFunc(h.Release)
	return m.free
}

// Queue implements [slots.Source]. The members count as one among MaxQueued: a call for more keys
// than MaxQueued would otherwise stand in its own way.
func (m *Member[K, R]) Queue() bool {
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queued++; g.queued == 1 {
		g.admitted = g.Slots.Queue()
	}
	return g.admitted
}

// Unqueue implements [slots.Source].
func (m *Member[K, R]) Unqueue() {
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.queued--; g.queued == 0 {
		g.Slots.Unqueue()
	}
}

// A round is one call of the group's load.
type round[K, R any] struct {
	seats  []*Seat[K, R]
	opened time.Time
	timer  *time.Timer // begins it after a lull; nil until there is one
	load   func(*slots.Hand)
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the seats have their results

	present int  // guarded by Group.mu: the seats whose members wait
	begun   bool // guarded by Group.mu
}

// A Seat is one key in a load.
type Seat[K, R any] struct {
	Key    K
	Result R // set by Options.Load

	member *Member[K, R]
	hand   *slots.Hand
}

// Load has the member's key loaded with those that are ready too. The error is ctx's cause, if that
// ends before the load does: the load goes on for the other members, and is cancelled when all of
// them have left it.
func (m *Member[K, R]) Load(ctx context.Context) (result R, err error) {
	s := &Seat[K, R]{Key: m.key, member: m}
	r := m.arrive(ctx, s)
	if r == nil && ctx.Err() == nil {
		// The load that its slot was for has gone without it.
		if s.hand = slots.Own(m.group.Slots.Wait(ctx, &m.group.Demand)); s.hand != nil {
			defer s.hand.Release()
			r = m.arrive(ctx, s)
		}
	}
	if r == nil {
		return result, context.Cause(ctx)
	}
	select {
	case <-r.done:
		return s.Result, nil
	case <-ctx.Done():
		r.leave(s, context.Cause(ctx))
		return result, context.Cause(ctx)
	}
}

// arrive takes a seat in the open round, or opens one, with the seat's slot or else the member's. It
// returns nil if a load has that slot already, or the member's rebuild has given this load up: by
// now that may have a successor.
func (m *Member[K, R]) arrive(ctx context.Context, s *Seat[K, R]) *round[K, R] {
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.hand == nil {
		s.hand = m.hand
	}
	if ctx.Err() != nil {
		s.hand = nil
		return nil
	}
	if s.hand.Spent {
		// It waits for a slot of its own now. With its share of this one it would
		// wait for itself: the last share to be given back frees the slot. As its
		// rebuild has not given this load up, there is no successor whose share
		// it could be.
		m.free()
		s.hand = nil
		return nil
	}
	r := g.open
	if r == nil {
		// The values of the context stay; its end is one member's only.
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		r = &round[K, R]{opened: time.Now(), cancel: cancel, done: make(chan struct{})}
		r.load = func(h *slots.Hand) {
			defer cancel(nil)
			defer close(r.done)
			defer h.Release()
			g.Load(ctx, r.seats)
		}
		g.open = r
	}
	r.seats = append(r.seats, s)
	r.present++
	m.seat = s
	m.turn(loading)
	return r
}

// leave gives up the seat of a member that does not wait for the load any more.
func (r *round[K, R]) leave(s *Seat[K, R], cause error) {
	m := s.member
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	r.present--
	if !r.begun {
		r.seats = slices.DeleteFunc(r.seats, func(other *Seat[K, R]) bool { return other == s })
	}
	if r.present == 0 {
		r.cancel(cause)
		if g.open == r {
			g.open = nil
			r.stop()
		}
	}
	if m.seat == s && m.state == loading {
		m.turn(looking)
	}
}

func (r *round[K, R]) stop() {
	if r.timer != nil {
		r.timer.Stop()
	}
}

// turn notes where the member is, and begins the open round if it is time:
//
//   - when no member is on its way, those apart that are away;
//   - when these have ended too, for a round that is not the first: its members have been away
//     themselves, and what has come to one of them may come to the rest;
//   - when no member has moved for a while, or after Longest.
//
// So there is an end to it whatever the others do. Group.mu is held.
func (m *Member[K, R]) turn(s state) {
	g := m.group
	g.count(m.state, -1)
	m.state = s
	g.count(s, 1)
	r := g.open
	if r == nil {
		return
	}
	pause := min(lull, g.Longest-time.Since(r.opened))
	switch {
	case g.looking == 0 && (!g.loaded || g.away == 0) || pause <= 0:
		g.start(r)
	case r.timer == nil:
		r.timer = time.AfterFunc(pause, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.open == r {
				g.start(r)
			}
		})
	default:
		r.timer.Reset(pause)
	}
}

// count adds n to the number of members in the state. Group.mu is held.
func (g *Group[K, R]) count(s state, n int) {
	switch s {
	case looking:
		g.looking += n
	case away:
		g.away += n
	}
}

// start begins the open round. Group.mu is held.
func (g *Group[K, R]) start(r *round[K, R]) {
	r.stop()
	if g.Closed() {
		return // its members are leaving it
	}
	g.open, g.loaded, r.begun = nil, true, true
	slices.SortFunc(r.seats, func(x, y *Seat[K, R]) int { return cmp.Compare(x.member.order, y.member.order) })
	// Each seat had a slot that no load had. The load takes one, and keeps it
	// when its members have given up on it and it has not returned.
	hand := r.seats[slices.IndexFunc(r.seats, func(s *Seat[K, R]) bool { return !s.hand.Spent })].hand
	hand.Spent = true
	hand.Hold()
	go r.load(hand)
}
