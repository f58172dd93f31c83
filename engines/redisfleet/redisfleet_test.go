package redisfleet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/redisentry"
	"github.com/bellwether-go/bellwether/internal/redislease"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
	"github.com/bellwether-go/bellwether/stores/storetest"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ driver.Elector     = (*Engine)(nil)
	_ driver.Watcher     = (*Engine)(nil)
	_ driver.Notifier    = (*Engine)(nil)
	_ driver.BatchGetter = (*Engine)(nil)
	_ driver.Fencer      = (*Engine)(nil)
)

// dial returns a new client, as in another process.
func dial(tb testing.TB, addr string) *redis.Client {
	tb.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1, ReadTimeout: 20 * time.Second, PoolTimeout: 20 * time.Second})
	tb.Cleanup(func() { rdb.Close() })
	return rdb
}

func over(tb testing.TB, rdb redis.UniversalClient) *Engine {
	tb.Helper()
	eng := New(rdb)
	tb.Cleanup(func() { eng.Close() })
	return eng
}

func open(tb testing.TB, addr string) *Engine {
	tb.Helper()
	return over(tb, dial(tb, addr))
}

// openTwo returns two engines of one fleet, which has no keys yet.
func openTwo(tb testing.TB, addr string) (a, b *Engine) {
	tb.Helper()
	a, b = open(tb, addr), open(tb, addr)
	intoOneFleet(a, b)
	return a, b
}

// intoOneFleet gives two engines the keys of one fleet, which has none yet.
func intoOneFleet(a, b *Engine) {
	a.Prefix = "test:" + adapter.Token() + ":"
	b.Prefix = a.Prefix
}

const limit = 2 << 20

// instance gives the kit open, and rdb for its faults.
func instance(rdb redis.UniversalClient, prefix string, open func(testing.TB) driver.Elector) storetest.Instance {
	name := func(key string) string { return redisentry.Name(prefix, key) }
	return storetest.Instance{
		Notifies: true,
		Batches:  true,
		Elects:   true,
		Open:     func(tb testing.TB) driver.Store { return open(tb) },
		Evict: func(tb testing.TB, key string) {
			must(tb, rdb.Del(tb.Context(), name(key)).Err())
		},
		Mix: func(tb testing.TB, from, to string) {
			data, err := rdb.Get(tb.Context(), name(from)).Bytes()
			must(tb, err)
			must(tb, rdb.Set(tb.Context(), name(to), data, 0).Err())
		},
		Poison: func(tb testing.TB, key string, data []byte) {
			must(tb, rdb.Set(tb.Context(), name(key), data, 0).Err())
		},
		TooLarge: limit,
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func set(eng *Engine, prefix string) *Engine {
	eng.Prefix, eng.MaxValue = prefix, limit
	return eng
}

func TestEngine(t *testing.T) {
	storetest.Run(t, func(tb testing.TB) storetest.Instance {
		srv := testserver.Redis(tb)
		prefix := "test:" + adapter.Token() + ":"
		i := instance(dial(tb, srv.Addr), prefix, func(tb testing.TB) driver.Elector { return set(open(tb, srv.Addr), prefix) })
		if srv.Own() {
			i.Restart = func(testing.TB) { srv.Restart() }
		}
		return i
	})
}

func TestEngine_Locker(t *testing.T) {
	server := testserver.Redis(t)
	lockertest.Run(t, func(tb testing.TB) driver.Locker { return open(tb, server.Addr) })
}

// TestEngine_Access runs as a user with only the documented permissions, in database 1.
func TestEngine_Access(t *testing.T) {
	server := testserver.Redis(t).OwnOrSkip(t)
	testserver.Restrict(t, testserver.RedisRules, server)
	connect := func(tb testing.TB, o redis.Options) *redis.Client {
		o.Addr, o.DB = server.Addr, 1
		rdb := redis.NewClient(&o)
		tb.Cleanup(func() { rdb.Close() })
		return rdb
	}
	app := redis.Options{Username: testserver.RedisUser, Password: testserver.RedisPassword}
	t.Run("store", func(t *testing.T) {
		storetest.Run(t, func(tb testing.TB) storetest.Instance {
			prefix := "bellwether:" + adapter.Token() + ":"
			return instance(connect(tb, redis.Options{}), prefix, func(tb testing.TB) driver.Elector {
				return set(over(tb, connect(tb, app)), prefix)
			})
		})
	})
	t.Run("locker", func(t *testing.T) {
		lockertest.Run(t, func(tb testing.TB) driver.Locker { return over(tb, connect(tb, app)) })
	})
}

// TestEngine_NoLeaveForTheChannel has a user without permission to publish: all writes succeed.
func TestEngine_NoLeaveForTheChannel(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	testserver.Restrict(t, testserver.RedisRules, srv)
	must(t, dial(t, srv.Addr).Do(t.Context(), "acl", "setuser", testserver.RedisUser, "resetchannels").Err())
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, Username: testserver.RedisUser, Password: testserver.RedisPassword})
	t.Cleanup(func() { rdb.Close() })
	eng := over(t, rdb)
	e := rebuild(t, eng, "k", time.Hour)
	if got := elect(t, eng, "k", e.Epoch); got.Lease == nil {
		t.Errorf("Elect after CommitAndRelease: %+v, want the lease", got)
	}
}

