package redisstore

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// calls makes each kind of call, for as long as a cache waits by default, and returns errors by name.
func calls(tb testing.TB, s *Store) map[string]error {
	errs := map[string]error{}
	for name, call := range map[string]func(context.Context) error{
		"get":   func(ctx context.Context) error { _, err := s.Get(ctx, "k"); return err },
		"claim": func(ctx context.Context) error { _, _, err := s.Claim(ctx, "k"); return err },
		"commit": func(ctx context.Context) error {
			return s.Commit(ctx, "k", driver.Entry{Kind: driver.KindValue, Epoch: 1, TTL: time.Hour})
		},
		"fenced":     func(ctx context.Context) error { _, err := s.Fenced(ctx, "k", 1); return err },
		"invalidate": func(ctx context.Context) error { return s.Invalidate(ctx, "k") },
		"get many": func(ctx context.Context) (failed error) {
			s.GetMany(ctx, []string{"k", "l"}, func(i int, _ driver.Entry, err error) {
				if i == 1 {
					failed = err
				}
			})
			return failed
		},
	} {
		ctx, cancel := context.WithTimeout(tb.Context(), 500*time.Millisecond)
		errs[name] = call(ctx)
		cancel()
	}
	return errs
}

// TestErrors_WhoseMethodsPanic has a hook of the client's return such an error for each request. Each call returns the
// panic, also the calls whose requests have goroutines of their own.
func TestErrors_WhoseMethodsPanic(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	defer rdb.Close()
	s := New(rdb)
	rdb.AddHook(testserver.Hook(func(context.Context, []redis.Cmder, func() error) error { return testserver.ErrBroken }))
	for name, err := range calls(t, s) {
		if err == nil || !strings.Contains(err.Error(), "nil pointer dereference") {
			t.Errorf("%s: %v, want the panic", name, err)
		}
	}
}

// TestErrors_Refused has no server listen. With go-redis's default dialing the client takes longer
// to report that than a cache waits. The error still has the reason.
func TestErrors_Refused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	for name, rdb := range map[string]redis.UniversalClient{
		"one server":              redis.NewClient(&redis.Options{Addr: addr}),
		"one that is dialed once": redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1}),
		"a cluster":               redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}}),
		// Once its heartbeat has missed a server three times, a ring stops asking it, and its error
		// is only "all ring shards are down".
		"a ring": redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr}, HeartbeatFrequency: time.Hour}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() { rdb.Close() })
			s := New(rdb)
			for range 2 {
				for call, err := range calls(t, s) {
					if err == nil || !strings.HasPrefix(err.Error(), "redisstore: ") || !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "refused") {
						t.Errorf("%s: %v; want the address, and that it refuses", call, err)
					}
				}
			}
		})
	}
}

// TestErrors_SayWhoseTheyAre sees every error name redisstore: a bare error of Redis often begins
// with a command, and a bare context error has no origin.
func TestErrors_SayWhoseTheyAre(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, srv *testserver.Server, rdb *redis.Client){
		"hangs": func(t *testing.T, srv *testserver.Server, _ *redis.Client) {
			srv.Signal(syscall.SIGSTOP)
			t.Cleanup(func() { srv.Signal(syscall.SIGCONT) })
		},
		"has no memory": func(t *testing.T, _ *testserver.Server, rdb *redis.Client) {
			rdb.ConfigSet(t.Context(), "maxmemory", "1")
		},
		"is a replica": func(t *testing.T, _ *testserver.Server, rdb *redis.Client) {
			rdb.ReplicaOf(t.Context(), "127.0.0.1", "1")
		},
		"permits nothing": func(t *testing.T, _ *testserver.Server, rdb *redis.Client) {
			rdb.Do(t.Context(), "acl", "setuser", "default", "-@all", "+ping", "+hello")
		},
		"permits no commands in scripts": func(t *testing.T, _ *testserver.Server, rdb *redis.Client) {
			rdb.Do(t.Context(), "acl", "setuser", "default", "-@all", "+ping", "+hello", "+eval", "+evalsha", "+time")
		},
		"has other things there": func(t *testing.T, _ *testserver.Server, rdb *redis.Client) {
			rdb.LPush(t.Context(), "bellwether:{k}:entry", "x")
			rdb.LPush(t.Context(), "bellwether:{l}:entry", "x")
		},
		"is gone": func(_ *testing.T, srv *testserver.Server, _ *redis.Client) { srv.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := testserver.Redis(t).OwnOrSkip(t)
			s, rdb := open(t, srv.Addr, "bellwether:")
			spoil(t, srv, rdb)
			failed := 0
			for call, err := range calls(t, s) {
				if err == nil || errors.Is(err, driver.ErrNotFound) {
					continue
				}
				failed++
				if text := err.Error(); !strings.HasPrefix(text, "redisstore: "+call+": ") && !(call == "get many" && strings.HasPrefix(text, "redisstore: get: ")) && err != driver.ErrFenced {
					t.Errorf("%s: %v", call, err)
				}
			}
			if failed == 0 {
				t.Error("nothing fails: the test tests nothing")
			}
		})
	}
}

// TestErrors_NoLeaveToRead has a user lose the right to read. A commit that finds no claim would be fenced off.
func TestErrors_NoLeaveToRead(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	s, rdb := open(t, srv.Addr, "bellwether:")
	_, epoch, err := s.Claim(t.Context(), "k")
	must(t, err)
	must(t, rdb.Do(t.Context(), "acl", "setuser", "default", "-getrange").Err())
	fenced, err := s.Fenced(t.Context(), "k", epoch)
	all := map[string]error{"fenced": err}
	all["commit"] = s.Commit(t.Context(), "k", driver.Entry{Kind: driver.KindValue, Epoch: epoch, TTL: time.Hour})
	_, _, all["claim"] = s.Claim(t.Context(), "k")
	for call, err := range all {
		if err == nil || !strings.Contains(err.Error(), "can't run this command") {
			t.Errorf("%s: %v, want that a command is not permitted", call, err)
		}
	}
	if fenced {
		t.Error("the claim counts as fenced off")
	}
	// An invalidation is carried out all the same: other users may read the entry.
	must(t, s.Invalidate(t.Context(), "k"))
	must(t, rdb.Do(t.Context(), "acl", "setuser", "default", "+getrange").Err())
	if err := s.Commit(t.Context(), "k", driver.Entry{Kind: driver.KindValue, Epoch: epoch, TTL: time.Hour}); !errors.Is(err, driver.ErrFenced) {
		t.Errorf("commit after the invalidation: %v, want ErrFenced", err)
	}
}
