package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
	"github.com/bellwether-go/bellwether/lockers/redislock"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newClient(tb testing.TB, addr string) *redis.Client {
	tb.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1})
	tb.Cleanup(func() { rdb.Close() })
	return rdb
}

// newLocker returns a Locker with its own client, as in another process.
func newLocker(tb testing.TB, addr string) *redislock.Locker {
	tb.Helper()
	l := redislock.New(newClient(tb, addr))
	tb.Cleanup(func() { l.Close() })
	return l
}

func newKey() string { return "redislock:" + adapter.Token() }

// watch watches key once l's push works.
func watch(t *testing.T, l *redislock.Locker, key string) <-chan struct{} {
	t.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		freed, err := l.Watch(t.Context(), leasetest.MustBeHeld(t, l, key))
		if err == nil {
			return freed
		}
		if time.Since(start) > 5*time.Second {
			t.Fatalf("no push after %v: %v", time.Since(start), err)
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestConformance(t *testing.T) {
	server := testserver.Redis(t)
	lockertest.Run(t, func(tb testing.TB) driver.Locker { return newLocker(tb, server.Addr) })
}

func TestConformance_Tokens(t *testing.T) {
	server := testserver.Redis(t)
	lockertest.Run(t, func(tb testing.TB) driver.Locker {
		l := newLocker(tb, server.Addr)
		l.Tokens = true
		return l
	})
}

func TestCycles_LeaveNothing(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t).OwnOrSkip(t)
	rdb := newClient(t, server.Addr)
	for _, tokens := range []bool{false, true} {
		withTokens := func(tb testing.TB) driver.Locker {
			l := newLocker(tb, server.Addr)
			l.Tokens = tokens
			return l
		}
		lockertest.LeavesNothing(t, withTokens, func() map[string]int {
			keys, err := rdb.DBSize(t.Context()).Result()
			if err != nil {
				t.Fatal(err)
			}
			return map[string]int{"keys": int(keys)}
		})
	}
}

// TestTokens_AcrossARestart has the server lose its data, and a reply.
func TestTokens_AcrossARestart(t *testing.T) {
	server := testserver.Redis(t).OwnOrSkip(t)
	proxy := testserver.NewProxy(t, server.Addr)
	l, key := newLocker(t, proxy.Addr), newKey()
	l.Tokens = true
	var last uint64
	rises := func(what string) driver.Lease {
		t.Helper()
		lease := leasetest.Acquire(t, l, key, time.Minute)
		now := lease.(driver.Tokener).Token()
		if now <= last {
			t.Errorf("%s: token %d after %d", what, now, last)
		}
		last = now
		return lease
	}
	rises("at first")
	server.Restart()
	for start := time.Now(); newClient(t, server.Addr).Ping(t.Context()).Err() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 5*time.Second {
			t.Fatal("the server does not come back")
		}
	}
	must(t, rises("after a restart").Release(t.Context()))
	proxy.SwallowReplyTo(key)
	must(t, rises("after a lost reply").Release(t.Context()))
	if proxy.Armed() {
		t.Fatal("no reply was swallowed: the test tests nothing")
	}
}

// TestTokens_Commands: tokens cost one command more, and without the option nothing.
func TestTokens_Commands(t *testing.T) {
	server := testserver.Redis(t).OwnOrSkip(t)
	admin := newClient(t, server.Addr)
	l, key := newLocker(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, l, key, time.Minute)
	if _, ok := lease.(driver.Tokener); ok {
		t.Error("a lease without Tokens is a Tokener")
	}
	l = newLocker(t, server.Addr)
	l.Tokens = true
	watch(t, l, key) // confirms the subscription and loads the script
	for _, step := range []struct {
		name string
		do   func()
		want map[string]int
	}{
		{"try a held lease", func() { leasetest.MustBeHeld(t, l, key) }, map[string]int{"evalsha": 1, "set": 1, "pttl": 1}},
		{"acquire", func() { leasetest.Acquire(t, l, newKey(), time.Minute) }, map[string]int{"evalsha": 1, "set": 1, "time": 1}},
	} {
		must(t, admin.ConfigResetStat(t.Context()).Err())
		step.do()
		if got := commands(t, admin); !maps.Equal(got, step.want) {
			t.Errorf("%s: commands %v, want %v", step.name, got, step.want)
		}
	}
}

