package redisfleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/redislease"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

// scripts counts the scripts that a client sends, and may change the replies.
type scripts struct {
	sent   atomic.Int64
	change func(*redis.Cmd)
}

func (s *scripts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *scripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		s.saw(cmd)
		return err
	}
}

func (s *scripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			s.saw(cmd)
		}
		return err
	}
}

func (s *scripts) saw(cmd redis.Cmder) {
	if reply, ok := cmd.(*redis.Cmd); ok && (cmd.Name() == "evalsha" || cmd.Name() == "eval") {
		s.sent.Add(1)
		if s.change != nil {
			s.change(reply)
		}
	}
}

// standForAll calls Elect for n keys at once, behind a paused server. It returns the elections in the order of the keys.
func standForAll(t *testing.T, ctx context.Context, rdb *redis.Client, eng *Engine, n int) ([]driver.Election, []error) {
	t.Helper()
	must(t, rdb.Do(t.Context(), "client", "pause", "100", "all").Err())
	won, errs := make([]driver.Election, n), make([]error, n)
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { won[i], errs[i] = eng.Elect(ctx, fmt.Sprint("k", i), 0, time.Minute) })
	}
	calls.Wait()
	return won, errs
}

// TestElect_Together: calls that come during a request share the next one. Each is elected for its own key.
func TestElect_Together(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	rdb, watched, seen := dial(t, srv.Addr), dial(t, srv.Addr), &scripts{}
	watched.AddHook(seen)
	eng := over(t, watched)
	elect(t, eng, "first", 0) // Redis has the script now
	seen.sent.Store(0)
	const keys = 200
	won, errs := standForAll(t, t.Context(), rdb, eng, keys)
	for i, w := range won {
		if errs[i] != nil || w.Lease == nil || w.Epoch == 0 {
			t.Fatalf("key %d: %+v, %v; want a lease and an epoch", i, w, errs[i])
		}
		if at, mine := rdb.Get(t.Context(), redislease.Key(eng.Prefix, fmt.Sprint("k", i))).Val(), redislease.Of(w.Lease).Holder; at != mine {
			t.Errorf("key %d: the lease of %q, want %q", i, at, mine)
		}
	}
	if n := seen.sent.Load(); n > keys/4 {
		t.Errorf("%d scripts for %d keys", n, keys)
	}
}

// TestElect_RefusedTogether: a key whose lease the server cannot read spoils no other key's election.
func TestElect_RefusedTogether(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	rdb, eng := dial(t, srv.Addr), open(t, srv.Addr)
	const keys, bad = 20, 7
	must(t, rdb.LPush(t.Context(), redislease.Key(eng.Prefix, fmt.Sprint("k", bad)), "x").Err())
	won, errs := standForAll(t, t.Context(), rdb, eng, keys)
	for i, w := range won {
		switch {
		case i == bad && !errors.Is(errs[i], driver.ErrCorrupt):
			t.Errorf("the key with a list as its lease: %v, want ErrCorrupt", errs[i])
		case i != bad && (errs[i] != nil || w.Lease == nil):
			t.Errorf("key %d: %+v, %v; want a lease", i, w, errs[i])
		}
	}
}

// TestElect_CallsLeave: calls that end during a common request leave no lease behind.
func TestElect_CallsLeave(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	rdb, eng := dial(t, srv.Addr), open(t, srv.Addr)
	elect(t, eng, "first", 0)
	rdb.FlushDB(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, errs := standForAll(t, ctx, rdb, eng, 100)
	for i, err := range errs {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("key %d: %v, want the deadline", i, err)
		}
	}
	wantFreed(t, rdb, eng, 100, func(int) bool { return false })
}

// wantFreed waits until the keys except the bad ones have no lease. Some of their calls were elected.
func wantFreed(t *testing.T, rdb *redis.Client, eng *Engine, keys int, bad func(i int) bool) {
	t.Helper()
	var left []string
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left = left[:0]
		for i := range keys {
			if name := redislease.Key(eng.Prefix, fmt.Sprint("k", i)); !bad(i) && rdb.Exists(t.Context(), name).Val() > 0 {
				left = append(left, name)
			}
		}
		if len(left) == 0 && len(rdb.Keys(t.Context(), "*:entry").Val()) > 0 {
			return
		}
	}
	t.Errorf("leases are left behind: %v", left)
}

// TestElect_ForeignReplies: a reply that is not the script's is an error.
func TestElect_ForeignReplies(t *testing.T) {
	srv := testserver.Redis(t)
	for name, reply := range map[string]any{
		"a number":          int64(1),
		"no answer":         []any{"0000000000000001"},
		"no array":          []any{int64(1), "0000000000000001"},
		"an empty array":    []any{[]any{}, "0000000000000001"},
		"no kind":           []any{[]any{"x", "y", "z"}, "0000000000000001"},
		"an unknown kind":   []any{[]any{int64(leaseNoted + 1), "", "", ""}, "0000000000000001"},
		"held, no holder":   []any{[]any{int64(leaseHeld), ""}, "0000000000000001"},
		"elected, no epoch": []any{[]any{int64(elected), nil, nil}, "0000000000000001"},
		"no time":           []any{[]any{int64(answered), nil}, "now"},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := dial(t, srv.Addr)
			rdb.AddHook(&scripts{change: func(cmd *redis.Cmd) {
				if len(cmd.Args()) == 15 { // the elect script's, of one key
					cmd.SetVal(reply)
				}
			}})
			eng := over(t, rdb)
			eng.Prefix = "test:" + adapter.Token() + ":"
			if got, err := eng.Elect(t.Context(), "k", 0, time.Minute); err == nil {
				t.Errorf("Elect: %+v, want an error", got)
			}
		})
	}
}

// TestElect_CallsLeaveARefusedScript: a script that fails at one key has taken the leases of the keys before. Calls that
// have ended meanwhile leave none of these leases behind.
func TestElect_CallsLeaveARefusedScript(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	rdb, eng := dial(t, srv.Addr), open(t, srv.Addr)
	elect(t, eng, "first", 0)
	rdb.FlushDB(t.Context())
	const keys = 20
	var bad []string
	for i := 4; i < keys; i += 5 {
		bad = append(bad, redislease.Key(eng.Prefix, fmt.Sprint("k", i)))
		must(t, rdb.LPush(t.Context(), bad[len(bad)-1], "x").Err())
	}
	defer func() {
		rdb.Del(t.Context(), bad...)
		time.Sleep(4 * time.Second) // undoes that found no lease are repeated after a second
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	standForAll(t, ctx, rdb, eng, keys)
	wantFreed(t, rdb, eng, keys, func(i int) bool { return i%5 == 4 })
}