// TestEngine_NoLeaveToRead has a user lose the right to read. A commit that finds no claim would be fenced off.
func TestEngine_NoLeaveToRead(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	rdb := dial(t, srv.Addr)
	eng := over(t, rdb)
	won := elect(t, eng, "k", 0)
	must(t, rdb.Do(t.Context(), "acl", "setuser", "default", "-getrange").Err())
	commit := eng.CommitAndRelease(t.Context(), "k", value(won.Epoch), won.Lease)
	_, elect := eng.Elect(t.Context(), "l", 0, time.Minute)
	for call, err := range map[string]error{"commit": commit, "elect": elect} {
		if err == nil || !strings.Contains(err.Error(), "can't run this command") {
			t.Errorf("%s: %v, want that a command is not permitted", call, err)
		}
	}
}

func elect(tb testing.TB, eng driver.Elector, key string, past uint64) driver.Election {
	tb.Helper()
	won, err := eng.Elect(tb.Context(), key, past, time.Minute)
	if err != nil {
		tb.Fatalf("Elect: %v", err)
	}
	return won
}

func value(epoch uint64) driver.Entry {
	return driver.Entry{Kind: driver.KindValue, Value: []byte("v"), Epoch: epoch, TTL: time.Hour}
}

func commit(tb testing.TB, eng driver.Elector, key string, e driver.Entry, won driver.Election) {
	tb.Helper()
	if err := eng.CommitAndRelease(tb.Context(), key, e, won.Lease); err != nil {
		tb.Fatalf("CommitAndRelease: %v", err)
	}
}

// commands returns the server's count of each command during f, including commands of scripts.
func commands(tb testing.TB, admin *redis.Client, f func()) (total int, each string) {
	tb.Helper()
	must(tb, admin.ConfigResetStat(tb.Context()).Err())
	f()
	counts, err := testserver.Commands(tb.Context(), admin)
	must(tb, err)
	return counts.Since(nil)
}

func rebuild(tb testing.TB, eng driver.Elector, key string, ttl time.Duration) driver.Entry {
	tb.Helper()
	won := elect(tb, eng, key, 0)
	if won.Lease == nil {
		tb.Fatalf("Elect: %+v, want the lease", won)
	}
	e := value(won.Epoch)
	e.TTL = ttl
	commit(tb, eng, key, e, won)
	return e
}

func TestEngine_ServerHangs(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	eng := open(t, srv.Addr)
	rebuild(t, eng, "hang", time.Hour)
	lease := leasetest.Acquire(t, eng, "held", time.Minute)
	srv.Signal(syscall.SIGSTOP)
	defer func() {
		srv.Signal(syscall.SIGCONT)
		dial(t, srv.Addr).Ping(context.Background()) // the calls left behind end before the leak check
	}()
	storetest.Hang(t, eng, lease)
	lockertest.Hang(t, eng, lease)
}

func TestEngine_ServerDown(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { rdb.Close() })
	eng := over(t, rdb)
	rebuild(t, eng, "down", time.Hour)
	lease := leasetest.Acquire(t, eng, "held", time.Minute)
	srv.Kill()
	storetest.Down(t, eng, lease)
	lockertest.Down(t, eng, lease)
}

