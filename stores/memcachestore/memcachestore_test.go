package memcachestore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/stores/storetest"
	"github.com/bradfitz/gomemcache/memcache"
	"go.uber.org/goleak"
)

// The suite finds optional interfaces by assertion.
var _ driver.Fencer = (*Store)(nil)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ driver.Store       = (*Store)(nil)
	_ driver.BatchGetter = (*Store)(nil)
)

func open(tb testing.TB, prefix string, addrs ...string) *Store {
	tb.Helper()
	mc := memcache.New(addrs...)
	mc.MaxIdleConns, mc.Timeout = 128, 20*time.Second
	tb.Cleanup(func() { mc.Close() })
	s := New(mc)
	s.Prefix = prefix
	return s
}

func instance(tb testing.TB, addrs ...string) storetest.Instance {
	prefix := "test:" + adapter.Token() + ":"
	admin := open(tb, prefix, addrs...)
	remove := func(tb testing.TB, name string) {
		tb.Helper()
		if err := admin.mc.Delete(name); err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
			tb.Fatal(err)
		}
	}
	return storetest.Instance{
		Batches: true,
		Open:    func(tb testing.TB) driver.Store { return open(tb, prefix, addrs...) },
		Evict: func(tb testing.TB, key string) {
			remove(tb, admin.names(key).v)
			remove(tb, admin.names(key).m)
		},
		EvictCounter: func(tb testing.TB, key string) { remove(tb, admin.names(key).m) },
		Mix: func(tb testing.TB, from, to string) {
			item, err := admin.mc.Get(admin.names(from).v)
			if err == nil {
				err = admin.mc.Set(&memcache.Item{Key: admin.names(to).v, Value: item.Value})
			}
			if err != nil {
				tb.Fatal(err)
			}
		},
		Poison: func(tb testing.TB, key string, data []byte) {
			if err := admin.mc.Set(&memcache.Item{Key: admin.names(key).v, Value: data}); err != nil {
				tb.Fatal(err)
			}
		},
		TooLarge: 1 << 20,
	}
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(tb testing.TB) storetest.Instance {
		srv := testserver.Memcached(tb)
		i := instance(tb, srv.Addr)
		if srv.Own() {
			i.Restart = func(testing.TB) { srv.Restart() }
		}
		return i
	})
}

// three starts three servers: many keys have their entry on one and their floor on another. (With
// two, the client's hash, a linear checksum, would put both on the same one.)
func three(tb testing.TB) []string {
	tb.Helper()
	var addrs []string
	for range 3 {
		addrs = append(addrs, testserver.Memcached(tb).OwnOrSkip(tb).Addr)
	}
	return addrs
}

func TestStore_ManyServers(t *testing.T) {
	storetest.Run(t, func(tb testing.TB) storetest.Instance { return instance(tb, three(tb)...) })
}

