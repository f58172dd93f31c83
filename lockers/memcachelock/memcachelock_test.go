package memcachelock_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"go.uber.org/goleak"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
	"github.com/bellwether-go/bellwether/lockers/memcachelock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newClient(tb testing.TB, addr string) *memcache.Client {
	tb.Helper()
	mc := memcache.New(addr)
	mc.MaxIdleConns = 50
	mc.Timeout = 3 * time.Second // a busy machine is not a dead server
	tb.Cleanup(func() { mc.Close() })
	return mc
}

// newLocker returns a Locker with its own client, as in another process.
func newLocker(tb testing.TB, addr string) *memcachelock.Locker {
	tb.Helper()
	return memcachelock.New(newClient(tb, addr))
}

func newKey() string { return "memcachelock:" + adapter.Token() }

func item(key string) string { return "bellwether:" + key + ":lease" }

func TestConformance(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	lockertest.Run(t, func(tb testing.TB) driver.Locker { return newLocker(tb, server.Addr) })
}

// TestCycles_LeaveNothing counts the items that memcached would still return. Memcached frees the
// memory of ended items at its leisure.
func TestCycles_LeaveNothing(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t).OwnOrSkip(t)
	held := leasetest.Acquire(t, newLocker(t, server.Addr), newKey(), time.Minute)
	if got := items(t, server.Addr); len(got) != 1 {
		t.Fatalf("items %q with one lease held: the count counts something else", got)
	}
	leasetest.Release(t, held)
	newLocker := func(tb testing.TB) driver.Locker { return newLocker(tb, server.Addr) }
	lockertest.LeavesNothing(t, newLocker, func() map[string]int {
		return map[string]int{"items": len(items(t, server.Addr))}
	})
}

func items(t *testing.T, addr string) []string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "lru_crawler metadump all\r\n"); err != nil {
		t.Fatal(err)
	}
	var all []string
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		if lines.Text() == "END" {
			return all
		}
		if strings.HasPrefix(lines.Text(), "BUSY") { // with a crawl of its own
			time.Sleep(100 * time.Millisecond)
			return items(t, addr)
		}
		if !strings.HasPrefix(lines.Text(), "key=") {
			t.Fatalf("memcached answers %q", lines.Text())
		}
		all = append(all, lines.Text())
	}
	t.Fatalf("memcached does not say all that it has: %v", lines.Err())
	return nil
}

// TestExpiry_WithoutAnObserver leaves a lease's end to memcached: it is gone at most 6 s afterwards.
func TestExpiry_WithoutAnObserver(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	mc, key := newClient(t, server.Addr), newKey()
	end := time.Now().Add(1500 * time.Millisecond)
	leasetest.Acquire(t, newLocker(t, server.Addr), key, 1500*time.Millisecond)
	for {
		_, err := mc.Get(item(key))
		now := time.Now()
		if errors.Is(err, memcache.ErrCacheMiss) {
			if now.Before(end) {
				t.Fatalf("memcached dropped the lease %v before its end", end.Sub(now))
			}
			t.Logf("memcached dropped a lease of 1.5s %v after its end", now.Sub(end))
			break
		}
		if now.After(end.Add(7 * time.Second)) {
			t.Fatal("memcached keeps the lease")
		}
		time.Sleep(10 * time.Millisecond)
	}
	leasetest.Acquire(t, newLocker(t, server.Addr), key, time.Minute)
}

