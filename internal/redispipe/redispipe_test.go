package redispipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A server answers for Redis. sent gets a pipeline's first arguments, joined by spaces.
type server struct {
	sent   chan string
	answer func(cmds []redis.Cmder) error
	ends   atomic.Int64 // nanoseconds to the deadline of the latest context, 0 if none
}

func (s *server) process(ctx context.Context, cmds []redis.Cmder, _ func() error) error {
	var names []string
	for _, cmd := range cmds {
		names = append(names, cmd.Args()[0].(string))
	}
	s.ends.Store(0)
	if due, ok := ctx.Deadline(); ok {
		s.ends.Store(int64(time.Until(due)))
	}
	s.sent <- strings.Join(names, " ")
	if err := cmp.Or(s.answer(cmds), ctx.Err()); err != nil {
		return err
	}
	return cmds[0].Err()
}

func echo(cmds []redis.Cmder) error {
	for _, cmd := range cmds {
		cmd.SetErr(nil)
		cmd.(*redis.Cmd).SetVal(cmd.Args()[0])
	}
	return nil
}

type bench struct {
	*Queue
	*server
}

func newBench(t *testing.T, answer func([]redis.Cmder) error) bench {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	t.Cleanup(func() { rdb.Close() })
	s := &server{sent: make(chan string, 100), answer: answer}
	rdb.AddHook(testserver.Hook(s.process))
	return bench{New(rdb), s}
}

// newHeld's server answers one pipeline for each send to answers, and all pipelines after its close.
func newHeld(t *testing.T) (b bench, answers chan struct{}) {
	answers = make(chan struct{})
	return newBench(t, func(cmds []redis.Cmder) error { <-answers; return echo(cmds) }), answers
}

// call begins a call of the commands; the channel gets its result.
func (b bench) call(ctx context.Context, names ...string) <-chan string {
	result := make(chan string, 1)
	go func() {
		defer func() {
			if len(result) == 0 {
				result <- "ended"
			}
		}()
		var cmds []redis.Cmder
		for _, name := range names {
			cmds = append(cmds, redis.NewCmd(ctx, name))
		}
		b.Exec(ctx, cmds...)
		var got []string
		for _, cmd := range cmds {
			text, err := cmd.(*redis.Cmd).Text()
			if err != nil {
				text, _, _ = strings.Cut(err.Error(), "\n")
			}
			got = append(got, text)
		}
		result <- strings.Join(got, " ")
	}()
	return result
}

func want(t *testing.T, what string, from <-chan string, want string) {
	t.Helper()
	synctest.Wait()
	select {
	case got := <-from:
		if got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	default:
		t.Errorf("%s: nothing, want %q", what, want)
	}
}

func wantNone(t *testing.T, sent <-chan string) {
	t.Helper()
	synctest.Wait()
	select {
	case got := <-sent:
		t.Errorf("sent: got %q, want nothing", got)
	default:
	}
}

// TestExec_Joins has calls come during a pipeline: they go together in the next, with their own replies.
func TestExec_Joins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, answers := newHeld(t)
		one := b.call(t.Context(), "a")
		want(t, "sent", b.sent, "a")
		two := b.call(t.Context(), "b", "c")
		synctest.Wait()
		three := b.call(t.Context(), "d")
		wantNone(t, b.sent)
		answers <- struct{}{}
		want(t, "the first", one, "a")
		want(t, "sent", b.sent, "b c d")
		four := b.call(t.Context(), "e")
		wantNone(t, b.sent)
		answers <- struct{}{}
		want(t, "the second", two, "b c")
		want(t, "the third", three, "d")
		want(t, "sent", b.sent, "e")
		answers <- struct{}{}
		want(t, "the fourth", four, "e")
		five := b.call(t.Context(), "f")
		want(t, "sent at once", b.sent, "f")
		answers <- struct{}{}
		want(t, "the fifth", five, "f")
	})
}

