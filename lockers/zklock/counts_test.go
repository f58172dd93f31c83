package zklock_test

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
	"github.com/bellwether-go/bellwether/lockers/zklock"
)

// This file counts the Locker's cost for ZooKeeper: requests, watches, nodes.

// TestWatches_OneForAProcess has a thousand callers in four processes wait for one key.
func TestWatches_OneForAProcess(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t).OwnOrSkip(t)
	holder, key := newLocker(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, holder, key, time.Minute)
	var processes []*zklock.Locker
	for range 4 {
		processes = append(processes, newLocker(t, server.Addr))
	}
	waits := make([]<-chan struct{}, 1000)
	var wg sync.WaitGroup
	for i := range waits {
		wg.Go(func() {
			l := processes[i%len(processes)]
			waits[i] = watch(t, l, leasetest.MustBeHeld(t, l, key))
		})
	}
	wg.Wait()
	if n := server.Monitor("zk_watch_count"); n != 4 {
		t.Errorf("ZooKeeper has %d watches for 1000 waiters in 4 processes, want 4", n)
	}
	for range 3 {
		leasetest.Renew(t, lease, time.Minute)
	}
	time.Sleep(100 * time.Millisecond) // time for the event of a renewal
	for _, freed := range waits {
		if leasetest.IsClosed(freed) {
			t.Fatal("a renewal woke those who wait for the end")
		}
	}
	leasetest.Release(t, lease)
	for _, freed := range waits {
		leasetest.MustClose(t, "one of 1000 waiters", freed, 2*time.Second)
	}
	if n := server.Monitor("zk_watch_count"); n != 0 {
		t.Errorf("ZooKeeper still has %d watches", n)
	}
}

func TestCycles_LeaveNothing(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t).OwnOrSkip(t)
	newLocker := func(tb testing.TB) driver.Locker { return newLocker(tb, server.Addr) }
	lockertest.LeavesNothing(t, newLocker, func() map[string]int { return kept(server) })
}

func kept(server *testserver.Server) map[string]int {
	return map[string]int{
		"nodes":           server.Monitor("zk_znode_count"),
		"ephemeral nodes": server.Monitor("zk_ephemerals_count"),
		"watches":         server.Monitor("zk_watch_count"),
	}
}

// TestQueues_LeaveNothing runs the fair mutex, with a node for every key.
func TestQueues_LeaveNothing(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t).OwnOrSkip(t)
	l := newLocker(t, server.Addr)
	use := func(n int) {
		t.Helper()
		var wg sync.WaitGroup
		for w := range 50 {
			wg.Go(func() {
				for i := w; i < n; i += 50 {
					lease, err := l.Lock(t.Context(), fmt.Sprintf("key %d", i), time.Minute)
					if err == nil {
						err = lease.Release(t.Context())
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	use(1) // creates the prefix
	before := kept(server)
	use(500)
	if after := kept(server); !maps.Equal(after, before) {
		t.Errorf("500 queues have left %v, where there were %v", after, before)
	}
}

func TestPrefix(t *testing.T) {
	server := shared(t)
	for _, prefix := range []string{"/shop/eu/locks", "/shop/us/", "/", ""} {
		l, same, other := newLocker(t, server.Addr), newLocker(t, server.Addr), newLocker(t, server.Addr)
		l.Prefix, same.Prefix = prefix, strings.TrimSuffix(prefix, "/")
		for _, key := range []string{newKey(), ".", "..", "zookeeper", ""} {
			lease := leasetest.Acquire(t, l, key, time.Minute)
			leasetest.MustBeHeld(t, same, key)
			leasetest.Release(t, leasetest.Acquire(t, other, key, time.Minute)) // another prefix is another key
			leasetest.Release(t, lease)
		}
	}
}
