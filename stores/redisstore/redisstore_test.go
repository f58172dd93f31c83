package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/stores/storetest"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ bellwether.Store       = (*Store)(nil)
	_ bellwether.BatchGetter = (*Store)(nil)
)

// open returns a store as another process would have it.
func open(tb testing.TB, addr, prefix string) (*Store, *redis.Client) {
	tb.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: 20 * time.Second, PoolTimeout: 20 * time.Second})
	tb.Cleanup(func() { rdb.Close() })
	s := New(rdb)
	s.Prefix = prefix
	return s, rdb
}

// instance puts rdb, over which the faults go, and open under the kit.
func instance(rdb redis.UniversalClient, prefix string, open func(testing.TB) *Store) storetest.Instance {
	const limit = 2 << 20
	names := (&Store{Prefix: prefix}).names
	must := func(tb testing.TB, err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	return storetest.Instance{
		Notifies: true,
		Batches:  true,
		Open: func(tb testing.TB) bellwether.Store {
			s := open(tb)
			s.Prefix, s.MaxValue = prefix, limit
			return s
		},
		Evict: func(tb testing.TB, key string) {
			must(tb, rdb.Del(tb.Context(), names(key)...).Err())
		},
		EvictCounter: func(tb testing.TB, key string) {
			must(tb, rdb.Del(tb.Context(), names(key)[1]).Err())
		},
		Poison: func(tb testing.TB, key string, data []byte) {
			must(tb, rdb.Set(tb.Context(), names(key)[0], data, 0).Err())
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

// own returns a server that the test may do anything to.
func own(tb testing.TB, args ...string) *testserver.Server {
	tb.Helper()
	srv := testserver.Redis(tb, args...)
	if !srv.Own() {
		tb.Skip("needs a server of its own, and BELLWETHER_REDIS is set")
	}
	return srv
}

// cluster starts two servers that share the slots, and returns a function that
// opens clients of them, and clients of each.
func cluster(t *testing.T) (connect func(testing.TB) *redis.ClusterClient, nodes [2]*redis.Client) {
	t.Helper()
	ctx := t.Context()
	var addrs [2]string
	for i := range nodes {
		srv := own(t, "--cluster-enabled", "yes")
		addrs[i] = srv.Addr
		_, nodes[i] = open(t, srv.Addr, "")
	}
	host, port, _ := net.SplitHostPort(addrs[1])
	for _, err := range []error{
		nodes[0].ClusterAddSlotsRange(ctx, 0, 8191).Err(),
		nodes[1].ClusterAddSlotsRange(ctx, 8192, 16383).Err(),
		nodes[1].Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", 2).Err(),
		nodes[0].ClusterMeet(ctx, host, port).Err(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for n, up := 0, 0; up < len(nodes); n++ {
		up = 0
		for _, rdb := range nodes {
			info, err := rdb.ClusterInfo(ctx).Result()
			if err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_assigned:16384") {
				up++
			}
		}
		if n == 1000 {
			t.Fatal("the cluster does not form")
		}
		time.Sleep(20 * time.Millisecond) // real processes are meeting
	}
	return func(tb testing.TB) *redis.ClusterClient {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addrs[0]}, ReadTimeout: 20 * time.Second})
		tb.Cleanup(func() { rdb.Close() })
		return rdb
	}, nodes
}

// TestStore_Cluster runs the kit over a cluster's client: keys that do not
// share a slot would fail every script.
func TestStore_Cluster(t *testing.T) {
	connect, nodes := cluster(t)
	storetest.Run(t, func(tb testing.TB) storetest.Instance {
		return instance(connect(tb), adapter.Token()+":", func(tb testing.TB) *Store { return New(connect(tb)) })
	})

	t.Run("a slot that has moved", func(t *testing.T) {
		ctx := t.Context()
		rdb := connect(t)
		reader, writer := New(rdb), New(connect(t))
		var key string
		for i := 0; ; i++ { // a key of the first server
			key = fmt.Sprint("moving", i)
			if slot := nodes[0].ClusterKeySlot(ctx, reader.names(key)[0]).Val(); slot < 8192 {
				break
			}
		}
		if _, err := reader.Get(ctx, key); !errors.Is(err, bellwether.ErrNotFound) {
			t.Fatalf("Get before anything is there: %v", err)
		}
		id, err := nodes[1].Do(ctx, "CLUSTER", "MYID").Text()
		if err != nil {
			t.Fatal(err)
		}
		slot := nodes[0].ClusterKeySlot(ctx, reader.names(key)[0]).Val()
		for _, node := range []*redis.Client{nodes[1], nodes[0]} {
			if err := node.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", id).Err(); err != nil {
				t.Fatal(err)
			}
		}
		put(t, writer, key, time.Hour)
		// The reader's client still knows the old server, and so asks it for the
		// time along with the entry.
		reader.clocks.Clear()
		if e, err := reader.Get(ctx, key); err != nil || string(e.Value) != "v" {
			t.Errorf("Get = %+v, %v", e, err)
		}
		put(t, reader, key, time.Hour)
	})
}

func TestStore_Ring(t *testing.T) {
	shards := map[string]string{"a": testserver.Redis(t).Addr, "b": testserver.Redis(t).Addr}
	rdb := redis.NewRing(&redis.RingOptions{Addrs: shards, ReadTimeout: 20 * time.Second})
	defer rdb.Close()
	writer, reader := New(rdb), New(rdb)
	writer.Prefix = "test:" + adapter.Token() + ":"
	reader.Prefix = writer.Prefix
	for i := range 20 {
		key := fmt.Sprint(i)
		put(t, writer, key, time.Hour)
		if _, err := reader.Get(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
}

// put claims and commits, and returns what it committed.
func put(tb testing.TB, s *Store, key string, ttl time.Duration) bellwether.Entry {
	tb.Helper()
	_, epoch, err := s.Claim(tb.Context(), key)
	if err != nil {
		tb.Fatal(err)
	}
	e := bellwether.Entry{Kind: bellwether.KindValue, Value: []byte("v"), Epoch: epoch, TTL: ttl}
	if err := s.Commit(tb.Context(), key, e); err != nil {
		tb.Fatal(err)
	}
	return e
}

// commands returns how often the server ran each command while f ran, those
// inside scripts included.
func commands(tb testing.TB, rdb *redis.Client, f func()) (total int, each string) {
	tb.Helper()
	ctx := tb.Context()
	if err := rdb.ConfigResetStat(ctx).Err(); err != nil {
		tb.Fatal(err)
	}
	f()
	info, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		tb.Fatal(err)
	}
	var list []string
	for _, m := range regexp.MustCompile(`(?m)^cmdstat_(\S+?):calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		switch name, _, _ := strings.Cut(m[1], "|"); name {
		case "config", "info", "hello", "client": // ours, and a connection's beginning
			continue
		}
		var n int
		fmt.Sscan(m[2], &n)
		total += n
		list = append(list, m[1]+" "+m[2])
	}
	return total, strings.Join(list, ", ")
}

func TestStore_Commands(t *testing.T) {
	srv := own(t)
	s, _ := open(t, srv.Addr, "test:")
	_, admin := open(t, srv.Addr, "")
	ctx := t.Context()
	put(t, s, "warm", time.Hour) // the scripts are loaded
	if err := s.Invalidate(ctx, "warm"); err != nil {
		t.Fatal(err)
	}

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
			if errors.Is(err, bellwether.ErrNotFound) {
				err = nil
			}
			return err
		}
	}
	var e bellwether.Entry
	expect("a miss", 1, get(s))
	expect("a claim", 4, func() (err error) {
		_, e.Epoch, err = s.Claim(ctx, "k")
		return err
	})
	e.Kind, e.Value, e.TTL = bellwether.KindValue, []byte("v"), time.Hour
	expect("a commit", 6, func() error { return s.Commit(ctx, "k", e) })
	expect("the same commit again", 3, func() error { return s.Commit(ctx, "k", e) })
	expect("a hit", 1, get(s))

	// A process that only reads asks for the time once in a while.
	reader, _ := open(t, srv.Addr, "test:")
	expect("the first hit of a reader", 2, get(reader))
	expect("its second hit", 1, get(reader))
	expect("a claim of an entry", 4, func() error {
		got, epoch, err := s.Claim(ctx, "k")
		if err == nil && (string(got.Value) != "v" || epoch <= e.Epoch) {
			err = fmt.Errorf("entry %+v, epoch %d", got, epoch)
		}
		return err
	})
	expect("an invalidation", 6, func() error { return s.Invalidate(ctx, "k") })
	expect("a fenced commit", 2, func() error {
		if err := s.Commit(ctx, "k", e); !errors.Is(err, bellwether.ErrFenced) {
			return fmt.Errorf("err = %v, want ErrFenced", err)
		}
		return nil
	})
}

// TestStore_ForeignType puts a list where an entry, or the counter, should be.
func TestStore_ForeignType(t *testing.T) {
	s, rdb := open(t, testserver.Redis(t).Addr, "test:"+adapter.Token()+":")
	reader, _ := open(t, rdb.Options().Addr, s.Prefix)
	ctx := t.Context()
	for i, name := range s.names("k") {
		before := put(t, s, "k", time.Hour)
		rdb.Del(ctx, name)
		if err := rdb.LPush(ctx, name, "x").Err(); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			for _, s := range []*Store{reader, s} { // with TIME along, and without
				if _, err := s.Get(ctx, "k"); !errors.Is(err, bellwether.ErrCorrupt) {
					t.Errorf("Get of a list: err = %v, want ErrCorrupt", err)
				}
			}
		} else if err := s.Commit(ctx, "k", before); !errors.Is(err, bellwether.ErrFenced) {
			t.Errorf("Commit with a list for a counter: err = %v, want ErrFenced", err)
		}
		if after := put(t, s, "k", time.Hour); after.Epoch <= before.Epoch {
			t.Errorf("epoch %d after %d", after.Epoch, before.Epoch)
		}
		rdb.Del(ctx, name)
		rdb.LPush(ctx, name, "x")
		if err := s.Invalidate(ctx, "k"); err != nil {
			t.Errorf("Invalidate over a list: %v", err)
		}
		put(t, s, "k", time.Hour)
		if _, err := s.Get(ctx, "k"); err != nil {
			t.Errorf("Get after the repair: %v", err)
		}
	}
}

// TestStore_ForeignCounter puts texts where the counter should be: none stops
// claims from rising and commits from passing.
func TestStore_ForeignCounter(t *testing.T) {
	s, rdb := open(t, testserver.Redis(t).Addr, "test:"+adapter.Token()+":")
	ctx := t.Context()
	last := put(t, s, "k", time.Hour)
	for _, text := range []string{"", "x", "1", "-1 -1", "1 2", "nan nan", "9007199254740992 1", "18446744073709551615 18446744073709551615", strings.Repeat("9", 400) + " 1", "5 3"} {
		if err := rdb.Set(ctx, s.names("k")[1], text, 0).Err(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			e := put(t, s, "k", time.Hour)
			if e.Epoch <= last.Epoch || e.Epoch > 1<<52 {
				t.Fatalf("counter %q: epoch %d after %d", text, e.Epoch, last.Epoch)
			}
			last = e
		}
	}
}

// TestStore_EpochOfTheEntryIsRead loses the counter of an entry from a server
// whose clock was ahead: the header is where the script looks for it.
func TestStore_EpochOfTheEntryIsRead(t *testing.T) {
	s, rdb := open(t, testserver.Redis(t).Addr, "test:"+adapter.Token()+":")
	ctx := t.Context()
	const ahead = 1<<52 - 7
	names := s.names("k")
	for what, first := range map[string]func() error{
		"a claim":                     func() error { return nil },
		"an invalidation and a claim": func() error { return s.Invalidate(ctx, "k") },
	} {
		e := bellwether.Entry{Kind: bellwether.KindValue, Epoch: ahead, TTL: math.MaxInt64}
		data, _ := e.AppendBinary([]byte("0000000000000001"))
		if err := rdb.Set(ctx, names[0], data, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.Del(ctx, names[1]).Err(); err != nil {
			t.Fatal(err)
		}
		if err := first(); err != nil {
			t.Fatal(err)
		}
		if _, epoch, err := s.Claim(ctx, "k"); err != nil || epoch <= ahead {
			t.Errorf("%s after the counter of epoch %d was lost: epoch %d, err = %v", what, uint64(ahead), epoch, err)
		}
	}
}

func TestStore_ServersClockSetBack(t *testing.T) {
	s, rdb := open(t, testserver.Redis(t).Addr, "test:"+adapter.Token()+":")
	e := bellwether.Entry{Kind: bellwether.KindValue, Value: []byte("v"), Epoch: 1, Age: time.Second, TTL: time.Minute}
	data, _ := e.AppendBinary([]byte("4000000000000000")) // in 2096
	if err := rdb.Set(t.Context(), s.names("k")[0], data, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(t.Context(), "k"); err != nil || got.Age != time.Second {
		t.Errorf("Get of an entry from the future: Age = %v, err = %v, want the Age of its commit", got.Age, err)
	}
}

func TestStore_ExpiresInRedis(t *testing.T) {
	s, rdb := open(t, testserver.Redis(t).Addr, "test:"+adapter.Token()+":")
	ctx := t.Context()
	names := s.names("k")
	for _, ttl := range []time.Duration{time.Second + 1, time.Hour, 90 * 24 * time.Hour, math.MaxInt64} {
		put(t, s, "k", ttl)
		want := milliseconds(ttl)
		if got := rdb.Do(ctx, "PTTL", names[0]).Val().(int64); got > want || got < want-30_000 {
			t.Errorf("an entry of life %v has a PTTL of %d ms, want %d", ttl, got, want)
		}
		if got := rdb.PTTL(ctx, names[1]).Val(); got > retention || got < retention-30*time.Second {
			t.Errorf("the counter has a PTTL of %v, want %v", got, retention)
		}
	}
	if got := milliseconds(time.Second + 1); got != 1001 {
		t.Errorf("milliseconds(1s + 1ns) = %d, want 1001", got)
	}
	put(t, s, "k", 20*time.Millisecond)
	for n := 0; rdb.Exists(ctx, names[0]).Val() != 0; n++ {
		if n == 1000 {
			t.Fatal("an entry of 20 ms is still in Redis after 5 s")
		}
		time.Sleep(5 * time.Millisecond) // the server's clock is a real one
	}
}

func TestStore_ServerHangs(t *testing.T) {
	srv := own(t)
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
	srv := own(t)
	// Left to its defaults, this client tries 20 times before it gives up.
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	s := New(rdb)
	put(t, s, "down", time.Hour)
	srv.Kill()
	storetest.Down(t, s)
}

// TestStore_ScriptsForgotten has the server lose its scripts under load, as it
// does when it is restarted or told to.
func TestStore_ScriptsForgotten(t *testing.T) {
	srv := own(t)
	s, rdb := open(t, srv.Addr, "test:")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 30 {
				if _, _, err := s.Claim(t.Context(), fmt.Sprint(i)); err != nil {
					t.Errorf("Claim: %v", err)
				}
			}
		})
	}
	for range 10 {
		if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
}

func FuzzDecode(f *testing.F) {
	data, _ := bellwether.Entry{Kind: bellwether.KindValue, Value: []byte("v"), TTL: time.Hour}.AppendBinary([]byte("1760000000000000"))
	f.Add(data, int64(1760000000000001000))
	f.Add([]byte("+760000000000000BW"), int64(-1))
	f.Add([]byte("9999999999999999"), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, data []byte, now int64) {
		e, err := decode(data, time.Duration(now))
		switch {
		case err == nil && (e.Life() <= 0 || e.Age < 0):
			t.Fatalf("decoded %+v, whose life is over", e)
		case err != nil && !errors.Is(err, bellwether.ErrCorrupt) && !errors.Is(err, bellwether.ErrNotFound):
			t.Fatal(err)
		}
	})
}

func FuzzNotice(f *testing.F) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // never dialled
	f.Cleanup(func() { rdb.Close() })
	s := New(rdb)
	s.clockOf("").see(sighting{server: 1 << 40, sent: time.Now().Add(time.Hour)}) // recent while the fuzzer runs
	entry, _ := bellwether.Entry{Kind: bellwether.KindValue, Value: []byte("v"), Epoch: 7}.AppendBinary(nil)
	for _, seed := range []string{"", "c", "i" + strings.Repeat("0", 40), "c000000000000000100000000000000070000000" + "3key", "x" + strings.Repeat("9", 60)} {
		f.Add([]byte(seed))
		f.Add(append([]byte(seed), entry...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := s.notice(t.Context(), data)
		if err == nil && (n.Made.After(time.Now()) || n.Entry.Age < 0 && n.Entry.Epoch != 0 || len(n.Key) > len(data)) {
			t.Fatalf("%q is %+v", data, n)
		}
	})
}
