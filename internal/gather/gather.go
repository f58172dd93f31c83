// Package gather joins the loads of a batch: keys with their leases and slots are loaded in one call.
package gather

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/slots"
)

// shortestLull is the least time for which the ready members wait while no member moves: one slow answer must
// not hold up a batch, and a dead process's leases do not all end together. While all members are slow, because
// of their engines or a crowded machine, so are the pauses between them: they wait for half as long again.
const shortestLull = 20 * time.Millisecond

// Options configure a Group.
type Options[K, R any] struct {
	// Load loads the keys of some members: it sets the Result of each seat. It runs on its own
	// goroutine, and must not panic. Nil: each member loads by itself, and does not call [Member.Load].
	Load func(ctx context.Context, seats []*Seat[K, R])
	// Slots has the slots for the loads. All members share the next load's slot.
	Slots *slots.Slots
	// Running counts the goroutine that waits for a shared slot.
	Running *sync.WaitGroup
	// Longest bounds the time from the first ready member of a load to the load.
	Longest time.Duration
	// Closed reports whether the cache is closed. Then no load begins, and the members leave.
	Closed func() bool
}

// A Group is the members of a batch. All methods are safe for concurrent use.
type Group[K, R any] struct {
	Options[K, R]
	Demand slots.Demand // whether a load waits for a member
	shared *slots.Shared
	began  time.Time

	mu            sync.Mutex   // guards the fields below, and all fields of members
	looking, away int          // members in these states
	loaded        bool         // the first load has begun
	queued        int          // members that wait for a slot
	admitted      bool         // the queued members may wait
	open          *round[K, R] // the members that are ready to load; nil if there are none
}

// New returns a group without members.
func New[K, R any](o Options[K, R]) *Group[K, R] {
	return &Group[K, R]{Options: o, shared: o.Slots.Share(o.Running), began: time.Now()}
}

// A Member is a key of a group. It implements [slots.Source].
type Member[K, R any] struct {
	group *Group[K, R]
	key   K
	order int // the key's place in the batch

	state state
	seat  *Seat[K, R] // in the state loading
	hand  *slots.Hand // the member's slot
	free  func()      // gives the slot back, the first time
}

type state uint8

const (
	looking state = iota // on the way to a load or the end
	away                 // it waits for another process
	loading              // in a round
	ended
)

// Join adds a member. All members join before the first member looks for a slot.
func (g *Group[K, R]) Join(key K) *Member[K, R] {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.looking++
	return &Member[K, R]{group: g, key: key, order: g.looking}
}

// Held reports the member's wait for another process: the other members go on.
func (m *Member[K, R]) Held() { m.turnTo(away) }

// End reports the member's end, with or without an answer.
func (m *Member[K, R]) End() { m.turnTo(ended) }

func (m *Member[K, R]) turnTo(s state) {
	m.group.mu.Lock()
	defer m.group.mu.Unlock()
	m.turn(s)
}

// Try implements [slots.Source].
func (m *Member[K, R]) Try() (free func()) {
	if m.group.Load == nil {
		return m.group.Slots.Try()
	}
	return m.take(m.group.shared.Try())
}

// Request implements [slots.Source].
func (m *Member[K, R]) Request(d *slots.Demand) slots.Request {
	if m.group.Load == nil {
		return m.group.Slots.Request(d)
	}
	return &request[K, R]{m.group.shared.Request(d), m}
}

type request[K, R any] struct {
	*slots.Hand
	member *Member[K, R]
}

func (r *request[K, R]) End() (free func()) { return r.member.take(r.Hand.End()) }

func (m *Member[K, R]) take(h *slots.Hand) (free func()) {
	if h == nil {
		return nil
	}
	m.group.mu.Lock()
	defer m.group.mu.Unlock()
	m.hand, m.free = h, sync.OnceFunc(h.Release)
	return m.free
}

// Queue implements [slots.Source]. Members count once in MaxQueued: many keys must not refuse themselves.
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

// A round is a call of the group's load.
type round[K, R any] struct {
	seats  []*Seat[K, R]
	opened time.Time
	timer  *time.Timer // begins the round when it is due; nil at first
	load   func(*slots.Hand)
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the seats have their results

	// Guarded by Group.mu.
	present int       // seats whose members wait
	due     time.Time // when the round begins unless a member moves
	begun   bool
}

// A Seat is a key in a load.
type Seat[K, R any] struct {
	Key    K
	Result R // set by Options.Load

	member *Member[K, R]
	hand   *slots.Hand
	free   func() // gives the hand back, the first time
}

