//go:build !race

package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

// This file tests the store over a slow line with large values.

// overLine returns a store, and another over a line of bytesPerSecond.
func overLine(t *testing.T, bytesPerSecond int) (near, far *Store) {
	t.Helper()
	srv := testserver.Redis(t)
	proxy := testserver.NewProxy(t, srv.Addr)
	near, _ = open(t, srv.Addr, "test:")
	far, rdb := open(t, proxy.Addr, "test:")
	if err := rdb.Ping(t.Context()).Err(); err != nil { // opens the connection
		t.Fatal(err)
	}
	proxy.SetRate(bytesPerSecond)
	return near, far
}

// fill commits n values of the size, under keys that begin with what.
func fill(t *testing.T, s *Store, what string, n, size int) (keys []string) {
	t.Helper()
	value := []byte(strings.Repeat("v", size))
	for i := range n {
		key := fmt.Sprint(what, i)
		keys = append(keys, key)
		commit(t, s, key, driver.Entry{Kind: driver.KindValue, Value: value, Epoch: claim(t, s, key), TTL: time.Hour})
	}
	return keys
}

// TestGetMany_LongRepliesInACache reads the same through a cache, which takes a store for down
// after half a second of silence: the cache finds all values, however long they take.
func TestGetMany_LongRepliesInACache(t *testing.T) {
	for _, of := range []struct{ keys, size int }{{1000, 50_000}, {100, 300_000}, {40, 900_000}} {
		t.Run(fmt.Sprintf("%d of %d bytes", of.keys, of.size), func(t *testing.T) {
			near, far := overLine(t, 60_000_000)
			var keys []string
			for _, key := range fill(t, near, "values:key ", of.keys, of.size) {
				keys = append(keys, strings.TrimPrefix(key, "values:"))
			}
			var loaded atomic.Int64
			c := bellwether.NewBatch(func(_ context.Context, keys []string) (map[string][]byte, error) {
				loaded.Add(int64(len(keys)))
				return nil, nil
			}, bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Store: far, Namespace: "values"}})
			defer c.Close()
			start := time.Now()
			values, err := c.GetMany(t.Context(), keys)
			t.Logf("%d values in %v", len(values), time.Since(start))
			if len(values) != len(keys) || loaded.Load() != 0 || err != nil {
				t.Errorf("%d of %d values, %d loaded, %v; want all from the store", len(values), len(keys), loaded.Load(), err)
			}
		})
	}
}

// TestGet_BesideLongReplies reads short values beside long ones: the short ones do not wait.
func TestGet_BesideLongReplies(t *testing.T) {
	near, far := overLine(t, 100_000_000)
	long := fill(t, near, "key ", 1, 4_000_000)[0]
	put(t, near, "short", time.Hour)
	if _, err := far.Get(t.Context(), "short"); err != nil { // lets far learn the server's clock
		t.Fatal(err)
	}
	// Judged by the median of several rounds: a busy machine is slow now and then, a queue behind
	// long replies most of the time.
	var rounds []time.Duration
	for range 5 {
		rounds = append(rounds, beside(t, far, long, 2))
	}
	slices.Sort(rounds)
	if limit := max(25*time.Millisecond, 4*beside(t, far, long, 0)); rounds[2] > limit {
		t.Errorf("p95 of short values beside long ones is %v, want less than %v", rounds[2], limit)
	}
}

// beside returns the 95th percentile of short reads while readersOfLong goroutines read long values.
func beside(t *testing.T, s *Store, long string, readersOfLong int) time.Duration {
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range readersOfLong {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
				if e, err := s.Get(t.Context(), long); err != nil || len(e.Value) != 4_000_000 {
					t.Errorf("a long value: %d bytes, %v", len(e.Value), err)
					return
				}
			}
		})
	}
	var mu sync.Mutex // guards took
	var took []time.Duration
	var short sync.WaitGroup
	for range 64 {
		short.Go(func() {
			for range 40 {
				start := time.Now()
				if _, err := s.Get(t.Context(), "short"); err != nil {
					t.Errorf("a short value: %v", err)
					return
				}
				mu.Lock()
				took = append(took, time.Since(start))
				mu.Unlock()
				time.Sleep(2 * time.Millisecond) // a server's clients come one after another
			}
		})
	}
	short.Wait()
	close(stop)
	readers.Wait()
	slices.Sort(took)
	p95 := took[len(took)*95/100]
	t.Logf("short values beside %d readers of long ones: p50 %v, p95 %v, slowest %v", readersOfLong, took[len(took)/2], p95, took[len(took)-1])
	return p95
}