// TestExpiry_ServerPausedBefore has memcached take a lease by a clock that has stood still: the
// lease lasts as long as its holder counts.
func TestExpiry_ServerPausedBefore(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t).OwnOrSkip(t)
	a, b := newLocker(t, server.Addr), newLocker(t, server.Addr)
	const pause, ttl = 900 * time.Millisecond, 900 * time.Millisecond
	for range 4 {
		key := newKey()
		server.Signal(syscall.SIGSTOP)
		waiting := make(chan error, 1)
		go func() {
			// The request waits at the server, and is answered before or after it reads the time.
			_, err := a.TryAcquire(context.Background(), newKey(), time.Millisecond)
			waiting <- err
		}()
		time.Sleep(pause)
		server.Signal(syscall.SIGCONT)
		if err := <-waiting; err != nil {
			t.Fatal(err)
		}
		end := time.Now().Add(ttl)
		leasetest.Acquire(t, a, key, ttl)
		for time.Now().Before(end) {
			_, err := b.TryAcquire(t.Context(), key, time.Second)
			if now := time.Now(); err == nil && now.Before(end) {
				t.Fatalf("another has the lease %v before its end", end.Sub(now))
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func TestPrefix(t *testing.T) {
	server := testserver.Memcached(t)
	l, key := newLocker(t, server.Addr), newKey()
	l.Prefix = "shop:"
	leasetest.Acquire(t, l, key, time.Minute)
	if _, err := newClient(t, server.Addr).Get("shop:" + key + ":lease"); err != nil {
		t.Fatalf("no lease under the prefix: %v", err)
	}
	leasetest.Acquire(t, newLocker(t, server.Addr), key, time.Minute) // another prefix is another key
}

func TestTTL_OverThirtyDays(t *testing.T) {
	server := testserver.Memcached(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	const year = 365 * 24 * time.Hour
	lease := leasetest.Acquire(t, a, key, year)
	limit := time.Now().Add(30*24*time.Hour + time.Minute)
	if until := leasetest.MustBeHeld(t, b, key).Until; until.After(limit) {
		t.Errorf("Until = %v: the holder believes in more than memcached keeps", until)
	}
	leasetest.Renew(t, lease, year)
	leasetest.MustBeHeld(t, b, key) // not taken for a date in 1970, and gone
	leasetest.Release(t, lease)
}

func TestToken_OfWhichAnotherIsTheBeginning(t *testing.T) {
	server := testserver.Memcached(t)
	l, mc, key := newLocker(t, server.Addr), newClient(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, l, key, time.Minute)
	it, err := mc.Get(item(key))
	if err != nil {
		t.Fatal(err)
	}
	token, _, _ := strings.Cut(string(it.Value), " ")
	for _, other := range []string{token + "x", token[:len(token)-1], token[:1], "x" + token} {
		if err := mc.Set(&memcache.Item{Key: item(key), Value: []byte(other + " 60000 0"), Expiration: 60}); err != nil {
			t.Fatal(err)
		}
		leasetest.MustBeLost(t, "Renew beside "+other, lease.Renew(t.Context(), time.Hour))
		leasetest.MustBeLost(t, "Release beside "+other, lease.Release(t.Context()))
		leasetest.MustBeHeld(t, l, key)
	}
}

func TestForeignValue(t *testing.T) {
	server := testserver.Memcached(t)
	l, mc := newLocker(t, server.Addr), newClient(t, server.Addr)
	for _, v := range []string{"", "x", "x y z", "x 1", "x 1 2 3", "x 0 0", "x -1 0", " 1 0", "x 99999999999999999999 0", "x 99999999999999 0"} {
		key := newKey()
		if err := mc.Set(&memcache.Item{Key: item(key), Value: []byte(v), Expiration: 60}); err != nil {
			t.Fatal(err)
		}
		_, err := l.TryAcquire(t.Context(), key, time.Minute)
		if !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), item(key)) {
			t.Errorf("value %q: err = %v, want ErrCorrupt, and the item's name", v, err)
		}
	}
}

// TestNoCompareAndSwap has a server that refuses every swap: no call retries without end, even
// after its caller has left, and the error has the reason.
func TestNoCompareAndSwap(t *testing.T) {
	server := testserver.Memcached(t, "-C").OwnOrSkip(t)
	l, key := newLocker(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, l, key, time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for what, call := range map[string]func() error{
		"TryAcquire": func() error { _, err := l.TryAcquire(ctx, key, time.Minute); return err },
		"Renew":      func() error { return lease.Renew(ctx, time.Minute) },
		"Release":    func() error { return lease.Release(ctx) },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "-C") {
			t.Errorf("%s: %v, want an error that says why", what, err)
		}
	}
}

func TestSilentServer(t *testing.T) {
	server := testserver.Memcached(t).OwnOrSkip(t)
	a, b := newLocker(t, server.Addr), newLocker(t, server.Addr)
	held, free := newKey(), newKey()
	lease := leasetest.Acquire(t, a, held, time.Minute)

	server.Signal(syscall.SIGSTOP)
	lockertest.Hang(t, a, lease)
	leasetest.MustGiveUp(t, "TryAcquire", func(ctx context.Context) error {
		_, err := a.TryAcquire(ctx, free, time.Minute)
		return err
	})
	server.Signal(syscall.SIGCONT)

	// Neither the abandoned acquire nor the released lease blocks its key.
	for _, key := range []string{free, held} {
		leasetest.MustBecomeFree(t, b, key)
	}
}

// TestTryAcquire_GivenUpWhileTheServerStandsStill pauses the server for longer than the client's
// time-outs. The server then carries out the abandoned requests.
func TestTryAcquire_GivenUpWhileTheServerStandsStill(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t).OwnOrSkip(t)
	mc := newClient(t, server.Addr)
	mc.Timeout = 50 * time.Millisecond
	a, b, key := memcachelock.New(mc), newLocker(t, server.Addr), newKey()
	leasetest.Acquire(t, a, newKey(), time.Minute) // opens a connection
	server.Signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := a.TryAcquire(ctx, key, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("TryAcquire: err = %v, want the context's", err)
	}
	time.Sleep(300 * time.Millisecond)
	server.Signal(syscall.SIGCONT)
	leasetest.MustBecomeFree(t, b, key)
}

// TestTryAcquire_LateAdd has an add carried out after its connection ended and the key became free:
// the lease it takes has no holder.
func TestTryAcquire_LateAdd(t *testing.T) {
	t.Parallel()
	server := testserver.Memcached(t)
	other, admin := newLocker(t, server.Addr), newClient(t, server.Addr)
	for _, c := range []struct {
		name   string
		ttl    time.Duration
		held   bool  // by another holder
		fails  bool  // the look after the add
		before int64 // looks before the add arrives; the last of them is the first of the undo
	}{
		{"after ErrHeld", time.Minute, true, false, 2},
		{"after ErrHeld and the end of the lease", time.Nanosecond, true, false, 2},
		{"after a failure", time.Minute, false, true, 2},
		{"after the release", time.Minute, false, false, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			mc, key := newClient(t, server.Addr), newKey()
			l := memcachelock.New(mc)
			var late []byte
			var looks atomic.Int64
			arrived := make(chan struct{})
			mc.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				nc, err := new(net.Dialer).DialContext(ctx, network, addr)
				return conn{nc, func(b []byte) {
					switch {
					case bytes.HasPrefix(b, []byte("add ")) && late == nil:
						late = bytes.Clone(b)
						nc.Close()
					case bytes.HasPrefix(b, []byte("gets ")):
						if n := looks.Add(1); n == 1 && c.fails {
							nc.Close()
						} else if n > c.before {
							<-arrived
						}
					}
				}}, err
			}
			switch {
			case c.fails:
				_, err := l.TryAcquire(t.Context(), key, c.ttl)
				leasetest.MustBeNoAnswer(t, "TryAcquire", err)
			case c.held:
				lease := leasetest.Acquire(t, other, key, time.Minute)
				if _, err := l.TryAcquire(t.Context(), key, c.ttl); !errors.Is(err, driver.ErrHeld) {
					t.Fatalf("TryAcquire: %v, want ErrHeld", err)
				}
				leasetest.Release(t, lease)
			default:
				leasetest.Release(t, leasetest.Acquire(t, l, key, c.ttl))
			}
			for start := time.Now(); looks.Load() < c.before+1 && time.Since(start) < time.Second; {
				time.Sleep(5 * time.Millisecond) // until the undo's first look has passed
			}
			nc, err := net.Dial("tcp", server.Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			nc.Write(late)
			if reply, err := bufio.NewReader(nc).ReadString('\n'); reply != "STORED\r\n" {
				t.Fatalf("the late add: %q, %v: the test tests nothing", reply, err)
			}
			close(arrived)
			leasetest.Eventually(t, 3*time.Second, "no lease without a holder", func() bool {
				_, err := admin.Get(item(key))
				return errors.Is(err, memcache.ErrCacheMiss)
			})
		})
	}
}