// TestStore_OneOfManyServersIsLost has each of three servers come back empty. No value from before an
// invalidation or below a later claim is committed or served, and the next rebuild is accepted.
func TestStore_OneOfManyServersIsLost(t *testing.T) {
	servers := []*testserver.Server{testserver.Memcached(t).OwnOrSkip(t), testserver.Memcached(t).OwnOrSkip(t), testserver.Memcached(t).OwnOrSkip(t)}
	prefix := "test:" + adapter.Token() + ":"
	s := open(t, prefix, servers[0].Addr, servers[1].Addr, servers[2].Addr)
	ctx := t.Context()
	at := func(addr, name string) bool {
		_, err := open(t, prefix, addr).mc.Get(name)
		return err == nil
	}
	const keys = 30
	seen := map[[2]bool]int{}
	for round, srv := range servers {
		type state struct {
			last   driver.Entry // as committed
			late   uint64       // of an open claim
			served bool         // last may be served
			lost   [2]bool      // its entry, its floor
		}
		states := map[string]*state{}
		for i := range keys {
			key := fmt.Sprint(round, "-", i)
			st := &state{last: put(t, s, key, "old", time.Hour), served: true}
			st.late = claim(t, s, key)
			if i%3 == 1 {
				invalidate(t, s, key)
				st.served = false
			}
			if i%3 == 2 {
				st.last = put(t, s, key, "newer", time.Hour)
			}
			n := s.names(key)
			st.lost = [2]bool{st.served && at(srv.Addr, n.v), at(srv.Addr, n.m)}
			states[key] = st
		}
		srv.Kill()
		for key, st := range states {
			e, err := s.Get(ctx, key)
			if err == nil && (!st.served || e.Epoch != st.last.Epoch) {
				t.Errorf("Get(%s) with a dead server: epoch %d, %q", key, e.Epoch, e.Value)
			}
		}
		srv.Start()
		for key, st := range states {
			seen[st.lost]++
			// The old connections are found dead one by one.
			err := errors.New("not asked")
			var e driver.Entry
			for range 300 {
				if e, err = s.Get(ctx, key); err == nil || errors.Is(err, driver.ErrNotFound) {
					break
				}
			}
			lost := st.lost[0] || st.lost[1]
			if keep := st.served && !lost; keep && (err != nil || e.Epoch != st.last.Epoch) || !keep && !errors.Is(err, driver.ErrNotFound) {
				t.Errorf("Get(%s), lost %v, served before %v: epoch %d of %d, %v", key, st.lost, st.served, e.Epoch, st.last.Epoch, err)
			}
			// The old claim may commit only if no later change can have been forgotten.
			err = s.Commit(ctx, key, value(st.late, "late", time.Hour))
			if ok := st.served && st.last.Epoch < st.late && !st.lost[1]; ok != (err == nil) || err != nil && !errors.Is(err, driver.ErrFenced) {
				t.Errorf("Commit(%s) of a claim of before, lost %v, served before %v: %v", key, st.lost, st.served, err)
			}
			next := put(t, s, key, "next", time.Hour)
			if next.Epoch <= max(st.late, st.last.Epoch) {
				t.Errorf("%s: epoch %d after %d and %d, lost %v", key, next.Epoch, st.last.Epoch, st.late, st.lost)
			}
			if err := s.Commit(ctx, key, value(st.late, "late", time.Hour)); !errors.Is(err, driver.ErrFenced) {
				t.Errorf("Commit(%s) of a claim of before the next: %v, want ErrFenced", key, err)
			}
			if e, err := s.Get(ctx, key); err != nil || e.Epoch != next.Epoch {
				t.Errorf("Get(%s): epoch %d, %v, want %d", key, e.Epoch, err, next.Epoch)
			}
		}
	}
	t.Logf("lost entry and floor of %d keys, the entry of %d, the floor of %d, nothing of %d",
		seen[[2]bool{true, true}], seen[[2]bool{true, false}], seen[[2]bool{false, true}], seen[[2]bool{}])
	if seen[[2]bool{true, false}] == 0 || seen[[2]bool{false, true}] == 0 || seen[[2]bool{}] == 0 {
		t.Error("the keys are not spread over the servers: the test tests too little")
	}
}

func value(epoch uint64, text string, ttl time.Duration) driver.Entry {
	return driver.Entry{Kind: driver.KindValue, Value: []byte(text), Epoch: epoch, TTL: ttl}
}

func claim(tb testing.TB, s *Store, key string) uint64 {
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

func put(tb testing.TB, s *Store, key, text string, ttl time.Duration) driver.Entry {
	tb.Helper()
	e := value(claim(tb, s, key), text, ttl)
	commit(tb, s, key, e)
	return e
}

// A conn calls write before a write, and read after a read, unless they are nil.
type conn struct {
	net.Conn
	write, read func()
}

func (c conn) Write(b []byte) (int, error) {
	if c.write != nil {
		c.write()
	}
	return c.Conn.Write(b)
}

func (c conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.read != nil {
		c.read()
	}
	return n, err
}

// between returns a store over s's server that sends its nth request, counted from 1, only after
// hook has returned. A request is one write of up to 4 KiB.
func between(tb testing.TB, s *Store, addr string, n int, hook func()) *Store {
	tb.Helper()
	slow := open(tb, s.Prefix, addr)
	slow.mc.MaxIdleConns = 1
	slow.mc.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		writes := 0
		return conn{Conn: c, write: func() {
			if writes++; writes == n {
				hook()
			}
		}}, err
	}
	return slow
}