// TestConformance_OlderWireFormat runs on RESP2, from before Redis 6, with other pub/sub replies.
func TestConformance_OlderWireFormat(t *testing.T) {
	server := testserver.Redis(t)
	lockertest.Run(t, func(tb testing.TB) driver.Locker {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr, Protocol: 2, ContextTimeoutEnabled: true})
		l := redislock.New(rdb)
		tb.Cleanup(func() {
			l.Close()
			rdb.Close()
		})
		return l
	})
}

func TestCommands(t *testing.T) {
	server := testserver.Redis(t).OwnOrSkip(t)
	admin := newClient(t, server.Addr)
	a, b := newLocker(t, server.Addr), newLocker(t, server.Addr)
	key := newKey()

	// The server knows the scripts, and the subscriptions are confirmed.
	lease := leasetest.Acquire(t, a, key, time.Minute)
	leasetest.Renew(t, lease, time.Minute)
	watch(t, b, key)
	watch(t, a, key)
	leasetest.Release(t, lease)

	var held *driver.HeldError
	var freed <-chan struct{}
	for _, step := range []struct {
		name string
		do   func() error
		want map[string]int
	}{
		{"acquire a free lease", func() (err error) {
			lease, err = a.TryAcquire(t.Context(), key, time.Minute)
			return err
		}, map[string]int{"set": 1, "pttl": 1}},
		{"try a held lease", func() error {
			held = leasetest.MustBeHeld(t, b, key)
			return nil
		}, map[string]int{"set": 1, "pttl": 1}},
		{"watch", func() (err error) {
			freed, err = b.Watch(t.Context(), held)
			return err
		}, map[string]int{}},
		{"renew", func() error {
			return lease.Renew(t.Context(), time.Minute)
		}, map[string]int{"evalsha": 1, "get": 1, "pexpire": 1}},
		{"release and wake", func() error {
			if err := lease.Release(t.Context()); err != nil {
				return err
			}
			<-freed
			return nil
		}, map[string]int{"evalsha": 1, "get": 1, "del": 1, "publish": 1}},
		{"release again", func() error {
			if err := lease.Release(t.Context()); !errors.Is(err, driver.ErrLeaseLost) {
				return fmt.Errorf("err = %w, want ErrLeaseLost", err)
			}
			return nil
		}, map[string]int{"evalsha": 1, "get": 1, "publish": 1}},
	} {
		must(t, admin.ConfigResetStat(t.Context()).Err())
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := commands(t, admin); !maps.Equal(got, step.want) {
			t.Errorf("%s: commands %v, want %v", step.name, got, step.want)
		}
	}

	// A lease seen by a Locker that has only just begun to subscribe.
	lease = leasetest.Acquire(t, a, key, time.Minute)
	young := newLocker(t, server.Addr)
	must(t, admin.ConfigResetStat(t.Context()).Err())
	held = leasetest.MustBeHeld(t, young, key)
	if _, err := young.Watch(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	got := commands(t, admin)
	delete(got, "hello") // of its two connections
	delete(got, "client|setinfo")
	delete(got, "client|maint_notifications")
	if got["eval"] == 1 { // the first of this process
		delete(got, "eval")
		got["evalsha"] = 1
	}
	if want := map[string]int{"set": 1, "pttl": 1, "subscribe": 1, "evalsha": 1, "get": 1}; !maps.Equal(got, want) {
		t.Errorf("first try and watch of a locker: commands %v, want %v", got, want)
	}
}

// commands returns the server's commands since a reset, without the test's and idle connections'.
func commands(t *testing.T, admin *redis.Client) map[string]int {
	t.Helper()
	counts, err := testserver.Commands(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"info", "config|resetstat", "ping"} {
		delete(counts, name)
	}
	return counts
}

func TestPrefix(t *testing.T) {
	server := testserver.Redis(t)
	rdb := newClient(t, server.Addr)
	l := newLocker(t, server.Addr)
	l.Prefix = "shop:"
	key := newKey()
	leasetest.Acquire(t, l, key, time.Minute)
	if n, err := rdb.Exists(t.Context(), "shop:{"+key+"}:lease").Result(); n != 1 {
		t.Fatalf("no lease under the prefix: %d, %v", n, err)
	}
	// Another prefix is another key.
	leasetest.Acquire(t, newLocker(t, server.Addr), key, time.Minute)
}

// TestToken_OfWhichAnotherIsTheBeginning is the theft of redislock 0.9.4, which compared the
// beginnings of tokens.
func TestToken_OfWhichAnotherIsTheBeginning(t *testing.T) {
	server := testserver.Redis(t)
	rdb := newClient(t, server.Addr)
	l := newLocker(t, server.Addr)
	key := newKey()
	lease := leasetest.Acquire(t, l, key, time.Minute)
	token := rdb.Get(t.Context(), l.Key(key)).Val()
	for _, other := range []string{token + "x", token[:len(token)-1], token[:1], "x" + token, strings.ToUpper(token)} {
		must(t, rdb.Set(t.Context(), l.Key(key), other, time.Minute).Err())
		if err := lease.Renew(t.Context(), time.Hour); !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("Renew of %q beside %q: err = %v, want ErrLeaseLost", token, other, err)
		}
		if err := lease.Release(t.Context()); !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("Release of %q beside %q: err = %v, want ErrLeaseLost", token, other, err)
		}
		leasetest.MustBeHeld(t, l, key)
		if got := rdb.Get(t.Context(), l.Key(key)).Val(); got != other {
			t.Errorf("the key of %q holds %q now", other, got)
		}
		if left := rdb.PTTL(t.Context(), l.Key(key)).Val(); left > time.Minute {
			t.Errorf("another's lease was prolonged to %v", left)
		}
	}
}

