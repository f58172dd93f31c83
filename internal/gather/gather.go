// Package gather joins the loads of a batch: keys with their leases and slots are loaded in one call.
//
// gather.go has the members and their rounds, slot.go the slot that they share.
package gather

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/slots"
)

// shortestLull is the least time for which the ready members wait while no member moves: one slow answer must
// not hold up a batch, and a dead process's leases do not all end together. While all members are slow, because
// of their engines or a crowded machine, so are the pauses between them: they wait for half as long again.
const shortestLull = 20 * time.Millisecond

// Options configure a Group.
type Options struct {
	// Load loads the keys of a round that began at began: it sets the result of each seat. It runs on its own
	// goroutine, and must not panic. Nil: each member loads by itself, and does not call [Member.Ready].
	Load func(ctx context.Context, began time.Time, seats []*Seat)
	// Slots has the slots for the loads. All members share the next load's slot.
	Slots *slots.Slots
	// Longest bounds the time from the first ready member of a round to the round's beginning.
	Longest time.Duration
	// Closed reports whether the cache is closed. Then no round begins, and the members leave.
	Closed func() bool
}

// A Group is the members of a batch. All methods are safe for concurrent use.
type Group struct {
	Options
	Demand slots.Demand // whether a load waits for a member
	began  time.Time

	mu            sync.Mutex // guards the fields below, and all fields of members
	looking, away int        // members in these states
	loaded        bool       // the first round has begun
	queued        int        // members that wait for a slot
	admitted      bool       // the queued members may wait
	hand          *hand      // the slot that no round has taken yet, for further members; nil if there is none
	open          *round     // the members that are ready to load; nil if there are none
}

// New returns a group without members.
func New(o Options) *Group {
	return &Group{Options: o, began: time.Now()}
}

// A Member is a rebuild of a group. It implements [slots.Source].
type Member struct {
	group *Group
	order int // the member's place in the batch
	state state
	seat  *Seat // the latest; nil before the member's first slot
}

type state uint8

const (
	looking state = iota // on the way to a load or the end
	away                 // it waits for another process
	seated               // in a round
	ended
)

// Join adds a member. All members join before the first member looks for a slot.
func (g *Group) Join() *Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.looking++
	return &Member{group: g, order: g.looking}
}

// Held reports the member's wait for another process: the other members go on.
func (m *Member) Held() { m.turnTo(away) }

// End reports the member's end, with or without an answer.
func (m *Member) End() { m.turnTo(ended) }

func (m *Member) turnTo(s state) {
	m.group.mu.Lock()
	defer m.group.mu.Unlock()
	m.turn(s)
}

// A round is a call of the group's load.
type round struct {
	group  *Group
	opened time.Time
	began  time.Time     // not before begins is closed
	begins chan struct{} // closed when the round begins
	done   chan struct{} // closed when the seats have their results

	// Guarded by Group.mu.
	phase   phase
	seats   []*Seat                 // fixed when the load begins
	present int                     // seats whose members have not left
	awaited int                     // seats whose members have neither entered nor left since the round began
	hand    *hand                   // the load's slot, once the round has begun
	timer   *time.Timer             // begins the round when it is due; nil at first
	due     time.Time               // when the round begins unless a member moves
	values  context.Context         // has the values for the load's context; nil until a member has called Load
	cancel  context.CancelCauseFunc // of the load, once it has begun
}

type phase uint8

const (
	gathering phase = iota // members take seats: the round is Group.open
	entering               // the round has begun, and its members enter or leave
	loading                // the load is running
	over
)

// A Seat is a member's share of a slot, and its place in the round that takes the slot. To give the share back is
// to leave the round.
type Seat struct {
	Key any // set by Enter
	// Set by Options.Load.
	Product items.Product
	Err     error

	member *Member
	round  *round // nil before Ready

	// Guarded by Group.mu.
	hand    *hand // nil: the member has left
	entered bool
}

// Ready takes the member's place in the next round of its slot. If a round has taken this slot without the member, the
// member gives its share back, for a slot that is free now. Without a free slot the result is nil.
func (m *Member) Ready() *Seat {
	g, s := m.group, m.seat
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.hand != g.hand {
		g.release(s.hand) // this may free the slot: the round's load has ended, or its members have left
		if s.hand = g.try(); s.hand == nil {
			return nil
		}
	}
	if g.open == nil {
		g.open = &round{group: g, opened: time.Now(), begins: make(chan struct{}), done: make(chan struct{})}
	}
	s.round = g.open
	s.round.seats = append(s.round.seats, s)
	s.round.present++
	m.turn(seated)
	return s
}

