package redisstore

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// A listener ends with its context, even before a silent server.
func TestNotify_EndsAtOnce(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) (addr string, prepare func()){
		"deaf from the start": func(t *testing.T) (string, func()) {
			l, err := net.Listen("tcp", "127.0.0.1:0") // accepts no connections
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			return l.Addr().String(), func() {}
		},
		"nobody there": func(t *testing.T) (string, func()) { return testserver.FreeAddr(t), func() {} },
		"stopped later": func(t *testing.T) (string, func()) {
			s := testserver.Redis(t)
			return s.Addr, func() { s.Signal(syscall.SIGSTOP) }
		},
		"gone later": func(t *testing.T) (string, func()) {
			s := testserver.Redis(t)
			return s.Addr, s.Kill
		},
	} {
		// At once, and when it is about to reconnect.
		for _, after := range []time.Duration{0, 4 * time.Second} {
			t.Run(fmt.Sprint(name, after), func(t *testing.T) {
				t.Parallel()
				addr, prepare := open(t)
				rdb := redis.NewClient(&redis.Options{Addr: addr})
				defer rdb.Close()
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					New(rdb).Notify(ctx, func(driver.Notice) {})
				}()
				time.Sleep(200 * time.Millisecond)
				prepare()
				time.Sleep(after)
				cancel()
				start := time.Now()
				<-ended
				if took := time.Since(start); took > 500*time.Millisecond {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}

// TestNotify_Databases has two databases of a server and one Prefix: neither hears the other's changes.
func TestNotify_Databases(t *testing.T) {
	server := testserver.Redis(t)
	var stores [2]*Store
	var heard [2]chan driver.Notice
	for db := range stores {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr, DB: db})
		t.Cleanup(func() { rdb.Close() })
		stores[db], heard[db] = New(rdb), make(chan driver.Notice, 1000)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			stores[db].Notify(ctx, func(n driver.Notice) { heard[db] <- n })
		}()
		t.Cleanup(func() {
			cancel()
			<-ended
		})
		for up := false; !up; { // a subscription takes its time
			invalidate(t, stores[db], fmt.Sprint("up ", db))
			select {
			case <-heard[db]:
				up = true
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	for db, s := range stores {
		put(t, s, fmt.Sprint("of ", db), time.Hour)
		invalidate(t, s, fmt.Sprint("of ", db))
	}
	for _, s := range stores {
		invalidate(t, s, "last")
	}
	for db := range stores {
		other := fmt.Sprint("of ", 1-db)
		for last := false; !last; {
			select {
			case n := <-heard[db]:
				if n.Key == other {
					t.Errorf("database %d hears of a change in the other one: %+v", db, n)
				}
				last = n.Key == "last"
			case <-time.After(5 * time.Second):
				t.Fatalf("database %d hears nothing", db)
			}
		}
	}
}