// TestCommit_Interleaved has others act between a commit's steps: read, write, read the floor, raise.
func TestCommit_Interleaved(t *testing.T) {
	srv := testserver.Memcached(t)
	const steps = 4
	type others struct {
		name string
		act  func(s *Store, key string, mine driver.Entry) (least uint64) // least: the lowest epoch to be served from then on
		want error                                                        // of the commit
		gone int                                                          // the step from which on no entry is left, or 0
	}
	fenced := driver.ErrFenced
	for _, o := range []others{
		{
			name: "a later commit",
			act:  func(s *Store, key string, mine driver.Entry) uint64 { return put(t, s, key, "later", time.Hour).Epoch },
			want: fenced,
		},
		{
			name: "an invalidation",
			act: func(s *Store, key string, mine driver.Entry) uint64 {
				invalidate(t, s, key)
				return mine.Epoch + 1
			},
			want: fenced,
			gone: 1,
		},
		{
			name: "a commit of nothing",
			act: func(s *Store, key string, mine driver.Entry) uint64 {
				e := driver.Entry{Epoch: claim(t, s, key)}
				commit(t, s, key, e)
				return e.Epoch
			},
			want: fenced,
			gone: 1,
		},
		{
			name: "an eviction of the counter",
			act: func(s *Store, key string, mine driver.Entry) uint64 {
				s.mc.Delete(s.names(key).m)
				return mine.Epoch + 1
			},
			want: fenced,
			gone: 1,
		},
		{
			name: "an eviction of the counter, and a claim",
			act: func(s *Store, key string, mine driver.Entry) uint64 {
				s.mc.Delete(s.names(key).m)
				return claim(t, s, key)
			},
			want: fenced,
			gone: 1,
		},
		{
			name: "a claim",
			act: func(s *Store, key string, mine driver.Entry) uint64 {
				claim(t, s, key)
				return 0
			},
		},
		{
			name: "an eviction of the entry",
			act: func(s *Store, key string, mine driver.Entry) uint64 {
				s.mc.Delete(s.names(key).v)
				return 0
			},
			gone: 3, // it was mine
		},
		{
			name: "another attempt at the same commit",
			act: func(s *Store, key string, mine driver.Entry) uint64 {
				commit(t, s, key, mine)
				return mine.Epoch
			},
		},
		{
			name: "the same, and a later commit",
			act: func(s *Store, key string, mine driver.Entry) uint64 {
				commit(t, s, key, mine)
				return put(t, s, key, "later", time.Hour).Epoch
			},
			want: fenced,
		},
	} {
		for step := 1; step <= steps; step++ {
			t.Run(fmt.Sprintf("%s before step %d", o.name, step), func(t *testing.T) {
				s := open(t, "test:"+adapter.Token()+":", srv.Addr)
				put(t, s, "k", "old", time.Hour)
				mine := value(claim(t, s, "k"), "mine", time.Hour)
				var least atomic.Uint64
				acted := false
				slow := between(t, s, srv.Addr, step, func() {
					acted = true
					least.Store(o.act(s, "k", mine))
				})
				err := slow.Commit(t.Context(), "k", mine)
				if !acted {
					t.Fatalf("the commit took fewer than %d requests", step)
				}
				if !errors.Is(err, o.want) {
					t.Errorf("Commit: %v, want %v", err, o.want)
				}
				got, err := s.Get(t.Context(), "k")
				if err != nil && !errors.Is(err, driver.ErrNotFound) {
					t.Fatal(err)
				}
				if err == nil && got.Epoch < least.Load() {
					t.Errorf("epoch %d is served, want at least %d", got.Epoch, least.Load())
				}
				if v, err := s.mc.Get(s.names("k").v); err == nil && o.want != nil {
					if e, _, _ := decode("k", v.Value); e.Epoch == mine.Epoch {
						t.Error("what the refused commit wrote is still there")
					}
				}
				if gone := o.gone > 0 && step >= o.gone; gone != (err != nil) {
					t.Errorf("Get: %v, want none = %v", err, gone)
				}
				if next := put(t, s, "k", "next", time.Hour); next.Epoch <= mine.Epoch {
					t.Errorf("epoch %d after %d", next.Epoch, mine.Epoch)
				} else if got, err := s.Get(t.Context(), "k"); err != nil || got.Epoch != next.Epoch {
					t.Errorf("Get after the next commit: epoch %d, %v", got.Epoch, err)
				}
			})
		}
	}
}

// TestInvalidate_Interleaved commits between the steps of an invalidation: read, raise, read, remove.
func TestInvalidate_Interleaved(t *testing.T) {
	srv := testserver.Memcached(t)
	for step := 1; step <= 4; step++ {
		t.Run(fmt.Sprint("before step ", step), func(t *testing.T) {
			s := open(t, "test:"+adapter.Token()+":", srv.Addr)
			put(t, s, "k", "old", time.Hour)
			before := value(claim(t, s, "k"), "before", time.Hour)
			acted := false
			var newer driver.Entry
			slow := between(t, s, srv.Addr, step, func() {
				acted = true
				err := s.Commit(t.Context(), "k", before)
				if step <= 2 && err != nil || step > 2 && !errors.Is(err, driver.ErrFenced) {
					t.Errorf("Commit: %v", err)
				}
				if step > 2 { // the invalidation is in force: this is after it
					newer = put(t, s, "k", "newer", time.Hour)
				}
			})
			invalidate(t, slow, "k")
			if !acted {
				t.Fatalf("the invalidation took fewer than %d requests", step)
			}
			got, err := s.Get(t.Context(), "k")
			if step <= 2 && !errors.Is(err, driver.ErrNotFound) {
				t.Errorf("Get: epoch %d, %v, want ErrNotFound", got.Epoch, err)
			}
			if step > 2 && (err != nil || got.Epoch != newer.Epoch) {
				t.Errorf("Get: epoch %d, %v: a newer entry was removed", got.Epoch, err)
			}
			if err := s.Commit(t.Context(), "k", before); !errors.Is(err, driver.ErrFenced) {
				t.Errorf("Commit of a claim before: %v, want ErrFenced", err)
			}
		})
	}
}