func TestTryAcquire_ForeignValues(t *testing.T) {
	server := testserver.Redis(t)
	rdb := newClient(t, server.Addr)
	for _, tokens := range []bool{false, true} {
		l := newLocker(t, server.Addr)
		l.Tokens = tokens
		eternal, list := newKey(), newKey()

		must(t, rdb.Set(t.Context(), l.Key(eternal), "something", 0).Err())
		const ttl = 300 * time.Millisecond
		asked := time.Now()
		_, err := l.TryAcquire(t.Context(), eternal, ttl)
		held, ok := errors.AsType[*driver.HeldError](err)
		if !ok || held.Until.Before(asked.Add(ttl)) {
			t.Fatalf("err = %v, %v, want one that holds for %v from %v on", err, held, ttl, asked)
		}
		time.Sleep(time.Until(held.Until))
		if _, err := l.TryAcquire(t.Context(), eternal, time.Minute); err != nil {
			t.Errorf("err = %v, a lease's time after the key without an expiry was met", err)
		}

		must(t, rdb.RPush(t.Context(), l.Key(list), "something").Err())
		if _, err := l.TryAcquire(t.Context(), list, time.Minute); !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), l.Key(list)) {
			t.Errorf("err = %v of a list, want ErrCorrupt, and the key's name", err)
		}
	}
}

