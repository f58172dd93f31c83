package gather

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether/internal/slots"
)

type call struct {
	keys []string
	at   time.Duration // since the group was made
}

// A fixture is a group whose loads take a second each.
type fixture struct {
	*Group
	closed bool

	mu    sync.Mutex // guards the fields below
	calls []call
	ended int // cancelled loads
}

func newFixture(size int) *fixture {
	f := &fixture{}
	began := time.Now()
	f.Group = New(Options{
		Slots: slots.New(size, 100), Longest: time.Second,
		Closed: func() bool { return f.closed },
		Load: func(ctx context.Context, _ time.Time, seats []*Seat) {
			c := call{at: time.Since(began)}
			for _, s := range seats {
				c.keys = append(c.keys, s.Key.(string))
				s.Product.Value = "value of " + s.Key.(string)
			}
			f.mu.Lock()
			f.calls = append(f.calls, c)
			f.mu.Unlock()
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				f.mu.Lock()
				f.ended++
				f.mu.Unlock()
			}
		},
	})
	return f
}

// A rebuild is a member with its key.
type rebuild struct {
	*Member
	key string
}

func (f *fixture) join(key string) rebuild { return rebuild{f.Join(), key} }

func (f *fixture) joinAll(keys ...string) (members []rebuild) {
	for _, key := range keys {
		members = append(members, f.join(key))
	}
	return members
}

// await waits for a slot until ctx ends.
func await(ctx context.Context, r slots.Request) (free func()) {
	select {
	case <-r.Taken():
	case <-ctx.Done():
	}
	return r.End()
}

// load takes a slot for the member, waits for its round, loads, and gives the slot back. Without its slot it takes
// another.
func load(t *testing.T, ctx context.Context, m rebuild) error {
	for {
		free := await(ctx, m.Request(&m.group.Demand))
		if free == nil {
			return context.Cause(ctx)
		}
		if s := m.Ready(); s != nil {
			return enterAndLoad(t, ctx, m, s, free)
		}
		free()
	}
}

// enterAndLoad waits for the round with a seat, loads, and gives the slot back.
func enterAndLoad(t *testing.T, ctx context.Context, m rebuild, s *Seat, free func()) error {
	select {
	case <-s.Begins():
		s.Enter(m.key)
		return loadIn(t, ctx, m, s, free)
	case <-ctx.Done():
		free()
		m.End()
		return context.Cause(ctx)
	}
}

// loadIn loads in a seat that has entered, and gives the slot back.
func loadIn(t *testing.T, ctx context.Context, m rebuild, s *Seat, free func()) error {
	defer m.End()
	defer free()
	p, err := s.Load(ctx)
	if err == nil && p.Value != "value of "+m.key {
		t.Errorf("the load of %q came to %q", m.key, p.Value)
	}
	return err
}

func (f *fixture) wants(t *testing.T, want ...call) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.EqualFunc(f.calls, want, func(x, y call) bool { return x.at == y.at && slices.Equal(x.keys, y.keys) }) {
		t.Errorf("loads %v, want %v", f.calls, want)
	}
}

func TestLoad_ReadyMembersLoadTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(1)
		members := f.joinAll("a", "b", "c")
		for i := range members {
			go func() { // the last member first
				time.Sleep(time.Duration(3-i) * time.Millisecond)
				load(t, t.Context(), members[i])
			}()
		}
		time.Sleep(2 * time.Second)
		f.wants(t, call{[]string{"a", "b", "c"}, 3 * time.Millisecond})
		if free := f.Slots.Try(); free == nil {
			t.Error("a slot is held after the load")
		}
	})
}

func TestLoad_MemberIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(2)
		here, away := f.join("here"), f.join("away")
		away.Held()
		go load(t, t.Context(), here)
		synctest.Wait()
		f.wants(t, call{[]string{"here"}, 0})
		// The member's own load waits for no other, and has another slot.
		go load(t, t.Context(), away)
		synctest.Wait()
		f.wants(t, call{[]string{"here"}, 0}, call{[]string{"away"}, 0})
		time.Sleep(2 * time.Second)
	})
}