// TestGet_CrashBetweenTheSteps leaves an entry as after a writer's death before it raised the
// floor, or before it removed its entry.
func TestGet_CrashBetweenTheSteps(t *testing.T) {
	s := open(t, "test:"+adapter.Token()+":", testserver.Memcached(t).Addr)
	ctx := t.Context()
	write := func(e driver.Entry) {
		t.Helper()
		data := e.Append(fmt.Appendf(nil, "%d", time.Now().UnixMicro()), "k")
		if err := s.mc.Set(&memcache.Item{Key: s.names("k").v, Value: data}); err != nil {
			t.Fatal(err)
		}
	}
	half := value(claim(t, s, "k"), "half", time.Hour)
	write(half)
	if e, err := s.Get(ctx, "k"); err != nil || e.Epoch != half.Epoch {
		t.Errorf("Get of a commit that came half the way: epoch %d, %v", e.Epoch, err)
	}
	commit(t, s, "k", half) // the same commit again

	invalidate(t, s, "k")
	write(half)
	if _, err := s.Get(ctx, "k"); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Get of what an invalidation has disowned: %v, want ErrNotFound", err)
	}
	if e, _, err := s.Claim(ctx, "k"); err != nil || e.Epoch != 0 {
		t.Errorf("Claim returned what an invalidation has disowned: epoch %d, %v", e.Epoch, err)
	}
	s.mc.Delete(s.names("k").m)
	for what := range 2 { // without a floor, and with the floor of the claim
		if _, err := s.Get(ctx, "k"); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("%d: Get of what an invalidation has disowned, whose floor is lost: %v", what, err)
		}
		claim(t, s, "k")
	}

	// As with a clock that is behind: the lost counter's epochs are above the time.
	future := value(uint64(time.Now().Add(time.Hour).UnixMicro()), "future", 24*time.Hour)
	write(future)
	s.mc.Delete(s.names("k").m)
	next := put(t, s, "k", "next", time.Hour)
	if e, err := s.Get(ctx, "k"); err != nil || next.Epoch <= future.Epoch || e.Epoch != next.Epoch {
		t.Errorf("after the epoch %d: committed %d, Get %d, %v", future.Epoch, next.Epoch, e.Epoch, err)
	}
}

// TestGet_OvertakenBetweenServers commits between the reads of entry and floor: the key stays present.
func TestGet_OvertakenBetweenServers(t *testing.T) {
	// With two servers, both items would be on the same one: see three.
	addrs := []string{testserver.Memcached(t).Addr, testserver.Memcached(t).Addr, testserver.Memcached(t).Addr}
	s := open(t, "test:"+adapter.Token()+":", addrs...)
	var servers memcache.ServerList
	if err := servers.SetServers(addrs...); err != nil {
		t.Fatal(err)
	}
	var key, floorAt, entryAt string
	for i := range 100 {
		key = fmt.Sprint("k", i)
		v, _ := servers.PickServer(s.names(key).v)
		m, _ := servers.PickServer(s.names(key).m)
		if floorAt, entryAt = m.String(), v.String(); floorAt != entryAt {
			break
		}
	}
	if floorAt == entryAt {
		t.Fatal("the client keeps both items of all keys on one server")
	}
	put(t, s, key, "old", time.Hour)
	var entryRead, overtake sync.Once
	read := make(chan struct{})
	var newer driver.Entry
	slow := open(t, s.Prefix, addrs...)
	slow.mc.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if addr == floorAt {
			return conn{Conn: c, write: func() {
				overtake.Do(func() {
					<-read
					newer = put(t, s, key, "newer", time.Hour)
				})
			}}, err
		}
		return conn{Conn: c, read: func() { entryRead.Do(func() { close(read) }) }}, err
	}
	if e, err := slow.Get(t.Context(), key); err != nil || e.Epoch != newer.Epoch {
		t.Errorf("Get: epoch %d, %v, want the newer entry, %d", e.Epoch, err, newer.Epoch)
	}
}

