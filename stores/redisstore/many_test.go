package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// TestGetMany_Commands reads 100 entries through a Cache: one MGET. A process's first list also has a
// TIME, and asks for 16 keys alone, since the size of the values is unknown.
func TestGetMany_Commands(t *testing.T) {
	srv := testserver.Redis(t).OwnOrSkip(t)
	_, admin := open(t, srv.Addr, "")
	writer, _ := open(t, srv.Addr, "test:")
	var keys []string
	for i := range 100 {
		key := fmt.Sprint("key ", i)
		keys = append(keys, key)
		put(t, writer, "values:"+key, time.Hour)
	}
	meter := testserver.NewMeter(t, srv)
	s, rdb := open(t, meter.Addr, "test:")
	if err := rdb.Ping(t.Context()).Err(); err != nil { // opens the connection
		t.Fatal(err)
	}
	for i, want := range []map[string]int{{"mget": 2, "time": 1}, {"mget": 3, "time": 1}} {
		o := bellwether.Options{
			TTL: time.Hour, Fleet: bellwether.Fleet{Namespace: "values", Store: struct { // without notices
				driver.Store
				driver.BatchGetter
			}{s, s}},
		}
		c := bellwether.NewBatch(func(context.Context, []string) (map[string]string, error) { return nil, errors.New("loaded") }, o)
		total, each := 0, ""
		trips := meter.RoundTrips()
		total, each = commands(t, admin, func() {
			values, err := c.GetMany(t.Context(), keys)
			if err != nil || len(values) != 100 {
				t.Errorf("%d values, %v", len(values), err)
			}
		})
		c.Close()
		if total > 3 {
			t.Errorf("%d commands: %s", total, each)
		}
		if got := meter.RoundTrips() - trips; int(got) != 2-i {
			t.Errorf("%d round trips, want %d", got, 2-i)
		}
		for kind, n := range want {
			if got := meter.Requests()[kind]; got != n {
				t.Errorf("%d times %s in all, want %d", got, kind, n)
			}
		}
	}
}

// TestGetMany_Cluster reads keys of all servers, also after moves that the client does not know.
func TestGetMany_Cluster(t *testing.T) {
	t.Parallel()
	c := testserver.RedisCluster(t, 0)
	reader, writer := New(connect(t, c)), New(connect(t, c))
	var keys []string
	for i := range 60 {
		keys = append(keys, fmt.Sprint("k", i))
		put(t, writer, keys[i], time.Hour)
	}
	reads := func(when string) {
		t.Helper()
		var mu sync.Mutex
		reader.GetMany(t.Context(), keys, func(i int, e driver.Entry, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil || string(e.Value) != "v" {
				t.Errorf("%s: %q: %q, %v", when, keys[i], e.Value, err)
			}
		})
	}
	reads("at first")
	slot, from, to := c.Way(reader.name(keys[0]))
	c.Migrate(slot, from, to)
	reads("before a slot has moved")
	if n := c.Move(slot, from, to); n == 0 {
		t.Fatal("nothing has moved")
	}
	reads("while a slot moves")
	c.Settle(slot, from, to)
	reads("when a slot has moved")
	put(t, writer, keys[0], time.Hour)
	reads("when it was written again")
}

// TestGet_RefusedByAHook has a hook of the client's, such as a circuit breaker, refuse pipelines without an error at a
// command. The reads fail with the hook's error, and a time that no server has said makes no entry younger.
func TestGet_RefusedByAHook(t *testing.T) {
	server := testserver.Redis(t)
	w, _ := open(t, server.Addr, "p:")
	for _, key := range []string{"a", "b"} {
		if _, err := driver.Set(t.Context(), w, key, driver.Entry{Kind: driver.KindValue, Value: []byte("v"), TTL: 100 * time.Millisecond, Keep: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	refused := errors.New("the circuit breaker is open")
	many := func(s *Store) (err error) {
		s.GetMany(t.Context(), []string{"a", "b"}, func(_ int, _ driver.Entry, failure error) { err = failure })
		return err
	}
	for name, read := range map[string]func(s *Store) error{
		"Get": func(s *Store) error {
			_, err := s.Get(t.Context(), "a")
			return err
		},
		"GetMany":                               many,
		"GetMany with the error at one command": many,
	} {
		t.Run(name, func(t *testing.T) {
			s, rdb := open(t, server.Addr, "p:")
			var open atomic.Bool
			open.Store(true)
			rdb.AddHook(testserver.Hook(func(ctx context.Context, cmds []redis.Cmder, send func() error) error {
				if !open.Load() {
					return send()
				}
				if strings.HasSuffix(name, "command") {
					cmds[0].SetErr(refused)
				}
				return refused
			}))
			if err := read(s); err == nil || !strings.HasSuffix(name, "command") && !errors.Is(err, refused) {
				t.Errorf("while the breaker is open: %.200v; want the hook's error", err)
			}
			open.Store(false)
			time.Sleep(200 * time.Millisecond)
			if e, err := s.Get(t.Context(), "a"); err != nil || e.Fresh() || e.Age < 200*time.Millisecond {
				t.Errorf("afterwards: an entry of 200 ms with a TTL of 100 ms has the age %v (fresh: %v), %v", e.Age, e.Fresh(), err)
			}
		})
	}
}
