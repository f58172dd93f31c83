package lookout

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/observe"
)

// A store answers for each key with the epoch 7, after answer.
type store struct {
	mu       sync.Mutex
	requests []string // the keys of each request, joined by spaces
	answer   func(ctx context.Context) error
}

func (s *store) GetMany(ctx context.Context, keys []string, each func(int, driver.Entry, error)) {
	s.mu.Lock()
	s.requests = append(s.requests, strings.Join(keys, " "))
	s.mu.Unlock()
	err := s.answer(ctx)
	for i := range keys {
		each(i, driver.Entry{Kind: driver.KindValue, Epoch: 7}, err)
	}
}

func (s *store) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

type bench struct {
	*testing.T
	*Lookout
	store  *store
	silent []string // the keys of Config.Silent
}

const timeout = time.Second

// newBench has a store that answers by answer, nil for at once.
func newBench(t *testing.T, answer func(ctx context.Context) error) *bench {
	if answer == nil {
		answer = func(context.Context) error { return nil }
	}
	b := &bench{T: t, store: &store{answer: answer}}
	began := time.Now()
	var behind sync.WaitGroup
	t.Cleanup(behind.Wait)
	b.Lookout = New(Config{
		Store: b.store, Reads: gate.New(timeout, func(from, to observe.BreakerState) {}),
		Name: func(key string) string { return "n:" + key }, Timeout: timeout,
		Now:  func() durations.Instant { return durations.Instant(time.Since(began)) },
		Open: t.Context(), Behind: func(f func()) { behind.Go(f) },
		Silent: func(key string, err error) { b.silent = append(b.silent, key) },
	})
	return b
}

// crowd takes all turns at the store until free is closed.
func (b *bench) crowd(free <-chan struct{}) {
	for i := 0; !b.Reads.Crowded(); i++ {
		go gate.AskInTurn(b.Context(), b.Reads, fmt.Sprint(i), budget(), func(context.Context) (int, error) { <-free; return 0, nil })
		synctest.Wait()
	}
}

func (b *bench) wantAsked(want ...string) {
	b.Helper()
	synctest.Wait()
	if got := b.store.asked(); !slices.Equal(got, want) {
		b.Errorf("requests: got %q, want %q", got, want)
	}
}

// want compares a look's reply: "nothing", "alone", "silence" or "entry".
func (b *bench) want(p *Look, want string) {
	b.Helper()
	synctest.Wait()
	got := "nothing"
	select {
	case there := <-p.Reply():
		switch {
		case there == nil:
			got = "alone"
		case there.Silent():
			got = "silence"
		case there.Err == nil && there.Entry.Epoch == 7:
			got = "entry"
		default:
			got = fmt.Sprint(*there)
		}
	default:
	}
	if got != want {
		b.Errorf("the look at %s: got %s, want %s", p.key, got, want)
	}
}