func TestStore_RoundTrips(t *testing.T) {
	srv := testserver.Memcached(t)
	s := open(t, "test:"+adapter.Token()+":", srv.Addr)
	writes := 0
	s.mc.MaxIdleConns = 1
	s.mc.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return conn{Conn: c, write: func() { writes++ }}, err
	}
	ctx := t.Context()
	s.Get(ctx, "warm")
	last := writes
	expect := func(what string, want int) {
		t.Helper()
		if got := writes - last; got != want {
			t.Errorf("%s took %d round trips, want %d", what, got, want)
		}
		t.Logf("%s: %d", what, writes-last)
		last = writes
	}
	s.Get(ctx, "k")
	expect("a miss", 1)
	e := value(claim(t, s, "k"), "v", time.Hour)
	expect("a claim", 2)
	commit(t, s, "k", e)
	expect("a commit", 4)
	if _, err := s.Get(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	expect("a hit", 1)
	commit(t, s, "k", driver.Entry{Kind: driver.KindValue, Epoch: claim(t, s, "k")})
	expect("a claim, and a commit without a life in place of an entry", 2+5)
	commit(t, s, "k", value(claim(t, s, "k"), "v", time.Hour))
	expect("a claim and a commit", 2+4)
	invalidate(t, s, "k")
	expect("an invalidation", 4)
	invalidate(t, s, "k")
	expect("an invalidation of nothing", 3)
	if err := s.Commit(ctx, "k", e); !errors.Is(err, driver.ErrFenced) {
		t.Fatal(err)
	}
	expect("a fenced commit", 1)
}

// TestStore_LargestValue stores an entry of MaxValue bytes under the longest name.
func TestStore_LargestValue(t *testing.T) {
	s := open(t, strings.Repeat("p", 80), testserver.Memcached(t).Addr)
	key := strings.Repeat("k", 160)
	e := value(claim(t, s, key), "", time.Hour)
	fits := s.MaxValue - stampLen
	for n := fits; ; n-- {
		e.Value = make([]byte, n)
		if data := e.Append(nil, key); len(data) == fits {
			break
		}
	}
	commit(t, s, key, e)
	if got, err := s.Get(t.Context(), key); err != nil || !bytes.Equal(got.Value, e.Value) {
		t.Fatalf("Get: %d bytes, %v", len(got.Value), err)
	}
	e.Epoch = claim(t, s, key)
	e.Value = append(e.Value, 0)
	if err := s.Commit(t.Context(), key, e); !errors.Is(err, driver.ErrTooLarge) {
		t.Errorf("one byte more: %v, want ErrTooLarge", err)
	}
}

// TestStore_ServersLimitIsLower has the server refuse a value that MaxValue allows.
func TestStore_ServersLimitIsLower(t *testing.T) {
	srv := testserver.Memcached(t, "-I", "512k").OwnOrSkip(t)
	s := open(t, "test:", srv.Addr)
	s.MaxValue = 64 << 20
	old := put(t, s, "k", "old", time.Hour)
	for _, n := range []int{600 << 10, 8 << 20} {
		e := value(claim(t, s, "k"), string(make([]byte, n)), time.Hour)
		if err := s.Commit(t.Context(), "k", e); !errors.Is(err, driver.ErrTooLarge) {
			t.Fatalf("Commit of %d bytes: %v, want ErrTooLarge", n, err)
		}
		got, err := s.Get(t.Context(), "k")
		if err != nil && !errors.Is(err, driver.ErrNotFound) || err == nil && got.Epoch != old.Epoch {
			t.Fatalf("Get: epoch %d, %v, want the old entry or none", got.Epoch, err)
		}
	}
	put(t, s, "k", "small", time.Hour)
}

// TestStore_NoCompareAndSwap has every swap refused: no call retries, and the error has the reason.
func TestStore_NoCompareAndSwap(t *testing.T) {
	s := open(t, "test:", testserver.Memcached(t, "-C").OwnOrSkip(t).Addr)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	epoch := claim(t, s, "k")
	for what, call := range map[string]func() error{
		"Claim":      func() error { _, _, err := s.Claim(ctx, "k"); return err },
		"Commit":     func() error { return s.Commit(ctx, "k", value(epoch, "v", time.Hour)) },
		"Invalidate": func() error { return s.Invalidate(ctx, "k") },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "-C") {
			t.Errorf("%s: %v, want an error that says why", what, err)
		}
	}
}