func TestLoad_MemberIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(2)
		quick, slow := f.join("quick"), f.join("slow")
		go load(t, t.Context(), quick)
		time.Sleep(500 * time.Millisecond)
		f.wants(t, call{[]string{"quick"}, shortestLull})
		// The first load has its slot already: the member waits for another.
		go load(t, t.Context(), slow)
		time.Sleep(3 * time.Second)
		f.wants(t, call{[]string{"quick"}, shortestLull}, call{[]string{"slow"}, 500 * time.Millisecond})
	})
}

// Members that miss the first load share the slot of the next.
func TestLoad_LateMembersShareASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(2)
		members := f.joinAll("first", "a", "b", "c")
		go load(t, t.Context(), members[0])
		time.Sleep(100 * time.Millisecond)
		for _, m := range members[1:] {
			go load(t, t.Context(), m)
		}
		time.Sleep(5 * time.Second)
		f.wants(t, call{[]string{"first"}, shortestLull}, call{[]string{"a", "b", "c"}, 100 * time.Millisecond})
		for range 2 {
			if f.Slots.Try() == nil {
				t.Error("a slot is held after the loads")
			}
		}
	})
}

// A member that has a share of the first load's slot, and comes after that load has begun, shares the next slot.
func TestLoad_LateMembersGiveTheirSharesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(1)
		members := f.joinAll("first", "a", "b")
		for _, m := range members[1:] {
			free := m.Try()
			if free == nil {
				t.Fatalf("%q has no share of the free slot", m.key)
			}
			go func() {
				time.Sleep(100 * time.Millisecond)
				if m.Ready() != nil {
					t.Errorf("%q is ready without a slot", m.key)
				}
				free()
				load(t, t.Context(), m)
			}()
		}
		go load(t, t.Context(), members[0])
		time.Sleep(5 * time.Second)
		f.wants(t, call{[]string{"first"}, shortestLull}, call{[]string{"a", "b"}, shortestLull + time.Second})
		if f.Slots.Try() == nil {
			t.Error("a slot is held after the loads")
		}
	})
}

// When all members are slow, a pause between two of them is no reason to load without the rest.
func TestLoad_AllMembersAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(1)
		members := f.joinAll("a", "b", "c")
		for i, after := range []time.Duration{100, 149, 223} {
			go func() {
				time.Sleep(after * time.Millisecond)
				load(t, t.Context(), members[i])
			}()
		}
		time.Sleep(5 * time.Second)
		f.wants(t, call{[]string{"a", "b", "c"}, 223 * time.Millisecond})
	})
}

func TestLoad_MembersMoveOnAndOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(1)
		var members []rebuild
		for i := range 200 {
			members = append(members, f.join(string(rune('A'+i))))
		}
		for i := range members[:199] { // one member never comes
			go func() {
				time.Sleep(time.Duration(i) * 9 * time.Millisecond)
				load(t, t.Context(), members[i])
			}()
		}
		time.Sleep(1500 * time.Millisecond)
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.calls) == 0 || f.calls[0].at != time.Second || len(f.calls[0].keys) != 112 {
			t.Errorf("loads %v, want one of 112 keys after Longest", f.calls)
		}
		members[199].End()
		f.mu.Unlock()
		time.Sleep(10 * time.Second)
		f.mu.Lock()
	})
}

func TestLoad_MembersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(1)
		ctx, cancel := context.WithCancelCause(t.Context())
		left := errors.New("left")
		a, b := f.join("a"), f.join("b")
		var errs [2]error
		go func() { errs[0] = load(t, ctx, a) }()
		go func() { errs[1] = load(t, ctx, b) }()
		synctest.Wait()
		f.wants(t, call{[]string{"a", "b"}, 0})
		cancel(left)
		synctest.Wait()
		if errs != [2]error{left, left} {
			t.Errorf("members ended with %v", errs)
		}
		if f.ended != 1 {
			t.Error("the load goes on without members")
		}
		if free := f.Slots.Try(); free == nil {
			t.Error("a slot is held after the load")
		}
	})
}