// A conn calls hook before a write.
type conn struct {
	net.Conn
	hook func(b []byte)
}

func (c conn) Write(b []byte) (int, error) {
	c.hook(b)
	return c.Conn.Write(b)
}

func TestDeadServer(t *testing.T) {
	server := testserver.Memcached(t).OwnOrSkip(t)
	l, key := newLocker(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, l, key, time.Minute)
	server.Kill()
	lockertest.Down(t, l, lease)
	server.Start()
	leasetest.Acquire(t, l, key, time.Minute) // the restart took the lease away
	leasetest.MustBeLost(t, "Renew of a lease that the restart took away", lease.Renew(t.Context(), time.Minute))
	leasetest.MustBeLost(t, "Release of a lease that the restart took away", lease.Release(t.Context()))
	leasetest.MustBeHeld(t, l, key)
}

// TestTryAcquire_ServerRestarted has a client with an idle connection to the dead server.
func TestTryAcquire_ServerRestarted(t *testing.T) {
	server := testserver.Memcached(t).OwnOrSkip(t)
	l := newLocker(t, server.Addr)
	leasetest.Release(t, leasetest.Acquire(t, l, newKey(), time.Minute))
	server.Restart()
	leasetest.Acquire(t, l, newKey(), time.Minute)
}

// TestRenew_LateRequest has an abandoned renewal go on after the next one.
func TestRenew_LateRequest(t *testing.T) {
	server := testserver.Memcached(t)
	mc, key := newClient(t, server.Addr), newKey()
	for _, late := range []string{"gets", "cas"} {
		t.Run(late, func(t *testing.T) {
			key := key + late
			gate := newGate(t, server.Addr, late+" "+item(key))
			lease := leasetest.Acquire(t, newLocker(t, gate.addr), key, time.Minute)
			leasetest.MustGiveUp(t, "Renew", func(ctx context.Context) error { return lease.Renew(ctx, 50*time.Millisecond) })
			<-gate.reached
			leasetest.Renew(t, lease, time.Hour)
			close(gate.open)
			for start := time.Now(); time.Since(start) < 200*time.Millisecond; time.Sleep(5 * time.Millisecond) {
				got, err := mc.Get(item(key))
				if err != nil {
					t.Fatal(err)
				}
				if announced, _ := adapter.DecodeAnnouncement(got.Value); announced.Length != time.Hour {
					t.Fatalf("observers are told of %v, and the holder of an hour", announced.Length)
				}
			}
			leasetest.Renew(t, lease, time.Hour)
		})
	}
}