// TestStore_ForeignCounter puts foreign bytes in the counter's place: claims rise, and commits pass.
func TestStore_ForeignCounter(t *testing.T) {
	s := open(t, "test:"+adapter.Token()+":", testserver.Memcached(t).Addr)
	last := put(t, s, "k", "v", time.Hour)
	for _, text := range []string{"", "x", "1", "-1 -1", "1 2", "1 1 1", "18446744073709551615 18446744073709551615", "99999999999999999999999 1", "5 3"} {
		if err := s.mc.Set(&memcache.Item{Key: s.names("k").m, Value: []byte(text)}); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			e := put(t, s, "k", "v", time.Hour)
			if e.Epoch <= last.Epoch || e.Epoch > maxNumber {
				t.Fatalf("counter %q: epoch %d after %d", text, e.Epoch, last.Epoch)
			}
			last = e
		}
	}
}

func TestStore_ExpiresInMemcached(t *testing.T) {
	s := open(t, "test:"+adapter.Token()+":", testserver.Memcached(t).Addr)
	const life = 50 * time.Millisecond
	start := time.Now()
	put(t, s, "k", "v", life)
	for {
		_, err := s.mc.Get(s.names("k").v)
		if errors.Is(err, memcache.ErrCacheMiss) {
			break
		}
		if time.Since(start) > life+10*time.Second {
			t.Fatal("an entry of 50 ms is still in memcached after 10 s")
		}
		time.Sleep(20 * time.Millisecond) // the server's clock is real
	}
	if _, err := s.mc.Get(s.names("k").m); err != nil {
		t.Errorf("the floor has gone before the entry: %v", err)
	}
	for d, want := range map[time.Duration]int32{
		1: 2, time.Second: 2, time.Second + 1: 3, time.Hour: 3601,
		longest*time.Second - time.Second: longest, longest * time.Second: longest, math.MaxInt64: longest,
	} {
		if got := expiration(d); got != want {
			t.Errorf("expiration(%v) = %d, want %d", d, got, want)
		}
	}
}

func TestStore_WritersClockAhead(t *testing.T) {
	s := open(t, "test:"+adapter.Token()+":", testserver.Memcached(t).Addr)
	e := value(claim(t, s, "k"), "v", time.Hour)
	e.Age = time.Minute
	data := e.Append(fmt.Appendf(nil, "%d", time.Now().Add(time.Hour).UnixMicro()), "k")
	if err := s.mc.Set(&memcache.Item{Key: s.names("k").v, Value: data}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(t.Context(), "k"); err != nil || got.Age != time.Minute {
		t.Errorf("Get of an entry from the future: Age = %v, %v, want the Age of its commit", got.Age, err)
	}
}

// A claim's swap may take long after the read of the entry.
func TestClaim_AgeAtTheEnd(t *testing.T) {
	const swap = 100 * time.Millisecond
	addr := testserver.Memcached(t).Addr
	s := open(t, "test:"+adapter.Token()+":", addr)
	put(t, s, "k", "v", time.Hour)
	slow := between(t, s, addr, 2, func() { time.Sleep(swap) }) // a real server
	if e, _, err := slow.Claim(t.Context(), "k"); err != nil || e.Age < swap {
		t.Errorf("Claim of an entry with a swap of %v: Age = %v, %v, want at least the swap's time", swap, e.Age, err)
	}
}

func TestStore_ServerHangs(t *testing.T) {
	srv := testserver.Memcached(t).OwnOrSkip(t)
	s := open(t, "test:", srv.Addr)
	put(t, s, "hang", "v", time.Hour)
	srv.Signal(syscall.SIGSTOP)
	defer srv.Signal(syscall.SIGCONT) // the calls left behind end before the leak check
	storetest.Hang(t, s)
}

// TestGetMany_OneOfManyServersHangs has a Timeout below the batch's: the other servers' answers come.
func TestGetMany_OneOfManyServersHangs(t *testing.T) {
	servers := []*testserver.Server{testserver.Memcached(t).OwnOrSkip(t), testserver.Memcached(t).OwnOrSkip(t), testserver.Memcached(t).OwnOrSkip(t)}
	var list memcache.ServerList
	if err := list.SetServers(servers[0].Addr, servers[1].Addr, servers[2].Addr); err != nil {
		t.Fatal(err)
	}
	hangs := servers[2]
	s := New(memcache.NewFromSelector(&list))
	t.Cleanup(func() { s.mc.Close() })
	at := func(name string) string {
		addr, err := list.PickServer(name)
		if err != nil {
			t.Fatal(err)
		}
		return addr.String()
	}
	var keys []string
	living := 0 // keys with both items away from the hanging server
	for i := range 40 {
		key := fmt.Sprintf("key %d", i)
		keys = append(keys, key)
		put(t, s, key, "v", time.Hour)
		if n := s.names(key); at(n.v) != hangs.Addr && at(n.m) != hangs.Addr {
			living++
		}
	}
	s.mc.Timeout = 100 * time.Millisecond
	hangs.Signal(syscall.SIGSTOP)
	defer hangs.Signal(syscall.SIGCONT)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var found atomic.Int64
	s.GetMany(ctx, keys, func(_ int, _ driver.Entry, err error) {
		if err == nil {
			found.Add(1)
		}
	})
	if n := int(found.Load()); n != living || living == 0 || living == len(keys) {
		t.Errorf("%d of %d keys were found, want the %d that need no server that hangs", n, len(keys), living)
	}
}

func TestStore_ServerDown(t *testing.T) {
	srv := testserver.Memcached(t).OwnOrSkip(t)
	s := open(t, "test:", srv.Addr)
	put(t, s, "down", "v", time.Hour)
	srv.Kill()
	storetest.Down(t, s)
}

// After an outage all of a client's idle connections are dead. The first call still succeeds.
func TestStore_ServerRestarted(t *testing.T) {
	srv := testserver.Memcached(t).OwnOrSkip(t)
	mc := memcache.New(srv.Addr)
	s := New(mc)
	openIdle(t, mc, s)
	srv.Restart()
	if _, err := s.Get(t.Context(), "k"); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Get: err = %v, want ErrNotFound", err)
	}
	put(t, s, "k", "v", time.Hour)
	srv.Restart()
	if fenced, err := s.Fenced(t.Context(), "k", 1); !fenced || err != nil {
		t.Errorf("Fenced: %t, %v; want true", fenced, err)
	}
}