// TestWatch_DoesNotTouchTheLease exists because a GETEX of the client removes the expiry of a key.
func TestWatch_DoesNotTouchTheLease(t *testing.T) {
	server := testserver.Redis(t)
	rdb := newClient(t, server.Addr)
	a, key := newLocker(t, server.Addr), newKey()
	leasetest.Acquire(t, a, key, time.Minute)
	young := newLocker(t, server.Addr)
	if _, err := young.Watch(t.Context(), leasetest.MustBeHeld(t, young, key)); err != nil {
		t.Fatal(err)
	}
	if left := rdb.PTTL(t.Context(), a.Key(key)).Val(); left <= 0 || left > time.Minute {
		t.Fatalf("the lease lasts %v after a watch, want a minute", left)
	}
}

func TestWatch_LeavesNothingBehind(t *testing.T) {
	server := testserver.Redis(t)
	a, key := newLocker(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, a, key, time.Minute)
	watch(t, a, key) // ends with the test
	ctx, cancel := context.WithCancel(t.Context())
	for range 10 {
		if _, err := a.Watch(ctx, leasetest.MustBeHeld(t, a, key)); err != nil {
			t.Fatal(err)
		}
	}
	if got := a.Watches(); got != 11 {
		t.Fatalf("%d watches wait, want 11", got)
	}
	cancel()
	for start := time.Now(); a.Watches() != 1; time.Sleep(time.Millisecond) {
		if time.Since(start) > 2*time.Second {
			t.Fatalf("%d watches wait after the end of their context, want 1", a.Watches())
		}
	}
	freed := watch(t, a, key)
	leasetest.Release(t, lease)
	<-freed
	if got := a.Watches(); got != 0 {
		t.Fatalf("%d watches wait after the release, want none", got)
	}
}

// The release of a lease lost by Redis wakes its watchers. The release of a lease that another
// holder has taken since does not.
func TestWatch_LeaseThatRedisHasLost(t *testing.T) {
	server := testserver.Redis(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	admin := newClient(t, server.Addr)
	lease := leasetest.Acquire(t, a, key, time.Minute)
	freed := watch(t, b, key)
	must(t, admin.FlushAll(t.Context()).Err())
	if err := lease.Release(t.Context()); !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Release = %v, want ErrLeaseLost", err)
	}
	select {
	case <-freed:
	case <-time.After(5 * time.Second):
		t.Error("who waits for it is not told")
	}

	lease = leasetest.Acquire(t, a, key, time.Minute)
	must(t, admin.FlushAll(t.Context()).Err())
	leasetest.Acquire(t, a, key, time.Minute)
	freed = watch(t, b, key)
	if err := lease.Release(t.Context()); !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Release = %v, want ErrLeaseLost", err)
	}
	time.Sleep(100 * time.Millisecond)
	if isClosed(freed) {
		t.Error("another's lease is told to be free")
	}
}