// TestRenew_ShorterWithoutAnAnswer: other processes may count the shorter length, so the holder counts no longer.
func TestRenew_ShorterWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	proxy := testserver.NewProxy(t, testserver.Memcached(t).Addr)
	mine := leasetest.Acquire(t, newLocker(t, proxy.Addr), newKey(), time.Minute)
	proxy.SwallowReplyTo("cas ")
	if err := mine.Renew(t.Context(), 100*time.Millisecond); err == nil || errors.Is(err, driver.ErrLeaseLost) {
		t.Fatalf("Renew = %v, want the lost reply", err)
	}
	time.Sleep(200 * time.Millisecond)
	leasetest.MustBeLost(t, "Renew after the shorter length", mine.Renew(t.Context(), time.Minute))
}

func TestTryAcquire_LostReply(t *testing.T) {
	server := testserver.Memcached(t)
	proxy := testserver.NewProxy(t, server.Addr)
	leasetest.LostReplies{
		A: newLocker(t, proxy.Addr), B: newLocker(t, server.Addr), NewKey: newKey, Armed: proxy.Armed,
		Lose: func(call, key string, _ *driver.HeldError) {
			command := "add "
			if call == "takeover" {
				command = "cas "
			}
			proxy.SwallowReplyTo(command + item(key))
		},
	}.Run(t, "acquire", "refused acquire", "takeover")
}

// fill leaves no room on a server that evicts nothing.
func fill(mc *memcache.Client) {
	for size := 100_000; size >= 1; size /= 2 {
		for i := 0; mc.Set(&memcache.Item{Key: fmt.Sprint("room:", size, ":", i), Value: make([]byte, size)}) == nil; i++ {
		}
	}
}

// TestRelease_Full releases on a full memcached that evicts nothing (-M).
func TestRelease_Full(t *testing.T) {
	server := testserver.Memcached(t, "-M", "-m", "2").OwnOrSkip(t)
	mc := newClient(t, server.Addr)
	l := memcachelock.New(mc)
	lease := leasetest.Acquire(t, l, "key", time.Minute)
	fill(mc)
	if err := lease.Renew(t.Context(), time.Minute); err == nil {
		t.Fatal("the server has room for a renewal")
	}
	leasetest.Release(t, lease)
	if it, err := mc.Get("bellwether:key:lease"); !errors.Is(err, memcache.ErrCacheMiss) {
		t.Errorf("the lease's item is %+v, err = %v, want none", it, err)
	}
}

// TestRelease_FullTwice has two releases at once on such a server, so the second finds nothing to delete.
func TestRelease_FullTwice(t *testing.T) {
	server := testserver.Memcached(t, "-M", "-m", "2").OwnOrSkip(t)
	mc := newClient(t, server.Addr)
	gate := newGate(t, server.Addr, "delete ")
	lease := leasetest.Acquire(t, newLocker(t, gate.addr), "key", time.Minute)
	fill(mc)
	first := make(chan error)
	go func() { first <- lease.Release(t.Context()) }()
	<-gate.reached
	leasetest.Release(t, lease)
	close(gate.open)
	leasetest.MustBeLost(t, "the release behind another", <-first)
}

func TestNew_NoClient(t *testing.T) {
	leasetest.MustPanic(t, "memcachelock: New needs a client", func() { memcachelock.New(nil) })
}