// awaitSubscribers waits until n engines have subscribed to releases, which they do in the background.
func awaitSubscribers(t *testing.T, rdb *redis.Client, n int64) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		channels, err := rdb.PubSubChannels(t.Context(), "*").Result()
		must(t, err)
		there := int64(0)
		for _, subscribers := range rdb.PubSubNumSub(t.Context(), channels...).Val() {
			there += subscribers
		}
		if there == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d subscribers to %q, want %d", there, channels, n)
		}
	}
}

// TestEngine_Requests counts the requests and the commands of each operation, also those of scripts.
func TestEngine_Requests(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	meter := testserver.NewMeter(t, srv)
	admin := dial(t, srv.Addr)
	eng, other := open(t, meter.Addr), open(t, meter.Addr)
	rebuild(t, eng, "warm", time.Hour) // loads the scripts and opens the connections
	rebuild(t, other, "warm too", time.Hour)
	awaitSubscribers(t, admin, 4) // two engines, each with two channels
	e := value(0)
	var won driver.Election
	count := func(what string, wantTrips, wantCommands int, f func() error) {
		t.Helper()
		before := meter.RoundTrips()
		total, each := commands(t, admin, func() {
			if err := f(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
		trips := meter.RoundTrips() - before
		t.Logf("%s: %d requests, %d commands (%s)", what, trips, total, each)
		if trips != wantTrips || total != wantCommands {
			t.Errorf("%s: %d requests with %d commands, want %d with %d: %s", what, trips, total, wantTrips, wantCommands, each)
		}
	}
	count("Elect of a cold key", 1, 5, func() (err error) {
		won, err = eng.Elect(t.Context(), "k", 0, time.Minute)
		e.Epoch = won.Epoch
		return err
	})
	count("Elect of a held key", 1, 2, func() error {
		got, err := other.Elect(t.Context(), "k", 0, time.Minute)
		if err == nil && got.Held == nil {
			err = fmt.Errorf("%+v", got)
		}
		return err
	})
	count("CommitAndRelease", 1, 8, func() error { return eng.CommitAndRelease(t.Context(), "k", e, won.Lease) })
	count("Elect of a fresh key", 1, 2, func() error {
		got, err := other.Elect(t.Context(), "k", 0, time.Minute)
		if err == nil && string(got.Entry.Value) != "v" {
			err = fmt.Errorf("%+v", got)
		}
		return err
	})
}

func TestCache_UncontendedMiss(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	meter := testserver.NewMeter(t, srv)
	eng := open(t, meter.Addr)
	rebuild(t, eng, "warm", time.Hour)
	c := bellwether.New(func(_ context.Context, key string) (string, error) { return "value of " + key, nil },
		bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Namespace: "n", Engine: eng}})
	t.Cleanup(func() { c.Close() })
	if _, err := c.Get(t.Context(), "first"); err != nil { // the log of invalidations is read along with it
		t.Fatal(err)
	}
	requests := func() int {
		n := 0
		for kind, of := range meter.Requests() {
			if kind != "subscribe" {
				n += of
			}
		}
		return n
	}
	before := requests()
	if v, err := c.Get(t.Context(), "k"); err != nil || v != "value of k" {
		t.Fatalf("Get: %q, %v", v, err)
	}
	if n := requests() - before; n != 2 {
		t.Errorf("a miss costs %d requests, want 2: %v", n, meter.Requests())
	}
}

// TestElect_JudgesFreshness compares the script's judgement with Entry.Fresh.
func TestElect_JudgesFreshness(t *testing.T) {
	eng := open(t, testserver.Redis(t).Addr)
	eng.Prefix = "test:" + adapter.Token() + ":"
	lengths := []time.Duration{-1, 0, time.Nanosecond, time.Hour, 1 << 62, 1<<63 - 1}
	pick := func() time.Duration { return lengths[rand.N(len(lengths))] }
	for i := range 300 {
		key := fmt.Sprint(i)
		won := elect(t, eng, key, 0)
		e := driver.Entry{Kind: driver.EntryKind(rand.N(4)), Epoch: won.Epoch, Age: pick(), TTL: pick(), RetryAge: pick(),
			Failures: rand.N[uint32](2), StaleIfError: time.Hour}
		commit(t, eng, key, e, won)
		e.Age = max(0, e.Age)
		later := e // at least as old as its answer
		later.Age += min(time.Microsecond, 1<<63-1-later.Age)
		got := elect(t, eng, key, 0)
		if answers := got.Lease == nil; answers != (later.Fresh() && later.Life() > 0) || got.Held != nil {
			t.Errorf("%+v answers: %v, fresh: %v", e, answers, later.Fresh())
		}
	}
}

// TestElect_ForeignBytes has bytes that end within the time of an entry's freshness, and look fresh for ever.
func TestElect_ForeignBytes(t *testing.T) {
	srv := testserver.Redis(t)
	eng, rdb := open(t, srv.Addr), dial(t, srv.Addr)
	eng.Prefix = "test:" + adapter.Token() + ":"
	must(t, rdb.Set(t.Context(), redisentry.Name(eng.Prefix, "k"), strings.Repeat("0000000000000001", 2)+strings.Repeat("0", 70)+"9e99", 0).Err())
	if got := elect(t, eng, "k", 0); got.Lease == nil || got.Entry.Kind != driver.KindNone {
		t.Errorf("Elect over foreign bytes: %+v, want a lease", got)
	}
}

func TestElect_ForeignTypes(t *testing.T) {
	srv := testserver.Redis(t)
	eng, rdb := open(t, srv.Addr), dial(t, srv.Addr)
	eng.Prefix = "test:" + adapter.Token() + ":"
	spoil := func(name string) {
		t.Helper()
		rdb.Del(t.Context(), name)
		must(t, rdb.LPush(t.Context(), name, "x").Err())
	}
	spoil(redisentry.Name(eng.Prefix, "k"))
	e := rebuild(t, eng, "k", time.Hour)
	if got := elect(t, eng, "k", 0); string(got.Entry.Value) != "v" || got.Lease != nil {
		t.Errorf("Elect over a list that was replaced: %+v", got)
	}
	won := elect(t, eng, "k", e.Epoch)
	spoil(redislease.Key(eng.Prefix, "k"))
	e.Epoch = won.Epoch
	commit(t, eng, "k", e, won) // with a list in the lease's place
	if got := elect(t, eng, "k", 0); got.Entry.Epoch != e.Epoch || got.Lease != nil {
		t.Errorf("Elect of what was committed: %+v", got)
	}
	if got, err := eng.Elect(t.Context(), "k", e.Epoch, time.Minute); !errors.Is(err, driver.ErrCorrupt) {
		t.Errorf("Elect with a list in the lease's place: %+v, %v; want ErrCorrupt", got, err)
	}
}

// TestElect_LongestLease: the end of the longest lease fits into its note, and the entry stays.
func TestElect_LongestLease(t *testing.T) {
	eng := open(t, testserver.Redis(t).Addr)
	eng.Prefix = "test:" + adapter.Token() + ":"
	e := rebuild(t, eng, "k", time.Hour)
	if won, err := eng.Elect(t.Context(), "k", e.Epoch, math.MaxInt64); won.Lease == nil || err != nil {
		t.Fatalf("Elect: %+v, %v", won, err)
	}
	if got, err := eng.Get(t.Context(), "k"); string(got.Value) != "v" || err != nil {
		t.Errorf("Get during the rebuild: %+v, %v", got, err)
	}
}

// TestElect_OutOfMemory has Redis refuse writes that take memory: no lease is left behind.
func TestElect_OutOfMemory(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	eng, rdb := open(t, srv.Addr), dial(t, srv.Addr)
	rdb.ConfigSet(t.Context(), "maxmemory", "1")
	if got, err := eng.Elect(t.Context(), "k", 0, time.Minute); err == nil {
		t.Errorf("Elect without memory: %+v, want an error", got)
	}
	rdb.ConfigSet(t.Context(), "maxmemory", "0")
	if n := rdb.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys are left behind", n)
	}
	if got := elect(t, eng, "k", 0); got.Lease == nil {
		t.Errorf("Elect with memory again: %+v", got)
	}
}

