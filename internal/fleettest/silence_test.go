package fleettest

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/redislock"
	"github.com/bellwether-go/bellwether/stores/redisstore"
)

// TestGet_StaleWhenRedisDies has Redis killed, or stand still: a call with a stale value waits for
// at most an EngineTimeout, and no longer once the time-out has passed.
func TestGet_StaleWhenRedisDies(t *testing.T) {
	const keys, each, timeout = 200, 10 * time.Millisecond, 500 * time.Millisecond
	const busy = 400 * time.Millisecond // the delay of a busy machine
	for name, die := range map[string]func(*testserver.Server){
		"killed": (*testserver.Server).Kill, "stopped": func(s *testserver.Server) { s.Signal(syscall.SIGSTOP) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testserver.Redis(t).OwnOrSkip(t)
			rdb := redis.NewClient(&redis.Options{Addr: server.Addr, DialerRetries: 1})
			defer rdb.Close()
			locker := redislock.New(rdb)
			defer locker.Close()
			c := bellwether.New(func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{
				TTL: time.Second, StaleWhileRevalidate: time.Hour, Fleet: bellwether.Fleet{EngineTimeout: timeout, Store: redisstore.New(rdb), Locker: locker, Namespace: "test"},
			})
			defer c.Close()
			for i := range keys {
				if _, err := c.Get(t.Context(), fmt.Sprint(i)); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(1200 * time.Millisecond) // stale, and unconfirmed
			die(server)
			died := time.Now()
			var mu sync.Mutex
			var slowest time.Duration
			var wg sync.WaitGroup
			for i := range keys {
				wg.Go(func() {
					began := time.Now()
					if v, err := c.Get(context.Background(), fmt.Sprint(i)); v != "v" || err != nil {
						t.Errorf("%q, %v", v, err)
					}
					took := time.Since(began)
					mu.Lock()
					defer mu.Unlock()
					slowest = max(slowest, took)
					if took > busy && began.Sub(died) > timeout+busy {
						t.Errorf("%v after the store's last word a call waited for %v", began.Sub(died), took)
					}
				})
				time.Sleep(each)
			}
			wg.Wait()
			t.Logf("the slowest of %d calls took %v", keys, slowest)
			if slowest > timeout+busy {
				t.Errorf("a call waited for %v, want %v at most", slowest, timeout)
			}
		})
	}
}