// TestStore_OldConnectionsSilent has a router that forgets its connections: new connections work. The first call
// finds out.
func TestStore_OldConnectionsSilent(t *testing.T) {
	srv := testserver.Memcached(t)
	old := testserver.NewProxy(t, srv.Addr)
	var way atomic.Pointer[string]
	way.Store(&old.Addr)
	mc := memcache.New(srv.Addr)
	mc.Timeout = 100 * time.Millisecond
	mc.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, *way.Load())
	}
	s := New(mc)
	openIdle(t, mc, s)
	old.Set(testserver.BlackHole)
	way.Store(&srv.Addr)
	key := t.Name()
	if _, err := s.Get(t.Context(), key); err == nil || errors.Is(err, driver.ErrNotFound) {
		t.Fatalf("Get over a silent connection: err = %v, want a time-out", err)
	}
	if _, err := s.Get(t.Context(), key); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("the next Get: err = %v, want ErrNotFound over a new connection", err)
	}
}

// openIdle leaves mc, the client of s, with 20 idle connections.
func openIdle(t *testing.T, mc *memcache.Client, s *Store) {
	const idle = 20
	mc.MaxIdleConns = idle
	t.Cleanup(func() { mc.Close() })
	for range 2 { // opens that many connections
		var callers sync.WaitGroup
		for range 4 * idle {
			callers.Go(func() { s.Get(t.Context(), "k") })
		}
		callers.Wait()
	}
}

func FuzzDecode(f *testing.F) {
	data := value(1, "v", time.Hour).Append([]byte("1760000000000000"), "k")
	f.Add(data, []byte("5 3"))
	f.Add([]byte("+760000000000000BW"), []byte("1 1 1"))
	f.Add([]byte("9999999999999999"), []byte(" "))
	f.Fuzz(func(t *testing.T, v, m []byte) {
		it := items{v: &memcache.Item{Value: v}, m: &memcache.Item{Value: m}}
		it.entry, it.committed, it.corrupt = decode("k", v)
		it.counter, it.floor, it.known = parseMarks(it.m)
		if it.corrupt != nil && (!errors.Is(it.corrupt, driver.ErrCorrupt) || it.entry.Epoch != 0) {
			t.Fatalf("entry %+v, err = %v", it.entry, it.corrupt)
		}
		if e, ok := it.present(); ok && (e.Life() <= 0 || e.Age < 0 || e.Epoch < it.floor) {
			t.Fatalf("serves %+v", e)
		}
		if epoch, floor := it.next(); epoch <= floor || epoch <= it.counter || epoch <= it.entry.Epoch {
			t.Fatalf("epoch %d, floor %d after counter %d and the entry's epoch %d", epoch, floor, it.counter, it.entry.Epoch)
		}
	})
}

func TestNew_NoClient(t *testing.T) {
	leasetest.MustPanic(t, "memcachestore: New needs a client", func() { New(nil) })
}