// TestElect_LargeEntries elects beside entries around the length that needs a second request.
func TestElect_LargeEntries(t *testing.T) {
	eng := open(t, testserver.Redis(t).Addr)
	eng.Prefix = "test:" + adapter.Token() + ":"
	for _, n := range []int{64<<10 - 200, 64<<10 - redisentry.HeadLen - 40, 64 << 10, 1 << 20} {
		key := fmt.Sprint(n)
		won := elect(t, eng, key, 0)
		e := value(won.Epoch)
		e.Value = []byte(strings.Repeat("v", n))
		commit(t, eng, key, e, won)
		for what, ask := range map[string]func() driver.Election{
			"answered": func() driver.Election { return elect(t, eng, key, 0) },
			"elected and held": func() driver.Election {
				elect(t, eng, key, e.Epoch)
				return elect(t, eng, key, e.Epoch)
			},
		} {
			if got := ask(); len(got.Entry.Value) != n {
				t.Errorf("%s: %d bytes of %d", what, len(got.Entry.Value), n)
			}
		}
	}
}

// lagging is a client whose reads go to a replica that has nothing yet.
type lagging struct{ *redis.Client }

func (c lagging) Get(ctx context.Context, name string) *redis.StringCmd {
	return redis.NewStringResult("", redis.Nil)
}