// TestExec_Patience has connections hang: waiting calls go on, undisturbed by the connections' end.
func TestExec_Patience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, hold := make(chan struct{}), make(chan struct{})
		b := newBench(t, func(cmds []redis.Cmder) error {
			switch cmds[0].Args()[0] {
			case "a", "b":
				<-hang
			case "e":
				<-hold
			}
			return echo(cmds)
		})
		first := b.call(t.Context(), "a")
		want(t, "sent", b.sent, "a")
		second := b.call(t.Context(), "b")
		synctest.Wait()
		b.call(t.Context(), "c")
		time.Sleep(patience - 1)
		wantNone(t, b.sent)
		time.Sleep(time.Nanosecond)
		want(t, "sent", b.sent, "b c")
		b.call(t.Context(), "d")
		wantNone(t, b.sent)
		time.Sleep(patience)
		want(t, "sent", b.sent, "d")

		b.call(t.Context(), "e")
		want(t, "sent at once", b.sent, "e")
		last := b.call(t.Context(), "f")
		close(hang)
		want(t, "first", first, "a")
		want(t, "second", second, "b")
		wantNone(t, b.sent) // those two lead no calls any more
		close(hold)
		want(t, "sent", b.sent, "f")
		want(t, "last", last, "f")
	})
}

func TestExec_Most(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, answers := newHeld(t)
		first := b.call(t.Context(), "a")
		want(t, "sent", b.sent, "a")
		var results []<-chan string
		for range most + 1 {
			results = append(results, b.call(t.Context(), "b"))
			synctest.Wait()
		}
		answers <- struct{}{}
		want(t, "first", first, "a")
		want(t, "sent", b.sent, strings.TrimSpace(strings.Repeat("b ", most)))
		answers <- struct{}{}
		want(t, "sent", b.sent, "b")
		answers <- struct{}{}
		for _, result := range results {
			want(t, "result", result, "b")
		}
	})
}

// TestExec_Alone has a call with a long argument: it does not wait, and no call waits for it.
func TestExec_Alone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, answers := newHeld(t)
		long := strings.Repeat("x", Large)
		first := b.call(t.Context(), long)
		want(t, "sent", b.sent, long)
		short := b.call(t.Context(), "a")
		want(t, "sent", b.sent, "a")
		second := b.call(t.Context(), long)
		want(t, "sent", b.sent, long)
		close(answers)
		want(t, "first", first, long)
		want(t, "short", short, "a")
		want(t, "second", second, long)
	})
}

// TestExec_ContextEnded has a caller leave before its turn, also at the head: only the others are sent.
func TestExec_ContextEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, answers := newHeld(t)
		b.call(t.Context(), "a")
		want(t, "sent", b.sent, "a")
		ctx, leave := context.WithCancel(t.Context())
		left := b.call(ctx, "b", "c")
		synctest.Wait()
		other := b.call(t.Context(), "d")
		synctest.Wait()
		leave()
		answers <- struct{}{}
		want(t, "sent", b.sent, "d")
		answers <- struct{}{}
		want(t, "who has left", left, "context canceled context canceled")
		want(t, "the other", other, "d")

		b.call(t.Context(), "a")
		want(t, "sent", b.sent, "a")
		left = b.call(ctx, "b") // alone in its pipeline
		synctest.Wait()
		answers <- struct{}{}
		want(t, "who has left", left, "context canceled")
		wantNone(t, b.sent)
		other = b.call(t.Context(), "d")
		want(t, "sent", b.sent, "d")
		answers <- struct{}{}
		want(t, "the other", other, "d")

		b.call(t.Context(), "a")
		want(t, "sent", b.sent, "a")
		ctx, leave = context.WithCancel(t.Context())
		left = b.call(ctx, "b")
		synctest.Wait()
		other = b.call(t.Context(), "d")
		synctest.Wait()
		answers <- struct{}{}
		want(t, "sent", b.sent, "b d")
		leave()
		answers <- struct{}{}
		want(t, "who has left", left, "b")
		want(t, "the other", other, "d")
	})
}