// TestStore_InvalidateFull has a full memcached that evicts nothing (-M).
func TestStore_InvalidateFull(t *testing.T) {
	srv := testserver.Memcached(t, "-M", "-m", "2").OwnOrSkip(t)
	s := open(t, "test:", srv.Addr)
	e := put(t, s, "k", "v", time.Hour)
	late := claim(t, s, "k")
	// Until the smallest item of every class finds no room.
	var room []string
	for size := 100_000; size >= 1; size /= 2 {
		for i := 0; ; i++ {
			name := fmt.Sprint("room:", size, ":", i)
			if err := s.mc.Set(&memcache.Item{Key: name, Value: make([]byte, size)}); err != nil {
				break
			}
			room = append(room, name)
		}
	}
	invalidate(t, s, "k")
	if got, err := s.Get(t.Context(), "k"); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Get after Invalidate: %q, err = %v, want ErrNotFound", got.Value, err)
	}
	for _, name := range room {
		if err := s.mc.Delete(name); err != nil {
			t.Fatal(err)
		}
	}
	e.Epoch = late
	if err := s.Commit(t.Context(), "k", e); !errors.Is(err, driver.ErrFenced) {
		t.Errorf("Commit of a claim before Invalidate: err = %v, want ErrFenced", err)
	}
	if _, epoch, err := s.Claim(t.Context(), "k"); err != nil || epoch <= late {
		t.Errorf("Claim: epoch %d after %d, %v", epoch, late, err)
	}
}

// TestStore_InvalidateFullTombstone has a full memcached with room for a floor, and none for the item that
// replaces an entry until its removal.
func TestStore_InvalidateFullTombstone(t *testing.T) {
	srv := testserver.Memcached(t, "-M", "-m", "2").OwnOrSkip(t)
	s := open(t, "test:", srv.Addr)
	put(t, s, "k", "v", time.Hour)
	floors := 0 // items in the class of a floor
	for size := 100_000; size >= 1; size /= 2 {
		for i := 0; ; i++ {
			if err := s.mc.Set(&memcache.Item{Key: fmt.Sprint("room:", size, ":", i), Value: make([]byte, size)}); err != nil {
				break
			}
			if size == 48 {
				floors++
			}
		}
	}
	if floors == 0 {
		t.Fatal("no class has room for a floor alone")
	}
	if err := s.mc.Delete("room:48:0"); err != nil {
		t.Fatal(err)
	}
	invalidate(t, s, "k")
	if it, err := s.mc.Get(s.names("k").v); !errors.Is(err, memcache.ErrCacheMiss) {
		t.Errorf("the entry's item is %+v, err = %v, want none", it, err)
	}
	if it, err := s.mc.Get(s.names("k").m); err != nil || it == nil {
		t.Errorf("the floor's item: %v, so the test has no room for a floor", err)
	}
}

// TestStore_FloorsEnd sees floors kept for as long as their entries, or for an hour, and no longer.
func TestStore_FloorsEnd(t *testing.T) {
	srv := testserver.Memcached(t).OwnOrSkip(t)
	s := open(t, "test:", srv.Addr)
	ctx := t.Context()
	const hour, day = 3600, 24 * 3600
	wants := func(what, key string, least, most int) {
		t.Helper()
		if ttl := remaining(t, srv.Addr, s.names(key).m); ttl < least || ttl > most+2 {
			t.Errorf("%s: the floor is kept for %d s, want %d to %d", what, ttl, least, most)
		}
	}
	claim := func(key string) {
		t.Helper()
		if _, _, err := s.Claim(ctx, key); err != nil {
			t.Fatal(err)
		}
	}
	claim("claimed")
	wants("a claim", "claimed", hour-5, hour)
	put(t, s, "short", "v", time.Second)
	wants("a commit for a second", "short", hour-5, hour)
	put(t, s, "long", "v", 24*time.Hour)
	wants("a commit for a day", "long", day-5, day)
	claim("long")
	wants("a claim over an entry for a day", "long", day-5, day)
	invalidate(t, s, "long")
	wants("an invalidation", "long", hour-5, hour)
	put(t, s, "for ever", "v", math.MaxInt64)
	wants("a commit for ever", "for ever", longest-5, longest)
}

// remaining returns the remaining seconds of an item, by memcached's meta command.
func remaining(t *testing.T, addr, name string) (ttl int) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "mg %s t\r\n", name)
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil {
		_, err = fmt.Sscanf(line, "HD t%d", &ttl)
	}
	if err != nil {
		t.Fatalf("mg %s: %q, %v", name, line, err)
	}
	return ttl
}
