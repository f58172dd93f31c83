package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// TestGetMany_OneCommand reads 100 entries through a Cache: one MGET, in one round
// trip, and the time beside it for a process that has not asked before.
func TestGetMany_OneCommand(t *testing.T) {
	srv := own(t)
	_, admin := open(t, srv.Addr, "")
	writer, _ := open(t, srv.Addr, "test:")
	var keys []string
	for i := range 100 {
		key := fmt.Sprint("key ", i)
		keys = append(keys, key)
		put(t, writer, key, time.Hour)
	}
	meter := testserver.NewMeter(t, srv)
	s, rdb := open(t, meter.Addr, "test:")
	if err := rdb.Ping(t.Context()).Err(); err != nil { // the connection's beginning
		t.Fatal(err)
	}
	for _, want := range []map[string]int{{"mget": 1, "time": 1}, {"mget": 2, "time": 1}} {
		o := bellwether.Options{TTL: time.Hour, Store: struct { // without its notices
			bellwether.Store
			bellwether.BatchGetter
		}{s, s}}
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
		if total > 2 {
			t.Errorf("%d commands: %s", total, each)
		}
		if got := meter.RoundTrips() - trips; got != 1 {
			t.Errorf("%d round trips, want 1", got)
		}
		for kind, n := range want {
			if got := meter.Requests()[kind]; got != n {
				t.Errorf("%d times %s in all, want %d", got, kind, n)
			}
		}
	}
}

// TestGetMany_Cluster reads keys of both servers, also when one of them knows
// better than the client where some are.
func TestGetMany_Cluster(t *testing.T) {
	connect, nodes := cluster(t)
	ctx := t.Context()
	rdb := connect(t)
	reader, writer := New(rdb), New(connect(t))
	var keys []string
	on := map[string]int{}
	for i := range 60 {
		key := fmt.Sprint("k", i)
		keys = append(keys, key)
		if nodes[0].ClusterKeySlot(ctx, reader.names(key)[0]).Val() >= 8192 {
			on[key] = 1
		}
		put(t, writer, key, time.Hour)
	}
	want := func(missing string) {
		t.Helper()
		var mu sync.Mutex
		reader.GetMany(ctx, keys, func(i int, e bellwether.Entry, err error) {
			mu.Lock()
			defer mu.Unlock()
			if keys[i] == missing {
				if !errors.Is(err, bellwether.ErrNotFound) {
					t.Errorf("%q: %v", keys[i], err)
				}
			} else if err != nil || string(e.Value) != "v" {
				t.Errorf("%q: %q, %v", keys[i], e.Value, err)
			}
		})
	}
	want("")
	var moved string
	for _, key := range keys {
		if on[key] == 0 {
			moved = key
			break
		}
	}
	// What is there of it goes, as its slot does.
	if err := nodes[0].Del(ctx, reader.names(moved)...).Err(); err != nil {
		t.Fatal(err)
	}
	id, err := nodes[1].Do(ctx, "CLUSTER", "MYID").Text()
	if err != nil {
		t.Fatal(err)
	}
	slot := nodes[0].ClusterKeySlot(ctx, reader.names(moved)[0]).Val()
	for _, node := range []*redis.Client{nodes[1], nodes[0]} {
		if err := node.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", id).Err(); err != nil {
			t.Fatal(err)
		}
	}
	want(moved)
	put(t, writer, moved, time.Hour)
	want("")
}