// Load loads the member's key together with the other ready keys. If ctx ends first, the error is
// ctx's cause, and the load goes on for the other members. It is cancelled when all members have left.
// Load returns after a load that has begun in any case, so a rebuild that waits for Load has one load
// at a time. The member's slot is free as soon as the member has left: the load has its own hold.
func (m *Member[K, R]) Load(ctx context.Context) (result R, err error) {
	s := &Seat[K, R]{Key: m.key, member: m}
	r := m.arrive(ctx, s)
	for ; r == nil && ctx.Err() == nil; r = m.arrive(ctx, s) {
		// A load has taken the slot without the member. The next load has another slot.
		h := m.group.shared.Request(&m.group.Demand)
		select {
		case <-h.Taken():
		case <-ctx.Done():
		}
		if h = h.End(); h != nil {
			s.hand, s.free = h, sync.OnceFunc(h.Release)
			defer s.free()
		}
	}
	if r == nil {
		return result, context.Cause(ctx)
	}
	select {
	case <-r.done:
		return s.Result, nil
	case <-ctx.Done():
		if r.leave(s, context.Cause(ctx)) {
			s.free()
			<-r.done
		}
		return result, context.Cause(ctx)
	}
}

// arrive takes a seat in the open round, or opens a round, with the seat's slot or else the member's. Nil: a
// load has taken that slot, or the member's rebuild has given this load up, and may have another.
func (m *Member[K, R]) arrive(ctx context.Context, s *Seat[K, R]) *round[K, R] {
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.hand == nil {
		s.hand, s.free = m.hand, m.free
	}
	if ctx.Err() != nil {
		return nil
	}
	if s.hand.Spent() {
		s.free() // the last share frees the slot
		return nil
	}
	r := g.open
	if r == nil {
		r = g.newRound(ctx)
		g.open = r
	}
	r.seats = append(r.seats, s)
	r.present++
	m.seat = s
	m.turn(loading)
	return r
}

func (g *Group[K, R]) newRound(ctx context.Context) *round[K, R] {
	// The values of the context stay; the end is one member's only.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	r := &round[K, R]{opened: time.Now(), cancel: cancel, done: make(chan struct{})}
	r.load = func(h *slots.Hand) {
		defer cancel(nil)
		defer close(r.done)
		defer h.Release()
		g.Load(ctx, r.seats)
	}
	return r
}

// leave takes the seat's member out, and reports whether the load has begun.
func (r *round[K, R]) leave(s *Seat[K, R], cause error) (begun bool) {
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
	return r.begun
}

func (r *round[K, R]) stop() {
	if r.timer != nil {
		r.timer.Stop()
	}
}

// turn sets the member's state, and begins the open round if it is time:
//
//   - the first round, when no member is looking: it does not wait for members that are away;
//   - a later round, when no member is looking or away: its own members have been away, and others
//     may follow;
//   - any round, when no member has moved for long enough (see lull), or after Longest.
//
// So each round begins, whatever the other members do. Group.mu is held.
func (m *Member[K, R]) turn(s state) {
	g := m.group
	g.count(m.state, -1)
	m.state = s
	g.count(s, 1)
	r := g.open
	if r == nil {
		return
	}
	pause := min(g.lull(r), g.Longest-time.Since(r.opened))
	r.due = time.Now().Add(pause)
	switch {
	case g.looking == 0 && (!g.loaded || g.away == 0) || pause <= 0:
		g.start(r)
	case r.timer == nil:
		r.timer = time.AfterFunc(pause, func() {
			runtime.Gosched() // after a stop of the process its members are ready too, and go first
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.open == r && !time.Now().Before(r.due) {
				g.start(r)
			}
		})
	default:
		r.timer.Reset(pause)
	}
}

// lull is how long the ready members wait while no member moves.
func (g *Group[K, R]) lull(r *round[K, R]) time.Duration {
	since := r.opened
	if !g.loaded {
		since = g.began // the members have come together
	}
	return max(shortestLull, time.Since(since)/2)
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
		return // the members are leaving it
	}
	g.open, g.loaded, r.begun = nil, true, true
	slices.SortFunc(r.seats, func(x, y *Seat[K, R]) int { return cmp.Compare(x.member.order, y.member.order) })
	// The load keeps a slot if its members leave. All seats have slots that no load has taken.
	hand := r.seats[0].hand
	hand.Spend()
	go r.load(hand)
}