func TestWatch_OfAnotherLocker(t *testing.T) {
	server := testserver.Redis(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	leasetest.Acquire(t, a, key, time.Minute)
	if _, err := b.Watch(t.Context(), leasetest.MustBeHeld(t, a, key)); err == nil {
		t.Error("a lease that another Locker saw was watched without an error")
	}
	if _, err := b.Watch(t.Context(), &driver.HeldError{Key: key}); err == nil {
		t.Error("a lease that nobody saw was watched without an error")
	}
}

func TestWatch_Ring(t *testing.T) {
	server := testserver.Redis(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": server.Addr}})
	defer ring.Close()
	l, key := redislock.New(ring), newKey()
	defer l.Close()
	leasetest.Acquire(t, l, key, time.Minute)
	if _, err := l.Watch(t.Context(), leasetest.MustBeHeld(t, l, key)); err == nil {
		t.Error("a Ring's lease was watched without an error, although its shards share no channel")
	}
}

func TestClose(t *testing.T) {
	server := testserver.Redis(t)
	l, key := newLocker(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, l, key, time.Minute)
	freed := watch(t, l, key)
	for range 2 {
		must(t, l.Close())
		if !isClosed(freed) {
			t.Fatal("a watch goes on after Close")
		}
	}
	if _, err := l.Watch(t.Context(), leasetest.MustBeHeld(t, l, key)); err == nil {
		t.Error("Watch after Close: want an error")
	}
	leasetest.Release(t, lease) // after Close

	unused := newLocker(t, server.Addr)
	must(t, unused.Close())
	if _, err := unused.Watch(t.Context(), leasetest.MustBeHeld(t, unused, holdAnother(t, server.Addr))); err == nil {
		t.Error("Watch of a Locker closed before its first use: want an error")
	}
}

func holdAnother(t *testing.T, addr string) string {
	t.Helper()
	key := newKey()
	leasetest.Acquire(t, newLocker(t, addr), key, time.Minute)
	return key
}

// TestClose_OfTheClientAlone leaves the Locker open: goleak checks that its goroutine still ends.
func TestClose_OfTheClientAlone(t *testing.T) {
	server := testserver.Redis(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr})
	l, key := redislock.New(rdb), newKey()
	leasetest.Acquire(t, l, key, time.Minute)
	freed := watch(t, l, key)
	rdb.Close()
	select {
	case <-freed:
	case <-time.After(5 * time.Second):
		t.Error("a watch goes on although the client was closed")
	}
}

func TestSilentServer(t *testing.T) {
	server := testserver.Redis(t).OwnOrSkip(t)
	a, b := newLocker(t, server.Addr), newLocker(t, server.Addr)
	held, free := newKey(), newKey()
	lease := leasetest.Acquire(t, a, held, time.Minute)
	freed := watch(t, b, held)

	server.Signal(syscall.SIGSTOP)
	stopped := time.Now()
	lockertest.Hang(t, a, lease)
	leasetest.MustGiveUp(t, "TryAcquire", func(ctx context.Context) error {
		_, err := a.TryAcquire(ctx, free, time.Minute)
		return err
	})

	select {
	case <-freed:
		t.Logf("the dead connection was found out after %v", time.Since(stopped))
	case <-time.After(5 * time.Second):
		t.Error("a watch on a dead connection was not woken within 5s")
	}
	server.Signal(syscall.SIGCONT)

	// Neither the abandoned acquire nor the released lease blocks its key.
	for _, key := range []string{free, held} {
		leasetest.MustBecomeFree(t, b, key)
	}
	watch(t, a, held) // push is back
}

func TestSilentServer_DoesNotHoldWatch(t *testing.T) {
	server := testserver.Redis(t).OwnOrSkip(t)
	a, key := newLocker(t, server.Addr), newKey()
	leasetest.Acquire(t, a, key, time.Minute)
	young := newLocker(t, server.Addr)
	held := leasetest.MustBeHeld(t, young, key)
	server.Signal(syscall.SIGSTOP)
	defer server.Signal(syscall.SIGCONT)
	start := time.Now()
	// Subscribed by now or not, it does not wait long.
	if _, err := young.Watch(t.Context(), held); errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, although the context has not ended", err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("Watch took %v", took)
	}
}

func TestDeadServer(t *testing.T) {
	server := testserver.Redis(t).OwnOrSkip(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, a, key, time.Minute)
	freed := watch(t, b, key)
	held := leasetest.MustBeHeld(t, b, key)

	server.Kill()
	killed := time.Now()
	select {
	case <-freed:
		if took := time.Since(killed); took > time.Second {
			t.Errorf("a watch was woken %v after its connection broke, want at once", took)
		}
	case <-time.After(5 * time.Second):
		t.Error("a watch was not woken by the loss of its connection")
	}
	if _, err := b.Watch(t.Context(), held); err == nil {
		t.Error("Watch without a connection: want an error")
	}
	lockertest.Down(t, a, lease)

	server.Start()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		var err error
		if lease, err = a.TryAcquire(t.Context(), key, time.Minute); err == nil {
			break
		}
		if time.Since(start) > 5*time.Second {
			t.Fatalf("TryAcquire after the restart: %v", err)
		}
	}
	// If the subscription is confirmed again by now, leases seen before its loss count as ended.
	if freed, err := b.Watch(t.Context(), held); err == nil && !isClosed(freed) {
		t.Error("a lease that was seen over the old connection is watched over the new one")
	}
	freed = watch(t, b, key) // the subscription came back by itself
	if isClosed(freed) {
		t.Fatal("a watch on the new connection is closed from the start")
	}
	leasetest.Release(t, lease) // the script has to be sent again
	select {
	case <-freed:
	case <-time.After(2 * time.Second):
		t.Error("not woken by a release over the new connection")
	}
}

