package redisfleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/redislease"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// TestCommitAndRelease_Together: calls that come during a request share the next one, and its messages. Each commits its
// own key, is refused by its own epoch, and releases its own lease. Another process hears of each commit and release.
func TestCommitAndRelease_Together(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	rdb, watched, seen := dial(t, srv.Addr), dial(t, srv.Addr), &scripts{}
	watched.AddHook(seen)
	eng, other := over(t, watched), open(t, srv.Addr)
	first := elect(t, eng, "first", 0)
	must(t, eng.CommitAndRelease(t.Context(), "first", value(first.Epoch), first.Lease)) // Redis has the script now
	const keys = 200
	fenced := func(i int) bool { return i%10 == 7 }
	told := make(chan driver.Notice, 2*keys)
	go other.Notify(t.Context(), func(n driver.Notice) {
		if !n.Invalidated {
			told <- n
		}
	})
	awaitSubscribers(t, rdb, 4) // two engines with two channels each
	elect(t, other, "warm", 0)  // other knows the server's time now
	var won [keys]driver.Election
	var freed [keys]<-chan struct{}
	for i := range keys {
		won[i] = elect(t, eng, fmt.Sprint("k", i), 0)
		freed[i] = leasetest.Watch(t, other, fmt.Sprint("k", i))
		if fenced(i) {
			must(t, eng.Invalidate(t.Context(), fmt.Sprint("k", i)))
		}
	}
	must(t, rdb.Do(t.Context(), "client", "pause", "100", "all").Err())
	seen.sent.Store(0)
	before := published(t, rdb)
	var errs [keys]error
	var calls sync.WaitGroup
	for i := range keys {
		calls.Go(func() {
			errs[i] = eng.CommitAndRelease(t.Context(), fmt.Sprint("k", i), value(won[i].Epoch), won[i].Lease)
		})
	}
	calls.Wait()
	if n := seen.sent.Load(); n > keys/4 {
		t.Errorf("%d scripts for %d keys", n, keys)
	}
	if n := published(t, rdb) - before; n > keys/4 {
		t.Errorf("%d messages for %d keys", n, keys)
	}
	news := make(map[string]driver.Notice)
	for range keys * 9 / 10 {
		n := <-told
		news[n.Key] = n
	}
	for i := range keys {
		key, want := fmt.Sprint("k", i), error(nil)
		if fenced(i) {
			want = driver.ErrFenced
		}
		got, err := eng.Get(t.Context(), key)
		held := rdb.Exists(t.Context(), redislease.Key(eng.Prefix, key)).Val() > 0
		if errs[i] != want || held != fenced(i) || fenced(i) != (err != nil) || !fenced(i) && got.Epoch != won[i].Epoch {
			t.Errorf("key %d: %v, want %v; then an entry of %d (%v), and held is %v", i, errs[i], want, got.Epoch, err, held)
		}
		if fenced(i) {
			continue
		}
		if n := news[key]; n.Epoch != won[i].Epoch || string(n.Entry.Value) != string(got.Value) {
			t.Errorf("key %d: another process heard of %+v, want of %+v", i, n, got)
		}
		leasetest.MustClose(t, key+": the watch", freed[i], 5*time.Second)
	}
}

// published is the number of messages so far.
func published(t *testing.T, rdb *redis.Client) (n int) {
	t.Helper()
	for line := range strings.Lines(rdb.Info(t.Context(), "commandstats").Val()) {
		fmt.Sscanf(line, "cmdstat_publish:calls=%d", &n)
	}
	return n
}

// TestCommitAndRelease_EndedContext: a call whose context has ended sends nothing, whether its entry goes with others or
// alone.
func TestCommitAndRelease_EndedContext(t *testing.T) {
	eng := open(t, testserver.Redis(t).OwnOrSkip(t).Addr)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, size := range map[string]int{"short": 1, "long": 2 * longestJoined} {
		won := elect(t, eng, name, 0)
		entry := value(won.Epoch)
		entry.Value = make([]byte, size)
		if err := eng.CommitAndRelease(ended, name, entry, won.Lease); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want the context's error", name, err)
		}
		time.Sleep(20 * time.Millisecond) // for a request behind the call, to a real server
		if _, err := eng.Get(t.Context(), name); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("%s: the entry was sent (%v)", name, err)
		}
	}
}

// TestCommitAndRelease_LeavesItsConnection: commits to a dead host end with their callers, for a client that heeds
// contexts. Otherwise they would hold all connections, and the calls after a failover would wait for the host.
func TestCommitAndRelease_LeavesItsConnection(t *testing.T) {
	dead, live := testserver.Redis(t).OwnOrSkip(t), testserver.Redis(t)
	var to atomic.Pointer[string]
	to.Store(&dead.Addr)
	rdb := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, PoolSize: 4, Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, *to.Load())
	}})
	t.Cleanup(func() { rdb.Close() })
	eng := over(t, rdb)
	const keys = 20
	var won [keys]driver.Election
	for i := range keys {
		won[i] = elect(t, eng, fmt.Sprint("k", i), 0)
	}
	dead.Signal(syscall.SIGSTOP)
	defer dead.Signal(syscall.SIGCONT)
	var calls sync.WaitGroup
	for i := range keys {
		time.Sleep(5 * time.Millisecond) // each in a run of its own
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			eng.CommitAndRelease(ctx, fmt.Sprint("k", i), value(won[i].Epoch), won[i].Lease)
		})
	}
	calls.Wait()
	to.Store(&live.Addr)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := eng.Get(ctx, "k0"); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("a read after the failover: %v", err)
	}
}

// TestCommitAndRelease_ErrorWhoseMethodsPanic: a hook of the client's returns such an error for the server's time, which
// the common request of all calls asks for. The call returns the panic.
func TestCommitAndRelease_ErrorWhoseMethodsPanic(t *testing.T) {
	srv := testserver.Redis(t)
	watched := dial(t, srv.Addr)
	watched.AddHook(testserver.Hook(func(_ context.Context, cmds []redis.Cmder, send func() error) error {
		if cmds[0].Name() == "time" {
			return testserver.ErrBroken
		}
		return send()
	}))
	eng, other := over(t, watched), open(t, srv.Addr)
	intoOneFleet(eng, other)
	won := elect(t, other, "k", 0) // eng knows no time
	err := eng.CommitAndRelease(t.Context(), "k", value(won.Epoch), won.Lease)
	if err == nil || !strings.Contains(err.Error(), "nil pointer dereference") {
		t.Errorf("%v, want the panic", err)
	}
}