// TestExec_Deadlines: a pipeline has the latest deadline of its calls, or none if a call has none.
func TestExec_Deadlines(t *testing.T) {
	for _, c := range []struct {
		ends []time.Duration // 0: never
		want time.Duration
	}{
		{[]time.Duration{time.Second}, time.Second},
		{[]time.Duration{time.Second, 3 * time.Second, 2 * time.Second}, 3 * time.Second},
		{[]time.Duration{time.Second, 0}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			b, answers := newHeld(t)
			b.call(t.Context(), "a")
			want(t, "sent", b.sent, "a")
			for _, end := range c.ends {
				ctx := t.Context()
				if end > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, end)
					defer cancel()
				}
				b.call(ctx, "b")
				synctest.Wait()
			}
			answers <- struct{}{}
			want(t, "sent", b.sent, strings.TrimSpace(strings.Repeat("b ", len(c.ends))))
			if got := time.Duration(b.ends.Load()); got != c.want {
				t.Errorf("calls that end in %v: their pipeline ends in %v, want %v", c.ends, got, c.want)
			}
			close(answers)
		})
	}
}

// failingDeadline is a caller's context that fails where its deadline is asked for.
type failingDeadline struct {
	context.Context
	fail func()
}

func (c failingDeadline) Deadline() (due time.Time, ok bool) {
	c.fail()
	return due, ok
}

// TestExec_DeadlineFails joins calls of which one has a context that panics or exits: each command has an error, and the
// next calls are sent.
func TestExec_DeadlineFails(t *testing.T) {
	for err, fail := range map[string]func(){
		"redispipe: panic in the client or a context: oh":                        func() { panic("oh") },
		"redispipe: a hook of the client's or a context has ended the goroutine": runtime.Goexit,
	} {
		synctest.Test(t, func(t *testing.T) {
			b, answers := newHeld(t)
			b.call(t.Context(), "a")
			want(t, "sent", b.sent, "a")
			bad := b.call(failingDeadline{t.Context(), fail}, "b")
			synctest.Wait()
			joined := b.call(t.Context(), "c")
			synctest.Wait()
			close(answers)
			time.Sleep(2*patience + 1)
			want(t, "the call with the context", bad, err)
			want(t, "the call joined with it", joined, err)
			want(t, "the next", b.call(t.Context(), "d"), "d")
		})
	}
}

// TestExec_SilentServer: at a server that stands still no call outlasts its context, alone or joined.
func TestExec_SilentServer(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, ReadTimeout: -1, WriteTimeout: -1, ContextTimeoutEnabled: true})
	defer rdb.Close()
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	srv.Signal(syscall.SIGSTOP)
	defer srv.Signal(syscall.SIGCONT)
	b := bench{Queue: New(rdb)}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var results []<-chan string
	for range 10 {
		results = append(results, b.call(ctx, "ping"))
	}
	late := time.After(2 * time.Second)
	for i, result := range results {
		select {
		case <-result:
		case <-late:
			t.Fatalf("%d of %d calls outlast their context", len(results)-i, len(results))
		}
	}
}

// TestExec_Refused refuses one of several calls, like a new replica. The client retries a single call.
func TestExec_Refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		b := newBench(t, nil)
		b.answer = func(cmds []redis.Cmder) error {
			<-answers
			echo(cmds)
			if len(cmds) > 1 {
				for _, cmd := range cmds {
					if cmd.Args()[0] == "write" {
						cmd.SetErr(readOnly{})
					}
				}
			}
			return nil
		}
		b.call(t.Context(), "a")
		synctest.Wait()
		read := b.call(t.Context(), "read")
		synctest.Wait()
		write := b.call(t.Context(), "write")
		synctest.Wait()
		close(answers)
		want(t, "sent", b.sent, "a")
		want(t, "sent", b.sent, "read write")
		want(t, "sent again", b.sent, "write")
		want(t, "read", read, "read")
		want(t, "write", write, "write")

		// The client itself handles a refusal of the first command.
		answers = make(chan struct{})
		b.call(t.Context(), "a")
		synctest.Wait()
		write = b.call(t.Context(), "write")
		synctest.Wait()
		read = b.call(t.Context(), "read")
		synctest.Wait()
		close(answers)
		want(t, "sent", b.sent, "a")
		want(t, "sent", b.sent, "write read")
		want(t, "read", read, "read")
		want(t, "write", write, readOnly{}.Error())
		wantNone(t, b.sent)
	})
}

