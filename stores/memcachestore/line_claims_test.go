//go:build !race

package memcachestore

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bradfitz/gomemcache/memcache"
)

// TestGetMany_LongReplies reads 50 MB in the time for 30 MB: values that have come are handed over.
func TestGetMany_LongReplies(t *testing.T) {
	srv := testserver.Memcached(t, "-m", "256")
	proxy := testserver.NewProxy(t, srv.Addr)
	near, far := open(t, "test:", srv.Addr), open(t, "test:", proxy.Addr)
	value := strings.Repeat("v", 50_000)
	var keys []string
	for i := range 1000 {
		keys = append(keys, fmt.Sprint("key ", i))
		put(t, near, keys[i], value, time.Hour)
	}
	if _, err := far.Get(t.Context(), keys[0]); err != nil { // opens the connection
		t.Fatal(err)
	}
	proxy.SetRate(60_000_000)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var found atomic.Int64
	far.GetMany(ctx, keys, func(_ int, e driver.Entry, err error) {
		if err == nil && len(e.Value) == len(value) {
			found.Add(1)
		}
	})
	t.Logf("%d of %d values in half a second", found.Load(), len(keys))
	if n := found.Load(); n < 100 {
		t.Errorf("%d values in half a second, want 100 at least", n)
	}
}

// TestGetMany_LongRepliesBesideALostServer has two servers on slow lines, and a third that is dead or
// silent. The caller's patience begins again with each answer: all entries of the two servers come.
func TestGetMany_LongRepliesBesideALostServer(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"dead": syscall.SIGKILL, "silent": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			lost := testserver.Memcached(t).OwnOrSkip(t)
			lines := []*testserver.Proxy{testserver.NewProxy(t, testserver.Memcached(t).Addr), testserver.NewProxy(t, testserver.Memcached(t).Addr)}
			var list memcache.ServerList
			if err := list.SetServers(lost.Addr, lines[0].Addr, lines[1].Addr); err != nil {
				t.Fatal(err)
			}
			s := New(memcache.NewFromSelector(&list))
			t.Cleanup(func() { s.mc.Close() })
			var keys []string
			living := 0 // keys with both items away from the lost server
			for i := range 400 {
				keys = append(keys, fmt.Sprint("key ", i))
				put(t, s, keys[i], strings.Repeat("v", 50_000), time.Hour)
				v, _ := list.PickServer(s.names(keys[i]).v)
				m, _ := list.PickServer(s.names(keys[i]).m)
				if v.String() != lost.Addr && m.String() != lost.Addr {
					living++
				}
			}
			for _, line := range lines {
				line.SetRate(10_000_000)
			}
			s.mc.Timeout = 200 * time.Millisecond
			lost.Signal(signal)

			const patience = 500 * time.Millisecond
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			silence := time.AfterFunc(patience, cancel)
			var found atomic.Int64
			s.GetMany(ctx, keys, func(_ int, e driver.Entry, err error) {
				if err == nil {
					silence.Reset(patience)
					found.Add(1)
				}
			})
			if n := int(found.Load()); n != living || living == 0 || living == len(keys) {
				t.Errorf("%d of %d entries came, want the %d away from the lost server", n, len(keys), living)
			}
		})
	}
}
