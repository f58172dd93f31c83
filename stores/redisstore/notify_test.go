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

// With a negative MaxNotice the store tells no changes.
func TestNotify_Off(t *testing.T) {
	ctx := t.Context()
	rdb := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	defer rdb.Close()
	s := New(rdb)
	s.Prefix, s.MaxNotice = t.Name()+":", -1
	told := rdb.PSubscribe(ctx, s.Prefix+"*")
	defer told.Close()
	if _, err := told.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	_, epoch, err := s.Claim(ctx, "k")
	if err == nil {
		err = s.Commit(ctx, "k", driver.Entry{Kind: driver.KindValue, Value: []byte("v"), Epoch: epoch, TTL: time.Minute})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Invalidate(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	rdb.Publish(ctx, s.Prefix+"end", "")
	if m, err := told.ReceiveMessage(ctx); err != nil || m.Channel != s.Prefix+"end" {
		t.Errorf("told %v, %v, want nothing", m, err)
	}
}
