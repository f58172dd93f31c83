package memcachelock_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
	"github.com/bellwether-go/bellwether/lockers/memcachelock"
)

func newTokenLocker(tb testing.TB, addr string) *memcachelock.Locker {
	tb.Helper()
	l := newLocker(tb, addr)
	l.Tokens = true
	return l
}

func TestConformance_Tokens(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	lockertest.Run(t, func(tb testing.TB) driver.Locker { return newTokenLocker(tb, server.Addr) })
}

// TestTokens_CounterLost loses the counter by an eviction, and with its server.
func TestTokens_CounterLost(t *testing.T) {
	server := testserver.Memcached(t).OwnOrSkip(t)
	mc, l, key := newClient(t, server.Addr), newTokenLocker(t, server.Addr), newKey()
	var last uint64
	rises := func(what string) driver.Lease {
		t.Helper()
		lease := leasetest.Acquire(t, l, key, time.Minute)
		now := leasetest.Token(t, lease)
		if now <= last {
			t.Errorf("%s: token %d after %d", what, now, last)
		}
		last = now
		return lease
	}
	for range 5 {
		if err := rises("on and on").Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := mc.Delete("bellwether:" + key + ":token"); err != nil {
		t.Fatal(err)
	}
	rises("after the eviction")
	server.Restart()
	rises("after a restart")
}

// TestTokens_ServerRestarted has a client with an idle connection to the dead server of a key's counter.
func TestTokens_ServerRestarted(t *testing.T) {
	a, b, c := testserver.Memcached(t).OwnOrSkip(t), testserver.Memcached(t).OwnOrSkip(t), testserver.Memcached(t).OwnOrSkip(t)
	servers := new(memcache.ServerList)
	if err := servers.SetServers(a.Addr, b.Addr, c.Addr); err != nil {
		t.Fatal(err)
	}
	on := func(item string) string {
		addr, err := servers.PickServer(item)
		if err != nil {
			t.Fatal(err)
		}
		return addr.String()
	}
	key := newKey()
	for on("bellwether:"+key+":token") != b.Addr || on(item(key)) == b.Addr {
		key = newKey()
	}
	mc := memcache.NewFromSelector(servers)
	t.Cleanup(func() { mc.Close() })
	l := memcachelock.New(mc)
	l.Tokens = true
	leasetest.Release(t, leasetest.Acquire(t, l, key, time.Minute))
	b.Restart()
	leasetest.Acquire(t, l, key, time.Minute)
}

// TestTokens_DrawnTooLate delays a holder's token until another holder may have drawn one.
func TestTokens_DrawnTooLate(t *testing.T) {
	server := testserver.Memcached(t).OwnOrSkip(t)
	a, b, key := newTokenLocker(t, server.Addr), newTokenLocker(t, server.Addr), newKey()
	gate := newGate(t, server.Addr, "incr bellwether:"+key)
	slow := newTokenLocker(t, gate.addr)

	result := make(chan error)
	go func() {
		_, err := slow.TryAcquire(t.Context(), key, 200*time.Millisecond)
		result <- err
	}()
	<-gate.reached
	time.Sleep(time.Until(leasetest.MustBeHeld(t, b, key).Until))
	second := leasetest.Acquire(t, b, key, time.Minute)
	close(gate.open)
	if err := <-result; err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("err = %v of a token that is greater than the next holder's, want one that says so", err)
	}
	leasetest.Renew(t, second, time.Minute) // by the next holder
	leasetest.Release(t, second)
	if third := leasetest.Acquire(t, a, key, time.Minute); leasetest.Token(t, third) <= leasetest.Token(t, second) {
		t.Errorf("token %d after %d", leasetest.Token(t, third), leasetest.Token(t, second))
	}
}

// TestTokens_ForeignCounter: a lease without a token is given back.
func TestTokens_ForeignCounter(t *testing.T) {
	server := testserver.Memcached(t)
	mc, l, key := newClient(t, server.Addr), newTokenLocker(t, server.Addr), newKey()
	if err := mc.Set(&memcache.Item{Key: "bellwether:" + key + ":token", Value: []byte("not a number")}); err != nil {
		t.Fatal(err)
	}
	_, err := l.TryAcquire(t.Context(), key, time.Minute)
	if err == nil || !strings.Contains(err.Error(), item(key)) {
		t.Errorf("err = %v, want one that names the item", err)
	}
	leasetest.Acquire(t, newLocker(t, server.Addr), key, time.Minute)
}

// TestTokens_ServerStandsStillWhileOneIsDrawn: the lease without a token is given back afterwards.
func TestTokens_ServerStandsStillWhileOneIsDrawn(t *testing.T) {
	server := testserver.Memcached(t).OwnOrSkip(t)
	l, key := newLocker(t, server.Addr), newKey()
	gate := newGate(t, server.Addr, "incr bellwether:"+key)
	defer close(gate.open)
	mc := newClient(t, gate.addr)
	mc.Timeout = 200 * time.Millisecond
	slow := memcachelock.New(mc)
	slow.Tokens = true
	result := make(chan error)
	go func() {
		_, err := slow.TryAcquire(t.Context(), key, time.Hour)
		result <- err
	}()
	<-gate.reached
	server.Signal(syscall.SIGSTOP)
	leasetest.MustBeNoAnswer(t, "TryAcquire", <-result)
	server.Signal(syscall.SIGCONT)
	leasetest.MustBecomeFree(t, l, key)
}

func TestTokens_ContextEndsWhileOneIsDrawn(t *testing.T) {
	server := testserver.Memcached(t)
	l, key := newTokenLocker(t, server.Addr), newKey()
	gate := newGate(t, server.Addr, "incr bellwether:"+key)
	slow := newTokenLocker(t, gate.addr)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := slow.TryAcquire(ctx, key, time.Minute)
		result <- err
	}()
	<-gate.reached
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want the context's", err)
	}
	leasetest.MustBeHeld(t, l, key)
	close(gate.open)
	leasetest.MustBecomeFree(t, l, key)
}

// A gate is a proxy that holds back the first request of a kind.
type gate struct {
	addr    string
	reached chan struct{} // closed when the request has come
	open    chan struct{} // closed by the test to let it go on
}

func newGate(t *testing.T, server, text string) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	g := &gate{l.Addr().String(), make(chan struct{}), make(chan struct{})}
	var held atomic.Bool
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			engine, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			go func() {
				defer client.Close()
				io.Copy(client, engine)
			}()
			go func() {
				defer engine.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := client.Read(buf)
					if err != nil {
						return
					}
					if strings.Contains(string(buf[:n]), text) && held.CompareAndSwap(false, true) {
						close(g.reached)
						<-g.open
					}
					if _, err := engine.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return g
}