func inBubble(t *testing.T, name string, f func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func budget() *gate.Budget { return gate.NewBudget(timeout) }

func TestPlan(t *testing.T) {
	const ms = time.Millisecond
	inBubble(t, "together", func(t *testing.T) {
		b := newBench(t, nil)
		first, near := b.Plan(nil, "a", budget(), 100*ms), b.Plan(nil, "b", budget(), 120*ms)
		far := b.Plan(nil, "c", budget(), 200*ms)
		time.Sleep(99 * ms)
		b.wantAsked()
		time.Sleep(ms)
		b.wantAsked("n:a n:b")
		b.want(first, "entry")
		b.want(near, "entry")
		b.want(far, "nothing")
		time.Sleep(100 * ms)
		b.want(far, "alone")
		b.wantAsked("n:a n:b")
	})
	inBubble(t, "without a store for many keys", func(t *testing.T) {
		b := newBench(t, nil)
		b.Store = nil
		first, second := b.Plan(nil, "a", budget(), 100*ms), b.Plan(nil, "b", budget(), 110*ms)
		time.Sleep(100 * ms)
		b.want(first, "alone")
		b.want(second, "nothing")
		time.Sleep(10 * ms)
		b.want(second, "alone")
	})
	inBubble(t, "without time for others", func(t *testing.T) {
		b := newBench(t, nil)
		short := budget()
		short.Spend(timeout / 2)
		late, early := b.Plan(nil, "a", short, 110*ms), b.Plan(nil, "b", budget(), 100*ms)
		more := b.Plan(nil, "c", budget(), 100*ms)
		time.Sleep(100 * ms)
		b.wantAsked("n:b n:c")
		b.want(early, "entry")
		b.want(more, "entry")
		b.want(late, "nothing")
		time.Sleep(10 * ms)
		b.want(late, "alone")
	})
	inBubble(t, "in place of a plan", func(t *testing.T) {
		b := newBench(t, nil)
		p := b.Plan(nil, "a", budget(), 100*ms)
		time.Sleep(50 * ms)
		if again := b.Plan(p, "a", budget(), 200*ms); again != p {
			t.Error("a plan that is not due is not changed in its place")
		}
		time.Sleep(100 * ms)
		b.want(p, "nothing")
		time.Sleep(100 * ms)
		b.want(p, "alone")
		p = b.Plan(p, "a", budget(), 100*ms)
		p = b.Plan(p, "a", budget(), 50*ms)
		time.Sleep(50 * ms)
		b.want(p, "alone")
	})
	inBubble(t, "in place of a look under way", func(t *testing.T) {
		b := newBench(t, func(context.Context) error { time.Sleep(100 * ms); return nil })
		p, other := b.Plan(nil, "a", budget(), 100*ms), b.Plan(nil, "b", budget(), 100*ms)
		time.Sleep(150 * ms)
		if again := b.Plan(p, "a", budget(), 10*ms); again != p {
			t.Error("a look under way is not kept")
		}
		time.Sleep(50 * ms)
		b.wantAsked("n:a n:b")
		b.want(p, "entry")
		b.want(other, "entry")
	})
	inBubble(t, "ended", func(t *testing.T) {
		b := newBench(t, nil)
		p, other := b.Plan(nil, "a", budget(), 100*ms), b.Plan(nil, "b", budget(), 100*ms)
		b.End(p)
		b.End(p)
		time.Sleep(100 * ms)
		b.want(p, "nothing")
		b.want(other, "alone")
		if b.timer != nil || b.plans.Len() != 0 {
			t.Error("a timer without plans")
		}
	})
	inBubble(t, "ended before the request's turn", func(t *testing.T) {
		b := newBench(t, nil)
		free := make(chan struct{})
		b.crowd(free)
		p := b.Plan(nil, "a", budget(), 100*ms)
		others := []*Look{b.Plan(nil, "b", budget(), 100*ms), b.Plan(nil, "c", budget(), 100*ms)}
		time.Sleep(100 * ms)
		synctest.Wait()
		b.End(p)
		close(free)
		b.wantAsked("n:b n:c")
		for _, other := range others {
			b.want(other, "entry")
		}
	})
	inBubble(t, "all ended before the request's turn", func(t *testing.T) {
		b := newBench(t, nil)
		free := make(chan struct{})
		b.crowd(free)
		looks := []*Look{b.Plan(nil, "a", budget(), 100*ms), b.Plan(nil, "b", budget(), 100*ms)}
		time.Sleep(100 * ms)
		synctest.Wait()
		for _, p := range looks {
			b.End(p)
		}
		close(free)
		b.wantAsked()
	})
	inBubble(t, "after an end that is too late for the timer", func(t *testing.T) {
		b := newBench(t, nil)
		var fired []func()
		b.Behind = func(f func()) { fired = append(fired, f) }
		early := b.Plan(nil, "a", budget(), 100*ms)
		time.Sleep(100 * ms)
		synctest.Wait()
		b.End(early)
		p := b.Plan(nil, "b", budget(), 100*ms)
		fired[0]()
		time.Sleep(100 * ms)
		synctest.Wait()
		if len(fired) != 2 {
			t.Errorf("%d timers have fired for two plans", len(fired))
		}
		b.End(p)
	})
	inBubble(t, "more than one request takes", func(t *testing.T) {
		b := newBench(t, nil)
		var all []*Look
		for i := range Most + 2 {
			all = append(all, b.Plan(nil, fmt.Sprint(i), budget(), 100*ms))
		}
		time.Sleep(100 * ms)
		for _, p := range all {
			b.want(p, "entry")
		}
		var sizes []int
		for _, keys := range b.store.asked() {
			sizes = append(sizes, len(strings.Fields(keys)))
		}
		if slices.Sort(sizes); !slices.Equal(sizes, []int{2, Most}) {
			t.Errorf("requests for %v keys, want 2 and %d", sizes, Most)
		}
	})
}

// TestPlan_AfterAReply has a flight that plans its next look as soon as it has a reply.
func TestPlan_AfterAReply(t *testing.T) {
	const ms = time.Millisecond
	inBubble(t, "silence", func(t *testing.T) {
		b := newBench(t, func(context.Context) error { return errors.New("gone") })
		one, _ := b.Plan(nil, "1", budget(), 10*ms), b.Plan(nil, "2", budget(), 10*ms)
		time.Sleep(10 * ms)
		b.want(one, "silence")
		next := b.Plan(one, "1", budget(), 10*ms)
		time.Sleep(10 * ms)
		b.want(next, "alone")
	})
	t.Run("entry", func(t *testing.T) {
		answer := make(chan struct{})
		b := newBench(t, func(context.Context) error { <-answer; return nil })
		one := b.New("1", budget())
		var asking sync.WaitGroup
		defer asking.Wait()
		asking.Go(func() { b.Ask(t.Context(), []*Look{one}) })
		for len(b.store.asked()) == 0 {
			time.Sleep(ms)
		}
		b.mu.Lock() // as if the flight's next Plan were first
		close(answer)
		select {
		case <-one.Reply():
			b.mu.Unlock()
			t.Fatal("a reply before the end of the look")
		case <-time.After(20 * ms):
		}
		b.mu.Unlock()
		if there := <-one.Reply(); there.Err != nil {
			t.Error(there.Err)
		}
		if next := b.Plan(one, "1", budget(), time.Hour); next == one {
			t.Error("the next plan is the look that has its reply")
		} else {
			b.End(next)
		}
	})
}

// TestEnd ends the looks of a request: the request ends when no look waits for it.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		b := newBench(t, func(ctx context.Context) error { <-ctx.Done(); close(ended); return ctx.Err() })
		one, two := b.Plan(nil, "a", budget(), time.Millisecond), b.Plan(nil, "b", budget(), time.Millisecond)
		time.Sleep(2 * time.Millisecond)
		b.End(one)
		b.End(one)
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("the request has ended, although a look waits for it")
		default:
		}
		b.End(two)
		<-ended
	})
}