// A member that leaves a load under way, which goes on for the other members, returns after this load.
func TestLoad_MemberLeavesDuringTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(1)
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		a, b := f.join("a"), f.join("b")
		go load(t, t.Context(), b)
		time.AfterFunc(time.Second/2, cancel)
		if err, took := load(t, ctx, a), time.Since(began); !errors.Is(err, context.Canceled) || took != time.Second {
			t.Errorf("the member ended after %v with %v, want its own end after the load of 1s", took, err)
		}
		synctest.Wait()
		f.wants(t, call{[]string{"a", "b"}, 0})
	})
}

// Members whose load came to nothing load once more together: in vain, as if another process had the later value, or
// cancelled, as by an invalidation.
func TestLoad_MembersLoadAgain(t *testing.T) {
	for name, given := range map[string]struct{ end, look, again time.Duration }{
		"in vain":   {end: time.Minute, again: time.Second + 2*time.Millisecond},
		"cancelled": {end: time.Second / 2, look: 2 * time.Millisecond, again: time.Second/2 + 4*time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(1)
				ctx, cancel := context.WithTimeout(t.Context(), given.end)
				defer cancel()
				for i, m := range f.joinAll("a", "b") {
					free := m.Try()
					s := m.Ready()
					go func() {
						<-s.Begins()
						s.Enter(m.key)
						s.Load(ctx)
						free()
						time.Sleep(time.Duration(i) * given.look)
						free = await(t.Context(), m.Request(&m.group.Demand))
						time.Sleep(time.Duration(1+i) * time.Millisecond)
						if s = m.Ready(); s == nil {
							t.Errorf("%q comes after the load", m.key)
							return
						}
						enterAndLoad(t, t.Context(), m, s, free)
					}()
				}
				time.Sleep(5 * time.Second)
				f.wants(t, call{[]string{"a", "b"}, 0}, call{[]string{"a", "b"}, given.again})
			})
		})
	}
}

// A member that commits its value holds up no later load.
func TestLoad_BesideACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(1)
		commits, late := f.join("commits"), f.join("late")
		late.Held()
		free := commits.Try()
		s := commits.Ready()
		s.Enter("commits")
		s.Load(t.Context())
		free()
		go load(t, t.Context(), late)
		synctest.Wait()
		f.wants(t, call{[]string{"commits"}, 0}, call{[]string{"late"}, time.Second})
		time.Sleep(time.Second)
	})
}

func TestLoad_MemberLeavesBeforeTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(1)
		ctx, cancel := context.WithCancel(t.Context())
		a, b := f.join("a"), f.join("b")
		c := f.join("c")
		go load(t, ctx, a)
		go load(t, t.Context(), b)
		synctest.Wait()
		cancel()
		synctest.Wait()
		c.End()
		time.Sleep(2 * time.Second)
		f.wants(t, call{[]string{"b"}, 0})
	})
}

// A round that has begun loads for the members that enter, and waits for each until it enters or leaves.
func TestEnter_SomeMembersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(1)
		enters, leaves := f.join("enters"), f.join("leaves")
		free, frees := enters.Try(), leaves.Try()
		s, other := enters.Ready(), leaves.Ready()
		<-s.Begins()
		<-other.Begins()
		s.Enter("enters")
		go loadIn(t, t.Context(), enters, s, free)
		time.Sleep(time.Millisecond)
		f.wants(t)
		frees()
		frees() // only the first counts
		synctest.Wait()
		f.wants(t, call{[]string{"enters"}, time.Millisecond})
		if began := s.Began(); time.Since(began) != time.Millisecond {
			t.Errorf("the round began %v ago", time.Since(began))
		}
		time.Sleep(2 * time.Second)
		if f.Slots.Try() == nil {
			t.Error("a slot is held after the load")
		}
		if f.Slots.Try() != nil {
			t.Error("the slot was given back twice")
		}
	})
}