// TestElect_ReplicaThatLags elects beside a large entry, which needs a second request.
func TestElect_ReplicaThatLags(t *testing.T) {
	addr := testserver.Redis(t).Addr
	a, b := open(t, addr), over(t, lagging{dial(t, addr)})
	intoOneFleet(a, b)
	won := elect(t, a, "k", 0)
	e := value(won.Epoch)
	e.Value = make([]byte, 100<<10)
	commit(t, a, "k", e, won)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if got, err := b.Elect(ctx, "k", 0, time.Minute); err != nil || got.Entry.Epoch != e.Epoch {
		t.Errorf("Elect: epoch %d, %v; want the entry of epoch %d", got.Entry.Epoch, err, e.Epoch)
	}
}

// TestElect_LostReply loses the replies to an election and a commit: a repeat finds its own lease.
func TestElect_LostReply(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr})
	t.Cleanup(func() { rdb.Close() })
	twice := &repeats{}
	rdb.AddHook(testserver.Hook(twice.hook))
	eng := over(t, rdb)
	rebuild(t, eng, "warm", time.Hour)
	twice.on.Store(true)
	rebuild(t, eng, "k", time.Hour)
	twice.on.Store(false)
	if got := elect(t, eng, "k", 0); string(got.Entry.Value) != "v" || got.Lease != nil {
		t.Errorf("Elect after repeated requests: %+v", got)
	}
	if n := twice.n.Load(); n != 2 {
		t.Errorf("%d requests were repeated, want 2", n)
	}

	// An entry has come between the two requests: no lease is left behind.
	other := open(t, srv.Addr)
	var e driver.Entry
	var freed <-chan struct{}
	twice.between = func() {
		freed = leasetest.Watch(t, other, "answered")
		_, epoch, err := other.Claim(t.Context(), "answered")
		e = value(epoch)
		if err := errors.Join(err, other.Commit(t.Context(), "answered", e)); err != nil {
			t.Error(err)
		}
	}
	twice.on.Store(true)
	got := elect(t, eng, "answered", 0)
	twice.on.Store(false)
	if got.Lease != nil || got.Entry.Epoch != e.Epoch {
		t.Errorf("Elect: %+v, want the entry of epoch %d", got, e.Epoch)
	}
	leasetest.MustClose(t, "the end of the lease", freed, 5*time.Second)
	if got := elect(t, other, "answered", e.Epoch); got.Lease == nil {
		t.Errorf("Elect past the entry: %+v, want a lease", got.Held)
	}
}

// repeats sends each script twice, and keeps the second reply.
type repeats struct {
	on      atomic.Bool
	n       atomic.Int32
	between func() // set while on is false
}

func (r *repeats) hook(_ context.Context, cmds []redis.Cmder, send func() error) error {
	if r.on.Load() && strings.HasPrefix(cmds[0].Name(), "eval") {
		r.n.Add(1)
		if err := send(); err != nil {
			return err
		}
		if r.between != nil {
			r.between()
		}
	}
	return send()
}

func TestNew_NoClient(t *testing.T) {
	leasetest.MustPanic(t, "redisfleet: New needs a client", func() { New(nil) })
	leasetest.MustPanic(t, "redisfleet: New needs a client", func() { New((*redis.Client)(nil)) })
}