// Begins returns a channel that is closed when the seat's round begins. The member then enters, or gives its
// share of the slot back, without a wait: the load of the other members begins after that.
func (s *Seat) Begins() <-chan struct{} { return s.round.begins }

// Began returns when the seat's round began.
func (s *Seat) Began() time.Time { return s.round.began }

// Enter adds the key to the load of the seat's round, which has begun.
func (s *Seat) Enter(key any) {
	g, r := s.member.group, s.round
	g.mu.Lock()
	defer g.mu.Unlock()
	s.Key, s.entered = key, true
	r.awaited--
	r.depart()
}

// Load waits for the result of the round's load, after Enter. If ctx ends first, the error is ctx's cause, and the
// load goes on for the other members. It is cancelled when all members have left. Load returns after a load that has
// begun in any case, so a rebuild that waits for Load has one load at a time. The member's share of the slot is free
// as soon as the member has left: the load has its own hold.
func (s *Seat) Load(ctx context.Context) (items.Product, error) {
	r := s.round
	r.lend(ctx)
	select {
	case <-r.done:
		return s.Product, s.Err
	case <-ctx.Done():
		if s.leave(context.Cause(ctx)) {
			<-r.done
		}
		return items.Product{}, context.Cause(ctx)
	}
}

// lend gives the load the values of the first member's context. The end of the context is for this member only.
func (r *round) lend(ctx context.Context) {
	r.group.mu.Lock()
	defer r.group.mu.Unlock()
	if r.values == nil {
		r.values = context.WithoutCancel(ctx)
		r.depart()
	}
}

// depart begins the load once all members have entered or left. Group.mu is held.
func (r *round) depart() {
	switch {
	case r.phase != entering:
	case r.present == 0:
		r.phase = over
		r.group.release(r.hand)
	case r.awaited == 0 && r.values != nil:
		r.phase = loading
		slices.SortFunc(r.seats, func(x, y *Seat) int { return cmp.Compare(x.member.order, y.member.order) })
		var ctx context.Context
		ctx, r.cancel = context.WithCancelCause(r.values)
		go r.load(ctx)
	}
}

func (r *round) load(ctx context.Context) {
	defer r.cancel(nil)
	defer func() {
		r.group.mu.Lock()
		defer r.group.mu.Unlock()
		r.group.release(r.hand)
		r.phase = over
		close(r.done)
	}()
	r.group.Load(ctx, r.began, r.seats)
}

// leave gives the member's share of the slot back, the first time, and takes the member out of a round that is not
// over. It reports whether the load has begun with the member.
func (s *Seat) leave(cause error) (begun bool) {
	m, r := s.member, s.round
	m.group.mu.Lock()
	defer m.group.mu.Unlock()
	if s.hand == nil {
		return false
	}
	m.group.release(s.hand)
	s.hand = nil
	if r == nil || r.phase == over {
		return false
	}
	begun = r.phase == loading
	r.remove(s, cause)
	if m.seat == s && m.state == seated {
		m.turn(looking)
	}
	return begun
}

// remove takes a member out. Group.mu is held.
func (r *round) remove(s *Seat, cause error) {
	r.present--
	if r.phase == loading {
		if r.present == 0 {
			r.cancel(cause)
		}
		return
	}
	r.seats = slices.DeleteFunc(r.seats, func(other *Seat) bool { return other == s })
	switch {
	case r.phase == entering:
		if !s.entered {
			r.awaited--
		}
		r.depart()
	case r.present == 0:
		r.group.open = nil
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
func (m *Member) turn(s state) {
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
	case g.looking == 0 && (!g.loaded || g.away == 0):
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
func (g *Group) lull(r *round) time.Duration {
	since := r.opened
	if !g.loaded {
		since = g.began // the members have come together
	}
	return max(shortestLull, time.Since(since)/2)
}

// count adds n to the number of members in the state. Group.mu is held.
func (g *Group) count(s state, n int) {
	switch s {
	case looking:
		g.looking += n
	case away:
		g.away += n
	}
}

// start begins the open round. Group.mu is held.
func (g *Group) start(r *round) {
	if g.Closed() {
		return // the members are leaving it
	}
	g.open, g.loaded = nil, true
	r.phase, r.began, r.awaited = entering, time.Now(), len(r.seats)
	// The load keeps a slot if its members leave. All seats have the slot that no round has taken.
	r.hand, g.hand = g.hand, nil
	r.hand.holders++
	close(r.begins)
}