func TestTryAcquire_LostReply(t *testing.T) {
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	a, b, key := newLocker(t, proxy.Addr), newLocker(t, server.Addr), newKey()
	leasetest.Acquire(t, a, newKey(), time.Minute) // its connections are open

	proxy.SwallowReplyTo(key)
	lease := leasetest.Acquire(t, a, key, time.Minute)
	if proxy.Armed() {
		t.Fatal("no reply was swallowed: the test tests nothing")
	}
	leasetest.MustBeHeld(t, b, key)
	leasetest.Renew(t, lease, time.Minute)
	leasetest.Release(t, lease)
}

// hold is a hook that holds back the first command with the argument.
type hold struct {
	arg  any
	once sync.Once
	goOn chan struct{} // closed by the test
	done chan struct{} // closed when the command has its reply
}

func (h *hold) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *hold) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *hold) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		first := false
		if slices.Contains(cmd.Args(), h.arg) {
			h.once.Do(func() { first = true })
		}
		if first {
			<-h.goOn
			defer close(h.done)
		}
		return next(ctx, cmd)
	}
}

// TestRenew_LateRequest has an abandoned renewal carried out after the next one.
func TestRenew_LateRequest(t *testing.T) {
	server := testserver.Redis(t)
	rdb, key := newClient(t, server.Addr), newKey()
	l := redislock.New(rdb)
	t.Cleanup(func() { l.Close() })
	late := &hold{arg: int64(5000), goOn: make(chan struct{}), done: make(chan struct{})}
	rdb.AddHook(late)

	lease := leasetest.Acquire(t, l, key, time.Minute)
	leasetest.MustGiveUp(t, "Renew", func(ctx context.Context) error { return lease.Renew(ctx, 5*time.Second) })
	leasetest.Renew(t, lease, time.Hour)
	close(late.goOn)
	select {
	case <-late.done:
	case <-time.After(5 * time.Second):
		t.Fatal("no renewal was late: the test tests nothing")
	}
	if left := rdb.PTTL(t.Context(), l.Key(key)).Val(); left < 50*time.Minute {
		t.Errorf("the key lasts for %v more, and the holder counts on an hour", left)
	}
	leasetest.Renew(t, lease, time.Hour)
}

// TestRenew_ToAnEarlierEnd: Redis and the holder keep the later end.
func TestRenew_ToAnEarlierEnd(t *testing.T) {
	server := testserver.Redis(t)
	rdb, l, key := newClient(t, server.Addr), newLocker(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, l, key, time.Minute)
	leasetest.Renew(t, lease, time.Millisecond)
	if left := rdb.PTTL(t.Context(), l.Key(key)).Val(); left < 50*time.Second {
		t.Errorf("the key lasts for %v more, want the minute it had", left)
	}
	time.Sleep(2 * time.Millisecond)
	leasetest.Release(t, lease)
}