func TestAsk(t *testing.T) {
	tests := map[string]struct {
		answer func(context.Context) error
		ended  bool // the first of the two looks
		asked  []string
		reply  string
		spent  time.Duration
	}{
		"answers":          {func(context.Context) error { return nil }, false, []string{"n:a n:b"}, "entry", 0},
		"a look has ended": {func(context.Context) error { return nil }, true, []string{"n:b"}, "entry", 0},
		"fails": {func(context.Context) error { return errors.New("refused") }, false,
			[]string{"n:a n:b", "n:a n:b", "n:a n:b"}, "silence", 0},
		"hangs": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, false,
			[]string{"n:a n:b"}, "silence", timeout},
		"panics": {func(context.Context) error { panic("broken") }, false,
			[]string{"n:a n:b", "n:a n:b", "n:a n:b"}, "silence", 0},
		"exits": {func(context.Context) error { runtime.Goexit(); return nil }, false, []string{"n:a n:b"}, "silence", 0},
	}
	for name, test := range tests {
		inBubble(t, name, func(t *testing.T) {
			b := newBench(t, test.answer)
			spends := budget()
			looks := []*Look{b.New("a", budget()), b.New("b", spends)}
			if test.ended {
				b.End(looks[0])
			}
			go b.Ask(t.Context(), looks)
			time.Sleep(2 * timeout)
			b.wantAsked(test.asked...)
			b.want(looks[1], test.reply)
			if !test.ended {
				b.want(looks[0], test.reply)
			}
			if got := timeout - spends.Left(); got != test.spent {
				t.Errorf("the request has cost a flight %v, want %v", got, test.spent)
			}
			if repeated := max(0, len(test.asked)-1); len(b.silent) != repeated {
				t.Errorf("%d requests without an answer are reported, want %d", len(b.silent), repeated)
			}
		})
	}
	inBubble(t, "all have ended", func(t *testing.T) {
		b := newBench(t, nil)
		p := b.New("a", budget())
		b.End(p)
		b.Ask(t.Context(), []*Look{p})
		b.wantAsked()
	})
}

// TestInQueue has the looks that come while all turns are taken go in one request.
func TestInQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		free := make(chan struct{})
		b.crowd(free)
		var looks sync.WaitGroup
		left, leave := context.WithCancel(t.Context())
		for _, key := range []string{"a", "b", "c"} {
			looks.Go(func() {
				ctx, want := t.Context(), true
				if key == "b" {
					ctx, want = left, false
				}
				if there := b.InQueue(ctx, key, budget()); (there != nil) != want {
					t.Errorf("%s: got a reply: %v, want %v", key, there != nil, want)
				}
			})
			synctest.Wait()
		}
		leave()
		b.wantAsked()
		close(free)
		looks.Wait()
		b.wantAsked("n:a n:c")
		if b.InQueue(t.Context(), "d", budget()) == nil {
			t.Error("d: no reply behind the others")
		}
	})
}

// TestReadMany gives answers one by one: a part of them, one twice, and one after the request.
func TestReadMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		var each func(int, driver.Entry, error)
		b.Store = getMany(func(_ context.Context, _ []string, e func(int, driver.Entry, error)) {
			each = e
			time.Sleep(timeout * 3 / 4)
			e(1, driver.Entry{}, nil)
			e(1, driver.Entry{}, nil)
			e(2, driver.Entry{}, errors.New("a dead server"))
			time.Sleep(timeout * 3 / 4) // an answer begins the limit anew
		})
		var taken []int
		spends := budget()
		err := b.ReadMany(t.Context(), "x", func() []string { return []string{"x", "y", "z"} }, spends, func(i int, _ *Reply) { taken = append(taken, i) })
		each(0, driver.Entry{}, nil)
		if !slices.Equal(taken, []int{1}) {
			t.Errorf("answers: got %v, want [1]", taken)
		}
		if silent := (&Reply{Err: err}).Silent(); !silent || !strings.Contains(err.Error(), "a dead server") {
			t.Errorf("got %v, want the silence of a dead server", err)
		}
		if left := spends.Left(); left != timeout/4 {
			t.Errorf("%v left of the budget, want %v", left, timeout/4)
		}
	})
}

type getMany func(context.Context, []string, func(int, driver.Entry, error))

func (f getMany) GetMany(ctx context.Context, keys []string, each func(int, driver.Entry, error)) {
	f(ctx, keys, each)
}
