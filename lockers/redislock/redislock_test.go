package redislock_test

import (
	"context"
	"errors"
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

func over(tb testing.TB, rdb redis.UniversalClient) *redislock.Locker {
	tb.Helper()
	l := redislock.New(rdb)
	tb.Cleanup(func() {
		l.Close()
		rdb.Close()
	})
	return l
}

// newLocker returns a Locker with its own client, as in another process.
func newLocker(tb testing.TB, addr string) *redislock.Locker {
	tb.Helper()
	return over(tb, newClient(tb, addr))
}

func withTokens(l *redislock.Locker, tokens bool) *redislock.Locker {
	l.Tokens = tokens
	return l
}

func newKey() string { return "redislock:" + adapter.Token() }

func TestConformance(t *testing.T) {
	server := testserver.Redis(t)
	lockertest.Run(t, func(tb testing.TB) driver.Locker { return newLocker(tb, server.Addr) })
}

func TestConformance_Tokens(t *testing.T) {
	server := testserver.Redis(t)
	lockertest.Run(t, func(tb testing.TB) driver.Locker { return withTokens(newLocker(tb, server.Addr), true) })
}

func TestCycles_LeaveNothing(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t).OwnOrSkip(t)
	rdb := newClient(t, server.Addr)
	for _, tokens := range []bool{false, true} {
		open := func(tb testing.TB) driver.Locker { return withTokens(newLocker(tb, server.Addr), tokens) }
		lockertest.LeavesNothing(t, open, func() map[string]int {
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
		now := leasetest.Token(t, lease)
		if now <= last {
			t.Errorf("%s: token %d after %d", what, now, last)
		}
		last = now
		return lease
	}
	rises("at first")
	server.Restart()
	leasetest.Eventually(t, 5*time.Second, "the server is back", func() bool { return newClient(t, server.Addr).Ping(t.Context()).Err() == nil })
	must(t, rises("after a restart").Release(t.Context()))
	proxy.SwallowReplyTo(key)
	must(t, rises("after a lost reply").Release(t.Context()))
	if proxy.Armed() {
		t.Fatal("no reply was swallowed: the test tests nothing")
	}
}

// TestConformance_OlderWireFormat runs on RESP2, from before Redis 6, with other pub/sub replies.
func TestConformance_OlderWireFormat(t *testing.T) {
	server := testserver.Redis(t)
	lockertest.Run(t, func(tb testing.TB) driver.Locker {
		return over(tb, redis.NewClient(&redis.Options{Addr: server.Addr, Protocol: 2, ContextTimeoutEnabled: true}))
	})
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

// TestToken_OfWhichAnotherIsTheBeginning is the theft of redislock 0.9.4, which compared beginnings.
func TestToken_OfWhichAnotherIsTheBeginning(t *testing.T) {
	server := testserver.Redis(t)
	rdb := newClient(t, server.Addr)
	l := newLocker(t, server.Addr)
	key := newKey()
	lease := leasetest.Acquire(t, l, key, time.Minute)
	token := rdb.Get(t.Context(), l.Key(key)).Val()
	for _, other := range []string{token + "x", token[:len(token)-1], token[:1], "x" + token, strings.ToUpper(token)} {
		must(t, rdb.Set(t.Context(), l.Key(key), other, time.Minute).Err())
		leasetest.MustBeLost(t, "Renew beside "+other, lease.Renew(t.Context(), time.Hour))
		leasetest.MustBeLost(t, "Release beside "+other, lease.Release(t.Context()))
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

		// In milliseconds: more than a time.Duration can hold.
		far := newKey()
		must(t, rdb.Do(t.Context(), "set", l.Key(far), "something", "px", int64(9e15)).Err())
		_, err = l.TryAcquire(t.Context(), far, ttl)
		if held, ok := errors.AsType[*driver.HeldError](err); !ok || held.Until.Before(asked.Add(time.Hour)) {
			t.Errorf("err = %v of a key that lasts for 285,000 years, want a late end", err)
		}

		must(t, rdb.RPush(t.Context(), l.Key(list), "something").Err())
		if _, err := l.TryAcquire(t.Context(), list, time.Minute); !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), l.Key(list)) {
			t.Errorf("err = %v of a list, want ErrCorrupt, and the key's name", err)
		}
	}
}

func TestWatch_LeavesNothingBehind(t *testing.T) {
	server := testserver.Redis(t)
	a, key := newLocker(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, a, key, time.Minute)
	leasetest.Watch(t, a, key) // ends with the test
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
	leasetest.Eventually(t, 2*time.Second, "only one watch waits after the others' contexts have ended", func() bool { return a.Watches() == 1 })
	freed := leasetest.Watch(t, a, key)
	leasetest.Release(t, lease)
	<-freed
	if got := a.Watches(); got != 0 {
		t.Fatalf("%d watches wait after the release, want none", got)
	}
}

// The release of a lease lost by Redis wakes its watchers, unless another holder has it.
func TestWatch_LeaseThatRedisHasLost(t *testing.T) {
	server := testserver.Redis(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	admin := newClient(t, server.Addr)
	lease := leasetest.Acquire(t, a, key, time.Minute)
	freed := leasetest.Watch(t, b, key)
	must(t, admin.FlushAll(t.Context()).Err())
	leasetest.MustBeLost(t, "Release", lease.Release(t.Context()))
	leasetest.MustClose(t, "the release of a lease that Redis has lost", freed, 5*time.Second)

	lease = leasetest.Acquire(t, a, key, time.Minute)
	must(t, admin.FlushAll(t.Context()).Err())
	leasetest.Acquire(t, a, key, time.Minute)
	freed = leasetest.Watch(t, b, key)
	leasetest.MustBeLost(t, "Release", lease.Release(t.Context()))
	time.Sleep(100 * time.Millisecond)
	if leasetest.IsClosed(freed) {
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
	type wrapped struct{ *redis.Ring }
	for _, rdb := range []redis.UniversalClient{ring, wrapped{ring}} {
		l, key := redislock.New(rdb), newKey()
		defer l.Close()
		leasetest.Acquire(t, l, key, time.Minute)
		held := leasetest.MustBeHeld(t, l, key)
		for _, until := range []time.Time{held.Until, time.Now()} { // also a lease that has ended meanwhile
			held.Until = until
			if _, err := l.Watch(t.Context(), held); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%T: a Ring's lease was watched with the error %v, although its shards share no channel", rdb, err)
			}
		}
	}
}

func TestClose(t *testing.T) {
	server := testserver.Redis(t)
	l, key := newLocker(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, l, key, time.Minute)
	freed := leasetest.Watch(t, l, key)
	for range 2 {
		must(t, l.Close())
		if !leasetest.IsClosed(freed) {
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
	freed := leasetest.Watch(t, l, key)
	rdb.Close()
	leasetest.MustClose(t, "the end of the client", freed, 5*time.Second)
}

func TestSilentServer(t *testing.T) {
	server := testserver.Redis(t).OwnOrSkip(t)
	a, b := newLocker(t, server.Addr), newLocker(t, server.Addr)
	held, free := newKey(), newKey()
	lease := leasetest.Acquire(t, a, held, time.Minute)
	freed := leasetest.Watch(t, b, held)

	server.Signal(syscall.SIGSTOP)
	stopped := time.Now()
	lockertest.Hang(t, a, lease)
	leasetest.MustGiveUp(t, "TryAcquire", func(ctx context.Context) error {
		_, err := a.TryAcquire(ctx, free, time.Minute)
		return err
	})

	leasetest.MustClose(t, "the loss of the connection", freed, 5*time.Second)
	t.Logf("the dead connection was found out after %v", time.Since(stopped))
	server.Signal(syscall.SIGCONT)

	// Neither the abandoned acquire nor the released lease blocks its key.
	for _, key := range []string{free, held} {
		leasetest.MustBecomeFree(t, b, key)
	}
	leasetest.Watch(t, a, held) // push is back
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
	freed := leasetest.Watch(t, b, key)
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
	leasetest.Eventually(t, 5*time.Second, "TryAcquire after the restart", func() (back bool) {
		var err error
		lease, err = a.TryAcquire(t.Context(), key, time.Minute)
		return err == nil
	})
	// If the subscription is confirmed again by now, leases seen before its loss count as ended.
	if freed, err := b.Watch(t.Context(), held); err == nil && !leasetest.IsClosed(freed) {
		t.Error("a lease that was seen over the old connection is watched over the new one")
	}
	freed = leasetest.Watch(t, b, key) // the subscription came back by itself
	if leasetest.IsClosed(freed) {
		t.Fatal("a watch on the new connection is closed from the start")
	}
	leasetest.Release(t, lease) // the script has to be sent again
	leasetest.MustClose(t, "a release over the new connection", freed, 2*time.Second)
}

func TestTryAcquire_LostReply(t *testing.T) {
	server := testserver.Redis(t)
	proxy := testserver.NewProxy(t, server.Addr)
	a := newLocker(t, proxy.Addr)
	leasetest.Acquire(t, a, newKey(), time.Minute) // its connections are open
	leasetest.LostReplies{
		A: a, B: newLocker(t, server.Addr), NewKey: newKey, Armed: proxy.Armed,
		Lose: func(_, key string, _ *driver.HeldError) { proxy.SwallowReplyTo(key) },
	}.Run(t, "acquire")
}

// TestRenew_LateRequest has an abandoned renewal carried out after the next one.
func TestRenew_LateRequest(t *testing.T) {
	server := testserver.Redis(t)
	rdb, key := newClient(t, server.Addr), newKey()
	l := over(t, rdb)
	var once sync.Once
	goOn, late := make(chan struct{}), make(chan struct{})
	rdb.AddHook(testserver.Hook(func(_ context.Context, cmds []redis.Cmder, send func() error) error {
		first := false
		if slices.Contains(cmds[0].Args(), any(int64(5000))) {
			once.Do(func() { first = true })
		}
		if first {
			<-goOn
			defer close(late)
		}
		return send()
	}))

	lease := leasetest.Acquire(t, l, key, time.Minute)
	leasetest.MustGiveUp(t, "Renew", func(ctx context.Context) error { return lease.Renew(ctx, 5*time.Second) })
	leasetest.Renew(t, lease, time.Hour)
	close(goOn)
	leasetest.MustClose(t, "the late renewal", late, 5*time.Second)
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
	testserver.Restrict(t, testserver.RedisRules, server)
	must(t, newClient(t, server.Addr).Do(t.Context(), "acl", "setuser", testserver.RedisUser, "resetchannels").Err())
	for _, tokens := range []bool{false, true} {
		o := redis.Options{Addr: server.Addr, DialerRetries: 1, Username: testserver.RedisUser, Password: testserver.RedisPassword}
		l, key := withTokens(over(t, redis.NewClient(&o)), tokens), newKey()
		lease := leasetest.Acquire(t, l, key, time.Minute)
		if _, err := l.Watch(t.Context(), leasetest.MustBeHeld(t, l, key)); err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("Watch: err = %v, want why there is no subscription", err)
		}
		leasetest.Renew(t, lease, time.Minute)
		leasetest.Release(t, lease)
		leasetest.Acquire(t, newLocker(t, server.Addr), key, time.Minute)
	}
}

// TestTryAcquire_OlderRedis has no SET with NX and GET: the error names the needed version.
func TestTryAcquire_OlderRedis(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	rdb.AddHook(testserver.Hook(older))
	l := over(t, rdb)
	for _, tokens := range []bool{false, true} {
		l.Tokens = tokens
		_, err := l.TryAcquire(t.Context(), newKey(), time.Minute)
		if err == nil || errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), "Redis 7.0") {
			t.Errorf("TryAcquire with Tokens %v: err = %v, want that it needs Redis 7.0", tokens, err)
		}
	}
}

// older answers as Redis 6 does.
func older(_ context.Context, cmds []redis.Cmder, _ func() error) error {
	for _, cmd := range cmds {
		switch cmd.Name() {
		case "set":
			cmd.SetErr(redisError("ERR syntax error"))
		case "eval", "evalsha":
			cmd.SetErr(redisError("ERR Error running script (call to f_1): @user_script:12: ERR syntax error"))
		}
	}
	return cmds[0].Err()
}

type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}

// TestErrors_Refused has no server listen. With go-redis's default dialing the client takes longer
// to report that than a cache waits. The error still has the reason.
func TestErrors_Refused(t *testing.T) {
	server := testserver.Redis(t).OwnOrSkip(t)
	l := over(t, redis.NewClient(&redis.Options{Addr: server.Addr}))
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
