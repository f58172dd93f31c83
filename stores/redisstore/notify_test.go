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
