package redislease_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/internal/redisdial"
	"github.com/bellwether-go/bellwether/internal/redislease"
	"github.com/bellwether-go/bellwether/internal/redispipe"
	"github.com/bellwether-go/bellwether/internal/redissub"
)

// pausedRedis is a Redis with one key, on the bubble's clock. While it is paused, no command has an answer. It
// carries out the acquire when it goes on.
type pausedRedis struct {
	mu     sync.Mutex // guards the fields below
	paused bool
	late   string              // the token of the acquire that waits; empty: none
	token  string              // of the key's lease; empty: no key
	undos  int                 // answered
	undone map[string]struct{} // the tokens of the answered undos
}

func (r *pausedRedis) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *pausedRedis) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return r.process(ctx, []redis.Cmder{cmd}) }
}

func (r *pausedRedis) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return r.process
}

func (r *pausedRedis) process(ctx context.Context, cmds []redis.Cmder) error {
	r.mu.Lock()
	paused := r.paused
	if set := cmds[0].Args(); paused && set[0] == "set" {
		r.late = set[2].(string)
	}
	r.mu.Unlock()
	if paused {
		<-ctx.Done()
		for _, cmd := range cmds {
			cmd.SetErr(ctx.Err())
		}
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, cmd := range cmds {
		script, ok := cmd.(*redis.Cmd)
		if !ok || !strings.HasPrefix(cmd.Name(), "eval") {
			cmd.SetErr(errors.New("not a script"))
			continue
		}
		r.undos++
		if r.undone != nil {
			r.undone[cmd.Args()[4].(string)] = struct{}{}
		}
		gone := int64(0)
		if token := cmd.Args()[4]; token == r.token {
			gone, r.token = 1, ""
		}
		script.SetVal(gone)
	}
	return nil
}

// goOn ends the pause. An undo that comes over another connection may be carried out before the acquire.
func (r *pausedRedis) goOn(undoFirst bool) {
	r.mu.Lock()
	r.paused = false
	if !undoFirst {
		r.token = r.late
	}
	r.mu.Unlock()
	for range 10_000 { // ms
		r.mu.Lock()
		if undoFirst && r.undos > 0 {
			undoFirst, r.token = false, r.late
		}
		r.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
}

// leases returns leases on the server, until the test's end.
func (r *pausedRedis) leases(t *testing.T) *redislease.Leases {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // the subscription finds no server
	rdb.AddHook(r)
	leases := redislease.New("test", rdb, redispipe.New(rdb), redisdial.Of(rdb), redissub.Share(rdb))
	t.Cleanup(func() {
		leases.Close()
		rdb.Close()
	})
	return leases
}

// A Redis that was paused for longer than a detached request lasts carries an acquire out when it goes on. Its caller
// has left long before, and the lease is undone.
func TestTryAcquire_CarriedOutLate(t *testing.T) {
	for name, undoFirst := range map[string]bool{"acquire first": false, "undo first": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &pausedRedis{paused: true}
				leases := server.leases(t)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				if _, err := leases.TryAcquire(ctx, "test:", "key", time.Hour, false); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("TryAcquire: %v, want the context's end", err)
				}
				time.Sleep(45 * time.Second)
				server.goOn(undoFirst)
				time.Sleep(15 * time.Second)
				server.mu.Lock()
				defer server.mu.Unlock()
				if server.token != "" || server.late == "" || server.undos == 0 {
					t.Errorf("lease %q, acquired as %q, %d undos; want the lease acquired and undone", server.token, server.late, server.undos)
				}
			})
		})
	}
}

// While Redis hangs, each caller that leaves an acquire leaves an undo, for up to two minutes. Their number has a bound.
func TestTryAcquire_UndosAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const undos, callers = 4096, 5000
		server := &pausedRedis{paused: true, undone: map[string]struct{}{}}
		leases := server.leases(t)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		for range callers {
			go leases.TryAcquire(ctx, "test:", "key", time.Hour, false)
		}
		time.Sleep(45 * time.Second)
		server.goOn(false)
		time.Sleep(15 * time.Second)
		server.mu.Lock()
		defer server.mu.Unlock()
		if n := len(server.undone); n != undos {
			t.Errorf("%d callers have left, and %d leases were undone, want %d", callers, n, undos)
		}
	})
}