// TestNoLeaveForTheChannel has a user who may not publish, the default: Watch's error has the reason.
func TestNoLeaveForTheChannel(t *testing.T) {
	server := testserver.Redis(t).OwnOrSkip(t)
	admin := newClient(t, server.Addr)
	for name, rules := range map[string][]any{
		"alone":        {"resetchannels"},
		"with channel": {"&bellwether:*"}, // from the package documentation
	} {
		t.Run(name, func(t *testing.T) {
			rules := append([]any{"acl", "setuser", "app", "reset", "on", ">secret", "~bellwether:*"}, rules...)
			for _, rule := range strings.Fields(testserver.RedisRules) {
				rules = append(rules, rule)
			}
			must(t, admin.Do(t.Context(), rules...).Err())
			rdb := redis.NewClient(&redis.Options{Addr: server.Addr, DialerRetries: 1, Username: "app", Password: "secret"})
			defer rdb.Close()
			l, b, key := redislock.New(rdb), newLocker(t, server.Addr), newKey()
			defer l.Close()
			l.Tokens = name == "alone"
			lease := leasetest.Acquire(t, l, key, time.Minute)
			var freed <-chan struct{}
			if name != "alone" {
				freed = watch(t, l, key)
			} else if _, err := l.Watch(t.Context(), leasetest.MustBeHeld(t, l, key)); err == nil || !strings.Contains(err.Error(), "NOPERM") {
				t.Errorf("Watch: err = %v, want why there is no subscription", err)
			}
			leasetest.Renew(t, lease, time.Minute)
			leasetest.Release(t, lease)
			leasetest.Acquire(t, b, key, time.Minute)
			if freed != nil {
				select {
				case <-freed:
				case <-time.After(5 * time.Second):
					t.Error("a release was not heard")
				}
			}
		})
	}
}

// TestTryAcquire_OlderRedis has no SET with NX and GET: the error names the needed version.
func TestTryAcquire_OlderRedis(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	defer rdb.Close()
	rdb.AddHook(older{})
	l := redislock.New(rdb)
	defer l.Close()
	for _, tokens := range []bool{false, true} {
		l.Tokens = tokens
		_, err := l.TryAcquire(t.Context(), newKey(), time.Minute)
		if err == nil || errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), "Redis 7.0") {
			t.Errorf("TryAcquire with Tokens %v: err = %v, want that it needs Redis 7.0", tokens, err)
		}
	}
}

// older answers as Redis 6 does.
type older struct{}

type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

func (older) DialHook(next redis.DialHook) redis.DialHook { return next }

func (older) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error { return older{}.answer(cmd) }
}

func (older) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			older{}.answer(cmd)
		}
		return cmds[0].Err()
	}
}

func (older) answer(cmd redis.Cmder) error {
	switch cmd.Name() {
	case "set":
		cmd.SetErr(redisError("ERR syntax error"))
	case "eval", "evalsha":
		cmd.SetErr(redisError("ERR Error running script (call to f_1): @user_script:12: ERR syntax error"))
	}
	return cmd.Err()
}

// TestErrors_Refused has no server listen. With go-redis's default dialing the client takes longer
// to report that than a cache waits. The error still has the reason.
func TestErrors_Refused(t *testing.T) {
	server := testserver.Redis(t).OwnOrSkip(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { rdb.Close() })
	l := redislock.New(rdb)
	t.Cleanup(func() { l.Close() })
	lease := leasetest.Acquire(t, l, "k", time.Minute)
	server.Kill()
	for name, call := range map[string]func(ctx context.Context) error{
		"acquire": func(ctx context.Context) error { _, err := l.TryAcquire(ctx, "k", time.Minute); return err },
		"renew":   func(ctx context.Context) error { return lease.Renew(ctx, time.Minute) },
		"release": lease.Release,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		err := call(ctx)
		cancel()
		if err == nil || !strings.HasPrefix(err.Error(), "redislock: "+name+" ") || !strings.Contains(err.Error(), server.Addr) || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v; want the address, and that it refuses", name, err)
		}
	}
}

func TestNew_NoClient(t *testing.T) {
	leasetest.MustPanic(t, "redislock: New needs a client", func() { redislock.New(nil) })
	leasetest.MustPanic(t, "redislock: New needs a client", func() { redislock.New((*redis.Client)(nil)) })
}
