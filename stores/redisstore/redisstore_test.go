package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/redisentry"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/stores/storetest"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// The suite finds optional interfaces by assertion.
var (
	_ driver.Fencer   = (*Store)(nil)
	_ driver.Notifier = (*Store)(nil)
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ driver.Store       = (*Store)(nil)
	_ driver.BatchGetter = (*Store)(nil)
)

func open(tb testing.TB, addr, prefix string) (*Store, *redis.Client) {
	tb.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: 20 * time.Second, PoolTimeout: 20 * time.Second})
	tb.Cleanup(func() { rdb.Close() })
	s := New(rdb)
	s.Prefix = prefix
	return s, rdb
}

// instance gives the kit open, and rdb for its faults.
func instance(rdb redis.UniversalClient, prefix string, open func(testing.TB) *Store) storetest.Instance {
	const limit = 2 << 20
	name := (&Store{Prefix: prefix}).name
	return storetest.Instance{
		Notifies: true,
		Batches:  true,
		Open: func(tb testing.TB) driver.Store {
			s := open(tb)
			s.Prefix, s.MaxValue = prefix, limit
			return s
		},
		Evict: func(tb testing.TB, key string) { must(tb, rdb.Del(tb.Context(), name(key)).Err()) },
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

func TestStore(t *testing.T) {
	storetest.Run(t, func(tb testing.TB) storetest.Instance {
		srv := testserver.Redis(tb)
		prefix := "test:" + adapter.Token() + ":"
		_, rdb := open(tb, srv.Addr, prefix)
		i := instance(rdb, prefix, func(tb testing.TB) *Store {
			s, _ := open(tb, srv.Addr, prefix)
			return s
		})
		if srv.Own() {
			i.Restart = func(testing.TB) { srv.Restart() }
		}
		return i
	})
}

func claim(tb testing.TB, s *Store, key string) (epoch uint64) {
	tb.Helper()
	_, epoch, err := s.Claim(tb.Context(), key)
	if err != nil {
		tb.Fatal(err)
	}
	return epoch
}

func commit(tb testing.TB, s *Store, key string, e driver.Entry) {
	tb.Helper()
	if err := s.Commit(tb.Context(), key, e); err != nil {
		tb.Error(err)
	}
}

func invalidate(tb testing.TB, s *Store, key string) {
	tb.Helper()
	if err := s.Invalidate(tb.Context(), key); err != nil {
		tb.Error(err)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func put(tb testing.TB, s *Store, key string, ttl time.Duration) driver.Entry {
	tb.Helper()
	e := driver.Entry{Kind: driver.KindValue, Value: []byte("v"), Epoch: claim(tb, s, key), TTL: ttl}
	commit(tb, s, key, e)
	return e
}

// commands returns the server's count of each command during f, including commands of scripts.
func commands(tb testing.TB, rdb *redis.Client, f func()) (total int, each string) {
	tb.Helper()
	ctx := tb.Context()
	must(tb, rdb.ConfigResetStat(ctx).Err())
	f()
	counts, err := testserver.Commands(ctx, rdb)
	if err != nil {
		tb.Fatal(err)
	}
	return counts.Since(nil)
}

func TestStore_Commands(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	s, _ := open(t, srv.Addr, "test:")
	_, admin := open(t, srv.Addr, "")
	ctx := t.Context()
	put(t, s, "warm", time.Hour) // loads the scripts
	invalidate(t, s, "warm")

	expect := func(what string, want int, f func() error) {
		t.Helper()
		got, each := commands(t, admin, func() {
			if err := f(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
		if got != want {
			t.Errorf("%s cost %d commands, want %d: %s", what, got, want, each)
		}
		t.Logf("%s: %d commands (%s)", what, got, each)
	}
	get := func(s *Store) func() error {
		return func() error {
			_, err := s.Get(ctx, "k")
			if errors.Is(err, driver.ErrNotFound) {
				err = nil
			}
			return err
		}
	}
	var e driver.Entry
	expect("a miss", 1, get(s))
	expect("a claim", 4, func() (err error) {
		_, e.Epoch, err = s.Claim(ctx, "k")
		return err
	})
	e.Kind, e.Value, e.TTL = driver.KindValue, []byte("v"), time.Hour
	expect("a commit", 5, func() error { return s.Commit(ctx, "k", e) })
	expect("the same commit again", 3, func() error { return s.Commit(ctx, "k", e) })
	expect("a hit", 1, get(s))

	// A process that only reads asks for the time once in a while.
	reader, _ := open(t, srv.Addr, "test:")
	expect("the first hit of a reader", 2, get(reader))
	expect("its second hit", 1, get(reader))
	expect("a claim of an entry", 5, func() error {
		got, epoch, err := s.Claim(ctx, "k")
		if err == nil && (string(got.Value) != "v" || epoch <= e.Epoch) {
			err = fmt.Errorf("entry %+v, epoch %d", got, epoch)
		}
		return err
	})
	expect("an invalidation", 5, func() error { return s.Invalidate(ctx, "k") })
	expect("a fenced commit", 2, func() error {
		if err := s.Commit(ctx, "k", e); !errors.Is(err, driver.ErrFenced) {
			return fmt.Errorf("err = %v, want ErrFenced", err)
		}
		return nil
	})
}

// TestStore_NoLeaveForTheChannel has a user who may not publish, the default of access control lists.
func TestStore_NoLeaveForTheChannel(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	_, admin := open(t, srv.Addr, "")
	testserver.Restrict(t, testserver.RedisRules, srv)
	must(t, admin.Do(t.Context(), "acl", "setuser", testserver.RedisUser, "resetchannels").Err())
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, Username: "app", Password: "secret"})
	defer rdb.Close()
	s := New(rdb)
	put(t, s, "k", time.Hour)
	if got, err := s.Get(t.Context(), "k"); err != nil || string(got.Value) != "v" {
		t.Errorf("Get: %q, %v", got.Value, err)
	}
	invalidate(t, s, "k")
	if _, err := s.Get(t.Context(), "k"); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Get after Invalidate: err = %v, want ErrNotFound", err)
	}
}

// TestStore_InvalidateOutOfMemory has Redis without memory: no old value is served or committed.
func TestStore_InvalidateOutOfMemory(t *testing.T) {
	s, rdb := open(t, testserver.Redis(t).OwnOrSkip(t).Addr, "test:")
	e := put(t, s, "k", time.Hour)
	late := claim(t, s, "k")
	if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil { // noeviction is the default
		t.Fatal(err)
	}
	invalidate(t, s, "k")
	if _, err := s.Get(t.Context(), "k"); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Get after Invalidate: err = %v, want ErrNotFound", err)
	}
	must(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	e.Epoch = late
	if err := s.Commit(t.Context(), "k", e); !errors.Is(err, driver.ErrFenced) {
		t.Errorf("Commit of a claim before Invalidate: err = %v, want ErrFenced", err)
	}
	if _, epoch, err := s.Claim(t.Context(), "k"); err != nil || epoch <= late {
		t.Errorf("Claim: epoch %d after %d, %v", epoch, late, err)
	}
}

func TestStore_ForeignType(t *testing.T) {
	s, rdb := open(t, testserver.Redis(t).Addr, "test:"+adapter.Token()+":")
	reader, _ := open(t, rdb.Options().Addr, s.Prefix)
	ctx := t.Context()
	spoil := func() {
		rdb.Del(ctx, s.name("k"))
		must(t, rdb.LPush(ctx, s.name("k"), "x").Err())
	}
	before := put(t, s, "k", time.Hour)
	spoil()
	for _, s := range []*Store{reader, s} { // with TIME, and without
		if _, err := s.Get(ctx, "k"); !errors.Is(err, driver.ErrCorrupt) {
			t.Errorf("Get of a list: err = %v, want ErrCorrupt", err)
		}
	}
	if err := s.Commit(ctx, "k", before); !errors.Is(err, driver.ErrFenced) {
		t.Errorf("Commit with a list for a counter: err = %v, want ErrFenced", err)
	}
	if after := put(t, s, "k", time.Hour); after.Epoch <= before.Epoch {
		t.Errorf("epoch %d after %d", after.Epoch, before.Epoch)
	}
	spoil()
	invalidate(t, s, "k") // over a list
	put(t, s, "k", time.Hour)
	if _, err := s.Get(ctx, "k"); err != nil {
		t.Errorf("Get after the repair: %v", err)
	}
}

// TestStore_ForeignCounter puts foreign texts in the counter's place: claims rise, and commits pass.
func TestStore_ForeignCounter(t *testing.T) {
	s, rdb := open(t, testserver.Redis(t).Addr, "test:"+adapter.Token()+":")
	ctx := t.Context()
	last := put(t, s, "k", time.Hour)
	digits := func(counter, floor string) string { return fmt.Sprintf("%016s%016s", counter, floor) }
	for _, head := range []string{"", "x", "1", "-1 -1", digits("1", "2"), digits("nan", "nan"), digits("5", "3"), digits("5", " 3"),
		digits("9007199254740992", "1"), digits("4503599627370497", "1"), strings.Repeat("9", 32), strings.Repeat("9", 400)} {
		for _, rest := range []string{"", strings.Repeat("0", 32), strings.Repeat("9", 32), "             nan             nan", strings.Repeat("x", 100)} {
			must(t, rdb.Set(ctx, s.name("k"), head+rest, 0).Err())
			if _, err := s.Get(ctx, "k"); !errors.Is(err, driver.ErrCorrupt) && !errors.Is(err, driver.ErrNotFound) {
				t.Fatalf("Get of %q: %v", head+rest, err)
			}
			for range 3 {
				e := put(t, s, "k", time.Hour)
				if e.Epoch <= last.Epoch || e.Epoch > 1<<52 {
					t.Fatalf("%q: epoch %d after %d", head+rest, e.Epoch, last.Epoch)
				}
				last = e
			}
		}
	}
}

// kept is the value in Redis of an entry committed at the time at, in microseconds.
func kept(key string, e driver.Entry, at int64) []byte {
	return e.Append(fmt.Appendf(nil, "%016d%016d%038d%016d%016d%016d", e.Epoch, e.Epoch, 0, at, int64(1<<53-1), int64(1<<53-1)), key)
}

// TestStore_CounterAheadOfTheClock follows an entry from a server whose clock was ahead: its
// counter goes on, and does not return to this server's clock.
func TestStore_CounterAheadOfTheClock(t *testing.T) {
	s, rdb := open(t, testserver.Redis(t).Addr, "test:"+adapter.Token()+":")
	ctx := t.Context()
	const ahead = 1<<52 - 7
	for what, first := range map[string]func() error{
		"a claim":                     func() error { return nil },
		"an invalidation and a claim": func() error { return s.Invalidate(ctx, "k") },
	} {
		e := driver.Entry{Kind: driver.KindValue, Epoch: ahead, TTL: math.MaxInt64}
		must(t, rdb.Set(ctx, s.name("k"), kept("k", e, 1), 0).Err())
		must(t, first())
		if _, epoch, err := s.Claim(ctx, "k"); err != nil || epoch <= ahead {
			t.Errorf("%s after epoch %d: epoch %d, err = %v", what, uint64(ahead), epoch, err)
		}
	}
}

// TestStore_ServersClockSetBack reads entries from the server's future. Further ahead than it was fresh, an entry is stale.
func TestStore_ServersClockSetBack(t *testing.T) {
	s, rdb := open(t, testserver.Redis(t).Addr, "test:"+adapter.Token()+":")
	now, err := rdb.Time(t.Context()).Result()
	must(t, err)
	value := driver.Entry{Kind: driver.KindValue, Value: []byte("v"), Epoch: 1, Age: time.Second, TTL: time.Minute, StaleIfError: time.Hour}
	failure := driver.Entry{Epoch: 1, Failures: 1, Failure: "down", Age: time.Second, RetryAge: time.Minute}
	for what, test := range map[string]struct {
		entry      driver.Entry
		ahead, age time.Duration
	}{
		"a value by less than its freshness":   {value, 50 * time.Second, time.Second},
		"a value by more than its freshness":   {value, 2 * time.Minute, time.Minute},
		"a value by years":                     {value, 50 * 365 * 24 * time.Hour, time.Minute},
		"a failure by less than its freshness": {failure, 50 * time.Second, time.Second},
		"a failure by more than its freshness": {failure, 2 * time.Minute, time.Minute},
	} {
		must(t, rdb.Set(t.Context(), s.name("k"), kept("k", test.entry, now.Add(test.ahead).UnixMicro()), 0).Err())
		got, err := s.Get(t.Context(), "k")
		if err != nil || got.Age != test.age {
			t.Errorf("Get of %s in the future: Age = %v, err = %v, want %v", what, got.Age, err, test.age)
		}
	}
}

// TestStore_ExpiresInRedis wants entries kept for their life, counters as long as claims may need them.
func TestStore_ExpiresInRedis(t *testing.T) {
	s, rdb := open(t, testserver.Redis(t).Addr, "test:"+adapter.Token()+":")
	ctx := t.Context()
	kept := func(what string, want time.Duration, wantLen bool) {
		t.Helper()
		if got := rdb.Do(ctx, "PTTL", s.name("k")).Val().(int64); got > adapter.Millis(want) || got < adapter.Millis(want)-30_000 {
			t.Errorf("%s is kept for %d ms, want %d", what, got, adapter.Millis(want))
		}
		if got := rdb.StrLen(ctx, s.name("k")).Val(); (got > redisentry.BareLen) != wantLen {
			t.Errorf("%s takes %d bytes", what, got)
		}
	}
	for _, ttl := range []time.Duration{time.Second + 1, time.Hour, 90 * 24 * time.Hour, math.MaxInt64 - redisentry.Lingering} {
		put(t, s, "k", ttl)
		kept(fmt.Sprint("an entry of life ", ttl), ttl+redisentry.Lingering, true)
		claimed, epoch, err := s.Claim(ctx, "k")
		if err != nil || claimed.Life() <= 0 {
			t.Fatalf("Claim of an entry of life %v: %+v, %v", ttl, claimed, err)
		}
		kept(fmt.Sprint("a claim over life ", ttl), max(ttl+redisentry.Lingering, redisentry.Retention), true)
		commit(t, s, "k", driver.Entry{Epoch: epoch})
		kept("a commit of nothing", redisentry.Retention, false)
	}

	// A commit below a later claim keeps that claim's number.
	first := claim(t, s, "k")
	second := claim(t, s, "k")
	e := driver.Entry{Kind: driver.KindValue, Value: []byte("v"), Epoch: first, TTL: 20 * time.Millisecond}
	commit(t, s, "k", e)
	kept("an entry of 20 ms below a claim", redisentry.Retention, true)
	time.Sleep(30 * time.Millisecond) // the server's clock is real
	// The next claim frees the entry's memory.
	if got, _, err := s.Claim(ctx, "k"); err != nil || got.Kind != driver.KindNone {
		t.Errorf("Claim of an entry whose life is over: %+v, %v", got, err)
	}
	kept("a claim after an entry's life", redisentry.Retention, false)
	e.Epoch = second
	commit(t, s, "k", e) // of the second claim
	invalidate(t, s, "k")
	kept("an invalidation", redisentry.Retention, false)
}

func TestStore_ServerHangs(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	s, rdb := open(t, srv.Addr, "test:")
	put(t, s, "hang", time.Hour)
	srv.Signal(syscall.SIGSTOP)
	defer func() {
		srv.Signal(syscall.SIGCONT)
		rdb.Ping(context.Background()) // the calls left behind end before the leak check
	}()
	storetest.Hang(t, s)
}

func TestStore_ServerDown(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	// By default, this client tries 20 times before it gives up.
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	s := New(rdb)
	put(t, s, "down", time.Hour)
	srv.Kill()
	storetest.Down(t, s)
}

func FuzzNotice(f *testing.F) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // never dialled
	f.Cleanup(func() { rdb.Close() })
	s := New(rdb)
	s.servers.ClockOf("").See(redisentry.Sighting{Server: 1 << 40, Sent: time.Now().Add(time.Hour)}) // recent while the fuzzer runs
	entry := driver.Entry{Kind: driver.KindValue, Value: []byte("v"), Epoch: 7}.Append(nil, "key")
	for _, seed := range []string{"", "c", "i" + strings.Repeat("0", 40), "c000000000000000100000000000000070000000" + "3key", "x" + strings.Repeat("9", 60)} {
		for _, change := range []string{seed, seed + string(entry)} {
			f.Add(fmt.Sprintf("%016d%s", len(change), change))
			f.Add(fmt.Sprintf("%016d%s%[1]d", len(change), change))
		}
	}
	f.Fuzz(func(t *testing.T, message string) {
		for rest := message; len(rest) > 0; {
			before := len(rest)
			var change string
			if change, rest = firstChange(rest); len(change)+len(rest) >= before {
				t.Fatalf("%q has the first change %q and the rest %q", message, change, rest)
			}
			n, err := s.notice(t.Context(), []byte(change))
			if err == nil && (n.Made.After(time.Now()) || n.Entry.Age < 0 && n.Entry.Epoch != 0 || len(n.Key) > len(change)) {
				t.Fatalf("%q is %+v", change, n)
			}
		}
	})
}

func TestNew_NoClient(t *testing.T) {
	leasetest.MustPanic(t, "redisstore: New needs a client", func() { New(nil) })
	leasetest.MustPanic(t, "redisstore: New needs a client", func() { New((*redis.Client)(nil)) })
}

// A stalled server carries out earlier requests late. The entry then has the age of the delay, for
// readers and in notices.
func TestStore_CommitThatComesLate(t *testing.T) {
	const late = time.Second
	srv := testserver.Redis(t).OwnOrSkip(t)
	s, rdb := open(t, srv.Addr, "test:")
	notices := make(chan driver.Notice, 10)
	go s.Notify(t.Context(), func(n driver.Notice) { notices <- n })
	for subscribed := false; !subscribed; {
		subscribed = rdb.PubSubNumSub(t.Context(), s.channel()).Val()[s.channel()] == 1
	}
	for _, ttl := range []time.Duration{time.Minute, late / 2} {
		epoch := claim(t, s, "k")
		// Twice the wanted pause: the commit is sent some time after its start.
		must(t, rdb.Do(t.Context(), "client", "pause", 2*late.Milliseconds(), "write").Err())
		sent := time.Now()
		e := driver.Entry{Kind: driver.KindValue, Value: []byte("v"), Epoch: epoch, TTL: ttl}
		commit(t, s, "k", e)
		took := time.Since(sent)
		if took < late {
			t.Fatalf("the commit took %v, want a pause of %v at least", took, late)
		}
		n := <-notices
		if n.Epoch != epoch || n.Made.Sub(sent) > took-late {
			t.Errorf("a notice of %d, made %v after the commit was sent, which took %v; want %d, then", n.Epoch, n.Made.Sub(sent), took, epoch)
		}
		if told, lives := n.Entry.Epoch != 0, ttl > late; told != lives || lives && n.Entry.Age < late {
			t.Errorf("TTL %v: told of %+v", ttl, n.Entry)
		}
		switch got, err := s.Get(t.Context(), "k"); {
		case ttl > late:
			if err != nil || got.Age < late {
				t.Errorf("Get: Age %v, %v; want %v at least", got.Age, err, late)
			}
		case !errors.Is(err, driver.ErrNotFound):
			t.Errorf("Get of what is over: %+v, %v", got, err)
		}
	}
}

// TestStore_CommitThatComesLateAfterALongLoad has no recent sighting of the server's clock to go by.
func TestStore_CommitThatComesLateAfterALongLoad(t *testing.T) {
	const late = time.Second
	srv := testserver.Redis(t).OwnOrSkip(t)
	s, rdb := open(t, srv.Addr, "test:")
	epoch := claim(t, s, "k")
	// As if the load had outlasted the sighting.
	s.servers = redisentry.Of(rdb)
	must(t, rdb.Do(t.Context(), "client", "pause", 2*late.Milliseconds(), "write").Err())
	sent := time.Now()
	e := driver.Entry{Kind: driver.KindValue, Value: []byte("v"), Epoch: epoch, TTL: time.Minute}
	commit(t, s, "k", e)
	if took := time.Since(sent); took < late {
		t.Fatalf("the commit took %v, want a pause of %v at least", took, late)
	}
	// The committer now believes the server's clock to be ahead by the duration of the reply.
	reader, _ := open(t, srv.Addr, "test:")
	if got, err := reader.Get(t.Context(), "k"); err != nil || got.Age < late {
		t.Errorf("Get: Age %v, %v; want %v at least", got.Age, err, late)
	}
}

// TestStore_LargestCommit sees the server free for others again soon after the largest commit. It
// reads the server's processor time, which does not depend on the machine's load.
func TestStore_LargestCommit(t *testing.T) {
	s, rdb := open(t, testserver.Redis(t).OwnOrSkip(t).Addr, "test:")
	value := make([]byte, s.MaxValue-128)
	least := time.Hour
	for range 5 {
		epoch := claim(t, s, "k")
		before := testserver.Busy(t, rdb)
		e := driver.Entry{Kind: driver.KindValue, Value: value, Epoch: epoch, TTL: time.Hour}
		commit(t, s, "k", e)
		least = min(least, testserver.Busy(t, rdb)-before)
	}
	t.Logf("a commit of %d bytes takes %v of the server", len(value), least)
	if limit := 100 * time.Millisecond; least > limit {
		t.Errorf("a commit of %d bytes takes %v of the server, want less than %v", len(value), least, limit)
	}
}