func TestEnter_AllMembersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(1)
		a, b := f.join("a"), f.join("b")
		freeA, freeB := a.Try(), b.Try()
		s := a.Ready()
		<-b.Ready().Begins()
		s.Enter("a") // and its rebuild ends before it calls Load
		freeA()
		freeB()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.Load(ctx)
		time.Sleep(time.Second)
		f.wants(t)
		if f.Slots.Try() == nil {
			t.Error("a slot is held without a load")
		}
		if f.Slots.Try() != nil {
			t.Error("the slot was given back twice")
		}
	})
}

func TestLoad_Closed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(1)
		f.closed = true
		ctx, cancel := context.WithCancel(t.Context())
		go load(t, ctx, f.join("a"))
		time.Sleep(time.Minute)
		f.wants(t)
		cancel()
	})
}

func TestQueue_MembersCountAsOne(t *testing.T) {
	f := newFixture(1)
	var members []*Member
	for i := range 1000 {
		m := f.Join()
		if members = append(members, m); !m.Queue() {
			t.Fatalf("member %d may not wait", i)
		}
	}
	others := 0
	for f.Slots.Queue() {
		others++
	}
	if others != 99 {
		t.Errorf("%d others may wait, want 99 beside the group", others)
	}
	for _, m := range members {
		m.Unqueue()
	}
	f.Slots.Unqueue() // the last of the other waiters, which was refused
	if !f.Slots.Queue() || f.Slots.Queue() {
		t.Error("the group's end frees no place, or several")
	}
}

func TestTry_WithoutALoadMembersHaveTheirOwnSlots(t *testing.T) {
	g := New(Options{Slots: slots.New(2, 100), Closed: func() bool { return false }})
	a, b, c := g.Join(), g.Join(), g.Join()
	free := a.Try()
	if free == nil || b.Try() == nil {
		t.Fatal("a member has no slot")
	}
	if c.Try() != nil {
		t.Error("a third member has one of two slots")
	}
	free()
	if await(t.Context(), c.Request(&g.Demand)) == nil {
		t.Error("the slot that was given back is not to be had")
	}
}

// Members that leave before their slot comes leave the queue too: the slot is for others.
func TestRequest_AllMembersLeave(t *testing.T) {
	f := newFixture(1)
	a, b := f.Join(), f.Join()
	free := f.Slots.Try()
	first, second := a.Request(&f.Demand), b.Request(&f.Demand)
	if first.End() != nil || second.End() != nil {
		t.Error("a member has a slot that another load holds")
	}
	free()
	if f.Slots.Try() == nil {
		t.Error("the slot is held for members that have left")
	}
}

// A load keeps a slot of its own when its members have left, and only one.
func TestLoad_LeaversGiveTheirSlotsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{
			Slots: slots.New(2, 100), Longest: time.Second,
			Closed: func() bool { return false },
			Load: func(_ context.Context, _ time.Time, seats []*Seat) {
				for _, s := range seats {
					s.Product.Value = "value of " + s.Key.(string)
				}
				time.Sleep(10 * time.Second) // ignores its end
			},
		})
		first, a, b := rebuild{g.Join(), "first"}, rebuild{g.Join(), "a"}, rebuild{g.Join(), "b"}
		a.Held()
		b.Held()
		load(t, t.Context(), first)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go load(t, ctx, a)
		go load(t, ctx, b)
		time.Sleep(2 * time.Second) // both have left
		free := g.Slots.Try()
		if free == nil {
			t.Fatal("one load runs, and both slots are taken")
		}
		free()
		time.Sleep(time.Minute)
	})
}
