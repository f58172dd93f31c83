package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
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