// readOnly is an error reply of a Redis replica.
type readOnly struct{}

func (readOnly) Error() string { return "READONLY You can't write against a read only replica." }
func (readOnly) RedisError()   {}

// TestExec_Hooks has hooks fail, panic and exit: each command has an error, and the next calls are sent.
type exiting struct{}

func (exiting) String() string { runtime.Goexit(); return "" }

func TestExec_Hooks(t *testing.T) {
	for name, c := range map[string]struct {
		hook func() error
		err  string
	}{
		"error": {func() error { return errors.New("refused") }, "refused"},
		"panic": {func() error { panic("oh") }, "redispipe: panic in the client or a context: oh"},
		"error whose methods panic": {func() error { return testserver.ErrBroken },
			"redispipe: panic in the client or a context: runtime error: invalid memory address or nil pointer dereference"},
		"goexit": {func() error { runtime.Goexit(); return nil }, "redispipe: a hook of the client's or a context has ended the goroutine"},
		// A value whose method ends the goroutine.
		"goexit of a panic": {func() error { panic(exiting{}) }, "redispipe: a hook of the client's or a context has ended the goroutine"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answers := make(chan struct{})
				b := newBench(t, nil)
				b.answer = func(cmds []redis.Cmder) error {
					<-answers
					if cmds[0].Args()[0] == "good" {
						return echo(cmds)
					}
					return c.hook()
				}
				first := b.call(t.Context(), "a", "b")
				synctest.Wait()
				second := b.call(t.Context(), "c", "d")
				third := b.call(t.Context(), "e")
				synctest.Wait()
				close(answers)
				// An ended goroutine leads no calls: the timer of the others does.
				time.Sleep(2*patience + 1)
				last := b.call(t.Context(), "good")
				if strings.HasPrefix(name, "goexit") {
					want(t, "first", first, "ended") // it was this caller's goroutine
				} else {
					want(t, "first", first, c.err+" "+c.err)
				}
				want(t, "second", second, c.err+" "+c.err)
				want(t, "third", third, c.err)
				want(t, "last", last, "good")
			})
		})
	}
}

// TestExec_Redis has many callers at a server: each gets its own replies.
func TestExec_Redis(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	defer rdb.Close()
	q := New(rdb)
	var callers sync.WaitGroup
	for i := range 100 {
		callers.Go(func() {
			for n := range 100 {
				var cmds []redis.Cmder
				for j := range i%3 + 1 {
					cmds = append(cmds, redis.NewCmd(t.Context(), "echo", fmt.Sprint(i, n, j)))
				}
				q.Exec(t.Context(), cmds...)
				for j, cmd := range cmds {
					if got, err := cmd.(*redis.Cmd).Text(); got != fmt.Sprint(i, n, j) || err != nil {
						t.Errorf("%v: %q, %v", cmd.Args(), got, err)
					}
				}
			}
		})
	}
	callers.Wait()
}

// TestExec_Cluster has a client of several servers: no call waits.
func TestExec_Cluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ring := redis.NewRing(&redis.RingOptions{})
		defer ring.Close()
		hang := make(chan struct{})
		s := &server{sent: make(chan string, 10), answer: func(cmds []redis.Cmder) error { <-hang; return echo(cmds) }}
		ring.AddHook(testserver.Hook(s.process))
		b := bench{New(ring), s}
		one, two := b.call(t.Context(), "a"), b.call(t.Context(), "a")
		want(t, "sent", b.sent, "a")
		want(t, "sent", b.sent, "a")
		close(hang)
		want(t, "one", one, "a")
		want(t, "two", two, "a")
	})
}
